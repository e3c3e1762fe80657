"""What every regression is held against: a device that predicts the mean of its own labels."""

from __future__ import annotations

from fedmeta.data.federation import Positions
from fedmeta.data.pool import Array


def own_mean_error(labels: Array, support: Positions, judged: Positions) -> float:
    """The mean squared error of predicting, for every sample, the mean of the support set's labels.

        e = mean over judged samples and outputs o of (y_o − m_o)²,   m = mean of support labels

    Args:
        labels: values of the pool, (N, outputs), in their own unit.
        support: where a node's support set is.
        judged: where the samples are that it is judged on, at least one.

    Example:
        >>> import numpy as np
        >>> labels = np.array([[1.0], [3.0], [5.0], [2.0]])
        >>> own_mean_error(labels, np.array([0, 1]), np.array([2, 3]))
        4.5
    """
    centre = labels[support].mean(axis=0)
    return float(((labels[judged] - centre) ** 2).mean())
