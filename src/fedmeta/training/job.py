"""A run with everything resolved: checked, its files read, laid out on the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import torch

from fedmeta.algorithms.algorithm import Algorithm, PlatformState
from fedmeta.config.spec import TABLES, RunSpec, tied
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import SettingError
from fedmeta.core.metrics import check_metric
from fedmeta.core.objective import Adaptation
from fedmeta.core.prototypes import check_linear, linear_head
from fedmeta.core.serialization import serialize
from fedmeta.core.tree import Tree, size
from fedmeta.data.augmentation import Augmentation
from fedmeta.data.encoding import Encoding
from fedmeta.data.federation import Federation
from fedmeta.data.few_classes import holds_few_classes
from fedmeta.data.packing import pack
from fedmeta.data.scaling import Scaling
from fedmeta.engine.cohort import Cohort
from fedmeta.engine.features import Features, cut_for, features_of_nodes
from fedmeta.engine.layout import Layout
from fedmeta.engine.local import LocalEngine
from fedmeta.engine.machine import machine
from fedmeta.engine.ranks import Ranks
from fedmeta.engine.resolution import lay_out
from fedmeta.evaluation.evaluate import evaluate
from fedmeta.evaluation.metrics import OwnMetric
from fedmeta.evaluation.result import Evaluation
from fedmeta.evaluation.targets import Targets, TargetStore
from fedmeta.models.functional import FunctionalModel, check_on_samples
from fedmeta.models.head import Head, head_of
from fedmeta.models.losses import Balanced, Loss, check_loss, named_loss
from fedmeta.models.meta_model import MetaModel
from fedmeta.models.networks import ModelSettings
from fedmeta.priors import TeacherKL, described
from fedmeta.training.checks import check_data, check_inner, check_uplink
from fedmeta.training.defaults import with_defaults, with_inner_step
from fedmeta.training.start import check_known, network_of, scaling_of, texts_of
from fedmeta.uplink.privacy import Exposure
from fedmeta.uplink.uplink import Uplink

_EVERY_PASS = (
    "samples are augmented, so the frozen body of the network is computed in every pass: without "
    "augmentation it would be once per sample"
)


@dataclass(frozen=True, eq=False)
class Job:
    """What to train on what, and how it is laid out.

    Args:
        spec: the description of the run, with all that it leaves open resolved.
        federation: the nodes and their samples.
        model: the network as a function of its parameters, at θ¹.
        loss: one number per sample.
        scaling: of the inputs, and of labels that are values.
        layout: resolved execution, and the objective in the form it wants.
        settings: as they are stored with the run.
        head: what produces the network's output, where the algorithm adapts that; else None.
        features: what is trained instead of federation, model and scaling where the network has a
            frozen body; None: it has none, or it is computed in every pass.
        metrics: of one's own, for the final evaluation.
        notes: what people should know of how it is computed.
    """

    spec: RunSpec
    federation: Federation
    model: FunctionalModel
    loss: Loss
    scaling: Scaling
    layout: Layout
    settings: Mapping[str, Any]
    head: Head | None = None
    features: Features | None = None
    metrics: Sequence[OwnMetric] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def algorithm(self) -> Algorithm:
        """What nodes and platform do, told which parameters are the head."""
        return _with_head(self.spec.algorithm, self.head)

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
        return Cohort(*self._samples, self.training.seed)

    @property
    def _samples(self) -> tuple[Federation, Scaling]:
        """What nodes hold, as they compute with it."""
        if self.features is None:
            return self.federation, self.scaling
        return self.features.federation, self.features.scaling

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
        """The targets under the final model, by all metrics; None if there are none."""
        if not self.federation.targets:
            return None
        store = TargetStore([self.targets], self.layout.execution)
        model, steps = self.for_targets(state), self.measured_after(state)
        decides, scored = self.training.decide, model[1].steps
        found = evaluate(
            self.layout, [model], steps, store, decides=decides, scored=scored, own=self.metrics
        )
        return found[0]

    def source_metric(self, state: PlatformState) -> float | None:
        """The metric that may stop the run: of the source nodes, each adapted on its support."""
        sources, seed = self.federation.sources, self.training.seed
        everyone = Targets(self.federation, sources, self.scaling, seed)
        store, model = TargetStore([everyone], self.layout.execution), self.for_targets(state)
        steps = model[1].steps
        found = evaluate(self.layout, [model], [steps], store, scored=steps)[0]
        return found.mean(str(self.training.metric), steps)

    @property
    def targets(self) -> Targets:
        """Who is evaluated."""
        federation, scaling = self._samples
        return Targets(federation, federation.targets, scaling, self.training.seed)

    def for_targets(self, state: PlatformState) -> tuple[Tree, Adaptation]:
        """The model that targets adapt, and how."""
        return self.algorithm.model(state), self.algorithm.adaptation(state)

    @property
    def adapted(self) -> dict[str, Any] | None:
        """Which parameters an adaptation moves, for a reader; None: all of them."""
        inner, theta = self.algorithm.inner, self.model.theta
        if inner.scope == "all":
            return None
        moves = inner.moves(theta)
        moving = {name: leaf for name, leaf in theta.items() if name in moves}
        return {
            "names": list(moving),
            "parameters": size(moving),
            "of": size(theta),
            "note": self.head.note if self.head else "",
        }

    def measured_after(self, state: PlatformState) -> tuple[int, ...]:
        """Numbers of adaptation steps that targets are measured after."""
        return (0, *self.training.evaluation_steps, self.algorithm.adaptation(state).steps)

    def meta_model(self, state: PlatformState, run_id: str) -> MetaModel:
        """The artefact that a device needs, on the CPU wherever it was trained."""
        execution = self.layout.execution
        about = {
            "network": _network_facts(self.settings["model"]),
            "loss": self.settings["loss"],
            "features": list(self.federation.features),
            "run": run_id,
        }
        if self.training.metric is not None:
            about["metric"] = self.training.metric
        encoding = self.federation.encoding
        if encoding is None and (texts := texts_of(self.spec, self.federation)) is not None:
            encoding = Encoding((), label=self.spec.data_settings.label, text=texts)
        if encoding is not None:
            about["encoding"] = encoding.facts()
        if self.federation.parts is not None:
            about["inputs"] = self.federation.parts.facts()
        loss = self.loss
        if isinstance(loss, Balanced):
            about["class_weights"] = list(loss.weights)
            loss = loss.on(torch.device("cpu"), execution.torch_dtype)
        return MetaModel(
            self.model.to(torch.device("cpu"), execution.torch_dtype),
            {name: leaf.cpu() for name, leaf in self.algorithm.model(state).items()},
            self.scaling,
            self.federation.task,
            loss,
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
    traced: bool = True,
) -> Job:
    """Check that everything fits together and resolve what was left open.

    Args:
        spec: what to train.
        federation: the nodes and their samples.
        scaling: of the inputs; None: as the spec says.
        repeats: how many jobs like this one are to be trained together, for the memory budget.
        layout: of another job like this one, to be trained together with it.
        traced: whether the head is what produces the output; runs of older versions go on with the
            module that is declared last.
    """
    check_data(federation)
    check_metric(spec.training.metric, federation.task.kind)
    left_open = spec.augmentation == Augmentation(rename_labels=spec.augmentation.rename_labels)
    spec = tied(with_defaults(spec, federation))
    spec.augmentation.check(federation.inputs.shape[1:], federation.name)
    check_inner(spec.algorithm)
    task, execution, few_classes = federation.task, spec.execution, holds_few_classes(federation)
    network = network_of(spec, federation)
    scaling = scaling or scaling_of(spec, federation)
    check_known(network, federation, scaling)
    few = pack(federation, federation.sources[:1], scaling, execution.torch_dtype)
    inputs = torch.cat([few.support.inputs[0], few.query.inputs[0]])[:4].to(execution.torch_device)
    labels = torch.cat([few.support.labels[0], few.query.labels[0]])[:4]
    more = task.kind == "classification"
    cut = cut_for(network, inputs, execution)
    tried, seen = (network, inputs) if cut is None else (cut.rest, cut.features)
    checked = check_on_samples(tried, seen, task.outputs, more)
    if cut is None:
        network = tried = checked.model
    elif checked.model.keyed_calls:  # it draws by calls, which may stand in the body too
        cut, (network, _) = None, check_on_samples(network, inputs, task.outputs, more)
        tried, seen = network, inputs
    outputs = checked.outputs
    if outputs != task.outputs:
        federation = replace(federation, task=task.with_outputs(outputs))
    loss = _loss(spec, federation)
    check_loss(loss, tried, seen, labels)
    head = None
    if traced and _adapts_head(spec.algorithm):
        # Blank samples, for all machines of a fleet to find the same.
        blank = _blank(network, inputs) if cut is None else torch.zeros_like(seen)
        head = head_of(tried, blank)
    spec = with_inner_step(spec, network, head, federation, scaling.tokens, few_classes)
    algorithm = _with_head(spec.algorithm, head)
    if algorithm.inner.by_means:
        linear = linear_head(network.theta, algorithm.inner.moves(network.theta))
        check_linear(tried, network.theta, linear, seen)
    with machine(execution):
        notes: tuple[str, ...] = ()
        if cut is not None and left_open:  # augmented, they would pass the body in every round
            still = replace(spec.augmentation, flip=False, shift=0, turn_classes=False)
            spec = replace(spec, augmentation=still)
        elif cut is not None and (spec.augmentation.active or spec.augmentation.turns(task)):
            cut, notes = None, (_EVERY_PASS,)
        features = None if cut is None else features_of_nodes(cut, federation, scaling, execution)
        execution = replace(execution, frozen="every-pass" if features is None else "once")
        if layout is None:
            trained = features or Features(network, federation, scaling)
            samples = trained.federation, trained.scaling
            layout = lay_out(
                execution,
                trained.network,
                loss,
                *samples,
                algorithm,
                repeats,
                spec.augmentation,
                spec.uplink,
            )
    if spec.uplink != Uplink():
        check_uplink(spec, layout, len(federation.sources))
        spec = replace(spec, uplink=spec.uplink.resolved(_exposure(spec)))
    job = Job(spec, federation, network, loss, scaling, layout, {}, head, features, notes=notes)
    return replace(job, settings=_stored(spec, job))


def _blank(network: FunctionalModel, inputs: torch.Tensor) -> torch.Tensor:
    """Samples of the same shape that say nothing; what is a flag is set."""
    blank = torch.zeros_like(inputs)
    if network.calling is not None:
        blank += torch.from_numpy(network.calling.parts.of_kind("flags")).to(blank)
    return blank


def _network_facts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a model file says of its network; where weights once lay is nobody's business."""
    return {name: value for name, value in settings.items() if name != "backbone_weights"}


def _adapts_head(algorithm: Algorithm) -> bool:
    """Whether it does, and can be told which parameters that are."""
    if not is_dataclass(algorithm) or "inner" not in {each.name for each in fields(algorithm)}:
        return False
    return algorithm.inner.scope == "head"


def _with_head(algorithm: Algorithm, head: Head | None) -> Algorithm:
    """The algorithm with the names of what it adapts; it stays as it is where there is no head."""
    if head is None:
        return algorithm
    chosen: Any = algorithm
    named: Algorithm = replace(chosen, inner=replace(algorithm.inner, head=head.names))
    return named


def _loss(spec: RunSpec, federation: Federation) -> Loss:
    """The loss of the spec; a balanced one with what the source nodes have of every class."""
    if not isinstance(spec.loss, str):
        return spec.loss
    loss = named_loss(spec.loss, federation.task, federation.class_counts)
    if isinstance(loss, Balanced):
        return loss.on(spec.execution.torch_device, spec.execution.torch_dtype)
    return loss


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
        labels = "none" if job.scaling.labels is None else "standard"
        stored["data"] = {"name": job.federation.name, "label_scaling": labels}
    if not isinstance(spec.model, ModelSettings):
        kind = type(spec.model)
        stored["model"] = {"class": f"{kind.__module__}.{kind.__qualname__}"}
    if not job.federation.task.local_labels:  # there is nothing to rename or to turn
        del stored["augmentation"]["rename_labels"], stored["augmentation"]["turn_classes"]
    if spec.prior.teaches:
        stored["prior"] = {
            "kind": TeacherKL.__name__,
            "strength": spec.prior.strength,
            "temperature": spec.prior.temperature,
            "tied": [],
            "free": list(job.model.theta),
        }
    elif spec.algorithm.prior is not None:
        stored["prior"] = described(spec.algorithm.prior, job.model.theta)
    if spec.uplink == Uplink():
        del stored["uplink"]
    else:
        stored["uplink"]["promise"] = spec.uplink.promise(_exposure(spec))
    return stored
