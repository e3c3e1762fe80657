"""Tasks one after the other, and λ found, over edges: as in one process, from sums alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core.errors import SettingError
from fedmeta.core.run_folder import RunFolder
from fedmeta.fleet.message import Message
from fedmeta.fleet.plan import Plan, carry_out
from fedmeta.fleet.sequences_over_fleet import FleetTasks, device
from fedmeta.fleet.transport import FleetError, FleetSettings
from fedmeta.models.meta_model import MetaModel, load_theta
from fedmeta.priors import federated_fisher
from fedmeta.priors.importance import importance_file, read_importance
from fedmeta.studies.sequences import TaskSequence, run_sequence
from fedmeta.training.callbacks import Callback
from fedmeta.training.train import with_strength
from fleet.test_in_process import local_theta, same, table_of
from fleet.transports import Delivery, InProcessTransport, fleet_of
from sequences.problems import small

pytest.importorskip("flwr")

METHODS = {
    "none": None,
    "euclidean": 0.1,
    "fisher": 5.0,
    "outputs": 1.0,
    "replay+euclidean": 0.1,
    "isolation+fisher": 5.0,
    "joint": None,
}


def tasks(method: str, strength: float | None = None) -> TaskSequence:
    """Two tasks of eight nodes, six of them sources: two edges with three nodes each."""
    sequence = small(method, strength)
    few = {
        "data": {"nodes": 8, "target_share": 0.25, "precise": 0},
        "training": {"rounds": 2},
        "execution": {"threads": 1, "path": "batched", "chunk": 3},
    }
    return replace(sequence, tasks=sequence.tasks[:2], settings=merged([sequence.settings, few]))


class InThisProcess:
    """Conducts a task with edges that live in folders; keeps every message."""

    def __init__(self, delivery: Delivery = lambda *_: "") -> None:
        self.transports: list[InProcessTransport] = []
        self.delivery = delivery

    def __call__(self, run: Path, place: Path, callbacks: Sequence[Callback]) -> None:
        homes = {100 + i: home for i, home in enumerate(sorted(place.glob("edge-*")))}
        self.transports.append(InProcessTransport(homes, self.delivery))
        plan = Plan.load(run)
        replace(plan, fleet=replace(plan.fleet, deadline=0.2)).save(run)
        carry_out(run, self.transports[-1], callbacks)


def over_a_fleet(sequence: TaskSequence, folder: Path, conduct: InThisProcess) -> dict[str, Any]:
    trainer = FleetTasks(folder / "runs", folder / "edges", FleetSettings(2), conduct)
    (found,) = run_sequence(sequence, folder=folder / "runs", trainer=trainer)
    return found


def thetas(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    runs = sorted(folder.glob("seed-0/*/model.safetensors"))
    return {run.parent.name: load_theta(run.parent) for run in runs}


@pytest.mark.parametrize("method", METHODS)
def test_a_sequence_is_that_of_one_process(tmp_path: Path, method: str) -> None:
    sequence = tasks(method, METHODS[method])
    (alone,) = run_sequence(sequence, folder=tmp_path / "alone")
    conduct = InThisProcess()
    found = over_a_fleet(sequence, tmp_path, conduct)
    mine, theirs = thetas(tmp_path / "runs"), thetas(tmp_path / "alone")
    assert mine.keys() == theirs.keys()
    if method not in ("none", "euclidean", "outputs"):
        # Importance is added up by edge, nodes of a device are kept together: rounded elsewhere.
        for name, theta in theirs.items():
            assert all(torch.allclose(leaf, mine[name][k], atol=1e-6) for k, leaf in theta.items())
    else:
        assert all(same(mine[name], theta) for name, theta in theirs.items())
        assert found["accuracy"] == alone["accuracy"]
    assert "cost" not in found  # nobody but the devices has the samples of earlier tasks
    assert len(conduct.transports) == (1 if method == "joint" else 2)
    for roster in (tmp_path / "runs").rglob("roster.json"):
        homes = [
            {device(n[0]) for n in m["nodes"]} for m in json.loads(roster.read_text())["members"]
        ]
        assert len(homes) == 2
        assert not homes[0] & homes[1]  # a device and its past are at one edge


def test_an_interrupted_sequence_goes_on(tmp_path: Path) -> None:
    """All edges fail in the second task; what the first has learned is not asked for again."""
    sequence = tasks("fisher", 5.0)
    whole = over_a_fleet(sequence, tmp_path / "whole", InThisProcess())
    run = tmp_path / "cut/runs/seed-0"

    def delivery(_: int, message: Message) -> str:
        return "lost" if (run / "2-2-3").exists() and message.facts["round"] == 2 else ""

    with pytest.raises(FleetError, match="round 2 had too few edges"):
        over_a_fleet(sequence, tmp_path / "cut", InThisProcess(delivery))
    again = InThisProcess()
    assert over_a_fleet(sequence, tmp_path / "cut", again) == whole
    assert len(again.transports) == 1
    first, second = thetas(tmp_path / "whole/runs"), thetas(tmp_path / "cut/runs")
    assert all(same(first[name], second[name]) for name in first)


def earlier(folder: Path, **settings: Any) -> tuple[dict[str, Any], Path]:
    """A run to be tied to."""
    table = table_of(rounds=2, algorithm="fedavg", **settings)
    _, homes = fleet_of(folder / "earlier", table, edges=2)
    carry_out(folder / "earlier/run", InProcessTransport(homes))
    return table, folder / "earlier/run"


FIXED = {"admm-fedmeta": {"penalty": 50.0}}
# Each round gains on the very loss that judges.
SAME_SETS = {"admm-fedmeta": {"penalty": 50.0, "resplit": "none"}}


def test_lambda_is_found_from_sums_of_edges(tmp_path: Path) -> None:
    _, before = earlier(tmp_path)
    start = {"init": str(before), "prior": {"model": str(before)}}
    table = table_of(rounds=4, algorithms=SAME_SETS, **start)
    federation, homes = fleet_of(tmp_path / "b", table, edges=2)
    transport = InProcessTransport(homes)
    run = carry_out(tmp_path / "b/run", transport)
    alone = RunSpec.from_dict(merged([table, {"execution": {"chunk": 3}}]))
    strength = with_strength(alone, federation).prior.strength
    found = run.summary["settings"]["prior"]["strength"]
    assert found == pytest.approx(strength, rel=1e-12)
    assert run.summary["origin"]["table"]["prior"]["strength"] == found
    number = merged([table, {"prior": {"strength": found}}])
    assert same(run.meta_model.theta, local_theta(number, federation, 3))
    asked = [message for _, message in transport.received if message.facts.get("what") == "loss"]
    assert len(asked) == 2
    for message in asked:  # two models, one number each
        assert {name: leaf.numel() for name, leaf in message.tensors.items()} == {
            "tied": 1,
            "free": 1,
            "count": 1,
        }
    again = InProcessTransport(homes)  # a platform that was killed does not look for it twice
    assert same(carry_out(tmp_path / "b/run", again).meta_model.theta, run.meta_model.theta)
    assert not again.sent


def test_a_platform_killed_while_it_looks_for_lambda_goes_on(tmp_path: Path) -> None:
    _, before = earlier(tmp_path)
    start = {"init": str(before), "prior": {"model": str(before)}}
    table = table_of(rounds=4, algorithms=SAME_SETS, **start)
    _, homes = fleet_of(tmp_path / "b", table, edges=2)
    whole = carry_out(tmp_path / "b/run", InProcessTransport(homes))
    _, homes = fleet_of(tmp_path / "c", table, edges=2)

    class KilledError(BaseException):
        pass

    for moment in (2, 3):  # in the pilot, and in the run itself

        def delivery(_: int, message: Message, moment: int = moment) -> str:
            pilot = message.facts["run"].endswith("pilot")
            if message.facts["round"] == moment and pilot == (moment == 2):
                raise KilledError
            return ""

        with pytest.raises(KilledError):
            carry_out(tmp_path / "c/run", InProcessTransport(homes, delivery))
    assert same(
        carry_out(tmp_path / "c/run", InProcessTransport(homes)).meta_model.theta,
        whole.meta_model.theta,
    )


@pytest.mark.parametrize("kind", ["fisher", "path"])
def test_importance_is_stored_with_the_run(tmp_path: Path, kind: str) -> None:
    table = table_of(importance=kind, algorithms=FIXED)
    federation, homes = fleet_of(tmp_path, table, edges=2)
    run = carry_out(tmp_path / "run", InProcessTransport(homes))
    theta = run.meta_model.theta
    stored = read_importance(importance_file(tmp_path / "run", kind), theta, kind)
    if kind == "fisher":
        wanted = federated_fisher(MetaModel.load(tmp_path / "run"), federation)
        assert all(torch.allclose(leaf, stored[name], rtol=1e-5) for name, leaf in wanted.items())
    assert any(bool(leaf.abs().sum() > 0) for leaf in stored.values())
    prior = {"model": str(tmp_path / "run"), "kind": kind, "strength": 0.1}
    tied = table_of(prior=prior, algorithms=FIXED)
    federation, homes = fleet_of(tmp_path / "next", tied, edges=2)
    after = carry_out(tmp_path / "next/run", InProcessTransport(homes))
    assert same(after.meta_model.theta, local_theta(tied, federation, 3))


def test_privacy_does_not_go_with_sums_that_have_no_noise(tmp_path: Path) -> None:
    _, before = earlier(tmp_path)
    dp = {"privacy": {"dp": "local", "noise": 6.4, "clip": 1.0}}
    for number, asks in enumerate(({"prior": {"model": str(before)}}, {"importance": "fisher"})):
        table = table_of(uplink=dp, algorithms=FIXED, **asks)
        fleet_of(tmp_path / str(number), table, edges=2)
        with pytest.raises(SettingError, match="sums without noise"):
            carry_out(tmp_path / str(number) / "run", InProcessTransport({}))


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (lambda _: "Flower's error 5 (gone)", "error 5"),
        (lambda reply: Message({**reply.facts, "name": "else"}, reply.tensors), "name.*else"),
        (lambda reply: Message(reply.facts, {}), "it is missing"),
        (
            lambda reply: Message(
                reply.facts, {k: v * float("nan") for k, v in reply.tensors.items()}
            ),
            "not finite",
        ),
    ],
)
def test_a_bad_answer_is_not_added_up(tmp_path: Path, spoilt: Any, said: str) -> None:
    """Below the quorum the platform stops, and its run can go on."""

    class Spoiling(InProcessTransport):
        def ask(self, kind: Any, messages: Any, deadline: float) -> dict[int, Any]:
            replies = super().ask(kind, messages, deadline)
            if kind == "measure":
                replies[100] = spoilt(replies[100])
            return replies

    table = table_of(rounds=1, importance="fisher", algorithms=FIXED)
    _, homes = fleet_of(tmp_path, table, edges=2, quorum=1.0)
    with pytest.raises(FleetError, match=rf"1 of 2 edges told.*edge-1: .*{said}"):
        carry_out(tmp_path / "run", Spoiling(homes))
    carry_out(tmp_path / "run", InProcessTransport(homes))
    assert importance_file(tmp_path / "run", "fisher").exists()
    assert RunFolder(tmp_path / "run").has_ended()
