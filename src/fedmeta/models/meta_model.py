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

from fedmeta.core import randomness, step_sizes, tree
from fedmeta.core.errors import DataError, ModelError, RunFolderError, SettingError
from fedmeta.core.objective import Adaptation, Objective, adapt
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.sample_sets import Samples
from fedmeta.core.serialization import serialize
from fedmeta.core.storage import read_tensors, write_tensors
from fedmeta.core.tree import Tree
from fedmeta.core.user_code import is_code_name
from fedmeta.data.federation import Task
from fedmeta.data.pool import as_array, normalised_inputs
from fedmeta.data.scaling import Scaling
from fedmeta.models.functional import FunctionalModel, functionalise
from fedmeta.models.losses import Loss, named_loss
from fedmeta.models.networks import ModelSettings, build

FORMAT = 1
FILE = "model.safetensors"
_STATE = "state.safetensors"  # of a checkpoint
_PICKLED = {".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt"}


@dataclass(frozen=True, eq=False, repr=False)
class MetaModel:
    """A trained (or adapted) model with everything a device needs to use it.

    Args:
        network: the network as a function of its parameters.
        theta: its parameters.
        scaling: what raw inputs are centred and divided by.
        task: what outputs mean.
        loss: what adaptation descends.
        adaptation: how it adapts, with its learned step sizes if it has any; they are kept on
            the device and in the dtype of the parameters.
        input_shape: of one raw sample.
        about: plain facts that travel with it (network settings, loss name, run id).
    """

    network: FunctionalModel
    theta: Tree
    scaling: Scaling
    task: Task
    loss: Loss
    adaptation: Adaptation
    input_shape: tuple[int, ...]
    about: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "adaptation", self.adaptation.fitted(self.theta))

    def __repr__(self) -> str:
        """A line, however large the network is."""
        size = sum(leaf.numel() for leaf in self.theta.values())
        shape = " × ".join(map(str, self.input_shape))
        return f"MetaModel({size:,} parameters, {shape} → {self.task.outputs} outputs)"

    def adapt(
        self,
        inputs: npt.ArrayLike | Tensor,
        labels: npt.ArrayLike | Tensor | Sequence[str],
        steps: int | None = None,
        seed: int = 0,
    ) -> MetaModel:
        """The model after a few gradient steps on labelled samples of a device.

        Args:
            inputs: raw samples, (n, *input_shape).
            labels: classes as they were called in training (or their numbers, where classes have
                names that are no numbers), or values for regression.
            steps: how many steps; None takes the number it was trained for.
            seed: of mini-batches, where the adaptation draws any.
        """
        rule = self.adaptation if steps is None else replace(self.adaptation, steps=steps)
        scaled, targets = self.scaled(inputs), self._labels(labels)
        if len(scaled) != len(targets) or len(scaled) == 0:
            raise DataError(
                f"there are {len(scaled)} samples and {len(targets)} labels to adapt to",
                "give at least one sample, and one label for each",
            )
        samples = Samples(scaled, targets, scaled.new_ones(len(scaled)))
        objective = Objective(lambda theta, x, _key: self.network(theta, x, None), self.loss)
        theta = adapt(objective, rule, self.theta, samples, randomness.key(seed))
        return replace(self, theta=theta)

    def predict(self, inputs: npt.ArrayLike | Tensor) -> Tensor:
        """Outputs for raw samples: class probabilities, or values for regression."""
        with torch.no_grad():
            outputs = self.network(self.theta, self.scaled(inputs))
        return outputs.softmax(dim=-1) if self.task.kind == "classification" else outputs

    def classify(self, inputs: npt.ArrayLike | Tensor) -> list[str]:
        """Names of the most probable classes."""
        if self.task.kind != "classification":
            raise ModelError("a regression model has no classes", "use predict")
        return [self.task.class_names[i] for i in self.predict(inputs).argmax(dim=-1).tolist()]

    def module(self) -> nn.Module:
        """A plain `nn.Module` with these parameters (it takes scaled inputs)."""
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
            "input_shape": self.input_shape,
            **self.about,
        }
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
        facts = _facts(file, metadata)
        try:
            task = Task(**{**facts["task"], "class_names": tuple(facts["task"]["class_names"])})
            scope = facts["adaptation"]["scope"]
            rule = Adaptation(
                **{
                    **facts["adaptation"],
                    "scope": scope if isinstance(scope, str) else tuple(scope),
                    "factors": _part(tensors, "factors") or None,
                }
            )
            shape = tuple(facts["input_shape"])
            model = _network(file, facts, network, shape, task)
            chosen = loss if loss is not None else _loss(file, facts, task)
            theta, constants, scaling = (
                _part(tensors, prefix) for prefix in ("theta", "constants", "scaling")
            )
            check_same_tensors(model.theta, theta, str(file))
            if not tree.is_finite(theta):
                raise RunFolderError(
                    f"{file} has NaN or infinite parameters", "restore it from a copy"
                )
            theta = {name: theta[name] for name in model.theta}  # files have an order of their own
            _check_step_sizes(rule, theta, file)
            model = replace(model, constants=constants or model.constants)
            about = {k: v for k, v in facts.items() if k not in _OWN_FACTS}
            return cls(
                model, theta, Scaling.from_tensors(scaling), task, chosen, rule, shape, about
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"{file} is not a complete meta-model ({type(error).__name__}: {error})",
                "use a model.safetensors that fedmeta wrote",
            ) from error

    def scaled(self, inputs: npt.ArrayLike | Tensor) -> Tensor:
        """Raw samples as the network wants them, checked."""
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
            return torch.tensor(values).to(first)
        if raw.ndim != 1:
            raise DataError(f"labels have shape {raw.shape}", "give one class per sample")
        numbers = {name: number for number, name in enumerate(self.task.class_names)}
        texts = [str(value) for value in raw.tolist()]
        unknown = [text for text in texts if text not in numbers]
        if not unknown:
            places = [numbers[text] for text in texts]
        elif raw.dtype.kind in "iu" and not any(name.lstrip("-").isdigit() for name in numbers):
            places = raw.tolist()  # classes with names of their own may be given by their number
            unknown = [text for text in texts if not 0 <= int(text) < len(numbers)]
        if unknown:
            raise DataError(
                f"the model knows no class {unknown[0]!r}",
                f"its classes are {', '.join(self.task.class_names[:20])}",
            )
        return torch.tensor(places, dtype=torch.int64, device=first.device)


_OWN_FACTS = frozenset({"format", "task", "adaptation", "input_shape"})


def load_theta(path: Path | str) -> Tree:
    """The parameters in a run, a checkpoint, a model file or a plain safetensors state dict."""
    state = Path(path) / _STATE
    file = state if state.is_file() else _file(Path(path))
    tensors, _ = read_tensors(file, "parameters")
    # In a checkpoint under an automatic penalty θ is still on trial; the model is this one.
    average, _ = step_sizes.split(_part(tensors, "memory/average"))
    return average or _part(tensors, "theta") or tensors


def load_scaling(path: Path | str) -> Scaling | None:
    """The scaling of the inputs that parameters were trained with; None where no file has it."""
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


def _check_step_sizes(rule: Adaptation, theta: Tree, file: Path) -> None:
    """Refuse a file whose learned step sizes are missing, of another model or no step sizes."""
    remedy = "restore it from a copy"
    if rule.factors is None:
        if rule.learned != "none":
            raise RunFolderError(f"{file} lacks the step sizes that its model learned", remedy)
        return
    try:
        factors = rule.fitted(theta).factors or {}
    except SettingError as error:
        raise RunFolderError(f"{file} is damaged: {error.problem}", remedy) from error
    for name, leaf in factors.items():
        if not bool((leaf.isfinite() & (leaf > 0)).all()):
            raise RunFolderError(
                f"{file} has step sizes of {name!r} that are not numbers greater than 0", remedy
            )


def _facts(file: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        facts = json.loads(metadata["fedmeta"])
        version = facts["format"]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise RunFolderError(
            f"{file} is a safetensors file but not a meta-model of fedmeta",
            "use the model.safetensors of a run folder",
        ) from error
    if version != FORMAT:
        raise RunFolderError(
            f"{file} has format {version!r}, this version reads {FORMAT}",
            "read it with the version of fedmeta that wrote it",
        )
    return dict(facts)


def _network(
    file: Path,
    facts: Mapping[str, Any],
    network: nn.Module | ModelSettings | None,
    shape: tuple[int, ...],
    task: Task,
) -> FunctionalModel:
    if isinstance(network, nn.Module):
        return functionalise(network)
    if network is None:
        stored = facts["network"]
        if "class" in stored or is_code_name(stored["name"]):
            raise RunFolderError(
                f"{file} was trained with a network of your own "
                f"({stored.get('class') or stored['name']})",
                "name that network again: --model on the command line, network= in Python",
            )
        network = ModelSettings(**stored)
    return functionalise(build(network, shape, task.outputs, seed=0))


def _loss(file: Path, facts: Mapping[str, Any], task: Task) -> Loss:
    name = facts["loss"]
    if is_code_name(name):
        raise RunFolderError(
            f"{file} was trained with a loss of your own ({name})",
            "name it again: --loss on the command line, loss= in Python",
        )
    return named_loss(name, task)


def _part(tensors: Tree, prefix: str) -> Tree:
    start = f"{prefix}/"
    return {
        name.removeprefix(start): leaf for name, leaf in tensors.items() if name.startswith(start)
    }
