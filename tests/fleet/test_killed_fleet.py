"""A whole trial fleet, platform and edges, SIGKILLed and resumed at once, again and again.

How often is set by FEDMETA_KILLS (default 2; 20 take half an hour, since Flower holds killed nodes
for online for a minute).
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from fedmeta.core.run_folder import RunFolder
from fedmeta.models.meta_model import load_theta
from fedmeta.training import checkpoints
from fleet.processes import awaited, fleet, kill_family
from fleet.test_processes import METHOD, done, local_theta, same

pytest.importorskip("flwr")
KILLS = int(os.environ.get("FEDMETA_KILLS", "2"))
SEED = int(os.environ.get("FEDMETA_KILLS_SEED", "0"))


@pytest.mark.fleet
@pytest.mark.slow
def test_a_fleet_that_is_killed_goes_on_at_once_with_the_same_bits(tmp_path: Path) -> None:
    """Every checkpoint that a kill has left, and the end, are those of the local engine."""
    luck, run, seen = random.Random(SEED), tmp_path / "runs/a", []
    new = ["--data", "digits", "--nodes", 10, "--rounds", 1000, "--out", "runs/a", *METHOD]
    with fleet(tmp_path) as here:
        command = here.start("fleet", *new)
        for _ in range(KILLS):
            before = done(run)
            awaited(lambda before=before: done(run) > before, command)
            time.sleep(luck.uniform(0, 8))
            kill_family(command.pid)
            assert command.wait(30) != 0
            seen.append(checkpoints.rounds(run / "checkpoints")[-1])
            left = load_theta(run / "checkpoints" / f"round-{seen[-1]:06d}")
            assert same(left, local_theta(seen[-1]))
            print(f"kill {len(seen)}: round {seen[-1]} is the local engine's", flush=True)
            command = here.start("fleet", "--resume", "runs/a")
        before = done(run)
        awaited(lambda: done(run) > before, command)
        kill_family(command.pid)
        command.wait(30)
        rounds = checkpoints.rounds(run / "checkpoints")[-1] + 1
        last = here.start("fleet", "--resume", "runs/a", "--rounds", rounds)
        awaited(lambda: last.poll() is not None)
        assert last.returncode == 0
    assert [r["round"] for r in RunFolder.open(run).history()] == list(range(1, rounds + 1))
    assert same(load_theta(run), local_theta(rounds))
