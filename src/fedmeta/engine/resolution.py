"""Resolves what an execution leaves open for a model and its data: path, chunk size, threads."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Literal

import torch
from torch import Tensor, nn

from fedmeta.algorithms.algorithm import Algorithm, Fleet
from fedmeta.config.execution import GIB, Execution
from fedmeta.core import randomness, step_sizes, tree
from fedmeta.core.errors import FedmetaError, MemoryBudgetError, ModelError
from fedmeta.core.objective import Objective, adapt
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.data.augmentation import Augmentation, augmenting
from fedmeta.data.federation import Federation
from fedmeta.data.packing import longest_sets, pack
from fedmeta.data.scaling import Scaling
from fedmeta.engine.chain.chain import Chain
from fedmeta.engine.chain.recognise import chain_of
from fedmeta.engine.cohort import Cohort, facts_at, standing_of
from fedmeta.engine.compiled.choice import derivatives
from fedmeta.engine.compiled.nodes_half import CompiledHalf
from fedmeta.engine.layout import Layout, predictor
from fedmeta.engine.local import LocalEngine
from fedmeta.engine.memory import out_of_memory
from fedmeta.engine.repeat_axis import RepeatAxis
from fedmeta.engine.round import NodesHalf
from fedmeta.engine.samples import NodeStore, data_bytes, fits_resident
from fedmeta.models.functional import FunctionalModel
from fedmeta.uplink.uplink import Uplink

_LOOP_PARAMETERS = 500_000  # above, a node's products fill a CPU by themselves
_PROCESS = GIB // 2  # the interpreter and torch's libraries
# Working memory of a chunk on a CPU, and from where on there is enough of it for all threads.
# Larger chunks wait for main memory, smaller ones for Python. In closed form a node takes a tenth
# of the operations, and a chunk stays in the cache of one core.
_CACHE, _SHARED = 384 * 2**20, 48 * 2**20
_CLOSED_CACHE, _CLOSED_SHARED = 40 * 2**20, 8 * 2**20


def lay_out(
    execution: Execution,
    model: FunctionalModel,
    loss: Callable[[Tensor, Tensor], Tensor],
    federation: Federation,
    scaling: Scaling,
    algorithm: Algorithm,
    repeats: int = 1,
    augmentation: Augmentation = Augmentation(),
    uplink: Uplink = Uplink(),
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
        augmentation: of the samples in training.
        uplink: what happens to contributions on their way.
    """
    sources = federation.sources
    # A dual, and what a node sent last, are as large as the model and its step sizes.
    joint = tree.size({**model.theta, **step_sizes.start(algorithm.inner, model.theta)})
    numbers = 2 * joint * len(sources) * repeats
    state_bytes = numbers * execution.torch_dtype.itemsize

    def laid(path: Literal["batched", "loop"]) -> Layout:
        chosen = resolved(replace(execution, path=path), state_bytes)
        draws = model.draws or augmentation.active
        chain = None if draws else closed_form(chosen, model, loss)
        renames, turns = augmentation.renames(federation.task), augmentation.turns(federation.task)
        plain = Objective(predictor(model, chosen), loss, draws, renames, turns, chain)
        chosen = replace(chosen, derivatives=derivatives(chosen, plain, algorithm, uplink))
        held = 0 if chosen.streams else state_bytes
        chunk = _chunk(chosen, model, federation, scaling, held, repeats)
        chosen = replace(chosen, chunk=1 if path == "loop" else chunk)
        predict = augmenting(plain.predict, augmentation)
        return Layout(chosen, replace(plain, predict=predict))

    path = chosen_path(execution, model) if execution.path == "auto" else execution.path
    alone = federation.with_nodes(sources[:1])
    if path == "loop":
        layout = laid("loop")
        with _explained(algorithm):
            _try(layout, model, alone, scaling, algorithm)
        return layout
    batched = laid("batched")
    few = federation.with_nodes(sources[: min(2, batched.execution.chunk or 1)])
    try:  # on two nodes: some layers have no batching rule, and only trying tells
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what else is to be said is said in round 1
            if execution.path == "auto":  # what vmap computes row by row a loop does faster
                warnings.filterwarnings("error", "There is a performance drop", UserWarning)
            _try(batched, model, few, scaling, algorithm)
    except (RuntimeError, NotImplementedError, ValueError, UserWarning) as error:
        if out_of_memory(error):
            raise
        if execution.path == "batched":
            raise ModelError(
                f"this model cannot be batched over nodes ({str(error).splitlines()[0]})",
                'use path "loop"',
            ) from error
        layout = laid("loop")
        with _explained(algorithm):
            _try(layout, model, alone, scaling, algorithm)
        return layout
    if path == "batched":
        return batched
    layouts = (batched, laid("loop"))
    cohort = Cohort(federation, scaling, seed=0)
    # Two rounds to warm up, one in which recordings are made, and the better of two.
    times = [min(_seconds(5, one, model, cohort, algorithm)[3:]) for one in layouts]
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


def chosen_path(execution: Execution, model: FunctionalModel) -> Literal["batched", "loop"]:
    """The fixed rule behind path "auto": batch whatever can be, but large models on a CPU.

    Convolutions are batched at any size: with shared weights they are one large batch, with weights
    of their own the nodes take turns inside the layer.

    Example:
        >>> from fedmeta.models.functional import functionalise
        >>> chosen_path(Execution(), functionalise(nn.Linear(64, 10)))
        'batched'
        >>> chosen_path(Execution(), functionalise(nn.Linear(1000, 1000)))
        'loop'
    """
    if execution.torch_device.type == "cuda" or convolves(model):
        return "batched"
    return "batched" if tree.size(model.theta) <= _LOOP_PARAMETERS else "loop"


def closed_form(
    execution: Execution, model: FunctionalModel, loss: Callable[[Tensor, Tensor], Tensor]
) -> Chain | None:
    """The model as a chain of linear layers, where that is how it is to be computed."""
    plain = execution.device == "cpu" and execution.precision != "bf16"  # a CPU knows no TF32
    if execution.path != "batched" or not plain or execution.derivatives == "autograd":
        return None
    return chain_of(model, loss)


def convolves(model: FunctionalModel) -> bool:
    """Whether the model has convolution layers."""
    return any(isinstance(layer, nn.modules.conv._ConvNd) for layer in model.inference.modules())


def node_bytes(
    model: FunctionalModel, sample: torch.Tensor, samples: int, dtype: torch.dtype
) -> int:
    """Working memory of one node on the batched path, in bytes (an estimate from above).

    Args:
        model: the model in use.
        sample: one scaled input with a batch axis of 1.
        samples: padded support and query samples of a node.
        dtype: of the computation.
    """
    numbers = 0

    def count(_: nn.Module, __: object, output: object) -> None:
        nonlocal numbers
        numbers += output.numel() if isinstance(output, torch.Tensor) else 0

    leaves = [
        layer
        for layer in model.inference.modules()
        if not list(layer.children()) and not isinstance(layer, nn.Identity)
    ]
    hooks = [layer.register_forward_hook(count) for layer in leaves]
    with torch.no_grad():
        model(model.theta, sample)
    for hook in hooks:
        hook.remove()
    # Activations with their gradients and tangents, and a handful of trees (θ_i, r, g, y, v, …).
    activations = 6 * samples * (numbers + sample.numel())
    return int((activations + 12 * tree.size(model.theta)) * dtype.itemsize)


def fitting_chunk(execution: Execution, per_node: int, held: int, nodes: int) -> int:
    """How many nodes are computed at once: as many as fit the memory budget, or a CPU's caches.

    Args:
        execution: has the budget, and how many chunks are computed side by side.
        per_node: working memory of one node, in bytes.
        held: bytes taken by node states and data for the whole run.
        nodes: how many there are.
    """
    on_cpu = execution.device == "cpu"
    taken = held + (_PROCESS if on_cpu else 0)
    room = execution.budget - taken
    if room < per_node:
        raise MemoryBudgetError(
            f"the memory budget of {execution.budget / GIB:g} GiB does not fit one node: node "
            f"states and data take {taken / GIB:.3g} GiB and one node needs "
            f"{per_node / GIB:.3g} GiB",
            f"give --memory {(taken + per_node) / GIB * 1.05:.3g} or more",
        )
    fits = max(1, room // (per_node * execution.workers))
    if execution.chunk is not None or not on_cpu:
        return int(min(nodes, execution.chunk or fits, fits))
    closed = execution.derivatives in ("closed-form", "compiled")
    cache, shared = (_CLOSED_CACHE, _CLOSED_SHARED) if closed else (_CACHE, _SHARED)
    chunks = -(-nodes // min(nodes, fits, max(1, cache // per_node)))
    if nodes * per_node > shared:  # in equal shares
        chunks = -(-chunks // execution.workers) * execution.workers
    return max(1, -(-nodes // chunks))


def resolved(execution: Execution, state_bytes: int) -> Execution:
    """The same with threads, memory and the place of node states written down.

    Args:
        execution: its path is resolved already.
        state_bytes: what all nodes remember, in bytes.
    """
    states = execution.states
    if states == "auto":
        roomy = execution.device == "cpu" or state_bytes <= execution.budget / 2
        states = "device" if roomy else "host"
    return replace(
        execution,
        threads=execution.threads or torch.get_num_threads(),
        memory=execution.memory or execution.default_memory,
        states=states,
    )


@contextmanager
def _explained(algorithm: Algorithm) -> Iterator[None]:
    """What cannot be differentiated is named before round 1.

    Raises:
        ModelError: with what autograd says.
    """
    try:
        yield
    except FedmetaError:
        raise
    except Exception as error:  # whatever somebody's layer raises
        if out_of_memory(error):
            raise
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        if "data pointer" in first:  # what hands numbers to code that autograd does not see
            raise ModelError(
                "the model takes numbers out of a tensor (packed sequences, numpy), where "
                "gradients of gradients cannot follow",
                "mask what is padding instead of packing, and stay with tensors",
            ) from error
        raise ModelError(
            f"this model cannot be trained by {algorithm.name}: {first}",
            "use layers that can be differentiated twice, or an algorithm without curvature "
            "(curvature none, fedavg)",
        ) from error


def _try(
    layout: Layout,
    model: FunctionalModel,
    federation: Federation,
    scaling: Scaling,
    algorithm: Algorithm,
) -> None:
    """The nodes' half of a round and an adaptation, for a small federation as its path says."""
    execution = layout.execution
    standing = standing_of(algorithm, Cohort(federation, scaling, seed=0), execution)
    moment = torch.ones((), dtype=torch.int64, device=execution.torch_device)
    init = partial(algorithm.init_node, model.theta)
    states = torch.func.vmap(init)(facts_at(standing, moment))
    data = NodeStore(federation, federation.sources, scaling, execution, resident=True)
    fleet = Fleet(standing.penalty.sum(), len(federation.sources))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of hyper-parameters: the run itself tells them
        shared = algorithm.broadcast(algorithm.init(model.theta, fleet))
    half = NodesHalf(algorithm, layout.objective, Uplink())
    inner = algorithm.inner
    key = None if inner.batch_size is None else randomness.key(0)

    def evaluated(data: NodeData) -> Tensor:
        phi = adapt(layout.objective, inner, model.theta, data.support, key)
        return layout.objective.predict(phi, data.query.inputs, None)

    if execution.path == "loop":
        alone = data.single(0)
        half.of_single(shared, states, alone, standing, moment, {})
        evaluated(map_leaves(lambda leaf: leaf[0], alone))
        return
    samples = data.chunk(torch.arange(len(data)))
    wanted, _ = half.of_chunk(shared, states, samples, standing, moment, {})
    if execution.derivatives == "compiled":
        compiled = CompiledHalf(algorithm, layout.objective, RepeatAxis(several=False))
        found, _ = compiled(shared, states, samples, standing, moment, {})
        inputs = torch.cat([samples.support.inputs.flatten(), samples.query.inputs.flatten()])
        _require_alike(found.update, wanted.update, float(inputs.abs().max()))
    torch.func.vmap(evaluated)(samples)


def _require_alike(found: Tree, wanted: Tree, largest: float) -> None:
    """Refuse compiled code that comes to something else than PyTorch, whatever compiler that was.

    Args:
        found, wanted: Σ updates, compiled and not.
        largest: of the inputs, by which rounding grows where an update is next to nothing.

    Raises:
        ModelError: if the two differ by more than a thousandth, and by more than rounding.
    """
    size, rounding = (
        float(tree.squared_norm(wanted)),
        torch.finfo(next(iter(wanted.values())).dtype),
    )
    room = 1e-6 * size + tree.size(wanted) * (16 * rounding.eps * (1 + largest)) ** 2
    if isfinite(size) and not float(tree.squared_norm(tree.subtract(found, wanted))) <= room:
        raise ModelError(
            "the code that was compiled for this machine does not compute what PyTorch does",
            "--set execution.derivatives=closed-form, or take another compiler (CC=…)",
        )


def _seconds(
    count: int, layout: Layout, model: FunctionalModel, cohort: Cohort, algorithm: Algorithm
) -> list[float]:
    """Of the first few rounds."""
    engine = LocalEngine(algorithm, cohort, layout)
    state, nodes = engine.start(model.theta)
    times = []
    for number in range(1, count + 1):
        start = time.perf_counter()
        state, nodes, metrics = engine.round(state, nodes, number)
        dict(metrics)  # wait for it
        times.append(time.perf_counter() - start)
    return times
