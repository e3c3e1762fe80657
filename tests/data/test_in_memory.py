"""Federations from data frames and from clients; models that match columns by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import fedmeta
from fedmeta.core.errors import DataError, SettingError


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Samples one by one, without a length."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.pairs = list(zip(x, y, strict=True))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pairs)


def frame(rows: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    return pd.DataFrame(
        {
            "heat": x[:, 0],
            "noise": x[:, 1] * 50 + 7,
            "mode": np.where(x[:, 1] > 0, "loud", "calm"),
            "device": [f"d{i // 10}" for i in range(rows)],
            "state": np.where(x[:, 0] > 0, "hot", "cold"),
        }
    )


@pytest.fixture(scope="module")
def model() -> fedmeta.MetaModel:
    federation = fedmeta.federate(frame(), "state", "device")
    return fedmeta.train(federation, fedmeta.ModelSettings("linear"), rounds=3).meta_model


def test_columns_go_by_their_names(model: fedmeta.MetaModel) -> None:
    data = frame()
    x = data[["heat", "noise", "mode"]]
    expected = model.predict(x)
    backwards = x[x.columns[::-1]]
    assert torch.equal(model.predict(backwards), expected)
    assert model.classify(backwards) == model.classify(x)
    assert torch.equal(model.predict(pa.Table.from_pandas(backwards)), expected)
    assert torch.equal(model.predict(data), expected)  # what training ignored is ignored
    one, other = (model.adapt(each, data["state"]) for each in (x, backwards))
    assert torch.equal(one.predict(x), other.predict(x))


def as_polars(table: pd.DataFrame) -> Any:
    polars = pytest.importorskip("polars")
    return polars.DataFrame({name: table[name].to_list() for name in table.columns})


@pytest.mark.parametrize("kind", [as_polars, pa.Table.from_pandas], ids=["polars", "pyarrow"])
def test_other_tables_are_as_good_as_pandas(kind: Any, model: fedmeta.MetaModel) -> None:
    data = frame()
    table, backwards = kind(data), kind(data[data.columns[::-1]])
    federation, expected = (fedmeta.federate(each, "state", "device") for each in (table, data))
    assert federation.inputs.tolist() == expected.inputs.tolist()
    assert federation.labels.tolist() == expected.labels.tolist()
    assert federation.features == expected.features
    assert torch.equal(model.predict(backwards), model.predict(data))
    assert model.classify(backwards) == model.classify(data)
    adapted = [
        model.adapt(table, table["state"]),
        model.adapt(backwards, "state"),
        model.adapt(data, data["state"]),
    ]
    assert len({tuple(each.predict(data)[:, 0].tolist()) for each in adapted}) == 1
    gone = kind(data.drop(columns="noise"))
    with pytest.raises(DataError, match="lacks 'noise', unlike the data"):
        model.predict(gone)
    with pytest.raises(DataError, match="no column 'stat': did you mean 'state'"):
        model.adapt(table, "stat")


def test_polars_gaps_and_lazy_frames(model: fedmeta.MetaModel) -> None:
    polars = pytest.importorskip("polars")
    data = as_polars(frame()).with_columns(polars.Series("level", [1, None] * 60))
    federation = fedmeta.federate(data.lazy(), "state", "device", missing="mean")
    assert "60 values missing in 60 rows ('level' 60)" in " ".join(federation.notes)
    assert np.isfinite(federation.inputs).all()
    with pytest.raises(DataError, match='say missing="mean"') as error:
        fedmeta.federate(data, "state", "device")
    assert "--" not in str(error.value)
    coded = as_polars(frame()).with_columns(polars.col("mode").cast(polars.Categorical))
    assert torch.equal(model.predict(coded), model.predict(frame()))


def test_labels_by_their_column_are_classes_as_they_are_called() -> None:
    numbers = frame().assign(state=lambda it: (it["heat"] > 0).astype(int))
    run = fedmeta.train(
        fedmeta.federate(numbers, "state", "device"), fedmeta.ModelSettings("linear"), rounds=2
    )
    assert run.meta_model.task.class_names == ("0", "1")
    named = run.meta_model.adapt(numbers, "state")
    assert torch.equal(
        named.predict(numbers), run.meta_model.adapt(numbers, numbers["state"]).predict(numbers)
    )
    with pytest.raises(DataError, match="'state' has no value in 1 row"):
        run.meta_model.adapt(numbers.assign(state=[None, *["1"] * 119]), "state")
    with pytest.raises(DataError, match="the samples are no table"):
        run.meta_model.adapt(np.zeros((2, 4)), "state")


def test_columns_that_are_missing_or_unknown_are_named(model: fedmeta.MetaModel) -> None:
    data = frame().rename(columns={"noise": "nois"})
    with pytest.raises(DataError, match=r"lacks 'noise' and has 'nois', unlike the data"):
        model.predict(data)
    with pytest.raises(DataError, match="'heat' 1 value not a number"):
        model.predict(frame(2).assign(heat=["1", "x"]))
    with pytest.raises(DataError, match="missing"):
        model.predict(frame(2).assign(heat=[1.0, np.nan]))


def test_a_saved_model_knows_its_categories(model: fedmeta.MetaModel, tmp_path) -> None:
    model.save(tmp_path / "m.safetensors")
    again = fedmeta.MetaModel.load(tmp_path / "m.safetensors")
    x = frame()[["mode", "noise", "heat"]]
    assert torch.equal(again.predict(x), model.predict(x))
    assert again.about["features"] == ["heat", "noise", "mode=calm", "mode=loud"]


def test_labels_and_nodes_beside_a_frame() -> None:
    data = frame()
    x = data[["heat", "noise"]]
    named = fedmeta.federate(data, "state", "device", features=("heat", "noise"))
    apart = fedmeta.federate(x, data["state"].to_numpy(), data["device"].to_numpy())
    assert apart.inputs.tolist() == named.inputs.tolist()
    assert apart.labels.tolist() == named.labels.tolist()
    assert [node.name for node in apart.nodes] == [node.name for node in named.nodes]
    with pytest.raises(SettingError, match="x is no table"):
        fedmeta.federate(np.zeros((4, 1)), "state")


def test_clients_are_a_federation() -> None:
    rng = np.random.default_rng(0)
    pairs = {f"c{i}": (rng.normal(size=(8, 3)), np.arange(8) % 2) for i in range(5)}
    federation = fedmeta.federate(pairs)
    assert [node.name for node in federation.nodes] == sorted(pairs)
    assert federation.nodes[2].size == 8
    sets = {
        name: torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
        for name, (x, y) in pairs.items()
    }
    again = fedmeta.federate(sets)
    assert again.inputs.tolist() == federation.inputs.tolist()
    assert again.labels.tolist() == federation.labels.tolist()
    assert len(fedmeta.federate(list(sets.values())).nodes) == 5
    loaders = {name: torch.utils.data.DataLoader(each, 4, True) for name, each in sets.items()}
    assert fedmeta.federate(loaders).inputs.tolist() == federation.inputs.tolist()
    streams = {name: Stream(*pair) for name, pair in pairs.items()}
    assert fedmeta.federate(streams).labels.tolist() == federation.labels.tolist()
    assert fedmeta.train(sets, fedmeta.ModelSettings("linear"), rounds=1).summary["rounds"] == 1


@pytest.mark.parametrize(
    "kind",
    [lambda table: table, as_polars, pa.Table.from_pandas],
    ids=["pandas", "polars", "arrow"],
)
def test_clients_with_a_table_each(kind: Any) -> None:
    data = frame()
    clients = {name: kind(part.drop(columns="device")) for name, part in data.groupby("device")}
    found, expected = fedmeta.federate(clients, "state"), fedmeta.federate(data, "state", "device")
    assert sorted(node.name for node in found.nodes) == sorted(n.name for n in expected.nodes)
    assert sorted(found.inputs.tolist()) == sorted(expected.inputs.tolist())
    first = next(iter(clients))
    with pytest.raises(SettingError, match="y names no column of them"):
        fedmeta.federate(clients)
    odd = {**clients, "new": kind(data.drop(columns=["device", "mode"]))}
    with pytest.raises(DataError, match=r"client 'new' has no table like .*'mode'\)"):
        fedmeta.federate(odd, "state")
    with pytest.raises(DataError, match="no table like"):
        fedmeta.federate({first: clients[first], "b": (np.zeros((2, 1)), [0, 1])}, "state")


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ({}, "no clients"),
        ({"a": 3}, "client 'a' is a int"),
        ({"a": torch.utils.data.TensorDataset(torch.zeros(4, 2))}, "client 'a' are no pairs"),
        ({"a": (np.zeros((2, 1)), np.zeros(3))}, "not as many labels"),
        (
            {"a": (np.zeros((2, 1)), [0, 1]), "b": (np.zeros((2, 2)), [0, 1])},
            r"shape \(1,\), of 'b'",
        ),
    ],
)
def test_clients_that_are_none_are_told(clients, words) -> None:
    with pytest.raises(DataError, match=words):
        fedmeta.federate(clients)
