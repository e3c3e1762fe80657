"""Dropout whose masks are functions of a key, wherever in a network it is drawn.

So that a loss is a function (a difference of two gradients sees the same mask twice), nodes draw
masks of their own, and a run can be repeated. Dropout layers are replaced by `KeyedDropout`;
inside `with KeyedCalls(key):` so are the calls that draw masks themselves: `functional.dropout`
and its kin, attention with dropout, and recurrent layers with dropout between their layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedmeta.core import randomness

_LAYERS = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
_CALLS = {
    functional.dropout: 0,
    torch.dropout: 0,
    functional.dropout1d: 1,
    functional.dropout2d: 2,
    functional.dropout3d: 3,
}
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of a key (a buffer, so it can be passed per call).

    Args:
        p: probability of dropping an entry (or a channel).
        whole: how many trailing axes are dropped together (0: entries, 2: image channels, …).
    """

    key: Tensor

    def __init__(self, p: float, whole: int) -> None:
        super().__init__()
        self.p, self.whole = p, whole
        self.register_buffer("key", torch.tensor(0, dtype=torch.int64), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop with probability p and scale the rest by 1/(1−p)."""
        if not self.training or self.p == 0:
            return inputs
        return dropped(inputs, self.p, self.key, self.whole)


def dropped(inputs: Tensor, p: float, key: Tensor, whole: int = 0) -> Tensor:
    """Inputs without some of their entries, the others scaled by 1/(1−p).

    Args:
        inputs: any shape.
        p: probability of dropping an entry.
        key: of the draw.
        whole: how many trailing axes are dropped together.

    Example:
        >>> sorted(set(dropped(torch.ones(100), 0.5, randomness.key(0)).tolist()))
        [0.0, 2.0]
    """
    kept = inputs.shape[: inputs.ndim - whole]
    mask = randomness.uniform(key, kept.numel()).reshape(kept) >= p
    mask = mask.reshape(*kept, *[1] * whole)
    return inputs * mask / (1 - p)


def key_layers(module: nn.Module) -> list[str]:
    """Put a keyed dropout in the place of every dropout layer; returns their names."""
    names = []
    # With duplicates: one layer may stand in several places, and each place gets its own mask.
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        whole = _LAYERS.get(type(layer))
        if whole is None or name == "":
            continue
        parent, _, child = name.rpartition(".")
        setattr(module.get_submodule(parent), child, KeyedDropout(layer.p, whole))
        names.append(name)
    return names


class KeyedCalls(TorchFunctionMode):
    """Serves calls that draw masks, in training mode, from a key; each call has one of its own.

    Args:
        key: of the pass.
        first: number of the first call; those of layers come before.
    """

    def __init__(self, key: Tensor, first: int) -> None:
        super().__init__()
        self._key, self._first = key, first
        self.count = 0  # of calls so far

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Serve what we know, and leave the rest to torch."""
        given = kwargs or {}
        result = None
        if func in _CALLS:
            result = self._entries(_CALLS[func], *args, **given)
        elif func is functional.scaled_dot_product_attention:
            result = self._attention(*args, **given)
        elif func is functional.multi_head_attention_forward:
            result = self._heads(*args, **given)
        elif func in _RECURRENT and len(args) == 9 and args[5] > 0 and args[6]:
            result = self._recurrent(func, *args)
        return func(*args, **given) if result is None else result

    def _drawn(self) -> Tensor:
        self.count += 1
        return randomness.fold(self._key, self._first + self.count - 1)

    def _entries(
        self,
        whole: int,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        return dropped(input, p, self._drawn(), whole) if training and p > 0 else input

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor | None:
        """softmax(QKᵀ/√d + mask) V, entries of the softmax dropped."""
        if dropout_p == 0 or enable_gqa:
            return None
        scores = query @ key.transpose(-2, -1) * (scale or 1 / math.sqrt(query.shape[-1]))
        if is_causal:
            attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return dropped(scores.softmax(dim=-1), dropout_p, self._drawn()) @ value

    def _heads(self, *args: Any, **given: Any) -> Any:
        """Attention with several heads, for what `nn.MultiheadAttention` calls by default.

        Extra keys, separate projections, static keys and weights that are asked for are left to
        torch, and so refused where it draws.
        """
        query, key, value, _, heads, weight, bias, *extra, p, out_weight, out_bias = args
        special = any(each is not None and each is not False for each in extra)
        masks = given["key_padding_mask"], given["attn_mask"]
        if p == 0 or not given["training"] or special or given["use_separate_proj_weight"]:
            return None
        length, count, width = query.shape  # (time, samples, features), or this fails as torch does
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        parts = zip((query, key, value), weight.chunk(3), biases, strict=True)
        projected = [functional.linear(*each) for each in parts]
        q, k, v = (
            x.reshape(x.shape[0], count, heads, width // heads).permute(1, 2, 0, 3)
            for x in projected
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // heads)
        padding, pairs = masks
        if padding is not None:
            scores = _masked(scores, padding.reshape(count, 1, 1, -1))
        if pairs is not None:  # for all, or (samples · heads, time, time)
            shape = (count, heads, *pairs.shape[1:]) if pairs.ndim == 3 else pairs.shape
            scores = _masked(scores, pairs.reshape(shape))
        shares = dropped(scores.softmax(dim=-1), p, self._drawn())
        joined = (shares @ v).permute(2, 0, 1, 3).reshape(length, count, width)
        answer = functional.linear(joined, out_weight, out_bias)
        if not given["need_weights"]:
            return answer, None
        return answer, shares.mean(dim=1) if given["average_attn_weights"] else shares

    def _recurrent(
        self,
        func: Callable[..., Any],
        x: Tensor,
        state: Any,
        weights: Sequence[Tensor],
        biased: bool,
        layers: int,
        p: float,
        train: bool,
        both_ways: bool,
        batch_first: bool,
    ) -> Any:
        """Layer by layer, entries of what goes from one to the next dropped."""
        ways = 2 if both_ways else 1
        size, ends = len(weights) // layers, []
        for layer in range(layers):
            rows = slice(layer * ways, (layer + 1) * ways)
            begin = tuple(s[rows] for s in state) if isinstance(state, tuple) else state[rows]
            own = list(weights[layer * size : (layer + 1) * size])
            x, *end = func(x, begin, own, biased, 1, 0.0, train, both_ways, batch_first)
            ends.append(end)
            if layer < layers - 1:  # samples first, so that a sample's mask is its own
                x = x if batch_first else x.transpose(0, 1)
                x = dropped(x, p, self._drawn())
                x = x if batch_first else x.transpose(0, 1)
        return (x, *(torch.cat(parts) for parts in zip(*ends, strict=True)))


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores where nothing is hidden: True hides, numbers are added."""
    return scores.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
