"""The charts of a run: curves, targets before and after, who has which classes, time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fedmeta.report import format as fmt
from fedmeta.report.drawing import (
    Picture,
    Ticks,
    colour,
    draw,
    end_labels,
    rounds_axis,
    series_colour,
    thinned,
    value_axis,
)
from fedmeta.report.reading import FederationFacts, NodeFacts, RunFacts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMALL = (380, 250)
_MOST_DUMBBELLS = 40
_MOST_COLUMNS, _MOST_CLASSES = 120, 40

# Key, name and width. The gradient goes below: the dual residual often lies right on top of it.
_NORMS = (
    ("gradient_norm", "gradient", 4.5),
    ("primal_residual", "primal", 2),
    ("dual_residual", "dual", 1.6),
    ("step_norm", "step", 2),
)


def loss_curve(run: RunFacts) -> Picture | None:
    """Training loss against rounds; None if no round logged one."""
    key, name = "meta_loss", "meta-loss"
    if not run.series(key)[0]:
        key, name = "local_loss", "local loss"
    xs, ys = run.series(key)
    if not xs:
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        if min(ys) > 0 and max(ys) > 50 * min(ys):
            axes.set_yscale("log")
        _line(axes, xs, ys, colour("accent"))
        rounds_axis(axes, xs[-1])
        value_axis(axes)
        end_labels(axes, [(ys[-1], fmt.number(ys[-1]), colour("accent"))], 200)

    return draw(
        paint,
        name="loss",
        label=f"Line chart of the {name} on the source devices: {fmt.number(ys[0])} in round "
        f"{xs[0]}, {fmt.number(ys[-1])} in round {xs[-1]}.",
        caption=f"{name.capitalize()} on the source devices",
        width=SMALL[0],
        height=SMALL[1],
    )


def target_curve(run: RunFacts) -> Picture | None:
    """Mean metric of the targets against rounds, by adaptation steps; None without evaluations."""
    lines = {steps: run.target_series(steps) for steps in run.evaluated_steps}
    lines = {steps: line for steps, line in lines.items() if line[0]}
    if not lines:
        return None
    name = mean_words(run.metric)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        others = iter(("series-3", "series-2", "series-4", "series-5", "series-6"))
        ends = []
        for steps, (xs, ys) in lines.items():
            chosen = steps == run.adaptation_steps
            role = "accent" if chosen else "before" if steps == 0 else next(others, "muted")
            _line(axes, xs, ys, colour(role), width=2.4 if chosen else 1.6, dashed=steps == 0)
            ends.append((ys[-1], fmt.counted(steps, "step"), colour(role)))
        rounds_axis(axes, max(xs[-1] for xs, _ in lines.values()))
        value_axis(axes, metric_ticks(run.metric))
        end_labels(axes, ends, 200)

    parts = [
        f"{fmt.metric(ys[-1], run.metric)} after {fmt.counted(steps, 'step')}"
        for steps, (_, ys) in lines.items()
    ]
    return draw(
        paint,
        name="targets-by-round",
        label=f"Line chart of the {name} of the new devices against rounds. "
        f"At the end: {fmt.listed(parts)}.",
        caption=f"{name.capitalize()} of the new devices, by adaptation steps",
        width=SMALL[0],
        height=SMALL[1],
    )


def norms(run: RunFacts) -> Picture | None:
    """Residuals and gradient norm against rounds, on a logarithmic axis."""
    lines, widths = {}, {name: width for _, name, width in _NORMS}
    for key, name, _ in _NORMS:
        pairs = [(x, y) for x, y in zip(*run.series(key), strict=True) if y > 0]
        if pairs:
            lines[name] = ([x for x, _ in pairs], [y for _, y in pairs])
    if not lines:
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_yscale("log")
        ends = []
        for number, (name, (xs, ys)) in enumerate(lines.items()):
            dashed = name == "primal"
            _line(axes, xs, ys, series_colour(number), width=widths[name], dashed=dashed)
            ends.append((ys[-1], name, series_colour(number)))
        rounds_axis(axes, max(xs[-1] for xs, _ in lines.values()))
        at_least_a_decade(axes)
        value_axis(axes)
        end_labels(axes, ends, 200)

    parts = [f"{name} {fmt.number(ys[-1])}" for name, (_, ys) in lines.items()]
    what = "Residuals and norms" if {"primal", "dual"} & set(lines) else "Norms"
    return draw(
        paint,
        name="norms",
        label=f"{what} against rounds on a logarithmic axis. At the end: {fmt.listed(parts)}.",
        caption=f"{what} (logarithmic axis)",
        width=SMALL[0],
        height=SMALL[1],
    )


def targets_before_and_after(run: RunFacts) -> Picture | None:
    """Every target before and after adapting: dumbbells, or points against a diagonal if many."""
    after, before = run.adaptation_steps, 0
    rows = [
        (target.name, target.metric[before], target.metric[after])
        for target in run.targets
        if before in target.metric and after in target.metric
    ]
    if not rows or before == after:
        return None
    name = metric_words(run.metric)
    steps = fmt.counted(after, "step", letters=True)
    counts = fmt.listed([f"{n} {how}" for how, n in fates(run).items()])
    best_first = sorted(rows, key=lambda row: (row[2], row[1]), reverse=run.metric == "accuracy")
    many = len(rows) > _MOST_DUMBBELLS
    return draw(
        (lambda figure: _scatter(figure, run, best_first))
        if many
        else (lambda figure: _dumbbells(figure, run, best_first)),
        name="scatter" if many else "dumbbells",
        label=f"{name.capitalize()} of each new device before and after {steps}: {counts}.",
        caption=f"{name.capitalize()} of each new device before adapting and after {steps}",
        width=440,
        height=380 if many else 52 + 21 * len(rows),
    )


def fates(run: RunFacts) -> dict[str, int]:
    """How many targets adapting made better, left the same, and made worse."""
    found = {"better": 0, "unchanged": 0, "worse": 0}
    for target in run.targets:
        if 0 in target.metric and run.adaptation_steps in target.metric:
            found[_fate(run, target.metric[0], target.metric[run.adaptation_steps])] += 1
    return found


def classes(federation: FederationFacts) -> Picture | None:
    """Who has which classes, as a heat map; None if there are none, or too many to see."""
    nodes, names = federation.nodes, federation.class_names
    if not any(node.classes for node in nodes):
        return None
    if len(nodes) > _MOST_COLUMNS or len(names) > _MOST_CLASSES:
        return None
    groups = [(role, group) for role, group in _groups(federation) if group]
    most = max(count for node in nodes for count in node.classes.values())
    cell = max(8, min(20, 1000 // len(nodes)))
    label_width = 7 * max(len(fmt.shortened(name, 14)) for name in names) + 14
    # A group of two or three nodes is still as wide as its title.
    widths = [max(cell * len(group), 110) for _, group in groups]
    height = max(11, min(18, 300 // len(names))) * len(names)

    def paint(figure: Figure) -> None:
        panels = figure.subplots(
            1, len(groups), sharey=True, squeeze=False, gridspec_kw={"width_ratios": widths}
        )[0]
        for axes, width, (role, group) in zip(panels, widths, groups, strict=True):
            _heat_map(axes, _by_class(group, names), names, most, colour(role))
            axes.set_xlim(0, width / cell)
            title = fmt.counted(len(group), "source" if role == "source" else "new device")
            axes.set_title(title, fontsize=11, loc="left", color=colour(role), pad=6)

    return draw(
        paint,
        name="classes",
        label=f"Heat map of {len(names)} classes (rows) by {len(nodes)} devices (columns): the "
        f"deeper the colour, the more samples; at most {most} of one class on one device.",
        caption="Who has which classes: a column is a device, a row a class; the deeper the "
        f"colour, the more samples (at most {most}). Devices are sorted by their classes",
        width=label_width + sum(widths) + 22 * len(groups),
        height=height + 30,
    )


def sizes(federation: FederationFacts) -> Picture | None:
    """How many samples nodes hold, as a histogram of sources and targets."""
    return _histogram(
        federation, lambda node: node.size, "samples on a device", "sizes", "Samples per device"
    )


def classes_per_node(federation: FederationFacts) -> Picture | None:
    """How many classes nodes hold, for federations too large for the heat map."""
    if not any(node.classes for node in federation.nodes):
        return None
    return _histogram(
        federation,
        lambda node: len(node.classes),
        "classes on a device",
        "class-counts",
        "Classes per device",
    )


def timing(run: RunFacts) -> Picture | None:
    """Seconds of each round."""
    xs, ys = run.series("seconds")
    if not xs or max(ys) <= 0:
        return None
    scale, unit = (1000, "ms") if max(ys) < 1 else (1, "s")
    longer = "; rounds that evaluate the new devices take longer" if run.evaluated_steps else ""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        _line(axes, xs, [scale * y for y in ys], colour("accent"), width=1.4)
        axes.set_ylim(bottom=0)
        rounds_axis(axes, xs[-1])
        value_axis(axes, lambda value, _: f"{fmt.tick(value)} {unit}")

    return draw(
        paint,
        name="timing",
        label=f"Line chart of the time of each round: {fmt.duration(min(ys))} to "
        f"{fmt.duration(max(ys))}.",
        caption=f"Time of each round{longer}",
        width=SMALL[0],
        height=180,
    )


def _line(
    axes: Axes,
    xs: Sequence[float],
    ys: Sequence[float],
    tint: str,
    width: float = 2,
    dashed: bool = False,
) -> None:
    # Spelt out: a lone point would be invisible as a line.
    axes.plot(
        *thinned(xs, ys),
        color=tint,
        linewidth=width,
        linestyle=(0, (4, 2)) if dashed else "-",
        marker="o" if len(xs) == 1 else None,
        clip_on=False,
    )
    axes.plot(xs[-1:], ys[-1:], "o", color=tint, markersize=5, clip_on=False)


def _dumbbells(figure: Figure, run: RunFacts, rows: Sequence[tuple[str, float, float]]) -> None:
    axes = figure.subplots()
    places = range(len(rows), 0, -1)
    for place, (_, before, after) in zip(places, rows, strict=True):
        tint = colour("worse" if _fate(run, before, after) == "worse" else "accent")
        axes.plot([before, after], [place, place], color=tint, linewidth=3, alpha=0.45, zorder=1)
        axes.plot(
            [before],
            [place],
            "o",
            markersize=9,
            markerfacecolor=colour("page"),
            markeredgecolor=colour("before"),
            markeredgewidth=1.8,
            clip_on=False,
        )
        axes.plot([after], [place], "o", markersize=6, color=tint, zorder=3, clip_on=False)
    labels = [fmt.shortened(name, 22) for name, _, _ in rows]
    axes.set_yticks(list(places), labels, color=colour("ink"))
    axes.set_ylim(0.4, len(rows) + 0.6)
    metric_axis(axes, run.metric, [value for _, *pair in rows for value in pair])
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")


def _scatter(figure: Figure, run: RunFacts, rows: Sequence[tuple[str, float, float]]) -> None:
    axes = figure.subplots()
    before, after = [row[1] for row in rows], [row[2] for row in rows]
    low, high = min(*before, *after), max(*before, *after)
    pad = 0.04 * (high - low) or 0.05
    axes.plot([low, high], [low, high], color=colour("muted"), linewidth=1, dashes=(3, 3))
    tints = [colour("worse" if _fate(run, b, a) == "worse" else "accent") for _, b, a in rows]
    axes.scatter(before, after, s=26, c=tints, alpha=0.55, linewidths=0)
    axes.set_xlim(low - pad, high + pad)
    axes.set_ylim(low - pad, high + pad)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(metric_ticks(run.metric))
    axes.set_xlabel(f"{metric_words(run.metric)} before adapting")
    axes.set_ylabel("after")
    worse = "below" if run.metric == "accuracy" else "above"
    axes.set_title(f"{worse} the diagonal: worse after adapting", fontsize=11, loc="left")


def _heat_map(
    axes: Axes, nodes: Sequence[NodeFacts], names: Sequence[str], most: int, tint: str
) -> None:
    xs, ys, shades = [], [], []
    rows = {name: row for row, name in enumerate(names)}
    for column, node in enumerate(nodes):
        for name, count in node.classes.items():
            xs.append(column + 0.06)
            ys.append(rows[name] + 0.06)
            shades.append(0.2 + 0.8 * (count / most))  # at most 1, exactly
    for x, y, shade in zip(xs, ys, shades, strict=True):
        axes.fill(
            [x, x + 0.88, x + 0.88, x], [y, y, y + 0.88, y + 0.88], color=tint, alpha=shade, lw=0
        )
    axes.set_ylim(len(names), 0)
    axes.set_xticks([])
    labels = [fmt.shortened(name, 14) for name in names]
    axes.set_yticks([row + 0.5 for row in range(len(names))], labels, color=colour("ink"))
    axes.set_yticks(range(len(names) + 1), minor=True)
    axes.grid(visible=False, which="major")
    axes.grid(visible=True, which="minor", axis="y")
    axes.spines["bottom"].set_visible(False)


def _histogram(
    federation: FederationFacts,
    measure: Callable[[NodeFacts], int],
    label: str,
    name: str,
    caption: str,
) -> Picture | None:
    groups = [(role, [measure(node) for node in group]) for role, group in _groups(federation)]
    values = [value for _, group in groups for value in group]
    if not values:
        return None
    low, high = min(values), max(values)
    width = -(-(high - low + 1) // 20)  # whole numbers per bar, at most twenty bars
    edges = [low - 0.5 + width * i for i in range((high - low) // width + 2)]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.hist(
            [group for _, group in groups],
            bins=edges,
            stacked=True,
            color=[colour(role) for role, _ in groups],
            edgecolor=colour("page"),
            linewidth=1,
        )
        axes.locator_params(axis="x", integer=True, nbins=6)
        axes.locator_params(axis="y", integer=True, nbins=4)
        axes.xaxis.set_major_formatter(fmt.tick)
        axes.yaxis.set_major_formatter(fmt.tick)
        axes.set_xlabel(label)
        axes.set_ylabel("devices")
        if low == high:  # a single bar as wide as the picture says nothing
            axes.set_xlim(low - 3, high + 3)
        words = {"source": "sources", "target": "new devices"}
        shown = [(role, words[role]) for role, group in groups if group]
        for row, (role, text) in enumerate(shown):
            axes.text(
                1, 1.1 - 0.1 * row, text, color=colour(role), ha="right", transform=axes.transAxes
            )

    ordered = sorted(values)
    return draw(
        paint,
        name=name,
        label=f"Histogram: {caption.lower()}, from {low} to {high}, median "
        f"{ordered[len(ordered) // 2]}.",
        caption=caption,
        width=SMALL[0],
        height=200,
    )


def _groups(federation: FederationFacts) -> list[tuple[str, list[NodeFacts]]]:
    return [("source", federation.sources), ("target", federation.targets)]


def _by_class(nodes: Sequence[NodeFacts], names: Sequence[str]) -> list[NodeFacts]:
    """Nodes with like classes side by side."""
    rows = {name: row for row, name in enumerate(names)}
    return sorted(nodes, key=lambda node: sorted(rows[name] for name in node.classes))


def _fate(run: RunFacts, before: float, after: float) -> str:
    if before == after:
        return "unchanged"
    return "better" if (after > before) == (run.metric == "accuracy") else "worse"


def metric_words(metric: str) -> str:
    """What a metric is called in a sentence."""
    return "accuracy" if metric == "accuracy" else "mean squared error"


def mean_words(metric: str) -> str:
    """The mean of a metric over devices."""
    return "mean accuracy" if metric == "accuracy" else "mean squared error"


def metric_ticks(metric: str) -> Ticks:
    """How the ticks of a metric's axis are written."""
    if metric == "accuracy":
        return lambda value, _: f"{fmt.tick(round(100 * value, 6))} %"
    return fmt.tick


def metric_axis(axes: Axes, metric: str, values: Sequence[float]) -> None:
    """The x axis of a metric, with room around what is shown."""
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or 0.05 * max(abs(high), 0.1)
    # No accuracy is above 100 %, and no error below 0; half a marker may be.
    high = min(high + pad, 1.01) if metric == "accuracy" else high + pad
    axes.set_xlim(max(low - pad, -0.01 * high), high)
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(metric_ticks(metric))


def at_least_a_decade(axes: Axes) -> None:
    """So that a logarithmic axis has two labels to read it by."""
    low, high = axes.get_ylim()
    if high < 100 * low:
        middle = (low * high) ** 0.5
        axes.set_ylim(min(low, middle / 10), max(high, middle * 10))
