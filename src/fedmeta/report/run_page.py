"""The page of one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from fedmeta.config.spec import RunSpec
from fedmeta.core.metrics import METRICS
from fedmeta.report import federation_figures, repeat, run_figures
from fedmeta.report import format as fmt
from fedmeta.report.headline import run_headline, run_remarks
from fedmeta.report.pages import Fact, render
from fedmeta.report.picture import present
from fedmeta.report.reading import (
    UNFINISHED,
    EdgeFacts,
    FederationFacts,
    NodeFacts,
    RunFacts,
    TargetFacts,
)

_MOST_ROWS = 200  # of a table; what is left out is counted below it
_MOST_CONFUSED = 20  # classes of a confusion matrix that people can read
_SYMBOLS = {
    "penalty": "ρ",
    "inner.step_size": "α",
    "local_step_size": "η",
    "local_steps": "K",
    "difference.growth": "δ",
    "rounds": "T",
    "strength": "λ",
}
_FIRST = ("algorithm", "prior", "training", "model", "data", "execution", "participation")
_TITLES = {"prior": "Prior model"}


def run_page(run: RunFacts) -> str:
    """The HTML of a run, however far it came."""
    return render(
        "run.html",
        {
            "title": f"{run.algorithm} on {run.federation.name}",
            "run": run,
            "headline": run_headline(run),
            "remarks": run_remarks(run),
            "status": {UNFINISHED: "not ended"}.get(run.status, run.status),
            "tiles": _tiles(run),
            "curves": present(
                run_figures.loss_curve(run),
                run_figures.target_curve(run),
                run_figures.norms(run),
            ),
            "costs": _costs(run),
            "timing": run_figures.timing(run),
            "settings": _settings(run),
            "identity": _identity(run),
            "code": repeat.code(run.settings, run.identity.get("spec")),
            **targets_part(run),
            **measures_part(run),
            "edges": [_edge(each) for each in run.edges[:_MOST_ROWS]],
            "edges_left_out": max(0, len(run.edges) - _MOST_ROWS),
            **federation_part(run.federation),
        },
    )


def targets_part(run: RunFacts) -> dict[str, Any]:
    """What the pages of runs and comparisons show of the targets."""
    sign = 1 if run.metric == "accuracy" else -1
    steps = run.adaptation_steps

    def worst_first(target: TargetFacts) -> float:
        return sign * target.metric.get(steps, 0.0)

    ordered = sorted(run.targets, key=worst_first)
    return {
        "metric": run.metric,
        "adaptation_steps": steps,
        "steps": sorted(run.target_metric),
        "statistics": _statistics(run),
        "dumbbells": run_figures.targets_before_and_after(run),
        "targets": ordered[:_MOST_ROWS],
        "targets_left_out": max(0, len(ordered) - _MOST_ROWS),
        "supports": {node.name: node.support for node in run.federation.targets},
    }


def measures_part(run: RunFacts) -> dict[str, Any]:
    """All metrics after adaptation beside their baseline, and every class."""
    steps, baseline = str(run.adaptation_steps), run.measures.get("baseline", {})

    def shown(name: str, value: float | None) -> str:
        if value is None:
            return "–"
        share = name in METRICS and METRICS[name].share
        return fmt.metric(value, "accuracy" if share else name)

    rows = [
        (name, shown(name, row[steps]["mean"]), shown(name, baseline.get(name)))
        for name, row in run.measures.get("metrics", {}).items()
        if steps in row
    ]
    keys = ("recall", "precision", "f1", "auc")
    classes = [
        (row["name"], row["samples"], [shown("f1", row[key]) for key in keys])
        for row in run.measures.get("classes", ())[:_MOST_ROWS]
    ]
    confusion = run.measures.get("confusion", []) if len(classes) <= _MOST_CONFUSED else []
    return {
        "measured": rows,
        "baseline_of": baseline.get("of", ""),
        "classes": classes,
        "confusion": confusion,
    }


def federation_part(federation: FederationFacts) -> dict[str, Any]:
    """What the pages of runs and comparisons show of the nodes."""
    known = all(node.classes for node in federation.nodes)  # a fleet's platform does not know
    heat_map = federation_figures.classes(federation) if known else None
    crowded = federation_figures.classes_per_node(federation) if known and not heat_map else None
    return {
        "federation": federation,
        "federation_facts": _federation_facts(federation),
        "heat_map": heat_map,
        "histograms": present(federation_figures.sizes(federation), crowded),
        "nodes": [_node(node) for node in federation.nodes[:_MOST_ROWS]],
        "nodes_left_out": max(0, len(federation.nodes) - _MOST_ROWS),
    }


def _tiles(run: RunFacts) -> list[Fact]:
    tiles = []
    after = run.target_metric.get(run.adaptation_steps)
    before = run.target_metric.get(0)
    name = fmt.metric_name(run.metric).capitalize()
    if after:
        note = ""
        if before and run.adaptation_steps:
            note = f"{fmt.change(after['mean'] - before['mean'], run.metric)} by adapting"
        tiles.append(Fact(name, fmt.metric(after["mean"], run.metric), note))
        tiles.append(
            Fact("Worst tenth", fmt.metric(after["worst_decile"], run.metric), "of devices")
        )
    if run.own_mean:
        own = fmt.metric(run.own_mean["mean"], run.metric)
        tiles.append(Fact("Device's own mean", own, "as the only prediction"))
    tiles.append(Fact("Rounds", fmt.number(run.rounds), f"of {fmt.number(run.planned)} planned"))
    tiles.append(Fact("Time", fmt.duration(run.total("seconds")), _per_round(run)))
    traffic = run.total("bytes_up") + run.total("bytes_down")
    if traffic:
        tiles.append(Fact("Traffic", fmt.size(traffic), "per device"))
    if run.gradient_evaluations is not None:
        tiles.append(Fact("Gradients", fmt.number(run.gradient_evaluations), "per device"))
    return tiles


def _statistics(run: RunFacts) -> list[tuple[str, list[str]]]:
    """Rows of the table of statistics: a name, and its value for each number of steps."""
    names = {
        "mean": "Mean over devices",
        "weighted_mean": "Mean over samples",
        "median": "Median device",
        "worst_decile": "Worst tenth of devices",
        "mean_seen_classes": "Mean, only classes the device has",
        "mean_loss": "Mean loss",
    }
    rows = []
    for key, name in names.items():
        columns = [run.target_metric[steps].get(key) for steps in sorted(run.target_metric)]
        if any(value is not None for value in columns):
            kind = "mse" if key == "mean_loss" else run.metric
            rows.append((name, [fmt.metric(value, kind) for value in columns]))
            if key in run.own_mean:
                own = fmt.metric(run.own_mean[key], run.metric)
                rows.append((f"{name}: its own mean", [own] * len(columns)))
    return rows


def _costs(run: RunFacts) -> list[Fact]:
    per_round = _per_round(run)
    costs = [Fact("Time of all rounds", fmt.duration(run.total("seconds")), per_round)]
    if run.gradient_evaluations is not None:
        each = fmt.number(run.gradient_evaluations / run.rounds) if run.rounds else ""
        note = f"{each} per round" if each else ""
        costs.append(
            Fact("Gradient evaluations per device", fmt.number(run.gradient_evaluations), note)
        )
    for key, name in (
        ("bytes_up", "Sent by each device"),
        ("bytes_down", "Received by each device"),
    ):
        if total := run.total(key):
            costs.append(Fact(name, fmt.size(total), f"{fmt.size(total / run.rounds)} per round"))
    counted = run.series("counted")[1]
    if counted:
        costs.append(
            Fact(
                "Devices counted per round",
                fmt.between([int(n) for n in counted]),
                f"of {fmt.number(len(run.federation.sources))} sources",
            )
        )
    if run.parameters is not None:
        costs.append(Fact("Parameters of the model", fmt.number(run.parameters)))
    return costs


def _per_round(run: RunFacts) -> str:
    """The median: rounds that evaluate take longer than most."""
    seconds = sorted(run.series("seconds")[1])
    return f"{fmt.duration(seconds[len(seconds) // 2])} per round" if seconds else ""


def _settings(run: RunFacts) -> list[tuple[str, list[Fact]]]:
    groups = []
    asked = run.identity.get("spec") or {}
    names = [each.name for each in fields(RunSpec)]
    for key in sorted(names, key=lambda name: _FIRST.index(name) if name in _FIRST else 99):
        title = _TITLES.get(key, key.capitalize())
        stored = run.settings.get(key) or {}
        if not isinstance(stored, Mapping):
            continue
        if key == "prior" and stored:
            stored = {**asked.get("prior", {}), **stored}
        if key == "algorithm":  # its prior has a group of its own
            stored = {name: value for name, value in stored.items() if name != "prior"}
        facts = [
            Fact(name.replace("_", " ").replace(".", " · "), value, _SYMBOLS.get(name, ""))
            for name, value in _flat(stored)
        ]
        adapted = run.identity.get("head")  # older runs have none
        if key == "algorithm" and isinstance(adapted, Mapping):
            moved = ", ".join(map(str, adapted.get("names", [])))
            facts.append(Fact("head", moved, str(adapted.get("note", ""))))
        if key == "prior" and facts and "prior" not in asked:
            facts = [*_prior_source(run), *facts]
        if key == "training":  # with what is no table of its own
            single = {name: run.settings.get(name, asked.get(name)) for name in names}
            facts += [
                Fact(name, fmt.setting(value))
                for name, value in single.items()
                if isinstance(value, str)
            ]
        groups.append((title, facts))
    return [(title, facts) for title, facts in groups if facts]


def _prior_source(run: RunFacts) -> list[Fact]:
    """Which file or run the prior was read from, where the run was made from settings."""
    origin = run.identity.get("origin") or {}
    path = ((origin.get("table") or {}).get("prior") or {}).get("model")
    return [] if path is None else [Fact("model", fmt.setting(path))]


def _flat(stored: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings one by one; a table with an entry per node is only counted."""
    for key, value in stored.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and len(value) > 8:
            yield name, f"{fmt.number(len(value))} values, one each"
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            yield name, fmt.setting(value)


def _identity(run: RunFacts) -> list[Fact]:
    stored = run.identity
    versions = stored.get("versions") or {}
    facts = [
        Fact("run", str(stored.get("id", fmt.NO_VALUE))),
        Fact("seed", str(stored["seed"])),
        Fact("started", fmt.date(stored.get("created"))),
        Fact("ended", fmt.date(run.ended)),
        Fact("data fingerprint", str(stored.get("federation", fmt.NO_VALUE))[:16]),
    ]
    return facts + [Fact(name, str(value)) for name, value in versions.items()]


def _federation_facts(federation: FederationFacts) -> list[Fact]:
    sources, targets = federation.sources, federation.targets
    facts = [
        Fact("Sources", fmt.number(len(sources)), "train together"),
        Fact("New devices", fmt.number(len(targets)), "adapt afterwards"),
        Fact("Samples", fmt.number(sum(node.size for node in federation.nodes)), "on all devices"),
    ]
    if federation.nodes:
        per_node = fmt.between([node.size for node in federation.nodes])
        facts.append(Fact("Per device", per_node, "samples"))
    what = "classes" if federation.kind == "classification" else "outputs"
    facts.append(Fact(what.capitalize(), fmt.number(federation.outputs), federation.kind))
    shape = " × ".join(map(str, federation.input_shape)) or "1"
    facts.append(Fact("Input", shape, "numbers per sample"))
    return facts


def _edge(edge: EdgeFacts) -> dict[str, str]:
    return {
        "name": edge.name,
        "nodes": fmt.number(edge.nodes),
        "state": edge.state,
        "seen": fmt.date(edge.last_seen or None),
        "rounds": fmt.number(edge.rounds),
        "down": fmt.size(edge.bytes_down),
        "up": fmt.size(edge.bytes_up),
        "seconds": fmt.duration(edge.seconds),
    }


def _node(node: NodeFacts) -> dict[str, str | int]:
    parts: Sequence[str] = [f"{name} ({count})" for name, count in node.classes.items()]
    if len(parts) > 12:
        parts = [*parts[:12], f"and {len(parts) - 12} more"]
    role = "source" if node.role == "source" else "new device"
    return {
        "name": node.name,
        "role": role,
        "support": node.support,
        "query": node.query,
        "classes": ", ".join(parts) or fmt.NO_VALUE,
    }
