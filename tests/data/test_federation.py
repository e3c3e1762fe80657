import re
from dataclasses import replace

import numpy as np
import pytest

from fedmeta.data import DataSettings, Federation, Node, Task, load
from fedmeta.errors import DataError

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
