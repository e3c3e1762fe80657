"""`fedmeta predict`: what a model says of every row of a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import say
from fedmeta.core.errors import DataError, SettingError
from fedmeta.core.storage import write_bytes, writing
from fedmeta.data.encoding import model_encoding
from fedmeta.data.pool import Array, normalised_inputs
from fedmeta.data.readers.csv_file import Dialect, dialect_of, records
from fedmeta.data.readers.npz import arrays_without_pickles, given_to
from fedmeta.data.readers.table import is_table, read_inputs
from fedmeta.fleet.reopen import open_model
from fedmeta.models.meta_model import MetaModel

PARAMETERS = (
    Parameter("run", "Run folder or model.safetensors, adapted or not.", argument=True),
    Parameter("data", "Samples: .csv, .csv.gz, .parquet or .npz.", short="d", metavar="FILE"),
    Parameter("out", "The .csv file to write.", short="o", metavar="FILE"),
    *options.OWN_CODE,
)
_AT_ONCE = 65536  # rows that pass through the model together


def run(values: Values) -> None:
    """Predict every row of a file: its columns in its order, with the model's answers added."""
    if values["data"] is None or values["out"] is None:
        raise SettingError("a file to read and one to write are needed", "give --data and --out")
    model = open_model(Path(values["run"]), values)
    path, out = Path(values["data"]).expanduser(), Path(values["out"])
    if not path.is_file():
        raise DataError(f"there is no file {path}", "check the path")
    inputs, known = _inputs(path, model)
    answers = predictions(model, inputs, known)
    header, dialect, rows = _rows(path, len(inputs))
    added = [_free(name, header) for name in column_names(model)]
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=dialect.delimiter, lineterminator="\n")
    writer.writerow([*header, *added])
    for row, own in zip(rows, answers, strict=True):
        writer.writerow([*row, *(_written(each, dialect.decimal) for each in own)])
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(out, text.getvalue().encode())
    left = f"; {len(known) - known.sum()} have missing values and no answer" * (not known.all())
    say(f"{len(inputs)} rows with {' and '.join(map(repr, added))} written to {out}{left}")


def column_names(model: MetaModel) -> list[str]:
    """What the model's answers are called."""
    if model.task.kind == "classification":
        return ["predicted", "probability"]
    outputs = model.task.outputs
    return ["predicted"] if outputs == 1 else [f"predicted {o + 1}" for o in range(outputs)]


def predictions(model: MetaModel, inputs: Array, known: Array) -> list[list[str | float]]:
    """The model's answers: class and its probability, or values; blanks where nothing is known.

    Args:
        model: adapted or not.
        inputs: raw samples, (n, *input_shape).
        known: (n,) whether a sample is complete.
    """
    answers: list[list[str | float]] = []
    for start in range(0, len(inputs), _AT_ONCE):
        outputs = model.predict(inputs[start : start + _AT_ONCE]).cpu().numpy()
        if model.task.kind == "classification":
            best = outputs.argmax(axis=1)
            sure = outputs[np.arange(len(best)), best]
            names = model.task.class_names
            answers += [[names[b], round(float(p), 6)] for b, p in zip(best, sure, strict=True)]
        else:
            answers += outputs.tolist()
    blank: list[str | float] = [""] * len(column_names(model))
    return [each if there else blank for each, there in zip(answers, known, strict=True)]


def _inputs(path: Path, model: MetaModel) -> tuple[Array, Array]:
    """The samples of a file, and which of them are complete."""
    if is_table(path):
        encoding = model_encoding(model.about)
        if encoding is None:
            raise DataError(f"{path} is a table, but the model was not trained on one", "give .npz")
        found = read_inputs(path, encoding)
        for note in found.notes:
            say(f"note     {note}")
        return found.inputs, ~found.gaps
    if path.suffix.lower() != ".npz":
        raise DataError(f"{path} is of a kind that is not read", "give .csv, .parquet or .npz")
    if model.network.calling is not None:
        parts = model.network.calling.parts
        arrays = arrays_without_pickles(path, [*parts.names], parts)
        inputs = parts.rows(given_to(parts, arrays))
    else:
        inputs = normalised_inputs(arrays_without_pickles(path, ["x"])["x"], path.name)
    return inputs, np.ones(len(inputs), np.bool_)


def _written(answer: str | float, decimal: str) -> str:
    """An answer the way the file writes numbers."""
    return answer if isinstance(answer, str) else f"{answer:.9g}".replace(".", decimal)


def _rows(path: Path, count: int) -> tuple[list[str], Dialect, Iterator[Sequence[Any]]]:
    """Header, dialect and rows of a file as it is; of arrays the row's number."""
    plain = Dialect(",", ".")
    if path.suffix.lower() == ".npz":
        return ["row"], plain, iter([[number + 1] for number in range(count)])
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet

        read = pyarrow.parquet.read_table(path)
        columns = [read.column(name).to_pylist() for name in read.column_names]
        return read.column_names, plain, zip(*columns, strict=True)
    dialect = dialect_of(path)
    found = (row for _, row in records(path, dialect))
    return next(found), dialect, found


def _free(name: str, header: Sequence[str]) -> str:
    """A name that no column has."""
    while name in header:
        name += "_"
    return name


COMMAND = Command("predict", PARAMETERS, run, "runs/mine --data new.csv --out answers.csv")

if __name__ == "__main__":
    COMMAND.main()
