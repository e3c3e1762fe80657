"""Calls of the compiled code: a chain and tensors as the structures that it reads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

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

    def __call__(
        self,
        theta: Tree,
        data: NodeData,
        states: Tree,
        factors: Tensor,
        chunk: int,
        together: Together | None = None,
    ) -> tuple[Tree, Sequence[Tensor]]:
        """Σ updates of some nodes, and Σ of their weights, losses and squared steps.

        Args:
            theta: where to take meta-gradients.
            data: of the nodes, along a first axis.
            states: what they remember, in rows one behind the other; overwritten. Empty: nothing.
            factors: keep, gain, share, extra, weight, loss, moved of every node, see `LinearStep`.
            chunk: as many are summed up before their sum is added to the others'.
            together: shares out the chunks; None: all in this thread.
        """
        held: list[Any] = []  # so that nothing that is pointed at goes

        def at(leaf: Tensor) -> int:
            whole = leaf if leaf.is_contiguous() else leaf.contiguous()
            held.append(whole)
            return whole.data_ptr()

        plan = self._plan = self._plan or _Plan(self._chain, self._rule, theta)
        named = {**self._chain.constants, **theta}
        call, nodes = plan.call(), len(factors)
        for place, layer in zip(call.layer[: call.layers], self._chain.layers, strict=True):
            place.weight = at(named[layer.weight])
            place.bias = None if layer.bias is None else at(named[layer.bias])
            for name, slot in ((layer.weight, "weight_state"), (layer.bias, "bias_state")):
                if name in states:
                    assert states[name].is_contiguous(), "rows one behind the other"
                    setattr(place, slot, states[name].data_ptr())
        call.support, call.query = data.support.mask.shape[1], data.query.mask.shape[1]
        for which, samples in enumerate(data):
            call.inputs[which], call.masks[which] = at(samples.inputs), at(samples.mask)
            call.labels[which] = at(samples.labels)
        chunks = -(-nodes // chunk)
        sums, weights = factors.new_empty(chunks, plan.size), factors.new_empty(plan.packed)
        following = _Number(0)
        call.factors, call.sums, call.next = at(factors), sums.data_ptr(), ctypes.addressof(following)
        call.nodes, call.chunk, call.size = nodes, chunk, plan.size
        call.weights, this = weights.data_ptr(), ctypes.byref(call)
        plan.code.prepare(this, _Pointer(call.weights))
        failed: list[int] = []

        def compute() -> None:
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
        parts = sums[0].split(plan.parts)
        named = zip(plan.shapes.items(), parts, strict=False)
        update = {name: part.view(shape) for (name, shape), part in named}
        return update, [part[0] for part in parts[-3:]]

    def _work(self, plan: _Plan, call: _Round) -> Tensor:
        """What this thread computes in."""
        key = call.support, call.query
        if getattr(self._own, "key", None) != key:
            size = plan.code.work_size(ctypes.byref(call))
            self._own.key, self._own.work = key, torch.zeros(size, dtype=plan.dtype)
        work: Tensor = self._own.work
        return work


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
        self.parts = [*(leaf.numel() for leaf in theta.values()), 1, 1, 1]
        """How the numbers of a sum are divided."""
        self.size = sum(self.parts)
        places = dict(zip(theta, accumulate(self.parts, initial=0), strict=False))
        moves = rule.adaptation.moves(theta) & theta.keys()
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
