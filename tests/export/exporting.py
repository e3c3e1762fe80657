"""Models to export, and their files run step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedmeta import Adaptation, MetaModel, ModelSettings, Scaling, Task
from fedmeta.models.functional import functionalise
from fedmeta.models.losses import Loss, named_loss
from fedmeta.models.networks import build

Array = npt.NDArray[Any]


def meta_model(
    network: ModelSettings | nn.Module,
    shape: tuple[int, ...],
    outputs: int,
    rule: Adaptation,
    kind: str = "classification",
    loss: Loss | None = None,
) -> MetaModel:
    """An untrained model: random weights, made-up scaling."""
    names = tuple(f"class {number}" for number in range(outputs))
    task = (
        Task("regression", outputs)
        if kind == "regression"
        else Task("classification", outputs, names)
    )
    module = network if isinstance(network, nn.Module) else build(network, shape, outputs, seed=0)
    taken = functionalise(module)
    rng = np.random.default_rng(1000)  # no sample is the mean itself
    scaling = Scaling(rng.normal(size=shape), rng.uniform(0.5, 2.0, size=shape))
    if kind == "regression":
        values = Scaling(7 + rng.normal(size=outputs), rng.uniform(2.0, 5.0, size=outputs))
        scaling = replace(scaling, labels=values)
    about = {"run": "a run", "features": []}
    chosen = loss or named_loss("auto", task)
    return MetaModel(taken, taken.theta, scaling, task, chosen, rule, shape, about)


def doubled(model: MetaModel) -> MetaModel:
    """The same in double precision."""
    network = model.network.to(torch.device("cpu"), torch.float64)
    theta = {name: leaf.double() for name, leaf in model.theta.items()}
    return replace(model, network=network, theta=theta)


def samples(model: MetaModel, count: int, constant: bool = False) -> tuple[Array, Array]:
    """Raw samples and labels as the graph takes them; constant ones tie in every pooling window."""
    rng = np.random.default_rng(count)
    inputs = rng.normal(size=(count, *model.input_shape)).astype(np.float32)
    if constant:  # also once they are scaled
        level = rng.normal(size=(count, *[1] * len(model.input_shape)))
        inputs = (model.scaling.mean + level * model.scaling.deviation).astype(np.float32)
    if model.task.kind == "regression":
        return inputs, (7 + 4 * rng.normal(size=(count, model.task.outputs))).astype(np.float32)
    return inputs, rng.integers(model.task.outputs, size=count)


def opened(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


def stepped(
    session: onnxruntime.InferenceSession, inputs: Array, labels: Array, steps: int, **more: Array
) -> tuple[dict[str, Array], Array]:
    """Adapted weights after some runs, and the answers of the last one."""
    given = {"inputs": inputs, "labels": labels, "mask": np.ones(len(inputs), np.float32), **more}
    names = [each.name for each in session.get_outputs()]
    weights: dict[str, Array] = {}
    for _ in range(steps):
        results = dict(zip(names, session.run(None, {**given, **weights}), strict=True))
        logits = results["logits"]
        weights = {
            name.replace("adapted/", "theta/"): each
            for name, each in results.items()
            if name.startswith("adapted/")
        }
    return weights, logits


def adapted(model: MetaModel, inputs: Array, labels: Array, steps: int) -> dict[str, Array]:
    """The same by PyTorch."""
    classes = model.task.class_names
    named = np.array(classes)[labels] if classes else labels
    theta = model.adapt(inputs, named, steps=steps).theta
    return {f"theta/{name}": leaf.numpy() for name, leaf in theta.items()}


def farthest(found: dict[str, Array], wanted: dict[str, Array]) -> float:
    """The largest difference between two sets of weights."""
    return max(float(np.abs(found[name] - wanted[name]).max()) for name in found)


class Leads(TorchDispatchMode):
    """By how much the maxima of all poolings lead the next value of their window, at least."""

    def __init__(self) -> None:
        super().__init__()
        self.smallest = float("inf")

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), more: Any = None
    ) -> Any:
        if function is torch.ops.aten.max_pool2d_with_indices.default:
            images, size, stride, (above, beside), *_ = *args, (0, 0)
            framed = nn.functional.pad(images, (beside, beside, above, above), value=-1e30)
            windows = nn.functional.unfold(framed.flatten(0, 1)[:, None], size, stride=stride)
            first, second = windows.topk(2, dim=1).values.unbind(1)
            self.smallest = min(self.smallest, float((first - second).min()))
        return function(*args, **(more or {}))


def closest_call(model: MetaModel, inputs: Array, labels: Array, steps: int) -> float:
    """The smallest lead of a maximum in all steps, in double precision."""
    with Leads() as leads:
        adapted(doubled(model), inputs, labels, steps)
    return leads.smallest


def answers(model: MetaModel, inputs: Array, weights: dict[str, Array] | None = None) -> Array:
    """Outputs of the network by PyTorch, in the unit of the labels."""
    theta = {n: torch.from_numpy(np.asarray(w)) for n, w in (weights or {}).items()}
    known = {n: theta.get(f"theta/{n}", leaf) for n, leaf in model.theta.items()}
    with torch.no_grad():
        result: Array = model.network(known, model.scaled(inputs)).numpy()
    if (values := model.scaling.labels) is not None:
        result = result * values.deviation + values.mean
    return result
