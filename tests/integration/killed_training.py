"""Kill a training process at random moments, let it resume, and compare with one left alone.

    python tests/integration/killed_training.py FOLDER [KILLS] [SEED]

Prints one line of JSON: how often a living process was hit, and whether the results agree.
Every attempt is a forked process of its own, so the kill is a real SIGKILL: no handler, no
`finally`, nothing is flushed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmeta.algorithms import ADMMFedMeta
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core.objective import Adaptation
from fedmeta.core.run_folder import RunFolder
from fedmeta.data import Federation, Node, Task
from fedmeta.models.meta_model import load_theta
from fedmeta.models.networks import ModelSettings
from fedmeta.training import checkpoints
from fedmeta.training.train import train
from fedmeta.uplink.participation import Participation


def federation() -> Federation:
    """Six sources and two targets with a dozen samples each."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 96)
    inputs = rng.normal(size=(96, 3)) + labels[:, None]
    nodes = [
        Node(
            f"n{i}",
            "source" if i < 6 else "target",
            np.arange(12 * i, 12 * i + 6),
            np.arange(12 * i + 6, 12 * i + 12),
        )
        for i in range(8)
    ]
    return Federation(inputs, labels, Task("classification", 2, ("a", "b")), nodes)


def work(folder: Path, rounds: int) -> None:
    """Start the run in a folder, or go on with it."""
    train(
        federation(),
        ModelSettings("mlp", hidden=(4,)),
        ADMMFedMeta(Adaptation(0.1, batch_size=4), 0.5, rule="stale"),
        TrainingSettings(rounds=rounds, checkpoint_every=3, evaluate_every=10),
        execution=Execution(path="batched", threads=1),
        participation=Participation(0.7, lost=0.1),
        folder=folder,
        resume=(folder / "settings.json").exists(),
    )


def forked(job: Callable[[], None]) -> int:
    """Do something in a child process; returns its number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            job()
            code = 0
        finally:
            os._exit(code)
    return child


def survived(child: int) -> bool:
    """Wait for a child; whether it ended by itself. A child that failed is an error."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    if os.WEXITSTATUS(status) != 0:
        raise SystemExit("a training process failed; see above")
    return True


def outcome(folder: Path) -> dict[str, Any]:
    """What must not depend on how often a run was killed."""
    theta, run = load_theta(folder), RunFolder.open(folder)
    last = checkpoints.rounds(run.checkpoints)[-1]
    return {
        "theta": {name: leaf.numpy().tobytes() for name, leaf in theta.items()},
        "state": (run.checkpoints / f"round-{last:06d}" / "state.safetensors").read_bytes(),
        "history": [
            {k: v for k, v in record.items() if k != "seconds"} for record in run.history()
        ],
        "target": run.summary()["target_metric"],
    }


def main(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Both ways to be killed: many runs once each, and one run many times."""
    torch.set_num_threads(1)
    torch.func.vmap(torch.func.grad(torch.sin))(torch.zeros(2))  # load it before forking
    luck = random.Random(seed)
    once = killed_once_each(folder / "once", kills, luck)
    often = killed_often(folder / "often", kills, luck)
    return {**often, "hits": min(once.pop("hits"), often["hits"]), **once}


def killed_once_each(folder: Path, kills: int, luck: random.Random) -> dict[str, Any]:
    """As many runs as kills, each killed at one random moment and resumed to its end."""
    rounds, hits, equal = 40, 0, 0
    started = time.monotonic()
    assert survived(forked(lambda: work(folder / "alone", rounds)))
    whole = time.monotonic() - started
    alone = outcome(folder / "alone")
    for number in range(kills):
        place = folder / str(number)
        child = forked(lambda place=place: work(place, rounds))
        moment = luck.uniform(0, whole)
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
        if survived(child):  # it was done by then: the machine is less busy than before
            whole = moment
        else:
            hits += 1
        assert survived(forked(lambda place=place: work(place, rounds)))
        equal += outcome(place) == alone
    return {"hits": hits, f"all {kills} equal": equal == kills}


def killed_often(folder: Path, kills: int, luck: random.Random) -> dict[str, Any]:
    """One run undisturbed, and one killed again and again."""
    rounds, hits = 15 + 6 * kills, 0
    started = time.monotonic()
    assert survived(forked(lambda: work(folder / "alone", rounds)))
    whole = time.monotonic() - started
    for _ in range(kills):
        child = forked(lambda: work(folder / "killed", rounds))
        # Long enough to get somewhere now and then, short enough not to finish soon.
        time.sleep(luck.uniform(0, whole / kills))
        os.kill(child, signal.SIGKILL)
        hits += not survived(child)
    assert survived(forked(lambda: work(folder / "killed", rounds)))
    alone, killed = outcome(folder / "alone"), outcome(folder / "killed")
    return {
        "hits": hits,
        "nothing left over": not [*(folder / "killed").rglob(".*.tmp")],
        "rounds": [record["round"] for record in killed["history"]] == list(range(1, rounds + 1)),
        **{f"same {part}": alone[part] == killed[part] for part in alone},
    }


if __name__ == "__main__":
    where, count, start = [*sys.argv[1:], "4", "0"][:3]
    print(json.dumps(main(Path(where), int(count), int(start))))
