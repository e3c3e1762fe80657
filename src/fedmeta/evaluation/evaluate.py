"""How well targets do after adapting: metric by number of steps, node by node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmeta.config.execution import Execution
from fedmeta.core.errors import DataError
from fedmeta.core.objective import Adaptation, Objective, adapt
from fedmeta.core.sample_sets import Samples
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.data.federation import Federation, Node, Task
from fedmeta.data.packing import longest_sets, pack, pack_precise
from fedmeta.data.pool import Array
from fedmeta.data.scaling import Scaling
from fedmeta.engine.cohort import node_keys
from fedmeta.engine.layout import Layout, predictor
from fedmeta.engine.machine import machine
from fedmeta.models.meta_model import MetaModel

Values = dict[int, list[float]]

# Samples that may pass through the model at once, as a multiple of those that a node trains on:
# chunks are sized for activations with their gradients and tangents, here are activations alone.
_AT_ONCE = 6


@dataclass(frozen=True)
class Evaluation:
    """What targets reach on their query sets after some numbers of adaptation steps.

    On their precise sets it is the same with other samples, so it is one of these too.

    Args:
        metric: "accuracy" (argmax over all classes), or "mse" (lower is better).
        nodes: names of the targets.
        query_sizes: how many samples they are judged on.
        values: metric of every node, by number of steps.
        seen_classes: the same with predictions restricted to the classes of the node's support set;
            empty for regression.
        losses: loss of every node, by number of steps.
        precise: the same on the precise sets of those nodes that have one; None if none has.

    Example:
        >>> query = Evaluation("accuracy", ("a",), (3,), {1: [1.0]}, {}, {1: [0.2]})
        >>> precise = Evaluation("accuracy", ("a",), (200,), {1: [0.9]}, {}, {1: [0.3]})
        >>> row = replace(query, precise=precise).per_node()[0]
        >>> row["query"], row["metric"], row["precise"], row["precise_metric"]
        (3, {'1': 1.0}, 200, {'1': 0.9})
    """

    metric: str
    nodes: tuple[str, ...]
    query_sizes: tuple[int, ...]
    values: Values
    seen_classes: Values
    losses: Values
    precise: Evaluation | None = None

    def summary(self) -> dict[str, dict[str, float | None]]:
        """Mean over nodes, mean over query samples, median and worst decile, by steps.

        What is not finite, because adaptation blew a node's model up, is None.
        """
        table = {
            str(s): statistics(v, self.query_sizes, self.metric) for s, v in self.values.items()
        }
        for steps, seen in self.seen_classes.items():
            table[str(steps)]["mean_seen_classes"] = float(np.mean(seen))
        for steps, losses in self.losses.items():
            table[str(steps)]["mean_loss"] = float(np.mean(losses))
        return {s: {name: _finite(v) for name, v in row.items()} for s, row in table.items()}

    def means(self) -> dict[str, dict[str, float | None]]:
        """What a round's record says: means over nodes by steps, as `target` and `precise`."""
        both = {"target": self, "precise": self.precise}
        return {
            name: {steps: row["mean"] for steps, row in each.summary().items()}
            for name, each in both.items()
            if each is not None
        }

    def is_finite(self, steps: int) -> bool:
        """Whether no node's model blew up in that many adaptation steps."""
        precise = self.precise is None or self.precise.is_finite(steps)
        return precise and all(math.isfinite(loss) for loss in self.losses[steps])

    def per_node(self) -> list[dict[str, Any]]:
        """One row per target for reports: name, query size and metric by steps.

        And `precise` and `precise_metric`, the same of its precise set: 0 and nothing where it has
        none.
        """
        further = {row["name"]: row for row in self.precise.per_node()} if self.precise else {}
        none = {"query": 0, "metric": {}}
        return [
            {
                "name": name,
                "query": size,
                "metric": {str(steps): _finite(values[i]) for steps, values in self.values.items()},
                "precise": further.get(name, none)["query"],
                "precise_metric": further.get(name, none)["metric"],
            }
            for i, (name, size) in enumerate(zip(self.nodes, self.query_sizes, strict=True))
        ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def statistics(values: Sequence[float], sizes: Sequence[int], metric: str) -> dict[str, float]:
    """Mean over nodes, mean over samples, median, and the mean of the worst tenth of the nodes.

    Example:
        >>> statistics([1.0, 0.5, 0.9], [10, 30, 10], "accuracy")["worst_decile"]
        0.5
    """
    ordered = np.sort(values) if metric == "accuracy" else np.sort(values)[::-1]
    worst = ordered[: max(1, int(np.ceil(len(ordered) / 10)))]
    return {
        "mean": float(np.mean(values)),
        "weighted_mean": float(np.average(values, weights=sizes)),
        "median": float(np.median(values)),
        "worst_decile": float(np.mean(worst)),
    }


class _Sets(NamedTuple):
    """What a node adapts on, and what it is judged on: its query and perhaps its precise set."""

    support: Samples
    judged: tuple[Samples, ...]


@dataclass(frozen=True, eq=False)
class Targets:
    """Nodes that adapt a model and are judged, usually all targets of a federation.

    Args:
        federation: has the samples.
        nodes: which nodes.
        scaling: of the inputs.
        seed: of mini-batches, where the adaptation draws any.
    """

    federation: Federation
    nodes: Sequence[Node]
    scaling: Scaling
    seed: int

    def __post_init__(self) -> None:
        if not self.nodes:
            raise DataError(f"{self.federation.name} has no target nodes", "raise target_share")


class TargetStore:
    """The samples of the targets of several models, one model's after the other's.

    Args:
        targets: of every model.
        execution: device and dtype.
        resident: keep the samples once they were packed, for those who evaluate again; where they
            take more than a sixteenth of the memory budget, they are packed anew all the same.
    """

    def __init__(
        self, targets: Sequence[Targets], execution: Execution, *, resident: bool = False
    ) -> None:
        self.targets, self._execution = targets, execution
        everyone = [node for each in targets for node in each.nodes]
        self.owner = torch.tensor([i for i, each in enumerate(targets) for _ in each.nodes])
        self.sizes = longest_sets(everyone)
        self.precise = max(len(node.precise) for node in everyone)
        self._nodes = everyone
        samples = targets[0].federation.inputs[:1].size * (sum(self.sizes) + self.precise)
        room = len(everyone) * samples * execution.torch_dtype.itemsize <= execution.budget / 16
        self._kept: dict[tuple[int, ...], _Sets] | None = {} if resident and room else None

    def __len__(self) -> int:
        return len(self._nodes)

    def chunk(self, positions: Tensor) -> _Sets:
        """Samples of the nodes at those positions, padded to a shape that is the same for all."""
        places = tuple(positions.tolist())
        if self._kept is not None and places in self._kept:
            return self._kept[places]
        parts = [
            self._packed(self.targets[owner], [self._nodes[place] for place in mine], padded=True)
            for owner, mine in groupby(places, key=lambda place: int(self.owner[place]))
        ]
        sets: _Sets = map_leaves(lambda *leaves: torch.cat(leaves), *parts)
        if self._kept is not None:
            if sum(map(len, self._kept)) + len(places) > len(self):  # chunks of another size
                self._kept.clear()
            self._kept[places] = sets
        return sets

    def single(self, position: int) -> _Sets:
        """Samples of one node without padding, with a node axis of length 1."""
        owner = self.targets[int(self.owner[position])]
        return self._packed(owner, [self._nodes[position]], padded=False)

    def _packed(self, owner: Targets, nodes: Sequence[Node], *, padded: bool) -> _Sets:
        about = owner.federation, nodes, owner.scaling, self._execution.torch_dtype
        support, query = pack(*about, sizes=self.sizes if padded else None)
        judged = [query]
        if self.precise:
            judged.append(pack_precise(*about, size=self.precise if padded else None))
        device = self._execution.torch_device
        sets: _Sets = map_leaves(lambda leaf: leaf.to(device), _Sets(support, tuple(judged)))
        return sets


def evaluate(
    layout: Layout,
    models: Sequence[tuple[Tree, Adaptation]],
    steps: Sequence[int],
    store: TargetStore,
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
    """
    execution, task = layout.execution, store.targets[0].federation.task
    predict = layout.objective.predict
    # Without dropout and augmentation, also where mini-batches bring a key.
    quiet = replace(layout.objective, predict=lambda theta, x, _key: predict(theta, x, None))
    ordered = sorted(set(steps))
    at_once = _AT_ONCE * sum(store.sizes)
    rule = models[0][1]
    several = [(theta, dict(each.factors or {})) for theta, each in models]
    joined = several[0]
    if len(models) > 1:
        joined = map_leaves(lambda *leaves: torch.stack(leaves), *several)

    def measure(data: _Sets, key: Tensor, owner: Tensor) -> list[list[dict[str, Tensor]]]:
        phi, factors = joined
        if len(models) > 1:
            mine = owner.reshape(1)
            phi, factors = map_leaves(lambda leaf: leaf.index_select(0, mine)[0], joined)
        results, done = [], 0
        for wanted in ordered:
            stretch = replace(rule, steps=wanted - done, factors=factors or None)
            phi = adapt(quiet, stretch, phi, data.support, key, first_step=done)
            results.append(
                [measures(quiet, task, phi, data.support, each, at_once) for each in data.judged]
            )
            done = wanted
        return results

    # A chunk is so many nodes of every model that is trained at once.
    chunk = (execution.chunk or 1) * (len(models) if execution.path == "batched" else 1)
    small = replace(layout, execution=replace(execution, chunk=min(chunk, len(store))))
    keys = torch.cat([node_keys(each.nodes, each.seed) for each in store.targets])
    device = execution.torch_device
    with torch.no_grad():
        results = small.map(measure, store, keys.to(device), store.owner.to(device))

    def judged(number: int, place: int, sizes: Sequence[int]) -> Evaluation:
        nodes = store.targets[number].nodes
        first = int((store.owner < number).sum())
        some = [i for i, size in enumerate(sizes) if size > 0]

        def by_steps(name: str) -> Values:
            return {
                count: result[place][name][first : first + len(nodes)][some].tolist()
                for count, result in zip(ordered, results, strict=True)
                if name in result[place]
            }

        return Evaluation(
            metric=metric_name(task),
            nodes=tuple(nodes[i].name for i in some),
            query_sizes=tuple(sizes[i] for i in some),
            values=by_steps("metric"),
            seen_classes=by_steps("seen"),
            losses=by_steps("loss"),
        )

    found = []
    for number, each in enumerate(store.targets):
        evaluation = judged(number, 0, [len(node.query) for node in each.nodes])
        precise = [len(node.precise) for node in each.nodes]
        if any(precise):
            evaluation = replace(evaluation, precise=judged(number, 1, precise))
        found.append(evaluation)
    return found


def evaluate_model(
    model: MetaModel,
    federation: Federation,
    steps: Sequence[int] = (0, 1, 5),
    *,
    execution: Execution = Execution(path="loop", chunk=1),
    seed: int = 0,
) -> Evaluation:
    """A model on the targets of a federation, before and after adapting by its own rule.

    Args:
        model: as training or `MetaModel.load` gives it.
        federation: of the same classes and input shape; only its targets are looked at.
        steps: numbers of adaptation steps to measure after.
        execution: with its path and chunk size resolved; that of the model's own run gives the
            numbers of that run to the last bit.
        seed: of mini-batches, where the adaptation draws any.
    """
    if federation.task != model.task or federation.inputs.shape[1:] != model.input_shape:
        raise DataError(
            f"{federation.name} has other classes or shapes than the model was trained on",
            "evaluate it on data like its own",
        )
    network = model.network.to(execution.torch_device, execution.torch_dtype)
    theta = {name: leaf.to(network.theta[name]) for name, leaf in model.theta.items()}
    layout = Layout(execution, Objective(predictor(network, execution), model.loss))
    targets = Targets(federation, federation.targets, model.scaling, seed)
    with machine(execution):
        store = TargetStore([targets], execution)
        return evaluate(layout, [(theta, model.adaptation)], steps, store)[0]


def score(model: MetaModel, inputs: Array, labels: Array) -> float:
    """Accuracy or mean squared error of a model as it is, on raw samples.

    Args:
        model: adapted or not.
        inputs: raw samples, (n, *input_shape).
        labels: class numbers as the model counts them, or values.
    """
    outputs = model.predict(inputs).cpu().numpy()
    if model.task.kind == "regression":
        return float(((outputs - labels.reshape(outputs.shape)) ** 2).mean())
    return float((outputs.argmax(axis=1) == labels).mean())


def metric_name(task: Task) -> str:
    """What is measured for a task."""
    return "accuracy" if task.kind == "classification" else "mse"


def measures(
    objective: Objective,
    task: Task,
    theta: Tree,
    support: Samples,
    judged: Samples,
    at_once: int,
) -> dict[str, Tensor]:
    """Metric and loss of one node's model.

    Args:
        objective: model and loss.
        task: what is measured.
        theta: the node's model, adapted or not.
        support: its classes are those that the node has seen.
        judged: what to measure on.
        at_once: most samples that pass through the model together, for the memory they take.
    """
    inputs, labels, mask = judged
    parts = torch.split(inputs, at_once)
    outputs = torch.cat([objective.predict(theta, part, None) for part in parts])

    def mean(per_sample: Tensor) -> Tensor:
        return (per_sample * mask).sum() / mask.sum()

    loss = mean(objective.loss(outputs, labels))
    if task.kind == "regression":
        return {"metric": mean((outputs - labels).square().mean(dim=-1)), "loss": loss}

    def accuracy(scores: Tensor) -> Tensor:
        share = mean((scores.argmax(dim=-1) == labels).to(mask.dtype))
        return torch.where(loss.isfinite(), share, torch.nan)  # NaN has an argmax, but no meaning

    seen = torch.where(_classes(support, task.outputs), outputs, -torch.inf)
    return {"metric": accuracy(outputs), "seen": accuracy(seen), "loss": loss}


def _classes(samples: Samples, count: int) -> Tensor:
    """Which classes a sample set holds, (count,) of bool."""
    classes = torch.arange(count, device=samples.labels.device)
    present = (samples.labels.unsqueeze(-1) == classes) & (samples.mask > 0).unsqueeze(-1)
    return present.any(dim=0)
