"""A run with everything resolved: checked, its files read, laid out on the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedmeta.algorithms.algorithm import Algorithm, PlatformState
from fedmeta.algorithms.learners import StepLearner
from fedmeta.config.spec import TABLES, RunSpec, tied
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import DataError, SettingError
from fedmeta.core.objective import RECOMMENDED, RECOMMENDED_FOR_VALUES, Adaptation
from fedmeta.core.serialization import serialize
from fedmeta.core.tree import Tree
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
from fedmeta.models.meta_model import MetaModel, check_same_tensors, load_scaling, load_theta
from fedmeta.models.networks import ModelSettings, build
from fedmeta.priors import described
from fedmeta.uplink.privacy import Exposure
from fedmeta.uplink.uplink import Uplink


@dataclass(frozen=True, eq=False)
class Job:
    """What to train on what, and how it is laid out.

    Args:
        spec: the description of the run, with all that it leaves open resolved.
        federation: the nodes and their samples.
        model: the network as a function of its parameters, at θ¹.
        loss: one number per sample.
        scaling: of the inputs.
        layout: resolved execution, and the objective in the form it wants.
        settings: as they are stored with the run.
    """

    spec: RunSpec
    federation: Federation
    model: FunctionalModel
    loss: Loss
    scaling: Scaling
    layout: Layout
    settings: Mapping[str, Any]

    @property
    def algorithm(self) -> Algorithm:
        """What nodes and platform do."""
        return self.spec.algorithm

    @property
    def training(self) -> TrainingSettings:
        """How long, and how often to look."""
        return self.spec.training

    @property
    def uplink(self) -> Uplink:
        """What happens to contributions on their way, the noise found."""
        return self.spec.uplink

    @property
    def cohort(self) -> Cohort:
        """Who is trained."""
        return Cohort(self.federation, self.scaling, self.training.seed)

    def lasting(self, rounds: int) -> Job:
        """The same for another number of rounds."""
        spec = self.spec.replaced(rounds=rounds)
        return replace(self, spec=spec, settings=_stored(spec, self))

    def engine(self, ranks: Ranks = Ranks()) -> LocalEngine:
        """The engine of this job, for the share of the nodes that a rank computes."""
        if self.uplink.secure_aggregation:
            raise SettingError(
                "secure aggregation is asked for, but there is no platform to hide from: all nodes "
                "are in this process",
                "leave it out, or train over edges with fedmeta fleet or fedmeta platform",
            )
        parts = self.algorithm, self.cohort, self.layout, self.spec.participation
        return LocalEngine(*parts, ranks, self.uplink)

    def evaluate(self, state: PlatformState) -> Evaluation | None:
        """The targets under the current model; None if there are none."""
        if not self.federation.targets:
            return None
        store = TargetStore([self.targets], self.layout.execution)
        models = [self.for_targets(state)]
        return evaluate(self.layout, models, self.measured_after(state), store)[0]

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
    spec: RunSpec,
    federation: Federation,
    *,
    scaling: Scaling | None = None,
    repeats: int = 1,
    layout: Layout | None = None,
) -> Job:
    """Check that everything fits together and resolve what was left open.

    Args:
        spec: what to train.
        federation: the nodes and their samples.
        scaling: of the inputs; None: as the spec says.
        repeats: how many jobs like this one are to be trained together, for the memory budget.
        layout: of another job like this one, to be trained together with it.
    """
    _check_data(federation)
    spec.augmentation.check(federation.inputs.shape[1:], federation.name)
    spec = tied(_with_inner(spec, federation))
    _check_inner(spec.algorithm)
    scaling = scaling or scaling_of(spec, federation)
    task, execution = federation.task, spec.execution
    loss = named_loss(spec.loss, task) if isinstance(spec.loss, str) else spec.loss
    network = _network(spec, federation)
    few = pack(federation, federation.sources[:1], scaling, execution.torch_dtype)
    inputs = torch.cat([few.support.inputs[0], few.query.inputs[0]])[:4].to(execution.torch_device)
    labels = torch.cat([few.support.labels[0], few.query.labels[0]])[:4]
    check_on_samples(network, inputs, task.outputs)
    check_loss(loss, network, inputs, labels)
    if layout is None:
        with machine(execution):
            parts = network, loss, federation, scaling, spec.algorithm
            layout = lay_out(execution, *parts, repeats, spec.augmentation)
    if spec.uplink != Uplink():
        _check_uplink(spec, layout, len(federation.sources))
        spec = replace(spec, uplink=spec.uplink.resolved(_exposure(spec)))
    job = Job(spec, federation, network, loss, scaling, layout, {})
    return replace(job, settings=_stored(spec, job))


def _check_data(federation: Federation) -> None:
    if not federation.sources:
        raise DataError(f"{federation.name} has no source nodes", "lower target_share")
    if federation.task.kind == "classification" and federation.task.outputs < 2:
        raise DataError(
            f"all samples of {federation.name} are of one class",
            "give at least two classes, or check the label column",
        )


def _with_inner(spec: RunSpec, federation: Federation) -> RunSpec:
    """The spec with the inner adaptation for regression, where nobody has asked for another."""
    if spec.algorithm.inner is not RECOMMENDED or federation.task.kind != "regression":
        return spec
    algorithm: Any = spec.algorithm
    return replace(spec, algorithm=replace(algorithm, inner=RECOMMENDED_FOR_VALUES))


def _check_inner(algorithm: Algorithm) -> None:
    if algorithm.inner.learned != "none" and not isinstance(algorithm, StepLearner):
        raise SettingError(
            f"inner.learned is {algorithm.inner.learned!r}, but {algorithm.name} learns no step "
            "sizes",
            "leave it out, or make the algorithm a StepLearner",
        )


def kept_scaling(spec: RunSpec, shape: tuple[int, ...]) -> Scaling | None:
    """That of the model which the run is tied to or starts from, if it has one for such samples."""
    for path in (spec.prior.model if spec.prior.ties else None, spec.start):
        kept = load_scaling(path) if isinstance(path, str) else None
        if kept is not None and _broadcasts(kept.mean.shape, shape):
            return kept
    return None


def scaling_of(spec: RunSpec, federation: Federation) -> Scaling:
    """Of the inputs: the one that is kept, or a new one."""
    kept = kept_scaling(spec, federation.inputs.shape[1:])
    if kept is not None:
        return kept
    data = spec.data
    if data is None:
        return fit_scaling(federation)
    return fit_scaling(federation, data.scaling, data.scaling_from, data.scaling_floor)


def _broadcasts(small: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a scaling of one shape can be applied to samples of another."""
    pairs = zip(reversed(small), reversed(shape), strict=False)
    return len(small) <= len(shape) and all(a in (1, b) for a, b in pairs)


def _network(spec: RunSpec, federation: Federation) -> FunctionalModel:
    """The network as a function of its parameters, where training starts."""
    model, shape, outputs = spec.model, federation.inputs.shape[1:], federation.task.outputs
    if isinstance(model, ModelSettings):
        model = build(model, shape, outputs, spec.training.seed)
    network = functionalise(model).to(spec.execution.torch_device, spec.execution.torch_dtype)
    start = load_theta(spec.start) if isinstance(spec.start, str) else spec.start
    if start is None:
        return network
    check_same_tensors(network.theta, start, "the initial model")
    like = network.theta
    return replace(network, theta={name: start[name].to(leaf) for name, leaf in like.items()})


def _exposure(spec: RunSpec) -> Exposure:
    share = spec.participation
    return Exposure(spec.training.rounds, share.fraction if share.independent else 1.0)


def _stored(spec: RunSpec, job: Job) -> dict[str, Any]:
    """The resolved settings as they are kept with a run: what decides about its bits."""
    stored: dict[str, Any] = {name: serialize(getattr(spec, name)) for name in TABLES}
    del stored["prior"]  # of the prior, what it is and not where it was read from
    stored["algorithm"] = {"name": spec.algorithm.name, **serialize(spec.algorithm)}
    stored["execution"] = serialize(job.layout.execution)
    stored["loss"] = spec.loss if isinstance(spec.loss, str) else serialize(spec.loss)
    if spec.data is None:
        stored["data"] = {"name": job.federation.name}
    if not isinstance(spec.model, ModelSettings):
        kind = type(spec.model)
        stored["model"] = {"class": f"{kind.__module__}.{kind.__qualname__}"}
    if spec.algorithm.prior is not None:
        stored["prior"] = described(spec.algorithm.prior, job.model.theta)
    if spec.uplink == Uplink():
        del stored["uplink"]
    else:
        stored["uplink"]["promise"] = spec.uplink.promise(_exposure(spec))
    return stored


def _check_uplink(spec: RunSpec, layout: Layout, nodes: int) -> None:
    """Refuse what cannot be had together."""
    privacy = spec.uplink.privacy
    if privacy.on and spec.algorithm.needs_losses:
        raise SettingError(
            "penalty is 'auto', which looks at the losses of the nodes, but dp hides them",
            "give a penalty as a number",
        )
    if privacy.on and privacy.delta * nodes >= 1:
        raise SettingError(
            f"privacy.delta is {privacy.delta:g} with {nodes} nodes: a mechanism that gives "
            "one of them away entirely would keep that promise",
            f"give a δ far below {1 / nodes:.2g}",
        )
    if spec.uplink.guard.outliers != "keep" and layout.execution.path == "loop" and nodes > 1:
        raise SettingError(
            "nodes that are computed one by one cannot be judged against each other",
            "use --path batched, or leave the guard out",
        )
