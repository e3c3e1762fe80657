from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmeta.algorithms import ADMMFedMeta, Centralised
from fedmeta.core import randomness
from fedmeta.core.errors import SettingError
from fedmeta.core.meta_gradient import MetaGradient, meta_gradient
from fedmeta.core.objective import Adaptation, Facts, Objective, adapt, local_descent
from fedmeta.core.sample_sets import (
    NodeData,
    Resplit,
    Samples,
    redivided,
    renamed,
    resplit,
    resplit_classes,
    union,
)
from fedmeta.core.tree import Tree
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


def test_every_layout_draws_the_same() -> None:
    model, algorithm = double(softmax_regression()), ADMMFedMeta(Adaptation(0.2), 0.5)
    ends = [
        trace(engine_for(algorithm, classification(), model, layout), model, 6).theta[-1]
        for layout in LAYOUTS.values()
    ]
    for end in ends[1:]:
        assert float((end - ends[0]).abs().max()) < 1e-12


def of_classes(
    support: list[int], query: list[int], padding: tuple[int, int] = (0, 0), missing: int = 0
) -> NodeData:
    """Samples with these classes; every input is the number of its sample, of padding −1."""

    def part(classes: list[int], first: int, empty: int) -> Samples:
        numbers = [*range(first, first + len(classes)), *[-1] * empty]
        labels = torch.tensor([*classes, *[missing] * empty])
        mask = torch.tensor([1.0] * len(classes) + [0.0] * empty)
        return Samples(torch.tensor(numbers).unsqueeze(1).double(), labels, mask)

    return NodeData(part(support, 0, padding[0]), part(query, len(support), padding[1]))


def numbers(part: Samples) -> list[int]:
    return part.inputs[part.mask > 0, 0].int().tolist()


def draws(data: NodeData, count: int = 40) -> list[NodeData]:
    return [resplit_classes(data, randomness.key(seed)) for seed in range(count)]


class TestClassesAreKept:
    def test_shares_by_hand(self) -> None:
        """Of a a a a b b half is support: two of a and one of b, whatever is drawn."""
        data = of_classes([0, 0, 0], [0, 1, 1])
        for new in draws(data):
            assert sorted(real(new.support)) == [0, 0, 1]
            assert sorted(real(new.query)) == [0, 0, 1]
            assert sorted(numbers(new.support) + numbers(new.query)) == list(range(6))

    def test_what_does_not_come_out_even_goes_to_either_class(self) -> None:
        """Of a a a b b b three are support: two of one class, one of the other."""
        found = [sorted(real(new.support)) for new in draws(of_classes([0] * 3, [1] * 3), 200)]
        assert {tuple(each) for each in found} == {(0, 0, 1), (0, 1, 1)}
        assert 70 < found.count([0, 0, 1]) < 130

    def test_episodes_keep_their_shots(self) -> None:
        ways = [0, 1, 2, 3, 4]
        for shots, queries in ((1, 5), (5, 5), (2, 1)):
            for new in draws(of_classes(ways * shots, ways * queries)):
                assert torch.bincount(new.support.labels).tolist() == [shots] * 5
                assert torch.bincount(new.query.labels).tolist() == [queries] * 5

    def test_a_class_of_one_sample_is_in_the_support_set(self) -> None:
        for new in draws(of_classes([0, 0], [0, 0, 7])):
            assert sorted(real(new.support)) == [0, 7]

    def test_classes_of_several_samples_come_first_where_there_is_no_room(self) -> None:
        """Two support samples for classes 0, 1 (of two samples) and 2 (of one)."""
        for new in draws(of_classes([2, 0], [0, 1, 1])):
            assert sorted(real(new.support)) == [0, 1]
            assert sorted(real(new.query)) == [0, 1, 2]

    def test_more_classes_than_support_samples(self) -> None:
        """Four classes of two, two support samples: any two classes, each as often."""
        pairs = [
            tuple(sorted(real(new.support)))
            for new in draws(of_classes([0, 0], [1, 1, 2, 2, 3, 3]), 600)
        ]
        assert set(pairs) == {(a, b) for a in range(4) for b in range(a + 1, 4)}
        assert all(60 < pairs.count(pair) < 140 for pair in set(pairs))

    def test_the_support_set_comes_first(self) -> None:
        """Four classes of two, one query sample: all are in the support set, one is asked."""
        found = draws(of_classes([0, 0, 1, 1, 2, 2, 3], [3]))
        assert all(set(real(new.support)) == {0, 1, 2, 3} for new in found)
        assert {real(new.query)[0] for new in found} == {0, 1, 2, 3}

    def test_samples_of_a_class_come_up_alike(self) -> None:
        chosen = [
            number
            for new in draws(of_classes([0, 1], [0, 0, 1, 1]), 600)
            for number in numbers(new.support)
        ]
        assert all(150 < chosen.count(number) < 250 for number in range(6))

    def test_a_class_alone_is_divided_as_ever(self) -> None:
        data = of_classes([3, 3, 3], [3, 3])
        chosen = [tuple(sorted(numbers(new.support))) for new in draws(data, 500)]
        assert len(set(chosen)) == 10
        assert all(25 < chosen.count(each) < 80 for each in set(chosen))

    def test_values_have_no_classes(self) -> None:
        data = of_classes([0, 0, 1], [1, 0])
        for labels in (lambda y: y.double(), lambda y: y.unsqueeze(1)):
            values = NodeData(*(part._replace(labels=labels(part.labels)) for part in data))
            for seed in range(5):
                found, wanted = (
                    divide(values, randomness.key(seed)) for divide in (resplit_classes, resplit)
                )
                assert numbers(found.support) == numbers(wanted.support)
                assert numbers(found.query) == numbers(wanted.query)

    @given(
        support=st.lists(st.integers(0, 4), min_size=1, max_size=9),
        query=st.lists(st.integers(0, 4), min_size=1, max_size=9),
        padding=st.tuples(st.integers(0, 4), st.integers(0, 4)),
        seed=st.integers(0, 2**40),
    )
    def test_of_any_node(
        self, support: list[int], query: list[int], padding: tuple[int, int], seed: int
    ) -> None:
        data, key = of_classes(support, query), randomness.key(seed)
        new = resplit_classes(data, key)
        assert sorted(numbers(new.support) + numbers(new.query)) == list(
            range(len(support) + len(query))
        )
        assert new.support.mask.tolist() == data.support.mask.tolist()
        assert new.query.mask.tolist() == data.query.mask.tolist()
        labels = [*support, *query]
        assert real(new.support) == [labels[number] for number in numbers(new.support)]
        several = {label for label in labels if labels.count(label) >= 2}
        if len(set(labels)) <= len(support):
            assert set(real(new.support)) == set(labels)
        if len(several) <= len(support):
            assert several <= set(real(new.support))
        if len(several) <= len(query) and len(set(labels)) <= len(support):
            assert several <= set(real(new.query))
        for missing in (0, 9):  # what stands in for a label of padding
            padded = resplit_classes(of_classes(support, query, padding, missing), key)
            assert numbers(padded.support) == numbers(new.support)
            assert numbers(padded.query) == numbers(new.query)

    def test_nodes_at_once_draw_as_one_by_one(self) -> None:
        sets = (([0, 1, 1], [0, 2]), ([2, 2], [1, 1, 1]), ([0], [0, 4, 4, 0]))
        nodes = [of_classes(s, q, (4 - len(s), 5 - len(q))) for s, q in sets]
        keys = torch.stack([randomness.key(seed) for seed in range(3)])
        stacked = NodeData(
            *(
                Samples(*map(torch.stack, zip(*parts, strict=True)))
                for parts in zip(*nodes, strict=True)
            )
        )
        for divide in (resplit_classes, lambda data, key: renamed(data, 5, key)):
            found = torch.func.vmap(divide)(stacked, keys)
            for place, (node, key) in enumerate(zip(nodes, keys, strict=True)):
                wanted = divide(node, key)
                for mine, theirs in zip(found, wanted, strict=True):
                    assert all(torch.equal(a[place], b) for a, b in zip(mine, theirs, strict=True))


class TestRenaming:
    def test_by_hand(self) -> None:
        """Class c is called π(c), the place of the c-th smallest draw, in both sets."""
        data = of_classes([0, 1, 2, 1], [2, 0], (1, 2))
        for seed in range(10):
            key = randomness.key(seed)
            drawn = randomness.uniform(key, 3).tolist()
            called = sorted(range(3), key=drawn.__getitem__)
            new = renamed(data, 3, key)
            assert real(new.support) == [called[0], called[1], called[2], called[1]]
            assert real(new.query) == [called[2], called[0]]
            assert numbers(new.support) == [0, 1, 2, 3]

    def test_padding_changes_nothing(self) -> None:
        key = randomness.key(4)
        bare, padded = (
            renamed(of_classes([0, 2], [1, 1, 0], padding, 2), 4, key)
            for padding in ((0, 0), (3, 1))
        )
        assert real(bare.support) == real(padded.support)
        assert real(bare.query) == real(padded.query)

    def test_all_permutations_come_up_alike(self) -> None:
        data = of_classes([0, 1, 2], [0])
        found = [tuple(real(renamed(data, 3, randomness.key(s)).support)) for s in range(1200)]
        assert len(set(found)) == 6
        assert all(150 < found.count(each) < 250 for each in set(found))


MODEL = double(softmax_regression())
PLAIN, LOCAL = Objective(MODEL, cross_entropy), Objective(MODEL, cross_entropy, renames=3)


def a_node() -> tuple[NodeData, Facts]:
    federation = classification()
    x, y = torch.from_numpy(federation.inputs[:7]), torch.from_numpy(federation.labels[:7])
    data = NodeData(*(Samples(x[a], y[a], torch.ones(len(y[a]))) for a in (slice(4), slice(4, 7))))
    number: Tensor = torch.tensor(1.0).double()
    return data, Facts(number, number, number, torch.tensor(0), randomness.key(3))


def equal(a: Tree, b: Tree) -> bool:
    return all(torch.equal(a[name], leaf) for name, leaf in b.items())


class TestTrainingSees:
    """Keys as the table of purposes has them: 5 for the division, 8 for the names."""

    @pytest.mark.parametrize("how", ["none", "random", "classes"])
    def test_a_meta_gradient(self, how: Resplit) -> None:
        data, facts = a_node()
        divided = redivided(data, how, randomness.fold(facts.key, 5))
        given = renamed(divided, 3, randomness.fold(facts.key, 8))
        rule = MetaGradient(Adaptation(0.2))
        expected, loss = meta_gradient(PLAIN, rule, MODEL.theta, given, facts)
        anew = replace(rule, resplit=how)
        found, same = meta_gradient(LOCAL, anew, MODEL.theta, data, facts)
        assert float(loss) == float(same)
        assert equal(found, expected)

    def test_local_steps_share_their_names(self) -> None:
        data, facts = a_node()
        given = renamed(data, 3, randomness.fold(facts.key, 8))
        found, _ = local_descent(LOCAL, MODEL.theta, data, 3, 0.1, None, facts.key)
        expected, _ = local_descent(PLAIN, MODEL.theta, given, 3, 0.1, None, facts.key)
        assert equal(found, expected)

    def test_centralised_training(self) -> None:
        data, facts = a_node()
        given = renamed(data, 3, randomness.fold(facts.key, 8))
        found, _ = Centralised().node_step(LOCAL, MODEL.theta, {}, data, facts)
        expected, _ = Centralised().node_step(PLAIN, MODEL.theta, {}, given, facts)
        assert equal(found.update, expected.update)

    def test_adaptation_never_renames(self) -> None:
        data, facts = a_node()
        found = adapt(LOCAL, Adaptation(0.2), MODEL.theta, data.support, facts.key)
        assert equal(found, adapt(PLAIN, Adaptation(0.2), MODEL.theta, data.support, facts.key))


@pytest.mark.parametrize("value", [True, False])
def test_a_switch_is_no_way_to_divide(value: Any) -> None:
    with pytest.raises(SettingError, match=f"resplit is {value}: .*known: classes, none, random"):
        ADMMFedMeta(resplit=value)
