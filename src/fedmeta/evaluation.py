"""How well targets do after adapting: metric by number of steps, node by node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmeta.data.federation import Federation, Node, Task
from fedmeta.data.packing import Samples, longest_sets, pack_precise
from fedmeta.data.pool import Array
from fedmeta.data.scaling import Scaling
from fedmeta.engines.cohort import node_keys
from fedmeta.engines.execution import Execution, machine
from fedmeta.engines.layout import Layout, predictor
from fedmeta.engines.samples import NodeStore
from fedmeta.errors import DataError
from fedmeta.meta_model import MetaModel
from fedmeta.objective import Adaptation, Objective, adapt
from fedmeta.tree import Tree, map_leaves

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


class _TargetStore:
    """The samples of nodes that are evaluated, packed when they are needed."""

    def __init__(
        self,
        federation: Federation,
        nodes: Sequence[Node],
        scaling: Scaling,
        execution: Execution,
    ) -> None:
        self._own = NodeStore(federation, nodes, scaling, execution, resident=False)
        self._nodes, self._execution = nodes, execution
        self._pack = partial(pack_precise, federation, scaling=scaling, dtype=execution.torch_dtype)
        self.precise = max(len(node.precise) for node in nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def chunk(self, positions: Tensor) -> _Sets:
        """Samples of the nodes at those positions, padded to a shape that is the same for all."""
        support, query = self._own.chunk(positions)
        some = [self._nodes[number] for number in positions.tolist()]
        return _Sets(support, (query, *self._further(some, self.precise)))

    def single(self, position: int) -> _Sets:
        """Samples of one node without padding, with a node axis of length 1."""
        support, query = self._own.single(position)
        return _Sets(support, (query, *self._further([self._nodes[position]], None)))

    def _further(self, nodes: Sequence[Node], size: int | None) -> list[Samples]:
        if not self.precise:
            return []
        packed = self._pack(nodes, size=size)
        return [map_leaves(lambda leaf: leaf.to(self._execution.torch_device), packed)]


def evaluate(
    layout: Layout,
    theta: Tree,
    adaptation: Adaptation,
    steps: Sequence[int],
    federation: Federation,
    nodes: Sequence[Node],
    scaling: Scaling,
    seed: int,
) -> Evaluation:
    """Adapt θ on every node's support set and measure on its query set.

    Where nodes have precise sets, the same adapted models are measured on these too.

    Args:
        layout: how nodes are computed.
        theta: the meta-model.
        adaptation: how a node adapts; its number of steps is replaced by those of `steps`.
        steps: numbers of steps to measure after, e.g. (0, 1, 5).
        federation: has the samples.
        nodes: which nodes, usually the targets.
        scaling: of the inputs.
        seed: of mini-batches, where the adaptation draws any.
    """
    if not nodes:
        raise DataError(f"{federation.name} has no target nodes", "raise target_share")
    execution, task = layout.execution, federation.task
    quiet = replace(layout.objective, predict=_without_draws(layout.objective))
    ordered = sorted(set(steps))
    at_once = _AT_ONCE * sum(longest_sets(nodes))

    def measure(data: _Sets, key: Tensor) -> list[list[dict[str, Tensor]]]:
        results, phi, done = [], theta, 0
        for wanted in ordered:
            stretch = replace(adaptation, steps=wanted - done)
            phi = adapt(quiet, stretch, phi, data.support, key, first_step=done)
            results.append(
                [measures(quiet, task, phi, data.support, each, at_once) for each in data.judged]
            )
            done = wanted
        return results

    chunk = min(execution.chunk or 1, len(nodes))
    store = _TargetStore(federation, nodes, scaling, execution)
    small = replace(layout, execution=replace(execution, chunk=chunk))
    keys = node_keys(nodes, seed).to(execution.torch_device)
    with torch.no_grad():
        results = small.map(measure, store, keys)

    def judged(place: int, sizes: Sequence[int]) -> Evaluation:
        some = [number for number, size in enumerate(sizes) if size > 0]

        def by_steps(name: str) -> Values:
            return {
                count: result[place][name][some].tolist()
                for count, result in zip(ordered, results, strict=True)
                if name in result[place]
            }

        return Evaluation(
            metric=metric_name(task),
            nodes=tuple(nodes[number].name for number in some),
            query_sizes=tuple(sizes[number] for number in some),
            values=by_steps("metric"),
            seen_classes=by_steps("seen"),
            losses=by_steps("loss"),
        )

    result = judged(0, [len(node.query) for node in nodes])
    if not store.precise:
        return result
    return replace(result, precise=judged(1, [len(node.precise) for node in nodes]))


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
    nodes = federation.targets
    with machine(execution):
        return evaluate(
            layout, theta, model.adaptation, steps, federation, nodes, model.scaling, seed
        )


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


def _without_draws(objective: Objective) -> Callable[[Tree, Tensor, Tensor | None], Tensor]:
    """The model without dropout and augmentation, also where mini-batches bring a key."""
    return lambda theta, inputs, _key: objective.predict(theta, inputs, None)
