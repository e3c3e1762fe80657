"""What models are measured by: names, what they are measured on, and which way is better."""

from __future__ import annotations

from typing import Literal, NamedTuple

from fedmeta.core.errors import SettingError

MetricName = Literal["accuracy", "balanced-accuracy", "f1", "auc", "mse", "mae", "r2"]


class Metric(NamedTuple):
    """A metric.

    Args:
        task: the kind of task it is for.
        sign: 1 where more is better, -1 where less is.
        share: whether it is a share from 0 to 1, which people read in percent.
        about: what it is, in words.
    """

    task: Literal["classification", "regression"]
    sign: int
    share: bool
    about: str


METRICS: dict[str, Metric] = {
    "accuracy": Metric("classification", 1, True, "share of samples in the right class"),
    "balanced-accuracy": Metric(
        "classification", 1, True, "mean recall of the classes that a device has"
    ),
    "f1": Metric("classification", 1, True, "mean F1 of the classes that a device has or is told"),
    "auc": Metric("classification", 1, True, "area under the ROC curve, a class against the rest"),
    "mse": Metric("regression", -1, False, "mean squared error, in the label's unit squared"),
    "mae": Metric("regression", -1, False, "mean absolute error, in the label's unit"),
    "r2": Metric("regression", 1, False, "R²: share of the variance that is explained"),
}


def usual_metric(kind: str) -> str:
    """What is measured for a kind of task where nobody says."""
    return "accuracy" if kind == "classification" else "mse"


def sign_of(metric: str) -> int:
    """1 where more is better, -1 where less is; a metric of one's own: more is better.

    Example:
        >>> sign_of("mae"), sign_of("f1"), sign_of("my_own")
        (-1, 1, 1)
    """
    return METRICS[metric].sign if metric in METRICS else 1


def check_metric(metric: str | None, kind: str) -> None:
    """Refuse a metric that is not for this kind of task."""
    if metric is not None and METRICS[metric].task != kind:
        fitting = ", ".join(name for name, each in METRICS.items() if each.task == kind)
        raise SettingError(f"metric is {metric!r} but the task is {kind}", f"use one of: {fitting}")
