"""What FedRep and FedBABU share: a body that is averaged, under a head that is not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution, Fleet, Metrics, PlatformState
from fedmeta.algorithms.fedavg import FedAvg
from fedmeta.core import tree
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Adaptation, Objective
from fedmeta.core.randomness import Purpose
from fedmeta.core.sample_sets import Samples, mini_batch
from fedmeta.core.tree import Tree


@dataclass(frozen=True)
class HeadAndBody(FedAvg):
    """An algorithm that trains a body for all nodes; the head is what `inner` moves.

    Uploads are as large as the model, with zeros for the head.
    """

    inner: Adaptation = Adaptation(step_size=0.1, steps=10, scope="head")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.scope == "all":
            raise SettingError(
                f"inner.scope is 'all', but it says which parameters are the head of {self.name}",
                'give "head" or name patterns of the head',
            )

    def head(self, theta: Tree) -> frozenset[str]:
        """Names of the head's parameters."""
        names = self.inner.moves(theta)
        if len(names) == len(theta):
            raise SettingError(
                f"the head is the whole model, so {self.name} has no body to train",
                "use a network of several layers, or name the head by inner.scope",
            )
        return names

    def body(self, theta: Tree) -> frozenset[str]:
        """Names of the body's parameters."""
        return frozenset(theta) - self.head(theta)

    def init(self, theta: Tree, fleet: Fleet) -> PlatformState:
        """θ, if it has a head and a body."""
        self.head(theta)
        return super().init(theta, fleet)

    def platform_step(
        self, state: PlatformState, total: Contribution, fleet: Fleet
    ) -> tuple[PlatformState, Metrics]:
        """The average of the bodies; whatever noise or rounding put into the head is left out."""
        head = self.head(state.theta)
        update = {
            name: torch.zeros_like(leaf) if name in head else leaf
            for name, leaf in total.update.items()
        }
        return super().platform_step(state, total._replace(update=update), fleet)

    def descent(
        self,
        objective: Objective,
        names: frozenset[str],
        theta: Tree,
        samples: Samples,
        steps: range,
        key: Tensor,
    ) -> tuple[Tree, list[Tensor]]:
        """Gradient steps of the named parameters alone; also the loss before each.

        Args:
            objective: model and loss.
            names: which parameters move.
            theta: where to start.
            samples: of the node.
            steps: their numbers within the round, which mini-batches are drawn by.
            key: the node's of the round.
        """
        losses = []
        for step in steps:
            batch = mini_batch(samples, self.batch_size, key, step)
            pass_key = objective.pass_key(key, Purpose.SUPPORT, step)
            gradient, loss = objective.partial_gradient_and_value(names, theta, batch, pass_key)
            losses.append(loss)
            theta = tree.descend_some(theta, self.step_size, gradient)
        return theta, losses
