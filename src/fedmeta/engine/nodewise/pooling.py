"""Poolings of images with any number of leading axes, and their derivatives of every order.

What is added to torch's own: axes mapped by `torch.func.vmap` join the batch whatever the images'
layout in memory, second derivatives go the same way, and on a GPU each is one small kernel.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fedmeta.core.tree import mapped_first
from fedmeta.engine.nodewise import torch_pooling
from fedmeta.engine.nodewise.geometry import Window
from fedmeta.engine.nodewise.kernels import has_triton

_ADJOINTS = {"unpool": "pick", "pick": "unpool", "averages": "spread", "spread": "averages"}


def max_pool(images: Tensor, window: Window) -> Tensor:
    """The largest of every window; images (…, channels, height, width).

    Example:
        >>> window = Window((2, 2), (2, 2), (0, 0), (1, 1), ceil_mode=False)
        >>> max_pool(torch.arange(16.0).reshape(1, 4, 4), window)
        tensor([[[ 5.,  7.],
                 [13., 15.]]])
    """
    pooled: Tensor = _Maxima.apply(images, window)[0]
    return pooled


def average_pool(images: Tensor, window: Window) -> Tensor:
    """The mean of every window; images (…, channels, height, width)."""
    pooled: Tensor = _PoolingMap.apply(images, None, "averages", images.shape[-2:], window)
    return pooled


def _kernels(images: Tensor, window: Window) -> ModuleType:
    if images.is_cuda and images.dtype != torch.float64 and window.fits_triton and has_triton():
        from fedmeta.engine.nodewise import triton_pooling

        return triton_pooling
    return torch_pooling


class _Maxima(torch.autograd.Function):
    """Images to (maxima, their places)."""

    @staticmethod
    def forward(images: Tensor, window: Window) -> Any:
        return _kernels(images, window).maxima(images, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        images, ctx.window = inputs
        ctx.size = images.shape[-2:]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return _PoolingMap.apply(gradients[0], places, "unpool", ctx.size, ctx.window), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], images: Tensor, window: Window) -> Any:
        return _Maxima.apply(*mapped_first(info, in_dims, images), window), (0, 0)


class _PoolingMap(torch.autograd.Function):
    """One of the four linear maps of `_ADJOINTS`, by name.

    "unpool" brings gradients to the places of the maxima, and "pick" takes pixels from there;
    "spread" deals gradients out in equal shares over their windows, of which "averages" are means.
    """

    @staticmethod
    def forward(
        values: Tensor, places: Tensor | None, name: str, size: torch.Size, window: Window
    ) -> Any:
        kernel = getattr(_kernels(values, window), name)
        chosen = () if places is None else (places,)
        enlarged = (size,) if name in ("unpool", "spread") else ()
        return kernel(values, *chosen, *enlarged, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, places, ctx.name, ctx.size, ctx.window = inputs
        ctx.save_for_backward(*(() if places is None else (places,)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        places = ctx.saved_tensors[0] if ctx.saved_tensors else None
        adjoint = _ADJOINTS[ctx.name]
        by_values = _PoolingMap.apply(gradients[0], places, adjoint, ctx.size, ctx.window)
        return by_values, None, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], values: Tensor, places: Tensor | None, *rest: Any
    ) -> Any:
        if places is None:
            (values,) = mapped_first(info, in_dims, values)
        else:
            values, places = mapped_first(info, in_dims, values, places)
        return _PoolingMap.apply(values, places, *rest), 0
