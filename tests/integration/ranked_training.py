"""Train as one of several processes, a list of runs one after the other.

    python -m torch.distributed.run --standalone --nproc-per-node 2 ranked_training.py JOBS OUT

JOBS is a JSON file: a list of what `work` takes. Every rank writes to OUT-RANK.json what each run
left; a run that ends in an error of fedmeta leaves its message.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from fedmeta.algorithms import ADMMFedMeta, Algorithm, FedAvg, LocalOnly
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import FedmetaError
from fedmeta.core.objective import Adaptation
from fedmeta.engine.local import LocalEngine
from fedmeta.engine.ranks import Ranks, current, leave, started
from fedmeta.models.networks import ModelSettings
from fedmeta.training.run import Run
from fedmeta.training.train import train
from fedmeta.uplink.participation import Participation
from problems import classification

SIZES = ((4, 3), (1, 1), (2, 6), (5, 1), (3, 3), (1, 4), (2, 2))
ALGORITHMS: dict[str, Algorithm] = {
    "admm": ADMMFedMeta(Adaptation(0.1, batch_size=3), 0.5, rule="stale", dual_deviation=0.1),
    "participants": ADMMFedMeta(Adaptation(0.1), 0.5),
    "fedavg": FedAvg(0.2, local_steps=2),
    "wild": ADMMFedMeta(Adaptation(1e200), 1e-200),
    "local-only": LocalOnly(),
}


def work(
    algorithm: str = "admm",
    nodes: int = len(SIZES),
    rounds: int = 6,
    folder: str | None = None,
    resume: bool = False,
    fraction: float = 1.0,
    patience: int | None = None,
    die: int | None = None,
    **execution: Any,
) -> Run:
    """Train on images like small digits.

    Args:
        algorithm: one of those above.
        nodes: how many sources.
        rounds, folder, resume, patience: see `train`.
        fraction: of the nodes that are counted.
        die: the leading rank ends without a word when this round begins: what it was to write is
            written by then. (Were another to end, this one might be stopped while it writes.)
        execution: see `Execution`.
    """
    begin = LocalEngine.round

    def mortal(engine: LocalEngine, state: Any, states: Any, number: int) -> Any:
        if number == die and current().rank == 0:
            os._exit(7)
        return begin(engine, state, states, number)

    LocalEngine.round = mortal  # type: ignore[method-assign]
    try:
        return train(
            classification(SIZES[:nodes], shape=(1, 8, 8), classes=4),
            ModelSettings("mlp", hidden=(5,)),
            ALGORITHMS[algorithm],
            TrainingSettings(
                rounds=rounds, evaluate_every=3, checkpoint_every=2, patience=patience
            ),
            execution=Execution(
                **{"dtype": "float64", "path": "batched", "chunk": 2, "threads": 1, **execution}
            ),
            participation=Participation(fraction),
            folder=folder,
            resume=resume,
        )
    finally:
        LocalEngine.round = begin  # type: ignore[method-assign]


def outcome(run: Run) -> dict[str, Any]:
    """What a run left, without times."""
    drop = {"seconds"}
    return {
        "theta": torch.cat([leaf.reshape(-1) for leaf in run.meta_model.theta.values()]).tolist(),
        "history": [{k: v for k, v in r.items() if k not in drop} for r in run.history],
        "target": run.summary["target_metric"],
        "folder": run.folder is not None,
    }


def primitives(ranks: Ranks) -> dict[str, Any]:
    """What ranks say to each other, on a small example of five nodes."""
    mine = ranks.share(5)
    rows = torch.arange(5.0)[mine.start : mine.stop]
    states = {"dual": {"a": torch.stack([rows, 10 * rows], 1)}, "sent": {"a": rows.clone()}}
    total = ranks.sum({"b": rows.sum(), "a": [torch.full((2, 2), float(ranks.rank + 1))]})
    everyone = ranks.gathered(states, 5)
    for leaves in states.values():
        leaves["a"].zero_()
    ranks.scatter(everyone, states, 5)
    agreed = ranks.agree({"x": torch.tensor([float(ranks.rank + 3)])})
    return {
        "size": ranks.size,
        "mine": list(mine),
        "sum": [float(total["b"]), total["a"][0].tolist()],
        "gathered": None if everyone is None else everyone["dual"]["a"].tolist(),
        "scattered": [states["dual"]["a"].tolist(), states["sent"]["a"].tolist()],
        "agreed": agreed["x"].tolist(),
    }


def main(jobs: Path, out: str) -> None:
    """All jobs in order."""
    torch.set_num_threads(1)
    with started("cpu") as ranks:
        assert ranks == current()
        results: list[Any] = [primitives(ranks)]
        for job in json.loads(jobs.read_text()):
            try:
                results.append(outcome(work(**job)))
            except FedmetaError as error:
                results.append({"error": str(error), "kind": type(error).__name__})
            Path(f"{out}-{ranks.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
    leave(0)  # as the command line does
