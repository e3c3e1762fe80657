"""The page of a comparison of algorithms, with its charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmeta.report import format as fmt
from fedmeta.report.charts import (
    end_labels,
    metric_axis,
    metric_ticks,
    named_rows,
    rounds_axis,
    value_axis,
)
from fedmeta.report.comparison_reading import ComparisonFacts, PairedFacts, RowFacts
from fedmeta.report.headline import comparison_headline, comparison_remarks
from fedmeta.report.pages import render
from fedmeta.report.picture import Picture, draw, present
from fedmeta.report.run_page import federation_part, targets_part
from fedmeta.report.style import WIDE, colour, series_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STEP = 26  # height of a row


def comparison_page(comparison: ComparisonFacts) -> str:
    """The HTML of a comparison."""
    runs = comparison.rows[0].runs
    first = runs[0] if runs else None  # one seed's nodes stand for all
    data = comparison.data.get("name") or (first.federation.name if first else "data")
    return render(
        "comparison.html",
        {
            "title": f"{fmt.counted(len(comparison.rows), 'algorithm')} on {data}",
            "comparison": comparison,
            "headline": comparison_headline(comparison),
            "remarks": comparison_remarks(comparison),
            "rows": [_row(row, comparison) for row in comparison.rows],
            "charts": present(intervals(comparison), learning_curves(comparison)),
            "paired": paired_differences(comparison),
            "paired_rows": [_pair(pair, comparison) for pair in comparison.paired],
            "example": first,
            **(targets_part(first) if first else {"metric": comparison.metric}),
            **(federation_part(first.federation) if first else {}),
        },
    )


def _row(row: RowFacts, comparison: ComparisonFacts) -> dict[str, str]:
    metric = comparison.metric
    return {
        "label": row.label,
        "found": row.steps or fmt.NO_VALUE,
        "mean": fmt.estimate(row.mean, row.ci95, metric),
        "before": fmt.metric(row.before_mean, metric),
        "worst": fmt.metric(row.worst_decile, metric),
        "steps": fmt.number(row.adaptation_steps),
        "rounds": fmt.number(row.rounds),
        "gradients": fmt.number(row.gradient_evaluations),
        "bytes": fmt.size(row.bytes_per_node),
        "seconds": fmt.duration(row.seconds),
        "diverged": f"{row.diverged} of {len(comparison.seeds)}" if row.diverged else "none",
    }


def _pair(pair: PairedFacts, comparison: ComparisonFacts) -> dict[str, str]:
    metric, interval = comparison.metric, fmt.NO_VALUE
    if pair.mean is not None and pair.ci95 is not None:
        low, high = pair.mean - pair.ci95, pair.mean + pair.ci95
        interval = f"{fmt.change(low, metric)} to {fmt.change(high, metric)}"
    return {
        "against": pair.against,
        "mean": fmt.change(pair.mean, metric),
        "interval": interval.replace("\u00a0points to", " to"),
    }


def intervals(comparison: ComparisonFacts) -> Picture | None:
    """Per algorithm: a dot per seed, the mean, and its 95 % interval."""
    rows = [(i, row) for i, row in enumerate(comparison.rows) if row.mean is not None]
    if not rows:
        return None
    name = fmt.mean_name(comparison.metric)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        shown: list[float] = []
        for place, (number, row) in zip(range(len(rows), 0, -1), rows, strict=True):
            mean, half, tint = row.mean or 0.0, row.ci95 or 0.0, series_colour(number)
            shown += [*row.values, mean - half, mean + half]
            if row.before_mean is not None:
                shown.append(row.before_mean)
                axes.plot(row.before_mean, place, "|", color=colour("before"), ms=13, mew=1.8)
            axes.plot([mean - half, mean + half], [place, place], color=tint, linewidth=2.5)
            dots = [place - 0.26] * len(row.values)
            axes.plot(row.values, dots, "o", color=tint, markersize=4, alpha=0.55, linewidth=0)
            axes.plot([mean], [place], "o", color=tint, markersize=9)
            _at_the_right(axes, place, fmt.metric(mean, comparison.metric))
        named_rows(axes, [fmt.shortened(row.label, 24) for _, row in rows])
        metric_axis(axes, comparison.metric, shown)

    parts = [
        f"{row.label} {fmt.estimate(row.mean, row.ci95, comparison.metric)}" for _, row in rows
    ]
    has_interval = any(row.ci95 is not None for _, row in rows)
    line = "the line its 95 % interval, " if has_interval else ""
    return draw(
        paint,
        name="intervals",
        label=f"{name.capitalize()} by algorithm: {fmt.listed(parts)}.",
        caption=f"{name.capitalize()} of the new devices: the large dot is the mean over seeds, "
        f"{line}small dots are seeds, the upright stroke is the mean before adapting",
        size=(WIDE, 50 + (_STEP + 6) * len(rows)),
    )


def learning_curves(comparison: ComparisonFacts) -> Picture | None:
    """The targets' metric while training, against rounds or gradients: mean and range of seeds."""
    by_gradients = comparison.equal == "gradients"
    curves = {
        number: curve
        for number, row in enumerate(comparison.rows)
        if (curve := mean_curve(row, by_gradients))[0]
    }
    if all(len(xs) < 2 for xs, *_ in curves.values()):
        return None
    name = fmt.mean_name(comparison.metric)
    label = "gradient evaluations per device" if by_gradients else "round"

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        ends = []
        for number, (xs, means, lows, highs) in curves.items():
            tint = series_colour(number)
            axes.fill_between(xs, lows, highs, color=tint, alpha=0.1, linewidth=0)
            dashes = (None, (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))[number % 4]
            # The first row is the one that all others are compared with.
            width = 2.6 if number == 0 else 1.8
            (line,) = axes.plot(xs, means, color=tint, linewidth=width, zorder=3 - number / 100)
            if dashes:
                line.set_dashes(dashes)
            axes.plot(xs[-1:], means[-1:], "o", color=tint, markersize=5, clip_on=False)
            ends.append((means[-1], fmt.shortened(comparison.rows[number].label, 20), tint))
        rounds_axis(axes, int(max(xs[-1] for xs, *_ in curves.values())), label)
        value_axis(axes, metric_ticks(comparison.metric))
        end_labels(axes, ends, 235)

    seeds = len(comparison.seeds)
    band = "; the band spans the seeds" if seeds > 1 else ""
    return draw(
        paint,
        name="learning",
        label=f"Learning curves: {name} of the new devices against {label} for "
        f"{fmt.listed([comparison.rows[number].label for number in curves])}.",
        caption=f"{name.capitalize()} of the new devices after adaptation, while training{band}",
        size=(WIDE, 290),
    )


def paired_differences(comparison: ComparisonFacts) -> Picture | None:
    """The first row minus each other, seed by seed, with 95 % intervals around the mean."""
    rows = [pair for pair in comparison.paired if pair.mean is not None]
    if not rows:
        return None
    first = comparison.rows[0].label

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axvline(0, color=colour("muted"), linewidth=1.2)
        reach = 0.0
        for place, pair in zip(range(len(rows), 0, -1), rows, strict=True):
            mean, half = pair.mean or 0.0, pair.ci95 or 0.0
            clear = pair.ci95 is not None and abs(mean) > half
            ahead = (mean > 0) == (comparison.metric == "accuracy")
            tint = colour("before" if not clear else "accent" if ahead else "worse")
            reach = max(reach, abs(mean) + half)
            axes.plot([mean - half, mean + half], [place, place], color=tint, linewidth=2.5)
            axes.plot([mean], [place], "o", color=tint, markersize=8)
            difference = fmt.change(mean, comparison.metric).replace("\u00a0points", "")
            _at_the_right(axes, place, difference)
        named_rows(axes, [f"− {fmt.shortened(pair.against, 24)}" for pair in rows])
        reach = 1.1 * reach or 0.01
        axes.set_xlim(-reach, reach)
        axes.locator_params(axis="x", nbins=5)
        accuracy = comparison.metric == "accuracy"
        axes.xaxis.set_major_formatter(
            lambda value, _: fmt.tick(round(100 * value, 6) if accuracy else value)
        )
        unit, judged = ("points", "better") if accuracy else ("mean squared error", "worse")
        axes.set_xlabel(f"{unit}; right of 0: {fmt.shortened(first, 20)} is {judged}", loc="right")

    parts = [f"{pair.against} {fmt.change(pair.mean, comparison.metric)}" for pair in rows]
    return draw(
        paint,
        name="paired",
        label=f"{first} minus each other algorithm: {fmt.listed(parts)}.",
        caption=f"{first} minus each other, seed by seed, with the 95 % interval of the mean: "
        "blue where it is ahead, orange where behind, grey where that is unsure",
        size=(WIDE, 64 + _STEP * len(rows)),
    )


def _at_the_right(axes: Axes, place: float, text: str) -> None:
    axes.text(1.02, place, text, va="center", transform=axes.get_yaxis_transform())


def mean_curve(
    row: RowFacts, by_gradients: bool
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Where, mean, lowest and highest over the seeds, at evaluations that all of them have."""
    # A run that diverged would cut the curves of all others where it ended.
    ended = [run for run in row.runs if run.status != "diverged"]
    series = [dict(zip(*run.target_series(row.adaptation_steps), strict=True)) for run in ended]
    series = [each for each in series if each]
    if not series:
        return [], [], [], []
    rounds = sorted(set.intersection(*(set(each) for each in series)))
    values = [[each[number] for each in series] for number in rounds]
    unit = 1.0
    if by_gradients and row.gradient_evaluations is not None and row.rounds:
        unit = row.gradient_evaluations / row.rounds
    if unit == 0:  # sources compute nothing: all rounds are one point
        rounds, values = rounds[-1:], values[-1:]
    means = [sum(column) / len(column) for column in values]
    return (
        [unit * number for number in rounds],
        means,
        [min(column) for column in values],
        [max(column) for column in values],
    )
