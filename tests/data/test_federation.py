import re
from dataclasses import replace

import numpy as np
import pytest

from fedmeta.core.errors import DataError
from fedmeta.data import DataSettings, Federation, Node, Task, few_classes, load
from fedmeta.data.few_classes import holds_few_classes

TASK = Task("classification", 2, ("no", "yes"))


def build(*sets, inputs=None, labels=None, names=None):
    nodes = [
        Node(names[i] if names else f"n{i}", "source", np.array(s, int), np.array(q, int))
        for i, (s, q) in enumerate(sets)
    ]
    inputs = np.zeros((6, 2)) if inputs is None else inputs
    return Federation(inputs, np.zeros(6, int) if labels is None else labels, TASK, nodes)


@pytest.mark.parametrize(
    ("sets", "more", "message"),
    [
        ([], {}, "has no nodes"),
        ([([0], [])], {}, "node 'n0' has an empty query set"),
        ([([], [0])], {}, "node 'n0' has an empty support set"),
        ([([0], [0])], {}, "sample 0 of own data is in more than one set"),
        ([([0], [1]), ([2], [1])], {}, "sample 1 of own data is in more than one set"),
        ([([0], [6])], {}, "points outside its 6 samples"),
        ([([-1], [0])], {}, "points outside its 6 samples"),
        ([([0], [1]), ([2], [3])], {"names": ["a", "a"]}, "two nodes are called 'a'"),
        ([([0], [1])], {"labels": np.zeros(5, int)}, "6 inputs but 5 labels"),
        ([([0], [1])], {"labels": np.full(6, 2)}, "run from 2 to 2 but the task has 2 classes"),
        ([([0], [1])], {"labels": np.full(6, np.inf)}, "infinite labels"),
        ([([0], [1])], {"inputs": np.full((6, 2), np.nan)}, "sample 0 of own data has NaN"),
    ],
)
def test_what_would_fail_later_fails_now(sets, more, message):
    with pytest.raises(DataError, match=re.escape(message)):
        build(*sets, **more)


def test_features_are_one_per_column():
    data = build(([0], [1]))
    assert data.features == ()
    assert replace(data, features=("a", "b")).with_nodes(data.nodes).features == ("a", "b")
    with pytest.raises(DataError, match=r"3 feature names for inputs of shape \(2,\)"):
        replace(data, features=("a", "b", "c"))


def test_unused_samples_may_be_anything():
    inputs = np.zeros((6, 2))
    inputs[5] = np.nan
    assert build(([0], [1]), inputs=inputs).nodes[0].size == 2


def with_target(precise, inputs=None, labels=None, role="target"):
    """A source with samples 0 to 2, a target with 3 and 4, and more that are free."""
    nodes = [
        Node("a", "source", np.array([0]), np.array([1, 2])),
        Node("b", role, np.array([3]), np.array([4]), np.array(precise, int)),
    ]
    inputs = np.zeros((8, 2)) if inputs is None else inputs
    return Federation(inputs, np.zeros(8, int) if labels is None else labels, TASK, nodes)


def test_precise_sets_may_have_what_nobody_learns_from():
    data = with_target([4, 7, 5])
    assert data.targets[0].precise.tolist() == [4, 7, 5]
    assert data.targets[0].size == 2  # they are not its own
    nodes = [*data.nodes, Node("c", "target", np.array([5]), np.array([6]), np.array([4, 3]))]
    assert len(data.with_nodes(nodes).targets) == 2


@pytest.mark.parametrize(
    ("precise", "more", "message"),
    [
        ([4, 0], {}, "precise set of node 'b' has sample 0 that a source node holds"),
        ([5, 2], {}, "precise set of node 'b' has sample 2 that a source node holds"),
        ([4, 3], {}, "precise set of node 'b' has sample 3 of its support set"),
        ([5, 5], {}, "precise set of node 'b' has a sample twice"),
        ([8], {}, "points outside its 8 samples"),
        ([-1], {}, "points outside its 8 samples"),
        ([5], {"role": "source"}, "source node 'b' has a precise set"),
        ([5], {"inputs": np.array([[0.0]] * 5 + [[np.nan]] * 3)}, "sample 5 of own data has NaN"),
        ([5], {"labels": np.array([0] * 5 + [7] * 3)}, "run from 0 to 7"),
    ],
)
def test_precise_sets_that_would_not_be_honest(precise, more, message):
    with pytest.raises(DataError, match=re.escape(message)):
        with_target(precise, **more)


def test_what_is_held_out_has_no_precise_set():
    data = load(DataSettings(nodes=20, precise=50), 0)
    assert all(len(node.precise) == 50 for node in data.targets)
    held = data.hold_out(0.25, seed=1)
    assert len(held.targets) == 4
    assert all(len(node.precise) == 0 for node in held.nodes)


def test_node_by_name():
    data = build(([0], [1]), ([2], [3, 4]))
    assert data.node("n1").size == 3
    with pytest.raises(DataError, match="no node 'n7'"):
        data.node("n7")


def test_hold_out_looks_only_at_sources():
    data = load(DataSettings(nodes=20), 0)
    held = data.hold_out(0.25, seed=1)
    assert (len(held.sources), len(held.targets)) == (12, 4)
    assert not {n.name for n in held.nodes} & {n.name for n in data.targets}
    again, other = data.hold_out(0.25, seed=1), data.hold_out(0.25, seed=2)
    assert [n.name for n in held.targets] == [n.name for n in again.targets]
    assert [n.name for n in held.targets] != [n.name for n in other.targets]
    with pytest.raises(DataError, match="leaves none to train"):
        build(([0], [1])).hold_out(0.5, seed=0)


@pytest.mark.parametrize(
    ("labels", "holders", "few"),
    [
        ([0, 1, 0, 1, 2, 3, 2, 3], [1, 1, 1, 1], True),  # two of four
        ([0, 1, 0, 1, 2, 1, 2, 1], [1, 2, 1, 0], False),  # two of three
        ([0, 0, 0, 0, 1, 1, 1, 1], [1, 1, 0, 0], False),  # nothing to tell apart
        ([0, 1, 2, 3, 0, 0, 0, 0], [2, 1, 1, 1], False),  # 2.5 of four in the mean
    ],
)
def test_whether_devices_hold_few_of_the_classes(labels, holders, few):
    nodes = [
        Node(name, "source", np.array(rows[:2]), np.array(rows[2:]))
        for name, rows in (("a", range(4)), ("b", range(4, 8)))
    ]
    spare = Node("t", "target", np.array([8]), np.array([9]))
    pool = np.zeros((10, 2)), np.array([*labels, 4, 5])  # of classes that no source has
    data = Federation(*pool, Task("classification", 6, tuple("012345")), [*nodes, spare])
    assert few_classes.holders(data) == [*holders, 0, 0]
    assert holds_few_classes(data) == few
    assert holds_few_classes(replace(data, few_classes=not few)) != few, "a platform knows better"


def test_values_have_no_classes():
    task = Task("regression", 1)
    values = replace(build(([0], [1])), labels=np.zeros((6, 1)), task=task)
    assert few_classes.holders(values) == []
    assert not holds_few_classes(values)
