"""The contract between an algorithm and an engine: a map over nodes and one sum.

An algorithm is a frozen dataclass of hyper-parameters with a few pure functions on trees. A round:

    shared        = algorithm.broadcast(state)                            platform → nodes
    c_i, n_i      = algorithm.node_step(objective, shared, n_i, data_i, facts_i)     on every node
    state         = algorithm.platform_step(state, Σ c_i, fleet)          on the platform

Nothing but the sum Σ c_i crosses from nodes to platform, so the same functions run vectorised, in
chunks, or on machines far apart. What a node must remember (a dual) is its own state n_i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from fedmeta.core import tree
from fedmeta.core.meta_gradient import MetaGradient
from fedmeta.core.objective import Adaptation, Facts, Objective, Passes
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree
from fedmeta.priors.regularizer import Regularizer

A = TypeVar("A", bound="Algorithm")

NodeState = dict[str, Tree]
"""What a node keeps from round to round: trees by name. Empty for most algorithms."""


class Contribution(NamedTuple):
    """What a node adds to the sum.

    Args:
        update: the tree that is summed, as large as the model.
        weight: the number that is summed beside it (ρ_i or w_i).
        metrics: further scalars, summed as well; loss-like ones are already weighted by w_i.
    """

    update: Tree
    weight: Tensor
    metrics: dict[str, Tensor]


class LinearStep(NamedTuple):
    """A node's step that looks at one meta-gradient G, taken at what the node was sent.

        z = keep·y + gain·G                           y what it remembers, and z what it will
        update = share·z + extra·(z − y)
        metrics = meta_loss: loss·L(φ, D^q), primal_squared: moved·‖z − y‖²

    Engines that know how to take it in one pass over G read this in place of `node_step`.

    Args:
        rule: how G is computed.
        slot: where in its state the node keeps y; None: nowhere, y is 0.
        keep, gain, share, extra, loss, moved: a number for each node, see above; `moved` None: it
            is not told.
        weight: of the contribution.
        stream: what is folded into the node's key before it draws; None: nothing.
    """

    rule: MetaGradient
    slot: str | None
    keep: Tensor
    gain: Tensor
    share: Tensor
    extra: Tensor
    weight: Tensor
    loss: Tensor
    moved: Tensor | None
    stream: int | None = None


class Fleet(NamedTuple):
    """What the platform knows of all source nodes, whether they were counted this round or not.

    Args:
        penalty: Σρ_i over all of them.
        nodes: how many there are.
    """

    penalty: Tensor
    nodes: int


@dataclass(frozen=True)
class PlatformState:
    """Everything the platform keeps from round to round: plain tensors.

    Args:
        theta: the meta-model θ.
        memory: further trees by name (moments of an optimiser, Σy_i, …).
    """

    theta: Tree
    memory: Mapping[str, Tree] = field(default_factory=dict)


Metrics = dict[str, Tensor]


@runtime_checkable
class Algorithm(Protocol):
    """What an engine needs of an algorithm. Subclass it to inherit the defaults."""

    name: ClassVar[str]
    """How people call it: the value of `--algorithm`."""

    remedy: ClassVar[str] = "lower the step sizes"
    """What to do when training diverges."""

    inner: Adaptation = Adaptation()
    """How a node adapts within a round."""

    prior: Regularizer | None = None
    """What ties the model to an earlier one; an algorithm that takes one has a field for it."""

    @property
    def needs_losses(self) -> bool:
        """Whether the platform's step looks at the losses of the nodes."""
        return False

    @property
    def numberwise(self) -> bool:
        """Whether the platform's step treats all numbers of a model alike, but for sums over all.

        Then it may be handed a model as one vector, by a name of its own.
        """
        return False

    def penalties(self, names: Sequence[str], weights: Tensor) -> Tensor:
        """ρ_i of every source node, (I,); algorithms that average use w_i itself."""
        return weights

    def init(self, theta: Tree, fleet: Fleet) -> PlatformState:
        """The platform's state before the first round."""
        return PlatformState(theta)

    def init_node(self, theta: Tree, facts: Facts) -> NodeState:
        """A node's state before its first round."""
        return {}

    def with_newcomers(self, state: PlatformState, theta: Tree, newcomers: Fleet) -> PlatformState:
        """The platform's state once nodes have joined between two rounds.

        Args:
            state: before they did.
            theta: the θ that their own states start from, see `init_node`.
            newcomers: they alone.
        """
        return state

    def broadcast(self, state: PlatformState) -> Tree:
        """What every node is sent at the start of a round."""
        return state.theta

    def node_step(
        self,
        objective: Objective,
        theta: Tree,
        node: NodeState,
        data: NodeData,
        facts: Facts,
    ) -> tuple[Contribution, NodeState]:
        """What a node does with what it was sent; runs under vmap."""

    def linear_step(self, weight: Tensor, penalty: Tensor) -> LinearStep | None:
        """`node_step` as numbers, where it is a `LinearStep` whatever was sent; None: it is not.

        It stands beside `node_step`, in the same class, and says the same.

        Args:
            weight, penalty: w_i and ρ_i of some nodes.
        """
        return None

    def platform_step(
        self, state: PlatformState, total: Contribution, fleet: Fleet
    ) -> tuple[PlatformState, Metrics]:
        """What the platform does with the sum; the metrics are numbers to log.

        It is called in every round: where no upload arrived the sum and its weight are zero.
        """
        return average_step(state, total, 1.0)

    def model(self, state: PlatformState) -> Tree:
        """The meta-model as it stands; not always θ, which may be one that is still on trial."""
        return state.theta

    def adaptation(self, state: PlatformState) -> Adaptation:
        """How a target adapts this algorithm's model."""

    @property
    def passes(self) -> Passes:
        """Gradient passes of one node in one round, with full batches."""

    def gradients(self, support: int, query: int) -> float:
        """Gradients of single samples that a node with such sets computes in one round."""
        return self.passes.support * support + self.passes.query * query


def linear_step_of(algorithm: Algorithm, weight: Tensor, penalty: Tensor) -> LinearStep | None:
    """The algorithm's `linear_step`; None if a subclass has a `node_step` of its own since."""
    for each in type(algorithm).__mro__:
        own = vars(each)
        if "node_step" in own or "linear_step" in own:
            both = "node_step" in own and "linear_step" in own
            return algorithm.linear_step(weight, penalty) if both else None
    return None


def takes_prior(algorithm: Algorithm | type[Algorithm]) -> bool:
    """Whether an algorithm has a field for a prior.

    Example:
        >>> from fedmeta.algorithms import ADMMFedMeta, FedAvg
        >>> takes_prior(ADMMFedMeta), takes_prior(FedAvg())
        (True, False)
    """
    return is_dataclass(algorithm) and "prior" in {each.name for each in fields(algorithm)}


def with_prior(algorithm: A, prior: Regularizer | None) -> A:
    """The same algorithm with another prior; it must take one."""
    return replace(cast(Any, algorithm), prior=prior)  # type: ignore[no-any-return]


def mean_update(total: Contribution) -> Tree:
    """Σ update / Σ weight over the nodes that were counted; zero where none was."""
    inverse = torch.where(total.weight > 0, 1 / total.weight, torch.zeros_like(total.weight))
    return tree.scale(inverse, total.update)


def average_step(
    state: PlatformState, total: Contribution, length: float
) -> tuple[PlatformState, Metrics]:
    """θ⁺ = θ + ε Σ w_i(θ_i − θ) / Σ w_i, the platform's step of every averaging method."""
    step = tree.scale(length, mean_update(total))
    state = PlatformState(tree.add(state.theta, step), state.memory)
    return state, {"step_norm": tree.squared_norm(step).sqrt()}


def displacement(theta: Tree, local: Tree, facts: Facts, losses: Metrics) -> Contribution:
    """The contribution w_i(θ_i − θ) of a node that moved from θ to θ_i.

    Its metrics are the losses given, weighted by w_i, and the squared primal residual ‖θ_i − θ‖².
    """
    moved = tree.subtract(local, theta)
    metrics = {name: facts.weight * loss for name, loss in losses.items()}
    metrics["primal_squared"] = tree.squared_norm(moved)
    return Contribution(tree.scale(facts.weight, moved), facts.weight, metrics)
