"""The meta-gradient of a chain of linear layers and activations, without autograd and its passes.

    layer l:    h_l = a_{l−1} W_lᵀ + b_l,   a_l = f_l(h_l)        a_0 the samples, h_L the outputs

A gradient by W_l is δ_lᵀ a_{l−1}, a sum over a dozen samples. So the adapted weights
φ_l = W_l − α δ_lᵀ a_{l−1} of a node need never be formed: with hats for query samples, and
K_l = â_{l−1} a_{l−1}ᵀ + 1 (the 1 is the bias's part),

    ĥ_l = â_{l−1} W_lᵀ + b_l − α K_l δ_l
    gradient by â_{l−1} = δ̂_l W_l − α (δ̂_l δ_lᵀ) a_{l−1}

and what multiplies θ is one large product for all nodes. The same holds of r = ∇L(φ, D^q), whose
part of layer l is δ̂_lᵀ â_{l−1}. Along r, with dots for what changes,

    ḣ_l = ȧ_{l−1} W_lᵀ + K_lᵀ δ̂_l
    δ̇_{l−1} = (δ̇_l W_l + (δ_l δ̂_lᵀ) â_{l−1}) ⊙ f' + (δ_l W_l) ⊙ f'' ⊙ ḣ_{l−1}
    G_l = δ̂_lᵀ â_{l−1} − α (δ̇_lᵀ a_{l−1} + δ_lᵀ ȧ_{l−1})

so that matrices as large as the layer are made once per node: G itself, as one product.
Parameters that do not move have no part in φ and r; what is zero for that reason is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedmeta.core.sample_sets import NodeData, Samples
from fedmeta.core.tree import Tree, mapped_first
from fedmeta.engine.chain.activations import Activation
from fedmeta.engine.chain.losses import ClosedLoss, Slopes


class Layer(NamedTuple):
    """A linear layer and what follows it.

    Args:
        weight: name of W.
        bias: name of b; None: there is none.
        activation: after it; None: there is none, as after the last layer.
    """

    weight: str
    bias: str | None
    activation: Activation | None


@dataclass(frozen=True, eq=False)
class Chain:
    """A network that is a chain of linear layers, and its loss.

    Args:
        layers: from the samples on.
        constants: frozen parameters.
        loss: with its derivatives.
    """

    layers: tuple[Layer, ...]
    constants: Tree
    loss: ClosedLoss

    def meta_gradient(
        self,
        theta: Tree,
        data: NodeData,
        moves: frozenset[str],
        step_size: float,
        curved: bool,
    ) -> tuple[Tree, Tensor]:
        """G(θ) after one step of adaptation, and the meta-loss, of one node; see `ClosedForm`."""
        call = _Call(self, tuple(theta), moves, step_size, curved)
        *leaves, loss = _ByHand.apply(call, *theta.values(), *data.support, *data.query)  # type: ignore[no-untyped-call]
        return dict(zip(theta, leaves, strict=True)), loss


class _Call(NamedTuple):
    """What is known of a meta-gradient before its tensors are."""

    chain: Chain
    names: tuple[str, ...]
    moves: frozenset[str]
    step_size: float
    curved: bool


class _ByHand(torch.autograd.Function):
    """Many nodes at once under `vmap`; θ is shared by all of them unless it is mapped over too."""

    @staticmethod
    def forward(call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        count = len(call.names)
        alone = [leaf.unsqueeze(0) for leaf in tensors[count:]]
        found = _of_nodes(call, [*tensors[:count], *alone])
        return tuple(leaf.squeeze(0) for leaf in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], call: _Call, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        count, dims = len(call.names), in_dims[1:]
        shared = [
            leaf if dim is None else leaf.movedim(dim, 0)
            for leaf, dim in zip(tensors[:count], dims, strict=False)
        ]
        own = mapped_first(info, dims[count:], *tensors[count:])
        found = _of_nodes(call, [*shared, *own])
        return found, (0,) * len(found)


@dataclass
class _Pass:
    """What one set of samples leaves: a_{l−1} and δ_l of every layer, with a first axis of nodes.

    Args:
        inputs: a_{l−1} of layer l.
        slopes: the loss at the outputs.
        share: of every sample in the mean loss, 0 for padding.
        deltas: δ_l; those that nobody needs are None.
        arrived: δ_{l+1} W_{l+1}, the gradient by a_l; likewise.
    """

    inputs: list[Tensor]
    slopes: Slopes
    share: Tensor
    deltas: list[Tensor | None]
    arrived: list[Tensor | None]


def _of_nodes(call: _Call, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """G by name and the meta-loss, with a first axis of nodes."""
    count = len(call.names)
    named = {**call.chain.constants, **dict(zip(call.names, tensors[:count], strict=True))}
    support, query = Samples(*tensors[count : count + 3]), Samples(*tensors[count + 3 :])
    work = _Work(call, named)
    before, after, grams = work.passes(support, query)
    gradient = work.gradient(before, after, grams)
    loss = (after.slopes.value * after.share.squeeze(-1)).sum(-1)
    return (*(gradient[name] for name in call.names), loss)


class _Work:
    """The computation of one call.

    Args:
        call: what is computed.
        tensors: all parameters, shared by the nodes or one of each.
    """

    def __init__(self, call: _Call, tensors: Tree) -> None:
        self.layers, self.loss, self.alpha = call.chain.layers, call.chain.loss, call.step_size
        self.tensors, self.curved, self.learns = tensors, call.curved, frozenset(call.names)
        moves = call.moves
        self.weight_moves = [layer.weight in moves for layer in self.layers]
        self.bias_moves = [layer.bias in moves for layer in self.layers]
        self.moving = [any(pair) for pair in zip(self.weight_moves, self.bias_moves, strict=True)]
        learned = [bool({la.weight, la.bias} & self.learns) for la in self.layers]
        self.first_moving = self.moving.index(True)
        self.first_learned = learned.index(True)

    def passes(self, support: Samples, query: Samples) -> tuple[_Pass, _Pass, list[Tensor | None]]:
        """Support samples at θ, query samples at φ, and K_l of every layer that moves."""
        inputs, outputs = [support.inputs.flatten(2)], support.inputs
        for place in range(len(self.layers)):
            outputs = self._linear(place, inputs[-1])
            if place + 1 < len(self.layers):
                inputs.append(self._activated(place, outputs))
        before = self._opened(inputs, outputs, support)
        for place in range(len(self.layers) - 1, self.first_moving, -1):
            self._descend(before, place, self._by_inputs(place, before.deltas[place]))
        inputs, grams = [query.inputs.flatten(2)], []
        for place, delta in enumerate(before.deltas):
            outputs, gram = self._linear(place, inputs[-1]), None
            if self.moving[place]:
                assert delta is not None
                gram = self._gram(place, inputs[-1], before.inputs[place])
                outputs = torch.baddbmm(outputs, gram, delta, alpha=-self.alpha)
            grams.append(gram)
            if place + 1 < len(self.layers):
                inputs.append(self._activated(place, outputs))
        return before, self._opened(inputs, outputs, query), grams

    def gradient(self, before: _Pass, after: _Pass, grams: list[Tensor | None]) -> Tree:
        """G of every learned parameter, layer by layer from the outputs down."""
        last = len(self.layers) - 1
        pairs: list[Tensor | None] = [None] * (last + 1)  # δ̂_l δ_lᵀ of layers whose weight moves
        for place in range(last, self.first_learned, -1):
            delta, own = after.deltas[place], before.deltas[place]
            arrived = self._by_inputs(place, delta)
            if self.weight_moves[place]:
                assert delta is not None
                assert own is not None
                pair = torch.bmm(delta, own.mT)
                pairs[place] = pair
                arrived = torch.baddbmm(arrived, pair, before.inputs[place], alpha=-self.alpha)
            self._descend(after, place, arrived)
        turned: list[Tensor | None] = [None] * (last + 1)  # δ̇_l
        changes: list[Tensor | None] = [None] * (last + 1)  # ȧ_{l−1}
        if self.curved:
            changes, outputs = self._moved(before, after, grams)
            turned[last] = before.slopes.change(outputs) * before.share
            for place in range(last, self.first_learned, -1):
                arrived = self._by_inputs(place, turned[place])
                if (crossed := pairs[place]) is not None:
                    arrived = torch.baddbmm(arrived, crossed.mT, after.inputs[place])
                turned[place - 1] = self._turned(before, changes, place - 1, arrived)
        found: Tree = {}
        for place in range(self.first_learned, last + 1):
            found |= self._outer(place, before, after, turned[place], changes[place])
        return found

    def _moved(
        self, before: _Pass, after: _Pass, grams: list[Tensor | None]
    ) -> tuple[list[Tensor | None], Tensor]:
        """How the inputs of the layers, and the outputs, change on support samples along r."""
        changes: list[Tensor | None] = [None]
        change: Tensor | None = None
        for place in range(len(self.layers)):
            rise = (
                None
                if changes[-1] is None
                else changes[-1] @ self.tensors[self.layers[place].weight].mT
            )
            gram, delta = grams[place], after.deltas[place]
            if gram is not None:
                assert delta is not None
                if rise is None:
                    rise = torch.bmm(gram.mT, delta)
                else:
                    rise = torch.baddbmm(rise, gram.mT, delta)
            if place + 1 < len(self.layers):
                changes.append(None if rise is None else self._sloped(before, place, rise))
            change = rise
        assert change is not None, "some layer moves"
        return changes, change

    def _opened(self, inputs: list[Tensor], outputs: Tensor, samples: Samples) -> _Pass:
        """A pass whose δ_L is known and no other yet."""
        slopes = self.loss(outputs, samples.labels)
        share = (samples.mask / samples.mask.sum(-1, keepdim=True)).unsqueeze(-1)
        none: list[Tensor | None] = [None] * (len(inputs) - 1)
        return _Pass(inputs, slopes, share, [*none, slopes.gradient * share], [*none, None])

    def _descend(self, done: _Pass, place: int, arrived: Tensor) -> None:
        """δ of the layer before, from the gradient by its outputs."""
        done.arrived[place - 1] = arrived
        done.deltas[place - 1] = self._sloped(done, place - 1, arrived)

    def _activated(self, place: int, h: Tensor) -> Tensor:
        activation = self.layers[place].activation
        return h if activation is None else activation.value(h)

    def _sloped(self, done: _Pass, place: int, gradient: Tensor) -> Tensor:
        """A gradient by a_l (or a change of h_l) times f'_l."""
        activation = self.layers[place].activation
        return (
            gradient if activation is None else activation.slope(gradient, done.inputs[place + 1])
        )

    def _turned(
        self, before: _Pass, changes: list[Tensor | None], place: int, arrived: Tensor
    ) -> Tensor:
        """δ̇ of a layer, from the change of the gradient by its outputs."""
        turned, change = self._sloped(before, place, arrived), changes[place + 1]
        activation, gradient = self.layers[place].activation, before.arrived[place]
        if activation is None or activation.bend is None or change is None:
            return turned
        assert gradient is not None
        return turned + activation.bend(gradient * change, before.inputs[place + 1])

    def _linear(self, place: int, inputs: Tensor) -> Tensor:
        layer = self.layers[place]
        weight = self.tensors[layer.weight]
        bias = None if layer.bias is None else self.tensors[layer.bias]
        if weight.ndim == 2 and (bias is None or bias.ndim == 1):
            return functional.linear(inputs, weight, bias)
        outputs = inputs @ weight.mT
        if bias is None:
            return outputs
        return outputs + (bias if bias.ndim == 1 else bias.unsqueeze(1))

    def _by_inputs(self, place: int, delta: Tensor | None) -> Tensor:
        assert delta is not None
        return delta @ self.tensors[self.layers[place].weight]

    def _gram(self, place: int, query: Tensor, support: Tensor) -> Tensor:
        """K_l: which support sample moves which query sample, by the weight and by the bias."""
        if not self.weight_moves[place]:
            return query.new_ones(()).expand(*query.shape[:2], support.shape[1])
        if not self.bias_moves[place]:
            return torch.bmm(query, support.mT)
        one = query.new_ones(()).expand(len(query), query.shape[1], support.shape[1])
        return torch.baddbmm(one, query, support.mT)

    def _outer(
        self,
        place: int,
        before: _Pass,
        after: _Pass,
        turned: Tensor | None,
        change: Tensor | None,
    ) -> Tree:
        """G of a layer's weight and bias."""
        layer, delta = self.layers[place], after.deltas[place]
        assert delta is not None
        left, right = [delta], [after.inputs[place]]
        if turned is not None:
            left.append(-self.alpha * turned)
            right.append(before.inputs[place])
        biased, found = torch.cat(left, 1) if len(left) > 1 else delta, Tree()
        if layer.bias is not None and layer.bias in self.learns:
            found[layer.bias] = biased.sum(1)
        if layer.weight in self.learns:
            if change is not None:
                own = before.deltas[place]
                assert own is not None
                biased = torch.cat([biased, -self.alpha * own], 1)
                right.append(change)
            found[layer.weight] = torch.bmm(biased.mT, torch.cat(right, 1))
        return found
