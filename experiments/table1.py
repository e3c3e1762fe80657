"""Table 1: accuracy of target nodes after adaptation. `ahead` has the default against all rivals.

What the paper published is in percent. Yue, Ren, Xin, Lin, Zhang: Inexact-ADMM Based Federated
Meta-Learning for Fast and Continual Edge Learning, MobiHoc 2021, table 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments import ahead, tuning
from experiments.ahead import EQUAL
from experiments.cell import Key
from experiments.experiment import TABLE1_PAGE, Experiment, Found, Goal, Summary
from experiments.figures import COLOURS, INK, legend, mark_mean, panels_by_partition
from experiments.names import BASELINES, DEFAULT, MATCHED, OURS, PARTITIONS, data_sets, named
from experiments.statistics import Entry, accuracy, at
from experiments.tables import interval_text, markdown, shown, words

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


GOALS = {
    "fashion-mnist": {"fixed-pairs": 98.8, "random-pairs": 95.5},
    "cifar10": {"fixed-pairs": 84.0, "random-pairs": 83.5},
    "cifar100": {"fixed-pairs": 86.0, "random-pairs": 83.5},
}
"""Ours, not the paper's: what the default is to reach on precise sets."""

UPDATES = {"": 1, "-5": 5, "-10": 10}
_GREY = "#6b7280"  # of those that the paper does not have


def by_protocol(found: Found) -> Iterable[tuple[Key, Any]]:
    """One entry per cell, and one with "-precise" after its name."""
    for key, result in found.items():
        yield key, accuracy(result["repeats"])
        if (precise := accuracy(result["repeats"], "precise")) is not None:
            yield (*key[:-1], f"{key[-1]}-precise"), precise


def table(summary: Summary) -> str:
    """Table 1: a table per partition and protocol, and one per partition of the other rivals."""
    protocols = {"": "the paper's query sets", "-precise": "precise sets"}
    parts = [
        f"### {partition}, {protocol}\n\n{_accuracies(summary, partition, suffix)}"
        for partition in PARTITIONS
        for suffix, protocol in protocols.items()
    ]
    parts += [
        f"### {partition}, rivals with everything the default has, precise sets\n\n"
        f"{_matched(summary, partition)}"
        for partition in PARTITIONS
    ]
    return "\n\n".join(parts)


def _accuracies(summary: Summary, partition: str, suffix: str) -> str:
    rows = []
    for data in data_sets(summary):
        found = at(summary, "table1", partition, data) or {}
        for algorithm in (*BASELINES, OURS):
            for ending, updates in UPDATES.items():
                mine = {
                    variant: at(found, algorithm, f"{variant}{ending}{suffix}")
                    for variant in ("paper", "tuned", DEFAULT)
                }
                if all(each is None for each in mine.values()):
                    continue
                published = TABLE_1.get(data, {}).get(algorithm, {}).get(f"paper{ending}")
                cells = [printed(published), shown(mine["paper"])]
                cells += [difference(mine["paper"], published)]
                cells += [words(each) or "–" for name, each in mine.items() if name != "paper"]
                rows.append([named(data), named(algorithm), str(updates), *cells])
    heads = ["data", "algorithm", "updates", "the paper", "ours, its settings", "difference"]
    return markdown([*heads, "tuned", "default"], rows)


def _matched(summary: Summary, partition: str) -> str:
    """A row per rival; for each data set after as many rounds, and after as many gradients."""
    names = data_sets(summary)
    places = [at(summary, "table1", partition, data) or {} for data in names]
    found = {name: None for place in places for name in place if MATCHED in place[name]}
    rows = []
    for name, variant in [(OURS, DEFAULT), *((each, MATCHED) for each in found)]:
        cells = [
            words(at(place, name, f"{variant}{ending}-precise")) or "–"
            for place in places
            for ending in ("", EQUAL)
        ]
        rows.append([named(f"{name}-{variant}" if name == OURS else name), *cells])
    heads = [f"{named(data)}, equal {each}" for data in names for each in ("rounds", "gradients")]
    return markdown(["algorithm, step at the platform", *heads], rows if found else [])


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
    rows = _rows(summary)
    places = panels_by_partition(figure, data_sets(summary), (4.0, 0.6 + 0.2 * len(rows)))
    for each, partition, data, first in places:
        for place, (algorithm, variant) in enumerate(reversed(rows)):
            mine = at(summary, "table1", partition, data, algorithm, f"{variant}-precise")
            ours = at(summary, "table1", partition, data, algorithm, variant)
            colour = COLOURS.get(algorithm, _GREY)
            for entry, mark, label in (
                (mine, "o", "precise sets"),
                (ours, "|", "the paper's sets"),
            ):
                mark_mean(each, entry, place, colour, mark, label)
            published = TABLE_1.get(data, {}).get(algorithm, {}).get(variant)
            if published is not None and partition == "fixed-pairs":
                each.plot(published.mean, place, "D", color=INK, markersize=4, label="published")
        labels = [ahead.words_for(algorithm, variant) for algorithm, variant in reversed(rows)]
        each.set_yticks(range(len(rows)), labels if first else [""] * len(rows), fontsize=7.5)
        each.set_ylim(-0.7, len(rows) - 0.3)
        each.set_title(f"{named(data)}, {partition}")
        each.set_xlabel("accuracy, %")
    legend(figure, [each for each, *_ in places])


def _rows(summary: Summary) -> list[tuple[str, str]]:
    """Algorithms and variants at equal rounds that some place has, the paper's three first."""
    found: dict[tuple[str, str], None] = {}
    for by_data in summary["table1"].values():
        for algorithms in by_data.values():
            for algorithm, variants in algorithms.items():
                names = [name for name in variants if not name.endswith("-precise")]
                found |= {(algorithm, name): None for name in names if not name.endswith(EQUAL)}
    known = (*BASELINES, OURS)
    return sorted(found, key=lambda row: known.index(row[0]) if row[0] in known else len(known))


def headline(summary: Summary) -> str:
    """For the front page: the paper and ours, then the default against its closest rivals."""
    rows = []
    for partition in PARTITIONS:
        for data, marks in GOALS.items():
            mine = at(summary, "table1", partition, data, OURS) or {}
            published = TABLE_1[data][OURS]["paper"] if partition == "fixed-pairs" else None
            cells = [printed(published), *(words(mine.get(each)) or "–" for each in _PROTOCOLS)]
            place = f"{named(data)}, {partition.replace('-', ' ')}"
            rows.append([place, *cells, f"≥ {marks[partition]}"])
    heads = ["accuracy, %", "the paper", "preset `paper`", "default", "default, precise sets"]
    return f"{markdown([*heads, 'goal'], rows)}\n\n{ahead.closest(summary)}"


_PROTOCOLS = ("paper", DEFAULT, f"{DEFAULT}-precise")


def goals(summary: Summary) -> Iterator[Goal]:
    """The paper's numbers, ours, and the default ahead of all rivals."""
    yield from _paper_numbers(summary)
    yield from _default_numbers(summary)
    yield from ahead.goals(summary)


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
    for data, marks in GOALS.items():
        for partition, goal in marks.items():
            mine = at(summary, "table1", partition, data, OURS, f"{DEFAULT}-precise")
            reached = None if mine is None else (mine["mean"] or 0.0) >= goal
            text = f"default reaches its mark on {data}, {partition}, precise sets"
            yield text, f"≥ {goal}", words(mine), reached


_FURTHER = {"ahead": ahead.table, "tuning": tuning.table}
EXPERIMENT = Experiment(by_protocol, table, plot, _FURTHER, page=TABLE1_PAGE)
