"""A federated prototype classifier: features learned so that class means alone tell classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmeta.algorithms.algorithm import Contribution, NodeState
from fedmeta.algorithms.learners import MetaLearner
from fedmeta.core import tree
from fedmeta.core.errors import require
from fedmeta.core.meta_gradient import meta_gradient
from fedmeta.core.objective import PROTOTYPES, Adaptation, Facts, Objective
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree


@dataclass(frozen=True)
class Prototypes(MetaLearner):
    """Prototypical networks with the tasks on the nodes; a target takes no gradient step.

    Node:      μ_c from its support set, G_i = ∇_θ L(softmax(−τ‖h − μ_c‖²), D^q), through both
    Platform:  a step along −Σ w_i G_i / Σ w_i
    Target:    class means of its support set for a head

    The head's own parameters are never learned: G is 0 there, since means take their place.

    Args:
        inner: prototypes, with their sharpness for a step size; see `core.prototypes`.
        resplit: divide the samples of a node anew into support and query set before every step.

    Example:
        >>> Prototypes().passes
        Passes(support=2, query=1)

    Reference: Snell, Swersky, Zemel, Prototypical Networks for Few-shot Learning, NeurIPS 2017;
    among nodes: Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients,
    AAAI 2022 (which sends the means; here they stay on the node, and gradients are sent).
    """

    name: ClassVar[str] = "prototypes"

    inner: Adaptation = PROTOTYPES

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.inner.method == "prototypes",
            "inner.method",
            self.inner.method,
            '"prototypes", or another algorithm: fedmeta is the same with gradient steps',
        )
        exact = self.curvature == "exact"
        require(exact, "curvature", self.curvature, '"exact": means are differentiated as they are')

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """The gradient of the query loss through the class means."""
        gradient, loss = meta_gradient(objective, self.meta_gradient, theta, data, facts)
        metrics = {"meta_loss": facts.weight * loss}
        return Contribution(tree.scale(-facts.weight, gradient), facts.weight, metrics), node
