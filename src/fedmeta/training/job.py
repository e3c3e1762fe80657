"""What is to be trained on what, for how long, and how it is laid out: checked and resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn

from fedmeta.algorithms.algorithm import Algorithm, PlatformState
from fedmeta.algorithms.step_learner import StepLearner
from fedmeta.config.execution import Execution
from fedmeta.core.errors import DataError, SettingError, require, require_whole
from fedmeta.core.objective import RECOMMENDED, RECOMMENDED_FOR_VALUES, Adaptation
from fedmeta.core.run_folder import Record
from fedmeta.core.serialization import to_plain
from fedmeta.core.tree import Tree
from fedmeta.data.augmentation import Augmentation
from fedmeta.data.federation import Federation
from fedmeta.data.packing import pack
from fedmeta.data.scaling import Scaling, fit_scaling
from fedmeta.engine.cohort import Cohort
from fedmeta.engine.layout import Layout
from fedmeta.engine.local import LocalEngine
from fedmeta.engine.machine import machine
from fedmeta.engine.ranks import Ranks
from fedmeta.engine.resolution import lay_out
from fedmeta.evaluation.evaluate import Evaluation, Targets, TargetStore, evaluate
from fedmeta.models.functional import FunctionalModel, check_on_samples, functionalise
from fedmeta.models.losses import Loss, check_loss, named_loss
from fedmeta.models.meta_model import MetaModel, check_same_tensors
from fedmeta.models.networks import ModelSettings, build
from fedmeta.priors import described
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.privacy import Exposure
from fedmeta.uplink.uplink import Uplink


@dataclass(frozen=True)
class TrainingSettings:
    """How long to train, and how often to look and to save.

    Args:
        rounds: T ≥ 0, platform updates.
        seed: of everything that is drawn.
        evaluate_every: rounds between evaluations on the targets; 0: only after the last round.
        evaluation_steps: numbers of adaptation steps to evaluate after, besides 0 and the
            adaptation's own.
        checkpoint_every: rounds between checkpoints.
        keep_checkpoints: how many of the newest stay on disk.
        patience: stop when the loss has not fallen for that many rounds; None: never.
    """

    rounds: int = 100
    seed: int = 0
    evaluate_every: int = 10
    evaluation_steps: tuple[int, ...] = (0, 1, 5)
    checkpoint_every: int = 10
    keep_checkpoints: int = 2
    patience: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "evaluation_steps", tuple(self.evaluation_steps))
        require_whole("rounds", self.rounds, 0)
        require(0 <= self.seed < 2**63, "seed", self.seed, "a whole number from 0 to 2⁶³ − 1")
        require(self.evaluate_every >= 0, "evaluate_every", self.evaluate_every, "0 or more")
        for name in ("checkpoint_every", "keep_checkpoints"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "a whole number ≥ 1")
        require(
            len(self.evaluation_steps) > 0 and min(self.evaluation_steps) >= 0,
            "evaluation_steps",
            self.evaluation_steps,
            "whole numbers of at least 0, e.g. [0, 1, 5]",
        )
        require(self.patience is None or self.patience >= 1, "patience", self.patience, "1 or more")

    def stops(self, history: Sequence[Record]) -> bool:
        """Whether the loss has not fallen for `patience` rounds (judged on sources alone)."""
        if self.patience is None:
            return False
        losses = [loss for record in history if (loss := loss_of(record)) is not None]
        if len(losses) <= self.patience:
            return False
        return min(losses[-self.patience :]) >= min(losses[: -self.patience])

    def evaluates(self, number: int) -> bool:
        """Whether the targets are evaluated after a round."""
        due = self.evaluate_every > 0 and number % self.evaluate_every == 0
        return due or number == self.rounds

    def saves(self, number: int) -> bool:
        """Whether a checkpoint is written after a round."""
        return number == self.rounds or number % self.checkpoint_every == 0

    def looks(self, number: int) -> bool:
        """Whether a round must be over before the next may start."""
        return self.patience is not None or self.evaluates(number) or self.saves(number)


def loss_of(record: Record) -> float | None:
    """A round's training loss: the meta-loss, or the local loss of methods without one."""
    loss = record.get("meta_loss", record.get("local_loss"))
    return None if loss is None else float(loss)


@dataclass(frozen=True, eq=False)
class Job:
    """A run with everything resolved: what to train on what, and how it is laid out."""

    federation: Federation
    model: FunctionalModel
    algorithm: Algorithm
    training: TrainingSettings
    loss: Loss
    scaling: Scaling
    layout: Layout
    participation: Participation
    settings: Mapping[str, Any]
    uplink: Uplink = Uplink()

    @property
    def cohort(self) -> Cohort:
        """Who is trained."""
        return Cohort(self.federation, self.scaling, self.training.seed)

    def lasting(self, rounds: int) -> Job:
        """The same for another number of rounds."""
        training = replace(self.training, rounds=rounds)
        stored = {**self.settings, "training": to_plain(training)}
        return replace(self, training=training, settings=stored)

    def engine(self, ranks: Ranks = Ranks()) -> LocalEngine:
        """The engine of this job, for the share of the nodes that a rank computes."""
        if self.uplink.secure_aggregation:
            raise SettingError(
                "secure aggregation is asked for, but there is no platform to hide from: all nodes "
                "are in this process",
                "leave it out, or train over edges with fedmeta fleet or fedmeta platform",
            )
        return LocalEngine(
            self.algorithm, self.cohort, self.layout, self.participation, ranks, self.uplink
        )

    def evaluate(self, state: PlatformState) -> Evaluation | None:
        """The targets under the current model; None if there are none."""
        if not self.federation.targets:
            return None
        store = TargetStore([self.targets], self.layout.execution)
        return evaluate(self.layout, [self.for_targets(state)], self.measured_after(state), store)[
            0
        ]

    @property
    def targets(self) -> Targets:
        """Who is evaluated."""
        nodes = self.federation.targets
        return Targets(self.federation, nodes, self.scaling, self.training.seed)

    def for_targets(self, state: PlatformState) -> tuple[Tree, Adaptation]:
        """The model that targets adapt, and how."""
        return self.algorithm.model(state), self.algorithm.adaptation(state)

    def measured_after(self, state: PlatformState) -> tuple[int, ...]:
        """Numbers of adaptation steps that targets are measured after."""
        return (0, *self.training.evaluation_steps, self.algorithm.adaptation(state).steps)

    def meta_model(self, state: PlatformState, run_id: str) -> MetaModel:
        """The artefact that a device needs, on the CPU wherever it was trained."""
        execution = self.layout.execution
        about = {
            "network": self.settings["model"],
            "loss": self.settings["loss"],
            "features": list(self.federation.features),
            "run": run_id,
        }
        return MetaModel(
            self.model.to(torch.device("cpu"), execution.torch_dtype),
            {name: leaf.cpu() for name, leaf in self.algorithm.model(state).items()},
            self.scaling,
            self.federation.task,
            self.loss,
            self.algorithm.adaptation(state),
            self.federation.inputs.shape[1:],
            about,
        )


def prepare(
    federation: Federation,
    model: nn.Module | ModelSettings,
    algorithm: Algorithm,
    training: TrainingSettings,
    *,
    loss: str | Loss = "auto",
    scaling: Scaling | None = None,
    execution: Execution = Execution(),
    participation: Participation = Participation(),
    uplink: Uplink = Uplink(),
    augmentation: Augmentation = Augmentation(),
    initial: Tree | None = None,
    about_data: Mapping[str, Any] | None = None,
    repeats: int = 1,
    layout: Layout | None = None,
) -> Job:
    """Check that everything fits together and resolve what was left open. See `train`.

    Args:
        repeats: how many jobs like this one are to be trained together, for the memory budget.
        layout: of another job like this one, to be trained together with it.
    """
    if not federation.sources:
        raise DataError(f"{federation.name} has no source nodes", "lower target_share")
    if federation.task.kind == "classification" and federation.task.outputs < 2:
        raise DataError(
            f"all samples of {federation.name} are of one class",
            "give at least two classes, or check the label column",
        )
    task, shape = federation.task, federation.inputs.shape[1:]
    augmentation.check(shape, federation.name)
    inner = getattr(algorithm, "inner", None)
    if inner is RECOMMENDED and task.kind == "regression":  # nobody has asked for this one
        algorithm = replace(cast(Any, algorithm), inner=RECOMMENDED_FOR_VALUES)
    if inner is not None and inner.learned != "none" and not isinstance(algorithm, StepLearner):
        raise SettingError(
            f"inner.learned is {inner.learned!r}, but {algorithm.name} learns no step sizes",
            "leave it out, or make the algorithm a StepLearner",
        )
    scaling = scaling or fit_scaling(federation)
    loss_name = loss if isinstance(loss, str) else to_plain(loss)
    function = named_loss(loss, task) if isinstance(loss, str) else loss
    if isinstance(model, ModelSettings):
        about_model = to_plain(model)
        model = build(model, shape, task.outputs, training.seed)
    else:
        about_model = {"class": f"{type(model).__module__}.{type(model).__qualname__}"}
    network = functionalise(model).to(execution.torch_device, execution.torch_dtype)
    if initial is not None:
        check_same_tensors(network.theta, initial, "the initial model")
        like = network.theta
        network = replace(network, theta={n: initial[n].to(leaf) for n, leaf in like.items()})
    few = pack(federation, federation.sources[:1], scaling, execution.torch_dtype)
    inputs = torch.cat([few.support.inputs[0], few.query.inputs[0]])[:4]
    check_on_samples(network, inputs.to(execution.torch_device), task.outputs)
    labels = torch.cat([few.support.labels[0], few.query.labels[0]])[:4]
    check_loss(function, network, inputs.to(execution.torch_device), labels)
    if layout is None:
        with machine(execution):
            layout = lay_out(
                execution,
                network,
                function,
                federation,
                scaling,
                algorithm,
                repeats,
                augmentation,
            )
    settings = {
        "data": dict(about_data or {"name": federation.name}),
        "model": about_model,
        "algorithm": {"name": algorithm.name, **to_plain(algorithm)},
        "training": to_plain(training),
        "loss": loss_name,
        "execution": to_plain(layout.execution),
        "participation": to_plain(participation),
        "augmentation": to_plain(augmentation),
    }
    prior = getattr(algorithm, "prior", None)
    if prior is not None:
        settings["prior"] = described(prior, network.theta)
    if uplink != Uplink():
        _check_uplink(uplink, algorithm, layout, len(federation.sources))
        chance = participation.fraction if participation.independent else 1.0
        exposure = Exposure(training.rounds, chance)
        uplink = uplink.resolved(exposure)
        settings["uplink"] = {**to_plain(uplink), "promise": uplink.promise(exposure)}
    return Job(
        federation,
        network,
        algorithm,
        training,
        function,
        scaling,
        layout,
        participation,
        settings,
        uplink,
    )


def _check_uplink(uplink: Uplink, algorithm: Algorithm, layout: Layout, nodes: int) -> None:
    """Refuse what cannot be had together."""
    if uplink.privacy.on and getattr(algorithm, "automatic", False):
        raise SettingError(
            "penalty is 'auto', which looks at the losses of the nodes, but dp hides them",
            "give a penalty as a number",
        )
    if uplink.privacy.on and uplink.privacy.delta * nodes >= 1:
        raise SettingError(
            f"privacy.delta is {uplink.privacy.delta:g} with {nodes} nodes: a mechanism that gives "
            "one of them away entirely would keep that promise",
            f"give a δ far below {1 / nodes:.2g}",
        )
    if uplink.guard.outliers != "keep" and layout.execution.path == "loop" and nodes > 1:
        raise SettingError(
            "nodes that are computed one by one cannot be judged against each other",
            "use --path batched, or leave the guard out",
        )
