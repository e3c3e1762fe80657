"""Features of a frozen body: what depends on frozen parameters alone, computed once per sample.

A network is often a body that is not trained and a head that is. The body is cut off where that
changes nothing: it takes the inputs as they are, draws nothing at random, and the rest of the
network needs nothing but what it puts out. What is left is a network that takes features.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedmeta.models.functional import FunctionalModel
from fedmeta.models.keyed_dropout import KeyedDropout

_AT_ONCE = 256  # samples; of images fewer, whose maps would leave the caches of a CPU
_IMAGES_AT_ONCE = {"cpu": 8, "cuda": 128}


class Cut(NamedTuple):
    """A network in two parts.

    Args:
        body: the frozen layers, in evaluation mode, from inputs to features.
        rest: what is trained, from features to outputs; its parameters have their old names.
        features: of the few samples that it was tried on.
    """

    body: nn.Sequential
    rest: FunctionalModel
    features: Tensor


def cut_off(model: FunctionalModel, inputs: Tensor) -> Cut | None:
    """The network in two parts; None where there is no frozen body to cut off.

    Args:
        model: the whole.
        inputs: a few scaled samples to try it on.

    Example:
        >>> from fedmeta.models.functional import functionalise
        >>> layers = nn.Linear(4, 3).requires_grad_(False), nn.ReLU(), nn.Linear(3, 2)
        >>> cut = cut_off(functionalise(nn.Sequential(*layers)), torch.ones(2, 4))
        >>> cut.body, list(cut.rest.constants), list(cut.rest.theta)
        (Sequential(
          (0): Linear(in_features=4, out_features=3, bias=True)
          (1): ReLU()
        ), [], ['2.weight', '2.bias'])
    """
    if model.calling is not None:  # no layer takes the inputs as they are
        return None
    rest, found, seen = model, list[nn.Module](), inputs
    with torch.no_grad():
        while (place := _first_layer(rest, seen)) is not None:
            layer = rest.inference.get_submodule(place)
            shorter, features = _without(rest, place), layer(seen)
            if not _agree(rest, seen, shorter, features):
                break
            rest, seen = shorter, features
            found.append(layer)
    if not any([*layer.parameters(), *layer.buffers()] for layer in found):
        return None
    return Cut(nn.Sequential(*found).requires_grad_(False), rest, seen)


def features_of(body: nn.Module, inputs: Tensor) -> Tensor:
    """What the body makes of scaled samples, some at a time, on the device it is on.

    The last part is filled up, so that a sample's features do not depend on how many there are.
    """
    device = next((each.device for each in (*body.parameters(), *body.buffers())), inputs.device)
    images = inputs.ndim == 4
    size = _IMAGES_AT_ONCE.get(device.type, _AT_ONCE) if images else _AT_ONCE
    if images:  # twice as fast on a CPU
        theirs: Any = copy.deepcopy(body)  # torch's types of a module do not know the argument
        body = theirs.to(memory_format=torch.channels_last)

    def computed(part: Tensor) -> Tensor:
        full = torch.cat([part, part[:1].expand(size - len(part), *part.shape[1:])])
        found: Tensor = body(full.to(device))[: len(part)]
        return found.cpu()

    with torch.no_grad():
        return torch.cat([computed(part) for part in torch.split(inputs, size)])


def _first_layer(model: FunctionalModel, inputs: Tensor) -> str | None:
    """The largest part that takes the inputs as they are, once, and trains and draws nothing."""
    module, calls = model.inference, dict[str, list[tuple[Any, ...]]]()

    def noting(place: str) -> Callable[..., None]:
        return lambda _, given, __: calls.setdefault(place, []).append(given)

    hooks = [
        part.register_forward_hook(noting(place))
        for place, part in module.named_modules()
        if place and _constant(model, place) and not isinstance(part, nn.Identity)
    ]
    try:
        model(model.theta, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    whole = [
        place
        for place, given in calls.items()
        if len(given) == 1 and len(given[0]) == 1 and given[0][0] is inputs
    ]
    return min(whole, key=len, default=None)


def _constant(model: FunctionalModel, place: str) -> bool:
    part = model.training.get_submodule(place)
    trained = any(name == place or name.startswith(f"{place}.") for name in model.theta)
    draws = any(isinstance(each, KeyedDropout) and each.training for each in part.modules())
    return not trained and not draws and not model.keyed_calls


def _without(model: FunctionalModel, place: str) -> FunctionalModel:
    """The model with nothing in the place of a part."""
    modules = {}
    for name in ("training", "inference"):
        whole = getattr(model, name)
        # The part itself is not copied: it may be large, and repeats ask again and again.
        modules[name] = copy.deepcopy(whole, {id(whole.get_submodule(place)): nn.Identity()})
    left = {name for name, _ in modules["training"].named_parameters(remove_duplicate=False)}
    left |= {name for name, _ in modules["training"].named_buffers(remove_duplicate=False)}
    constants = {name: leaf for name, leaf in model.constants.items() if name in left}
    ties = {one: other for one, other in model.ties.items() if one in left and other in left}
    # Dropout layers keep their numbers, so that those that are left draw the same masks.
    dropouts = tuple(name if f"{name}.key" in left else "" for name in model.dropouts)
    return replace(model, constants=constants, ties=ties, dropouts=dropouts, **modules)


def _agree(model: FunctionalModel, inputs: Tensor, rest: FunctionalModel, features: object) -> bool:
    """Whether the rest makes of features what the model makes of inputs, in both modes."""
    if not isinstance(features, Tensor) or len(features) != len(inputs):
        return False
    if not {*model.theta} <= {name for name, _ in rest.training.named_parameters()}:
        return False
    key = torch.zeros((), dtype=torch.int64, device=inputs.device)
    try:
        pairs = [
            (model(model.theta, inputs, mode), rest(model.theta, features, mode))
            for mode in (None, key)
        ]
    except Exception:  # the rest wanted inputs, not features
        return False
    return all(torch.equal(a, b) for a, b in pairs)
