"""Lost and hostile edges, simulated: the same verdicts as on real sums."""

from __future__ import annotations

import pytest
import torch

from benchmarks.simulated_edges import Attack, EdgeLoss, EdgeUplink, edge_of, with_flipped_labels
from fedmeta.algorithms import ADMMFedMeta
from fedmeta.algorithms.algorithm import Contribution
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.config.training import TrainingSettings
from fedmeta.core import randomness, tree
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Facts
from fedmeta.data import DataSettings, load
from fedmeta.data.augmentation import Augmentation
from fedmeta.models.networks import ModelSettings
from fedmeta.training.many import train_many
from fedmeta.training.run import Run
from fedmeta.training.train import RunRequest, train_run
from fedmeta.uplink.guard import Guard, Reply, judge
from fedmeta.uplink.participation import Participation

NODES, EDGES = 11, 4


def nodes_contributions(large: int) -> tuple[Contribution, torch.Tensor]:
    weights = torch.linspace(1, 2, NODES)
    weights = weights / weights.sum()
    update = randomness.normal(randomness.key(3), NODES * 5).reshape(NODES, 5)
    update = ((1 + 0.1 * update) * weights[:, None]).to(torch.float32)
    update[edge_of(NODES, EDGES) == large] *= 50
    return Contribution({"a": update}, weights, {"loss": weights}), weights


@pytest.mark.parametrize("outliers", ["reject", "clip"])
@pytest.mark.parametrize("large", range(EDGES))
def test_edges_are_judged_as_the_platform_would(outliers: str, large: int) -> None:
    rows, weights = nodes_contributions(large)
    guard = Guard(outliers)  # type: ignore[arg-type]
    scales, _ = EdgeUplink(guard, edges=EDGES, nodes=NODES).scales(rows, weights, {})
    replies = {}
    for edge in range(EDGES):
        mine = edge_of(NODES, EDGES) == edge
        total = Contribution(
            {"a": rows.update["a"][mine].sum(0)}, weights[mine].sum(), {"loss": weights[mine].sum()}
        )
        replies[str(edge)] = Reply(total, float(weights[mine].sum()), 1.0)
    verdict = judge(guard, replies, {"a": torch.zeros(5)})
    for edge in range(EDGES):
        wanted = verdict.clipped.get(str(edge), 0.0 if str(edge) in verdict.refused else 1.0)
        of_edge = scales[edge_of(NODES, EDGES) == edge]
        assert of_edge.tolist() == pytest.approx([wanted] * len(of_edge), rel=1e-5)
    assert [*verdict.refused, *verdict.clipped] == [str(large)]


@pytest.mark.parametrize("agree", [True, False])
def test_directions_are_judged_as_the_platform_would(agree: bool) -> None:
    """Edge 0 pulls the other way; where most do not agree, it is the last verdict that counts."""
    rows, weights = nodes_contributions(large=EDGES)
    edge = edge_of(NODES, EDGES)
    signs = torch.tensor([-1.0, 1.0, 1.0, 1.0 if agree else -1.0])
    rows = rows._replace(update={"a": rows.update["a"] * signs[edge][:, None]})
    guard = Guard("reject", direction=-0.2, fewest=3)
    before = torch.tensor([False, True, False, False])
    scales, found = EdgeUplink(guard, edges=EDGES, nodes=NODES).scales(
        rows, weights, {"opposite": before[edge], "refused": torch.zeros(NODES)}
    )
    replies = {
        str(each): Reply(
            Contribution(
                {"a": rows.update["a"][edge == each].sum(0)},
                *(weights[edge == each].sum(), {"loss": weights[edge == each].sum()}),
            ),
            float(weights[edge == each].sum()),
            1.0,
        )
        for each in range(EDGES)
    }
    verdict = judge(guard, replies, {"a": torch.zeros(5)}, opposite=["1"])
    wanted = {"0"} if agree else {"1"}
    assert {name for name, opposite in verdict.opposite.items() if opposite} == wanted
    assert {*verdict.refused} == wanted
    assert {str(each) for each in edge[found["opposite"]].tolist()} == wanted
    assert {str(each) for each in edge[scales == 0].tolist()} == wanted


@pytest.mark.parametrize("attack", [Attack("sign", 10.0), Attack("noise", 2.0)])
def test_the_first_edge_lies_and_no_other(attack: Attack) -> None:
    uplink = EdgeUplink(Guard("reject"), edges=EDGES, nodes=NODES, attack=attack)
    theta = {"a": torch.zeros(50)}
    truth = Contribution({"a": torch.ones(50)}, torch.tensor(0.1), {"loss": torch.tensor(1.0)})
    for position, edge in enumerate(edge_of(NODES, EDGES).tolist()):
        number = torch.tensor(position)
        facts = Facts(torch.tensor(0.1), torch.tensor(0.1), torch.tensor(1.0), number, number)
        state = uplink.init_node(theta, facts)
        sent, _ = uplink.sent(truth, state, {}, facts)
        size = float(tree.squared_norm(sent.update).sqrt()) / 50**0.5
        assert size == pytest.approx(attack.factor if edge == 0 else 1.0)
        assert (edge == 0) == (not torch.equal(sent.update["a"], truth.update["a"]))
        assert sent.metrics == truth.metrics


def test_edges_are_lost_whole_and_as_often_as_they_should() -> None:
    loss, key, edge = EdgeLoss(lost=0.3, edges=EDGES), randomness.key(0), edge_of(NODES, EDGES)
    there = torch.zeros(EDGES)
    for number in range(500):
        counted = loss.counted(NODES, number, key)
        here = edge[counted].unique()
        assert len(counted) == int(torch.isin(edge, here).sum())
        there[here] += 1
    assert bool(((there / 500 - 0.7).abs() < 5 * (0.21 / 500) ** 0.5).all())


def test_only_the_first_edge_has_other_labels() -> None:
    federation = load(DataSettings("digits", nodes=20), seed=0)
    flipped = with_flipped_labels(federation, 4)
    sources = federation.sources
    for node, edge in zip(sources, edge_of(len(sources), 4).tolist(), strict=True):
        for part in (node.support, node.query):
            mine, theirs = federation.labels[part], flipped.labels[part]
            assert (theirs == (9 - mine if edge == 0 else mine)).all()
    for node in federation.targets:
        assert (flipped.labels[node.query] == federation.labels[node.query]).all()


def guarded(seed: int, execution: Execution) -> RunRequest:
    """A run with a liar among four edges."""
    data = DataSettings("digits", nodes=20)
    uplink = EdgeUplink(Guard("reject"), edges=4, nodes=16, attack=Attack("sign", 10.0))
    settings = RunSpec(
        data,
        ModelSettings("linear"),
        ADMMFedMeta(),
        TrainingSettings(rounds=5, seed=seed),
        execution,
        Participation(),
        Augmentation(),
        loss="auto",
        uplink=uplink,
    )
    return RunRequest(settings, load(data, seed))


def test_repeats_are_judged_by_themselves_when_trained_together() -> None:
    execution = Execution(path="batched", dtype="float64", chunk=16)
    repeats = [guarded(seed, execution) for seed in (0, 1, 2)]
    runs = train_many(repeats)
    for run, repeat in zip(runs, repeats, strict=True):
        alone = train_run(repeat)
        assert isinstance(run, Run)
        assert isinstance(alone, Run)
        assert run.summary["together"] == 3
        refused = [record["refused"] for record in run.history]
        assert refused == [record["refused"] for record in alone.history]
        assert max(refused) == 4
        for name, leaf in alone.meta_model.theta.items():
            assert torch.allclose(run.meta_model.theta[name], leaf, atol=1e-10)


def test_edges_that_are_not_computed_at_once_cannot_be_judged() -> None:
    with pytest.raises(SettingError, match="8 of 16 nodes were computed at once"):
        train_run(guarded(0, Execution(path="batched", chunk=8)))


def test_settings_that_make_no_sense() -> None:
    for make in (
        lambda: Attack("lie"),  # type: ignore[arg-type]
        lambda: Attack("sign", -1.0),
        lambda: EdgeUplink(edges=0),
        lambda: EdgeUplink(edges=10, nodes=9),
        lambda: EdgeLoss(edges=0),
    ):
        with pytest.raises(SettingError):
            make()
