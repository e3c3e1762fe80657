"""A table's check-up: what its columns hold, what training would make of them, what to change."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedmeta.core.errors import DataError
from fedmeta.data.column_roles import (
    WORDS,
    differs_in_every_row,
    owner_count,
    renames,
    why_no_feature,
)
from fedmeta.data.columns import Column, Table
from fedmeta.data.federation import Federation
from fedmeta.data.label_columns import like_values
from fedmeta.data.loading import load
from fedmeta.data.readers.csv_file import dialect_of
from fedmeta.data.readers.table import open_table
from fedmeta.data.settings import DataSettings

_IMBALANCED = 0.8  # share of the most frequent class from which on accuracy says little


@dataclass(frozen=True)
class ColumnFacts:
    """One column.

    Args:
        name: of the column.
        kind: what it holds.
        role: label, node, time, feature, dropped, or why it is left out.
        values: its range, or its most frequent texts, in words.
        different: how many different values it has.
        gaps: how many are missing.
        remark: what is odd about it.
    """

    name: str
    kind: str
    role: str
    values: str
    different: int
    gaps: int
    remark: str = ""


@dataclass(eq=False)
class Checkup:
    """What was found in a table.

    Args:
        file: the file.
        rows: how many there are.
        columns: one by one.
        classes: samples of every class, most frequent first; empty for regression.
        federation: as training would have it; None where it would refuse the table.
        problem: why it would, in one message.
        change: what to do, in order of weight; first the problem, if there is one.
        written: how a text file is written, where that is not as usual, for people.
    """

    file: str
    rows: int
    columns: list[ColumnFacts] = field(default_factory=list)
    classes: dict[str, int] = field(default_factory=dict)
    federation: Federation | None = None
    problem: DataError | None = None
    change: list[str] = field(default_factory=list)
    written: str = ""

    def facts(self) -> dict[str, Any]:
        """As plain values that JSON can hold."""
        return {
            "file": self.file,
            "rows": self.rows,
            "columns": [vars(each) for each in self.columns],
            "classes": self.classes,
            "problem": None if self.problem is None else self.problem.for_shell,
            "change": self.change,
        }


def check_up(settings: DataSettings, seed: int = 0) -> Checkup:
    """Look at a table as training would, without stopping at what is wrong with it.

    Args:
        settings: `name` is the path of a table.
        seed: of the nodes that are drawn.
    """
    settings, path = settings.resolved(), Path(settings.name).expanduser()
    label = settings.label or "label"
    texts = [settings.node, settings.text]
    texts += [label] if settings.task == "classification" else []
    table = open_table(path, settings.table, [name for name in texts if name])
    node = settings.node if settings.node in table.names else None
    owners = table.column(node, written=True) if node else None
    found = Checkup(path.name, table.rows, written=_written(path, settings))
    for name in table.names:
        written = name in texts
        column = table.column(name, written=written)
        found.columns.append(_column_facts(column, settings, label, owners))
        if name == label:
            found.classes = _classes(column) if settings.task == "classification" else {}
            found.change += _about_label(table.column(label), found.classes)
        elif settings.node is None and (count := owner_count(column)) is not None:
            found.change.insert(
                0, f"{name!r} has {count} values: is it the device? then name it: --node {name!r}"
            )
    try:
        found.federation = load(settings, seed)
    except DataError as error:
        found.problem = error
        found.change.insert(0, error.for_shell.removeprefix(f"{path}: "))
    found.change += _about_columns(table, found)
    if found.federation is not None:
        found.change += _about_nodes(found.federation)
    return found


def _written(path: Path, settings: DataSettings) -> str:
    """How values are divided and numbers written, unless it is by commas and with points."""
    if path.suffix.lower() == ".parquet":
        return ""
    delimiter = settings.delimiter or ("\t" if ".tsv" in path.suffixes else None)
    found = dialect_of(path, delimiter, settings.decimal)
    if found == (",", "."):
        return ""
    marks = {"\t": "tabs", ";": "semicolons", ",": "commas", "|": "bars"}
    decimal = "commas" if found.decimal == "," else "points"
    between = marks.get(found.delimiter, repr(found.delimiter))
    return f"; {between} between values, decimal {decimal}"


def _column_facts(
    column: Column, settings: DataSettings, label: str, owners: Column | None
) -> ColumnFacts:
    own = {label: "label", settings.node: "node", settings.time: "time", settings.text: "text"}
    role, gaps = own.get(column.name), int(column.gaps.sum())
    if role is None:
        many = settings.max_categories
        reason = None if settings.features else why_no_feature(column, many, owners)
        all_of_them = not settings.features and settings.text is None
        named = all_of_them or column.name in settings.features
        role = "feature" if reason is None and named else "left out"
        if column.name in settings.drop:
            role, reason = "dropped", None
        if reason is not None:
            role = f"left out: {WORDS[reason]}"
    if column.kind in ("text", "mixed"):
        counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.texts))
        most = [column.texts[place][:20] for place in np.argsort(-counts)[:3]]
        values, different = ", ".join(most), len(column.texts)
        values += ", …" * (different > 3)
    else:
        there = column.numbers[np.isfinite(column.numbers)]
        different = len(np.unique(there))
        values = f"{_plain(there.min())} to {_plain(there.max())}" if different else "–"
        if column.kind == "date" and different:
            first, last = (np.datetime64(int(t), "s") for t in (there.min(), there.max()))
            values = f"{first} to {last}"
    remark = ""
    if role == "feature" and different == 1:
        remark = "constant"
    elif role == "feature" and differs_in_every_row(column):
        remark = "every value differs: an id?"
    elif role == "feature" and owners is not None and renames(column, owners):
        remark = "one per node: an id?"
    elif role == "feature" and 2 * gaps > len(column.gaps):
        remark = f"{100 * gaps / len(column.gaps):.0f} % missing"
    elif column.kind == "mixed":
        remark = "numbers and texts"
    return ColumnFacts(column.name, column.kind, role, values, different, gaps, remark)


def _plain(number: float) -> str:
    """A number in digits where people would write it so.

    Example:
        >>> _plain(100000.0), _plain(0.123456), _plain(76820.5)
        ('100000', '0.12346', '76820')
    """
    return f"{number:.0f}" if 1e4 <= abs(number) < 1e15 else f"{number:.5g}"


def _classes(column: Column) -> dict[str, int]:
    counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.texts))
    return {column.texts[place]: int(counts[place]) for place in np.argsort(-counts, kind="stable")}


def _about_label(meant: Column, classes: dict[str, int]) -> list[str]:
    """What to do about labels that one class has nearly all of, or that look like values."""
    if not classes:
        return []
    most, count = next(iter(classes.items()))
    share, advice = count / sum(classes.values()), []
    if len(classes) == 1:
        advice.append(f"all labels are {most!r}: nothing to learn; is it the label column?")
    elif share >= _IMBALANCED:
        advice.append(
            f"{100 * share:.0f} % of the labels are {most!r}: judge by --metric balanced-accuracy "
            "or f1, and try --loss balanced-cross-entropy"
        )
    values = like_values(meant)
    return advice if values is None else [*advice, values]


def _about_columns(table: Table, found: Checkup) -> list[str]:
    constant = [each.name for each in found.columns if each.remark == "constant"]
    ids = [each.name for each in found.columns if each.remark == "every value differs: an id?"]
    owned = [each.name for each in found.columns if each.remark == "one per node: an id?"]
    advice = [f"{name!r} never changes: --drop {name!r}" for name in constant[:5]]
    advice += [
        f"every value of {name!r} differs: if it is an id, --drop {name!r}" for name in ids[:5]
    ]
    advice += [
        f"every node has its own {name!r}: if it is an id, --drop {name!r}" for name in owned
    ]
    sparse = [each.name for each in found.columns if each.remark.endswith("missing")]
    advice += [f"most of {name!r} is missing: --drop {name!r}?" for name in sparse[:5]]
    if table.rows < 50:
        advice.append(f"{table.rows} rows are few: numbers will be uncertain")
    return advice


def _about_nodes(federation: Federation) -> list[str]:
    sizes = sorted(node.size for node in federation.nodes)
    advice = []
    if len(sizes) < 5:
        advice.append(f"{len(sizes)} nodes are few: meta-learning wants many devices")
    if sizes[len(sizes) // 2] < 6:
        advice.append("half of the nodes have fewer than 6 samples to adapt to and be judged on")
    return advice
