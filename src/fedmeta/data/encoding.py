"""How the columns of a table become the inputs of a model; it travels with the model.

    number, boolean → itself          category → one input per known value, 1 at its own and else 0
    text → tokens or an embedding (`fedmeta.data.text`), instead of all other columns

A value that the category did not have in training is 0 everywhere. A gap is NaN until it is filled
with the mean of its input over the source nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fedmeta.core.errors import nearest
from fedmeta.data.columns import GAPS, Column, Table
from fedmeta.data.faults import Faults, counted, rows_where, such_as
from fedmeta.data.pool import Array
from fedmeta.data.text import TextEncoding, encoded_texts

Missing = Literal["error", "mean", "drop"]

_APART = 3  # columns with the same fault that are told of one by one


@dataclass(frozen=True)
class EncodedColumn:
    """A column of a table that is a feature.

    Args:
        name: of the column.
        categories: of texts, the values that have an input each; empty for numbers.
    """

    name: str
    categories: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Names of its inputs.

        Example:
            >>> EncodedColumn("state", ("off", "on")).features
            ('state=off', 'state=on')
        """
        return tuple(f"{self.name}={each}" for each in self.categories) or (self.name,)


@dataclass(frozen=True)
class Encoding:
    """The columns that are features, in the order of the inputs.

    Args:
        columns: which.
        missing: what is done about gaps: "error" refuses them, "mean" fills them, "drop" leaves
            their rows out.
        means: of every input over the source nodes' samples, once they are known.
        ignored: columns that the table had besides; in a data frame others are refused.
        label, node: names of these columns in training, if they had any.
        text: how the column of texts becomes inputs, instead of `columns`.

    Example:
        >>> encoding = Encoding((EncodedColumn("a"), EncodedColumn("s", ("off", "on"))), "mean")
        >>> encoding.features
        ('a', 's=off', 's=on')
        >>> Encoding.from_facts(encoding.facts()) == encoding
        True
    """

    columns: tuple[EncodedColumn, ...]
    missing: Missing = "error"
    means: tuple[float, ...] = ()
    ignored: tuple[str, ...] = ()
    label: str | None = None
    node: str | None = None
    text: TextEncoding | None = None

    @classmethod
    def of_features(cls, features: Sequence[str]) -> Encoding:
        """That of an older model, which knows names alone."""
        return cls(tuple(EncodedColumn(name) for name in features))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns."""
        texts = () if self.text is None else (self.text.column,)
        return (*texts, *(column.name for column in self.columns))

    def facts(self) -> dict[str, Any]:
        """As plain values, for the header of a model file."""
        columns = [
            {"name": each.name, "categories": list(each.categories)} for each in self.columns
        ]
        lists = {"means": list(self.means), "ignored": list(self.ignored)}
        own = {"missing": self.missing, "label": self.label, "node": self.node}
        text = {} if self.text is None else {"text": self.text.facts()}
        return {"columns": columns, **own, **lists, **text}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Encoding:
        """The inverse of `facts`."""
        columns = [
            EncodedColumn(str(each["name"]), tuple(map(str, each["categories"])))
            for each in facts["columns"]
        ]
        means, ignored = map(float, facts["means"]), map(str, facts["ignored"])
        own = facts["missing"], tuple(means), tuple(ignored)
        text = TextEncoding.from_facts(facts["text"]) if facts.get("text") else None
        return cls(tuple(columns), *own, facts["label"], facts["node"], text)

    def filled(self, inputs: Array) -> Array:
        """Inputs with means where they are NaN, changed in place."""
        for place, mean in enumerate(self.means):
            column = inputs[:, place]
            column[np.isnan(column)] = mean
        return inputs

    def with_means(self, inputs: Array, rows: Array) -> Encoding:
        """The same with the means of some rows; an input without any value there has mean 0."""
        if self.text is not None:
            return self
        means = []
        for place in range(inputs.shape[1]):
            column = inputs[rows, place].astype(np.float64)
            known = column[~np.isnan(column)]
            means.append(float(known.mean()) if len(known) else 0.0)
        return replace(self, means=tuple(means))


def model_encoding(about: Mapping[str, Any]) -> Encoding | None:
    """That of a model, from the facts that travel with it; None: it was not trained on a table."""
    if about.get("encoding"):
        return Encoding.from_facts(about["encoding"])
    features = about.get("features")
    return Encoding.of_features(features) if features else None


@dataclass(eq=False)
class Encoded:
    """The inputs of a table.

    Args:
        inputs: (N, F) float32, NaN where a value is missing.
        gaps: (N,) whether a row misses a value.
        notes: what people should know.
    """

    inputs: Array
    gaps: Array
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Wrong:
    """Values of a column that cannot be inputs.

    Args:
        name: of the column.
        what: is wrong.
        rows: (N,) which.
        texts: the different ones among them, if they are words.
    """

    name: str
    what: str
    rows: Array
    texts: tuple[str, ...] = ()


def encode(table: Table, encoding: Encoding, faults: Faults) -> Encoded:
    """The inputs that the columns of a table are; what is wrong is added to the faults.

    Args:
        table: has at least the encoding's columns, or that is a fault.
        encoding: which columns, and how.
        faults: collects.
    """
    if encoding.text is not None:
        notes, forgiving = list[str](), encoding.missing != "error"
        texts, gaps = encoded_texts(table, encoding.text, faults, notes, forgiving)
        return Encoded(texts, gaps, notes)
    _check_present(table, encoding, faults)
    inputs = np.full((table.rows, len(encoding.features)), np.nan, np.float32)
    found, place = Encoded(inputs, np.zeros(table.rows, np.bool_)), 0
    missing, wrong = list[tuple[str, int]](), list[_Wrong]()
    for each in encoding.columns:
        width = max(1, len(each.categories))
        if each.name in table.names:
            column = table.column(each.name, written=bool(each.categories))
            part = inputs[:, place : place + width]
            gaps = _fill(part, column, each, wrong, faults, found.notes)
            if gaps.any():
                missing.append((each.name, int(gaps.sum())))
                found.gaps |= gaps
        place += width
    _tell(wrong, faults)
    if missing:
        _gaps(encoding, missing, found, faults)
    return found


def _check_present(table: Table, encoding: Encoding, faults: Faults) -> None:
    absent = [name for name in encoding.names if name not in {*table.names}]
    if absent:
        known = [name for name in table.names if name not in {*encoding.names}]
        hint = nearest(absent[0], known) if known else "it has no other columns"
        faults.add(f"it has no feature column {such_as(absent)}", hint)


def _fill(
    part: Array,
    column: Column,
    wanted: EncodedColumn,
    wrong: list[_Wrong],
    faults: Faults,
    notes: list[str],
) -> Array:
    """Write a column into its inputs; which rows have no value."""
    name, none = wanted.name, np.zeros(len(part), np.bool_)
    if wanted.categories:
        places = {text: number for number, text in enumerate(wanted.categories)}
        unknown = {text: -2 for text in column.texts if text.lower() in GAPS}
        numbers = [places.get(text, unknown.get(text, -1)) for text in column.texts]
        one = np.array([*numbers, -2])[column.codes]
        part[:] = one[:, None] == np.arange(part.shape[1])
        part[one == -2] = np.nan
        if new := [
            text for text, number in zip(column.texts, numbers, strict=True) if number == -1
        ]:
            count = int((one == -1).sum())
            notes.append(
                f"column {name!r} has {counted(count, 'value')} unknown in training "
                f"({such_as(new)}): all of its inputs are 0 there"
            )
        gaps: Array = one == -2
        return gaps
    if column.kind in ("text", "mixed", "other", "date"):
        what = {"other": "holds lists or objects", "date": "holds dates"}.get(column.kind)
        if what is None:
            bad = np.isnan(column.numbers) if column.kind == "mixed" else ~column.gaps
            bad = bad & ~column.gaps
            texts = tuple(column.texts[code] for code in np.unique(column.codes[bad]))
            wrong.append(_Wrong(name, "not a number", bad, texts))
            if column.kind == "mixed":
                _infinite(part, column, wrong)
        else:
            remedy = f"leave it out: --drop {name!r}"
            more = ", or order the split by it: --time" if column.kind == "date" else ""
            faults.add(f"column {name!r} {what}", remedy + more)
        return column.gaps if column.kind == "mixed" else none  # told together
    _infinite(part, column, wrong)
    return column.gaps


def _infinite(part: Array, column: Column, wrong: list[_Wrong]) -> None:
    """Write numbers into their input; what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        part[:, 0] = column.numbers
    infinite = np.isinf(part[:, 0])
    if infinite.any():
        wrong.append(_Wrong(column.name, "infinite or too large", infinite))


def _tell(wrong: Sequence[_Wrong], faults: Faults) -> None:
    """A fault per column, or one for all columns that have the same where these are many."""
    for what in dict.fromkeys(each.what for each in wrong):
        alike = [each for each in wrong if each.what == what]
        words = what == "not a number"
        mend = "mend them, or leave " + (
            "such cells blank and say --missing mean" if words else "their rows out"
        )
        if len(alike) > _APART:
            rows = np.logical_or.reduce([each.rows for each in alike])
            texts = list(dict.fromkeys(text for each in alike for text in each.texts))
            values = counted(sum(int(each.rows.sum()) for each in alike), "value")
            some = f" ({such_as(texts)})" if texts else ""
            columns = such_as([each.name for each in alike])
            problem = f"{values} in {len(alike)} columns {what}{some}: {columns}"
            remedy = mend + (", or leave the columns out by --drop" if words else "")
            faults.add(problem, remedy, rows_where(rows))
            continue
        for each in alike:
            some = f" ({such_as(each.texts)})" if each.texts else ""
            problem = f"in column {each.name!r} {counted(int(each.rows.sum()), 'value')} {what}"
            remedy = mend + (f", or leave the column out: --drop {each.name!r}" if words else "")
            if any("," in text for text in each.texts):
                remedy += ", or say --decimal , for a decimal comma"
            faults.add(problem + some, remedy, rows_where(each.rows))


def _gaps(
    encoding: Encoding,
    missing: Sequence[tuple[str, int]],
    found: Encoded,
    faults: Faults,
) -> None:
    columns = ", ".join(f"{name!r} {count}" for name, count in missing[:5])
    more = ", …" if len(missing) > 5 else ""
    total, rows = sum(count for _, count in missing), int(found.gaps.sum())
    problem = f"{counted(total, 'value')} missing in {counted(rows, 'row')} ({columns}{more})"
    if encoding.missing == "error":
        faults.add(
            problem,
            "fill them, or say --missing mean (their column's mean) or --missing drop",
            rows_where(found.gaps),
        )
    elif encoding.missing == "mean":
        found.notes.append(f"{problem}; each is filled with the mean over the source nodes")
    else:
        found.notes.append(f"{problem}; these rows are left out")
