"""Which networks are chains of linear layers."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from fedmeta.engine.chain.activations import activation_of
from fedmeta.engine.chain.chain import Chain, Layer
from fedmeta.engine.chain.losses import closed_loss
from fedmeta.models.functional import FunctionalModel
from fedmeta.models.losses import Loss


def chain_of(model: FunctionalModel, loss: Loss) -> Chain | None:
    """The model as a chain; None: it is another network, or its loss is not known in closed form.

    It is one if it is made of `nn.Sequential`, `nn.Linear`, activations between these, and
    `nn.Flatten` before all others, nothing in it is hooked, shared or dropped at random.

    Example:
        >>> from fedmeta.models.functional import functionalise
        >>> from fedmeta.models.losses import cross_entropy
        >>> perceptron = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        >>> [layer.weight for layer in chain_of(functionalise(perceptron), cross_entropy).layers]
        ['0.weight', '2.weight']
        >>> chain_of(functionalise(nn.Conv1d(1, 1, 1)), cross_entropy) is None
        True
    """
    closed = closed_loss(loss)
    if closed is None or model.draws or model.ties:
        return None
    layers: list[Layer] = []
    for name, layer in _in_order("", model.inference):
        first = type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)
        if _is_altered(layer):
            return None
        if type(layer) is nn.Linear:
            place = f"{name}." if name else ""
            bias = None if layer.bias is None else f"{place}bias"
            layers.append(Layer(f"{place}weight", bias, None))
        elif activation := activation_of(layer):
            if not layers or layers[-1].activation is not None:
                return None
            layers[-1] = layers[-1]._replace(activation=activation)
        elif type(layer) is not nn.Identity and not (first and not layers):
            return None
    known = {*model.theta, *model.constants}  # of a layer that comes twice, by its first name
    named = all(each.weight in known and each.bias in {*known, None} for each in layers)
    if not layers or layers[-1].activation is not None or not named:
        return None
    return Chain(tuple(layers), model.constants, closed)


def _in_order(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested sequences by name, in the order in which they are called."""
    if type(module) is not nn.Sequential or _is_altered(module):
        yield name, module
        return
    for own, child in module._modules.items():  # also those that come twice
        assert child is not None
        yield from _in_order(f"{name}.{own}" if name else own, child)


def _is_altered(layer: nn.Module) -> bool:
    """Whether something else happens in a layer than its class says."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
    return bool(hooks) or "forward" in vars(layer)
