import numpy as np
import pytest

from fedmeta.data import DataSettings, Node, fit_scaling, load
from fedmeta.data.splitting import equal_parts, with_precise

BY_CLASS = ["random-classes", "fixed-pairs", "dirichlet"]


def loaded(partition="random-classes", precise=30, seed=0, **fields):
    return load(DataSettings(partition=partition, nodes=20, precise=precise, **fields), seed)


def free_samples(data, node):
    """What may judge a node, sample by sample."""
    trained_on = {p for each in data.sources for p in (*each.support, *each.query)}
    mine = {int(data.labels[p]) for p in (*node.support, *node.query)}
    return [
        p
        for p in range(len(data.labels))
        if data.labels[p] in mine and p not in trained_on and p not in node.support
    ]


@pytest.mark.parametrize("partition", BY_CLASS)
@pytest.mark.parametrize("precise", [1, 30, 10_000])
def test_samples_of_its_classes_that_nobody_trains_on(partition, precise):
    data = loaded(partition, precise)
    assert len(data.targets) == 4
    for node in data.targets:
        free = free_samples(data, node)
        drawn = node.precise.tolist()
        assert len(set(drawn)) == len(drawn) == min(precise, len(free))
        assert set(drawn) <= set(free)
        taken, there = (np.bincount(data.labels[each], minlength=10) for each in (drawn, free))
        short = taken < there  # classes that could have given more have all given the same
        assert short.sum() == 0 or np.ptp(taken[short]) <= 1
        assert not short.any() or taken.max() <= taken[short].min() + 1
    assert all(len(node.precise) == 0 for node in data.sources)


@pytest.mark.parametrize("partition", BY_CLASS)
def test_nothing_else_changes(partition):
    plain, precise = loaded(partition, 0), loaded(partition, 200)
    for a, b in zip(plain.nodes, precise.nodes, strict=True):
        assert (a.name, a.role, a.size) == (b.name, b.role, b.size)
        assert (a.support == b.support).all()
        assert (a.query == b.query).all()
        assert len(a.precise) == 0
    for basis in ("sources", "pool"):
        one, other = (fit_scaling(data, over=basis).tensors() for data in (plain, precise))
        assert all(one[name].equal(other[name]) for name in one)


def test_seed_and_name_alone_drive_the_draw():
    data = loaded()
    sources, targets = data.sources, data.targets
    few, _ = with_precise([*sources, targets[2]], data.labels, 30, seed=0)
    assert few[-1].precise.tolist() == targets[2].precise.tolist()
    other, _ = with_precise([*sources, targets[2]], data.labels, 30, seed=1)
    assert other[-1].precise.tolist() != targets[2].precise.tolist()
    renamed = Node("x", "target", targets[2].support, targets[2].query)
    (*_, again), _ = with_precise([*sources, renamed], data.labels, 30, seed=0)
    assert again.precise.tolist() != targets[2].precise.tolist()


def test_more_are_the_same_and_others():
    for small, large in zip(loaded(precise=21).targets, loaded(precise=60).targets, strict=True):
        assert set(small.precise.tolist()) < set(large.precise.tolist())


def test_queries_of_targets_may_be_among_them():
    nodes = [
        Node("a", "source", np.array([0]), np.array([1])),
        Node("b", "target", np.array([2]), np.array([3])),
        Node("c", "target", np.array([4, 5]), np.array([6])),
    ]
    labels = np.array([0, 0, 0, 0, 0, 1, 1, 2])
    (a, b, c), notes = with_precise(nodes, labels, 4, seed=0)
    assert a is nodes[0]
    assert sorted(b.precise) == [3, 4]  # its own query sample, and a support sample of c
    assert sorted(c.precise) == [2, 3, 6]
    assert notes == ("2 of 2 targets have fewer than 4 precise samples, the fewest 2",)
    assert with_precise(nodes, labels, 2, seed=0)[1] == ()


def test_a_note_says_who_is_short():
    assert not [note for note in loaded(precise=30).notes if "precise" in note]
    *_, note = loaded(precise=10_000).notes
    assert note.startswith("4 of 4 targets have fewer than 10000 precise samples, the fewest ")


@pytest.mark.parametrize(
    ("available", "total", "expected"),
    [
        ([5, 5], 4, [2, 2]),
        ([5, 5], 5, [3, 2]),
        ([5, 5], 99, [5, 5]),
        ([1, 9, 3], 9, [1, 5, 3]),
        ([0, 9, 9], 3, [0, 2, 1]),
        ([4, 4, 4], 2, [1, 1, 0]),
        ([0, 0], 3, [0, 0]),
    ],
)
def test_equal_parts(available, total, expected):
    assert equal_parts(np.array(available), total).tolist() == expected
