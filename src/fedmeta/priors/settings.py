"""The table [prior]: which earlier model, by which divergence, how strongly.

And regularisers by name: what the setting `prior.kind` may say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from fedmeta.core import tree
from fedmeta.core.errors import (
    DataError,
    RunFolderError,
    SettingError,
    nearest,
    require,
    require_positive,
)
from fedmeta.core.tree import Tree
from fedmeta.core.user_code import load_object, names_code
from fedmeta.data.pool import normalised_inputs
from fedmeta.data.readers.image_folder import read_image_folder
from fedmeta.data.readers.npz import plain_arrays
from fedmeta.data.readers.table import read_table
from fedmeta.models.losses import squared_error
from fedmeta.models.meta_model import MetaModel, describing_file, load_theta
from fedmeta.models.networks import ModelSettings
from fedmeta.priors.bregman import Bregman
from fedmeta.priors.importance import importance_file, read_importance
from fedmeta.priors.outputs import OutputKL
from fedmeta.priors.positive import GeneralisedKL, ItakuraSaito, PositiveParameters
from fedmeta.priors.quadratic import SquaredEuclidean, SquaredMahalanobis
from fedmeta.priors.regularizer import Regularizer

KINDS = ("euclidean", "fisher", "path", "outputs", "generalised-kl", "itakura-saito")
WEIGHTED = ("fisher", "path")
"""Kinds that need an importance."""
ON_OUTPUTS = ("outputs", "generalised-kl", "itakura-saito")
"""Kinds that can compare what models predict."""

Predict = Callable[[Tree, Tensor], Tensor]


def require_kind(kind: str) -> None:
    """Refuse a kind that is neither built in nor names code."""
    if kind not in KINDS and not names_code(kind):
        raise SettingError(
            f"prior.kind is {kind!r}",
            f"{nearest(kind, KINDS)}; or name a convex h of your own as file.py:function",
        )


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
    own = network if network is not None and names_code(network.name) else None
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
        return model.scaled(normalised_inputs(plain_arrays(path, ["x"])["x"], path.name))
    if kind not in (".csv", ".parquet"):
        raise DataError(f"{path} is of a kind that is not read", "give .npz, .csv or .parquet")
    features = model.about.get("features")
    if not features:
        raise DataError(
            f"{path} is a table, but the prior model was not trained on one", "give an .npz file"
        )
    # Any feature stands for the label, which a table reader wants and nobody looks at.
    pool = read_table(path, task="regression", label=features[0], features=features)
    return model.scaled(pool.inputs)


def regularizer(
    kind: str,
    strength: float,
    theta: Tree,
    importance: Tree | None = None,
    *,
    predict: Predict | None = None,
    inputs: Tensor | None = None,
    temperature: float = 1.0,
) -> Regularizer:
    """λ D(θ, θ_p), with D chosen by name.

    | kind | D(θ, θ_p) |
    |---|---|
    | "euclidean" | ‖θ − θ_p‖² |
    | "fisher" | ½ Σ F(θ − θ_p)², elastic weight consolidation |
    | "path" | Σ Ω(θ − θ_p)², synaptic intelligence |
    | "outputs" | mean KL of predicted probabilities on `inputs` |
    | "generalised-kl", "itakura-saito" | of probabilities on `inputs`, or of softplus(θ) |
    | "file.py:function" | the Bregman divergence of that function, a convex h |

    Args:
        kind: see above.
        strength: λ ≥ 0.
        theta: θ_p, whole or in part.
        importance: F or Ω, for the kinds "fisher" and "path".
        predict: (θ, inputs) → logits, where outputs are compared; a `FunctionalModel` is one.
        inputs: what they are compared on, scaled as the model wants them.
        temperature: T > 0 of the kind "outputs".

    Example:
        >>> import torch
        >>> prior = {"a": torch.tensor([1.0])}
        >>> held = regularizer("fisher", 2.0, prior, {"a": torch.tensor([3.0])})
        >>> held.value({"a": torch.tensor([2.0])})
        tensor(3.)
    """
    require_kind(kind)
    if names_code(kind):
        return Bregman(strength, theta, load_object(kind, "convex h"))
    if kind == "euclidean":
        return SquaredEuclidean(strength, theta)
    if kind in WEIGHTED:
        if importance is None:
            raise SettingError(f"prior.kind is {kind!r} without an importance", "give one")
        factor = 0.5 if kind == "fisher" else 1.0
        return SquaredMahalanobis(strength, theta, tree.scale(factor, importance))
    if predict is not None and inputs is not None:
        if kind == "outputs":
            return OutputKL(strength, theta, predict, inputs, temperature)
        positive: Callable[[Tree], Tensor] = _Probabilities(predict, inputs)
    elif kind == "outputs":
        raise SettingError(
            'prior.kind is "outputs" without data to compare outputs on',
            "name unlabelled samples with prior.data, e.g. --prior-data FILE",
        )
    else:
        positive = PositiveParameters()
    cls = GeneralisedKL if kind == "generalised-kl" else ItakuraSaito
    return cls(strength, theta, positive)


@dataclass(frozen=True, eq=False)
class _Probabilities:
    """Predicted probabilities on some inputs, divided by their number: sums of them are means."""

    predict: Predict
    inputs: Tensor

    def __call__(self, theta: Tree) -> Tensor:
        leaf = next(iter(theta.values()))
        inputs = self.inputs.to(device=leaf.device, dtype=leaf.dtype)
        return self.predict(theta, inputs).softmax(dim=-1) / len(inputs)
