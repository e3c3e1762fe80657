"""Ablation: one factor at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from experiments import held_out
from experiments.cell import Key
from experiments.experiment import ABLATION_PAGE, Experiment, Found, Summary
from experiments.figures import INK, legend, mark_mean, panels
from experiments.names import DEFAULT, named
from experiments.statistics import Entry, accuracy, at, entry, paired
from experiments.table1 import TABLE_1, printed
from experiments.tables import leaves, markdown, points, shown
from fedmeta.report.style import SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_FAR = -20.0  # points: what the default loses beyond that is written, not drawn


def summarised(found: Found) -> Iterable[tuple[Key, Any]]:
    """What every factor changes, seed by seed."""
    for key, result in found.items():
        start = found.get((*key[:-1], "as-it-is"))
        repeats = result["repeats"]
        yield (
            key,
            {
                "accuracy": accuracy(repeats),
                "precise": accuracy(repeats, "precise"),
                "before-adapting": entry(repeats, _before),
                "change": paired(repeats, start["repeats"], "precise") if start else None,
            },
        )


def _before(repeat: Mapping[str, Any]) -> float | None:
    """Accuracy of a run in percent without any adaptation, on the paper's query sets."""
    share = repeat.get("accuracy", {}).get("0")
    return None if share is None else 100 * float(share)


def table(summary: Summary) -> str:
    """What changes when one thing does."""
    rows = []
    for (data, start, factor), found in leaves(summary["ablation"], "change"):
        published = TABLE_1.get(data, {}).get(start, {}).get("paper")
        cells = [printed(published), shown(found["accuracy"]), shown(found["before-adapting"])]
        cells += [shown(found["precise"]), _changed(found["change"])]
        rows.append([named(data), named(start), factor_words(start, factor), *cells])
    heads = ["data", "from", "factor", "the paper", "accuracy, %", "before adapting, %"]
    return markdown([*heads, "precise sets, %", "change, points"], rows)


def factor_words(start: str, factor: str) -> str:
    """What is changed; of the default an ingredient is taken away, unless one is added.

    Example:
        >>> factor_words("default", "averaging"), factor_words("default", "with-flips")
        ('without-averaging', 'with-flips')
    """
    whole = start != DEFAULT or factor == "as-it-is" or factor.startswith("with-")
    return factor if whole else f"without-{factor}"


def _changed(change: Entry | None) -> str:
    """A change in points; the factor may be as it was all along."""
    if not change:
        return "–"
    return "none" if change["mean"] == change["ci95"] == 0 else points(change)


def plot(figure: Figure, summary: Summary) -> None:
    """Change in points when one factor changes, from each starting point."""
    factors: dict[str, list[str]] = {}
    for found in summary["ablation"].values():
        for start, rows in found.items():
            mine = factors.setdefault(start, [])
            mine += [name for name in rows if name not in (*mine, "as-it-is")]
    factors = {start: names for start, names in factors.items() if names}
    if not factors:
        return
    axes = panels(figure, len(factors), 1, (7.6, 3.6))
    for each, (start, names) in zip(axes, factors.items(), strict=True):
        places = [0.0]
        far = _FAR if start == DEFAULT else -math.inf
        for number, data in enumerate(summary["ablation"]):
            for place, factor in enumerate(reversed(names)):
                change = at(summary, "ablation", data, start, factor, "change")
                y = place + 0.22 * (1 - number)
                if change is None or change["mean"] is None:
                    continue
                places.append(max(float(change["mean"]), far))
                if change["mean"] < far:
                    text = f"◂ {change['mean']:.0f}"
                    each.text(far, y, text, color=SERIES[number], va="center", fontsize=8)
                else:
                    mark_mean(each, change, y, SERIES[number], "o", named(data))
            asked = _published_change(summary, data, start)
            if asked is not None:
                places.append(asked)
                label = f"{named(data)}, as published"
                each.axvline(asked, color=SERIES[number], linestyle=":", label=label)
        each.axvline(0, color=INK, linewidth=0.8)
        margin = 0.12 * (max(places) - min(places)) or 1.0
        each.set_xlim(min(places) - margin, max(places) + margin)  # wide intervals may leave it
        labels = [factor_words(start, factor) for factor in reversed(names)]
        each.set_yticks(range(len(names)), labels, fontsize=8.5)
        each.set_title(f"from {named(start)}")
        each.set_xlabel("change of accuracy, points (paired, precise sets)")
    legend(figure, axes, 3)


def _published_change(summary: Summary, data: str, start: str) -> float | None:
    """The published accuracy less ours: the change that would explain the difference."""
    published = TABLE_1.get(data, {}).get(start, {}).get("paper")
    ours = at(summary, "ablation", data, start, "as-it-is", "accuracy", "mean")
    return None if published is None or ours is None else published.mean - float(ours)


EXPERIMENT = Experiment(
    summarised, table, plot, {held_out.FOLDER: held_out.table}, page=ABLATION_PAGE
)
