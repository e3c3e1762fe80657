from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
import torch

from engines.runs import CHUNKED, everything, run
from fedmeta.algorithms import ADMMFedMeta
from fedmeta.config.execution import Execution
from fedmeta.core.objective import Adaptation
from fedmeta.data import unpacked
from fedmeta.engine import node_table
from fedmeta.engine.samples import NodeStore, StackedStores, data_bytes, fits_resident, rows_of
from fedmeta.uplink.participation import Participation
from problems import DOUBLE, PLAIN, classification, double, mlp, regression

DATA, CPU = classification(), torch.device("cpu")


@pytest.mark.parametrize("resident", [True, False])
def test_chunks_are_padded_alike_and_single_nodes_not_at_all(resident: bool) -> None:
    store = NodeStore(DATA, DATA.sources, PLAIN, DOUBLE, resident)
    assert len(store) == 5
    for positions in ([0, 1, 2, 3, 4], [1], [2, 3], [0, 3], [1, 2, 3, 4]):
        data = store.chunk(torch.tensor(positions))
        assert data.support.inputs.shape == (len(positions), 5, 3)
        assert data.query.inputs.shape == (len(positions), 6, 3)
        for row, position in enumerate(positions):
            whole = unpacked(DATA, DATA.sources[position], PLAIN, torch.float64)
            for padded, own in zip(data, whole, strict=True):
                real = padded.mask[row] > 0
                assert int(real.sum()) == len(own.mask)
                assert torch.equal(padded.inputs[row][real], own.inputs)
                assert torch.equal(padded.labels[row][real], own.labels)
    for position, node in enumerate(DATA.sources):
        alone = store.single(position)
        whole = unpacked(DATA, node, PLAIN, torch.float64)
        for mine, own in zip(alone, whole, strict=True):
            assert all(torch.equal(a[0], b) for a, b in zip(mine, own, strict=True))
            assert mine.mask.min() == 1


@pytest.mark.parametrize("resident", [True, False])
def test_sizes_of_a_larger_whole(resident: bool) -> None:
    store = NodeStore(DATA, DATA.sources[:1], PLAIN, DOUBLE, resident, sizes=(7, 9))
    data = store.chunk(torch.arange(1))
    assert (data.support.inputs.shape[1], data.query.inputs.shape[1]) == (7, 9)
    assert data.support.mask.sum() == 4
    assert store.single(0).query.inputs.shape == (1, 3, 3)


@pytest.mark.parametrize("resident", [True, False])
def test_several_federations_side_by_side(resident: bool) -> None:
    stores = [
        NodeStore(data, data.sources, PLAIN, DOUBLE, resident)
        for data in (classification(seed=1), classification(seed=2))
    ]
    stacked = StackedStores(stores)
    for positions in (torch.arange(5), torch.tensor([1, 4])):
        data = stacked.chunk(positions)
        assert data.support.inputs.shape == (2, len(positions), 5, 3)
        for number, store in enumerate(stores):
            assert torch.equal(data.query.inputs[number], store.chunk(positions).query.inputs)
    again = stacked.chunk(torch.arange(5))
    kept = again is stacked.chunk(torch.arange(5))
    assert kept == resident


def test_rows_without_gaps_are_a_slice() -> None:
    assert rows_of(torch.tensor([], dtype=torch.int64), CPU) == slice(0, 0)
    assert rows_of(torch.tensor([3]), CPU) == slice(3, 4)
    assert rows_of(torch.tensor([2, 3, 4]), CPU) == slice(2, 5)
    gaps = rows_of(torch.tensor([0, 2, 3]), CPU)
    assert isinstance(gaps, torch.Tensor)
    assert gaps.tolist() == [0, 2, 3]


def test_bytes_by_hand() -> None:
    # Longest sets 5 + 6; 3 features, a label per class at most, and the mask.
    assert data_bytes(DATA, DATA.sources, DOUBLE) == 5 * 11 * 7 * 8
    assert data_bytes(DATA, DATA.sources[:1], Execution()) == 7 * 7 * 4
    values = regression()
    assert data_bytes(values, values.sources, DOUBLE) == 5 * 11 * 4 * 8


def test_samples_get_a_quarter_of_the_budget() -> None:
    limit = replace(DOUBLE, memory=4 * 3080 / 2**30)
    assert fits_resident(DATA, DATA.sources, limit)
    assert not fits_resident(DATA, DATA.sources, replace(limit, memory=limit.memory * 0.999))
    assert not fits_resident(DATA, DATA.sources, limit, repeats=2)
    assert fits_resident(DATA, DATA.sources, replace(limit, memory=limit.memory * 2), repeats=2)


@pytest.mark.parametrize("path", ["batched", "loop"])
def test_resident_or_not_is_the_same(path: str) -> None:
    model, ends = double(mlp()), []
    execution = replace(CHUNKED, path=path, chunk=3 if path == "batched" else 1)
    for fits in (True, False):
        with mock.patch.object(node_table, "fits_resident", return_value=fits):
            result, engine = run(
                ADMMFedMeta(Adaptation(0.1)), model, execution, participation=Participation(0.6)
            )
            assert engine.table._store.resident == fits
            ends.append(everything(result))
    assert ends[0] == ends[1]
