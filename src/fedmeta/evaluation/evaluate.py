"""How well targets do after adapting: metric by number of steps, node by node."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedmeta.config.execution import Execution
from fedmeta.core.errors import DataError
from fedmeta.core.metrics import usual_metric
from fedmeta.core.objective import Adaptation, Objective, adapt
from fedmeta.core.sample_sets import Samples
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.data.federation import Federation, Positions, Task
from fedmeta.data.pool import Array
from fedmeta.engine.cohort import node_keys
from fedmeta.engine.features import features_for
from fedmeta.engine.layout import Layout, predictor
from fedmeta.engine.machine import few_threads, machine
from fedmeta.evaluation.decided import chosen_measures, measured_candidates
from fedmeta.evaluation.metrics import (
    OwnMetric,
    class_metrics,
    class_table,
    node_aucs,
    own_metrics,
    value_metrics,
)
from fedmeta.evaluation.own_mean import own_mean_error
from fedmeta.evaluation.result import Evaluation, Values
from fedmeta.evaluation.targets import JudgedSets, Targets, TargetStore
from fedmeta.models.meta_model import MetaModel

# Samples that may pass through the model at once, as a multiple of those that a node trains on:
# chunks are sized for activations with their gradients and tangents, here are activations alone.
_AT_ONCE = 6


_Measured = tuple[list[list[dict[str, Tensor]]], list[dict[str, Tensor]]]
"""Of one node: measures by steps and set, and by set those of the candidate it chose."""


def evaluate(
    layout: Layout,
    models: Sequence[tuple[Tree, Adaptation]],
    steps: Sequence[int],
    store: TargetStore,
    *,
    decides: bool = False,
    scored: int | None = None,
    own: Sequence[OwnMetric] = (),
) -> list[Evaluation]:
    """Adapt each model on the support set of every node of its own and measure on its query set.

    Where nodes have precise sets, the same adapted models are measured on these too. All models
    are computed at once, as one more axis of nodes.

    Args:
        layout: how nodes are computed.
        models: θ, and how a node adapts it; adaptations may differ in their factors alone, and
            their number of steps is replaced by those of `steps`.
        steps: numbers of steps to measure after, e.g. (0, 1, 5).
        store: the targets of every model.
        decides: measure also what nodes reach that decide by themselves how they adapt.
        scored: one of `steps` whose outputs are kept for what needs all of them at once: AUC, the
            classes over all nodes, and metrics of one's own.
        own: further metrics, after that many steps.
    """
    execution, task = layout.execution, store.targets[0].federation.task
    predict = layout.objective.predict
    # Without dropout and augmentation, also where mini-batches bring a key.
    quiet = replace(layout.objective, predict=lambda theta, x, _key: predict(theta, x, None))
    ordered = sorted(set(steps))
    at_once = _AT_ONCE * sum(store.sizes)
    rule = models[0][1]
    several = [(theta, dict(each.factors or {})) for theta, each in models]
    joined, units = several[0], store.label_units()
    if len(models) > 1:
        joined = map_leaves(lambda *leaves: torch.stack(leaves), *several)
    among: tuple[str, ...] = ()
    if decides:
        among = measured_candidates(quiet, rule, models[0][0], store.single(0).support)

    def measure(data: JudgedSets, key: Tensor, owner: Tensor) -> _Measured:
        (phi, factors), unit = joined, units[0]
        if len(models) > 1:
            mine = owner.reshape(1)
            phi, factors = map_leaves(lambda leaf: leaf.index_select(0, mine)[0], joined)
            unit = units.index_select(0, mine)[0]

        def judge(point: Tree, kept: bool = False) -> list[dict[str, Tensor]]:
            found = [
                measures(quiet, task, point, data.support, each, at_once, unit)
                for each in data.judged
            ]
            outputs, *_ = [each.pop("outputs") for each in found]
            single = [each.pop("single") for each in found]
            if kept:  # nodes have different numbers of samples
                found[0]["scores"] = pad(outputs, (0, 0, 0, store.sizes[1] - len(outputs)))
                longest = (store.sizes[1], store.precise)
                for each, values, most in zip(found, single, longest, strict=False):
                    each["single"] = pad(values, (0, most - len(values)))
            return found

        theta, results, done = phi, [], 0
        for wanted in ordered:
            stretch = replace(rule, steps=wanted - done, factors=factors or None)
            phi = adapt(quiet, stretch, phi, data.support, key, first_step=done, anchor=theta)
            results.append(judge(phi, wanted == scored))
            done = wanted
        if not among:
            return results, []
        own = replace(rule, factors=factors or None)
        return results, chosen_measures(quiet, own, theta, data.support, key, among, judge)

    # A chunk is so many nodes of every model that is trained at once.
    chunk = (execution.chunk or 1) * (len(models) if execution.path == "batched" else 1)
    small = replace(layout, execution=replace(execution, chunk=min(chunk, len(store))))
    keys = torch.cat([node_keys(each.nodes, each.seed) for each in store.targets])
    device = execution.torch_device
    # Convolutions have work for all threads.
    chain = execution.derivatives in ("closed-form", "compiled")
    with torch.no_grad(), few_threads(models[0][0]) if chain else nullcontext():
        arguments = keys.to(device), store.owner.to(device)
        results, chosen = small.map(measure, store, *arguments)

    def judged(number: int, place: int, sets: Sequence[Positions]) -> Evaluation:
        nodes, labels = store.targets[number].nodes, store.targets[number].federation.labels
        first = int((store.owner < number).sum())
        some = [i for i, each in enumerate(sets) if len(each) > 0]
        own_mean = [own_mean_error(labels, nodes[i].support, sets[i]) for i in some if values]

        about = store.targets[number], first, scored, own
        kept = {} if place else _scored(results, ordered, *about)
        singles: list[Array] = []
        if scored is not None:
            rows = results[ordered.index(scored)][place]["single"][first : first + len(nodes)]
            singles = [rows[i, : len(sets[i])].double().cpu().numpy() for i in some]

        def by_steps(name: str) -> Values:
            return {
                count: result[place][name][first : first + len(nodes)][some].tolist()
                for count, result in zip(ordered, results, strict=True)
                if name in result[place]
            }

        decided: dict[str, Any] = {}
        if among:
            mine, names = slice(first, first + len(nodes)), among
            decided["decided"] = chosen[place]["metric"][mine][some].tolist()
            decided["choices"] = tuple(names[each] for each in chosen[place]["choice"][mine][some])
        return Evaluation(
            metric=metric_name(task),
            nodes=tuple(nodes[i].name for i in some),
            query_sizes=tuple(len(sets[i]) for i in some),
            values=by_steps("metric"),
            seen_classes=by_steps("seen"),
            losses=by_steps("loss"),
            own_means=tuple(own_mean),
            further={**{n: by_steps(n) for n in _FURTHER[task.kind]}, **kept.pop("further", {})},
            details=kept,
            singles=tuple(singles),
            **decided,
        )

    found, values = [], task.kind == "regression"
    for number, each in enumerate(store.targets):
        evaluation = judged(number, 0, [node.query for node in each.nodes])
        precise = [node.precise for node in each.nodes]
        if any(len(some) for some in precise):
            evaluation = replace(evaluation, precise=judged(number, 1, precise))
        found.append(evaluation)
    return found


_FURTHER = {"classification": ("balanced-accuracy", "f1"), "regression": ("mae", "r2")}


def _scored(
    results: Sequence[Any],
    ordered: Sequence[int],
    targets: Targets,
    first: int,
    scored: int | None,
    own: Sequence[OwnMetric],
) -> dict[str, Any]:
    """What is told by the outputs of all nodes of a model: `further` metrics, and the classes."""
    if scored is None:
        return {}
    nodes, task = targets.nodes, targets.federation.task
    tensor = results[ordered.index(scored)][0]["scores"][first : first + len(nodes)]
    tensor = tensor.softmax(dim=-1) if task.class_names else targets.scaling.in_label_unit(tensor)
    padded, sizes = tensor.cpu().numpy(), [len(node.query) for node in nodes]
    outputs = np.concatenate([padded[i, :size] for i, size in enumerate(sizes)])
    labels = targets.federation.labels[np.concatenate([node.query for node in nodes])]
    owner = np.repeat(np.arange(len(nodes)), sizes)
    further = {
        name: {scored: values}
        for name, values in own_metrics(own, labels, outputs, owner, len(nodes)).items()
    }
    if task.kind == "regression" or not np.isfinite(outputs).all():
        return {"further": further}
    further["auc"] = {scored: node_aucs(outputs, labels, owner, len(nodes))}
    return {"further": further, **class_table(outputs, labels, task.class_names)}


def evaluate_model(
    model: MetaModel,
    federation: Federation,
    steps: Sequence[int] = (0, 1, 5),
    *,
    execution: Execution = Execution(path="loop", chunk=1),
    seed: int = 0,
    decides: bool = False,
    metrics: Sequence[OwnMetric] = (),
) -> Evaluation:
    """A model on the targets of a federation, before and after adapting by its own rule.

    Args:
        model: as training or `MetaModel.load` gives it.
        federation: of the same classes and input shape; only its targets are looked at.
        steps: numbers of adaptation steps to measure after.
        execution: with its path and chunk size resolved; that of the model's own run gives the
            numbers of that run to the last bit.
        seed: of mini-batches, where the adaptation draws any.
        decides: measure also what nodes reach that decide by themselves how they adapt.
        metrics: further ones of your own: functions (labels, outputs) → number of one node, named
            as they are, after the model's own number of steps (the largest of `steps` else).
    """
    if federation.task != model.task or federation.inputs.shape[1:] != model.input_shape:
        raise DataError(
            f"{federation.name} has other classes or shapes than the model was trained on",
            "evaluate it on data like its own",
        )
    with machine(execution):
        features = features_for(model, federation, list(federation.targets), execution)
    if features is not None:
        model, federation = features.applied(model), features.federation
    network = model.network.to(execution.torch_device, execution.torch_dtype)
    theta = {name: leaf.to(network.theta[name]) for name, leaf in model.theta.items()}
    layout = Layout(execution, Objective(predictor(network, execution), model.loss))
    targets = Targets(federation, federation.targets, model.scaling, seed)
    with machine(execution):
        store = TargetStore([targets], execution)
        models = [(theta, model.adaptation)]
        own = model.adaptation.steps
        scored = own if own in steps else max(steps)
        found = evaluate(layout, models, steps, store, decides=decides, scored=scored, own=metrics)
        return found[0]


def score(model: MetaModel, inputs: Array, labels: Array) -> float:
    """The usual one of `scores`: accuracy or mean squared error."""
    outputs = model.predict(inputs).cpu().numpy()
    if model.task.kind == "regression":
        return float(((outputs - labels.reshape(outputs.shape)) ** 2).mean())
    return float((outputs.argmax(axis=1) == labels).mean())


def scores(model: MetaModel, inputs: Array, labels: Array) -> dict[str, float]:
    """All metrics of a model as it is on raw samples, the usual one first; NaN where none can tell.

    Args:
        model: adapted or not.
        inputs: raw samples, (n, *input_shape).
        labels: class numbers as the model counts them, or values.
    """
    predicted = model.predict(inputs).cpu().double()
    mask = torch.ones(len(predicted), dtype=torch.float64)
    if model.task.kind == "regression":
        true = torch.as_tensor(labels, dtype=torch.float64).reshape(predicted.shape)
        unit = torch.ones(predicted.shape[-1], dtype=torch.float64)
        further = value_metrics(predicted, true, mask, unit)
        usual = {"mse": float((predicted - true).square().mean())}
        return usual | {name: float(each) for name, each in further.items()}
    answers, true = predicted.argmax(dim=-1), torch.as_tensor(labels)
    further = class_metrics(answers, true, mask, model.task.outputs)
    area = node_aucs(predicted.numpy(), labels, np.zeros(len(labels), np.int64), 1)[0]
    usual = {"accuracy": float((answers == true).double().mean())}
    return usual | {name: float(each) for name, each in further.items()} | {"auc": area}


def metric_name(task: Task) -> str:
    """What is measured for a task where nobody says."""
    return usual_metric(task.kind)


def measures(
    objective: Objective,
    task: Task,
    theta: Tree,
    support: Samples,
    judged: Samples,
    at_once: int,
    unit: Tensor,
) -> dict[str, Tensor]:
    """Metrics, loss and `outputs` of one node's model; errors are in the labels' own unit.

    And `single`: of every sample what the metric is the mean of.

        mse = mean over samples and outputs o of s_o² (output_o − label_o)²

    Args:
        objective: model and loss.
        task: what is measured.
        theta: the node's model, adapted or not.
        support: its classes are those that the node has seen.
        judged: what to measure on.
        at_once: most samples that pass through the model together, for the memory they take.
        unit: s, what labels were divided by, (outputs,); of values alone.
    """
    inputs, labels, mask = judged
    parts = torch.split(inputs, at_once)
    outputs = torch.cat([objective.predict(theta, part, None) for part in parts])

    def mean(per_sample: Tensor) -> Tensor:
        return (per_sample * mask).sum() / mask.sum()

    loss = mean(objective.loss(outputs, labels))
    if task.kind == "regression":
        errors = (outputs - labels).square() * unit.square()
        further = value_metrics(outputs, labels, mask, unit)
        single = errors.mean(dim=-1)
        found = {"metric": mean(single), "loss": loss, "outputs": outputs, "single": single}
        return {**found, **further}

    def accuracy(scores: Tensor) -> Tensor:
        share = mean((scores.argmax(dim=-1) == labels).to(mask.dtype))
        return torch.where(loss.isfinite(), share, torch.nan)  # NaN has an argmax, but no meaning

    seen = torch.where(_classes(support, task.outputs), outputs, -torch.inf)
    further = class_metrics(outputs.argmax(dim=-1), labels, mask, task.outputs)
    further = {name: torch.where(loss.isfinite(), m, torch.nan) for name, m in further.items()}
    found = {"metric": accuracy(outputs), "seen": accuracy(seen), "loss": loss}
    right = (outputs.argmax(dim=-1) == labels).to(mask.dtype)
    single = torch.where(loss.isfinite(), right, torch.nan)
    return {**found, "outputs": outputs, "single": single, **further}


def _classes(samples: Samples, count: int) -> Tensor:
    """Which classes a sample set holds, (count,) of bool."""
    classes = torch.arange(count, device=samples.labels.device)
    present = (samples.labels.unsqueeze(-1) == classes) & (samples.mask > 0).unsqueeze(-1)
    return present.any(dim=0)
