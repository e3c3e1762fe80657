"""A function of tensors, recorded once per set of shapes and then replayed without Python.

On a GPU the recording is a CUDA graph: one launch instead of thousands. On a CPU it is the list of
tensor operations that `make_fx` traced: no more passing through derivatives and batching rules, and
it may run in several threads at once. TorchScript's interpreter runs that list where it is asked to
and finds the same bits: an operation costs it a third of what it costs Python, and threads do not
wait for each other. Either way the same kernels run on the same numbers, so a replay gives the bits
of a plain call.

Functions must be pure: what they compute may depend on the arguments' values through tensor
operations only. One that asks for a value in Python (`if loss > 1`, `.item()`) cannot be recorded
and is simply called.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fedmeta.core.nesting import put_together, taken_apart
from fedmeta.core.tree import copy_into

_CALLS = 2  # plain calls on a GPU before a recording is made
# Seconds of plain calls on a CPU before one is made: about what tracing takes, so that at worst a
# run takes twice as long as it had to, and short runs never trace.
_PATIENCE = 1.5
_RECORDINGS = 4  # shapes that are kept

Function = Callable[..., Any]


@dataclass(frozen=True)
class Ready:
    """How to call a function now.

    Args:
        call: takes the arguments; what it returns is overwritten by the next call of a GPU
            recording.
        concurrent: whether several threads may call it at once.
    """

    call: Function
    concurrent: bool


@dataclass(frozen=True)
class _Flat:
    """A recording that takes leaves.

    Args:
        run: leaves to leaves.
        form: of the results.
    """

    run: Function
    form: Any

    def __call__(self, *arguments: Any) -> Any:
        return self.of_leaves(taken_apart(arguments)[0])

    def of_leaves(self, leaves: Sequence[Tensor]) -> Any:
        # As they were written down: nothing is fused or rearranged, which would change last bits.
        with torch.no_grad():
            before = torch._C._get_graph_executor_optimize()
            torch._C._set_graph_executor_optimize(False)
            try:
                results = self.run(*leaves)
            finally:
                torch._C._set_graph_executor_optimize(before)
        return put_together(self.form, results)


class Recorder:
    """Keeps the recordings of a function.

    Args:
        function: pure; arguments and results are trees of tensors.
        scripted: let TorchScript's interpreter run a recording on a CPU.

    Example:
        >>> double = Recorder(lambda x: 2 * x)
        >>> [float(double(torch.tensor(1.0))) for _ in range(4)]
        [2.0, 2.0, 2.0, 2.0]
    """

    def __init__(self, function: Function, scripted: bool = False) -> None:
        self._function = function
        self._trace = partial(_trace, scripted=scripted)
        self._calls: dict[Any, int] = {}
        self._seconds: dict[Any, float] = {}
        self._recorded: dict[Any, Ready] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Call the function, recorded if it is."""
        leaves, form = taken_apart(arguments)
        call = self._ready(arguments, leaves, form).call
        return call.of_leaves(leaves) if isinstance(call, _Flat) else call(*arguments)

    def ready(self, *arguments: Any) -> Ready:
        """The recording for arguments of these shapes, made if it is time; or the function."""
        return self._ready(arguments, *taken_apart(arguments))

    def _ready(self, arguments: tuple[Any, ...], leaves: Sequence[Tensor], form: Any) -> Ready:
        # Strides too: kernels are chosen by them, and a recording is of certain kernels.
        shapes = tuple((leaf.shape, leaf.stride(), leaf.dtype, leaf.device) for leaf in leaves)
        key = (form, shapes)
        if key in self._recorded:
            return self._recorded[key]
        on_gpu = bool(leaves) and leaves[0].is_cuda
        due = self._calls.get(key, 0) >= _CALLS if on_gpu else self._seconds.get(key, 0) > _PATIENCE
        if not due or len(self._recorded) >= _RECORDINGS:
            return Ready(self._counted(key), concurrent=False)
        try:
            self._recorded[key] = (_graph if on_gpu else self._trace)(self._function, arguments)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # it looks at values
            self._recorded[key] = Ready(self._function, concurrent=False)
        return self._recorded[key]

    def _counted(self, key: Any) -> Function:
        """The function itself, its calls and the time they take counted."""

        def call(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = self._function(*arguments)
            self._calls[key] = self._calls.get(key, 0) + 1
            self._seconds[key] = self._seconds.get(key, 0) + time.perf_counter() - start
            return result

        return call

    def forget(self) -> None:
        """Drop all recordings and the memory they hold."""
        self._calls.clear()
        self._seconds.clear()
        self._recorded.clear()


def _trace(function: Function, arguments: tuple[Any, ...], scripted: bool) -> Ready:
    """The tensor operations of a call, as a function of their own."""
    leaves, structure = taken_apart(arguments)
    outputs: list[Any] = []

    def flat(*inputs: Tensor) -> tuple[Tensor, ...]:
        results, form = taken_apart(function(*put_together(structure, inputs)))
        outputs[:] = [form]
        return tuple(results)

    # Tensors without values first: what looks at one fails here or is recorded as the look it is,
    # and no value becomes a constant. Their layout in memory is a guess that may be wrong (of
    # depthwise convolutions it is), and then a view of theirs fails: true ones have the true one.
    for mode in ("fake", "real"):
        # Each is an object of its own, also where one was given twice.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # plain calls have told what is to be told
            operations = make_fx(flat, tracing_mode=mode, _allow_non_fake_inputs=True)(
                *(leaf.detach() for leaf in leaves)
            )
        operations.graph.eliminate_dead_code()  # such as keys of draws that nobody makes
        operations.recompile()
        found = _tried(operations, leaves)
        if found is not None:
            break
    else:
        return Ready(function, concurrent=False)
    run = _interpreted(operations, leaves, found) if scripted else operations
    return Ready(_Flat(run, outputs[0]), concurrent=True)


def _interpreted(
    operations: GraphModule, inputs: Sequence[Tensor], expected: Sequence[Tensor]
) -> Function:
    """The operations for TorchScript's interpreter; as they are where it finds other bits."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch would rather compile, which takes a minute
            traced = torch.jit.trace(operations, tuple(inputs), check_trace=False)  # type: ignore[no-untyped-call]
            kept: Function = torch.jit.freeze(traced.eval(), optimize_numerics=False)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever an operation has against it
        return operations
    found = _tried(kept, inputs)
    same = found is not None and all(_equal(a, b) for a, b in zip(found, expected, strict=True))
    return kept if same else operations


def _tried(run: Function, inputs: Sequence[Tensor]) -> Sequence[Tensor] | None:
    """What a recording finds; None if it cannot be run."""
    try:
        with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            found: Sequence[Tensor] = run(*inputs)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever an operation has against it
        return None
    return found


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Nothing is thrown away meanwhile: to free an older graph during a recording would end it."""
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _graph(function: Function, arguments: tuple[Any, ...]) -> Ready:
    """A CUDA graph of a call, with inputs and outputs in fixed places."""
    torch.cuda.empty_cache()  # what plain calls left, so that both do not add up
    inputs = pytree.tree_map(torch.clone, arguments)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries set themselves up outside of the recording
        function(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with _undisturbed(), torch.cuda.graph(graph):
        results = function(*inputs)
    places = pytree.tree_leaves(inputs)

    last: list[tuple[Tensor | None, int]] = [(None, 0)] * len(places)

    def replay(*arguments: Any) -> Any:
        targets, sources = [], []
        for i, (place, given) in enumerate(zip(places, pytree.tree_leaves(arguments), strict=True)):
            # What was given the last time and not written to since is there already.
            tensor, version = last[i]
            now: int = given._version
            if tensor is not given or version != now:
                targets.append(place)
                sources.append(given)
                last[i] = (given, now)
        copy_into(targets, sources)
        graph.replay()
        return results

    return Ready(replay, concurrent=False)
