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
from fedmeta.models.functional import FunctionalModel, functionalise
from fedmeta.models.meta_model import MetaModel
from fedmeta.models.networks import build
from fedmeta.priors import OutputKL, Regularizer, federated_fisher, regularizer
from fedmeta.priors.generated import generated_inputs
from fedmeta.priors.importance import UNIT, add_up, normalised
from fedmeta.studies.sequences.declaration import TaskSequence
from fedmeta.studies.sequences.drawing import Drawn
from fedmeta.studies.sequences.isolation import body, head, with_head
from fedmeta.studies.sequences.methods import AUTO, Kind, Method
from fedmeta.studies.sequences.replay import with_replay
from fedmeta.training.train import RunRequest

_SOFTNESS = 2.0  # temperature of both rivals that distil, as published


@dataclass
class Past:
    """What one seed has learned so far.

    Args:
        drawn: its nodes in all tasks.
        models: the meta-model after each task.
        fishers: the Fisher diagonal of each task, where the method asks for it.
        execution: how its first task was computed.
    """

    drawn: Drawn
    models: list[MetaModel] = field(default_factory=list)
    fishers: list[Tree] = field(default_factory=list)
    execution: Execution | None = None


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
    names = [each.name for each in sequence.tasks]
    after = sequence.tasks[number].after
    assert after is not None  # every task but the first has one
    before = past.models[names.index(after)]
    initial = before.theta
    if method.isolation:
        initial = {**initial, **head(before, start(settings, past.drawn))}
    if method.prior is not None and sequence.pull > 0:
        held = _prior(sequence, number, names.index(after), past, network)
        if not takes_prior(settings.algorithm):
            raise SettingError(
                f"{settings.algorithm.name} takes no prior, but the method is {str(method)!r}",
                "use admm-fedmeta, or a method without a prior",
            )
        settings = replace(settings, algorithm=with_prior(settings.algorithm, held))
    return RunRequest(replace(settings, start=initial), task, past.models[0].scaling)


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
    return with_replay(task, drawn.tasks[:number], sequence.replay, share, seed)


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
        return OutputKL(strength, theta_p, predict, _unlabelled(past, number))
    known = past.drawn.known(_line(sequence, before))
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
    device = "cpu" if past.execution is None else past.execution.device
    for number in range(len(past.fishers), len(past.models)):
        model, nodes = past.models[number], past.drawn.tasks[number]
        past.fishers.append(federated_fisher(model, nodes, device))
    found = [past.fishers[number] for number in _line(sequence, task)]
    # Each task counts alike, however well its model fits it: that decides the size of its diagonal.
    return add_up([normalised(each) for each in found] if sequence.method.prior == AUTO else found)


def _line(sequence: TaskSequence, task: int) -> list[int]:
    """The numbers of a task and of those whose models led to it, the latest first."""
    names = [each.name for each in sequence.tasks]
    line, after = [task], sequence.tasks[task].after
    while after is not None:
        line.append(names.index(after))
        after = sequence.tasks[line[-1]].after
    return line


def _unlabelled(past: Past, number: int) -> torch.Tensor:
    """What the platform has of the tasks before one, scaled; labels are not looked at."""
    rows = torch.cat([torch.from_numpy(each) for each in past.drawn.platform[:number]]).numpy()
    if len(rows) == 0:
        raise DataError(
            "the platform has no samples to compare outputs on: every one belongs to a node",
            "leave some data to no task, or use another method than outputs",
        )
    model = past.models[0]
    dtype = next(iter(model.theta.values())).dtype
    return model.scaling.apply(past.drawn.tasks[0].inputs[rows], dtype)


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
    return with_head(model, past.models[task].theta if task < len(past.models) else initial)


def shared_network(pasts: Sequence[Past]) -> FunctionalModel | None:
    """One network for all seeds, so that they can be trained together; None if they differ."""
    networks = [past.models[0].network for past in pasts if past.models]
    return networks[0] if networks and not networks[0].constants else None
