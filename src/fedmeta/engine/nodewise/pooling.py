"""Poolings of images with any number of leading axes, and their derivatives of every order.

What is added to torch's own: axes mapped by `torch.func.vmap` join the batch whatever the images'
layout in memory, second derivatives go the same way, and on a GPU each is one small kernel.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fedmeta.engine.nodewise import native_pooling
from fedmeta.engine.nodewise.kernels import has_triton
from fedmeta.engine.nodewise.mapping import front
from fedmeta.engine.nodewise.windows import Window


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
    pooled: Tensor = _Averages.apply(images, window)
    return pooled


def _kernels(images: Tensor, window: Window) -> ModuleType:
    if images.is_cuda and images.dtype != torch.float64 and window.usual and has_triton():
        from fedmeta.engine.nodewise import fused_pooling

        return fused_pooling
    return native_pooling


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
        return _Unpool.apply(gradients[0], places, ctx.size, ctx.window), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], images: Tensor, window: Window) -> Any:
        return _Maxima.apply(*front(info, in_dims, images), window), (0, 0)


class _Unpool(torch.autograd.Function):
    """Gradients to the places of the maxima."""

    @staticmethod
    def forward(gradient: Tensor, places: Tensor, size: torch.Size, window: Window) -> Any:
        return _kernels(gradient, window).unpool(gradient, places, size, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, places, ctx.size, ctx.window = inputs
        ctx.save_for_backward(places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return _Pick.apply(gradients[0], places, ctx.window), None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        gradient: Tensor,
        places: Tensor,
        size: torch.Size,
        window: Window,
    ) -> Any:
        return _Unpool.apply(*front(info, in_dims, gradient, places), size, window), 0


class _Pick(torch.autograd.Function):
    """Pixels from the places of the maxima: the adjoint of `_Unpool`."""

    @staticmethod
    def forward(images: Tensor, places: Tensor, window: Window) -> Any:
        return _kernels(images, window).pick(images, places, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        images, places, ctx.window = inputs
        ctx.size = images.shape[-2:]
        ctx.save_for_backward(places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return _Unpool.apply(gradients[0], places, ctx.size, ctx.window), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], images: Tensor, places: Tensor, window: Window
    ) -> Any:
        return _Pick.apply(*front(info, in_dims, images, places), window), 0


class _Averages(torch.autograd.Function):
    @staticmethod
    def forward(images: Tensor, window: Window) -> Any:
        return _kernels(images, window).averages(images, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        images, ctx.window = inputs
        ctx.size = images.shape[-2:]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _Spread.apply(gradients[0], ctx.size, ctx.window), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], images: Tensor, window: Window) -> Any:
        return _Averages.apply(*front(info, in_dims, images), window), 0


class _Spread(torch.autograd.Function):
    """Gradients in equal shares over their windows: the adjoint of `_Averages`."""

    @staticmethod
    def forward(gradient: Tensor, size: torch.Size, window: Window) -> Any:
        return _kernels(gradient, window).spread(gradient, size, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.window = inputs[2]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _Averages.apply(gradients[0], ctx.window), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], gradient: Tensor, size: torch.Size, window: Window
    ) -> Any:
        return _Spread.apply(*front(info, in_dims, gradient), size, window), 0
