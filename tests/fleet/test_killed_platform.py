"""The platform SIGKILLed at random moments, again and again: always the same θ.

Once without Flower: the platform is a forked process, and the edges live in it, so that a kill may
hit an edge as well while it computes or writes. How often is set by FEDMETA_KILLS (default 4; 20
take some minutes). And once with Flower's own processes: one run whose SuperLink and platform are
killed 20 times while its edges live on.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from fedmeta.core.run_folder import RunFolder
from fedmeta.fleet.flower_commands import free_port
from fedmeta.fleet.plan import Plan, carry_out
from fedmeta.models.meta_model import load_theta
from fedmeta.training import checkpoints
from fleet.processes import awaited, fleet, kill_family
from fleet.test_processes import METHOD, done, edge, local_theta, prepared, same
from fleet.transports import InProcessTransport, fleet_of
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
    carry_out(folder / "run", InProcessTransport(homes))


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


@pytest.mark.fleet
@pytest.mark.slow
def test_20_kills_of_a_real_platform_change_no_round(tmp_path: Path) -> None:
    """Every checkpoint that a kill has left, and the end, are those of the local engine."""
    luck, prefix = random.Random(0), ["--certs", "certs", "--deadline", 600]
    prepared(tmp_path)
    port, run, seen = free_port(), tmp_path / "runs/a", []
    with fleet(tmp_path) as here:
        for number in (1, 2):
            edge(here, number, port)
        begun = time.monotonic()
        platform = here.start(
            "platform", "--port", port, *prefix, "--rounds", 1000, "--out", "runs/a", *METHOD
        )
        awaited(lambda: done(run) >= 1, platform)
        whole = time.monotonic() - begun  # of a life that gets a round done
        for _ in range(20):
            kill_family(platform.pid)
            assert platform.wait(30) != 0
            seen.append(checkpoints.rounds(run / "checkpoints")[-1])
            left = load_theta(run / "checkpoints" / f"round-{seen[-1]:06d}")
            assert same(left, local_theta(seen[-1]))
            platform = here.start("platform", "--port", port, *prefix, "--resume", "runs/a")
            time.sleep(luck.uniform(0, whole))
        kill_family(platform.pid)
        platform.wait(30)
        rounds = checkpoints.rounds(run / "checkpoints")[-1] + 1
        last = here.start(
            "platform", "--port", port, *prefix, "--resume", "runs/a", "--rounds", rounds
        )
        awaited(lambda: last.poll() is not None)
        assert last.returncode == 0
    print(f"rounds done when it was killed: {seen}; in all {rounds}")
    assert rounds > seen[0] + 1  # some lives got somewhere
    assert [r["round"] for r in RunFolder.open(run).history()] == list(range(1, rounds + 1))
    assert same(load_theta(run), local_theta(rounds))
