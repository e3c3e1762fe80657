"""A teacher in the cloud: the model is held near to what it says of unlabelled inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor
from torch.nn.functional import log_softmax

from fedmeta.core.errors import DataError, SettingError, require, require_positive
from fedmeta.core.tree import Tree
from fedmeta.priors.regularizer import call_own, gradient_of


@dataclass(frozen=True, eq=False)
class TeacherKL:
    """λ · mean over inputs of KL(q ‖ p_θ), q = softmax(answers/T), p_θ = softmax(logits(θ)/T).

    Like `OutputKL`, but the teacher is known by its answers alone: it may be of any architecture,
    or no network at all. Its answers are fixed numbers, so a round costs a pass of the model over
    the inputs and none of the teacher. The platform computes it; nodes send nothing for it.

    Args:
        strength: λ ≥ 0.
        answers: the teacher's logits, or logarithms of its probabilities, (n, classes).
        predict: (θ, inputs) → logits, (n, classes); a `FunctionalModel` is one.
        inputs: unlabelled inputs, scaled as the model wants them, (n, *shape).
        temperature: T > 0; above 1 also the small probabilities count.

    Example:
        >>> import torch
        >>> def predict(theta, inputs):
        ...     return inputs * theta["a"]
        >>> sure = torch.tensor([[0.9, 0.1]]).log()
        >>> held = TeacherKL(1.0, sure, predict, torch.ones(1, 2))
        >>> held.value({"a": torch.zeros(2)})
        tensor(0.3681)
        >>> held.value({"a": torch.tensor([0.9, 0.1]).log()})  # the model says the same
        tensor(0.)

    Hinton, Vinyals, Dean, Distilling the knowledge in a neural network, 2015.
    """

    strength: float
    answers: Tensor
    predict: Callable[[Tree, Tensor], Tensor]
    inputs: Tensor
    temperature: float = 1.0

    def __post_init__(self) -> None:
        finite = 0 <= self.strength < float("inf")
        require(finite, "the prior's strength λ", self.strength, "a number of at least 0")
        require_positive("temperature", self.temperature)
        if self.inputs.ndim == 0 or len(self.inputs) == 0:
            raise DataError("there are no inputs to ask the teacher about", "give at least one")

    @property
    def prior(self) -> Tree:
        """No tensor of θ is tied: only what comes out of it."""
        return {}

    def value(self, theta: Tree) -> Tensor:
        """λ · mean KL(q ‖ p_θ)."""
        teacher = log_softmax(self.answers / self.temperature, dim=-1)
        student = log_softmax(self.predict(theta, self.inputs) / self.temperature, dim=-1)
        return self.strength * (teacher.exp() * (teacher - student)).sum(dim=-1).mean()

    def gradient(self, theta: Tree) -> Tree:
        """λ ∇_θ mean KL(q ‖ p_θ)."""
        return gradient_of(self.value, theta)

    def fitted(self, theta: Tree) -> Self:
        """The same on θ's device and in its dtype."""
        leaf = next(iter(theta.values()))
        dtype = leaf.dtype if self.inputs.is_floating_point() else self.inputs.dtype
        return replace(
            self,
            answers=self.answers.to(device=leaf.device, dtype=leaf.dtype),
            inputs=self.inputs.to(device=leaf.device, dtype=dtype),
        )

    def checked(self, theta: Tree) -> Self:
        """Fitted, and refused if the model's outputs are not for the teacher's classes."""
        fitted = self.fitted(theta)
        logits = call_own("predict of the initial model", self.predict, theta, fitted.inputs)
        if logits.shape != fitted.answers.shape:
            raise SettingError(
                f"the model's outputs have shape {tuple(logits.shape)}, the teacher's answers "
                f"{tuple(fitted.answers.shape)}",
                "use a teacher that knows the classes of this task",
            )
        return fitted
