"""Recurrent layers step by step, so that many nodes run through them at once.

    LSTM  i, f, g, o = W x_t + b + U h + c;  s ← σ(f) s + σ(i) tanh(g),  h ← σ(o) tanh(s)
    GRU   r, z = σ(…);  n = tanh(W_n x_t + b_n + r (U_n h + c_n)),       h ← (1 − z) n + z h
    RNN   h ← tanh(W x_t + b + U h + c), or the ramp

PyTorch computes a recurrent layer in one call, which cannot be batched over nodes with weights of
their own. Written out, every product can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

State = tuple[Tensor, ...]
"""h, and of an LSTM s."""


class UnrolledLayers(TorchFunctionMode):
    """Serves LSTM, GRU and RNN on padded sequences, without dropout between their layers.

    Example:
        >>> layer, x = torch.nn.GRU(3, 4, batch_first=True), torch.randn(2, 5, 3)
        >>> with UnrolledLayers():
        ...     unrolled = layer(x)[0]
        >>> torch.allclose(unrolled, layer(x)[0], atol=1e-6)
        True
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Serve what we know, and leave the rest (packed sequences, projections) to torch."""
        step = _STEPS.get(func)
        # Of packed sequences, the fourth argument is the weights.
        if step is not None and len(args) == 9 and isinstance(args[3], bool):
            x, state, weights, biased, layers, p, training, both_ways, batch_first = args
            ways, each = (2 if both_ways else 1), (4 if biased else 2)
            if not (p > 0 and training) and len(weights) == layers * ways * each:
                begin = state if isinstance(state, tuple | list) else (state,)
                x = x.transpose(0, 1) if batch_first else x
                groups = [weights[n : n + each] for n in range(0, len(weights), each)]
                x, end = _through(step, x, tuple(begin), groups, ways)
                return (x.transpose(0, 1) if batch_first else x, *end)
        return func(*args, **(kwargs or {}))


def _through(
    step: Callable[..., State],
    x: Tensor,
    begin: State,
    weights: Sequence[Sequence[Tensor]],
    ways: int,
) -> tuple[Tensor, State]:
    """All layers over x, (time, n, features), and the states they end with, stacked."""
    ends: list[State] = []
    for first in range(0, len(weights), ways):
        found = []
        for way in range(ways):
            w, u, *biases = weights[first + way]
            b, c = biases or (None, None)
            state = tuple(part[first + way] for part in begin)
            entering = functional.linear(x, w, b)  # of all steps at once
            outputs: list[Tensor] = []
            for place in range(len(x)) if way == 0 else reversed(range(len(x))):
                state = step(entering[place], functional.linear(state[0], u, c), state)
                outputs.append(state[0])
            found.append(torch.stack(outputs if way == 0 else outputs[::-1]))
            ends.append(state)
        x = found[0] if ways == 1 else torch.cat(found, dim=-1)
    return x, tuple(torch.stack(parts) for parts in zip(*ends, strict=True))


def _lstm(entering: Tensor, kept: Tensor, state: State) -> State:
    i, f, g, o = (entering + kept).chunk(4, dim=-1)
    s = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * s.tanh(), s


def _gru(entering: Tensor, kept: Tensor, state: State) -> State:
    (r, z, n), (r_kept, z_kept, n_kept) = entering.chunk(3, dim=-1), kept.chunk(3, dim=-1)
    new = (n + (r + r_kept).sigmoid() * n_kept).tanh()
    share = (z + z_kept).sigmoid()
    return (new + share * (state[0] - new),)


def _rnn(
    activation: Callable[[Tensor], Tensor], entering: Tensor, kept: Tensor, _state: State
) -> State:
    return (activation(entering + kept),)  # h went into what is kept


_STEPS: dict[Callable[..., Any], Callable[..., State]] = {
    torch.lstm: _lstm,
    torch.gru: _gru,
    torch.rnn_tanh: partial(_rnn, torch.tanh),
    torch.rnn_relu: partial(_rnn, torch.relu),
}
