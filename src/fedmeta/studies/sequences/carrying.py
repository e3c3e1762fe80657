"""What a task takes over from the one before it: where it starts, and what holds it there.

Everything is computed from the meta-models and the federations, so a sequence that was interrupted
needs nothing but its run folders to go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from fedmeta.algorithms.algorithm import takes_prior, with_prior
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.core.errors import DataError, SettingError
from fedmeta.core.tree import Tree
from fedmeta.data.federation import Federation
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.models.functional import FunctionalModel, functionalise
from fedmeta.models.meta_model import MetaModel
from fedmeta.models.networks import build
from fedmeta.priors import OutputKL, Regularizer, federated_fisher, regularizer
from fedmeta.priors.generated import generated_inputs
from fedmeta.priors.importance import UNIT, add_up, normalised
from fedmeta.studies.sequences.declaration import FOUND, GIVEN, TaskSequence, TaskSettings
from fedmeta.studies.sequences.drawing import Drawn
from fedmeta.studies.sequences.drift import LossSums, Watch
from fedmeta.studies.sequences.isolation import body, head, with_head
from fedmeta.studies.sequences.methods import AUTO, Kind, Method
from fedmeta.studies.sequences.replay import with_replay
from fedmeta.training.train import RunRequest

_SOFTNESS = 2.0  # temperature of both rivals that distil, as published


@dataclass
class Past:
    """What one seed has learned so far, as much of it as later tasks need: it does not grow.

    Args:
        drawn: its nodes in all tasks.
        models: the meta-model after a task, by the task's number.
        importance: the Fisher diagonals of a task and of those that led to it, likewise.
        diagonals: those that nodes have told elsewhere, of their own task alone.
        heads: under isolation, the last layer of every task.
        borders: where the stream has changed, as far as that is for the platform to find: the
            numbers of the last tasks before. Only the latest counts.
        watch: by what it finds them.
        execution: how its first task was computed.
    """

    drawn: Drawn
    models: dict[int, MetaModel] = field(default_factory=dict)
    importance: dict[int, Tree] = field(default_factory=dict)
    diagonals: dict[int, Tree] = field(default_factory=dict)
    heads: dict[int, Tree] = field(default_factory=dict)
    borders: list[int] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)
    execution: Execution | None = None

    @property
    def latest(self) -> MetaModel:
        """The model after the latest task."""
        return self.models[max(self.models)]

    def keep(self, sequence: TaskSequence, model: MetaModel) -> None:
        """Add what a task has left, and drop what no later one will ask for."""
        number = max(self.models, default=-1) + 1
        self.models[number] = model
        if sequence.method.isolation:
            self.heads[number] = head(model, model.theta)
        needed = {number, *self.borders[-1:]}
        if sequence.borders == GIVEN:
            later = sequence.tasks[number + 1 :]
            needed |= {place for each in later if (place := _place(sequence, each)) <= number}
        self.models = {n: each for n, each in self.models.items() if n in needed}
        behind = {held_to(sequence, each, self) for each in needed}
        self.importance = {n: each for n, each in self.importance.items() if n in needed | behind}


def _place(sequence: TaskSequence, task: TaskSettings) -> int:
    """The number of the task that one comes after."""
    return [each.name for each in sequence.tasks].index(str(task.after))


def held_to(sequence: TaskSequence, number: int, past: Past) -> int | None:
    """The number of the task whose model a task is held near to; None: of none.

    Args:
        sequence: says which comes after which, or leaves that to the platform.
        number: of the task, from 0.
        past: what was learned, with the borders that were found.
    """
    if sequence.borders == FOUND:
        return max((each for each in past.borders if each < number), default=None)
    return _place(sequence, sequence.tasks[number]) if number > 0 else None


def start(settings: RunSpec, drawn: Drawn) -> Tree:
    """θ before any task, as training draws it from the seed."""
    first = drawn.tasks[0]
    shape, outputs = first.inputs.shape[1:], first.task.outputs
    network = functionalise(build(settings.model_settings, shape, outputs, settings.training.seed))
    return network.to(torch.device("cpu"), settings.execution.torch_dtype).theta


def next_task(
    sequence: TaskSequence, number: int, seed: int, past: Past, network: FunctionalModel | None
) -> RunRequest:
    """The training of one task with all that is carried over.

    Args:
        sequence: with its method.
        number: of the task, from 0.
        seed: of the repeat.
        past: what was learned before.
        network: the network that outputs are compared by; None: that of the model itself.
    """
    settings, method = sequence.of_task(number, seed), sequence.method
    task = trained_nodes(sequence, number, seed, past.drawn)
    if number == 0:
        return RunRequest(settings, task)
    before = past.models[
        number - 1 if sequence.borders == FOUND else _place(sequence, sequence.tasks[number])
    ]
    initial = before.theta
    if method.isolation:
        initial = {**initial, **head(before, start(settings, past.drawn))}
    held = held_to(sequence, number, past)
    if method.prior is not None and sequence.pull > 0 and held is not None:
        prior = _prior(sequence, number, held, past, network)
        if not takes_prior(settings.algorithm):
            raise SettingError(
                f"{settings.algorithm.name} takes no prior, but the method is {str(method)!r}",
                "use admm-fedmeta, or a method without a prior",
            )
        settings = replace(settings, algorithm=with_prior(settings.algorithm, prior))
    return RunRequest(replace(settings, start=initial), task, before.scaling)


def trained_nodes(sequence: TaskSequence, number: int, seed: int, drawn: Drawn) -> Federation:
    """The nodes that a task is learned on: under replay with what sources kept of earlier ones.

    Args:
        sequence: with its method.
        number: of the task, from 0.
        seed: of the repeat.
        drawn: its nodes in all tasks.
    """
    task = drawn.tasks[number]
    if not sequence.method.replay:
        return task
    share = sequence.data_of_task(number, seed).support_share
    return with_replay(task, drawn.others_before(number), sequence.replay, share, seed)


def _prior(
    sequence: TaskSequence, number: int, before: int, past: Past, network: FunctionalModel | None
) -> Regularizer:
    method, strength, model = sequence.method, sequence.pull, past.models[before]
    kind = kind_of(method)
    # With heads of their own, tasks share the layers before them alone.
    theta_p = body(model) if method.isolation else model.theta
    if kind in ("fisher", "fedewc"):
        importance = _importance(sequence, before, past)
        if method.prior == AUTO:
            strength *= UNIT
        return regularizer(
            "fisher", strength, theta_p, {name: importance[name] for name in theta_p}
        )
    if kind == "euclidean":
        return regularizer("euclidean", strength, theta_p)
    predict = network or model.network
    if kind == "outputs":
        return OutputKL(strength, theta_p, predict, _unlabelled(sequence, past, number))
    known = _known(sequence, before, past)
    if kind == "fedlwf":
        nothing = torch.zeros(1, *past.drawn.tasks[0].inputs.shape[1:])
        return OutputKL(strength, theta_p, predict, nothing, _SOFTNESS, known)
    made = generated_inputs(predict, theta_p, model.input_shape, known, seed=number)
    if kind == "generated":
        return OutputKL(strength, theta_p, predict, made)
    return OutputKL(strength, theta_p, predict, made, _SOFTNESS, known)


def kind_of(method: Method) -> Kind | None:
    """By what a task is held near to those before it, where the method is "auto" too."""
    return "fisher" if method.prior == AUTO else method.prior


def _importance(sequence: TaskSequence, task: int, past: Past) -> Tree:
    """The sum of the Fisher diagonals of a task and of those before it."""
    if task not in past.importance:
        own = past.diagonals.pop(task, None) or _diagonal(sequence, task, past)
        # Each counts alike, however well its model fits it: that decides the size of its diagonal.
        own = normalised(own) if sequence.method.prior == AUTO else own
        before = held_to(sequence, task, past)
        past.importance[task] = own if before is None else add_up([own, past.importance[before]])
    return past.importance[task]


def _diagonal(sequence: TaskSequence, task: int, past: Past) -> Tree:
    """The Fisher diagonal of one task; of FedEWC that of the model as it is, not adapted."""
    model, device = past.models[task], "cpu" if past.execution is None else past.execution.device
    if sequence.method.rival is not None:
        model = replace(model, adaptation=replace(model.adaptation, steps=0))
    return federated_fisher(model, past.drawn.tasks[task], device)


def _known(sequence: TaskSequence, task: int, past: Past) -> tuple[int, ...]:
    """The classes of a task and of those that led to it."""
    line: list[int] = []
    before: int | None = task
    while before is not None:
        line.append(before)
        before = held_to(sequence, before, past)
    return past.drawn.known(range(task + 1) if sequence.borders == FOUND else line)


def _unlabelled(sequence: TaskSequence, past: Past, number: int) -> torch.Tensor:
    """What the platform has kept of the tasks before one, scaled; labels are not looked at."""
    rows = past.drawn.kept(number, sequence.platform)
    if len(rows) == 0:
        raise DataError(
            "the platform has no samples to compare outputs on: every one belongs to a node",
            "leave some data to no task, or use another method than outputs",
        )
    dtype = next(iter(past.latest.theta.values())).dtype
    return past.latest.scaling.apply(past.drawn.tasks[0].inputs[rows], dtype)


def look_for_border(number: int, past: Past, seed: int) -> None:
    """Ask the sources of a segment by their losses whether the stream has changed before it."""
    assert past.execution is not None
    model, nodes = past.latest, past.drawn.judges([number], "source")
    steps = model.adaptation.steps
    found = evaluate_model(model, nodes, [steps], execution=past.execution, seed=seed)
    past.watch, border = past.watch.after(LossSums.of(found.losses[steps]))
    if border:
        past.borders.append(number - 1)


def as_used(
    sequence: TaskSequence, model: MetaModel, task: int, past: Past, initial: Tree
) -> MetaModel:
    """The meta-model as a device of a task takes it: under isolation with that task's head.

    Args:
        sequence: with its method.
        model: after the latest task.
        task: whose device, from 0; a task that was not learned yet has the head of the start.
        past: what was learned so far, the model among it.
        initial: θ before any task.
    """
    if not sequence.method.isolation:
        return model
    return with_head(model, past.heads.get(task, initial))


def shared_network(pasts: Sequence[Past]) -> FunctionalModel | None:
    """One network for all seeds, so that they can be trained together; None if they differ."""
    networks = [past.latest.network for past in pasts if past.models]
    return networks[0] if networks and not networks[0].constants else None
