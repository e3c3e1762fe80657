"""The iterates of a run, computed again, with F, its gradient and the Lagrangian at each.

Checkpoints hold the newest states alone, and no θ_i. But a seed fixes a run: its rounds, computed
again in the layout they were computed in, are the same to the last bit on the same machine. So the
run is recomputed, which costs what training did; what was logged tells whether it is the same run.
Every measurement is exact and in float64, whatever the run computed in, and costs about two rounds
more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedmeta.algorithms.admm_fedmeta import ADMMFedMeta
from fedmeta.algorithms.algorithm import NodeState, PlatformState
from fedmeta.config.training import loss_of
from fedmeta.core.errors import ModelError, RunFolderError, SettingError
from fedmeta.core.objective import Adaptation, Objective
from fedmeta.core.run_folder import Record
from fedmeta.core.tree import Tree, map_leaves, size
from fedmeta.data.federation import Node
from fedmeta.data.packing import pack
from fedmeta.engine.layout import predictor
from fedmeta.engine.machine import machine
from fedmeta.theory.lagrangian import (
    Moves,
    Snapshot,
    augmented_lagrangian,
    dual_residual,
    moves,
    primal_residual,
    snapshot,
)
from fedmeta.theory.problem import Problem
from fedmeta.training.job import Job

_COPIES = 6  # of all duals in float64 that a measurement holds at a time


@dataclass(frozen=True)
class Measurement:
    """What is measured at the start of a round, at the θ that its nodes were sent.

    Args:
        round: t.
        objective: F(θᵗ).
        gradient_norm: ‖∇F(θᵗ)‖, exact.
        lagrangian: 𝓛 after the nodes' steps; None where θ_i or a fixed ρ_i do not exist.
        primal: (Σ‖θ_i − θ‖²)^½, likewise.
        dual: ‖∇_θ𝓛‖, likewise.
        moved: how far everyone goes to the next round; None if that was not measured.
    """

    round: int
    objective: float
    gradient_norm: float
    lagrangian: float | None = None
    primal: float | None = None
    dual: float | None = None
    moved: Moves | None = None


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A run computed again.

    Args:
        measurements: in the order of rounds.
        iterates: θ of some rounds in float64, the meta-model last.
        adaptation: how the meta-model adapts, in full batches.
        rounds: how many were computed.
        deviation: the largest relative difference of a round's loss to the one that was logged.
    """

    measurements: tuple[Measurement, ...]
    iterates: tuple[Tree, ...]
    adaptation: Adaptation
    rounds: int
    deviation: float

    @property
    def theta(self) -> Tree:
        """The meta-model."""
        return self.iterates[-1]


def recompute(
    job: Job,
    history: Sequence[Record],
    every: int = 1,
    points: int = 2,
    on_round: Callable[[Record], None] | None = None,
) -> Trajectory:
    """Compute the logged rounds of a run again.

    Args:
        job: of ADMM-FedMeta, prepared as for the run.
        history: what was logged; as many rounds are computed.
        every: measure at every n-th round, and at the last.
        points: how many θ along the way to keep, besides the last.
        on_round: is given the record of every round that is done.
    """
    algorithm, rounds = diagnosable(job), len(history)
    if rounds == 0:
        raise RunFolderError("the run has no rounds to look at", "train for at least one")
    keep = {1 + round(place * rounds / points) for place in range(points)}
    measurements: list[Measurement] = []
    iterates: list[Tree] = []
    deviation, before = 0.0, None
    problem = problem_of(job, job.federation.sources, algorithm.inner)
    with machine(job.layout.execution):
        engine = job.engine()
        state, nodes = engine.start(job.model.theta)
        for number in range(1, rounds + 1):
            due = (number - 1) % every == 0 or number == rounds
            sent, rule = _in_float64(algorithm.model(state)), _full_batch(algorithm, state)
            duals = _in_float64(nodes.get("dual", {})) if due else {}
            if number in keep:
                iterates.append(sent)
            state, nodes, metrics = engine.round(state, nodes, number)
            logged = loss_of(history[number - 1])
            here = metrics.get("meta_loss")
            if here is not None and logged is not None:
                deviation = max(deviation, abs(here - logged) / max(abs(logged), 1e-30))
            if due:
                now = replace(problem, adaptation=rule)
                measured, taken = _measure(job, now, number, sent, duals, nodes)
                last = measurements[-1] if measurements else None
                if last and before is not None and taken is not None and last.round == number - 1:
                    measurements[-1] = replace(last, moved=moves(before, taken))
                measurements.append(measured)
                before = taken
            if on_round is not None:
                on_round(history[number - 1])
        iterates.append(_in_float64(algorithm.model(state)))
    adaptation = _full_batch(algorithm, state)
    return Trajectory(tuple(measurements), tuple(iterates), adaptation, rounds, deviation)


def diagnosable(job: Job) -> ADMMFedMeta:
    """The job's algorithm, if this job can be diagnosed."""
    if not isinstance(job.algorithm, ADMMFedMeta):
        raise SettingError(
            f"the run is one of {job.algorithm.name}, and the theorem is about admm-fedmeta",
            "diagnose a run of admm-fedmeta",
        )
    if any(isinstance(layer, nn.RNNBase) for layer in job.model.inference.modules()):
        raise ModelError(
            "the model has recurrent layers, for which many nodes cannot be computed at once",
            "diagnose a model without them",
        )
    nodes, parameters = len(job.federation.sources), size(job.model.theta)
    needed, budget = _COPIES * 8 * nodes * parameters, job.layout.execution.budget
    if needed > budget:
        raise SettingError(
            f"a look at {nodes} nodes of {parameters} parameters in float64 takes some "
            f"{needed / 2**30:.1f} GiB, more than the budget of {budget / 2**30:.1f}",
            "raise --memory, or diagnose a run of fewer nodes or a smaller model",
        )
    return job.algorithm


def problem_of(job: Job, nodes: Sequence[Node], rule: Adaptation) -> Problem:
    """What the run minimises over some nodes, with weights by their samples, in float64."""
    execution = replace(
        job.layout.execution, dtype="float64", precision="full", states="device", path="batched"
    )
    model = job.model.to(execution.torch_device, execution.torch_dtype)
    data = pack(job.federation, nodes, job.scaling, torch.float64)
    data = map_leaves(lambda leaf: leaf.to(execution.torch_device), data)
    sizes = torch.tensor([node.size for node in nodes], dtype=torch.float64)
    chunk = execution.chunk or 1
    if chunk < len(nodes):  # memory is short, and numbers are twice as long as in float32
        chunk = max(1, chunk // 2)
    prior = diagnosable(job).prior
    if prior is not None:
        prior = prior.fitted(model.theta) if prior.strength > 0 else None
    return Problem(
        Objective(predictor(model, execution), job.loss),
        rule,
        data,
        (sizes / sizes.sum()).to(execution.torch_device),
        prior,
        chunk,
    )


def penalties_of(job: Job) -> Tensor:
    """ρ_i of every source in float64; w_i under an automatic penalty."""
    sources = job.federation.sources
    sizes = torch.tensor([node.size for node in sources], dtype=torch.float64)
    return diagnosable(job).penalties([node.name for node in sources], sizes / sizes.sum())


def full_participation(job: Job) -> bool:
    """Whether every node is counted in every round."""
    return job.spec.participation.fraction == 1 and job.spec.participation.lost == 0


def _measure(
    job: Job, problem: Problem, number: int, sent: Tree, before: Tree, nodes: NodeState
) -> tuple[Measurement, Snapshot | None]:
    measured = Measurement(number, problem.value(sent), problem.gradient_norm(sent))
    if not before or not full_participation(job):
        return measured, None
    rho = penalties_of(job).to(problem.weights.device)
    at = snapshot(sent, before, _in_float64(nodes["dual"]), rho)
    measured = replace(
        measured,
        lagrangian=augmented_lagrangian(problem, at, rho),
        primal=primal_residual(at),
        dual=dual_residual(problem, at, rho),
    )
    return measured, at


def _full_batch(algorithm: ADMMFedMeta, state: PlatformState) -> Adaptation:
    """How the meta-model of a state adapts, in full batches and with float64 step sizes."""
    rule = algorithm.adaptation(state)
    factors = None if rule.factors is None else _in_float64(dict(rule.factors))
    return replace(rule, batch_size=None, factors=factors)


def _in_float64(a: Tree) -> Tree:
    """A copy in float64."""
    return {name: leaf.to(torch.float64, copy=True) for name, leaf in a.items()}
