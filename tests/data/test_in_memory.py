"""Federations from data frames and from clients; models that match columns by name."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import fedmeta
from fedmeta.core.errors import DataError, SettingError


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
    assert fedmeta.train(sets, fedmeta.ModelSettings("linear"), rounds=1).summary["rounds"] == 1


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ({}, "no clients"),
        ({"a": 3}, "client 'a' is a int"),
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
