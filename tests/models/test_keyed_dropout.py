"""Masks are functions of a key, and what they leave is what torch computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmeta.core import randomness
from fedmeta.models.keyed_dropout import KeyedCalls

NEVER = 1e-9  # a probability that takes our path, and drops nothing
KEY = randomness.key(3)
SERIES = torch.randn(4, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def keyed(function: Any, key: Tensor = KEY) -> Any:
    with KeyedCalls(key, first=0):
        return function()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("both_ways", [True, False])
def test_recurrent_layers(kind: Any, batch_first: bool, both_ways: bool) -> None:
    torch.manual_seed(0)
    layer = kind(6, 3, 3, batch_first=batch_first, bidirectional=both_ways).double()
    expected, ends = layer(SERIES)
    layer.dropout = NEVER
    found, last = keyed(lambda: layer(SERIES))
    assert torch.allclose(found, expected)
    pairs = zip(last, ends, strict=True) if kind is nn.LSTM else [(last, ends)]
    assert all(torch.allclose(a, b) for a, b in pairs)
    layer.dropout = 0.5
    once, again = (keyed(lambda: layer(SERIES)[0]) for _ in range(2))
    assert torch.equal(once, again)
    assert not torch.allclose(once, keyed(lambda: layer(SERIES)[0], randomness.key(4)))
    # A sample's mask does not depend on who else is there.
    few = SERIES[:2] if batch_first else SERIES[:, :2]
    alone, among = keyed(lambda: layer(few)[0]), once[:2] if batch_first else once[:, :2]
    assert torch.allclose(alone, among)


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("mask", [None, "causal", "numbers", "each"])
@pytest.mark.parametrize("padded", [True, False])
def test_attention_with_heads(weights: bool, mask: str | None, padded: bool) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(6, 2, batch_first=True).double()
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    masks = {
        None: None,
        "causal": hidden,
        "numbers": torch.randn(5, 5, dtype=torch.float64),
        "each": hidden.expand(8, 5, 5),
    }
    lengths = torch.arange(5) >= torch.tensor([[5], [4], [3], [5]])
    # Torch wants both masks of one type.
    padding = torch.zeros(4, 5).double().masked_fill(lengths, -torch.inf)
    padding = padding if mask == "numbers" else lengths
    given = {"attn_mask": masks[mask], "key_padding_mask": padding if padded else None}
    call = {**given, "need_weights": weights}
    expected = layer(SERIES, SERIES, SERIES, **call)
    layer.dropout = NEVER
    found = keyed(lambda: layer(SERIES, SERIES, SERIES, **call))
    assert torch.allclose(found[0], expected[0])
    assert (found[1] is None) == (expected[1] is None) == (not weights)
    assert not weights or torch.allclose(found[1], expected[1])


@pytest.mark.parametrize("given", [{}, {"is_causal": True}, {"scale": 0.3}])
def test_attention(given: dict[str, Any]) -> None:
    expected = functional.scaled_dot_product_attention(SERIES, SERIES, SERIES, **given)
    found = keyed(
        lambda: functional.scaled_dot_product_attention(
            SERIES, SERIES, SERIES, dropout_p=NEVER, **given
        )
    )
    assert torch.allclose(found, expected)


def test_calls_have_masks_of_their_own() -> None:
    ones = torch.ones(1000)
    first, second = keyed(lambda: [functional.dropout(ones, 0.25) for _ in range(2)])
    assert not torch.equal(first, second)
    for mask in (first, second):
        assert sorted({*mask.tolist()}) == pytest.approx([0, 4 / 3])
        assert 0.2 < float((mask == 0).float().mean()) < 0.3
    assert keyed(lambda: functional.dropout(ones, 0.5, training=False)) is ones
    images = torch.ones(20, 3, 4, 4)
    whole = keyed(lambda: functional.dropout2d(images, 0.5)).flatten(2)
    assert bool((whole == whole[..., :1]).all())
