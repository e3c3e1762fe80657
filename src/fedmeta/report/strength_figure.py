"""The picture of a sweep over λ: what the new task reaches and what the earlier one keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmeta.core.storage import write_bytes
from fedmeta.report.style import SERIES, svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NEW, _EARLIER, _BEST = SERIES[0], SERIES[1], SERIES[6]


def draw_sweep(result: Mapping[str, Any], path: Path) -> None:
    """Draw the metric of both tasks against λ, each with its 95 % interval as a band, as SVG.

    Args:
        result: what `fedmeta.studies.tune.tune` returned for points {"prior.strength": λ} alone.
        path: the file to write.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    trials = [each for each in result["trials"] if each["mean"] is not None]
    numbers = [each for each in trials if each["settings"]["prior.strength"] != "auto"]
    numbers.sort(key=lambda trial: float(trial["settings"]["prior.strength"]))
    strengths = [float(trial["settings"]["prior.strength"]) for trial in numbers]
    lines = [("new task, held-out sources", _NEW, numbers)]
    if numbers and "earlier" in numbers[0]:
        earlier = [trial["earlier"] for trial in numbers]
        lines.append(("prior task, its sources", _EARLIER, earlier))

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        percent = bool(trials) and trials[0]["metric"] == "accuracy"
        unit = 100 if percent else 1
        for label, tint, judged in lines:
            means = [unit * each["mean"] for each in judged]
            widths = [unit * (each["ci95"] or 0.0) for each in judged]
            axes.plot(strengths, means, "o-", color=tint, markersize=4, label=label)
            low = [mean - width for mean, width in zip(means, widths, strict=True)]
            high = [mean + width for mean, width in zip(means, widths, strict=True)]
            axes.fill_between(strengths, low, high, color=tint, alpha=0.15, linewidth=0)
        positive = [strength for strength in strengths if strength > 0]
        if positive:
            axes.set_xscale("symlog", linthresh=min(positive))
        best = result["best"]["settings"]["prior.strength"]
        if best != "auto":
            axes.axvline(float(best), color=_BEST, linestyle=":", label="best of both")
        axes.set(xlabel="λ", ylabel="accuracy, %" if percent else "mean squared error")
        axes.legend()

    write_bytes(path, svg(paint, size=(6.4, 3.6)))
