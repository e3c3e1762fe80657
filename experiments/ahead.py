"""The default against every rival of table 1, at equal rounds and at equal gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from experiments.cell import Key
from experiments.declaration import declaration, declared_cells
from experiments.experiment import Goal, Summary
from experiments.names import DATA_SETS, DEFAULT, MATCHED, OURS, PARTITIONS, named
from experiments.statistics import Entry, Repeats, at, paired
from experiments.tables import markdown, points

EQUAL = "-equal"
"""Ends the names of variants that were given as many gradient evaluations as the default."""
BUDGETS = ("rounds", "gradients")

Standing = Literal["behind", "level", "ahead"]


def compared(repeats: Mapping[Key, Repeats]) -> dict[str, Any]:
    """The default minus every other variant of table 1, by partition, data, budget, algorithm.

    Differences are paired by seed and taken on the precise sets. A rival whose whole 95 % interval
    lies on one side of 0 is behind or ahead, and level otherwise. Where fewer than two pairs
    finished because the rival diverged there is no interval, and it is behind if it is not ahead.
    A default with a diverged run is ahead of nobody.
    """
    table: dict[str, Any] = {}
    for (partition, data, algorithm, variant), theirs in repeats.items():
        ours = repeats.get((partition, data, OURS, DEFAULT))
        if ours is None or (algorithm, variant) == (OURS, DEFAULT):
            continue
        found = paired(ours, theirs, "precise")
        place = table.setdefault(partition, {}).setdefault(data, {})
        mine = place.setdefault(_budget(variant), {}).setdefault(algorithm, {})
        mine[variant] = {**found, "rival": _standing(found)}
    return table


def _budget(variant: str) -> str:
    return "gradients" if variant.endswith(EQUAL) else "rounds"


def _standing(difference: Entry) -> Standing:
    mean, width = difference["mean"], difference["ci95"]
    if width is None:
        lost = not difference["diverged"] and difference["diverged_other"] and (mean or 0.0) >= 0
        return "behind" if lost else "level"
    if mean + width < 0:
        return "ahead"
    return "behind" if mean - width > 0 and not difference["diverged"] else "level"


@lru_cache(maxsize=1)
def declared_rivals() -> dict[str, int]:
    """How many rivals table 1 declares for a place, by budget: all but our own algorithm's rows."""
    counts = dict.fromkeys(BUDGETS, 0)
    for cell in declared_cells(declaration("table1")):
        if cell.key[:3] == ("table1", PARTITIONS[0], DATA_SETS[0]) and cell.key[3] != OURS:
            counts[_budget(cell.key[-1])] += 1
    return counts


class Rival(NamedTuple):
    """A variant of another algorithm, and the default minus it."""

    algorithm: str
    variant: str
    row: Entry

    @property
    def name(self) -> str:
        """For people."""
        lost = self.row["diverged_other"]
        missing = f" ({lost} of its runs diverged)" if lost else ""
        return f"{words_for(self.algorithm, self.variant)}{missing}"


def words_for(algorithm: str, variant: str) -> str:
    """An algorithm and variant for people; what has all the default has is named by itself.

    Example:
        >>> words_for("fedavg", "tuned-5-equal"), words_for("fedmeta-adam", "matched-equal")
        ('FedAvg tuned-5', 'FedMeta, Adam')
    """
    variant = variant.removesuffix(EQUAL)
    return named(algorithm) if variant == MATCHED else f"{named(algorithm)} {variant}"


class Comparison(NamedTuple):
    """The default against all rivals at one place and budget."""

    rivals: list[Rival]
    at_an_end: frozenset[tuple[str, str]]  # whose step size is, of those that were searched for

    def standing(self, *which: Standing) -> list[Rival]:
        """The rivals that stand so, the strongest first."""
        found = [each for each in self.rivals if each.row["rival"] in which]
        return sorted(found, key=lambda each: float(each.row["mean"] or 0.0))

    @property
    def tally(self) -> str:
        """How many the default is ahead of; bold if not of all."""
        won = f"{len(self.standing('behind'))} of {len(self.rivals)}"
        return won if len(self.standing("behind")) == len(self.rivals) else f"**{won}**"

    @property
    def closest(self) -> Rival | None:
        """The rival with the smallest mean difference; None if there is none."""
        judged = [each for each in self.rivals if each.row["mean"] is not None]
        return min(judged, key=lambda each: float(each.row["mean"]), default=None)

    def marked(self, rival: Rival) -> str:
        """The rival for people, with a mark if its step size lies at an end."""
        ends = (rival.algorithm, rival.variant.removesuffix(EQUAL)) in self.at_an_end
        return f"{rival.name}{_MARK if ends else ''}"

    def not_behind(self) -> str:
        """Who is level and who is ahead, by name."""
        parts = [
            f"{word}: {'; '.join(map(self.marked, found))}"
            for word in ("level", "ahead")
            if (found := self.standing(word))
        ]
        return ". ".join(parts)


_MARK = "†"
_AT_AN_END = f"{_MARK} its step size is the smallest or largest that its search has tried"


def comparison(summary: Summary, partition: str, data: str, budget: str) -> Comparison | None:
    """The default against all rivals there; None: there are no numbers."""
    algorithms = at(summary, "ahead", partition, data, budget) or {}
    rivals = [
        Rival(name, variant, row)
        for name, variants in algorithms.items()
        if name != OURS
        for variant, row in variants.items()
    ]
    if not rivals:
        return None
    searches = at(summary, "tuning", partition, data) or {}
    ends = frozenset(
        (name, variant)
        for name, variants in searches.items()
        for variant, found in variants.items()
        if not all(each.startswith("inner.") for each in found["at_an_end"])
    )
    return Comparison(rivals, ends)


def table(summary: Summary) -> str:
    """The default against its rivals, by partition, data and budget."""
    rows = []
    for partition, by_data in summary["ahead"].items():
        for data, budgets in by_data.items():
            for budget in budgets:
                found = comparison(summary, partition, data, budget)
                if found is not None:
                    cells = [found.tally, *_nearest(found), found.not_behind() or "–"]
                    rows.append([partition, named(data), f"equal {budget}", *cells])
    heads = ["partition", "data", "budget", "ahead of", "closest rival", "default minus it, points"]
    return f"{markdown([*heads, 'level or ahead of the default'], rows)}\n\n{_AT_AN_END}"


def _nearest(found: Comparison) -> tuple[str, str]:
    closest = found.closest
    return ("–", "–") if closest is None else (found.marked(closest), points(closest.row))


def closest(summary: Summary) -> str:
    """For the front page: how many the default is ahead of, the closest, and who is not behind."""
    rows = []
    for partition, by_data in summary["ahead"].items():
        for data in by_data:
            cells = [_in_a_cell(comparison(summary, partition, data, each)) for each in BUDGETS]
            rows.append([f"{named(data)}, {partition.replace('-', ' ')}", *cells])
    heads = ["the default is ahead of; points to the closest", "equal rounds", "equal gradients"]
    return f"{markdown(heads, rows)}\n\n{_AT_AN_END}"


def _in_a_cell(found: Comparison | None) -> str:
    if found is None:
        return "–"
    name, least = _nearest(found)
    text = f"{found.tally}; {least} to {name}"
    others = found.not_behind()
    return f"{text}. {others[:1].upper()}{others[1:]}" if others else text


def goals(summary: Summary) -> Iterator[Goal]:
    """Ahead of every rival; those that are level or ahead are named."""
    for partition in PARTITIONS:
        for data in DATA_SETS:
            for budget in BUDGETS:
                found, wanted = (
                    comparison(summary, partition, data, budget),
                    declared_rivals()[budget],
                )
                text = f"default ahead on {data}, {partition}, equal {budget}"
                if found is None:
                    yield text, f"of all {wanted} rivals", None, None
                    continue
                won = len(found.standing("behind"))
                complete = True if won == wanted else None
                measured = f"of {won} of {len(found.rivals)}"
                if others := found.not_behind():
                    measured += f"; {others}"
                verdict = False if won < len(found.rivals) else complete
                yield text, f"of all {wanted} rivals", measured, verdict
