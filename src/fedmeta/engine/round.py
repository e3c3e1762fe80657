"""One round as two pure functions: the nodes' half, a map and a sum, and the platform's half."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import (
    Algorithm,
    Contribution,
    Fleet,
    Metrics,
    NodeState,
    PlatformState,
)
from fedmeta.core import tree
from fedmeta.core.objective import Facts, Objective
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.engine.cohort import Standing, facts_at
from fedmeta.engine.round_metrics import RoundMetrics
from fedmeta.engine.stacked_priors import Tensors, with_prior_tensors
from fedmeta.uplink.uplink import Uplink


class RoundResult(NamedTuple):
    """What a round leaves: the platform's state, all node states, and the numbers to log."""

    state: PlatformState
    nodes: NodeState
    metrics: RoundMetrics


@dataclass(frozen=True)
class NodesHalf:
    """What nodes do in a round with what they were sent.

    Args:
        algorithm: has the step of a node.
        objective: model and loss.
        uplink: what happens to a contribution on its way to the sum.
    """

    algorithm: Algorithm
    objective: Objective
    uplink: Uplink

    def of_node(
        self, shared: Tree, prior: Tensors, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """What one node sends in answer to `shared`, and its new state."""
        algorithm, own = with_prior_tensors(self.algorithm, prior), self.uplink.algorithm_part(node)
        contribution, state = algorithm.node_step(self.objective, shared, own, data, facts)
        return self.uplink.sent(contribution, node, state, facts)

    def of_chunk(
        self,
        shared: Tree,
        states: NodeState,
        data: NodeData,
        standing: Standing,
        moment: Tensor,
        prior: Tensors,
    ) -> tuple[Contribution, NodeState]:
        """Σ contributions and new states of some nodes, all at once.

        Args:
            shared: what the platform sent, see `Algorithm.broadcast`.
            states, data, standing: of the nodes, along a first axis.
            moment: the number of the round, a tensor so that it can be replayed.
            prior: the tensors of the algorithm's prior, if nodes are told it.
        """
        step = torch.func.vmap(partial(self.of_node, shared, prior))
        contributions, after = step(states, data, facts_at(standing, moment))
        contributions, after = self.uplink.judged(contributions, standing.weight, states, after)
        return self.uplink.added(contributions, standing.weight), after

    def of_single(
        self,
        shared: Tree,
        states: NodeState,
        data: NodeData,
        standing: Standing,
        moment: Tensor,
        prior: Tensors,
    ) -> tuple[Contribution, NodeState]:
        """The same for one node as it is, without padding; there is nobody to judge it by."""
        node, samples, facts = map_leaves(
            lambda leaf: leaf[0], (states, data, facts_at(standing, moment))
        )
        contribution, after = self.of_node(shared, prior, node, samples, facts)
        if self.uplink.judges:  # the same numbers, whichever way nodes are computed
            contribution.metrics["refused"] = torch.zeros_like(standing.weight[0])
        return contribution, map_leaves(lambda leaf: leaf.unsqueeze(0), after)


def platform_half(
    algorithm: Algorithm, before: PlatformState, total: Contribution, fleet: Fleet, weight: Tensor
) -> tuple[PlatformState, Metrics]:
    """The platform's step and all numbers of a round, from the sum of its contributions.

    Args:
        algorithm, before, total, fleet: see `Algorithm.platform_step`.
        weight: Σw_i of the nodes that were counted.
    """
    after, metrics = algorithm.platform_step(before, total, fleet)
    metrics = {**readable(total.metrics, weight), **metrics}  # the platform knows better
    # The last one is for us: NaN if a parameter is not finite, else 0.
    values = {**metrics, "": tree.zero_or_nan(after.theta)}
    return after, {name: value.to(torch.float64) for name, value in values.items()}


def readable(sums: dict[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
    """Summed scalars as people read them.

    Losses (names that end in "loss") are divided by Σw_i, the squared primal residual becomes a
    root, and everything else stays the sum it is.
    """
    values = {}
    for name, total in sums.items():
        if name == "primal_squared":
            values["primal_residual"] = total.sqrt()
        else:
            values[name] = total / weight if name.endswith("loss") else total
    return values
