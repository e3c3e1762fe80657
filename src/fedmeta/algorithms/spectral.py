"""Steps of equal length in all directions of a layer: the orthogonal matrix nearest to a given one.

A layer's gradient is a matrix with a few large singular values and many small ones: along the
gradient a layer learns a few directions and hardly any other. With all of them made equal it learns
them all at once.
"""

from __future__ import annotations

import math

from torch import Tensor

from fedmeta.core.tree import Tree

# Of a polynomial that lifts singular values in (0, 1] to about 1 (between 0.7 and 1.2) when it is
# applied a few times over: the steeper at 0, the fewer.
_ODD = (3.4445, -4.7750, 2.0315)
_TIMES = 6
_TINY = 1e-12  # below which a contribution is as good as none


def directions(contributions: Tree) -> Tree:
    """Of every tensor the direction to move in, whose length does not depend on the tensor's.

        D = √max(1, a/b) · U Vᵀ   of   M = U S Vᵀ, a × b

    up to what `_orthogonal` is off. So D x is no longer than x or, where a layer has more outputs
    than inputs, no larger in the root mean square. A convolution is the matrix that a patch is
    multiplied by; a vector, such as a bias, is a column.

    Args:
        contributions: M, tensor by tensor.

    Example:
        >>> import torch
        >>> d = directions({"weight": torch.tensor([[100.0, 0.0], [0.0, 1.0]])})["weight"]
        >>> bool((d.diag() > 0.6).all() and (d.diag() < 1.3).all())
        True
        >>> directions({"bias": torch.tensor([3.0, -4.0])})["bias"].norm().round(decimals=1)
        tensor(1.4000)

    Reference: Jordan et al.: Muon, an optimizer for hidden layers in neural networks, 2024, whose
    polynomial this is; Bernstein and Newhouse: Old optimizer, new norm, 2024.
    """
    return {name: _direction(leaf) for name, leaf in contributions.items()}


def squared_length(leaf: Tensor) -> float:
    """‖D‖² of a tensor's direction D, were it found exactly: min(a, b)·max(1, a/b).

    Example:
        >>> import torch
        >>> squared_length(torch.zeros(6, 2)), squared_length(torch.zeros(3))
        (6.0, 3.0)
    """
    rows = leaf.shape[0] if leaf.ndim else 1
    columns = leaf.numel() // rows
    return min(rows, columns) * max(1.0, rows / columns)


def _direction(leaf: Tensor) -> Tensor:
    matrix = leaf.reshape(leaf.shape[0] if leaf.ndim else 1, -1)
    rows, columns = matrix.shape
    longer = math.sqrt(max(1.0, rows / columns))
    if columns == 1 or rows == 1:
        return leaf * (longer / (matrix.square().sum().sqrt() + _TINY))
    flat = matrix.mT if rows > columns else matrix
    turned = _orthogonal(flat)
    return longer * (turned.mT if rows > columns else turned).reshape(leaf.shape)


def _orthogonal(flat: Tensor) -> Tensor:
    """U Vᵀ, nearly, of a matrix with at most as many rows as columns."""
    x = flat / (flat.square().sum().sqrt() + _TINY)
    one, three, five = _ODD
    for _ in range(_TIMES):
        square = x @ x.mT
        x = one * x + (three * square + five * (square @ square)) @ x
    return x
