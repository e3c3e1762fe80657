"""Table 1: accuracy of target nodes after adaptation, and the default against all others.

What the paper published is in percent. Yue, Ren, Xin, Lin, Zhang: Inexact-ADMM Based Federated
Meta-Learning for Fast and Continual Edge Learning, MobiHoc 2021, table 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments import tuning
from experiments.cell import Key
from experiments.experiment import Experiment, Found, Goal, Summary
from experiments.figures import COLOURS, INK, legend, mark_mean, panels_by_partition
from experiments.names import BASELINES, DEFAULT, OURS, PARTITIONS, data_sets, named
from experiments.statistics import Entry, Repeats, accuracy, at, paired
from experiments.tables import interval_text, markdown, points, shown, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Published(NamedTuple):
    """Mean ± half width of the 95 % interval over 10 repeats; no width where none is printed."""

    mean: float
    width: float | None = None


TABLE_1: dict[str, dict[str, dict[str, Published]]] = {
    "fashion-mnist": {
        "fedavg": {
            "paper": Published(83.99, 3.90),
            "paper-5": Published(88.86, 1.57),
            "paper-10": Published(85.29, 1.93),
        },
        "per-fedavg": {
            "paper": Published(87.55, 2.42),
            "paper-5": Published(89.65, 3.26),
            "paper-10": Published(90.95, 2.71),
        },
        "admm-fedmeta": {"paper": Published(95.69, 0.37)},
    },
    "cifar10": {
        "fedavg": {
            "paper": Published(41.97, 1.33),
            "paper-5": Published(56.58, 2.27),
            "paper-10": Published(56.58, 1.15),
        },
        "per-fedavg": {
            "paper": Published(60.53, 1.12),
            "paper-5": Published(65.93, 9.97),
            "paper-10": Published(67.43, 0.99),
        },
        "admm-fedmeta": {"paper": Published(74.61, 2.19)},
    },
    "cifar100": {
        "fedavg": {
            "paper": Published(42.35, 1.55),
            "paper-5": Published(50.00, 1.09),
            "paper-10": Published(49.97, 1.04),
        },
        "per-fedavg": {
            "paper": Published(48.19, 2.18),
            "paper-5": Published(49.56, 1.09),
            "paper-10": Published(48.73, 1.23),
        },
        "admm-fedmeta": {"paper": Published(63.56, 0.87)},
    },
}
"""Data set, algorithm, variant (local updates): accuracy of the targets after one step."""


GOALS = {"fashion-mnist": 97.5, "cifar10": 80.0, "cifar100": 70.0}
"""Ours, not the paper's: what the default is to reach on fixed pairs."""

UPDATES = {"": 1, "-5": 5, "-10": 10}
RIVALS = 18
"""Variants to be ahead of: two baselines; paper, tuned, extras; 1, 5 and 10 local updates."""
EQUAL = "-equal"
"""Ends the names of variants that were given as many gradient evaluations as the default."""


def by_protocol(found: Found) -> Iterable[tuple[Key, Any]]:
    """One entry per cell, and one with "-precise" after its name."""
    for key, result in found.items():
        yield key, accuracy(result["repeats"])
        if (precise := accuracy(result["repeats"], "precise")) is not None:
            yield (*key[:-1], f"{key[-1]}-precise"), precise


def table(summary: Summary) -> str:
    """Table 1: a table per partition and protocol."""
    protocols = {"": "the paper's query sets", "-precise": "precise sets"}
    return "\n\n".join(
        f"### {partition}, {protocol}\n\n{_accuracies(summary, partition, suffix)}"
        for partition in PARTITIONS
        for suffix, protocol in protocols.items()
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
                cells = [printed(published), shown(mine["paper"])]
                cells += [difference(mine["paper"], published)]
                cells += ["–" if e is None else shown(e) for v, e in mine.items() if v != "paper"]
                rows.append([named(data), named(algorithm), str(updates), *cells])
    heads = ["data", "algorithm", "updates", "the paper", "ours, its settings", "difference"]
    return markdown([*heads, "tuned", "tuned + extras", "default"], rows)


def difference(entry: Entry | None, published: Published | None) -> str:
    """Ours minus theirs, and whether the intervals touch."""
    if entry is None or entry["mean"] is None or published is None:
        return "–"
    apart = entry["mean"] - published.mean
    touch = abs(apart) <= (entry["ci95"] or 0) + (published.width or 0)
    return f"{apart:+.1f}{'' if touch else ' (apart)'}"


def printed(published: Published | None) -> str:
    """A published number as the paper prints it."""
    return "–" if published is None else interval_text(*published)


def plot(figure: Figure, summary: Summary) -> None:
    """Means with intervals by data set and partition; the paper's as diamonds."""
    rows = [
        (algorithm, variant, ending)
        for algorithm in (*BASELINES, OURS)
        for variant in ("paper", "tuned", "extras")
        for ending in UPDATES
        if not (algorithm == OURS and variant == "extras")
    ] + [(OURS, DEFAULT, "")]
    places = panels_by_partition(figure, data_sets(summary), (4.0, 4.4))
    for each, partition, data, first in places:
        for place, (algorithm, variant, ending) in enumerate(reversed(rows)):
            mine = at(summary, "table1", partition, data, algorithm, f"{variant}{ending}-precise")
            ours = at(summary, "table1", partition, data, algorithm, f"{variant}{ending}")
            for entry, mark, label in (
                (mine, "o", "precise sets"),
                (ours, "|", "the paper's sets"),
            ):
                mark_mean(each, entry, place, COLOURS[algorithm], mark, label)
            published = TABLE_1.get(data, {}).get(algorithm, {}).get(f"{variant}{ending}")
            if published is not None and partition == "fixed-pairs":
                each.plot(published.mean, place, "D", color=INK, markersize=4, label="published")
        labels = [f"{named(a)}, {v}, {UPDATES[e]}" for a, v, e in reversed(rows)]
        each.set_yticks(range(len(rows)), labels if first else [""] * len(rows), fontsize=7.5)
        each.set_ylim(-0.7, len(rows) - 0.3)
        each.set_title(f"{named(data)}, {partition}")
        each.set_xlabel("accuracy, %")
    legend(figure, [each for each, *_ in places])


def ahead(repeats: Mapping[Key, Repeats]) -> dict[str, Any]:
    """The default against every other variant of table 1, by partition, data, budget, algorithm.

    Differences are paired by seed and taken on the precise sets. Ahead is what has its whole 95 %
    interval above 0 and no diverged run. Where fewer than two pairs finished because the other
    diverged there is no interval, and ahead is what is not behind.
    """
    table: dict[str, Any] = {}
    for (partition, data, algorithm, variant), theirs in repeats.items():
        ours = repeats.get((partition, data, OURS, DEFAULT))
        if ours is None or (algorithm, variant) == (OURS, DEFAULT):
            continue
        budget = "gradients" if variant.endswith(EQUAL) else "rounds"
        found = paired(ours, theirs, "precise")
        place = table.setdefault(partition, {}).setdefault(data, {}).setdefault(budget, {})
        place.setdefault(algorithm, {})[variant] = {**found, "ahead": _is_ahead(found)}
    return table


def _is_ahead(difference: Entry) -> bool:
    if difference["diverged"]:
        return False
    if difference["ci95"] is None:
        return bool(difference["diverged_other"]) and (difference["mean"] or 0.0) >= 0
    return bool(difference["mean"] - difference["ci95"] > 0)


def ahead_table(summary: Summary) -> str:
    """The default against its closest rival, by partition, data and budget."""
    rows = []
    for partition, by_data in summary["ahead"].items():
        for data, budgets in by_data.items():
            for budget in budgets:
                found = _compared(summary, partition, data, budget)
                if found is not None:
                    cells = [found.tally, found.closest, found.least]
                    rows.append([partition, named(data), f"equal {budget}", *cells])
    heads = ["partition", "data", "budget", "ahead of", "closest rival", "default minus it, points"]
    return f"{markdown(heads, rows)}\n\n{_AT_AN_END}"


_MARK = "†"
_AT_AN_END = f"{_MARK} its step size is the smallest or largest that its search has tried"


class Comparison(NamedTuple):
    """The default against all variants of the baselines at one place and budget, in words."""

    tally: str
    closest: str
    least: str


def _compared(summary: Summary, partition: str, data: str, budget: str) -> Comparison | None:
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
        return Comparison(tally, "–", "–")
    name, variant, row = min(judged, key=lambda each: float(each[2]["mean"]))
    found = at(summary, "tuning", partition, data, name, variant.removesuffix(EQUAL)) or {}
    ends = any(each.startswith("step_size") for each in found.get("at_an_end", ()))
    lost = row["diverged_other"]
    missing = f" ({lost} of its runs diverged)" if lost else ""
    return Comparison(
        tally, f"{named(name)} {variant}{_MARK if ends else ''}{missing}", points(row)
    )


def headline(summary: Summary) -> str:
    """For the front page: the paper and ours, then the default against its closest rivals."""
    rows = []
    for data in GOALS:
        mine = at(summary, "table1", "fixed-pairs", data, OURS) or {}
        published = TABLE_1[data][OURS]["paper"]
        cells = [printed(published), shown(mine.get("paper")), shown(mine.get(DEFAULT))]
        rows.append([named(data), *cells, f"≥ {GOALS[data]}"])
    numbers = markdown(["fixed pairs, %", "the paper", "preset `paper`", "default", "goal"], rows)
    return f"{numbers}\n\n{_closest(summary)}"


def _closest(summary: Summary) -> str:
    rows = []
    for partition, by_data in summary["ahead"].items():
        for data in by_data:
            found = [_compared(summary, partition, data, each) for each in ("rounds", "gradients")]
            cells = [
                f"{each.tally}; {each.least} to {each.closest}" if each else "–" for each in found
            ]
            rows.append([f"{named(data)}, {partition.replace('-', ' ')}", *cells])
    heads = ["the default is ahead of; points to the closest"]
    return f"{markdown([*heads, 'equal rounds', 'equal gradients'], rows)}\n\n{_AT_AN_END}"


def goals(summary: Summary) -> Iterator[Goal]:
    """The paper's numbers, ours, and the default ahead of all baselines."""
    yield from _paper_numbers(summary)
    yield from _default_numbers(summary)
    yield from _ahead_of_all(summary)


def _paper_numbers(summary: Summary) -> Iterator[Goal]:
    for data, algorithms in TABLE_1.items():
        published = algorithms[OURS]["paper"]
        mine = at(summary, "table1", "fixed-pairs", data, OURS, "paper")
        near = None
        if mine is not None:
            room = (mine["ci95"] or 0.0) + (published.width or 0.0)
            near = abs((mine["mean"] or 0.0) - published.mean) <= room
        text = f"preset paper on {data}, fixed pairs: intervals overlap"
        yield text, printed(published), words(mine), near


def _default_numbers(summary: Summary) -> Iterator[Goal]:
    for data, goal in GOALS.items():
        mine = at(summary, "table1", "fixed-pairs", data, OURS, DEFAULT)
        reached = None if mine is None else (mine["mean"] or 0.0) >= goal
        yield f"default reaches its mark on {data}, fixed pairs", f"≥ {goal}", words(mine), reached


def _ahead_of_all(summary: Summary) -> Iterator[Goal]:
    for partition in PARTITIONS:
        for data in GOALS:
            for budget in ("rounds", "gradients"):
                place = at(summary, "ahead", partition, data, budget) or {}
                rows = [row for name in BASELINES for row in place.get(name, {}).values()]
                won = sum(row["ahead"] for row in rows)
                verdict = False if won < len(rows) else (True if won == RIVALS else None)
                text = f"default ahead on {data}, {partition}, equal {budget}"
                measured = f"of {won} of {len(rows)}" if rows else None
                yield text, f"of all {RIVALS} baseline variants", measured, verdict


EXPERIMENT = Experiment(by_protocol, table, plot, {"ahead": ahead_table, "tuning": tuning.table})
