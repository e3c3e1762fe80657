"""The platform SIGKILLed at random moments, again and again: always the same θ.

The platform is a forked process that gets a real SIGKILL; the edges live in it, and what they have
written before they died stays. So a kill may hit the platform between two messages, in the middle
of a checkpoint, or an edge while it computes or writes. `test_processes.py` kills a platform whose
edges live on, over Flower. How often is set by FEDMETA_KILLS (default 4; 20 take some minutes).
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from fedmeta.engines.flower.plan import Plan, carry_out
from fedmeta.meta_model import load_theta
from fedmeta.run_folder import RunFolder
from fleet.couriers import HomeCourier, fleet_of
from integration.killed_training import forked, survived

KILLS = int(os.environ.get("FEDMETA_KILLS", "4"))
TABLE = {
    "data": {"name": "sinusoid", "nodes": 6, "samples": [6, 9], "target_share": 0.0},
    "model": {"hidden": [4]},
    "training": {"rounds": 8, "evaluate_every": 0},
    "execution": {"threads": 1, "path": "batched"},
    "participation": {"fraction": 0.67},
    "algorithms": {"admm-fedmeta": {"penalty": 50.0, "rule": "stale"}},
}


def work(folder: Path, homes: dict[int, Path]) -> None:
    """Start the run, or go on with it."""
    carry_out(folder / "run", HomeCourier(homes))


@pytest.mark.slow
def test_every_run_ends_with_the_same_theta(tmp_path: Path) -> None:
    torch.func.vmap(torch.func.grad(torch.sin))(torch.zeros(2))  # load it before forking
    luck, hits, moments = random.Random(0), 0, []
    _, homes = fleet_of(tmp_path / "alone", TABLE, edges=3)
    started = time.monotonic()
    assert survived(forked(lambda: work(tmp_path / "alone", homes)))
    whole, alone = time.monotonic() - started, load_theta(tmp_path / "alone/run")
    for number in range(KILLS):
        place = tmp_path / str(number)
        _, homes = fleet_of(place, TABLE, edges=3)
        child = forked(lambda place=place, homes=homes: work(place, homes))
        moments.append(luck.uniform(0, whole))
        time.sleep(moments[-1])
        os.kill(child, signal.SIGKILL)
        if survived(child):  # it was done by then: the machine is less busy than before
            whole = moments[-1]
        else:
            hits += 1
        assert survived(forked(lambda place=place, homes=homes: work(place, homes)))
        theta = load_theta(place / "run")
        assert all(torch.equal(leaf, theta[name]) for name, leaf in alone.items())
        rounds = [record["round"] for record in RunFolder.open(place / "run").history()]
        assert rounds == list(range(1, 9))
        assert Plan.load(place / "run").run == "run1"
    print(f"{hits} of {KILLS} kills hit a living platform")
    assert hits >= KILLS // 2
