"""Your own table in a file or a data frame: a label column, features, and if you like nodes.

Columns are read by `csv_file` or pyarrow, what they hold is decided by `fedmeta.data.columns`,
which of them are features by `fedmeta.data.column_roles` unless they are named, and how they become
inputs by `fedmeta.data.encoding`. Everything that is wrong is told in one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmeta.core.errors import DataError, MissingExtraError, nearest
from fedmeta.core.input_files import open_regular
from fedmeta.data.column_roles import (
    WORDS,
    Reason,
    differs_in_every_row,
    owner_count,
    renames,
    why_no_feature,
)
from fedmeta.data.columns import Column, Table, from_arrow, rows_counted, table_of_frame
from fedmeta.data.encoding import Encoded, EncodedColumn, Encoding, Missing, encode
from fedmeta.data.faults import Faults, counted, such_as
from fedmeta.data.federation import TaskKind
from fedmeta.data.label_columns import (
    check_classes,
    classes_of,
    like_values,
    look_alike,
    present,
    sorted_texts,
    times_of,
    too_little,
)
from fedmeta.data.pool import Array, Pool, pool_from
from fedmeta.data.readers.budget import check_header, check_parquet
from fedmeta.data.readers.csv_file import read_csv
from fedmeta.data.text import BY_WORDS, TextEncoding, text_encoding

MAX_CATEGORIES = 50
TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
"""What names of tables end in."""


def is_table(path: Path) -> bool:
    """Whether a file is a table, by its name."""
    return path.name.lower().endswith(TABLES)


@dataclass(frozen=True)
class TableSettings:
    """How a table is read, beside its label, node and feature columns.

    Args: as of `DataSettings`.
    """

    drop: tuple[str, ...] = ()
    time: str | None = None
    delimiter: str | None = None
    decimal: str | None = None
    missing: Missing = "error"
    max_categories: int = MAX_CATEGORIES
    text: str | None = None
    tokenizer: str = BY_WORDS
    embedding: str | None = None
    text_length: int = 64
    vocabulary: int = 2048

    @property
    def texts(self) -> TextEncoding | None:
        """How texts become inputs, if they do; tokenizer and encoder are read."""
        if self.text is None:
            return None
        how = self.tokenizer, self.embedding, self.text_length, self.vocabulary
        return text_encoding(self.text, *how)


def read_table(
    path: Path,
    task: TaskKind = "classification",
    label: str | None = None,
    node: str | None = None,
    features: Sequence[str] | None = None,
    table: TableSettings = TableSettings(),
    encoding: Encoding | None = None,
) -> Pool:
    """The pool in a .csv (UTF-8, with a header; also .tsv and .csv.gz) or .parquet file.

    Args:
        path: the file.
        task: "classification" or "regression".
        label: name of the label column; None: "label".
        node: name of the column that says whose sample it is, if any.
        features: names of the columns that are features, in the order in which they become
            inputs; other columns are ignored. None or empty: see `fedmeta.data.column_roles`.
        table: how it is read.
        encoding: of a model that the samples are for: its columns, categories and means.
    """
    label = label or "label"
    values = task == "regression"
    texts = [name for name in (None if values else label, node) if name is not None]
    texts += as_written(encoding) if encoding else [table.text] if table.text else []
    opened = open_table(path, table, texts)
    name = path.name.removesuffix(".gz").rpartition(".")[0]
    return pool_of_table(opened, name, path.name, task, label, node, features, table, encoding)


def read_inputs(path: Path, encoding: Encoding, table: TableSettings = TableSettings()) -> Encoded:
    """What a model takes of the rows of a file, all of them in order, labels or not.

    Gaps are filled where the encoding has means. Where it leaves rows with gaps out, their inputs
    are 0 and `gaps` says which they are.

    Args:
        path: the file.
        encoding: of the model.
        table: `delimiter` and `decimal`.
    """
    opened = open_table(path, table, as_written(encoding))
    return inputs_of_table(opened, encoding)


def as_written(encoding: Encoding) -> list[str]:
    """Columns of which an encoding wants the texts as they are."""
    texts = [] if encoding.text is None else [encoding.text.column]
    return texts + [each.name for each in encoding.columns if each.categories]


def labels_of_frame(frame: Any, name: str, task: TaskKind) -> Array:
    """The labels in a column of a data frame: values, or the names of classes."""
    table = table_of_frame(frame)
    if table is None:
        raise DataError("labels name a column, but the samples are no table", "give one per sample")
    if name not in table.names:
        raise DataError(f"{table.where} has no column {name!r}", nearest(name, table.names))
    column = table.column(name)
    if column.gaps.any():
        raise DataError(
            f"column {name!r} has no value in {counted(column.gaps.sum(), 'row')}",
            "leave these rows out",
        )
    if task == "regression":
        if column.kind not in ("number", "boolean"):
            raise DataError(f"column {name!r} holds {column.kind}", "give numbers")
        return column.numbers
    names, numbers = classes_of(table.column(name, written=True))
    return np.array(names)[numbers]


def inputs_of_frame(table: Table, encoding: Encoding) -> Array:
    """What a model takes of a data frame: columns are matched by name, their order does not count.

    Args:
        table: of the frame.
        encoding: of the model.

    Raises:
        DataError: names columns that are missing and columns that training has never seen.
    """
    names, known = {*table.names}, {*encoding.names, *encoding.ignored}
    absent = [name for name in encoding.names if name not in names]
    extra = [name for name in table.names if name not in known]
    if absent or extra:
        lacks = f"lacks {such_as(absent)}" if absent else ""
        has = f"has {such_as(extra)}" if extra else ""
        wrong = " and ".join(filter(None, (lacks, has)))
        raise DataError(
            f"{table.where} {wrong}, unlike the data that the model was trained on",
            f"give the columns {such_as(encoding.names)}, in any order",
        )
    found = inputs_of_table(table, encoding)
    if found.gaps.any():
        raise DataError(
            f"{counted(int(found.gaps.sum()), 'row')} of {table.where} with missing values",
            "leave such rows out, as in training",
        )
    return found.inputs


def inputs_of_table(table: Table, encoding: Encoding) -> Encoded:
    """See `read_inputs`."""
    faults = Faults(table)
    found = encode(table, encoding, faults)
    faults.check()
    if encoding.means:
        found.inputs, found.gaps = encoding.filled(found.inputs), np.zeros(table.rows, np.bool_)
    elif found.gaps.any():
        found.inputs = np.nan_to_num(found.inputs)
    return found


def open_table(
    path: Path, table: TableSettings = TableSettings(), texts: Sequence[str] = ()
) -> Table:
    """The columns of a file, none of which has been looked at.

    Args:
        path: the file.
        table: how it is read.
        texts: columns that will be asked for as they are written.
    """
    if path.suffix.lower() == ".parquet":
        return _parquet(path)
    delimiter = table.delimiter or ("\t" if ".tsv" in path.suffixes else None)
    return read_csv(path, delimiter, table.decimal, texts)


def _parquet(path: Path) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow, which reads .parquet files,", "parquet") from None
    try:
        with open_regular(path) as raw, pyarrow.parquet.ParquetFile(raw) as file:
            check_parquet(path, file)
            read = file.read()
    except DataError:
        raise
    except Exception as error:  # of damaged files it raises all kinds
        raise DataError(f"{path} is not a parquet file ({error})", "save it again") from None
    if not read.num_rows:
        raise DataError(f"{path} has no rows", "add rows of samples")
    check_header(path, read.column_names)

    def load(name: str, written: bool) -> Column:
        return from_arrow(name, read.column(name), written=written)

    return Table(str(path), read.num_rows, tuple(read.column_names), load, rows_counted)


def pool_of_table(
    table: Table,
    name: str,
    origin: str,
    task: TaskKind,
    label: str,
    node: str | None = None,
    features: Sequence[str] | None = None,
    settings: TableSettings = TableSettings(),
    encoding: Encoding | None = None,
) -> Pool:
    """The samples in a table; all that is wrong with it is one error.

    Args:
        table: the columns.
        name: what to call the data.
        origin: the file they came from.
        task, label, node, features, settings, encoding: as of `read_table`.
    """
    faults, notes, training = Faults(table), list[str](), encoding is None
    if not table.rows:
        faults.check()  # what else could be said follows from that
    own = {"label": label, "node": node, "time": settings.time}
    if len(table.names) == 1 and label not in table.names:
        faults.add(
            f"it has one column alone, {table.names[0]!r}",
            "name what is between its values: --delimiter",
        )
        faults.check()
    for what, column in own.items():
        if column is not None and column not in table.names:
            wrong = f"it has no column {column!r} for the {what}"
            faults.add(wrong, f"name it with --{what}; {nearest(column, table.names)}")
    for column in settings.drop:
        if column not in table.names:
            faults.add(f"it has no column {column!r} to drop", nearest(column, table.names))
    if encoding is None and settings.text is not None:
        ignored = tuple(each for each in table.names if each != settings.text)
        encoding = Encoding((), settings.missing, (), ignored, label, node, settings.texts)
    elif encoding is None:
        taken = [*own.values(), *settings.drop]
        encoding = chosen_encoding(table, taken, features, settings, faults, notes, node)
        encoding = replace(encoding, label=label, node=node)
    found = encode(table, encoding, faults)
    labels = present(table, label, faults, settings.missing, numbers=task == "regression")
    if labels is not None and task == "classification":
        meant = table.column(label)
        check_classes(labels, meant, faults)
        if (advice := like_values(meant)) is not None:
            notes.append(advice)
        notes += look_alike(labels, "classes")
    owners = present(table, node, faults, settings.missing)
    notes += look_alike(owners, "nodes") if owners else []
    times = times_of(table, settings.time, faults)
    few = too_little(labels if task == "classification" else None, owners) if training else []
    for problem, remedy in few if faults.found or len(few) > 1 else ():  # one alone is told later
        faults.add(problem, remedy)
    kept = ~found.gaps if encoding.missing == "drop" else np.ones(table.rows, np.bool_)
    for each in (labels, owners):
        if each is not None and settings.missing == "drop":
            kept &= ~each.gaps
    if table.rows and not kept.any():
        faults.add("no row is without a gap", "say --missing mean, or leave columns out by --drop")
    faults.check()
    assert labels is not None
    gone = table.rows - int(kept.sum())
    if gone:
        notes.append(f"{gone} of {table.rows} rows were left out for missing values")
        labels, owners = labels.only(kept), owners.only(kept) if owners else None
    nodes, places = sorted_texts(owners) if owners else ((), None)
    classes, numbers = None, labels.numbers
    if task == "classification":
        classes, numbers = classes_of(labels)
    pool = pool_from(
        found.inputs if not gone else found.inputs[kept],
        numbers,
        task=task,
        class_names=classes,
        name=name,
        origin=origin,
        features=encoding.features,
    )
    return pool._replace(
        owners=places,
        owner_names=nodes,
        times=times[kept] if times is not None else None,
        encoding=encoding,
        remarks=(*notes, *found.notes),
    )


def chosen_encoding(
    table: Table,
    taken: Sequence[str | None],
    features: Sequence[str] | None,
    settings: TableSettings,
    faults: Faults,
    notes: list[str],
    node: str | None,
) -> Encoding:
    """The features of a table: those that are named, or all that may be one.

    Args:
        table: the columns.
        taken: names that are no features: label, node, …
        features: names; None or empty: all others that are no ids and the like.
        settings: `missing` and `max_categories`.
        faults: collects what is wrong.
        notes: collects what people should know.
        node: the column that says whose sample it is; None: one that might is told of.
    """
    columns, left_out = [], dict[Reason, list[str]]()
    owners = table.column(node, written=True) if node in table.names and node else None
    for name in features or [name for name in table.names if name not in taken]:
        if name not in table.names:  # told with all others by `encode`
            columns.append(EncodedColumn(name))
            continue
        column = table.column(name)
        if node is None and (count := owner_count(column)) is not None:
            notes.append(
                f"column {name!r} has {count} values and looks like the one that says whose sample "
                f"it is: name it with --node {name!r}"
            )
        reason = None if features else why_no_feature(column, settings.max_categories, owners)
        if reason is not None:
            left_out.setdefault(reason, []).append(name)
            continue
        if not features and differs_in_every_row(column):
            notes.append(f"every value of {name!r} differs: if it is an id, leave it out by --drop")
        elif not features and owners is not None and renames(column, owners):
            notes.append(f"every node has its own {name!r}: if it is an id, leave it out by --drop")
        texts = tuple(sorted(column.texts)) if column.kind == "text" else ()
        columns.append(EncodedColumn(name, texts))
    told = [f"{such_as(names)}: {WORDS[reason]}" for reason, names in left_out.items()]
    notes += [f"no feature: {each}" for each in told]
    coded = [each for each in columns if each.categories]
    if coded:
        listed = ", ".join(f"{each.name!r} ({len(each.categories)})" for each in coded[:5])
        notes.append(f"an input per value (categories): {listed}{', …' if coded[5:] else ''}")
    if not columns:
        why = f" ({'; '.join(told)})" if told else ""
        faults.add(f"no column is left to be a feature{why}", "add some, or name --features")
    used = {each.name for each in columns}
    ignored = tuple(name for name in table.names if name not in used)
    return Encoding(tuple(columns), settings.missing, ignored=ignored)
