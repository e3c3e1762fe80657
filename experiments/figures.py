"""The figures of the page of results, as SVG files that repeat to the byte."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import sequence_results
from experiments.paper import TABLE_1
from experiments.statistics import Entry
from experiments.tables import UPDATES, data_sets, factor_words, named
from experiments.verdicts import BASELINES, DEFAULT, OURS, PARTITIONS, at, words
from fedmeta.core.storage import write_bytes, writing
from fedmeta.report.format import tick
from fedmeta.report.style import FILE, SERIES, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Summary = Mapping[str, Any]

_STYLE = {
    **FILE,
    "axes.axisbelow": True,
    "axes.edgecolor": "#b9bec6",
    "axes.labelcolor": "#55595f",
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "lines.linewidth": 1.8,
    "xtick.color": "#55595f",
    "ytick.color": "#55595f",
}
_COLOURS = {"fedavg": "#c8540a", "per-fedavg": "#00805d", OURS: "#0a66a8"}
_LINES = {"paper": "-", "tuned": "--", "extras": ":", DEFAULT: "-."}
_INK = "#202327"
_FAR = -20.0  # points: what the default loses beyond that is written, not drawn


def draw(summary: Summary, folder: Path) -> list[Path]:
    """Draw every figure there are numbers for, each with their fingerprint; returns the files."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, paint in _FIGURES.items():
        if not summary[name]:
            continue
        document = svg(
            lambda figure, paint=paint: paint(figure, summary),  # type: ignore[misc]
            _STYLE,
            Description=fingerprint(name, summary),
        )
        write_bytes(folder / f"{name}.svg", document)
        written.append(folder / f"{name}.svg")
    return written


def fingerprint(name: str, summary: Summary) -> str:
    """Of the numbers behind a figure; it is written into the figure's file.

    Example:
        >>> fingerprint("rho", {"rho": {}}) == fingerprint("rho", {"rho": {}, "prior": {}})
        True
    """
    text = json.dumps(summary[name], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _panels(figure: Figure, rows: int, columns: int, size: tuple[float, float]) -> list[Axes]:
    """A grid of axes, row by row; `size` is that of one, in inches."""
    figure.set_size_inches(size[0] * columns, size[1] * rows + 0.5)
    return list(figure.subplots(rows, columns, squeeze=False).flat)


def _legend(figure: Figure, axes: Sequence[Axes], columns: int = 4) -> None:
    """One legend above all axes."""
    handles = {
        label: handle
        for each in axes
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True)
    }
    if handles:
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside upper center",
            ncols=min(columns, len(handles)),
        )


def _table1(figure: Figure, summary: Summary) -> None:
    """Means with intervals by data set and partition; the paper's as diamonds."""
    names = data_sets(summary)
    axes = _panels(figure, len(PARTITIONS), len(names), (4.0, 4.4))
    rows = [
        (algorithm, variant, ending)
        for algorithm in (*BASELINES, OURS)
        for variant in ("paper", "tuned", "extras")
        for ending in UPDATES
        if not (algorithm == OURS and variant == "extras")
    ] + [(OURS, DEFAULT, "")]
    for number, each in enumerate(axes):
        partition, data = PARTITIONS[number // len(names)], names[number % len(names)]
        for place, (algorithm, variant, ending) in enumerate(reversed(rows)):
            mine = at(summary, "table1", partition, data, algorithm, f"{variant}{ending}-precise")
            ours = at(summary, "table1", partition, data, algorithm, f"{variant}{ending}")
            for entry, mark, label in (
                (mine, "o", "precise sets"),
                (ours, "|", "the paper's sets"),
            ):
                _mark(each, entry, place, _COLOURS[algorithm], mark, label)
            published = TABLE_1.get(data, {}).get(algorithm, {}).get(f"{variant}{ending}")
            if published is not None and partition == "fixed-pairs":
                each.plot(published.mean, place, "D", color=_INK, markersize=4, label="published")
        labels = [f"{named(a)}, {v}, {UPDATES[e]}" for a, v, e in reversed(rows)]
        first = number % len(names) == 0
        each.set_yticks(range(len(rows)), labels if first else [""] * len(rows), fontsize=7.5)
        each.set_ylim(-0.7, len(rows) - 0.3)
        each.set_title(f"{named(data)}, {partition}")
        each.set_xlabel("accuracy, %")
    _legend(figure, axes)


def _mark(axes: Axes, entry: Entry | None, y: float, colour: str, mark: str, label: str) -> None:
    if entry is None or entry["mean"] is None:
        return
    width = entry["ci95"] or 0.0
    shown: dict[str, Any] = {
        "color": colour,
        "markersize": 4.5 if mark == "o" else 8,
        "linewidth": 1.2,
    }
    if mark == "o":
        axes.errorbar(entry["mean"], y, xerr=width, fmt=mark, label=label, **shown)
    else:
        axes.plot(entry["mean"], y, mark, label=label, **shown)


def _convergence(figure: Figure, summary: Summary) -> None:
    """Loss and accuracy against rounds, then accuracy against what they cost."""
    found_here = at(summary, "convergence", "fixed-pairs") or {}
    names = [name for name in data_sets(summary) if name in found_here]
    if not names:
        return
    axes = _panels(figure, 4, len(names), (3.9 if len(names) > 1 else 6.4, 2.3))
    for column, data in enumerate(names):
        loss, *others = (axes[row * len(names) + column] for row in range(4))
        starts = []
        for algorithm, variants in found_here[data].items():
            for variant, found in variants.items():
                look: dict[str, Any] = {
                    "color": _COLOURS[algorithm],
                    "linestyle": _LINES[variant],
                    "label": f"{named(algorithm)}, {variant}",
                }
                loss.plot(*found["loss"], **look)
                starts += found["loss"][1][:1]
                rounds, shares = found["reached-precise"]
                reached = [100 * share for share in shares]
                cost = found["per-round"]
                units = (1.0, cost["gradients"] or 0.0, (cost["bytes"] or 0.0) / 1e6)
                for each, unit in zip(others, units, strict=True):
                    each.plot([unit * number for number in rounds], reached, **look)
        loss.set(title=named(data), xlabel="round")
        loss.set_yscale("log")
        if starts:
            loss.set_ylim(top=min(loss.get_ylim()[1], 3 * max(starts)))  # some go far beyond
        _logarithmic(loss)
        for each, label in zip(
            others, ("round", "gradient evaluations per node", "MB per node"), strict=True
        ):
            each.set_xlabel(label)
        if column == 0:
            loss.set_ylabel("training loss")
            for each in others:
                each.set_ylabel("accuracy, %")
    _legend(figure, axes, min(4, 2 * len(names)))


def _logarithmic(axes: Axes) -> None:
    """A logarithmic y axis with numbers that people read, as many as fit."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_formatter(tick)
    axes.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5) if high < 20 * low else (2, 5)))
    axes.yaxis.set_minor_formatter(tick if high < 1000 * low else NullFormatter())
    axes.tick_params(axis="y", which="both", labelsize=8)


def _rho(figure: Figure, summary: Summary) -> None:
    """Training loss for several ρ; how many diverged stands in the legend."""
    names = [name for name in data_sets(summary) if any(name in v for v in summary["rho"].values())]
    axes = _panels(figure, len(PARTITIONS), len(names), (3.9, 3.2))
    for number, each in enumerate(axes):
        partition, data = PARTITIONS[number // len(names)], names[number % len(names)]
        found = at(summary, "rho", partition, data) or {}
        for tint, (name, row) in zip(SERIES, found.items(), strict=False):
            lost = row["accuracy"]["diverged"] if row["accuracy"] else 0
            ending = f" ({lost} of {row['accuracy']['n']} diverged)" if lost else ""
            label = f"ρ = {name.removeprefix('rho-')}{ending}"
            each.plot(*row["loss"], color=tint, label=label)
        each.set(title=f"{named(data)}, {partition}", xlabel="round")
        _logarithmic(each)
        if found:
            each.legend(fontsize=8, frameon=True, framealpha=0.85, edgecolor="none")
        if number % len(names) == 0:
            each.set_ylabel("meta-loss on the sources")


def _prior(figure: Figure, summary: Summary) -> None:
    """Accuracy against λ, with that of θ_p itself as a line."""
    (axes,) = _panels(figure, 1, 1, (6.4, 3.6))
    for data, found in summary["prior"].items():
        rows = {
            float(name.removeprefix("lambda-")): row
            for name, row in found.items()
            if name.startswith("lambda-")
        }
        strengths = sorted(rows)
        for which, tint, label in (
            ("new-precise", SERIES[0], "targets of all classes"),
            ("prior-precise", SERIES[1], "targets of the prior task"),
        ):
            entries = [rows[strength][which] for strength in strengths]
            _line(axes, strengths, entries, tint, label)
            start = at(found, "prior-model", which)
            if start is not None and start["mean"] is not None:
                axes.axhline(start["mean"], color=tint, linestyle=":", label=f"{label}: θ_p itself")
        axes.set_title(named(data))
    axes.set_xscale("symlog", linthresh=0.5)
    ticks = (0, 0.5, 1, 2, 5, 10, 20, 50)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set(xlabel="λ", ylabel="accuracy, precise sets, %", xlim=(-0.03, 60))
    _legend(figure, [axes], 2)


def _line(
    axes: Axes, xs: Sequence[float], entries: Sequence[Entry | None], colour: str, label: str
) -> None:
    """Means with their intervals as a band."""
    known = [(x, e) for x, e in zip(xs, entries, strict=True) if e and e["mean"] is not None]
    if not known:
        return
    places = [x for x, _ in known]
    means = [e["mean"] for _, e in known]
    widths = [e["ci95"] or 0.0 for _, e in known]
    axes.plot(places, means, "o-", color=colour, markersize=4, label=label)
    low = [mean - width for mean, width in zip(means, widths, strict=True)]
    high = [mean + width for mean, width in zip(means, widths, strict=True)]
    axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)


def _samples(figure: Figure, summary: Summary) -> None:
    """Accuracy against support size."""
    names = list(summary["samples"])
    axes = _panels(figure, 1, len(names), (3.7, 3.2))
    for number, (each, data) in enumerate(zip(axes, names, strict=True)):
        for tint, (variant, found) in zip(SERIES, summary["samples"][data].items(), strict=False):
            rows = {
                int(name.split("-")[1]): entry
                for name, entry in found.items()
                if name.endswith("-precise")
            }
            _line(each, sorted(rows), [rows[size] for size in sorted(rows)], tint, variant)
        each.set_xscale("log")
        sizes = (2, 5, 10, 20, 40)
        each.set_xticks(sizes, [str(size) for size in sizes])
        each.set_xticks([], minor=True)
        each.set(title=named(data), xlabel="support samples of a node")
        if number == 0:
            each.set_ylabel("accuracy, precise sets, %")
    _legend(figure, axes)


def _dissimilarity(figure: Figure, summary: Summary) -> None:
    """A dot per target and repeat."""
    (axes,) = _panels(figure, 1, 1, (6.4, 4.0))
    for found in summary["dissimilarity"].values():
        for tint, (name, row) in zip(SERIES, found.items(), strict=False):
            if not row["targets"]:
                continue
            label = f"{name.replace('-', ' ')} (correlation {words(row['correlation'])})"
            axes.plot(*zip(*row["targets"], strict=True), "o", color=tint, alpha=0.6, label=label)
    axes.set_xlabel("dissimilarity ‖∇L_m(θ) − Σw_i∇L_i(θ)‖ of the target")
    axes.set_ylabel("its accuracy, %")
    _legend(figure, [axes])


def _ablation(figure: Figure, summary: Summary) -> None:
    """Change in points when one factor changes, from each starting point."""
    factors: dict[str, list[str]] = {}
    for found in summary["ablation"].values():
        for start, rows in found.items():
            mine = factors.setdefault(start, [])
            mine += [name for name in rows if name not in (*mine, "as-it-is")]
    factors = {start: names for start, names in factors.items() if names}
    if not factors:
        return
    axes = _panels(figure, len(factors), 1, (7.6, 3.6))
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
                    _mark(each, change, y, SERIES[number], "o", named(data))
            asked = _published_change(summary, data, start)
            if asked is not None:
                places.append(asked)
                label = f"{named(data)}, as published"
                each.axvline(asked, color=SERIES[number], linestyle=":", label=label)
        each.axvline(0, color=_INK, linewidth=0.8)
        margin = 0.12 * (max(places) - min(places)) or 1.0
        each.set_xlim(min(places) - margin, max(places) + margin)  # wide intervals may leave it
        labels = [factor_words(start, factor) for factor in reversed(names)]
        each.set_yticks(range(len(names)), labels, fontsize=8.5)
        each.set_title(f"from {named(start)}")
        each.set_xlabel("change of accuracy, points (paired, precise sets)")
    _legend(figure, axes, 3)


def _published_change(summary: Summary, data: str, start: str) -> float | None:
    """The published accuracy less ours: the change that would explain the difference."""
    published = TABLE_1.get(data, {}).get(start, {}).get("paper")
    ours = at(summary, "ablation", data, start, "as-it-is", "accuracy", "mean")
    return None if published is None or ours is None else published.mean - float(ours)


def _robustness(figure: Figure, summary: Summary) -> None:
    """Accuracy against ρ: fixed, and as the start of a ρ that finds itself."""
    found = summary["robustness"]
    names = [name for name in data_sets(summary) if any(name in each for each in found.values())]
    axes = _panels(figure, len(PARTITIONS), len(names), (3.9, 3.0))
    for number, each in enumerate(axes):
        partition, data = PARTITIONS[number // len(names)], names[number % len(names)]
        places = at(found, partition, data) or {}
        for tint, (initialisation, rows) in zip(SERIES, places.items(), strict=False):
            for kind, mark, label in (("fixed", "o--", "fixed ρ"), ("auto", "s-", "start of ρ")):
                mine = {_penalty(name): row for name, row in rows.items() if name.startswith(kind)}
                known = [(rho, row) for rho, row in sorted(mine.items()) if row["mean"] is not None]
                if known:
                    line = [(rho, row["mean"]) for rho, row in known]
                    words = f"{label}, {initialisation}"
                    width = 2.2 if kind == "auto" else 1.0
                    each.plot(
                        *zip(*line, strict=True), mark, color=tint, markersize=4, label=words,
                        linewidth=width,
                    )  # fmt: skip
                lost = [(rho, row["mean"]) for rho, row in known if row["diverged"]]
                if lost:
                    each.plot(
                        *zip(*lost, strict=True), "x", color=_INK, markersize=7,
                        label="some runs diverged",
                    )  # fmt: skip
        each.set(title=f"{named(data)}, {partition}", xlabel="ρ", xscale="log")
        if number % len(names) == 0:
            each.set_ylabel("accuracy, precise sets, %")
    _legend(figure, axes, 3)


def _penalty(name: str) -> float:
    """The ρ in the name of a cell; 3 stands for √10.

    Example:
        >>> _penalty("auto-1e-3"), round(_penalty("fixed-3e0"), 3)
        (0.001, 3.162)
    """
    digit, exponent = name.split("-", 1)[1].split("e")
    return float(10 ** (int(exponent) + (0.5 if digit == "3" else 0.0)))


_FIGURES: dict[str, Callable[[Figure, Summary], None]] = {
    "table1": _table1,
    "convergence": _convergence,
    "rho": _rho,
    "prior": _prior,
    "samples": _samples,
    "dissimilarity": _dissimilarity,
    "ablation": _ablation,
    "robustness": _robustness,
    "sequences": sequence_results.paint,
}
