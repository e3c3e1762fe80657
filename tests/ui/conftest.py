"""A folder of runs: images, a table, a wave, a comparison, and two that are damaged; a sequence."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="fedmeta[ui] is not installed")
pytest.importorskip("httpx", reason="httpx, which calls the page in tests, is not installed")

from cli.conftest import write_tables
from fedmeta.config.spec import RunSpec
from fedmeta.core.storage import write_json
from fedmeta.data import load
from fedmeta.studies.sequences import run_sequence
from fedmeta.studies.sequences.folder import begin, conclude
from fedmeta.training.train import RunRequest, train_run
from sequences.problems import small
from ui.client import Client


def make_run(
    folder: str, data: dict[str, Any], *, network: str = "mlp", seed: int = 0, rounds: int = 3
) -> None:
    """A run as `fedmeta train` leaves it, without its report."""
    table = {
        "data": data,
        "model": {"name": network},
        "training": {"rounds": rounds, "seed": seed, "evaluate_every": 1},
    }
    settings = RunSpec.from_dict(table)
    federation = load(settings.data_settings, seed)
    train_run(RunRequest(settings, federation, folder=Path(folder), origin={"table": table}))


def comparison() -> dict[str, Any]:
    """What comparison.json says of the two runs beside it."""
    rows = [
        {
            "label": label,
            "rounds": 3,
            "adaptation_steps": 1,
            "values": [2.0],
            "mean": 2.0,
            "before_mean": 3.0,
            "n": 1,
            "runs": [f"runs/{label}-seed0"],
        }
        for label in ("fedavg", "reptile")
    ]
    return {"format": 1, "metric": "mse", "equal": "rounds", "seeds": [0], "rows": rows}


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with data, and the runs in `runs`."""
    pytest.importorskip("sklearn", reason="scikit-learn, which holds the digits, is not installed")
    folder = tmp_path_factory.mktemp("ui")
    write_tables(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        make_run("runs/digits", {"name": "digits", "nodes": 8})
        make_run("runs/group/other", {"name": "digits", "nodes": 8}, seed=1)
        make_run("runs/table", {"name": "data.csv", "node": "device"}, network="linear")
        make_run("runs/waves", {"name": "sinusoid", "nodes": 8})
        for name in ("fedavg-seed0", "reptile-seed0"):
            shutil.copytree("runs/waves", f"runs/both/runs/{name}")
        write_json(Path("runs/both/comparison.json"), comparison())
    finally:
        os.chdir(before)
    (folder / "runs/broken").mkdir()
    (folder / "runs/broken/settings.json").write_text('{"cut off')
    (folder / "runs/half").mkdir()
    (folder / "runs/half/federation.json").write_text("{}")
    return folder


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sequence in it, as `fedmeta sequence` leaves it."""
    pytest.importorskip("sklearn", reason="scikit-learn, which holds the digits, is not installed")
    root = tmp_path_factory.mktemp("tasks")
    methods = ["none", "replay"]
    begin(root / "two", small(), methods, [0])
    found = {name: run_sequence(small(name), folder=root / "two" / name) for name in methods}
    conclude(root / "two", small(), [0], found)
    return root


@pytest.fixture
def runs(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of runs; the working folder is the one that they were made in."""
    monkeypatch.chdir(work)
    return work / "runs"


@pytest.fixture
def client(runs: Path) -> Client:
    return Client(runs)
