"""What the model predicts, held near to what the prior model predicts: distillation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor
from torch.nn.functional import log_softmax

from fedmeta.core.errors import DataError, ModelError, SettingError, require_positive
from fedmeta.core.tree import Tree
from fedmeta.priors.regularizer import Divergence, call_own, gradient_of, require_shapes, unwrapped


@dataclass(frozen=True, eq=False)
class OutputKL(Divergence):
    """λ · mean over inputs of KL(p_{θ_p} ‖ p_θ), p_θ = softmax(logits(θ)/T).

    The gradient is computed by autograd. It shrinks as 1/T² for large T: give λ·T² to keep the
    pull of T = 1. The inputs are the platform's own, without labels; nodes send nothing for it.

    Args:
        strength: λ ≥ 0.
        prior: θ_p, with all tensors of θ, as logits need them all.
        predict: (θ, inputs) → logits, (inputs, classes), of one model for θ and θ_p; a
            `FunctionalModel` is one.
        inputs: unlabelled inputs, scaled as the model wants them, (n, *shape).
        temperature: T > 0; above 1 also the small probabilities count.
        classes: those that probabilities are of; empty: all.
        weights: of the inputs in the mean, (n,); None: alike.

    Example:
        >>> import torch
        >>> def predict(theta, inputs):
        ...     return inputs * theta["a"]
        >>> prior = OutputKL(1.0, {"a": torch.zeros(2)}, predict, torch.ones(3, 2))
        >>> prior.value({"a": torch.tensor([1.0, 0.0])})
        tensor(0.1201)
        >>> prior.value({"a": torch.tensor([5.0, 5.0])})  # other parameters, the same outputs
        tensor(0.)

    Hinton, Vinyals, Dean, Distilling the knowledge in a neural network, 2015; Li, Hoiem, Learning
    without forgetting, ECCV 2016.
    """

    predict: Callable[[Tree, Tensor], Tensor]
    inputs: Tensor
    temperature: float = 1.0
    classes: tuple[int, ...] = ()
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("temperature", self.temperature)
        if self.inputs.ndim == 0 or len(self.inputs) == 0:
            raise DataError("there are no inputs to compare outputs on", "give at least one")

    def value(self, theta: Tree) -> Tensor:
        """λ · mean KL(p_{θ_p} ‖ p_θ)."""
        teacher, student = self._log_probabilities(self.prior), self._log_probabilities(theta)
        each = (teacher.exp() * (teacher - student)).sum(dim=-1)
        if self.weights is None:
            return self.strength * each.mean()
        return self.strength * (self.weights * each).sum() / self.weights.sum()

    def _log_probabilities(self, theta: Tree) -> Tensor:
        logits = self.predict(theta, self.inputs) / self.temperature
        return log_softmax(logits[:, list(self.classes)] if self.classes else logits, dim=-1)

    def on(self, inputs: Tensor, weights: Tensor) -> Self:
        """The same divergence on other inputs."""
        return replace(self, inputs=inputs, weights=weights)

    def gradient(self, theta: Tree) -> Tree:
        """λ ∇_θ mean KL(p_{θ_p} ‖ p_θ)."""
        return gradient_of(self.value, theta)

    def checked(self, theta: Tree) -> Self:
        """Fitted, and refused if the logits of θ_p or of θ are none."""
        fitted = super().checked(theta)
        for point, where in ((fitted.prior, "prior"), (theta, "initial")):
            logits = call_own(f"predict of the {where} model", self.predict, point, fitted.inputs)
            if logits.ndim != 2 or len(logits) != len(fitted.inputs) or logits.shape[1] < 2:
                raise SettingError(
                    f"predict returns shape {tuple(logits.shape)} for {len(fitted.inputs)} inputs",
                    "return logits of at least two classes, one row per input",
                )
            if not bool(unwrapped(logits).isfinite().all()):
                raise ModelError(
                    f"the {where} model predicts NaN or infinite logits",
                    "look at the inputs and at their scaling",
                )
        return fitted

    def fitted(self, theta: Tree) -> Self:
        """The same on θ's device and in its dtype; refuses a prior that lacks a tensor."""
        fitted = super().fitted(theta)
        remedy = "use a prior of the whole model: predictions need every tensor"
        require_shapes("the prior model", fitted.prior, theta, remedy)
        leaf = next(iter(theta.values()))
        dtype = leaf.dtype if self.inputs.is_floating_point() else self.inputs.dtype
        return replace(fitted, inputs=self.inputs.to(device=leaf.device, dtype=dtype))
