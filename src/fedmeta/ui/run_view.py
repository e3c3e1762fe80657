"""What the page of a run shows beside its curves: the nodes, what they hold and what they reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedmeta.report import format as fmt
from fedmeta.report.headline import run_headline, run_remarks
from fedmeta.report.pages import Fact
from fedmeta.report.reading import UNFINISHED, NodeFacts, RunFacts
from fedmeta.ui.drawable import finite

MOST_NODES = 200  # rows of a table; the others are counted below it
_MOST_CLASSES = 24  # that fit beside each other as cells


@dataclass(frozen=True)
class NodeRow:
    """A node of the federation.

    Args:
        name: of the node.
        support: samples that it adapts to.
        query: samples that it is judged on.
        cells: share of its samples per class, from 0 to 1, in the order of the classes; empty if
            there are too many classes to draw.
        classes: the same in words.
        before: metric without adapting, of targets.
        after: metric after the steps that the algorithm takes, of targets.
    """

    name: str
    support: int
    query: int
    cells: tuple[tuple[str, float], ...]
    classes: str
    before: float | None = None
    after: float | None = None


def run_content(run: RunFacts) -> dict[str, Any]:
    """Everything `run.html` needs."""
    sources, targets = run.federation.sources, run.federation.targets
    reached = {target.name: target.metric for target in run.targets}
    steps = run.adaptation_steps

    def row(node: NodeFacts) -> NodeRow:
        metric = reached.get(node.name, {})
        return _node(node, run.federation.class_names, metric.get(0), metric.get(steps))

    shown = [row(node) for node in targets]
    values = [value for each in shown for value in (each.before, each.after) if value is not None]
    worst_first = sorted(shown, key=lambda each: _badness(each, run.metric), reverse=True)
    return {
        "run": run,
        "headline": run_headline(run),
        "remarks": run_remarks(run),
        "unfinished": run.status == UNFINISHED,
        "tiles": _tiles(run),
        "targets": worst_first[:MOST_NODES],
        "targets_left_out": max(0, len(targets) - MOST_NODES),
        "sources": [row(node) for node in sources[:MOST_NODES]],
        "sources_left_out": max(0, len(sources) - MOST_NODES),
        "scale": 1.0 if run.metric == "accuracy" else max(values, default=1.0) or 1.0,
    }


def _tiles(run: RunFacts) -> list[Fact]:
    federation = run.federation
    shape = " × ".join(map(str, federation.input_shape)) or "1"
    what = "classes" if federation.kind == "classification" else "outputs"
    # What grows while a run goes on is not among them: it would soon be old.
    done = [
        Fact("Rounds", fmt.number(run.rounds), f"of {fmt.number(run.planned)} planned"),
        Fact("Time", fmt.duration(run.total("seconds")), "of all rounds"),
    ]
    return [
        *(done if run.status != UNFINISHED else []),
        Fact("Source devices", fmt.number(len(federation.sources)), "train together"),
        Fact("New devices", fmt.number(len(federation.targets)), "adapt afterwards"),
        Fact("Samples", shape, f"numbers each, {federation.outputs} {what}"),
    ]


def _node(
    node: NodeFacts, names: Sequence[str], before: float | None, after: float | None
) -> NodeRow:
    total = sum(node.classes.values()) or 1
    few = bool(node.classes) and len(names) <= _MOST_CLASSES
    parts = [f"{name} ({count})" for name, count in node.classes.items()]
    more = [f"and {len(parts) - 12} more"] if len(parts) > 12 else []
    return NodeRow(
        node.name,
        node.support,
        node.query,
        tuple((name, node.classes.get(name, 0) / total) for name in names) if few else (),
        ", ".join(parts[:12] + more) or fmt.NO_VALUE,
        None if before is None else finite(before),
        None if after is None else finite(after),
    )


def _badness(row: NodeRow, metric: str) -> float:
    value = row.before if row.before is not None else 0.0
    return -value if metric == "accuracy" else value
