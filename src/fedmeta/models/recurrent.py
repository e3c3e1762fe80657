"""A recurrent network for sequences of tokens or of measurements: gated recurrent units.

    r, z = σ(W x_t + U h),   n = tanh(W x_t + r · U h),   h ← (1 − z) · n + z · h

Written out step by step, so that the nodes of a federation are computed side by side, each with
weights of its own. Steps that are padding leave h as it is.

Cho et al., Learning phrase representations using RNN encoder-decoder, EMNLP 2014.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedmeta.core.errors import ModelError


class RecurrentLayer(nn.Module):
    """One layer of gated recurrent units.

    Args:
        before: numbers per step.
        after: width of the state.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(before, 3 * after)
        self.state = nn.Linear(after, 3 * after)

    def forward(self, steps: Tensor, mask: Tensor) -> Tensor:
        """(n, steps, before) and (n, steps), 1 for a real step, to states (n, steps, after)."""
        given = self.inputs(steps).unbind(1)
        state = torch.zeros_like(given[0].chunk(3, -1)[0])
        found = []
        for now, real in zip(given, mask.unbind(1), strict=True):
            reset, update, new = now.chunk(3, -1)
            kept_reset, kept_update, kept_new = self.state(state).chunk(3, -1)
            update = torch.sigmoid(update + kept_update)
            new = torch.tanh(new + torch.sigmoid(reset + kept_reset) * kept_new)
            moved = (1 - update) * new + update * state
            state = torch.where(real[:, None] > 0, moved, state)
            found.append(state)
        return torch.stack(found, 1)


class RecurrentNetwork(nn.Module):
    """Recurrent layers, the mean of their last states over the real steps, and a linear head.

    Args:
        shape: of a sample: (steps,) tokens or (steps, channels) numbers.
        outputs: numbers per sample.
        widths: of the layers, in order.
        vocabulary: how many tokens there are; token 0 is padding.

    Example:
        >>> RecurrentNetwork((5,), 2, (8,), 100)(torch.tensor([[3, 99, 0, 0, 0]])).shape
        torch.Size([1, 2])
        >>> RecurrentNetwork((5, 3), 2, (8, 4))(torch.zeros(1, 5, 3)).shape
        torch.Size([1, 2])
    """

    def __init__(
        self, shape: Sequence[int], outputs: int, widths: Sequence[int], vocabulary: int = 0
    ) -> None:
        super().__init__()
        if len(shape) not in (1, 2):
            raise ModelError(
                f"a gru needs tokens (steps,) or series (steps, channels), but samples have shape "
                f"{tuple(shape)}",
                'use model "cnn" for images, "mlp" for others',
            )
        if len(shape) == 1 and vocabulary < 2:
            raise ModelError(
                "a gru of tokens needs to know how many there are",
                "set model.vocabulary, or give (steps, channels) series",
            )
        widths = widths or (64,)
        before = shape[1] if len(shape) == 2 else max(1, widths[0] // 2)
        self.embedding = nn.Embedding(vocabulary, before) if len(shape) == 1 else nn.Identity()
        layers = []
        for after in widths:
            layers.append(RecurrentLayer(before, after))
            before = after
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(before, outputs)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Outputs for tokens (n, steps) or series (n, steps, channels).

        Args:
            inputs: the samples.
            mask: (n, steps), 1 for a real step; None: tokens are real where they are not 0, and
                all steps of a series.
        """
        tokens = not inputs.is_floating_point()
        if mask is None:
            mask = inputs if tokens else torch.ones_like(inputs[..., 0])
        steps = self.embedding(inputs)
        mask = (mask > 0).to(steps.dtype)
        for layer in self.layers:
            steps = layer(steps, mask)
        total = (steps * mask[..., None]).sum(1)
        found: Tensor = self.head(total / mask.sum(1, keepdim=True).clamp(min=1))
        return found
