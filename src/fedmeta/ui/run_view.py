"""What the page of a run shows beside its curves: the nodes, what they hold and what they reach."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedmeta.report import format as fmt
from fedmeta.report.headline import run_headline, run_remarks
from fedmeta.report.pages import Fact
from fedmeta.report.reading import UNFINISHED, NodeFacts, RunFacts
from fedmeta.ui.drawable import finite

MOST_NODES = 200  # rows of a table; the others are counted below it
_MOST_CLASSES = 24  # that fit beside each other as cells


def run_content(run: RunFacts) -> dict[str, Any]:
    """Everything `run.html` needs."""
    sources, targets = run.federation.sources, run.federation.targets
    reached = {target.name: target.metric for target in run.targets}
    shown = [_row(run, node, reached.get(node.name, {})) for node in targets]
    values = [each[when] for each in shown for when in ("before", "after")]
    better = -1 if run.metric == "accuracy" else 1
    worst_first = sorted(shown, key=lambda each: better * (each["before"] or 0.0), reverse=True)
    return {
        "run": run,
        "headline": run_headline(run),
        "remarks": run_remarks(run),
        "unfinished": run.status == UNFINISHED,
        "unit": fmt.unit(run.metric, run.settings.get("data", {}).get("label")),
        "tiles": _tiles(run),
        "targets": worst_first[:MOST_NODES],
        "targets_left_out": max(0, len(targets) - MOST_NODES),
        "sources": [_row(run, node, {}) for node in sources[:MOST_NODES]],
        "sources_left_out": max(0, len(sources) - MOST_NODES),
        "scale": 1.0 if run.metric == "accuracy" else max(filter(None, values), default=1.0),
    }


def _tiles(run: RunFacts) -> list[Fact]:
    federation = run.federation
    shape = " × ".join(map(str, federation.input_shape)) or "1"
    what = "classes" if federation.kind == "classification" else "outputs"
    what = what if federation.outputs != 1 else "output"
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


def _row(run: RunFacts, node: NodeFacts, metric: Mapping[int, float]) -> dict[str, Any]:
    """A node as its table has it; of a target also what it reached, by number of steps."""
    names, total = run.federation.class_names, sum(node.classes.values()) or 1
    few = bool(node.classes) and len(names) <= _MOST_CLASSES
    parts = [f"{name} ({count})" for name, count in node.classes.items()]
    more = [f"and {len(parts) - 12} more"] if len(parts) > 12 else []
    return {
        "name": node.name,
        "support": node.support,
        "query": node.query,
        # Share of its samples per class, in the order of the classes; then the same in words.
        "cells": [(name, node.classes.get(name, 0) / total) for name in names] if few else [],
        "classes": ", ".join(parts[:12] + more) or fmt.NO_VALUE,
        "before": finite(metric.get(0, math.nan)),
        "after": finite(metric.get(run.adaptation_steps, math.nan)),
    }
