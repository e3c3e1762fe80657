from __future__ import annotations

import torch
from torch import Tensor

from fedmeta.algorithms import ADMMFedMeta
from fedmeta.core import randomness
from fedmeta.core.meta_gradient import MetaGradient, meta_gradient
from fedmeta.core.objective import Adaptation, Facts, Objective
from fedmeta.core.sample_sets import NodeData, Samples, resplit, union
from fedmeta.models.losses import cross_entropy
from problems import LAYOUTS, classification, double, engine_for, softmax_regression, trace


def samples(rows: list[int], padding: int = 0) -> Samples:
    """Every sample is its own number; padding has number 99."""
    numbers = torch.tensor([*rows, *[99] * padding])
    mask = torch.tensor([1.0] * len(rows) + [0.0] * padding)
    return Samples(numbers.unsqueeze(1).double(), numbers, mask)


def real(part: Samples) -> list[int]:
    return part.labels[part.mask > 0].tolist()


def test_union_puts_padding_last() -> None:
    joined = union(NodeData(samples([4, 5], padding=2), samples([6], padding=1)))
    assert joined.labels.tolist() == [4, 5, 6, 99, 99, 99]
    assert joined.mask.tolist() == [1, 1, 1, 0, 0, 0]


def test_every_sample_stays_and_sizes_stay() -> None:
    data = NodeData(samples([0, 1, 2, 3], padding=1), samples([4, 5, 6], padding=2))
    for seed in range(50):
        new = resplit(data, randomness.key(seed))
        assert new.support.mask.tolist() == data.support.mask.tolist()
        assert new.query.mask.tolist() == data.query.mask.tolist()
        assert sorted(real(new.support) + real(new.query)) == list(range(7))
        assert new.support.inputs[:, 0].tolist() == new.support.labels.tolist()


def test_padding_changes_nothing() -> None:
    bare = NodeData(samples([0, 1, 2]), samples([3, 4]))
    padded = NodeData(samples([0, 1, 2], padding=3), samples([3, 4], padding=1))
    for seed in range(20):
        one, other = (resplit(data, randomness.key(seed)) for data in (bare, padded))
        assert real(one.support) == real(other.support)
        assert real(one.query) == real(other.query)


def test_all_orders_come_up_alike() -> None:
    data = NodeData(samples([0, 1]), samples([2]))
    counts: dict[int, int] = {}
    for seed in range(3000):
        (asked,) = real(resplit(data, randomness.key(seed)).query)
        counts[asked] = counts.get(asked, 0) + 1
    assert all(900 < count < 1100 for count in counts.values())
    assert set(counts) == {0, 1, 2}


def test_a_node_of_one_support_and_one_query_sample() -> None:
    data = NodeData(samples([7], padding=2), samples([8]))
    seen = {tuple(real(resplit(data, randomness.key(seed)).support)) for seed in range(20)}
    assert seen == {(7,), (8,)}


def test_a_meta_gradient_of_the_new_sets() -> None:
    model, federation = double(softmax_regression()), classification()
    objective = Objective(model, cross_entropy)
    x = torch.from_numpy(federation.inputs[:7])
    y = torch.from_numpy(federation.labels[:7])
    data = NodeData(*(Samples(x[a], y[a], torch.ones(len(y[a]))) for a in (slice(4), slice(4, 7))))
    number: Tensor = torch.tensor(1.0).double()
    facts = Facts(number, number, number, torch.tensor(0), randomness.key(3))
    anew, as_is = MetaGradient(Adaptation(0.2), resplit=True), MetaGradient(Adaptation(0.2))
    split = resplit(data, randomness.fold(facts.key, 5))
    expected, loss = meta_gradient(objective, as_is, model.theta, split, facts)
    found, same = meta_gradient(objective, anew, model.theta, data, facts)
    assert float(loss) == float(same)
    assert all(torch.equal(found[name], leaf) for name, leaf in expected.items())


def test_every_layout_draws_the_same() -> None:
    model, algorithm = double(softmax_regression()), ADMMFedMeta(Adaptation(0.2), 0.5)
    ends = [
        trace(engine_for(algorithm, classification(), model, layout), model, 6).theta[-1]
        for layout in LAYOUTS.values()
    ]
    for end in ends[1:]:
        assert float((end - ends[0]).abs().max()) < 1e-12
