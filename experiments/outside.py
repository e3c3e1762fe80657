"""Outside the paper: the default without options against tuned rivals, place by place.

A place is a data set and how it is dealt out. Accuracies are in percent, on precise sets where
there are any; values are judged by their mean squared error, and points are hundredths of the error
that each device's own mean leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from experiments.cell import Cell, Key
from experiments.declaration import Declaration, declared_cells
from experiments.experiment import OUTSIDE_PAGE, Experiment, Found, Goal, Summary
from experiments.names import DEFAULT
from experiments.statistics import Entry, Repeats, entry, rounded
from experiments.tables import interval_text, leaves, markdown, points, shown
from experiments.tuning import assigned
from fedmeta.evaluation.intervals import interval

RIVALS = {
    "per-fedavg": "Per-FedAvg",
    "fedavg": "FedAvg, 5 steps",
    "fedmeta": "FedMeta, the default's server step",
    "prototypes": "prototypes",
}
PLACES: dict[Key, str] = {
    ("digits", "fixed-pairs"): "digits, fixed pairs",
    ("digits", "random-pairs"): "digits, random pairs",
    ("digits", "1-shot"): "digits, 1 support sample per class",
    ("digits", "2-shot"): "digits, 2 per class",
    ("digits", "5-shot"): "digits, 5 per class",
    ("digits", "10-shot"): "digits, 10 per class",
    ("digits", "20-shot"): "digits, 20 per class",
    ("bands.csv", "own-nodes"): "wristbands of the tutorial",
    ("hapt_windows.npz", "own-nodes"): "motion",
    ("glyphs", "5-way-1-shot"): "glyphs, 5-way 1-shot",
    ("glyphs", "5-way-5-shot"): "glyphs, 5-way 5-shot",
    ("sinusoid", "own-nodes"): "sinusoid, 50 nodes",
    ("thermometers.csv", "own-nodes"): "thermometers",
}
ONE_SHOT, SINUSOID = ("glyphs", "5-way-1-shot"), ("sinusoid", "own-nodes")
_BEHIND, _AHEAD = 1.0, 15.0  # points: most behind any rival, least ahead of Per-FedAvg at one shot


def cells(declared: Declaration) -> list[Cell]:
    """What is declared; the small version has digits alone, since it takes no other data."""
    if not declared.quick:
        return declared_cells(declared)
    blocks = [each for each in declared.content["cells"] if "digits" in each["data"]]
    return declared_cells(replace(declared, content={**declared.content, "cells": blocks}))


def summarised(found: Found) -> Iterable[tuple[Key, Any]]:
    """By place: what the default and its rivals reach, and the default minus each of them."""
    for place in dict.fromkeys(key[:2] for key in found):
        mine = {key[2]: result["repeats"] for key, result in found.items() if key[:2] == place}
        values = any("own_mean" in each for repeats in mine.values() for each in repeats)
        about: dict[str, Any] = {
            "metric": "mse" if values else "percent",
            "reached": {name: entry(repeats, _reached) for name, repeats in mine.items()},
            "gradients": {name: _gradients(repeats) for name, repeats in mine.items()},
        }
        if (ours := mine.get(DEFAULT)) is not None:
            rivals = {name: repeats for name, repeats in mine.items() if name != DEFAULT}
            about |= {
                "before": entry(ours, _before),
                "decided": entry(ours, _decided),
                "own-mean": entry(ours, lambda each: each.get("own_mean")),
                "lead": {name: _lead(ours, theirs) for name, theirs in rivals.items()},
            }
            if values:
                about["lead-of-own-mean"] = _over_own_mean(ours)
        yield place, about


def _metric(repeat: Mapping[str, Any], steps: str) -> float | None:
    """Percent, on precise sets where there are any, or the error of values; None: diverged."""
    if repeat["diverged"]:
        return None
    value = (repeat.get("precise") or repeat["accuracy"])[steps]
    return value if value is None or "own_mean" in repeat else 100 * float(value)


def _reached(repeat: Mapping[str, Any]) -> float | None:
    return None if repeat["diverged"] else _metric(repeat, str(repeat["steps"]))


def _before(repeat: Mapping[str, Any]) -> float | None:
    return _metric(repeat, "0")


def _decided(repeat: Mapping[str, Any]) -> float | None:
    value = repeat.get("decided_precise", repeat.get("decided"))
    return value if value is None or "own_mean" in repeat else 100 * float(value)


def _gradients(repeats: Repeats) -> float | None:
    """Of a node in the whole training."""
    return next((each["gradients"] for each in repeats if not each["diverged"]), None)


def _lead(ours: Repeats, theirs: Repeats) -> Entry:
    """The default minus a rival in points, seed by seed: above 0 is better."""
    others = {each["seed"]: each for each in theirs}
    differences = []
    for each in ours:
        mine, rival = _reached(each), others.get(each["seed"])
        its = None if rival is None else _reached(rival)
        if mine is None or its is None:
            continue
        whole = each.get("own_mean")
        differences.append(mine - its if whole is None else 100 * (its - mine) / whole)
    return _interval(differences)


def _over_own_mean(ours: Repeats) -> Entry:
    """How much of the error of each device's own mean is left out, in percent of it."""
    pairs = [(_reached(each), each.get("own_mean")) for each in ours]
    return _interval([100 * (own - mine) / own for mine, own in pairs if own and mine is not None])


def _interval(values: list[float]) -> Entry:
    mean, width = interval(values) if values else (None, None)
    return {"mean": rounded(mean), "ci95": rounded(width), "n": len(values)}


def table(summary: Summary) -> str:
    """What the default and its rivals reach: a table of accuracies and one of errors."""
    found = _places(summary)
    parts = []
    for metric, title, last in (
        ("percent", "Accuracy of targets, %", None),
        ("mse", "Mean squared error of targets, in the square of the label's unit", "own-mean"),
    ):
        mine = {place: each for place, each in found.items() if each["metric"] == metric}
        rivals = [name for name in RIVALS if any(name in each["reached"] for each in mine.values())]
        rows = [
            [
                PLACES[place],
                shown(each.get("before")),
                shown(each["reached"].get(DEFAULT)),
                shown(each.get("decided")),
                *(shown(each["reached"].get(name)) for name in rivals),
                *([shown(each.get(last))] if last else []),
                _closest(each),
            ]
            for place, each in mine.items()
        ]
        heads = ["place", "default before adapting", "default", "default, decided"]
        heads += [*(RIVALS[name] for name in rivals), *(["each device's mean"] if last else [])]
        parts.append(f"*{title}*\n\n{markdown([*heads, 'to the closest rival, points'], rows)}")
    return "\n\n".join(parts)


def _places(summary: Summary) -> dict[Key, Any]:
    """In the order of `PLACES`."""
    found = dict(leaves(summary["outside"], "metric"))
    return {place: found[place] for place in PLACES if place in found}


def _closest(found: Mapping[str, Any]) -> str:
    """The rival that comes closest to the default, or is furthest ahead, and by how much."""
    leads = {n: e for n, e in found.get("lead", {}).items() if e["mean"] is not None}
    if not leads:
        return "–"
    name = min(leads, key=lambda each: float(leads[each]["mean"]))
    return f"{points(leads[name])} ({RIVALS[name]})"


def tuning_table(summary: Summary) -> str:
    """The points that held-out source nodes have chosen for rivals."""
    rows = []
    for place, title in PLACES.items():
        searches = summary["tuning"].get(place[0], {}).get(place[1], {})
        if searches:
            chosen = (searches.get(name) for name in RIVALS)
            rows.append([title, *("–" if e is None else assigned(e["best"]) for e in chosen)])
    return markdown(["place", *RIVALS.values()], rows)


def goals(summary: Summary) -> Iterator[Goal]:
    """Never far behind, far ahead where it was asked for, and worth a step."""
    found = _places(summary)
    for place, title in PLACES.items():
        leads = found.get(place, {}).get("lead", {})
        wanted = len(RIVALS) - (place[0] in ("sinusoid", "thermometers.csv"))
        known = {name: e["mean"] for name, e in leads.items() if e["mean"] is not None}
        least = min(known, key=lambda name: float(known[name]), default=None)
        text = f"{title}: at most {_BEHIND:g} point behind the best tuned rival"
        if least is None or len(leads) < wanted:
            yield text, f"≥ −{_BEHIND:g}", None, None
        else:
            measured = f"{points(leads[least])} ({RIVALS[least]})"
            yield text, f"≥ −{_BEHIND:g}", measured, known[least] >= -_BEHIND
    yield _one_shot(found.get(ONE_SHOT, {}))
    yield _halved(found.get(SINUSOID, {}))
    for place in (SINUSOID, ("thermometers.csv", "own-nodes")):
        yield _better_than_the_mean(PLACES[place], found.get(place, {}))


def _one_shot(found: Mapping[str, Any]) -> Goal:
    text = f"{PLACES[ONE_SHOT]}: ahead of tuned Per-FedAvg at equal gradients"
    lead, costs = found.get("lead", {}).get("per-fedavg"), found.get("gradients", {})
    if lead is None or lead["mean"] is None:
        return text, f"≥ {_AHEAD:g} points", None, None
    equal = costs.get(DEFAULT) == costs.get("per-fedavg")
    return text, f"≥ {_AHEAD:g} points", points(lead), equal and lead["mean"] >= _AHEAD


def _halved(found: Mapping[str, Any]) -> Goal:
    text = f"{PLACES[SINUSOID]}: one step at least halves the error"
    before, after = found.get("before"), found.get("reached", {}).get(DEFAULT)
    if before is None or after is None or before["mean"] is None or after["mean"] is None:
        return text, "≤ half", None, None
    wanted = before["mean"] / 2
    return text, f"≤ {wanted:.2f}", shown(after), after["mean"] <= wanted


def _better_than_the_mean(title: str, found: Mapping[str, Any]) -> Goal:
    text = f"{title}: no worse than each device's own mean"
    own, mine = found.get("own-mean"), found.get("reached", {}).get(DEFAULT)
    if own is None or mine is None or own["mean"] is None or mine["mean"] is None:
        return text, "≤ that", None, None
    wanted = interval_text(own["mean"], own["ci95"])
    return text, f"≤ {wanted}", shown(mine), mine["mean"] <= own["mean"]


EXPERIMENT = Experiment(
    summarised, table, further={"outside-tuning": tuning_table}, cells=cells, page=OUTSIDE_PAGE
)
