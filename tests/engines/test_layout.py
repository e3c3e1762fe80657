from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engines.runs import convolutional
from fedmeta.config.execution import Execution
from fedmeta.core.objective import Objective
from fedmeta.data import NodeData
from fedmeta.engine.layout import Layout, predictor
from fedmeta.engine.nodewise import layers
from fedmeta.engine.samples import NodeStore
from fedmeta.models.functional import functionalise
from fedmeta.models.losses import cross_entropy
from problems import LAYOUTS, PLAIN, classification, double, mlp

DATA = classification()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_map_keeps_nodes_in_order(layout: str) -> None:
    """Also when samples are packed chunk by chunk instead of staying in memory."""
    execution = LAYOUTS[layout]
    laid = Layout(execution, Objective(double(mlp()), cross_entropy))
    expected = [
        DATA.inputs[node.support].sum() + 100 * number for number, node in enumerate(DATA.sources)
    ]
    for resident in (True, False):
        store = NodeStore(DATA, DATA.sources, PLAIN, execution, resident)
        offsets = 100 * torch.arange(5, dtype=torch.float64)
        sums = laid.map(
            lambda data, offset: (data.support.inputs * data.support.mask[:, None]).sum() + offset,
            store,
            offsets,
        )
        assert sums.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("fit", "calls"), [(2, [5, 3, 2, 2, 1]), (1, [5, 3, 2, 1, 1, 1, 1, 1])])
def test_map_goes_on_with_fewer_when_memory_runs_out(fit: int, calls: list[int]) -> None:
    execution = replace(LAYOUTS["batched-all"], chunk=5)
    laid = Layout(execution, Objective(double(mlp()), cross_entropy))
    asked = []

    class Full(NodeStore):
        def chunk(self, positions: torch.Tensor) -> NodeData:
            asked.append(len(positions))
            if len(positions) > fit:
                raise torch.OutOfMemoryError
            return super().chunk(positions)

    store = Full(DATA, DATA.sources, PLAIN, execution, resident=False)
    numbers = laid.map(lambda _, number: 2 * number, store, torch.arange(5))
    assert numbers.tolist() == [0, 2, 4, 6, 8]
    assert asked == calls


def test_map_needs_room_for_one() -> None:
    laid = Layout(LAYOUTS["batched-all"], Objective(double(mlp()), cross_entropy))
    store = NodeStore(DATA, DATA.sources[:1], PLAIN, laid.execution, resident=False)

    def full(_: NodeData) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        laid.map(full, store)


def test_models_are_computed_node_by_node_where_nodes_come_in_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, served = double(convolutional()), []
    known = layers._REPLACEMENTS[torch.conv2d]
    monkeypatch.setitem(
        layers._REPLACEMENTS, torch.conv2d, lambda *a, **k: served.append("conv") or known(*a, **k)
    )
    inputs = torch.randn(2, 1, 5, 5, dtype=torch.float64)
    outputs = []
    for path, times in (("loop", 0), ("batched", 1)):
        predict = predictor(model, replace(LAYOUTS["loop"], path=path))
        outputs.append(predict(model.theta, inputs, None))
        assert len(served) == times
    assert torch.allclose(*outputs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("path", ["batched", "loop"])
def test_half_precision_is_for_the_layers_alone(path: str) -> None:
    model = functionalise(mlp().float())
    inputs = torch.randn(2, 3)
    seen = []
    model.inference[0].register_forward_hook(lambda *a: seen.append(a[-1].dtype))
    full, half = (
        predictor(model, Execution(path=path, precision=p))(model.theta, inputs, None)
        for p in ("full", "bf16")
    )
    assert seen == [torch.float32, torch.bfloat16]
    assert full.dtype == half.dtype == torch.float32
    assert torch.allclose(full, half, atol=0.03)
    assert not torch.equal(full, half)
