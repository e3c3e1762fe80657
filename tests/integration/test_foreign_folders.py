"""A folder that somebody else has made runs none of the code that its files name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.calling import call, succeed
from fedmeta.fleet.plan import Plan, carry_out
from fedmeta.studies.sequences import run_sequence
from fedmeta.studies.sequences.folder import begin, conclude
from fleet.test_in_process import fleet_of
from fleet.transports import InProcessTransport
from sequences.problems import small
from ui.client import Client

TRAP = """
from pathlib import Path
Path({mark!r}).write_text("this code was run")
from fedmeta.algorithms import FedAvg as Mine
def make(shape, outputs): raise SystemExit
def loss(outputs, labels): raise SystemExit
"""
SINUSOID = {
    "data": {"name": "sinusoid", "nodes": 8, "samples": [6, 9], "target_share": 0.25},
    "model": {"hidden": [4]},
    "training": {"rounds": 1},
}


@pytest.fixture
def trap(tmp_path: Path) -> str:
    """A file that leaves a mark when it is run."""
    file = tmp_path / "trap.py"
    file.write_text(TRAP.format(mark=str(tmp_path / "mark")))
    return str(file)


@pytest.fixture(autouse=True)
def _unmarked(tmp_path: Path) -> Any:
    yield
    assert not (tmp_path / "mark").exists()


def _named(trap: str) -> list[dict[str, Any]]:
    """Everything in a settings table that can name code."""
    return [
        {"algorithm": f"{trap}:Mine", "algorithms": {f"{trap}:Mine": {}}},
        {"model": {"name": f"{trap}:make"}},
        {"model": {"backbone": f"{trap}:make"}},
        {"loss": f"{trap}:loss"},
        {"prior": {"model": "x.safetensors", "kind": f"{trap}:loss"}},
    ]


def test_a_run_of_one_machine(tmp_path: Path, trap: str) -> None:
    run = tmp_path / "runs/mine"
    succeed(f"train --data sinusoid --nodes 8 --rounds 1 --out {run}")
    settings = json.loads((run / "settings.json").read_text())
    (run / "manifest.json").unlink()  # as whoever changes a file would
    for named in _named(trap):
        changed = {**settings, "origin": {"table": {**SINUSOID, **named}}}
        changed["settings"] = {**settings["settings"], **named}
        changed["settings"]["algorithm"] = {"name": f"{trap}:Mine"}
        (run / "settings.json").write_text(json.dumps(changed))
        refused = call(f"train --resume {run} --rounds 2")
        assert "name it again: --" in refused.complaint
        for command in (
            "evaluate",
            "report",
            "importance",
            "diagnose",
            f"export --out {tmp_path}/x.onnx",
        ):
            call([*command.split(), str(run)])
        page = Client(run.parent)
        for address in ("", "runs/mine", "adapt/mine", "runs/mine/report"):
            page.get(f"/{address}")


def test_a_run_of_a_fleet(tmp_path: Path, trap: str) -> None:
    _, homes = fleet_of(tmp_path / "runs", SINUSOID, edges=2)
    run = tmp_path / "runs/run"
    carry_out(run, InProcessTransport(homes))
    plan = Plan.load(run)
    for named in _named(trap):
        replace(plan, table={**plan.table, **named}).save(run)
        assert "2 target nodes" in succeed(f"evaluate {run}")
        assert Client(run.parent).get("/adapt/run").status_code == 200
        for command in ("platform --prepare", "fleet"):
            refused = call(f"{command} --insecure --resume {run}")
            assert "name it again: --" in refused.complaint
    # Under the name that code has in the app, which lies in the folder too.
    app = run / "fleet/app/fleet_app"
    app.mkdir(parents=True, exist_ok=True)
    for name in ("own_trap.py", "client_app.py"):
        (app / name).write_text(Path(trap).read_text())
    replace(plan, table={**plan.table, "algorithm": "fleet_app.own_trap:Mine"}).save(run)
    refused = call(f"platform --prepare --insecure --resume {run}")
    assert "name it again: --algorithm trap.py:Mine" in refused.complaint
    plan.save(run)
    succeed(f"platform --prepare --insecure --resume {run}")
    assert not (app / "own_trap.py").exists()
    assert "this code was run" not in (app / "client_app.py").read_text()


def test_a_sequence(tmp_path: Path, trap: str) -> None:
    folder = tmp_path / "runs/tasks"
    begin(folder, small(), ["none"], [0])
    conclude(folder, small(), [0], {"none": run_sequence(small(), folder=folder / "none")})
    declared = json.loads((folder / "declaration.json").read_text())
    (folder / "manifest.json").unlink()
    for named in _named(trap)[:3]:  # a sequence has priors of its own
        changed = {**declared["sequence"]["settings"], **named}
        text = json.dumps({**declared, "sequence": {**declared["sequence"], "settings": changed}})
        (folder / "declaration.json").write_text(text)
        refused = call(f"sequence --resume {folder}")
        assert "name it again: --set " in refused.complaint
        assert "1 target nodes" in succeed(f"evaluate {folder}/none/seed-0/2-2-3")
        page = Client(folder.parent)
        assert page.get("/adapt/tasks/none/seed-0/2-2-3").status_code == 200


def test_code_that_is_named_again_is_run(tmp_path: Path) -> None:
    example = f"{Path(__file__).parents[2] / 'examples/new_algorithm.py'}:FedProx"
    run = tmp_path / "run"
    succeed(f"train --data sinusoid --nodes 8 --rounds 1 --algorithm {example} --out {run}")
    succeed(f"train --resume {run} --algorithm {example} --rounds 2")
    plan = f"platform --prepare --insecure --algorithm {example}"
    succeed(f"{plan} --out {tmp_path / 'fleet'}")
    succeed(f"{plan} --resume {tmp_path / 'fleet'}")
    assert (tmp_path / "fleet/fleet/app/fleet_app/own_new_algorithm.py").exists()
