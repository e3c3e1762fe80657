"""The table [prior]: which earlier model, by which divergence, how strongly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from fedmeta.core.errors import DataError, RunFolderError, SettingError, require, require_positive
from fedmeta.core.tree import Tree
from fedmeta.data.encoding import model_encoding
from fedmeta.data.pool import normalised_inputs
from fedmeta.data.readers.image_folder import read_image_folder
from fedmeta.data.readers.npz import arrays_without_pickles
from fedmeta.data.readers.table import is_table, read_inputs
from fedmeta.models.losses import squared_error
from fedmeta.models.meta_model import MetaModel, describing_file, load_theta
from fedmeta.models.networks import ModelSettings
from fedmeta.priors.importance import importance_file, read_importance
from fedmeta.priors.registry import ON_OUTPUTS, WEIGHTED, regularizer, require_kind
from fedmeta.priors.regularizer import Regularizer


@dataclass(frozen=True)
class PriorSettings:
    """The model of earlier tasks that the meta-model is tied to.

    Args:
        model: run folder, checkpoint folder, model file or safetensors state dict, of the whole
            model or of some of its tensors; None: no prior.
        strength: λ ≥ 0, or "auto", see `fedmeta.training.prior_strength`; 0 is no prior.
        kind: the divergence, see `fedmeta.priors.regularizer`.
        importance: file for the kinds "fisher" and "path"; None: the one in the run folder.
        data: unlabelled samples to compare outputs on: .npz (array x), .csv, .parquet, or a folder
            of images.
        temperature: T > 0 of the kind "outputs".
    """

    model: str | None = None
    strength: float | Literal["auto"] = "auto"
    kind: str = "euclidean"
    importance: str | None = None
    data: str | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        require_kind(self.kind)
        require_positive("prior.temperature", self.temperature)
        if self.strength != "auto":
            number = isinstance(self.strength, int | float) and 0 <= self.strength < float("inf")
            require(number, "prior.strength", self.strength, 'a number of at least 0, or "auto"')
            if self.strength > 0 and self.model is None:
                raise SettingError(
                    f"prior.strength is {self.strength:g} but there is no prior model",
                    "name one with --prior RUN_OR_FILE",
                )
        for name, kinds in (("importance", WEIGHTED), ("data", ON_OUTPUTS)):
            if getattr(self, name) is not None and self.kind not in kinds:
                raise SettingError(
                    f"prior.{name} is set but prior.kind is {self.kind!r}",
                    f"leave it out, or use kind {' or '.join(kinds)}",
                )

    @property
    def ties(self) -> bool:
        """Whether there is a prior that pulls: λ = 0 is none."""
        return self.model is not None and self.strength != 0


def load_prior(settings: PriorSettings, network: ModelSettings | None = None) -> Regularizer | None:
    """The regulariser that the settings ask for, from the files they name; None: none.

    With strength "auto", whose λ depends on what it is trained on, it is D itself (λ = 1).

    Args:
        settings: the table [prior].
        network: which network is trained; needed where outputs are compared and it is your own,
            since code is never loaded because a file names it.
    """
    if settings.model is None:
        return None
    path = Path(settings.model)
    theta = load_theta(path)
    strength = 1.0 if settings.strength == "auto" else float(settings.strength)
    importance = None
    if settings.kind in WEIGHTED:
        importance = _importance(settings, path, theta)
    if settings.data is None:
        return regularizer(settings.kind, strength, theta, importance)
    model = _described(path, network)
    return regularizer(
        settings.kind,
        strength,
        theta,
        predict=model.network,
        inputs=unlabelled(Path(settings.data), model),
        temperature=settings.temperature,
    )


def _importance(settings: PriorSettings, path: Path, theta: Tree) -> Tree:
    if settings.importance is not None:
        return read_importance(Path(settings.importance), theta, settings.kind)
    file = importance_file(path, settings.kind)
    if not file.is_file():
        remedy = (
            f"make it: fedmeta importance {path}"
            if settings.kind == "fisher"
            else "train that run with --importance path"
        )
        where = f"run {path}" if path.is_dir() else f"{path} is not a run folder, it"
        raise RunFolderError(f"{where} has no importance of the kind {settings.kind!r}", remedy)
    return read_importance(file, theta, settings.kind)


def _described(path: Path, network: ModelSettings | None) -> MetaModel:
    """The prior as a meta-model, for its network and the scaling of its inputs."""
    file = describing_file(path)
    if file is None:
        raise RunFolderError(
            f"{path} does not say which network and input scaling it is of",
            "to compare outputs, name a finished run or its model.safetensors as prior",
        )
    own = network if network is not None and network.own_code is not None else None
    model = MetaModel.load(file, own, squared_error)  # its loss is not used here
    if model.task.kind != "classification":
        raise SettingError("a regression model predicts no probabilities", "use another prior.kind")
    return model


def unlabelled(path: Path, model: MetaModel) -> Tensor:
    """The samples in a file or folder, scaled as a model wants them; labels are not looked at.

    Args:
        path: .npz with the array `x`, .csv or .parquet with the model's feature columns, or a
            folder of images, one folder per class whatever its name.
        model: what they are for.
    """
    kind = path.suffix.lower()
    if path.is_dir():
        return model.scaled(read_image_folder(path).inputs)
    if not path.is_file():
        raise DataError(f"there is no file or folder {path} (prior.data)", "check the path")
    if kind == ".npz":
        return model.scaled(normalised_inputs(arrays_without_pickles(path, ["x"])["x"], path.name))
    if not is_table(path):
        raise DataError(f"{path} is of a kind that is not read", "give .npz, .csv or .parquet")
    encoding = model_encoding(model.about)
    if encoding is None:
        raise DataError(
            f"{path} is a table, but the prior model was not trained on one", "give an .npz file"
        )
    return model.scaled(read_inputs(path, encoding).inputs)
