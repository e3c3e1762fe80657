"""Rounds by hand, for loops of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from fedmeta.algorithms import ADMMFedMeta, Algorithm
from fedmeta.algorithms.algorithm import NodeState, PlatformState
from fedmeta.config.spec import RunSpec
from fedmeta.core.tree import Tree
from fedmeta.data.federation import Federation
from fedmeta.data.scaling import Scaling
from fedmeta.engine.machine import machine
from fedmeta.evaluation.result import Evaluation
from fedmeta.models.meta_model import MetaModel
from fedmeta.models.networks import ModelSettings
from fedmeta.training.job import prepare
from fedmeta.training.teaching import taught


@dataclass(frozen=True, eq=False)
class SimulationState:
    """Where a simulation is.

    Args:
        round: how many rounds are done.
        platform: θ and what else the platform remembers.
        nodes: what nodes remember; a round writes into it, so go on from the newest state only.
    """

    round: int
    platform: PlatformState
    nodes: NodeState

    @property
    def theta(self) -> Tree:
        """θ, the parameters that the next round starts from."""
        return self.platform.theta

    def __repr__(self) -> str:
        """A line, however large the model is."""
        return f"SimulationState(after {self.round} rounds)"


class Simulation:
    """All nodes of a federation in this process, a round at a time.

    Args:
        federation: the nodes and their samples.
        model: any `nn.Module`, or settings of a built-in network.
        algorithm: what nodes and platform do.
        seed: of everything that is drawn.
        scaling: of inputs and labels; None: per feature and per output, from the source nodes.
        parts: further fields of a `RunSpec`: execution, participation, uplink, loss, …

    Example:
        >>> import fedmeta
        >>> federation = fedmeta.load(fedmeta.DataSettings("sinusoid", nodes=10), seed=0)
        >>> sim = Simulation(federation, fedmeta.ModelSettings("mlp"), fedmeta.FedAvg())
        >>> state = sim.start()
        >>> for _ in range(3):
        ...     state, metrics = sim.round(state)
        >>> state.round, sorted(metrics)[:2]
        (3, ['bytes_down', 'bytes_up'])
    """

    def __init__(
        self,
        federation: Federation,
        model: nn.Module | ModelSettings = ModelSettings(),
        algorithm: Algorithm = ADMMFedMeta(),
        *,
        seed: int = 0,
        scaling: Scaling | None = None,
        **parts: Any,
    ) -> None:
        spec = RunSpec(data=None, model=model, algorithm=algorithm, **parts).replaced(seed=seed)
        self._job = taught(prepare(spec, federation, scaling=scaling))
        self._engine = self._job.engine()

    def start(self) -> SimulationState:
        """Before the first round."""
        with machine(self._job.layout.execution):
            return SimulationState(0, *self._engine.start(self._job.model.theta))

    def round(self, state: SimulationState) -> tuple[SimulationState, dict[str, float]]:
        """One round: the next state and the numbers of the round."""
        number = state.round + 1
        with machine(self._job.layout.execution):
            result = self._engine.round(state.platform, state.nodes, number)
            metrics = dict(result.metrics)
        return SimulationState(number, result.state, result.nodes), metrics

    def evaluate(self, state: SimulationState) -> Evaluation | None:
        """The targets under the current model; None if there are none."""
        with machine(self._job.layout.execution):
            return self._job.evaluate(state.platform)

    def meta_model(self, state: SimulationState) -> MetaModel:
        """The current model, ready to adapt and predict."""
        return self._job.meta_model(state.platform, "simulation")
