"""One exported model of each kind, for all tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from export.exporting import meta_model
from fedmeta import Adaptation, MetaModel, ModelSettings
from fedmeta.export import export_onnx


class Exported(NamedTuple):
    """A model and its file."""

    model: MetaModel
    path: Path


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The network of the digits, which adapts with mini-batches of five."""
    model = meta_model(ModelSettings("mlp"), (1, 8, 8), 10, Adaptation(0.05, batch_size=5))
    path = tmp_path_factory.mktemp("edge") / "digits.onnx"
    export_onnx(model, path, adaptable=True)
    return Exported(model, path)


@pytest.fixture(scope="session")
def values(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A regression model of two named columns."""
    model = meta_model(ModelSettings("linear"), (2,), 1, Adaptation(0.1), "regression")
    model.about["features"].extend(["width", "height"])
    path = tmp_path_factory.mktemp("edge") / "values.onnx"
    export_onnx(model, path, adaptable=True)
    return Exported(model, path)


@pytest.fixture(scope="session")
def fixed(tmp_path_factory: pytest.TempPathFactory, values: Exported) -> Exported:
    """The same, for inference alone."""
    path = tmp_path_factory.mktemp("edge") / "fixed.onnx"
    export_onnx(values.model, path, adaptable=False)
    return Exported(values.model, path)
