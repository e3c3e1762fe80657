"""A model file, opened: what it says of itself, and the runs of its graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from fedmeta_edge.checksum import checked_bytes
from fedmeta_edge.errors import EdgeError

Array = npt.NDArray[Any]
Weights = dict[str, npt.NDArray[np.float32]]
"""The parameters that adaptation moves, by the names they have in the graph."""

FORMAT = 1
_THETA, _ADAPTED = "theta/", "adapted/"


@dataclass(frozen=True, eq=False)
class Model:
    """An exported model.

    Args:
        session: of ONNX Runtime.
        checksum: SHA-256 of the file.
        adaptable: whether the file can adapt; if not, it can only predict.
        task: "classification" or "regression".
        outputs: numbers per sample.
        classes: their names, in the order of their numbers; empty for regression.
        input_shape: of one raw sample.
        features: names of the columns of a table, where it was trained on one.
        steps: adaptation steps that it was trained for.
        step_size: α.
        batch_size: samples per adaptation step; None: all.
        run: id of the training run.
    """

    session: onnxruntime.InferenceSession
    checksum: str
    adaptable: bool
    task: str
    outputs: int
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    features: tuple[str, ...]
    steps: int
    step_size: float | None
    batch_size: int | None
    run: str | None

    def step(
        self,
        inputs: Array,
        labels: Array,
        mask: Array,
        weights: Weights | None = None,
        step_size: float | None = None,
    ) -> Weights:
        """The weights after one adaptation step.

        Args:
            inputs: raw samples, (n, *input_shape).
            labels: (n,) class numbers, or (n, outputs) values.
            mask: (n,), 1 for a sample that counts and 0 for one that does not.
            weights: where to start; None: the meta-model.
            step_size: α; None: the model's own.
        """
        self.check_adaptable()
        given = self._feed(inputs, labels, mask, weights)
        if step_size is not None:
            given["step_size"] = np.array(step_size, np.float32)
        names = [each.name for each in self.session.get_outputs()]
        names = [name for name in names if name.startswith(_ADAPTED)]
        values = self.session.run(names, given)
        return {
            _THETA + name.removeprefix(_ADAPTED): value
            for name, value in zip(names, values, strict=True)
        }

    def logits(self, inputs: Array, weights: Weights | None = None) -> Array:
        """What the network answers, (n, outputs)."""
        given: dict[str, Array] = {"inputs": np.asarray(inputs, np.float32)}
        if self.adaptable:  # its graph asks for labels even where only answers are wanted
            count = len(inputs)
            shape = (count,) if self.classes else (count, self.outputs)
            labels = np.zeros(shape, np.int64 if self.classes else np.float32)
            given = self._feed(inputs, labels, np.ones(count, np.float32), weights)
        elif weights is not None:
            raise EdgeError(
                "a model exported for inference has its weights inside",
                "leave the weights out, or export it with --adaptable",
            )
        (answers,) = self.session.run(["logits"], given)
        return np.asarray(answers)

    def check_adaptable(self) -> None:
        """Refuse to adapt what was exported for inference."""
        if not self.adaptable:
            raise EdgeError(
                "this model was exported for inference and cannot adapt",
                "export it again with --adaptable",
            )

    def _feed(
        self, inputs: Array, labels: Array, mask: Array, weights: Weights | None
    ) -> dict[str, Array]:
        given: dict[str, Array] = {
            "inputs": np.asarray(inputs, np.float32),
            "labels": np.asarray(labels, np.int64 if self.classes else np.float32),
            "mask": np.asarray(mask, np.float32),
        }
        return {**given, **(weights or {})}


def load(path: Path | str) -> Model:
    """Open a model file, after its checksum.

    Args:
        path: what `fedmeta export` wrote.
    """
    content, checksum = checked_bytes(Path(path))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # weights are inputs with defaults on purpose
    options.enable_cpu_mem_arena = False  # gives memory back, which is what small devices lack
    try:
        session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
        facts = json.loads(session.get_modelmeta().custom_metadata_map["fedmeta"])
        return _model(session, checksum, facts)
    except EdgeError:
        raise
    except Exception as error:  # the runtime has many kinds
        raise EdgeError(
            f"{path} cannot be opened ({str(error).splitlines()[0]})",
            "update fedmeta-edge and onnxruntime, or export it again",
        ) from error


def _model(session: onnxruntime.InferenceSession, checksum: str, facts: Mapping[str, Any]) -> Model:
    if facts["format"] != FORMAT:
        raise EdgeError(
            f"the model has format {facts['format']!r}, this version reads {FORMAT}",
            "update fedmeta-edge, or export it again",
        )
    rule = facts["adaptation"] or {}
    return Model(
        session,
        checksum,
        facts["kind"] == "adaptable",
        facts["task"],
        facts["outputs"],
        tuple(facts["classes"]),
        tuple(facts["input_shape"]),
        tuple(facts["features"]),
        rule.get("steps", 0),
        rule.get("step_size"),
        rule.get("batch_size"),
        facts["run"],
    )


def predict(model: Model, inputs: Array, weights: Weights | None = None) -> Array:
    """Class probabilities, or values for regression, (n, outputs).

    Args:
        model: from `load`.
        inputs: raw samples, (n, *input_shape).
        weights: from `adapt`; None: the model as it was exported.
    """
    logits = model.logits(inputs, weights)
    if not model.classes:
        return logits
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares


def classify(model: Model, inputs: Array, weights: Weights | None = None) -> list[str]:
    """Names of the most probable classes; see `predict`."""
    if not model.classes:
        raise EdgeError("a regression model has no classes", "use predict")
    return [model.classes[number] for number in model.logits(inputs, weights).argmax(axis=1)]
