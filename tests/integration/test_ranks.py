"""Several processes train as one does: started by torchrun, summed by gloo."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmeta.core.run_folder import RunFolder
from fedmeta.training import checkpoints
from integration.ranked_training import outcome, work

SCRIPT = Path(__file__).with_name("ranked_training.py")
SECONDS = 120
pytestmark = pytest.mark.slow  # every start of processes takes several seconds


def launched(place: Path, ranks: int, jobs: list[dict[str, Any]], rc: int = 0) -> list[Any]:
    """What each rank made of the jobs: for every rank a list, first that of `primitives`."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "jobs.json").write_text(json.dumps(jobs))
    paths = [str(SCRIPT.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    many = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*many, "--nproc-per-node", str(ranks), SCRIPT, place / "jobs.json", place / "out"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert (done.returncode == 0) == (rc == 0), done.stderr
    return [json.loads((place / f"out-{rank}.json").read_text()) for rank in range(ranks)]


@cache
def alone(**job: Any) -> dict[str, Any]:
    """The same by one process, this one."""
    return outcome(work(**job))


# One rank alone has a counted node in most rounds of the last two.
JOBS: dict[str, dict[str, Any]] = {
    "admm": {},
    "participants, loop": {"algorithm": "participants", "path": "loop", "chunk": 1},
    "fedavg": {"algorithm": "fedavg", "states": "host"},
    "one node": {"fraction": 0.15, "states": "disk"},
    "one node, loop": {"fraction": 0.15, "path": "loop", "chunk": 1},
    "one node, fedavg": {"algorithm": "fedavg", "fraction": 0.15},
}


@pytest.fixture(scope="module", params=[2, 3])
def together(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[int, Path, list[Any]]:
    """All of the above, a folder, too few nodes and divergence, by two and by three ranks."""
    place = tmp_path_factory.mktemp("ranks")
    folder = {"folder": str(place / "run")}
    jobs = [*JOBS.values(), folder, {"nodes": 1}, {"algorithm": "wild"}]
    return request.param, place, launched(place, request.param, jobs)


def test_what_ranks_say_to_each_other(together: tuple[int, Path, list[Any]]) -> None:
    size, _, results = together
    shares = {2: [[0, 1, 2], [3, 4]], 3: [[0, 1], [2, 3], [4]]}[size]
    for rank, (said, *_) in enumerate(results):
        rows = shares[rank]
        assert said["size"] == size
        assert said["mine"] == rows
        assert said["sum"] == [10.0, [[size * (size + 1) / 2] * 2] * 2]
        assert said["gathered"] == (None if rank else [[n, 10 * n] for n in range(5)])
        assert said["scattered"] == [[[n, 10 * n] for n in rows], rows]
        assert said["agreed"] == [3.0]


@pytest.mark.parametrize("name", JOBS)
def test_as_one_process(name: str, together: tuple[int, Path, list[Any]]) -> None:
    _, _, results = together
    place, wanted = 1 + list(JOBS).index(name), alone(**JOBS[name])
    for said in results:
        got = said[place]
        assert np.abs(np.subtract(got["theta"], wanted["theta"])).max() <= 1e-10
        assert [r["round"] for r in got["history"]] == [1, 2, 3, 4, 5, 6]
        for mine, theirs in zip(got["history"], wanted["history"], strict=True):
            assert mine.pop("target", None) == pytest.approx(theirs.get("target"), abs=1e-10)
            assert mine == pytest.approx(
                {k: v for k, v in theirs.items() if k != "target"}, abs=1e-10
            )
        assert got["theta"] == results[0][place]["theta"], "all ranks have the same model"
        assert not got["folder"]


def test_one_rank_writes(together: tuple[int, Path, list[Any]]) -> None:
    _, place, results = together
    number = 1 + len(JOBS)
    run = RunFolder.open(place / "run")
    assert [record["round"] for record in run.history()] == [1, 2, 3, 4, 5, 6]
    assert run.summary()["status"] == "finished"
    assert [said[number]["folder"] for said in results] == [True] + [False] * (len(results) - 1)
    assert [said[number]["theta"] for said in results] == [results[0][1]["theta"]] * len(results)
    assert checkpoints.rounds(run.checkpoints) == [4, 6]
    assert run.model.exists()
    assert not [*(place / "run").rglob(".*.tmp")]


def test_more_ranks_than_nodes(together: tuple[int, Path, list[Any]]) -> None:
    size, _, results = together
    for said in results:
        refused = said[2 + len(JOBS)]
        assert refused["kind"] == "SettingError"
        assert f"there are {size} ranks but only 1 source nodes" in refused["error"]
        assert "start at most 1 processes" in refused["error"]


def test_all_ranks_see_divergence(together: tuple[int, Path, list[Any]]) -> None:
    errors = {said[3 + len(JOBS)]["error"] for said in together[2]}
    assert len(errors) == 1
    assert "diverged in round" in errors.pop()


@pytest.mark.parametrize("states", ["device", "disk"])
def test_interrupted_and_resumed_to_the_same_bits(states: str, tmp_path: Path) -> None:
    job = {"fraction": 0.6, "states": states}
    whole, cut = ({**job, "folder": str(tmp_path / name)} for name in ("whole", "cut"))
    launched(tmp_path / "a", 2, [whole, {**cut, "die": 5}], rc=1)
    assert checkpoints.rounds(tmp_path / "cut" / "checkpoints") == [2, 4]
    assert not (tmp_path / "cut" / "summary.json").exists()
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "round-000004")
    launched(tmp_path / "b", 2, [{**cut, "resume": True}])
    ends = []
    for name in ("whole", "cut"):
        run = RunFolder.open(tmp_path / name)
        records = [{k: v for k, v in r.items() if k != "seconds"} for r in run.history()]
        state = run.checkpoints / "round-000006" / "state.safetensors"
        ends.append((records, state.read_bytes(), run.summary()["target_metric"]))
        assert [record["round"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert ends[0] == ends[1]


def test_patience_after_resuming(tmp_path: Path) -> None:
    """The loss of local-only never falls: with a patience of 3 it ends after 4 rounds."""
    job = {"algorithm": "local-only", "patience": 3, "folder": str(tmp_path / "run")}
    launched(tmp_path / "a", 2, [{**job, "rounds": 2}])
    results = launched(tmp_path / "b", 2, [{**job, "rounds": 10, "resume": True}])
    for said in results:
        assert [record["round"] for record in said[1]["history"]] == [1, 2, 3, 4]
