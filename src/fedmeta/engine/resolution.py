"""Resolves what an execution leaves open for a model and its data: path, chunk size, threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from torch import Tensor

from fedmeta.algorithms.algorithm import Algorithm
from fedmeta.core import step_sizes, tree
from fedmeta.core.errors import ModelError
from fedmeta.core.objective import Adaptation, Objective
from fedmeta.data.augmentation import Augmentation, augmenting
from fedmeta.data.federation import Federation
from fedmeta.data.packing import longest_sets, pack
from fedmeta.data.scaling import Scaling
from fedmeta.engine.cohort import Cohort
from fedmeta.engine.execution import Execution, chosen_path, fitting_chunk, node_bytes, resolved
from fedmeta.engine.layout import Layout, predictor
from fedmeta.engine.local import LocalEngine
from fedmeta.engine.samples import data_bytes, fits_resident
from fedmeta.models.functional import FunctionalModel


def lay_out(
    execution: Execution,
    model: FunctionalModel,
    loss: Callable[[Tensor, Tensor], Tensor],
    federation: Federation,
    scaling: Scaling,
    algorithm: Algorithm,
    repeats: int = 1,
    augmentation: Augmentation = Augmentation(),
) -> Layout:
    """Resolve path, chunk size and threads; settings that are resolved already stay as they are.

    Args:
        execution: what the user asked for.
        model: on the device and in the dtype of the execution.
        loss: one loss per sample.
        federation: its largest nodes and their number size the chunks.
        scaling: of the inputs.
        algorithm: its state counts towards memory, and "measure" times it.
        repeats: how many federations like this one are trained together.
        augmentation: of the inputs in training.
    """
    sources = federation.sources
    # A dual, and what a node sent last, are as large as the model and its step sizes.
    inner = getattr(algorithm, "inner", Adaptation())
    joint = tree.size({**model.theta, **step_sizes.start(inner, model.theta)})
    numbers = 2 * joint * len(sources) * repeats
    state_bytes = numbers * execution.torch_dtype.itemsize

    def laid(path: Literal["batched", "loop"]) -> Layout:
        chosen = resolved(replace(execution, path=path), state_bytes)
        held = 0 if chosen.streams else state_bytes
        chunk = _chunk(chosen, model, federation, scaling, held, repeats)
        chosen = replace(chosen, chunk=1 if path == "loop" else chunk)
        predict = augmenting(predictor(model, chosen), augmentation)
        draws = bool(model.dropouts) or augmentation.active
        return Layout(chosen, Objective(predict, loss, draws))

    path = chosen_path(execution, model) if execution.path == "auto" else execution.path
    if path == "loop":
        return laid("loop")
    batched = laid("batched")
    try:  # on two nodes: some layers have no batching rule, and only trying tells
        few = federation.with_nodes(sources[:2])
        _rounds(1, batched, model, few, scaling, algorithm)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        if execution.path == "batched":
            raise ModelError(
                f"this model cannot be batched over nodes ({str(error).splitlines()[0]})",
                'use path "loop"',
            ) from error
        return laid("loop")
    if path == "batched":
        return batched
    layouts = (batched, laid("loop"))
    # Two rounds to warm up, one in which recordings are made, and the better of two.
    times = [min(_rounds(5, one, model, federation, scaling, algorithm)[3:]) for one in layouts]
    return layouts[times.index(min(times))]


def _chunk(
    execution: Execution,
    model: FunctionalModel,
    federation: Federation,
    scaling: Scaling,
    held: int,
    repeats: int,
) -> int:
    """How many nodes (of each repeat) are computed at once, by the memory budget."""
    sources = federation.sources
    sample = pack(federation, sources[:1], scaling, execution.torch_dtype).support.inputs[0, :1]
    sample = sample.to(execution.torch_device)
    per_node = node_bytes(model, sample, sum(longest_sets(sources)), execution.torch_dtype)
    if fits_resident(federation, sources, execution, repeats):
        held += repeats * data_bytes(federation, sources, execution)
    if execution.device == "cpu":
        held += repeats * federation.inputs.nbytes
    return fitting_chunk(execution, repeats * per_node, held, len(sources))


def _rounds(
    count: int,
    layout: Layout,
    model: FunctionalModel,
    federation: Federation,
    scaling: Scaling,
    algorithm: Algorithm,
) -> list[float]:
    """Seconds of the first few rounds."""
    engine = LocalEngine(algorithm, Cohort(federation, scaling, seed=0), layout)
    state, nodes = engine.start(model.theta)
    times = []
    for number in range(1, count + 1):
        start = time.perf_counter()
        state, nodes, metrics = engine.round(state, nodes, number)
        dict(metrics)  # wait for it
        times.append(time.perf_counter() - start)
    return times
