"""Serves the convolutions and poolings of any model by their node-wise forms, unseen by the model.

Inside `with NodewiseLayers():` every `torch.conv1d` … `conv_transpose3d`, `max_pool2d`,
`avg_pool2d` and `elu`, called by a layer or directly, is computed by this package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedmeta.engine.nodewise.activations import elu
from fedmeta.engine.nodewise.convolution import convolution
from fedmeta.engine.nodewise.geometry import Geometry, Window
from fedmeta.engine.nodewise.pooling import average_pool, max_pool

Sizes = int | tuple[int, ...]


class NodewiseLayers(TorchFunctionMode):
    """The context in which models are computed for many nodes at once."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Serve what we know, and leave the rest to torch."""
        replacement = _REPLACEMENTS.get(func)
        result = None if replacement is None else replacement(*args, **(kwargs or {}))
        if result is not None:
            return result
        if func in _NEED_CONTIGUOUS:
            args = (args[0].contiguous(), *args[1:])
        return func(*args, **(kwargs or {}))


def _convolve(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor | None:
    if input.ndim != weight.ndim:  # a single image without a batch
        return None
    striding = isinstance(padding, str) and any(step != 1 for step in _each(stride))
    if striding or input.shape[1] != weight.shape[1] * groups:
        return None  # torch says what is wrong with it
    input, weight, bias = _autocast(input, weight, bias)
    if isinstance(padding, str):
        input, padding = _padded(input, weight, padding, dilation)
    geometry = Geometry.of(input, weight, stride, padding, dilation, groups)
    return convolution(input, weight, bias, geometry)


def _convolve_transposed(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor | None:
    if input.ndim != weight.ndim or input.shape[1] != weight.shape[0]:
        return None
    input, weight, bias = _autocast(input, weight, bias)
    geometry = Geometry.of(input, weight, stride, padding, dilation, groups, True, output_padding)
    return convolution(input, weight, bias, geometry)


def _padded(
    input: Tensor, weight: Tensor, padding: str, dilation: Sizes
) -> tuple[Tensor, tuple[int, ...]]:
    """The input with the zeros that padding "same" or "valid" asks for, beyond the even ones."""
    axes = weight.ndim - 2
    if padding == "valid":
        return input, (0,) * axes
    steps = (dilation,) * axes if isinstance(dilation, int) else tuple(dilation)
    reach = [step * (taps - 1) for step, taps in zip(steps, weight.shape[2:], strict=True)]
    if any(size % 2 for size in reach):
        extra = [width for size in reversed(reach) for width in (0, size % 2)]
        input = functional.pad(input, extra)
    return input, tuple(size // 2 for size in reach)


def _autocast(
    input: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Operands in the type that torch's automatic casting asks for, as its own layers would."""
    kind = input.device.type
    if not torch.is_autocast_enabled(kind) or input.dtype == torch.float64:
        return input, weight, bias
    dtype = torch.get_autocast_dtype(kind)
    return input.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _max_pool(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,  # torch calls another function for them
) -> Tensor:
    size = _pair(kernel_size)
    step = _pair(stride) if stride not in (None, [], ()) else size
    return max_pool(input, Window(size, step, _pair(padding), _pair(dilation), ceil_mode))


def _average_pool(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    size = _pair(kernel_size)
    step = _pair(stride) if stride not in (None, [], ()) else size
    window = Window(
        size, step, _pair(padding), (1, 1), ceil_mode, count_include_pad, divisor_override
    )
    return average_pool(input, window)


def _elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor | None:
    return None if inplace or alpha < 0 else elu(input, alpha)


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor | None:
    """With one axis for all places: of images torch would ask for a layout that vmap cannot tell.

    A map of 1 × 1 has two layouts at once, so that a plain copy does not help there.
    """
    if input.ndim < 4:
        return None
    flat = input.contiguous().flatten(2)
    return functional.group_norm(flat, num_groups, weight, bias, eps).reshape(input.shape)


def _view(input: Tensor, *shape: Any) -> Tensor | None:
    """A view; of what a convolution left channels-last in memory, a copy."""
    if len(shape) == 1 and isinstance(shape[0], torch.dtype):
        return None
    return input.reshape(*shape)


def _each(value: Sizes) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


def _pair(value: Sizes | None) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, *rest = value or ()
    return first, rest[0] if rest else first


_REPLACEMENTS: dict[Any, Callable[..., Tensor | None]] = {
    torch.conv1d: _convolve,
    torch.conv2d: _convolve,
    torch.conv3d: _convolve,
    torch.conv_transpose1d: _convolve_transposed,
    torch.conv_transpose2d: _convolve_transposed,
    torch.conv_transpose3d: _convolve_transposed,
    torch.max_pool2d: _max_pool,
    functional.max_pool2d: _max_pool,
    functional.avg_pool2d: _average_pool,
    functional.elu: _elu,
    functional.group_norm: _group_norm,
    torch.group_norm: _group_norm,
    Tensor.view: _view,
}

# Layers that ask for their input's layout, which vmap cannot tell them: they get the plain one.
_NEED_CONTIGUOUS = {
    torch.group_norm,
    functional.group_norm,
    functional.adaptive_avg_pool2d,
    functional.adaptive_avg_pool3d,
    functional.adaptive_max_pool2d,
    functional.adaptive_max_pool2d_with_indices,
    functional.max_pool2d_with_indices,
    torch.max_pool3d,
    functional.max_pool3d,
}
