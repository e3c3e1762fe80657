"""A meta-model as an .onnx file: for inference, or with the adaptation inside."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmeta.core.decision import candidate_rules
from fedmeta.core.errors import MissingExtraError, ModelError
from fedmeta.core.input_files import check_input
from fedmeta.core.storage import write_bytes
from fedmeta.data.scaling import Scaling
from fedmeta.export.activation_ranges import LAYERS, Ranges
from fedmeta.export.body import Apart, body_apart, body_file, check_body, features_graph
from fedmeta.export.checksum import with_checksum
from fedmeta.export.diagnosis import translated
from fedmeta.export.int8 import with_int8
from fedmeta.export.step import (
    ADAPTED,
    CONSTANTS,
    FIXED,
    MEANS,
    THETA,
    prediction_graph,
    prototype_head,
    step_graph,
)
from fedmeta.models.meta_model import MetaModel

_TOLERANCE = 1e-4
"""How far numbers may lie apart where what was written is compared with PyTorch, as a share."""


def export_onnx(
    model: MetaModel, path: Path, *, adaptable: bool, int8: Ranges | None = None
) -> None:
    """Write a model as an .onnx file, after a check that it computes what PyTorch does.

    Args:
        model: the meta-model, or one adapted by `MetaModel.adapt`.
        path: where to.
        adaptable: write the graph of an adaptation step, or of class means where the model adapts
            by those (see `fedmeta.export.step`), which predicts as well; else the graph of a
            prediction alone. A large frozen body becomes a file of its own beside it,
            NAME.body.onnx (see `fedmeta.export.body`).
        int8: ranges of what enters layers, to write those before the head in eight bits.

    Raises:
        ModelError: for a model that cannot be exported; it names the layer.
    """
    model = _plain(model)
    # What a file claims, before examples are made of it.
    check_input("an input of the model", 8 * math.prod(model.input_shape), 0)
    if adaptable and (apart := body_apart(model)) is not None:
        _export_pair(model, apart, path, int8)
        return
    graph = step_graph(model) if adaptable else prediction_graph(model)
    proto, facts = translated(model, graph), _facts(model, adaptable)
    float32 = copy.deepcopy(proto)
    content = with_checksum(float32, facts)
    _check(model, content, adaptable)
    if int8 is not None:
        with_int8(proto, _body(model, adaptable), int8)
        content = with_checksum(proto, {**facts, "int8": True})
        _check_runs(model, content, adaptable)
    write_bytes(path, content)


def _export_pair(model: MetaModel, apart: Apart, path: Path, int8: Ranges | None) -> None:
    """A frozen body, and the head that adapts on its features."""
    cut, head = apart
    proto = translated(model, features_graph(model, cut))
    about = {"kind": "body", "input_shape": list(model.input_shape)}
    body = with_checksum(copy.deepcopy(proto), about)
    check_body(model, cut, _opened(body))
    if int8 is not None:
        named = {id(each): name for name, each in model.network.inference.named_modules()}
        layers = {
            f"{CONSTANTS}{n}.weight": named[id(each)]
            for n, each in cut.body.named_modules()
            if isinstance(each, LAYERS)
        }
        with_int8(proto, layers, int8)
        body = with_checksum(proto, {**about, "int8": True})
        some = np.zeros((2, *model.input_shape), np.float32)
        if not np.isfinite(_opened(body).run(None, {"inputs": some})[0]).all():
            raise ModelError(
                "in eight bits the body gives numbers that are not finite", "export it in float32"
            )
    file = body_file(path)
    facts = {
        **_facts(model, True),
        "body": {
            "file": file.name,
            "sha256": hashlib.sha256(body).hexdigest(),
            "features": list(head.input_shape),
        },
    }
    content = with_checksum(translated(head, step_graph(head)), facts)
    _check(head, content, True)
    write_bytes(file, body)
    write_bytes(path, content)


def _body(model: MetaModel, adaptable: bool) -> dict[str, str]:
    """Weights of layers before the head, as the graph calls them, and their layers."""
    moves = model.adaptation.moves(model.theta) if adaptable else frozenset[str]()
    head = replace(model.adaptation, scope="head").moves(model.theta)
    layers = {f"{n}.weight": n for n, m in model.module().named_modules() if isinstance(m, LAYERS)}
    prefix = FIXED if adaptable else THETA
    return {prefix + n: layer for n, layer in layers.items() if n not in moves and n not in head}


def _plain(model: MetaModel) -> MetaModel:
    """The same in float32 on the CPU."""
    device, dtype = torch.device("cpu"), torch.float32
    network = model.network.to(device, dtype)
    theta = {name: leaf.detach().to(device, dtype) for name, leaf in model.theta.items()}
    return replace(model, network=network, theta=theta)


def _facts(model: MetaModel, adaptable: bool) -> Mapping[str, Any]:
    rule, values = model.adaptation, model.task.kind == "regression"
    adaptation: dict[str, Any] = {
        "steps": rule.steps,
        "step_size": rule.step_size,
        "batch_size": rule.batch_size,
    }
    if rule.method != "gradient":  # which files of older versions are
        adaptation["method"] = rule.method
    return {
        "kind": "adaptable" if adaptable else "inference",
        "task": model.task.kind,
        "outputs": model.task.outputs,
        "classes": list(model.task.class_names),
        "input_shape": list(model.input_shape),
        "features": list(model.about.get("features") or ()),
        "encoding": model.about.get("encoding"),
        "inputs": model.about.get("inputs"),
        "adaptation": adaptation if adaptable else None,
        "run": model.about.get("run"),
        "calibration": None if model.calibration is None else asdict(model.calibration),
        "label_unit": model.scaling.label_deviation(model.task.outputs).tolist()
        if values
        else None,
    }


def _check(model: MetaModel, content: bytes, adaptable: bool) -> None:
    """Run the file and compare, with samples that differ and with samples that are all the same."""
    try:
        session = _opened(content)
        for count in (1, 5):
            _compare(model, session, count, adaptable)
    except (ModelError, MissingExtraError):
        raise
    except Exception as error:  # the runtime has many kinds
        raise ModelError(
            f"the exported graph does not run ({str(error).splitlines()[0]})",
            "use layers like those of the built-in networks",
        ) from error


def _opened(content: bytes) -> Any:
    """A session of ONNX Runtime."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime, which checks .onnx files,", "onnx") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # weights are inputs with defaults on purpose
    return onnxruntime.InferenceSession(content, options)


def _check_runs(model: MetaModel, content: bytes, adaptable: bool) -> None:
    """Run what was rounded: it must give finite numbers."""
    session = _opened(content)
    count = 2
    given: dict[str, Any] = {"inputs": np.zeros((count, *model.input_shape), np.float32)}
    given["inputs"] += model.scaling.mean.astype(np.float32)
    if adaptable:
        values = np.zeros((count, model.task.outputs), np.float32)
        given["labels"] = np.zeros(count, np.int64) if model.task.class_names else values
        given["mask"] = np.ones(count, np.float32)
    if not all(np.isfinite(each).all() for each in session.run(None, given)):
        raise ModelError(
            "in eight bits the graph gives numbers that are not finite", "export it in float32"
        )


def _compare(model: MetaModel, session: Any, count: int, adaptable: bool) -> None:
    rng = np.random.default_rng(count)
    spread = rng.normal(size=(count, *model.input_shape)) * model.scaling.deviation
    inputs = (model.scaling.mean + spread).astype(np.float32)
    if model.scaling.tokens:
        inputs = rng.integers(model.network.vocabulary, size=inputs.shape).astype(np.float32)
    if model.network.calling is not None:
        rows = model.network.calling.parts.invented(count, model.network.vocabulary, rng)
        inputs = (model.scaling.mean + rows * model.scaling.deviation).astype(np.float32)
    else:
        inputs[0] = inputs[0].flat[0]  # equal numbers: ties wherever a maximum is taken
    given: dict[str, Any] = {"inputs": inputs}
    unit = model.scaling.labels or Scaling(np.zeros(()), np.ones(()))
    with torch.no_grad():
        outputs = model.network(model.theta, model.scaled(inputs))
    expected = {"logits": model.scaling.in_label_unit(outputs).numpy()}
    if adaptable:
        classes = model.task.class_names
        numbers = rng.integers(len(classes), size=count) if classes else None
        values = rng.normal(size=(count, model.task.outputs))
        values = (unit.mean + unit.deviation * values).astype(np.float32)
        given["labels"] = values if numbers is None else numbers
        given["mask"] = np.ones(count, np.float32)
        named = values if numbers is None else np.array(classes)[numbers]
        whole = replace(model, adaptation=replace(model.adaptation, batch_size=None))
        phi = whole.adapt(inputs, named, steps=1).theta
        moves = model.adaptation.moves(model.theta)
        expected |= {ADAPTED + name: phi[name].numpy() for name in phi if name in moves}
        if model.adaptation.method == "gradient" and prototype_head(model) is not None:
            rule = replace(candidate_rules(model.adaptation)["prototypes"], batch_size=None)
            means = replace(model, adaptation=rule).adapt(inputs, named).theta
            expected |= {MEANS + name: means[name].numpy() for name in rule.moves(means)}
    found = dict(zip(expected, session.run(list(expected), given), strict=True))
    for name, wanted in expected.items():
        size = unit.deviation if name == "logits" else 1.0  # of a small number, output by output
        room = _TOLERANCE * np.maximum(size, np.abs(wanted).max())
        if not bool((np.abs(found[name] - wanted) <= room).all()):
            error = float(np.abs(found[name] - wanted).max())
            raise ModelError(
                f"the exported graph gives other numbers than PyTorch ({name}, off by {error:.1g})",
                "use layers like those of the built-in networks",
            )
