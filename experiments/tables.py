"""The tables of the page of results, in Markdown, from the summary alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

from experiments.paper import GOALS, TABLE_1, TABLE_2, Published
from experiments.sequence_results import rows as sequence_rows
from experiments.statistics import Entry
from experiments.verdicts import BASELINES, DEFAULT, EQUAL, OURS, PARTITIONS, at, words

Summary = Mapping[str, Any]
Row = Sequence[str]

MISSING = "not run yet"
NAMES = {
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "fedavg": "FedAvg",
    "per-fedavg": "Per-FedAvg",
    "admm-fedmeta": "ADMM-FedMeta",
    "prior-model": "θ_p itself",
    "prior-model-default": "θ_p itself (default)",
    "admm-fedmeta-default": "ADMM-FedMeta (default)",
}
UPDATES = {"": 1, "-5": 5, "-10": 10}


def markdown(heads: Row, rows: Sequence[Row]) -> str:
    """A table; without rows, a line that says so.

    Example:
        >>> print(markdown(["a", "b"], [["1", "2"]]))
        | a | b |
        | --- | --- |
        | 1 | 2 |
    """
    if not rows:
        return f"*{MISSING}*"
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def named(name: str) -> str:
    """A data set or algorithm as people call it."""
    return NAMES.get(name, name)


def data_sets(summary: Summary) -> list[str]:
    """Those of the paper, or the others that a quick run took in their place."""
    found = {name for each in summary["table1"].values() for name in each}
    found |= {name for part in ("table2", "prior", "samples") for name in summary[part]}
    return sorted(found - set(GOALS)) or list(GOALS)


def shown(entry: Entry | None) -> str:
    """An entry for people."""
    return words(entry) or MISSING


def difference(entry: Entry | None, published: Published | None) -> str:
    """Ours minus theirs, and whether the intervals touch."""
    if entry is None or entry["mean"] is None or published is None:
        return "–"
    apart = entry["mean"] - published.mean
    touch = abs(apart) <= (entry["ci95"] or 0) + (published.width or 0)
    return f"{apart:+.1f}{'' if touch else ' (apart)'}"


def goals(summary: Summary) -> str:
    """What was to hold and whether it does."""
    rows = []
    for each in summary["goals"]:
        unknown = MISSING if each["measured"] is None else "not all run yet"
        verdict = {True: "yes", False: "**no**", None: unknown}[each["reached"]]
        rows.append([each["goal"], each["wanted"], each["measured"] or "–", verdict])
    return markdown(["goal", "wanted", "measured", "reached"], rows)


def table1(summary: Summary) -> str:
    """Table 1: a table per partition and protocol."""
    protocols = {"": "the paper's query sets", "-precise": "precise sets"}
    return "\n\n".join(
        f"### {partition}, {words}\n\n{_accuracies(summary, partition, suffix)}"
        for partition in PARTITIONS
        for suffix, words in protocols.items()
    )


def _accuracies(summary: Summary, partition: str, suffix: str) -> str:
    rows = []
    for data in data_sets(summary):
        found = at(summary, "table1", partition, data) or {}
        for algorithm in (*BASELINES, OURS):
            for ending, updates in UPDATES.items():
                mine = {
                    variant: at(found, algorithm, f"{variant}{ending}{suffix}")
                    for variant in ("paper", "tuned", "extras", DEFAULT)
                }
                if all(each is None for each in mine.values()):
                    continue
                published = TABLE_1.get(data, {}).get(algorithm, {}).get(f"paper{ending}")
                cells = [_printed(published), shown(mine["paper"])]
                cells += [difference(mine["paper"], published)]
                cells += ["–" if e is None else shown(e) for v, e in mine.items() if v != "paper"]
                rows.append([named(data), named(algorithm), str(updates), *cells])
    heads = ["data", "algorithm", "updates", "the paper", "ours, its settings", "difference"]
    return markdown([*heads, "tuned", "tuned + extras", "default"], rows)


def _printed(published: Published | None) -> str:
    if published is None:
        return "–"
    return f"{published.mean:.2f}" + (
        "" if published.width is None else f" ± {published.width:.2f}"
    )


def headline(summary: Summary) -> str:
    """For the front page: the paper and ours, then the default against its closest rivals."""
    rows = []
    for data in GOALS:
        mine = at(summary, "table1", "fixed-pairs", data, OURS) or {}
        published = TABLE_1[data][OURS]["paper"]
        cells = [_printed(published), shown(mine.get("paper")), shown(mine.get(DEFAULT))]
        rows.append([named(data), *cells, f"≥ {GOALS[data]}"])
    numbers = markdown(["fixed pairs, %", "the paper", "preset `paper`", "default", "goal"], rows)
    return f"{numbers}\n\n{_rivals_in_short(summary)}"


def _rivals_in_short(summary: Summary) -> str:
    rows = []
    for partition, by_data in summary["ahead"].items():
        for data in by_data:
            duels = [_duels(summary, partition, data, each) for each in ("rounds", "gradients")]
            cells = [
                f"{each.tally}; {each.least} to {each.closest}" if each else "–" for each in duels
            ]
            rows.append([f"{named(data)}, {partition.replace('-', ' ')}", *cells])
    heads = ["the default is ahead of; points to the closest"]
    return f"{markdown([*heads, 'equal rounds', 'equal gradients'], rows)}\n\n{_AT_AN_END}"


_MARK = "†"
_AT_AN_END = f"{_MARK} its step size is the smallest or largest that its search has tried"


class Duels(NamedTuple):
    """The default against all variants of the baselines at one place and budget, in words."""

    tally: str
    closest: str
    least: str


def _duels(summary: Summary, partition: str, data: str, budget: str) -> Duels | None:
    """How many it is ahead of, and by how much of the closest; None: there are none."""
    algorithms = at(summary, "ahead", partition, data, budget) or {}
    rivals = [
        (name, variant, row)
        for name in BASELINES
        for variant, row in algorithms.get(name, {}).items()
    ]
    if not rivals:
        return None
    won = sum(row["ahead"] for *_, row in rivals)
    tally = f"{won} of {len(rivals)}" if won == len(rivals) else f"**{won} of {len(rivals)}**"
    judged = [each for each in rivals if each[2]["mean"] is not None]
    if not judged:
        return Duels(tally, "–", "–")
    name, variant, row = min(judged, key=lambda each: float(each[2]["mean"]))
    found = at(summary, "tuning", partition, data, name, variant.removesuffix(EQUAL)) or {}
    ends = any(each.startswith("step_size") for each in found.get("at_an_end", ()))
    lost = row["diverged_other"]
    missing = f" ({lost} of its runs diverged)" if lost else ""
    return Duels(tally, f"{named(name)} {variant}{_MARK if ends else ''}{missing}", _points(row))


def ahead(summary: Summary) -> str:
    """The default against its closest rival, by partition, data and budget."""
    rows = []
    for partition, by_data in summary["ahead"].items():
        for data, budgets in by_data.items():
            for budget in budgets:
                found = _duels(summary, partition, data, budget)
                if found is not None:
                    cells = [found.tally, found.closest, found.least]
                    rows.append([partition, named(data), f"equal {budget}", *cells])
    heads = ["partition", "data", "budget", "ahead of", "closest rival", "default minus it, points"]
    return f"{markdown(heads, rows)}\n\n{_AT_AN_END}"


def _points(row: Entry | None) -> str:
    if row is None or row["mean"] is None:
        return "–"
    return f"{row['mean']:+.2f}" + ("" if row["ci95"] is None else f" ± {row['ci95']:.2f}")


def tuning(summary: Summary) -> str:
    """The points that were chosen on held-out source nodes."""
    rows = []
    for key, found in _leaves(summary["tuning"], "points"):
        cells = [_assigned(found["best"]), _held_out(found), f"{found['points']}"]
        rows.append([*map(named, key), *cells, ", ".join(found["at_an_end"]) or "–"])
    heads = ["partition", "data", "algorithm", "variant", "best point", "held out, %", "points"]
    return markdown([*heads, "at an end of what was tried"], rows)


def _held_out(found: Mapping[str, Any]) -> str:
    lost = f", {found['diverged']} of {found['n']} diverged" if found["diverged"] else ""
    return f"{found['held_out']}{lost}"


def _assigned(point: Mapping[str, Any] | None) -> str:
    if point is None:
        return "all diverged"
    return ", ".join(f"{name} = {value}" for name, value in point.items())


def table2(summary: Summary) -> str:
    """Table 2: both tasks, the drop from θ_p and the forgetting cost."""
    rows = []
    for data in data_sets(summary):
        found = summary["table2"].get(data, {})
        for algorithm, mine in found.items():
            published = TABLE_2.get(data, {}).get(algorithm)
            printed = (
                ("–", "–") if published is None else tuple(f"{each:.2f}" for each in published)
            )
            cells = [printed[0], shown(mine["prior"]), printed[1], shown(mine["new"])]
            cells += [_points(mine["drop"]), shown(mine["forgetting-cost"])]
            rows.append([named(data), named(algorithm), *cells])
    heads = ["data", "algorithm", "prior task: the paper", "ours", "new task: the paper", "ours"]
    return markdown([*heads, "drop from θ_p, points", "L_p"], rows)


def convergence(summary: Summary) -> str:
    """What it costs to reach given accuracies that somebody reaches."""
    places: dict[tuple[str, str], list[Any]] = {}
    for (partition, data, *who), found in _leaves(summary["convergence"], "to-reach"):
        if found["to-reach"]:
            places.setdefault((partition, data), []).append((who, found))
    parts = []
    for (partition, data), group in places.items():
        costs = [found["to-reach"] for _, found in group]
        some = [any(each["rounds"] for each in level) for level in zip(*costs, strict=True)]
        levels = [f"{each['accuracy']} %" for each in compress(costs[0], some)]
        rows = [
            [*map(named, who), *map(_spent, compress(cost, some)), str(found["diverged"])]
            for (who, found), cost in zip(group, costs, strict=True)
        ]
        table = markdown(["algorithm", "variant", *levels, "diverged"], rows)
        parts.append(f"### {partition}, {named(data)}\n\n{table}")
    return "\n\n".join(parts) or markdown([], [])


def _spent(cost: Mapping[str, Any]) -> str:
    """Rounds / gradient evaluations / MB per node."""
    if cost["rounds"] is None:
        return "–"
    return f"{cost['rounds']} / {cost['gradients']} / {cost['bytes'] / 1e6:.1f}"


def rho(summary: Summary) -> str:
    """How training ends for several ρ."""
    rows = [
        [*map(named, key[:-1]), key[-1].removeprefix("rho-"), shown(found["accuracy"])]
        for key, found in _leaves(summary["rho"], "accuracy")
    ]
    return markdown(["partition", "data", "ρ", "accuracy, precise sets, %"], rows)


def prior(summary: Summary) -> str:
    """What λ does."""
    rows = []
    for (data, strength), found in _leaves(summary["prior"], "new"):
        reached = [shown(found[name]) for name in ("new-precise", "prior-precise")]
        rows.append([named(data), named(strength.removeprefix("lambda-")), *reached])
    return markdown(
        ["data", "λ", "targets of all classes, %", "targets of the prior task, %"], rows
    )


def samples(summary: Summary) -> str:
    """Accuracy by support size, on precise sets."""
    rows = [
        [named(data), settings, size.split("-")[1], shown(found)]
        for (data, settings, size), found in _leaves(summary["samples"], "mean")
        if size.endswith("-precise")
    ]
    return markdown(["data", "settings", "support samples", "accuracy, precise sets, %"], rows)


def dissimilarity(summary: Summary) -> str:
    """How accuracy goes with dissimilarity."""
    rows = [
        [*map(named, key), shown(found["accuracy"]), shown(found["correlation"])]
        for key, found in _leaves(summary["dissimilarity"], "targets")
    ]
    heads = ["data", "prior", "accuracy, %", "its correlation with dissimilarity"]
    return markdown(heads, rows)


def ablation(summary: Summary) -> str:
    """What changes when one thing does."""
    rows = []
    for (data, start, factor), found in _leaves(summary["ablation"], "change"):
        published = TABLE_1.get(data, {}).get(start, {}).get("paper")
        cells = [_printed(published), shown(found["accuracy"]), shown(found["before-adapting"])]
        cells += [shown(found["precise"]), _changed(found["change"])]
        rows.append([named(data), named(start), factor_words(start, factor), *cells])
    heads = ["data", "from", "factor", "the paper", "accuracy, %", "before adapting, %"]
    return markdown([*heads, "precise sets, %", "change, points"], rows)


def held_out(summary: Summary) -> str:
    """What held-out source nodes reach with settings that the default might have."""
    parts = []
    for study, changes in summary["held-out"].items():
        places = dict.fromkeys(place for each in changes for place in each["places"])
        rows = []
        for place in places:
            partition, data = place.split("/")
            reached = [_gained(each["places"].get(place)) for each in changes]
            rows.append([partition, named(data), *reached])
        rows.append(["mean gain", "", *(_points(each["gain"]) for each in changes)])
        heads = ["partition", "data", *(each["change"] for each in changes)]
        parts.append(f"*{study}*\n\n{markdown(heads, rows)}")
    return "\n\n".join(parts) or f"*{MISSING}*"


def _gained(entry: Entry | None) -> str:
    """What is reached and, in points, gained."""
    if entry is None or entry["mean"] is None:
        return "–"
    return f"{entry['mean']:.2f}" + (f" ({_points(entry['gain'])})" if entry["gain"] else "")


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
    return "none" if change["mean"] == change["ci95"] == 0 else _points(change)


def robustness(summary: Summary) -> str:
    """All starts of ρ together, and the best of the fixed ones."""
    rows = []
    places = {key[:-1]: None for key, _ in _leaves(summary["robustness"], "mean")}
    for place in places:
        found = at(summary, "robustness", *place)
        auto = {name: row for name, row in found.items() if name.startswith("auto")}
        fixed = {name: row for name, row in found.items() if name.startswith("fixed")}
        means = [row["mean"] for row in auto.values() if row["mean"] is not None]
        span = f"{min(means):.2f} to {max(means):.2f}" if means else MISSING
        known = {name: row for name, row in fixed.items() if row["mean"] is not None}
        best = max(known, key=lambda name: float(known[name]["mean"]), default=None)
        cells = [span, _lost(auto), shown(known[best]) if best else MISSING]
        cells += [best.removeprefix("fixed-") if best else "–", _lost(fixed)]
        rows.append([*map(named, place), *cells])
    heads = ["partition", "data", "initialisation", "any start: means, %", "diverged"]
    return markdown([*heads, "best fixed ρ, %", "which", "diverged at fixed ρ"], rows)


def sequences(summary: Summary) -> str:
    """What every method keeps of earlier tasks."""
    rows = []
    for sequence, method, found in sequence_rows(summary):
        strength = "–" if found["strength"] is None else f"{found['strength']:g}"
        names = ("average", "forgetting", "new", "forward", "cost")
        cells = ["–" if found[name] is None else shown(found[name]) for name in names]
        rows.append([named(sequence), method, strength, *cells])
    heads = ["sequence", "method", "λ", "average, %", "forgetting, points", "new tasks, %"]
    return markdown([*heads, "forward transfer, points", "L_p"], rows)


def _lost(rows: Mapping[str, Entry]) -> str:
    lost, runs = (sum(row[name] for row in rows.values()) for name in ("diverged", "n"))
    return f"{lost} of {runs}" if rows else MISSING


def _leaves(table: Mapping[str, Any], mark: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All tables that have an entry of that name, with the path to each."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            if mark in value:
                yield (name,), value
            else:
                for key, found in _leaves(value, mark):
                    yield (name, *key), found


SECTIONS: dict[str, Callable[[Summary], str]] = {
    "goals": goals,
    "table1": table1,
    "ahead": ahead,
    "tuning": tuning,
    "table2": table2,
    "convergence": convergence,
    "rho": rho,
    "prior": prior,
    "samples": samples,
    "dissimilarity": dissimilarity,
    "ablation": ablation,
    "held-out": held_out,
    "robustness": robustness,
    "sequences": sequences,
}
"""What the page has between its markers, in this order."""
