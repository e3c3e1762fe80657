"""Samples in a form that the page can draw: images, signals, or named numbers."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmeta.data.pool import Array

_MOST_POINTS = 64  # of a line or of a list of numbers; more cannot be told apart at that size


def drawable(inputs: Array, features: Sequence[str] = ()) -> dict[str, Any]:
    """Samples for `draw.js`.

    Args:
        inputs: raw samples, (n, *shape).
        features: names of the columns, if the samples are rows of a table.

    Returns:
        `kind` and what goes with it: an "image" is base64 of its bytes, channels last; a "signal"
        some lines; a "vector" its numbers, of which long ones are cut.

    Example:
        >>> drawable(np.zeros((2, 1, 8, 8), np.uint8))["kind"]
        'image'
        >>> drawable(np.array([[1.5, 2.0]]), ["width", "height"])
        {'kind': 'vector', 'features': ['width', 'height'], 'samples': [[1.5, 2.0]]}
    """
    shape = inputs.shape[1:]
    if len(shape) == 3 and shape[0] in (1, 3):
        return _images(inputs)
    if len(shape) == 2 and min(shape) > 0 and max(shape) > 1:
        return _signals(inputs)
    flat = inputs.reshape(len(inputs), -1)[:, :_MOST_POINTS]
    names = list(features)[:_MOST_POINTS] or [f"x{i + 1}" for i in range(flat.shape[1])]
    return {"kind": "vector", "features": names, "samples": [_numbers(row) for row in flat]}


def finite(value: float) -> float | None:
    """A number for JSON, which knows neither NaN nor infinity."""
    return float(value) if math.isfinite(value) else None


def _images(inputs: Array) -> dict[str, Any]:
    if inputs.dtype != np.uint8:
        # All samples get the same range, or a faint image would look like a strong one.
        low, high = float(inputs.min()), float(inputs.max())
        inputs = np.round((inputs - low) * (255 / (high - low or 1.0))).astype(np.uint8)
    _, channels, height, width = inputs.shape
    last = np.moveaxis(inputs, 1, -1)
    return {
        "kind": "image",
        "channels": channels,
        "height": height,
        "width": width,
        "samples": [base64.b64encode(each.tobytes()).decode() for each in last],
    }


def _signals(inputs: Array) -> dict[str, Any]:
    # Time is the long axis, whichever it is.
    lines = inputs if inputs.shape[2] >= inputs.shape[1] else np.swapaxes(inputs, 1, 2)
    stride = -(-lines.shape[2] // _MOST_POINTS)
    thinned = lines[:, :, ::stride]
    return {
        "kind": "signal",
        "low": finite(thinned.min()),
        "high": finite(thinned.max()),
        "samples": [[_numbers(line) for line in each] for each in thinned],
    }


def _numbers(values: Array) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
