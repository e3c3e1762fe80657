import numpy as np
import pytest
import torch

from fedmeta.core.errors import DataError
from fedmeta.data import Federation, Node, Scaling, Task, longest_sets, pack, pack_precise, unpacked

PLAIN = Scaling(np.zeros(()), np.ones(()))


@pytest.fixture
def data():
    nodes = [
        Node("a", "source", np.array([4, 1]), np.array([2])),
        Node("b", "source", np.array([0]), np.array([3, 6, 5])),
    ]
    inputs = np.arange(14, dtype=np.float32).reshape(7, 2)
    task = Task("classification", 3, ("x", "y", "z"))
    return Federation(inputs, np.array([0, 1, 2, 0, 1, 2, 0]), task, nodes)


def test_packed_by_hand(data):
    packed = pack(data, data.nodes, PLAIN)
    assert packed.support.inputs[:, :, 0].tolist() == [[8, 2], [0, 0]]
    assert packed.support.labels.tolist() == [[1, 1], [0, 0]]
    assert packed.support.mask.tolist() == [[1, 1], [1, 0]]
    assert packed.query.inputs[:, :, 1].tolist() == [[5, 5, 5], [7, 13, 11]]
    assert packed.query.mask.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert packed.support.labels.dtype == torch.int64
    assert packed.support.mask.dtype == packed.support.inputs.dtype == torch.float32


def test_chunks_share_a_shape(data):
    assert longest_sets(data.nodes) == (2, 3)
    whole = pack(data, data.nodes, PLAIN, torch.float64)
    chunks = [pack(data, [node], PLAIN, torch.float64, sizes=(2, 3)) for node in data.nodes]
    joined = torch.cat([chunk.query.inputs for chunk in chunks])
    assert torch.equal(joined, whole.query.inputs)
    with pytest.raises(DataError, match=r"sizes are \(2, 2\) but the longest .* have \(2, 3\)"):
        pack(data, data.nodes, PLAIN, sizes=(2, 2))
    with pytest.raises(DataError, match="no nodes of own data to pack"):
        pack(data, [], PLAIN)


def test_precise_sets_by_hand(data):
    nodes = [
        Node("a", "target", np.array([4, 1]), np.array([2]), np.array([2, 3, 5])),
        Node("b", "target", np.array([0]), np.array([6]), np.array([6])),
        Node("c", "target", np.array([3]), np.array([5])),
    ]
    data = data.with_nodes(nodes)
    packed = pack_precise(data, nodes, PLAIN)
    assert packed.inputs[:, :, 0].tolist() == [[4, 6, 10], [12, 0, 0], [6, 6, 6]]
    assert packed.labels.tolist() == [[2, 0, 2], [0, 0, 0], [0, 0, 0]]
    assert packed.mask.tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]
    assert pack_precise(data, nodes[1:2], PLAIN, torch.float64, size=4).inputs.shape == (1, 4, 2)
    assert pack_precise(data, nodes[2:], PLAIN).mask.tolist() == [[0]]


def test_unpacked_is_the_unmasked_part(data):
    packed = pack(data, data.nodes, PLAIN)
    for number, node in enumerate(data.nodes):
        alone = unpacked(data, node, PLAIN)
        for part, whole in zip(alone, packed, strict=True):
            kept = whole.mask[number].bool()
            assert torch.equal(part.inputs, whole.inputs[number][kept])
            assert torch.equal(part.labels, whole.labels[number][kept])
            assert part.mask.tolist() == [1] * int(kept.sum())


def test_scaling_and_regression_labels():
    node = Node("a", "source", np.array([0]), np.array([1, 2]))
    inputs = np.array([[0], [128], [255]], np.uint8)
    data = Federation(inputs, np.array([[1.5], [2.5], [3.5]]), Task("regression", 1), [node])
    packed = pack(data, [node], Scaling(np.array([128.0]), np.array([127.0])), torch.float64)
    assert packed.query.inputs.tolist() == [[[0.0], [1.0]]]
    assert packed.query.labels.tolist() == [[[2.5], [3.5]]]
    assert packed.query.labels.dtype == torch.float64
