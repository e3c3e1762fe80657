"""A meta-model as an .onnx file: for inference, or with the adaptation inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmeta.core.errors import MissingExtraError, ModelError
from fedmeta.core.storage import write_bytes
from fedmeta.export.checksum import with_checksum
from fedmeta.export.diagnosis import translated
from fedmeta.export.step import ADAPTED, prediction_graph, step_graph
from fedmeta.models.meta_model import MetaModel

_TOLERANCE = 1e-4
"""How far numbers may lie apart where what was written is compared with PyTorch, as a share."""


def export_onnx(model: MetaModel, path: Path, *, adaptable: bool) -> None:
    """Write a model as an .onnx file, after a check that it computes what PyTorch does.

    Args:
        model: the meta-model, or one adapted by `MetaModel.adapt`.
        path: where to.
        adaptable: write the graph of an adaptation step (see `fedmeta.export.step`), which predicts
            as well; else the graph of a prediction alone.

    Raises:
        ModelError: for a model that cannot be exported; it names the layer.
    """
    model = _plain(model)
    graph = step_graph(model) if adaptable else prediction_graph(model)
    content = with_checksum(translated(model, graph), _facts(model, adaptable))
    _check(model, content, adaptable)
    write_bytes(path, content)


def _plain(model: MetaModel) -> MetaModel:
    """The same in float32 on the CPU."""
    device, dtype = torch.device("cpu"), torch.float32
    network = model.network.to(device, dtype)
    theta = {name: leaf.detach().to(device, dtype) for name, leaf in model.theta.items()}
    return replace(model, network=network, theta=theta)


def _facts(model: MetaModel, adaptable: bool) -> Mapping[str, Any]:
    rule = model.adaptation
    adaptation = {"steps": rule.steps, "step_size": rule.step_size, "batch_size": rule.batch_size}
    return {
        "kind": "adaptable" if adaptable else "inference",
        "task": model.task.kind,
        "outputs": model.task.outputs,
        "classes": list(model.task.class_names),
        "input_shape": list(model.input_shape),
        "features": list(model.about.get("features") or ()),
        "adaptation": adaptation if adaptable else None,
        "run": model.about.get("run"),
    }


def _check(model: MetaModel, content: bytes, adaptable: bool) -> None:
    """Run the file and compare, with samples that differ and with samples that are all the same."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime, which checks .onnx files,", "onnx") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # weights are inputs with defaults on purpose
    try:
        session = onnxruntime.InferenceSession(content, options)
        for count in (1, 5):
            _compare(model, session, count, adaptable)
    except ModelError:
        raise
    except Exception as error:  # the runtime has many kinds
        raise ModelError(
            f"the exported graph does not run ({str(error).splitlines()[0]})",
            "use layers like those of the built-in networks",
        ) from error


def _compare(model: MetaModel, session: Any, count: int, adaptable: bool) -> None:
    rng = np.random.default_rng(count)
    spread = rng.normal(size=(count, *model.input_shape)) * model.scaling.deviation
    inputs = (model.scaling.mean + spread).astype(np.float32)
    inputs[0] = inputs[0].flat[0]  # equal numbers: ties wherever a maximum is taken
    given: dict[str, Any] = {"inputs": inputs}
    with torch.no_grad():
        expected = {"logits": model.network(model.theta, model.scaled(inputs)).numpy()}
    if adaptable:
        classes = model.task.class_names
        numbers = rng.integers(len(classes), size=count) if classes else None
        values = rng.normal(size=(count, model.task.outputs)).astype(np.float32)
        given["labels"] = values if numbers is None else numbers
        given["mask"] = np.ones(count, np.float32)
        named = values if numbers is None else np.array(classes)[numbers]
        whole = replace(model, adaptation=replace(model.adaptation, batch_size=None))
        phi = whole.adapt(inputs, named, steps=1).theta
        moves = model.adaptation.moves(model.theta)
        expected |= {ADAPTED + name: phi[name].numpy() for name in phi if name in moves}
    found = dict(zip(expected, session.run(list(expected), given), strict=True))
    for name, wanted in expected.items():
        room = _TOLERANCE * max(1.0, float(np.abs(wanted).max()))
        if not np.allclose(found[name], wanted, rtol=0.0, atol=room):
            error = float(np.abs(found[name] - wanted).max())
            raise ModelError(
                f"the exported graph gives other numbers than PyTorch ({name}, off by {error:.1g})",
                "use layers like those of the built-in networks",
            )
