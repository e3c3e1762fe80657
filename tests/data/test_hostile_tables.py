"""Tables as people have them: each trains, or gets one message that lists everything to change."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmeta import FedAvg, ModelSettings, train
from fedmeta.core.errors import FedmetaError
from fedmeta.data import DataSettings, load
from fedmeta.data.readers import csv_file

Rows = list[list[str]]


def rows(count: int = 60, nodes: int = 6) -> Rows:
    """Two features, a device and a label that depends on them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2)).round(3)
    labels = np.where(x[:, 0] + x[:, 1] > 0, "warm", "cold")
    return [
        [str(a), str(b), f"d{i * nodes // count}", str(label)]
        for i, ((a, b), label) in enumerate(zip(x, labels, strict=True))
    ]


WIDE = range(10_000)
HEADER = ["a", "b", "device", "label"]
numbered = list(enumerate(rows()))


def written(
    body: Rows, header: list[str] = HEADER, mark: str = ",", end: str = "\n", start: str = ""
) -> bytes:
    return (start + end.join(mark.join(row) for row in [header, *body]) + end).encode()


def with_column(name: str, value: Callable[[int], str]) -> bytes:
    body = [[value(i), *row] for i, row in enumerate(rows())]
    return written(body, [name, *HEADER])


def changed(place: int, value: Callable[[int, str], str]) -> Rows:
    return [
        [value(i, cell) if column == place else cell for column, cell in enumerate(row)]
        for i, row in enumerate(rows())
    ]


@dataclass(frozen=True)
class Table:
    """A table, and what becomes of it.

    Args:
        content: of the file.
        settings: beside `name` and `node="device"`.
        features: names of the inputs, where it trains.
        note: what a note must say.
        words: all that the one message must say, where it does not train.
        name: of the file.
    """

    content: bytes
    settings: dict[str, Any] = field(default_factory=dict)
    features: tuple[str, ...] = ("a", "b")
    note: str = ""
    words: tuple[str, ...] = ()
    name: str = "t.csv"


TABLES = {
    "plain": Table(written(rows())),
    "byte order mark": Table(written(rows(), start="\ufeff")),
    "semicolons": Table(written(rows(), mark=";")),
    "tabs": Table(written(rows(), mark="\t"), name="t.tsv"),
    "decimal commas": Table(
        written([[cell.replace(".", ",") for cell in row] for row in rows()], mark=";")
    ),
    "carriage returns alone": Table(written(rows(), end="\r")),
    "Windows line ends": Table(written(rows(), end="\r\n")),
    "quoted newlines": Table(
        with_column("remark", lambda i: '"first\nsecond"' if i % 2 else '"a, b"'),
        features=("remark=a, b", "remark=first\nsecond", "a", "b"),
        note="categories",
    ),
    "gzip": Table(gzip.compress(written(rows())), name="t.csv.gz"),
    "blank lines and blanks": Table(
        written([[f"  {cell} " for cell in row] for row in rows()]).replace(b"\n", b"\n\n")
    ),
    "booleans": Table(
        with_column("on", lambda i: "TRUE" if i % 3 else "False"), features=("on", "a", "b")
    ),
    "categories": Table(
        with_column("mode", lambda i: ["idle", "run"][i % 2]),
        features=("mode=idle", "mode=run", "a", "b"),
        note="'mode' (2)",
    ),
    "unicode names": Table(
        written(rows(), ["Temperatur °C", "湿度", "device", "label"]),
        features=("Temperatur °C", "湿度"),
    ),
    "dates": Table(with_column("when", lambda i: f"2024-01-{i % 28 + 1:02}"), note="'when': dates"),
    "ids of samples": Table(
        with_column("sample_id", lambda i: f"s{i * 7}"), note="'sample_id': an id"
    ),
    "an index without a name": Table(with_column("", str), note="'': an index"),
    "free text": Table(with_column("memo", lambda i: f"text {i}"), note="'memo': too many"),
    "an empty column": Table(
        with_column("spare", lambda _i: ""), note="'spare': without any value"
    ),
    "a column of NaN": Table(
        with_column("gone", lambda _i: "NaN"), note="'gone': without any value"
    ),
    "a constant column": Table(with_column("same", lambda _i: "7"), features=("same", "a", "b")),
    "gaps, filled": Table(
        written(changed(0, lambda i, cell: "" if i % 9 == 4 else cell)),
        {"missing": "mean"},
        note="values missing in 7 rows ('a' 7)",
    ),
    "gaps, left out": Table(
        written(changed(0, lambda i, cell: "N/A" if i % 9 == 4 else cell)),
        {"missing": "drop"},
        note="7 of 60 rows were left out",
    ),
    "10,000 columns": Table(
        written(
            [
                [*(str((i * j) % 17) for j in range(10_000)), *row[2:]]
                for i, row in enumerate(rows(24))
            ],
            [*(f"x{j}" for j in range(10_000)), "device", "label"],
        ),
        features=tuple(f"x{j}" for j in WIDE),
    ),
    "one node": Table(written(changed(2, lambda _i, _cell: "d0"))),
    "a constant value as label": Table(
        written(changed(3, lambda _i, _cell: "3.5")), {"task": "regression"}
    ),
    "values as labels": Table(
        written(changed(3, lambda i, _cell: str(1e6 + i / 10))), {"task": "regression"}
    ),
    "thousands apart": Table(
        written(changed(0, lambda i, _cell: f'"{1000 + 37 * i:,}"' if i % 2 else "999")),
    ),
    "thousands and decimal commas": Table(
        written(changed(0, lambda i, _cell: ["0,5", "1.037", "12.345,25"][i % 3]), mark=";")
        .replace(b"0.", b"0,")
        .replace(b"1.0;", b"1,0;"),
        {"decimal": ","},
    ),
    "percent": Table(written(changed(0, lambda i, _cell: f"{i * 7 % 60} %"))),
    "money": Table(written(changed(0, lambda i, _cell: f"${i * 997 % 5000:,}.50"), mark=";")),
    "minus signs of typesetters": Table(written(rows()).replace(b"-", "\u2212".encode())),
    "a unit in every cell": Table(
        written(changed(0, lambda i, _cell: f"{i} mm")),
        features=("b",),
        note="'a': numbers with a unit",
    ),
    "gaps as programs write them": Table(
        written(changed(0, lambda i, cell: ["None", "#DIV/0!", "n.a.", "--", "<NA>", cell][i % 6])),
        {"missing": "mean"},
        note="values missing in 50 rows",
    ),
    "delimiters after the last value": Table(written([[*row, ""] for row in rows()])),
    "a nameless column at the end": Table(
        written(rows(), [*HEADER, ""]), note="'': without any value"
    ),
    "rows of delimiters alone": Table(written(rows(), mark=";", end="\r\n") + b";;;\r\n" * 5),
    "the delimiter in the first line": Table(b"sep=;\r\n" + written(rows(), mark=";")),
    "a spreadsheet's Unicode text": Table(written(rows(), mark="\t").decode().encode("utf-16")),
    "classes and nodes that look alike": Table(
        written(
            [
                [
                    *row[:2],
                    f"{row[2][1:]}{'.0' * (i % 2)}",
                    row[3].upper() if i % 7 == 0 else row[3],
                ]
                for i, row in enumerate(rows())
            ]
        ),
        note="has '0', '0.0' as different nodes",
    ),
    "a missing label in a word": Table(
        written(changed(3, lambda i, cell: "N/A" if i % 9 == 4 else cell)),
        note="'N/A' among its classes",
    ),
    "a title above the header": Table(
        b"Export of machines\n2024-01-01\n" + written(rows()),
        words=("line 1 ('Export of machines') is no header", "line 3 ('a', 'b', 'device', "),
    ),
    "a title with delimiters": Table(
        b"Export of machines,,,\n,,,\n" + written(rows()),
        words=("line 3", "delete the lines above"),
    ),
    "comments above the header": Table(
        b"# logger 7\n# 12 kHz\n" + written(rows()), words=("'# logger 7'", "line 3")
    ),
    "columns set by blanks": Table(
        written(rows(), mark="   "), words=("one column alone", "--delimiter")
    ),
    "bytes of a spreadsheet": Table(
        b"PK\x03\x04" + bytes(range(256)), words=("not a CSV text", "in a spreadsheet")
    ),
    "zero bytes": Table(written(rows()).replace(b"cold", b"co\0ld"), words=("NUL bytes",)),
    "numbers that are too large": Table(
        written(changed(0, lambda _i, _cell: "9" * 320)), words=("60 values infinite or too large",)
    ),
    "infinite values": Table(
        written(changed(0, lambda i, cell: "-Infinity" if i == 7 else cell)),
        words=("1 value infinite or too large (line 9)",),
    ),
    "numbers and a word": Table(
        written(changed(0, lambda i, cell: "high" if i % 20 == 0 else cell)),
        words=("3 values not a number ('high') (line 2, line 22, line 42)",),
    ),
    "one class": Table(
        written(changed(3, lambda _i, _cell: "same")), words=("of one class", "label column")
    ),
    "nodes of one row": Table(
        written(changed(2, lambda i, _cell: f"d{i}")), words=("none of the 60 nodes", "more data")
    ),
    "duplicate names": Table(
        written(rows(), ["a", "a", "device", "label"]), words=("several columns ('a')",)
    ),
    "values as classes": Table(
        written(changed(3, lambda i, _cell: str(i / 7 + 0.01))), words=("not a class", "regression")
    ),
    "only ids": Table(
        written([[f"{i}", *row[2:]] for i, row in enumerate(rows())], ["id", "device", "label"]),
        words=("no column is left", "'id': an index"),
    ),
    "a header alone": Table(written([]), words=("has a header but no rows",)),
    "nothing": Table(b"", words=("is empty",)),
    "another encoding": Table(
        written(rows()).replace(b"warm", "wärm".encode("latin-1")), words=("UTF-8",)
    ),
    "not gzip": Table(written(rows()), name="t.csv.gz", words=("not a CSV text",)),
    "many faults at once": Table(
        b"a,b,label,device\n1,2,x,d0\ntwo,,x,d0\n3,4,,d0\n5,inf,y,d1\n\n6,x\n7,8,y,\n",
        words=(
            "has 6 faults",
            "1 row without the header's 4 values (line 7 has 2)",
            "in column 'a' 1 value not a number ('two') (line 3)",
            "in column 'b' 1 value infinite or too large (line 5)",
            "1 value missing in 1 row ('b' 1) (line 3)",
            "column 'label' has no value in 1 row (line 4)",
            "column 'device' has no value in 1 row (line 8)",
        ),
    ),
    "a text and a gap in one column": Table(
        b"a,label,device\n1,x,d0\ntwo,x,d0\n,y,d1\n4,y,d1\n",
        words=("has 2 faults", "1 value not a number ('two') (line 3)", "('a' 1) (line 4)"),
    ),
    "a word and an infinite value in one column": Table(
        written(changed(0, lambda i, cell: {3: "high", 7: "inf"}.get(i, cell))),
        words=("has 2 faults", "not a number ('high') (line 5)", "infinite or too large (line 9)"),
    ),
    "a logger's code in many columns": Table(
        written(
            [[*("BAD" if i % 20 == j else "1" for j in range(9)), *row] for i, row in numbered],
            [*(f"s{j}" for j in range(9)), *HEADER],
        ).replace(b",warm", b","),
        words=(
            "has 3 faults",
            "27 values in 9 columns not a number ('BAD'): 's0', 's1', 's2', … (line 2, line 3, ",
            "'label' has no value",
            "all labels are 'cold'",
            "(1) mend them, or leave such cells blank and say --missing mean",
        ),
    ),
    "a gap, one class, and nodes of one row": Table(
        written([["" if i == 4 else row[0], row[1], f"d{i}", "same"] for i, row in numbered]),
        words=("has 3 faults", "all labels are 'same'", "none of the 60 nodes has 2 rows"),
    ),
    "one class and nodes of one row": Table(
        written([[*row[:2], f"d{i}", "same"] for i, row in numbered]),
        words=("has 2 faults", "(1) give at least two classes", "(2) give more data"),
    ),
    "names that are not there": Table(
        written(rows()),
        {"label": "lable", "drop": ("c",), "features": ("a", "z")},
        words=("has 3 faults", "'lable'", "--label", "'c' to drop", "no feature column 'z'"),
    ),
}


@pytest.mark.parametrize("reader", ["small", "large"])
@pytest.mark.parametrize("name", TABLES)
def test_it_trains_or_says_all_that_is_wrong(
    name: str, reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reader == "large":  # read by pyarrow, which must make the same of it
        monkeypatch.setattr(csv_file, "SMALL", 0)
    table = TABLES[name]
    path = tmp_path / table.name
    path.write_bytes(table.content)
    settings = DataSettings(str(path), node="device", **table.settings)
    if table.words:
        with pytest.raises(FedmetaError) as error:
            train(load(settings, 0), ModelSettings("linear"), FedAvg(), rounds=1)
        assert "\n" not in str(error.value)
        for word in table.words:
            assert word in error.value.for_shell
        return
    federation = load(settings, 0)
    assert federation.features == table.features
    assert table.note in " ".join(federation.notes)
    assert np.isfinite(federation.inputs).all()
    if reader == "small":
        run = train(federation, ModelSettings("linear"), FedAvg(), rounds=1)
        assert run.meta_model.about["features"] == list(table.features)
