"""A picture of a run for a notebook: how the targets fared while it trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedmeta.config.training import loss_of
from fedmeta.core.errors import MissingExtraError
from fedmeta.core.run_folder import Record

MOST_CURVES = 8


def plot_history(history: Sequence[Record], metric: str, axes: Any = None) -> Any:
    """The targets' metric by round, a curve per number of steps; the loss where there are none.

    Args:
        history: what was logged of every round.
        metric: what the targets were measured by.
        axes: of matplotlib, to draw into; None makes new ones.

    Returns:
        The axes.

    Raises:
        MissingExtraError: where matplotlib is not installed.
    """
    if axes is None:
        try:
            from matplotlib import pyplot
        except ImportError:
            raise MissingExtraError("report", "matplotlib") from None
        _, axes = pyplot.subplots(figsize=(6.4, 3.2), layout="constrained")
    measured = [record for record in history if record.get("target")]
    if measured:
        for steps in list(measured[-1]["target"])[:MOST_CURVES]:
            points = [(each["round"], each["target"].get(steps)) for each in measured]
            name = f"after {steps} step{'' if steps == '1' else 's'}"
            axes.plot(*zip(*points, strict=True), label="before adapting" if steps == "0" else name)
        axes.legend(frameon=False)
    else:
        axes.plot([each["round"] for each in history], [loss_of(each) for each in history])
    axes.set_xlabel("round")
    axes.set_ylabel(f"{metric} of the target nodes" if measured else "loss of the source nodes")
    axes.spines[["top", "right"]].set_visible(False)
    return axes
