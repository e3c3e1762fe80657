"""The charts of a federation: who has which classes, and how many samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fedmeta.report import format as fmt
from fedmeta.report.picture import Picture, draw
from fedmeta.report.reading import FederationFacts, NodeFacts
from fedmeta.report.style import SMALL, colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_COLUMNS, _MOST_CLASSES = 120, 40


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
            # Nodes with like classes side by side.
            group.sort(key=lambda node: sorted(names.index(name) for name in node.classes))
            _heat_map(axes, group, names, most, colour(role))
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
        size=(label_width + sum(widths) + 22 * len(groups), height + 30),
    )


def sizes(federation: FederationFacts) -> Picture | None:
    """How many samples nodes hold, as a histogram of sources and targets."""
    return _histogram(federation, lambda node: node.size, "samples", "sizes")


def classes_per_node(federation: FederationFacts) -> Picture | None:
    """How many classes nodes hold, for federations too large for the heat map."""
    if not any(node.classes for node in federation.nodes):
        return None
    return _histogram(federation, lambda node: len(node.classes), "classes", "class-counts")


def _heat_map(
    axes: Axes, nodes: Sequence[NodeFacts], names: Sequence[str], most: int, tint: str
) -> None:
    for column, node in enumerate(nodes):
        for name, count in node.classes.items():
            x, y = column + 0.06, names.index(name) + 0.06
            box = [x, x + 0.88, x + 0.88, x], [y, y, y + 0.88, y + 0.88]
            shade = 0.2 + 0.8 * (count / most)  # at most 1, exactly
            axes.fill(*box, color=tint, alpha=shade, lw=0)
    axes.set_ylim(len(names), 0)
    axes.set_xticks([])
    labels = [fmt.shortened(name, 14) for name in names]
    axes.set_yticks([row + 0.5 for row in range(len(names))], labels, color=colour("ink"))
    axes.set_yticks(range(len(names) + 1), minor=True)
    axes.grid(visible=False, which="major")
    axes.grid(visible=True, which="minor", axis="y")
    axes.spines["bottom"].set_visible(False)


def _histogram(
    federation: FederationFacts, measure: Callable[[NodeFacts], int], what: str, name: str
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
        axes.set_xlabel(f"{what} on a device")
        axes.set_ylabel("devices")
        if low == high:  # a single bar as wide as the picture says nothing
            axes.set_xlim(low - 3, high + 3)
        words, place = {"source": "sources", "target": "new devices"}, axes.transAxes
        for row, role in enumerate([role for role, group in groups if group]):
            y = 1.1 - 0.1 * row
            axes.text(1, y, words[role], color=colour(role), ha="right", transform=place)

    return draw(
        paint,
        name=name,
        label=f"Histogram: {what} per device, from {low} to {high}, median "
        f"{sorted(values)[len(values) // 2]}.",
        caption=f"{what.capitalize()} per device",
        size=(SMALL[0], 200),
    )


def _groups(federation: FederationFacts) -> list[tuple[str, list[NodeFacts]]]:
    return [("source", federation.sources), ("target", federation.targets)]
