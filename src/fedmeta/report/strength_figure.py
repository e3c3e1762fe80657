"""The picture of a sweep over λ: what the new task reaches and what the earlier one keeps."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmeta.core.errors import MissingExtraError
from fedmeta.core.storage import write_bytes

_STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "DejaVu Sans",
    "grid.color": "#e6e8eb",
    "legend.frameon": False,
    "svg.hashsalt": "fedmeta",  # the same numbers give the same file
}
_NEW, _EARLIER, _BEST = "#0a66a8", "#c8540a", "#55595f"


def draw_sweep(result: Mapping[str, Any], path: Path) -> None:
    """Draw the metric of both tasks against λ, with the best λ marked, as SVG.

    Args:
        result: what `fedmeta.studies.tune.tune` returned for points {"prior.strength": λ} alone.
        path: the file to write.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report") from error
    trials = [each for each in result["trials"] if each["mean"] is not None]
    numbers = [each for each in trials if each["settings"]["prior.strength"] != "auto"]
    numbers.sort(key=lambda trial: float(trial["settings"]["prior.strength"]))
    strengths = [float(trial["settings"]["prior.strength"]) for trial in numbers]
    lines = [("new task, held-out sources", _NEW, numbers)]
    if numbers and "earlier" in numbers[0]:
        earlier = [trial["earlier"] for trial in numbers]
        lines.append(("prior task, its sources", _EARLIER, earlier))
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        percent = bool(trials) and trials[0]["metric"] == "accuracy"
        for label, tint, judged in lines:
            _line(axes, strengths, judged, 100 if percent else 1, tint, label)
        positive = [strength for strength in strengths if strength > 0]
        if positive:
            axes.set_xscale("symlog", linthresh=min(positive))
        best = result["best"]["settings"]["prior.strength"]
        if best != "auto":
            axes.axvline(float(best), color=_BEST, linestyle=":", label="best of both")
        axes.set(xlabel="λ", ylabel="accuracy, %" if percent else "mean squared error")
        axes.legend()
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    write_bytes(path, buffer.getvalue())


def _line(
    axes: Any,
    strengths: Sequence[float],
    judged: Sequence[Mapping[str, Any]],
    unit: float,
    tint: str,
    label: str,
) -> None:
    """Means with their 95 % intervals as a band."""
    means = [unit * each["mean"] for each in judged]
    widths = [unit * (each["ci95"] or 0.0) for each in judged]
    axes.plot(strengths, means, "o-", color=tint, markersize=4, label=label)
    low = [mean - width for mean, width in zip(means, widths, strict=True)]
    high = [mean + width for mean, width in zip(means, widths, strict=True)]
    axes.fill_between(strengths, low, high, color=tint, alpha=0.15, linewidth=0)
