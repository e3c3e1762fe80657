import datetime
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from fedmeta.core.errors import DataError, MissingExtraError
from fedmeta.data.readers.table import read_table

GOOD = "a,label,user,b\n1,yes,u1,0.5\n2,no,u2,1e3\n\n3,yes,u1,-4\n"


def csv(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding=encoding, newline="")
    return path


def parquet(tmp_path, **columns):
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("text", [GOOD, GOOD.replace("\n", "\r\n")])
def test_csv(tmp_path, text, encoding):
    pool = read_table(csv(tmp_path, text, encoding), node="user")
    assert pool.inputs.tolist() == [[1, 0.5], [2, 1000], [3, -4]]
    assert pool.inputs.dtype == np.float32
    assert (pool.labels.tolist(), pool.class_names) == ([1, 0, 1], ("no", "yes"))
    assert pool.owner_texts.tolist() == ["u1", "u2", "u1"]
    assert pool.notes == ("3 samples from t.csv",)


def test_parquet_reads_as_csv_does(tmp_path):
    path = parquet(
        tmp_path, a=[1, 2, 3], label=["yes", "no", "yes"], user=[1, 2, 1], b=[True, False, True]
    )
    pool = read_table(path, node="user")
    assert pool.inputs.tolist() == [[1, 1], [2, 0], [3, 1]]
    assert (pool.labels.tolist(), pool.owner_texts.tolist()) == ([1, 0, 1], ["1", "2", "1"])


@pytest.mark.parametrize("labels", [["10", "9", "10"], ["10.0", "9.0", "10.0"]])
def test_numbers_as_classes_sort_as_numbers(tmp_path, labels):
    text = "x,y\n" + "".join(f"0,{label}\n" for label in labels)
    pool = read_table(csv(tmp_path, text), label="y")
    assert (pool.labels.tolist(), pool.class_names) == ([1, 0, 1], ("9", "10"))


@pytest.mark.parametrize(
    ("labels", "numbers", "names"),
    [
        (["01", "1", "1"], [0, 1, 1], ("01", "1")),
        (["01", "02", "01"], [0, 1, 0], ("01", "02")),
        (["1.0", "1", "2"], [1, 0, 2], ("1", "1.0", "2")),
        (["-3", "0", "-12"], [1, 2, 0], ("-12", "-3", "0")),
        (["10", "9.0", "10"], [1, 0, 1], ("9", "10")),
        ([" 10", "9 ", "10"], [1, 0, 1], ("9", "10")),
        (["1e3", "2", "+1"], [1, 2, 0], ("+1", "1e3", "2")),
        (
            ["9007199254740993", "9007199254740992", "7"],
            [2, 1, 0],
            ("7", "9007199254740992", "9007199254740993"),
        ),
        ([f"1{'0' * 30}1", f"1{'0' * 30}2", "7"], [0, 1, 2], None),
    ],
)
def test_different_labels_stay_different_classes(tmp_path, labels, numbers, names):
    text = "x,label\n" + "".join(f"0,{label}\n" for label in labels)
    pool = read_table(csv(tmp_path, text))
    assert (pool.labels.tolist(), pool.class_names) == (numbers, names or tuple(labels))


def test_all_columns_are_features_unless_they_are_named(tmp_path):
    path = csv(tmp_path, "a,label,user,b\n1,yes,u1,0.5\n2,no,u2,1e3\n")
    assert read_table(path, node="user").features == ("a", "b")
    pool = read_table(path, features=["b", "a"])  # the texts of user are not in the way
    assert (pool.features, pool.owners) == (("b", "a"), None)
    assert pool.inputs.tolist() == [[0.5, 1], [1000, 2]]
    assert read_table(path, node="user", features=()).features == ("a", "b")
    with pytest.raises(DataError) as error:
        read_table(path, features=["a", "bb"])
    assert "has no feature column 'bb': did you mean 'b'? known: b, label, user" in str(error.value)


def test_named_features_of_parquet(tmp_path):
    path = parquet(tmp_path, when=[datetime.date(2021, 1, 1)] * 2, b=[1, 2], label=[0, 1], a=[3, 4])
    pool = read_table(path, features=("a", "b"))
    assert (pool.features, pool.inputs.tolist()) == (("a", "b"), [[3, 1], [4, 2]])


def test_regression(tmp_path):
    pool = read_table(csv(tmp_path, "x,label\n1,0.5\n2,2\n"), task="regression")
    assert pool.labels.tolist() == [[0.5], [2.0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.csv is empty"),
        ("a,label\n", "has a header but no rows"),
        ("a,a,label\n1,2,x\n", "1 name for several columns ('a')"),
        (
            "a,lable\n1,x\n",
            "no column 'label' for the label: name it with label= (of federate: y); did you mean",
        ),
        ("label\nx\n", "no column is left to be a feature"),
        ("a,label\n1,x\n2\n", "1 row without the header's 2 values (line 3 has 1)"),
        ("a,label\n1,x\ntwo,x\n", "in column 'a' 1 value not a number ('two') (line 3)"),
        ("a,label\n\n1,x\n,x\n", "1 value missing in 1 row ('a' 1) (line 4)"),
        ("a,label\n1,x\nnan,x\n", "1 value missing in 1 row ('a' 1) (line 3)"),
        ("a,label\n1,x\ninf,x\n", "in column 'a' 1 value infinite or too large (line 3)"),
        ("a,label\n1,x\n2,\n", "column 'label' has no value in 1 row (line 3)"),
        ("a,label\n1,x\n2,  \n", "column 'label' has no value in 1 row (line 3)"),
        ("a,label\n1,0.5\n2,1\n", "use task = 'regression'"),
        ("a,label\n1,0\n2,nan\n", "in label column 'label' 1 value not a class ('nan') (line 3)"),
        ("a,label\n1,0\n2,inf\n", "in label column 'label' 1 value not a class ('inf') (line 3)"),
    ],
)
def test_damage_in_csv_is_told(tmp_path, text, message):
    with pytest.raises(DataError) as error:
        read_table(csv(tmp_path, text))
    assert message in str(error.value)


def test_csv_in_another_encoding_is_told(tmp_path):
    with pytest.raises(DataError, match="not a CSV text in UTF-8"):
        read_table(csv(tmp_path, "a,label\n1,Käse\n", "latin-1"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1, None], "label": [0, 1]}, "1 value missing in 1 row ('a' 1) (row 2)"),
        ({"a": [1.0, float("nan")], "label": [0, 1]}, "1 value missing in 1 row ('a' 1) (row 2)"),
        ({"a": [[1, 2], [3, 4]], "label": [0, 1]}, "('a': lists or objects)"),
        ({"a": [[1], [3, 4]], "label": [0, 1]}, "('a': lists or objects)"),
        ({"a": [datetime.date(2021, 1, 1)], "label": [0]}, "('a': dates (for an ordered"),
        ({"a": pyarrow.array([], pyarrow.int64()), "label": pyarrow.nulls(0)}, "has no rows"),
    ],
)
def test_damage_in_parquet_is_told(tmp_path, columns, message):
    with pytest.raises(DataError) as error:
        read_table(parquet(tmp_path, **columns))
    assert message in str(error.value)


def test_what_is_no_parquet_is_told(tmp_path):
    path = tmp_path / "t.parquet"
    path.write_bytes(b"text")
    with pytest.raises(DataError, match=r"t.parquet is not a parquet file"):
        read_table(path)


def test_missing_pyarrow_is_told(tmp_path, monkeypatch):
    path = parquet(tmp_path, a=[1], label=[1])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"fedmeta\[parquet\]"):
        read_table(path)
