"""Poolings by torch's own kernels; all leading axes are one batch, channels last in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedmeta.engine.nodewise.geometry import Window
from fedmeta.engine.nodewise.torch_convolution import channels_last, empty_like

_aten = torch.ops.aten


def maxima(images: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """The largest of every window, and its position in the image."""
    pooled, places = _aten.max_pool2d_with_indices(_flat(images), *_window_arguments(window))
    return _reshaped_like(pooled, images), _reshaped_like(places, images)


def unpool(gradient: Tensor, places: Tensor, size: torch.Size, window: Window) -> Tensor:
    """Every gradient at the pixel of its maximum."""
    flat = _flat(gradient)
    placeholder = empty_like((*flat.shape[:2], *size), flat)
    result = _aten.max_pool2d_with_indices_backward(
        flat, placeholder, *_window_arguments(window), _flat(places)
    )
    return _reshaped_like(result, gradient)


def pick(images: Tensor, places: Tensor, window: Window) -> Tensor:
    """The pixels where the maxima were."""
    pixels, chosen = (_flat(t).permute(0, 2, 3, 1) for t in (images, places))
    picked = pixels.flatten(1, 2).gather(1, chosen.flatten(1, 2))
    return _reshaped_like(picked.unflatten(1, chosen.shape[1:3]).permute(0, 3, 1, 2), places)


def averages(images: Tensor, window: Window) -> Tensor:
    """The mean of every window."""
    return _reshaped_like(_aten.avg_pool2d(_flat(images), *_average_arguments(window)), images)


def spread(gradient: Tensor, size: torch.Size, window: Window) -> Tensor:
    """Every gradient in equal shares over the pixels of its window."""
    flat = _flat(gradient)
    placeholder = empty_like((*flat.shape[:2], *size), flat)
    return _reshaped_like(
        _aten.avg_pool2d_backward(flat, placeholder, *_average_arguments(window)), gradient
    )


def _window_arguments(window: Window) -> tuple[Any, ...]:
    return window.size, window.stride, window.padding, window.dilation, window.ceil_mode


def _average_arguments(window: Window) -> tuple[Any, ...]:
    counting = window.ceil_mode, window.count_padding, window.divisor
    return window.size, window.stride, window.padding, *counting


def _flat(images: Tensor) -> Tensor:
    return channels_last(images.unsqueeze(0) if images.ndim == 3 else images.flatten(0, -4))


def _reshaped_like(result: Tensor, like: Tensor) -> Tensor:
    return result.reshape(*like.shape[:-3], *result.shape[1:])
