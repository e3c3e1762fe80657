"""The round loop asks for the next round before it looks at the numbers of the last one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.runs import VALUES
from fedmeta.algorithms import FedAvg, LocalOnly
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import DivergedError
from fedmeta.core.run_folder import RunFolder
from fedmeta.engine.local import LocalEngine
from fedmeta.models.networks import ModelSettings
from fedmeta.training import checkpoints
from fedmeta.training.callbacks import Callback
from fedmeta.training.run import Run
from fedmeta.training.train import train
from problems import flat

ROUNDS = 7
PLAIN = TrainingSettings(rounds=ROUNDS, evaluate_every=0, checkpoint_every=100)


class Diary(Callback):
    """Writes down what happens, together with the rounds that the engine begins."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[Any] = []
        begin = LocalEngine.round

        def watched(engine: LocalEngine, state: Any, nodes: Any, number: int) -> Any:
            if engine.fleet.nodes == len(VALUES.sources):  # not a trial on two nodes
                self.lines.append(("begun", number))
            return begin(engine, state, nodes, number)

        monkeypatch.setattr(LocalEngine, "round", watched)

    def on_start(self, first_round: int, rounds: int) -> None:
        self.lines.append(("start", first_round, rounds))

    def on_round(self, record: dict[str, Any]) -> None:
        self.lines.append(("told", record["round"]))

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.lines.append(("end", summary["status"], summary["rounds"]))


def trained(settings: TrainingSettings = PLAIN, algorithm: Any = None, **options: Any) -> Run:
    return train(
        VALUES,
        ModelSettings("mlp", hidden=(3,)),
        algorithm or FedAvg(0.2),
        settings,
        execution=Execution(path="batched", chunk=2, threads=1),
        **options,
    )


def test_the_next_round_is_begun_before_the_last_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    diary = Diary(monkeypatch)
    trained(replace(PLAIN, rounds=3), callbacks=[diary])
    assert diary.lines == [
        ("start", 1, 3),
        ("begun", 1),
        ("begun", 2),
        ("told", 1),
        ("begun", 3),
        ("told", 2),
        ("told", 3),
        ("end", "finished", 3),
    ]


@pytest.mark.parametrize("evaluate_every", [0, 1, 3])
@pytest.mark.parametrize("checkpoint_every", [1, 2, 100])
def test_every_round_once_and_in_order(
    evaluate_every: int, checkpoint_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(
        PLAIN,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        keep_checkpoints=99,
    )
    diary, alone = Diary(monkeypatch), trained()
    diary.lines.clear()
    run = trained(settings, folder=tmp_path / "run", callbacks=[diary])
    everyone = list(range(1, ROUNDS + 1))
    assert [line[1] for line in diary.lines if line[0] == "begun"] == everyone
    assert [line[1] for line in diary.lines if line[0] == "told"] == everyone
    assert [record["round"] for record in run.history] == everyone
    assert RunFolder.open(tmp_path / "run").history() == list(run.history)
    due = [t for t in everyone if t == ROUNDS or (evaluate_every and t % evaluate_every == 0)]
    assert [record["round"] for record in run.history if "target" in record] == due
    saved = [t for t in everyone if t == ROUNDS or t % checkpoint_every == 0]
    assert checkpoints.rounds(tmp_path / "run" / "checkpoints") == saved
    for looked in {*due, *saved} - {ROUNDS}:  # states must not have moved on meanwhile
        assert diary.lines.index(("told", looked)) < diary.lines.index(("begun", looked + 1))
    assert torch.equal(flat(run.meta_model.theta), flat(alone.meta_model.theta))
    losses = [[record["local_loss"] for record in each.history] for each in (run, alone)]
    assert losses[0] == losses[1]
    assert all(record["seconds"] >= 0 for record in run.history)


def test_patience_waits_for_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    diary = Diary(monkeypatch)
    run = trained(replace(PLAIN, patience=2), LocalOnly(), callbacks=[diary])
    assert [line[0] for line in diary.lines] == ["start", *["begun", "told"] * 3, "end"]
    assert diary.lines[-1] == ("end", "stopped early", 3)
    assert len(run.history) == 3


@dataclass(frozen=True)
class Breaking(FedAvg):
    """Sends NaN in a certain round."""

    when: int = 1

    def node_step(self, objective: Any, theta: Any, node: Any, data: Any, facts: Any) -> Any:
        contribution, node = super().node_step(objective, theta, node, data, facts)
        bad = torch.where(facts.round == self.when, float("nan"), 0.0)
        update = {name: leaf + bad for name, leaf in contribution.update.items()}
        return contribution._replace(update=update), node


@pytest.mark.parametrize("when", [1, 2, 4, ROUNDS])
@pytest.mark.parametrize("every", [1, 100])
def test_divergence_is_told_with_its_round(
    when: int, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diary = Diary(monkeypatch)
    with pytest.raises(DivergedError, match=f"diverged in round {when}:"):
        trained(
            replace(PLAIN, checkpoint_every=every),
            Breaking(0.2, when=when),
            folder=tmp_path / "run",
            callbacks=[diary],
        )
    folder = RunFolder.open(tmp_path / "run")
    assert [record["round"] for record in folder.history()] == list(range(1, when))
    assert [line[1] for line in diary.lines if line[0] == "told"] == list(range(1, when))
    assert diary.lines[-1] == ("end", "diverged", when - 1)
    assert all(number < when for number in checkpoints.rounds(folder.checkpoints))
