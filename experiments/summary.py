"""summary.json: every cell for machines, computed from the result files.

Only results that were obtained as their cells are declared now are in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments import EXPERIMENTS
from experiments.cell import Key
from experiments.declaration import TUNING, cells, declaration
from experiments.held_out import FOLDER as HELD_OUT
from experiments.held_out import studies
from experiments.results import SUMMARY, Result, Results
from experiments.sequence_results import measures
from experiments.statistics import Repeats, accuracy, entry, mean_curve, paired, rounded
from experiments.tuned import tried_along
from experiments.verdicts import ahead, goals
from fedmeta.core.storage import write_json

Summary = dict[str, Any]
Found = Mapping[Key, Result]


def write_summary(results: Results, *, quick: bool = False) -> Summary:
    """Compute the summary of a folder of results and keep it there."""
    summary = summary_of(results, quick=quick)
    results.folder.mkdir(parents=True, exist_ok=True)
    write_json(results.folder / SUMMARY, summary)
    return summary


def summary_of(results: Results, *, quick: bool = False) -> Summary:
    """All numbers of a folder of results: by experiment and key, then verdicts.

    Accuracies are in percent.
    """
    found = current_results(results, quick=quick)
    summary: Summary = {"unit": "percent"}
    for name in (TUNING, *EXPERIMENTS):
        mine = {key[1:]: result for key, result in found.items() if key[0] == name}
        summary[name] = _nested(_READERS[name](mine))
    repeats = {key[1:]: result["repeats"] for key, result in found.items() if key[0] == "table1"}
    summary["ahead"] = ahead(repeats)
    summary["goals"] = goals(summary)
    summary[HELD_OUT] = studies(results.folder)
    return summary


def current_results(results: Results, *, quick: bool = False) -> dict[Key, Result]:
    """The results of all cells that are declared now and have one.

    A search that is outdated takes with it what rests on it, were its point the same as ever.
    """
    found: dict[Key, Result] = {}
    for cell in (cell for name in EXPERIMENTS for cell in cells(name, quick=quick)):
        rests = cell.tuned is None or cell.tuned in found  # tuning cells come first
        result = results.current(cell) if rests else None
        if result is not None:
            found[cell.key] = result
    return found


def _nested(entries: Iterable[tuple[Key, Any]]) -> dict[str, Any]:
    """Keys as tables within tables, in the order they come."""
    tables: dict[str, Any] = {}
    for key, value in entries:
        place = tables
        for part in key[:-1]:
            place = place.setdefault(part, {})
        place[key[-1]] = value
    return tables


def _tuning(found: Found) -> Iterable[tuple[Key, Any]]:
    for key, result in found.items():
        judged = [trial for trial in result["trials"] if trial["point"] == result["best"]]
        best: dict[str, Any] = judged[0] if judged else {"mean": None, "values": []}
        seeds: list[int] = result["seeds"]
        finished: list[float] | list[int] = best.get("values", seeds)  # sequences have none
        yield (
            key,
            {
                "best": result["best"],
                "held_out": None if best["mean"] is None else rounded(100 * best["mean"]),
                "points": len(result["trials"]),
                "at_an_end": _at_an_end(result["trials"], result["best"]),
                "n": len(seeds),
                "diverged": len(seeds) - len(finished),
            },
        )


def _at_an_end(trials: Sequence[dict[str, Any]], best: dict[str, Any] | None) -> list[str]:
    """The settings of which the best point has the smallest or the largest value that was tried."""
    ends = []
    for name, value in (best or {}).items():
        tried = set(tried_along(name, best or {}, trials))
        if len(tried) > 1 and value in (min(tried), max(tried)):
            ends.append(f"{name} {'smallest' if value == min(tried) else 'largest'}")
    return ends


def _by_protocol(found: Found) -> Iterable[tuple[Key, Any]]:
    """One entry per cell, and one with "-precise" after its name."""
    for key, result in found.items():
        yield key, accuracy(result["repeats"])
        if (precise := accuracy(result["repeats"], "precise")) is not None:
            yield (*key[:-1], f"{key[-1]}-precise"), precise


def _table2(found: Found) -> Iterable[tuple[Key, Any]]:
    for (data, algorithm), result in found.items():
        repeats = result["repeats"]
        yield (data, algorithm), _on_both(repeats, _theta_p(found, data, algorithm))


def _theta_p(found: Found, data: str, algorithm: str) -> Repeats:
    """The repeats of the θ_p that an algorithm started from."""
    ours = "-default" if algorithm.endswith("-default") else ""
    start = found.get((data, f"prior-model{ours}"))
    return start["repeats"] if start else []


def _on_both(repeats: Repeats, theta_p: Repeats) -> dict[str, Any]:
    """Both tasks, what was lost on the prior one (points), and the forgetting cost L_p."""
    return {
        "prior": accuracy(repeats, "prior"),
        "new": accuracy(repeats),
        "prior-precise": accuracy(repeats, "prior_precise"),
        "new-precise": accuracy(repeats, "precise"),
        "drop": paired(theta_p, repeats, "prior"),
        "drop-precise": paired(theta_p, repeats, "prior_precise"),
        "forgetting-cost": _loss_on_prior(repeats, "0"),
        "forgetting-cost-adapted": _loss_on_prior(repeats, "1"),
    }


def _loss_on_prior(repeats: Repeats, steps: str) -> Any:
    return entry(repeats, lambda each: each.get("prior_loss", {}).get(steps))


def _prior(found: Found) -> Iterable[tuple[Key, Any]]:
    for (data, strength), result in found.items():
        yield (data, strength), _on_both(result["repeats"], _theta_p(found, data, strength))


def _convergence(found: Found) -> Iterable[tuple[Key, Any]]:
    thresholds = declaration("convergence").content["thresholds"]
    for key, result in found.items():
        repeats = result["repeats"]
        done = [each for each in repeats if not each["diverged"]]
        cost = {
            name: float(np.mean([each[name] / each["rounds"] for each in done])) if done else None
            for name in ("gradients", "bytes")
        }
        reached = mean_curve(repeats, "reached_precise")
        yield (
            key,
            {
                "loss": mean_curve(repeats, "loss"),
                "reached": mean_curve(repeats, "reached"),
                "reached-precise": reached,
                "per-round": cost,
                "to-reach": [_to_reach(reached, cost, each) for each in thresholds.get(key[1], ())],
                "diverged": len(repeats) - len(done),
            },
        )


def _to_reach(
    curve: list[list[float]], cost: Mapping[str, float | None], threshold: float
) -> dict[str, Any]:
    """Rounds, gradient evaluations and bytes at which the mean accuracy first is that high."""
    hits = (number for number, mean in zip(*curve, strict=True) if 100 * mean >= threshold)
    rounds = next(hits, None)
    costs = {
        name: None if rounds is None or each is None else round(rounds * each)
        for name, each in cost.items()
    }
    return {"accuracy": threshold, "rounds": rounds, **costs}


def _rho(found: Found) -> Iterable[tuple[Key, Any]]:
    for key, result in found.items():
        repeats = result["repeats"]
        yield key, {"loss": mean_curve(repeats, "loss"), "accuracy": accuracy(repeats, "precise")}


def _dissimilarity(found: Found) -> Iterable[tuple[Key, Any]]:
    for key, result in found.items():
        points = [pair for each in result["repeats"] for pair in each.get("targets", [])]
        yield (
            key,
            {
                "targets": [[float(f"{a:.4g}"), rounded(100 * b)] for a, b in points],
                "correlation": entry(result["repeats"], _correlation),
                "accuracy": accuracy(result["repeats"], "precise"),
            },
        )


def _correlation(repeat: dict[str, Any]) -> float | None:
    """Of dissimilarity and accuracy among the targets of one repeat; None if either is constant."""
    values = np.array(repeat.get("targets", []), dtype=float).reshape(-1, 2)
    varied = len(values) > 2 and bool((values.std(axis=0) > 0).all())
    return float(np.corrcoef(values.T)[0, 1]) if varied else None


def _ablation(found: Found) -> Iterable[tuple[Key, Any]]:
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


def _robustness(found: Found) -> Iterable[tuple[Key, Any]]:
    """Here a run counts as diverged, too, if its model has not half the loss that it began with."""
    for key, result in found.items():
        repeats = result["repeats"]
        if (mean := accuracy(repeats, "precise")) is not None:
            yield key, {**mean, "diverged": sum(not _fell(each) for each in repeats)}


def _fell(repeat: Mapping[str, Any]) -> bool:
    if repeat["diverged"]:
        return False
    _, losses = repeat["loss"]
    final = repeat["final_loss"]
    return final is not None and bool(final < losses[0] / 2)


def _sequences(found: Found) -> Iterable[tuple[Key, Any]]:
    for key, result in found.items():
        point = result["point"] or {}
        yield key, measures(result["repeats"], point.get("strength"))


_READERS: dict[str, Callable[[Found], Iterable[tuple[Key, Any]]]] = {
    TUNING: _tuning,
    "table1": _by_protocol,
    "table2": _table2,
    "convergence": _convergence,
    "rho": _rho,
    "prior": _prior,
    "samples": _by_protocol,
    "dissimilarity": _dissimilarity,
    "ablation": _ablation,
    "robustness": _robustness,
    "sequences": _sequences,
}
