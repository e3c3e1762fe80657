"""Calls of the compiled code: a chain and tensors as the structures that it reads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from fedmeta.core.meta_gradient import MetaGradient
from fedmeta.core.sample_sets import NodeData
from fedmeta.core.tree import Tree
from fedmeta.engine.chain.chain import Chain
from fedmeta.engine.chain.losses import CrossEntropy
from fedmeta.engine.compiled.compiler import library

_Number, _Pointer = ctypes.c_int64, ctypes.c_void_p
_KINDS = (None, "relu", "leaky-relu", "elu", "tanh", "sigmoid")
_NO_CLASS = "Target out of bounds: a label is no class of the model"


class _Layer(ctypes.Structure):
    """As `Layer` in the C code."""

    _fields_ = (
        *((name, _Number) for name in ("inputs", "outputs", "activation")),
        ("slant", ctypes.c_double),
        *((name, _Number) for name in ("weight_moves", "bias_moves")),
        *((name, _Pointer) for name in ("weight", "bias", "weight_state", "bias_state")),
        *((name, _Number) for name in ("weight_place", "bias_place")),
    )


class _Round(ctypes.Structure):
    """As `Round` in the C code."""

    _fields_ = (
        ("layer", ctypes.POINTER(_Layer)),
        ("layers", _Number),
        ("values", _Number),
        ("class_weights", _Pointer),
        ("step_size", ctypes.c_double),
        *((name, _Number) for name in ("curved", "support", "query")),
        *((name, _Pointer * 2) for name in ("inputs", "masks", "labels")),
        ("factors", _Pointer),
        *((name, _Number) for name in ("nodes", "chunk", "size")),
        *((name, _Pointer) for name in ("sums", "weights", "next")),
    )


Together = Callable[[Callable[[], None]], None]
"""Calls a function in this thread, and perhaps in others at the same time."""


class Kernel:
    """The meta-gradients of nodes and what becomes of them, in compiled code.

    Args:
        chain: the network and its loss.
        rule: how meta-gradients are computed; one plain step of adaptation.
    """

    def __init__(self, chain: Chain, rule: MetaGradient) -> None:
        self._chain, self._rule = chain, rule
        self._own = threading.local()
        self._plan: _Plan | None = None
        self._last: tuple[tuple[Tensor, ...], list[int], Tree, Tensor] | None = None

    def __call__(
        self,
        theta: Tree,
        data: NodeData,
        states: Tree,
        factors: Tensor,
        chunk: int,
        together: Together | None = None,
    ) -> tuple[Tree, Sequence[Tensor]]:
        """Σ updates of some nodes as one vector, and Σ of their weights, losses, squared steps.

        Args:
            theta: where to take meta-gradients.
            data: of the nodes, along a first axis.
            states: what they remember, in rows one behind the other; overwritten. Empty: nothing.
            factors: keep, gain, share, extra, weight, loss, moved of every node, see `LinearStep`.
            chunk: as many are summed up before their sum is added to the others'.
            together: shares out the chunks; None: all in this thread.
        """
        plan = self._plan = self._plan or _Plan(self._chain, self._rule, theta)
        call = self._bound(plan, data, states, factors)
        given, weights = self._packed(plan, theta, call)
        for place, layer in zip(call.layer[: call.layers], self._chain.layers, strict=True):
            place.bias = None if layer.bias is None else given[layer.bias].data_ptr()
        call.chunk, chunks = chunk, -(-call.nodes // chunk)
        sums, following = factors.new_empty(chunks, plan.size), _Number(0)
        call.sums, call.next = sums.data_ptr(), ctypes.addressof(following)
        call.weights, this = weights.data_ptr(), ctypes.byref(call)
        failed: list[int] = []

        held = sums, following, given, weights  # by those who are still at it if we are interrupted

        def compute(_held: object = held) -> None:
            if found := plan.code.compute(this, _Pointer(self._work(plan, call).data_ptr())):
                failed.append(found)

        if together is None or chunks == 1:
            compute()
        else:
            together(compute)
        if failed:
            raise IndexError(_NO_CLASS) if failed[0] == 1 else MemoryError()
        if chunks > 1:
            plan.code.add_up(this)
        update, scalars = torch.split(sums[0], [plan.size - 3, 3])
        return {"": update}, scalars.unbind()

    def _bound(self, plan: _Plan, data: NodeData, states: Tree, factors: Tensor) -> _Round:
        """The structure with these tensors; that of this thread's last call where they are its."""
        given = (*data.support, *data.query, factors, *states.values())
        last = getattr(self._own, "bound", None)
        if last is not None and _are(last[0], given):
            bound: _Round = last[1]
            return bound
        call, nodes, held = plan.call(), len(factors), []
        call.nodes, call.size = nodes, plan.size
        call.support, call.query = data.support.mask.shape[1], data.query.mask.shape[1]
        first, end = call.layer[0], call.layer[call.layers - 1]
        for which, samples in enumerate(data):
            count = nodes * samples.mask.shape[1]
            inputs, mask = (_in_rows(leaf, plan.dtype) for leaf in (samples.inputs, samples.mask))
            labels = _in_rows(samples.labels, plan.dtype if call.values else torch.int64)
            sizes = inputs.numel(), mask.numel(), labels.numel()
            wanted = count * first.inputs, count, count * (end.outputs if call.values else 1)
            if sizes != wanted:
                raise ValueError("samples are not those of this model")
            call.inputs[which], call.masks[which] = inputs.data_ptr(), mask.data_ptr()
            call.labels[which] = labels.data_ptr()
            held += [inputs, mask, labels]
        numbers = _in_rows(factors, plan.dtype)
        call.factors = numbers.data_ptr()
        for place, layer in zip(call.layer[: call.layers], self._chain.layers, strict=True):
            for name, slot in ((layer.weight, "weight_state"), (layer.bias, "bias_state")):
                if name in states:
                    state = states[name]
                    fits = state.is_contiguous() and state.dtype == plan.dtype
                    if not fits or state.shape != (nodes, *plan.shapes[name]):
                        raise ValueError("states are not rows one behind the other")
                    setattr(place, slot, state.data_ptr())
        self._own.bound = given, call, [*held, numbers]
        return call

    def _packed(self, plan: _Plan, theta: Tree, call: _Round) -> tuple[Tree, Tensor]:
        """θ and constants one number behind the other, and weights as the C code reads them.

        Chunks of a round share them. A θ that is written to in place is seen by its version, which
        `.data` does not raise.
        """
        leaves = tuple(theta.values())
        versions = [leaf._version for leaf in leaves]
        last = self._last
        if last is None or not _are(last[0], leaves) or last[1] != versions:
            named = {**self._chain.constants, **theta}
            given = {name: _in_rows(leaf, plan.dtype) for name, leaf in named.items()}
            for place, layer in zip(call.layer[: call.layers], self._chain.layers, strict=True):
                place.weight = given[layer.weight].data_ptr()
            weights = torch.empty(plan.packed, dtype=plan.dtype)
            plan.code.prepare(ctypes.byref(call), _Pointer(weights.data_ptr()))
            self._last = last = leaves, versions, given, weights
        return last[2], last[3]

    def _work(self, plan: _Plan, call: _Round) -> Tensor:
        """What this thread computes in."""
        key = call.support, call.query
        if getattr(self._own, "key", None) != key:
            size = plan.code.work_size(ctypes.byref(call))
            self._own.key, self._own.work = key, torch.zeros(size, dtype=plan.dtype)
        work: Tensor = self._own.work
        return work


def _are(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether these are the very same tensors."""
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


def _in_rows(leaf: Tensor, dtype: torch.dtype) -> Tensor:
    """The same numbers one behind the other, of that type."""
    if leaf.dtype == dtype and leaf.is_contiguous():
        return leaf
    return leaf.to(dtype).contiguous()


class _Plan:
    """What is the same in every call, known when the first θ is."""

    def __init__(self, chain: Chain, rule: MetaGradient, theta: Tree) -> None:
        self.dtype = next(iter(theta.values())).dtype
        code = library(str(self.dtype).removeprefix("torch."))
        assert code is not None, "looked for before"
        for name in ("compute", "work_size", "weights_size"):
            getattr(code, name).restype = _Number
        self.code = code
        self.shapes = {name: leaf.shape for name, leaf in theta.items()}
        parts = [leaf.numel() for leaf in theta.values()]
        self.size = sum(parts) + 3  # of a sum
        places = dict(zip(theta, accumulate(parts, initial=0), strict=False))
        moves = rule.adaptation.moves(theta) & theta.keys()
        if not moves:
            raise ValueError("no layer adapts")
        known = {**chain.constants, **theta}
        self._layers = (_Layer * len(chain.layers))()
        for place, layer in zip(self._layers, chain.layers, strict=True):
            place.outputs, place.inputs = known[layer.weight].shape
            place.weight_moves, place.bias_moves = layer.weight in moves, layer.bias in moves
            place.weight_place = places.get(layer.weight, -1)
            place.bias_place = -1 if layer.bias is None else places.get(layer.bias, -1)
            if layer.activation is not None:
                place.activation = _KINDS.index(layer.activation.kind)
                place.slant = layer.activation.slant
        self._values = not isinstance(chain.loss, CrossEntropy)
        self._step_size, self._curved = rule.adaptation.step_size, rule.curvature == "exact"
        self._class_weights: Tensor | None = None
        if isinstance(chain.loss, CrossEntropy) and chain.loss.weights is not None:
            self._class_weights = torch.tensor(chain.loss.weights.weights, dtype=self.dtype)
        self.packed: int = code.weights_size(ctypes.byref(self.call()))

    def call(self) -> _Round:
        """The structure of a call, with what is the same in all of them."""
        layers = (_Layer * len(self._layers)).from_buffer_copy(self._layers)
        call = _Round(layers, len(layers), self._values, None, self._step_size, self._curved)
        if self._class_weights is not None:
            call.class_weights = self._class_weights.data_ptr()
        return call
