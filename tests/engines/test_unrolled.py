"""Recurrent layers written out step by step are those of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedmeta import ADMMFedMeta, Execution, train
from fedmeta.engine.unrolled import UnrolledLayers
from models.zoo import WORKING

KINDS = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "tanh": nn.RNN,
    "ramp": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("layers", "both_ways", "bias"), [(1, False, True), (2, True, False)])
def test_same_outputs_states_and_gradients(
    kind: str, batch_first: bool, layers: int, both_ways: bool, bias: bool
) -> None:
    torch.manual_seed(0)
    layer: Any = KINDS[kind](
        3, 4, layers, batch_first=batch_first, bidirectional=both_ways, bias=bias
    ).double()
    x = torch.randn(5, 6, 3, dtype=torch.float64)

    def computed() -> list[torch.Tensor]:
        output, state = layer(x)
        states = state if isinstance(state, tuple) else (state,)
        total = output.square().sum() + sum(each.sin().sum() for each in states)
        return [output, *states, *torch.autograd.grad(total, list(layer.parameters()))]

    whole = computed()
    with UnrolledLayers():
        unrolled = computed()
    for one, other in zip(whole, unrolled, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)


def test_packed_sequences_are_left_to_torch() -> None:
    layer = nn.LSTM(3, 4)
    rows = nn.utils.rnn.pack_sequence([torch.randn(4, 3), torch.randn(2, 3)])
    with UnrolledLayers():
        found = layer(rows)[0].data
    assert torch.equal(found, layer(rows)[0].data)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "LSTM with dropout"])
def test_nodes_are_batched_with_the_numbers_of_a_loop(name: str) -> None:
    animal = WORKING[name]
    runs = []
    for path in ("auto", "loop"):
        torch.manual_seed(0)
        how = Execution(path=path, dtype="float64")
        runs.append(
            train(animal.federation(), animal.make(), ADMMFedMeta(), rounds=2, execution=how)
        )
    assert [run.summary["settings"]["execution"]["path"] for run in runs] == ["batched", "loop"]
    for leaf, other in zip(*(run.meta_model.theta.values() for run in runs), strict=True):
        assert torch.allclose(leaf, other, rtol=1e-6, atol=1e-9)
