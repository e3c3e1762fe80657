"""A model file, opened: what it says of itself, and the runs of its graph."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

from fedmeta_edge.calibration import SHARE, Calibration, margins
from fedmeta_edge.checksum import checked_bytes
from fedmeta_edge.errors import EdgeError
from fedmeta_edge.graph_check import check_graph
from fedmeta_edge.guarded_session import GuardedSession
from fedmeta_edge.parts import make_sense
from fedmeta_edge.signature import check_signature

Array = npt.NDArray[Any]
Weights = dict[str, npt.NDArray[np.float32]]
"""The parameters that adaptation moves, by the names they have in the graph."""

FORMAT = 1
_MOST, _MOST_STEPS = 2**28, 10_000
_AT_ONCE = 16  # samples that pass a body together
_THETA, _ADAPTED, _MEANS = "theta/", "adapted/", "prototypes/"


class Body(NamedTuple):
    """The frozen body of a model, an inference graph beside it.

    Args:
        file: its name, in the folder of the model file.
        session: runs it.
        features: shape of what it makes of a sample.
    """

    file: str
    session: GuardedSession
    features: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Model:
    """An exported model.

    Args:
        session: runs its graph.
        checksum: SHA-256 of the file.
        adaptable: whether the file can adapt; if not, it can only predict.
        task: "classification" or "regression".
        outputs: numbers per sample.
        classes: their names, in the order of their numbers; empty for regression.
        input_shape: of one raw sample.
        features: names of the columns of a table, where it was trained on one.
        steps: adaptation steps that it was trained for.
        step_size: α; of class means their sharpness.
        batch_size: samples per adaptation step; None: all.
        run: id of the training run.
        label_unit: what values were divided by in training, one number per output.
        calibration: how often source nodes were right by how sure the model was; None for values,
            and where it was not counted.
        columns: of a table, in order, each with the values that have an input of their own, if it
            is a category; empty: `features` are columns.
        means: of every input of a table, for missing values; empty: none may be missing.
        label: name of the label column in training, if it is known.
        text: how the texts of a column become samples, if they do.
        inputs: what a row holds side by side, where samples have several inputs; else empty.
        body: what makes features of samples, in a file of its own; None: the graph does it all.
        by_means: whether it adapts by class means for a head, and not by gradient steps.
    """

    session: GuardedSession
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
    label_unit: tuple[float, ...] = (1.0,)
    calibration: Calibration | None = None
    columns: tuple[tuple[str, tuple[str, ...]], ...] = ()
    means: tuple[float, ...] = ()
    label: str | None = None
    text: Mapping[str, Any] | None = None
    inputs: tuple[Mapping[str, Any], ...] = ()
    body: Body | None = None
    by_means: bool = False

    def body_features(self, inputs: Array) -> Array:
        """What the graph takes: features of the frozen body, where it has a file of its own.

        Args:
            inputs: raw samples, (n, *input_shape), or what this has made of them.
        """
        if self.body is None or inputs.shape[1:] == self.body.features:
            return inputs
        raw = np.asarray(inputs, np.float32)
        parts = [raw[at : at + _AT_ONCE] for at in range(0, len(raw), _AT_ONCE)]
        found = [self.body.session.run(["features"], {"inputs": part})[0] for part in parts]
        return np.concatenate(found)

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
        return self._weights(_ADAPTED, given)

    @property
    def has_prototypes(self) -> bool:
        """Whether its graph gives a head of class means; files of older versions do not."""
        return any(name.startswith(_MEANS) for name in self.session.outputs)

    def prototypes(self, inputs: Array, labels: Array, mask: Array, weights: Weights) -> Weights:
        """The weights with the class means of some samples for a head; see `step`."""
        return {**weights, **self._weights(_MEANS, self._feed(inputs, labels, mask, weights))}

    def losses(self, inputs: Array, labels: Array, weights: Weights) -> npt.NDArray[np.float64]:
        """The loss of every sample, which adaptation descends."""
        if "losses" in self.session.outputs:
            mask = np.ones(len(inputs), np.float32)
            (found,) = self.session.run(["losses"], self._feed(inputs, labels, mask, weights))
            return np.asarray(found, np.float64)
        # A file of an older version: cross-entropy, or the squared error of standardised values.
        logits = self.logits(inputs, weights).astype(np.float64)
        if not self.classes:
            return np.asarray(np.square((logits - labels) / self.label_unit).mean(axis=1))
        shifted = logits - logits.max(axis=1, keepdims=True)
        norms = np.log(np.exp(shifted).sum(axis=1))
        return np.asarray(norms - shifted[np.arange(len(labels)), labels])

    def _weights(self, prefix: str, given: dict[str, Array]) -> Weights:
        """Outputs of the graph whose names begin so, as its inputs are called."""
        names = [name for name in self.session.outputs if name.startswith(prefix)]
        values = self.session.run(names, given)
        return {
            _THETA + name.removeprefix(prefix): value
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
            "inputs": np.asarray(self.body_features(inputs), np.float32),
            "labels": np.asarray(labels, np.int64 if self.classes else np.float32),
            "mask": np.asarray(mask, np.float32),
        }
        return {**given, **(weights or {})}


def load(path: Path | str, signed_by: Path | str | None = None) -> Model:
    """Open a model file, after its checksum and a look at what its graph is made of.

    Args:
        path: what `fedmeta export` wrote.
        signed_by: a PEM file with the public key of whoever must have signed it; None: anybody may
            have written it, and the checksum shows accidents alone.
    """
    file = Path(path)
    content, checksum = checked_bytes(file)
    if signed_by is not None:
        check_signature(file, content, Path(signed_by))
    check_graph(content)
    try:
        session = GuardedSession(content)
        facts = json.loads(session.metadata["fedmeta"])
        model = _model(session, checksum, facts)
        about = facts.get("body")
        return model if about is None else replace(model, body=_body(file.parent, about))
    except EdgeError:
        raise
    except Exception as error:  # the runtime has many kinds
        raise EdgeError(
            f"{path} cannot be opened ({(str(error).splitlines() or [type(error).__name__])[0]})",
            "update fedmeta-edge and onnxruntime, or export it again",
        ) from error


def _body(folder: Path, about: Mapping[str, Any]) -> Body:
    """The body that a model file names, in its folder and as it was exported."""
    file = folder / Path(str(about["file"])).name
    content, _ = checked_bytes(file)
    if hashlib.sha256(content).hexdigest() != about["sha256"]:
        raise EdgeError(
            f"{file} is not the body that the model was exported with",
            "copy both files of one export",
        )
    check_graph(content)
    features = tuple(about["features"])
    if not all(_whole(size, 1, _MOST) for size in features) or math.prod(features) > _MOST:
        raise EdgeError("the model's features make no sense", "export it again")
    return Body(file.name, GuardedSession(content), features)


def _model(session: GuardedSession, checksum: str, facts: Mapping[str, Any]) -> Model:
    if facts["format"] != FORMAT:
        raise EdgeError(
            f"the model has format {str(facts['format'])[:20]!r}, this version reads {FORMAT}",
            "update fedmeta-edge, or export it again",
        )
    rule = facts["adaptation"] or {}
    encoding = facts.get("encoding") or {}  # older files have none
    columns = [(each["name"], tuple(each["categories"])) for each in encoding.get("columns", ())]
    model = Model(
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
        tuple(facts.get("label_unit") or (1.0,)),
        _calibration(facts.get("calibration")),
        tuple(columns),
        tuple(encoding.get("means", ())),
        encoding.get("label"),
        encoding.get("text"),
        tuple(facts.get("inputs") or ()),
        by_means=rule.get("method", "gradient") != "gradient",  # older files have none
    )
    _check_facts(model)
    return model


def _calibration(counts: Mapping[str, Any] | None) -> Calibration | None:
    if not counts:
        return None
    how = counts.get("folds", 0), counts.get("decides", False)  # older files have neither
    return Calibration(tuple(counts["total"]), tuple(counts["correct"]), *how)


def _check_facts(model: Model) -> None:
    """Refuse facts that no model of fedmeta has."""
    shape = model.input_shape
    classes = model.outputs if model.task == "classification" else 0
    fits = {
        "task": model.task in ("classification", "regression"),
        "outputs": _whole(model.outputs, 1, _MOST),
        "classes": len(model.classes) == classes and all(isinstance(c, str) for c in model.classes),
        "input_shape": all(_whole(n, 1, _MOST) for n in shape) and math.prod(shape) <= _MOST,
        "features": all(isinstance(name, str) for name in model.features),
        "steps": _whole(model.steps, 0, _MOST_STEPS),
        "batch_size": model.batch_size is None or _whole(model.batch_size, 1, _MOST),
        "step_size": not model.adaptable or _number(model.step_size),
        "run": model.run is None or isinstance(model.run, str),
        "label_unit": all(map(_number, model.label_unit)),
        "calibration": model.calibration is None or model.calibration.makes_sense,
        "columns": all(isinstance(text, str) for name, of in model.columns for text in (name, *of)),
        "means": len(model.means) in (0, math.prod(shape)) and all(map(_finite, model.means)),
        "label": model.label is None or isinstance(model.label, str),
        "text or inputs": make_sense(model.text, model.inputs),
    }
    for name, right in fits.items():
        if not right:
            raise EdgeError(f"the model's {name} makes no sense", "export it again")


def _whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(value: object) -> bool:
    return _finite(value) and value > 0


def _finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and -math.inf < value < math.inf


def predict(model: Model, inputs: Array, weights: Weights | None = None) -> Array:
    """Class probabilities, or values for regression, (n, outputs).

    Args:
        model: from `load`.
        inputs: raw samples, (n, *input_shape).
        weights: from `adapt`; None: the model as it was exported.
    """
    logits = model.logits(inputs, weights)
    return probabilities(logits) if model.classes else logits


def probabilities(logits: Array) -> Array:
    """Of every class, (n, classes)."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares


def confidence(
    model: Model, inputs: Array, weights: Weights | None = None
) -> npt.NDArray[np.float64]:
    """The calibrated probability that the answer to each sample is right; see `predict`."""
    return calibrated(model).confidence(margins(model.logits(inputs, weights)))


def answers(
    model: Model, inputs: Array, weights: Weights | None = None, abstain: float = SHARE
) -> list[str | None]:
    """Names of the most probable classes, and None where the model had better not say.

    Args:
        model, inputs, weights: see `predict`.
        abstain: share of samples to leave open, as it was on the source nodes.
    """
    least, logits = calibrated(model).threshold(abstain), model.logits(inputs, weights)
    pairs = zip(logits.argmax(axis=1), margins(logits), strict=True)
    return [model.classes[number] if margin >= least else None for number, margin in pairs]


def calibrated(model: Model) -> Calibration:
    """What the source nodes counted, which the model must have."""
    if model.calibration is None:
        raise EdgeError(
            "the model has no calibration: it predicts values, or was trained by an older "
            "version, with dp or over a fleet",
            "train it again in one process and export it again",
        )
    return model.calibration


def classify(model: Model, inputs: Array, weights: Weights | None = None) -> list[str]:
    """Names of the most probable classes; see `predict`."""
    if not model.classes:
        raise EdgeError("a regression model has no classes", "use predict")
    return [model.classes[number] for number in model.logits(inputs, weights).argmax(axis=1)]
