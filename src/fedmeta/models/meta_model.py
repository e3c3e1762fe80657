"""The meta-model as an artefact: parameters, scaling, classes and adaptation rule in one file.

It is what training leaves and what a new device needs: `adapt` it to a dozen labelled samples and
`predict`. The file is safetensors with JSON in its header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedmeta.core import decision, randomness, step_sizes, tree
from fedmeta.core.calibration import SHARE, Calibration, margins
from fedmeta.core.errors import DataError, FedmetaError, ModelError, RunFolderError
from fedmeta.core.objective import Adaptation, Objective, adapt
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.sample_sets import Samples
from fedmeta.core.serialization import serialize
from fedmeta.core.storage import content_digest, read_tensors, write_tensors
from fedmeta.core.tree import Tree
from fedmeta.data.columns import table_of_frame
from fedmeta.data.encoding import model_encoding
from fedmeta.data.federation import Task
from fedmeta.data.pool import as_array, normalised_inputs
from fedmeta.data.readers.table import inputs_of_frame, labels_of_frame
from fedmeta.data.scaling import Scaling, check_tokens
from fedmeta.models.device_classes import class_numbers, with_device_classes
from fedmeta.models.features import cut_off, features_of
from fedmeta.models.functional import FunctionalModel
from fedmeta.models.in_notebooks import model_table
from fedmeta.models.losses import Loss
from fedmeta.models.model_facts import (
    FORMAT,
    RESTORE,
    calibration_of,
    check_step_sizes,
    loss_of,
    network_of,
    read_facts,
)
from fedmeta.models.networks import ModelSettings

FILE = "model.safetensors"
_STATE = "state.safetensors"  # of a checkpoint
_PICKLED = {".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt"}


@dataclass(frozen=True, eq=False, repr=False)
class MetaModel:
    """A trained (or adapted) model with everything a device needs to use it.

    Args:
        network: the network as a function of its parameters.
        theta: its parameters.
        scaling: what raw inputs, and labels that are values, are centred and divided by.
        task: what outputs mean.
        loss: what adaptation descends.
        adaptation: how it adapts, with its learned step sizes if it has any; they are kept on
            the device and in the dtype of the parameters.
        input_shape: of one raw sample.
        about: plain facts that travel with it (network settings, loss name, run id).
        calibration: how often source nodes were right by how sure the model was (see
            `core.calibration`); None for values, and where it was not counted.
    """

    network: FunctionalModel
    theta: Tree
    scaling: Scaling
    task: Task
    loss: Loss
    adaptation: Adaptation
    input_shape: tuple[int, ...]
    about: Mapping[str, Any]
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "adaptation", self.adaptation.fitted(self.theta))

    def __repr__(self) -> str:
        """A line, however large the network is."""
        size = sum(leaf.numel() for leaf in self.theta.values())
        shape, outputs = " × ".join(map(str, self.input_shape)), self.task.outputs
        return f"MetaModel({size:,} parameters, {shape} → {outputs} output{'s' * (outputs != 1)})"

    def _repr_html_(self) -> str:
        """The same for a notebook, with how it adapts."""
        about = str(self.about.get("network", {}).get("name", "of your own"))
        return model_table(about, self.theta, self.task, self.adaptation, self.input_shape)

    def adapt(
        self,
        inputs: Any,
        labels: npt.ArrayLike | Tensor | Sequence[str] | str,
        steps: int | None = None,
        seed: int = 0,
        *,
        decide: bool | Sequence[str] = False,
    ) -> MetaModel:
        """The model after a few gradient steps on labelled samples of a device.

        Args:
            inputs: raw samples, (n, *input_shape), or a table, whose columns go by their names;
                several inputs or sequences as `federate` takes them.
            labels: classes as they were called in training (or their numbers, where classes have
                names that are no numbers), or values for regression; of a table also the name
                of their column. Where labels are local, as in episodes, any: the adapted model has
                the device's own names.
            steps: how many steps; None takes the number it was trained for.
            seed: of mini-batches, where the adaptation draws any.
            decide: adapt only if it helps: the samples choose between no step, a head of class
                means, one step and several (see `core.decision`), or between the candidates that
                are named here. What they chose and why is in `about["decision"]`.
        """
        if isinstance(labels, str):
            labels = labels_of_frame(inputs, labels, self.task.kind)
        if self.task.local_labels and (raw := as_array(labels)).ndim == 1:
            texts = [str(value) for value in raw.tolist()]
            if (named := self.for_classes(texts)) is not self:
                return named.adapt(inputs, texts, steps, seed, decide=decide)
        rule = self.adaptation if steps is None else replace(self.adaptation, steps=steps)
        scaled, targets = self.scaled(inputs), self._labels(labels)
        if len(scaled) != len(targets) or len(scaled) == 0:
            raise DataError(
                f"there are {len(scaled)} samples and {len(targets)} labels to adapt to",
                "give at least one sample, and one label for each",
            )
        network, features = self._after_frozen(scaled)
        everyone = next(iter(self.theta.values())).new_ones(len(scaled))
        samples = Samples(features, targets, everyone)
        objective = Objective(lambda theta, x, _key: network(theta, x, None), self.loss)
        about, key = self.about, randomness.key(seed)
        if decide:
            among = None if decide is True else tuple(decide)
            rule, chosen = decision.decided(objective, rule, self.theta, samples, key, among)
            about = {**about, "decision": chosen}
        theta = adapt(objective, rule, self.theta, samples, key)
        after = self.adaptation.again if rule.steps > 0 else self.adaptation
        return replace(self, theta=theta, about=about, adaptation=after)

    def _after_frozen(self, inputs: Tensor) -> tuple[FunctionalModel, Tensor]:
        """What follows a frozen body, and the body's features: once, whatever the steps."""
        if not self.network.constants or (cut := cut_off(self.network, inputs[:2])) is None:
            return self.network, inputs
        return cut.rest, features_of(cut.body, inputs).to(inputs.device)

    def for_classes(self, names: Sequence[str]) -> MetaModel:
        """The same with a device's own class names, where labels are local to a device."""
        task = with_device_classes(self.task, names)
        return self if task is self.task else replace(self, task=task)

    def predict(self, inputs: Any) -> Tensor:
        """Outputs for raw samples: class probabilities, or values in the unit of the labels."""
        outputs = self._outputs(inputs)
        if self.task.kind == "classification":
            return outputs.softmax(dim=-1)
        return self.scaling.in_label_unit(outputs)

    def classify(self, inputs: Any) -> list[str]:
        """Names of the most probable classes."""
        if self.task.kind != "classification":
            raise ModelError("a regression model has no classes", "use predict")
        return [self.task.class_names[i] for i in self.predict(inputs).argmax(dim=-1).tolist()]

    def confidence(self, inputs: npt.ArrayLike | Tensor) -> Tensor:
        """The calibrated probability that the answer to each raw sample is right."""
        return self._calibrated().confidence(margins(self._outputs(inputs)))

    def answers(self, inputs: npt.ArrayLike | Tensor, abstain: float = SHARE) -> list[str | None]:
        """Names of the most probable classes, and None where the model had better not say.

        Args:
            inputs: raw samples, (n, *input_shape).
            abstain: share of samples to leave open, as it was on the source nodes.
        """
        least = self._calibrated().threshold(abstain)
        outputs = self._outputs(inputs)
        pairs = zip(outputs.argmax(dim=-1).tolist(), margins(outputs).tolist(), strict=True)
        return [self.task.class_names[i] if margin >= least else None for i, margin in pairs]

    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise ModelError(
                "the model has no calibration: it predicts values, or was trained by an older "
                "version, with dp or over a fleet",
                "train it again in one process",
            )
        return self.calibration

    def _outputs(self, inputs: npt.ArrayLike | Tensor) -> Tensor:
        with torch.no_grad():
            return self.network(self.theta, self.scaled(inputs))

    def module(self) -> nn.Module:
        """A plain `nn.Module` with these parameters (inputs and outputs are scaled)."""
        return self.network.module(self.theta)

    def save(self, path: Path | str) -> None:
        """Write the model to a file."""
        tensors = {
            **{f"theta/{name}": leaf for name, leaf in self.theta.items()},
            **{f"constants/{name}": leaf for name, leaf in self.network.constants.items()},
            **{f"scaling/{name}": leaf for name, leaf in self.scaling.tensors().items()},
            **{f"factors/{name}": leaf for name, leaf in (self.adaptation.factors or {}).items()},
        }
        facts = {
            "format": FORMAT,
            "task": asdict(self.task),
            "adaptation": serialize(self.adaptation),
            "head": self.adaptation.head,
            "input_shape": self.input_shape,
            **({} if self.calibration is None else {"calibration": asdict(self.calibration)}),
            **self.about,
        }
        # Within the text: two texts of a safetensors file have no order that can be relied on.
        facts["sha256"] = content_digest(tensors, json.dumps(facts))
        write_tensors(Path(path), tensors, {"fedmeta": json.dumps(facts)})

    @classmethod
    def load(
        cls,
        path: Path | str,
        network: nn.Module | ModelSettings | None = None,
        loss: Loss | None = None,
    ) -> MetaModel:
        """Read a model from its file or from a run folder.

        Args:
            path: a model file, or the folder of a finished run.
            network: the module it was trained as, needed when that was not a built-in one: code
                is never loaded because a file names it.
            loss: likewise for a loss of your own.
        """
        file = _file(Path(path))
        tensors, metadata = read_tensors(file, "meta-model")
        facts = read_facts(file, metadata)
        known = facts.pop("sha256", None)  # older files have none
        try:
            task = Task(**{**facts["task"], "class_names": tuple(facts["task"]["class_names"])})
            scope, head = facts["adaptation"]["scope"], facts.get("head")  # older files have none
            rule = Adaptation(
                **{
                    **facts["adaptation"],
                    "scope": scope if isinstance(scope, str) else tuple(scope),
                    "factors": _part(tensors, "factors") or None,
                    "head": None if head is None else tuple(map(str, head)),
                }
            )
            shape = tuple(facts["input_shape"])
            theta = _part(tensors, "theta")
            constants, scaling = _part(tensors, "constants"), _part(tensors, "scaling")
            most = tree.size(theta) + tree.size(constants)
            model = network_of(file, facts, network, shape, task, most)
            chosen = loss if loss is not None else loss_of(file, facts, task)
            check_same_tensors(model.theta, theta, str(file))
            if not tree.is_finite(theta):
                raise RunFolderError(f"{file} has NaN or infinite parameters", RESTORE)
            theta = {name: theta[name] for name in model.theta}  # files have an order of their own
            if unknown := [name for name in rule.head or () if name not in theta]:
                problem = f"its head has {unknown[0]!r}, which the model lacks"
                raise RunFolderError(f"{file} is damaged: {problem}", RESTORE)
            check_step_sizes(rule, theta, file)
            model = model.to(torch.device("cpu"), next(iter(theta.values())).dtype)
            model = model.with_constants(constants) if constants else model
            if known not in (None, content_digest(tensors, json.dumps(facts))):
                raise RunFolderError(f"{file} is damaged: its checksum is another", RESTORE)
            about = {k: v for k, v in facts.items() if k not in _OWN_FACTS}
            scaled, counted = Scaling.from_tensors(scaling), calibration_of(file, facts)
            return cls(model, theta, scaled, task, chosen, rule, shape, about, counted)
        except Exception as error:  # facts of all kinds meet checks of all kinds
            given = network is not None and isinstance(error, FedmetaError)
            if given or isinstance(error, RunFolderError):
                raise
            raise RunFolderError(
                f"{file} is not a complete meta-model ({type(error).__name__}: {error})",
                "use a model.safetensors that fedmeta wrote",
            ) from error

    def scaled(self, inputs: Any) -> Tensor:
        """Raw samples as the network wants them, checked; columns of a table go by their names."""
        table, encoding = table_of_frame(inputs), model_encoding(self.about)
        if table is not None and encoding is not None:
            inputs = inputs_of_frame(table, encoding)
        if self.network.calling is not None:
            inputs = self.network.calling.parts.rows(inputs)
        raw = as_array(inputs)
        if raw.dtype == np.uint8 and raw.ndim in (3, 4) and raw.shape[1:] != self.input_shape:
            raw = normalised_inputs(raw)  # images as people have them, channels last or none
        if raw.ndim == 0 or raw.shape[1:] != self.input_shape:
            raise DataError(
                f"samples have shape {raw.shape[1:]}, the model takes {self.input_shape}",
                "give (n, *shape) samples like those it was trained on",
            )
        if raw.dtype.kind not in "biuf" or not np.isfinite(raw).all():
            raise DataError(
                "the samples have NaN, infinite or non-numeric features", "clean them first"
            )
        first = next(iter(self.theta.values()))
        if self.scaling.tokens:
            check_tokens(raw, self.network.embeddings)
        return self.scaling.apply(raw, first.dtype).to(first.device)

    def _labels(self, labels: npt.ArrayLike | Tensor | Sequence[str]) -> Tensor:
        raw = as_array(labels)
        first = next(iter(self.theta.values()))
        if self.task.kind == "regression":
            values, outputs = raw[:, None] if raw.ndim == 1 else raw, self.task.outputs
            if values.shape[1:] != (outputs,) or values.dtype.kind not in "biuf":
                raise DataError(
                    f"labels have shape {raw.shape}",
                    f"give numbers, {outputs} per sample, shape (n, {outputs})",
                )
            if not np.isfinite(values).all():
                raise DataError("the labels have NaN or infinite values", "clean them first")
            return self.scaling.scaled_labels(values, first.dtype).to(first.device)
        if raw.ndim != 1:
            raise DataError(f"labels have shape {raw.shape}", "give one class per sample")
        places = class_numbers(self.task, raw)
        return torch.tensor(places, dtype=torch.int64, device=first.device)


_OWN_FACTS = frozenset({"format", "task", "adaptation", "head", "input_shape", "calibration"})


def load_theta(path: Path | str) -> Tree:
    """The parameters in a run, a checkpoint, a model file or a plain safetensors state dict."""
    state = Path(path) / _STATE
    file = state if state.is_file() else _file(Path(path))
    tensors, _ = read_tensors(file, "parameters")
    # In a checkpoint under an automatic penalty θ is still on trial; the model is this one.
    average, _ = step_sizes.split(_part(tensors, "memory/average"))
    return average or _part(tensors, "theta") or tensors


def load_scaling(path: Path | str) -> Scaling | None:
    """The scaling that parameters were trained with; None where no file has it."""
    file = describing_file(Path(path))
    stored = _part(read_tensors(file, "meta-model")[0], "scaling") if file is not None else {}
    return Scaling.from_tensors(stored) if {"mean", "deviation"} <= {*stored} else None


def describing_file(path: Path) -> Path | None:
    """The model file that belongs to parameters, as `load_theta` takes them, if there is one.

    For a checkpoint it is the one of its finished run. A plain state dict has none.
    """
    folder = path if path.is_dir() else path.parent
    file = folder.parent.parent / FILE if (folder / _STATE).is_file() else _file(path)
    if not file.is_file():
        return None
    return file if "fedmeta" in read_tensors(file, "meta-model")[1] else None


def _file(path: Path) -> Path:
    if path.suffix.lower() in _PICKLED and path.is_file():
        raise RunFolderError(
            f"{path} may hold pickled code, which is never run",
            "save the state dict by safetensors.torch.save_file",
        )
    if not path.is_dir():
        return path
    if not (path / FILE).exists():
        folder = RunFolder.open(path)
        if folder.has_ended() and folder.summary().get("status") == "diverged":
            raise RunFolderError(
                f"run {path} has no {FILE}: its training diverged",
                "train it again with a larger penalty or smaller steps",
            )
        raise RunFolderError(
            f"run {path} has no {FILE}: it has not finished",
            f"continue it with train --resume {path}",
        )
    return path / FILE


def check_same_tensors(expected: Tree, found: Tree, where: str) -> None:
    """Refuse parameters of another model, naming the first tensor that differs."""
    for name in {**expected, **found}:
        here, wanted = found.get(name), expected.get(name)
        if here is None or wanted is None or here.shape != wanted.shape:
            raise RunFolderError(
                f"{where} is of another model: tensor {name!r} is "
                f"{'absent' if here is None else tuple(here.shape)} there and "
                f"{'absent' if wanted is None else tuple(wanted.shape)} here",
                "use a file of the same model",
            )


def _part(tensors: Tree, prefix: str) -> Tree:
    start = f"{prefix}/"
    return {
        name.removeprefix(start): leaf for name, leaf in tensors.items() if name.startswith(start)
    }
