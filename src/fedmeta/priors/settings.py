"""The table [prior]: which earlier model, by which divergence, how strongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedmeta.core.errors import (
    DataError,
    RunFolderError,
    SettingError,
    require,
    require_choice,
    require_positive,
)
from fedmeta.core.serialization import LATER
from fedmeta.core.tree import Tree
from fedmeta.data.encoding import Encoding, model_encoding
from fedmeta.data.pool import Array, normalised_inputs
from fedmeta.data.readers.image_folder import read_image_folder
from fedmeta.data.readers.npz import arrays_without_pickles
from fedmeta.data.readers.table import is_table, read_inputs
from fedmeta.models.meta_model import load_theta
from fedmeta.models.networks import ModelSettings
from fedmeta.models.teachers import GIVES, Gives, is_teacher, stored_teacher
from fedmeta.priors.generated import raw_generated
from fedmeta.priors.importance import UNIT, importance_file, normalised, read_importance
from fedmeta.priors.registry import ON_OUTPUTS, WEIGHTED, regularizer, require_kind
from fedmeta.priors.regularizer import Regularizer

GENERATED = "generated"
"""Of `prior.data`: there are none, they are made from the prior model."""
LIKE_THE_TASK = 1.0
"""λ = "auto" where outputs are held: their KL has the unit of the loss already."""


@dataclass(frozen=True)
class PriorSettings:
    """The model of earlier tasks that the meta-model is tied to.

    Args:
        model: run folder, checkpoint folder, model file or safetensors state dict, of the whole
            model or of some of its tensors; or a teacher of another shape, that is only asked:
            "file.py:load", an .onnx file, or an address (see `fedmeta.models.teachers`). None: no
            prior.
        strength: λ ≥ 0, or "auto", see `fedmeta.training.prior_strength`; 0 is no prior.
        kind: the divergence, see `fedmeta.priors.regularizer`; "auto": "outputs" where there are
            data to compare outputs on, else "fisher", normalised, where the model has that
            importance, else "euclidean".
        importance: file for the kinds "fisher" and "path"; None: the one in the run folder.
        data: unlabelled samples to compare outputs on: .npz (array x), .csv, .parquet, or a folder
            of images; "generated": inputs that are made from the prior model (`priors.generated`),
            where the platform has no data.
        temperature: T > 0 of the kind "outputs".
        answers: what a teacher gives: "probabilities" or "logits".
        timeout: seconds that an endpoint has for an answer.
        teacher: in Python, instead of a model: anything that is called with raw inputs,
            (n, *shape), and returns one row per input.

    Example:
        >>> PriorSettings("runs/large", data="unlabelled.npz").teaches
        True
    """

    model: str | None = None
    strength: float | Literal["auto"] = "auto"
    kind: str = "auto"
    importance: str | None = None
    data: str | None = None
    temperature: float = 1.0
    answers: Gives = field(default="probabilities", metadata=LATER)
    timeout: float = field(default=10.0, metadata=LATER)
    teacher: Callable[..., Any] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.kind != "auto":
            require_kind(self.kind)
        require_positive("prior.temperature", self.temperature)
        require_positive("prior.timeout", self.timeout)
        require_choice("prior.answers", self.answers, GIVES)
        if self.model is not None and self.teacher is not None:
            raise SettingError("prior.model and prior.teacher are both given", "leave one out")
        if self.strength != "auto":
            number = isinstance(self.strength, int | float) and 0 <= self.strength < float("inf")
            require(number, "prior.strength", self.strength, 'a number of at least 0, or "auto"')
            if self.strength > 0 and not self.given:
                raise SettingError(
                    f"prior.strength is {self.strength:g} but there is no prior model",
                    "name one with --prior RUN_OR_FILE",
                )
        for name, kinds in (("importance", WEIGHTED), ("data", ON_OUTPUTS)):
            if getattr(self, name) is not None and self.kind not in ("auto", *kinds):
                raise SettingError(
                    f"prior.{name} is set but prior.kind is {self.kind!r}",
                    f"leave it out, or use kind {' or '.join(kinds)}",
                )
        if self._only_asked and self.kind not in ("auto", "outputs"):
            raise SettingError(
                f"prior.kind is {self.kind!r}, but a teacher that is only asked has no parameters",
                "leave prior.kind out",
            )
        if self._only_asked and self.data is None:
            raise SettingError(
                "the prior is a teacher, and there is nothing to ask it about",
                "name unlabelled samples with prior.data, e.g. --prior-data FILE",
            )
        if self._only_asked and self.data == GENERATED:
            raise SettingError(
                "prior.data is 'generated', but a teacher that is only asked has no gradients",
                "name unlabelled samples, or a run of fedmeta as prior",
            )

    @property
    def given(self) -> bool:
        """Whether there is a prior model."""
        return self.model is not None or self.teacher is not None

    @property
    def _only_asked(self) -> bool:
        return self.teacher is not None or (self.model is not None and is_teacher(self.model))

    @property
    def ties(self) -> bool:
        """Whether there is a prior that pulls: λ = 0 is none."""
        return self.given and self.strength != 0

    @property
    def divergence(self) -> str:
        """The kind, where "auto" leaves it open."""
        if self.kind != "auto":
            return self.kind
        if self._only_asked or self.data is not None:
            return "outputs"
        if self.importance is not None:
            return "fisher"
        known = self.model is not None and importance_file(Path(self.model), "fisher").is_file()
        return "fisher" if known else "euclidean"

    @property
    def known_strength(self) -> float | None:
        """λ, where nothing has to be trained to find it; None: see `training.prior_strength`."""
        if self.strength != "auto":
            return float(self.strength)
        if self.teaches:
            return LIKE_THE_TASK
        return UNIT if self.kind == "auto" and self.divergence == "fisher" else None

    @property
    def teaches(self) -> bool:
        """Whether it pulls by its answers on the platform's samples alone."""
        return self.ties and self.divergence == "outputs" and self.data is not None


def load_prior(settings: PriorSettings, network: ModelSettings | None = None) -> Regularizer | None:
    """The regulariser that the settings ask for, from the files they name; None: none.

    With strength "auto", where λ depends on what it is trained on, it is D itself (λ = 1).

    Args:
        settings: the table [prior].
        network: which network is trained; needed where outputs are compared and it is your own,
            since code is never loaded because a file names it.
    """
    if settings.model is None:
        return None
    path, kind = Path(settings.model), settings.divergence
    theta = load_theta(path)
    known = settings.known_strength
    strength = 1.0 if known is None else known
    importance = None
    if kind in WEIGHTED:
        importance = _importance(settings, kind, path, theta)
        importance = normalised(importance) if settings.kind == "auto" else importance
    if settings.data is None:
        return regularizer(kind, strength, theta, importance)
    model = stored_teacher(path, own_network(network))
    raw = (
        raw_generated(model)
        if settings.data == GENERATED
        else raw_samples(Path(settings.data), model_encoding(model.about))
    )
    return regularizer(
        kind,
        strength,
        theta,
        predict=model.network,
        inputs=model.scaled(raw),
        temperature=settings.temperature,
    )


def own_network(network: object) -> ModelSettings | None:
    """The network that a stored model needs to be given: one of your own, and no other."""
    own = isinstance(network, ModelSettings) and network.own_code is not None
    return network if isinstance(network, ModelSettings) and own else None


def _importance(settings: PriorSettings, kind: str, path: Path, theta: Tree) -> Tree:
    if settings.importance is not None:
        return read_importance(Path(settings.importance), theta, kind)
    file = importance_file(path, kind)
    if not file.is_file():
        remedy = (
            f"make it: fedmeta importance {path}"
            if kind == "fisher"
            else "train that run with --importance path"
        )
        where = f"run {path}" if path.is_dir() else f"{path} is not a run folder, it"
        raise RunFolderError(f"{where} has no importance of the kind {kind!r}", remedy)
    return read_importance(file, theta, kind)


def raw_samples(path: Path, encoding: Encoding | None) -> Array:
    """The samples in a file or folder as a pool holds them; labels are not looked at.

    Args:
        path: .npz with the array `x`, .csv or .parquet with the model's feature columns, or a
            folder of images, one folder per class whatever its name.
        encoding: of the columns of a table; None: the model was not trained on one.
    """
    kind = path.suffix.lower()
    if path.is_dir():
        return read_image_folder(path).inputs
    if not path.is_file():
        raise DataError(f"there is no file or folder {path} (prior.data)", "check the path")
    if kind == ".npz":
        return normalised_inputs(arrays_without_pickles(path, ["x"])["x"], path.name)
    if not is_table(path):
        raise DataError(f"{path} is of a kind that is not read", "give .npz, .csv or .parquet")
    if encoding is None:
        raise DataError(
            f"{path} is a table, but the prior model was not trained on one", "give an .npz file"
        )
    return read_inputs(path, encoding).inputs
