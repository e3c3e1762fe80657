"""Regularisers by name: what the setting `prior.kind` may say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedmeta.core import tree
from fedmeta.core.errors import SettingError, nearest
from fedmeta.core.tree import Tree
from fedmeta.core.user_code import is_code_name, load_object
from fedmeta.priors.bregman import Bregman
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
    if kind not in KINDS and not is_code_name(kind):
        raise SettingError(
            f"prior.kind is {kind!r}",
            f"{nearest(kind, KINDS)}; or name a convex h of your own as file.py:function",
        )


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
    if is_code_name(kind):
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
