"""The networks that come along: the paper's convolutional ones and small perceptrons.

Bring your own by passing any `nn.Module` to `fedmeta.train`, or on the command line by naming a
function `file.py:make` that takes (input shape, number of outputs) and returns a module.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmeta.core.errors import (
    ModelError,
    SettingError,
    nearest,
    require,
    require_choice,
    require_whole,
)
from fedmeta.core.input_files import check_memory
from fedmeta.core.serialization import LATER
from fedmeta.core.user_code import (
    BACKBONE_LIBRARIES,
    explained,
    is_backbone_code,
    is_code_name,
    is_elsewhere,
    load_object,
)
from fedmeta.data.named_inputs import InputParts
from fedmeta.models.backbone import HeadKind, with_head
from fedmeta.models.recurrent import RecurrentNetwork

Activation = Literal["elu", "leaky-relu", "relu", "tanh"]
Initialisation = Literal["pytorch", "truncated-normal"]

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU,
    "leaky-relu": partial(nn.LeakyReLU, 0.2),
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
}
_NETWORKS = ("auto", "cnn", "conv4", "gru", "linear", "mlp")


@dataclass(frozen=True)
class ModelSettings:
    """Which network to train.

    Args:
        name: "cnn" (for images, or for series of shape (channels, length)), "conv4" (the four
            blocks of few-shot learning, for images), "gru" (for tokens, or for series of shape
            (steps, channels)), "mlp", "linear", "auto" (a cnn for images of at least 16×16, or
            conv4 where their class numbers are local to a node, as in episodes; a gru for tokens
            of texts; else an mlp), or your own as "file.py:function" or
            "package.module:function".
        channels: of the convolutions, in order; () takes the paper's for the image size, (16, 32)
            for series, and 64 in each block of conv4.
        hidden: widths of the mlp's or gru's hidden layers; "auto": one of 64, in runs that predict
            values two of them.
        activation: "elu", "leaky-relu" (slope 0.2), "relu" or "tanh".
        last_pooling: "max" or "average" for the last pooling; the earlier ones take the max.
        initialisation: "pytorch" (its defaults) or "truncated-normal" (weights σ = 0.1 cut at 2σ,
            biases 0.1, as in the authors' code).
        vocabulary: of a gru, how many tokens there are; 0: as many as the encoding of texts has.
            A function of your own gets it where it has an argument of that name.
        backbone: a pretrained network, frozen, under a head of ours: "efficientnet-lite:0" to 4,
            "timm:NAME", "torchvision:NAME", "transformers:NAME" (of images), or your own as
            "file.py:function", which takes (input shape) and returns a module that gives features.
            It brings its own preprocessing, so inputs are not scaled besides.
        backbone_weights: a file with the backbone's weights, safetensors or a state dict; None: the
            library's, from its cache or fetched.
        head: of a backbone: "mlp" (`hidden` and `activation`), "linear", "cosine" (angles alone),
            "prototype" (an mlp whose last layer is made of class means), or "auto": prototype where
            classes are told apart, mlp where values are predicted.
        image_size: pixels of the square that a backbone sees; None: as it was trained.
    """

    name: str = "auto"
    channels: tuple[int, ...] = ()
    hidden: tuple[int, ...] | Literal["auto"] = "auto"
    activation: Activation = "elu"
    last_pooling: Literal["max", "average"] = "max"
    initialisation: Initialisation = "pytorch"
    vocabulary: int = field(default=0, metadata=LATER)
    backbone: str | None = field(default=None, metadata=LATER)
    backbone_weights: str | None = field(default=None, metadata=LATER)
    head: HeadKind = field(default="auto", metadata=LATER)
    image_size: int | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", tuple(self.channels))
        if self.hidden != "auto":
            object.__setattr__(self, "hidden", tuple(self.hidden))
        if self.name not in _NETWORKS and not is_code_name(self.name):
            raise SettingError(
                f"model {self.name!r} is unknown",
                f"{nearest(self.name, _NETWORKS)}; or name your own as file.py:function",
            )
        for which in ("channels", "hidden"):
            widths = getattr(self, which)
            if widths == "auto":
                continue
            fits = all(isinstance(w, int) and 1 <= w < 2**31 for w in widths)
            require(fits, which, widths, "whole numbers of at least 1")
        require_whole("vocabulary", self.vocabulary, 0)
        require_choice("activation", self.activation, get_args(Activation))
        require_choice("last_pooling", self.last_pooling, ("max", "average"))
        require_choice("initialisation", self.initialisation, get_args(Initialisation))
        require_choice("head", self.head, get_args(HeadKind))
        if self.image_size is not None:
            require_whole("image_size", self.image_size, 8)
        self._check_backbone()

    def _check_backbone(self) -> None:
        """Refuse what makes no sense with or without a backbone."""
        if self.backbone is None:
            for name in ("backbone_weights", "image_size"):
                value = getattr(self, name)
                require(value is None, name, value, "a backbone as well, or leave it out")
            require(self.head == "auto", "head", self.head, "a backbone as well, or leave it out")
            return
        if self.name != "auto":
            raise SettingError(
                f"model {self.name!r} and backbone {self.backbone!r} are both given",
                "leave one of the two out",
            )
        library, colon, own = self.backbone.partition(":")
        known = library in BACKBONE_LIBRARIES or is_backbone_code(self.backbone)
        if not colon or not own or not known:
            raise SettingError(
                f"backbone {self.backbone!r} is unknown",
                f"write LIBRARY:NAME ({nearest(library, BACKBONE_LIBRARIES)}); or name your own as "
                "file.py:function",
            )

    @property
    def own_code(self) -> str | None:
        """What has to be typed: "file.py:function" or "transformers:NAME"; None: no such thing."""
        if self.backbone is not None:
            return self.backbone if is_elsewhere(self.backbone) else None
        return self.name if is_code_name(self.name) else None


_DRAWING = 28  # pixels of a drawing of a character, as few-shot learning commonly has it
_GROUPS = 8  # of channels that conv4 normalises
_BYTES = 16  # of memory that a parameter takes: itself, its gradient, two states


class SamePool(nn.Module):
    """3×3 pooling of stride 2 that keeps ⌈n/2⌉ rows and columns, the border left out of averages.

    Series are pooled likewise along their one axis.

    Example:
        >>> SamePool("max")(torch.zeros(1, 1, 7, 8)).shape
        torch.Size([1, 1, 4, 4])
        >>> SamePool("average")(torch.zeros(1, 1, 7)).shape
        torch.Size([1, 1, 4])
    """

    def __init__(self, kind: Literal["max", "average"]) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, images: Tensor) -> Tensor:
        """Pool (n, channels, height, width) or (n, channels, length)."""
        if images.ndim == 3:
            return self._pool(images.unsqueeze(-2), (1, 3), (1, 2)).squeeze(-2)
        return self._pool(images, (3, 3), (2, 2))

    def _pool(self, images: Tensor, size: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        # One row short on even sizes (ceil_mode adds it at the end), one on either side on odd.
        rows, columns = (
            length % step for length, step in zip(images.shape[-2:], stride, strict=True)
        )
        border = (rows, columns)
        if self.kind == "max":
            return functional.max_pool2d(images, size, stride, padding=border, ceil_mode=True)
        return functional.avg_pool2d(
            images, size, stride, padding=border, ceil_mode=True, count_include_pad=False
        )


def build(
    settings: ModelSettings,
    shape: Sequence[int],
    outputs: int,
    seed: int,
    most: int | None = None,
    parts: InputParts | None = None,
    empty: bool = False,
) -> nn.Module:
    """The network for inputs of a shape, with its initial weights drawn from the seed.

    Args:
        settings: which network.
        shape: of one sample, channels first.
        outputs: numbers per sample.
        seed: of the initial weights; torch's own generator is left as it was.
        most: parameters that it may have; None: as many as fit into memory.
        parts: what a sample consists of, where it has several inputs: then a function of your own
            gets a mapping of their names to shapes, or the shape of the only one.
        empty: the weights of a backbone do not matter, they will be put in.

    Example:
        >>> model = build(ModelSettings("mlp", hidden=(5,)), (1, 8, 8), 10, seed=0)
        >>> sum(p.numel() for p in model.parameters())
        385
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if settings.backbone is not None:
            return _on_backbone(settings, settings.backbone, shape, outputs, most, empty)
        if is_code_name(settings.name):
            given: Any = tuple(shape) if parts is None else parts.shapes
            given = given if parts is None or len(given) > 1 else next(iter(given.values()))
            model = _own(settings, given, outputs)
            if not isinstance(model, nn.Module):
                raise ModelError(
                    f"{settings.name} returned a {type(model).__name__}", "return an nn.Module"
                )
            return model
        name = settings.name
        if parts is not None:
            one, tokens = len(parts.parts) == 1, any(p.kind == "tokens" for p in parts.parts)
            if not one or name not in ("auto", "gru") or (tokens and settings.vocabulary < 2):
                raise ModelError(
                    f"model {name!r} takes one tensor, but samples have inputs "
                    f"{', '.join(map(repr, parts.names))}",
                    "give a model of your own, whose forward takes them by name; of sequences of "
                    "tokens alone also gru with model.vocabulary",
                )
            name, shape = "gru", parts.parts[0].shape
        if name == "auto":
            name = "cnn" if len(shape) == 3 and min(shape[1:]) >= 16 else "mlp"
        if name == "linear":
            settings = replace(settings, hidden=())
        kinds = {"cnn": _cnn, "conv4": _conv4, "gru": _gru}
        make = partial(kinds.get(name, _mlp), settings, shape, outputs)
        _check_size(make, most)
        model = make()
        if settings.initialisation == "truncated-normal":
            _truncated_normal(model)
        return model


def _on_backbone(
    settings: ModelSettings,
    backbone: str,
    shape: Sequence[int],
    outputs: int,
    most: int | None,
    empty: bool,
) -> nn.Module:
    return with_head(
        backbone,
        shape,
        outputs,
        settings.head,
        hidden=_hidden(settings),
        activation=_ACTIVATIONS[settings.activation],
        size=settings.image_size,
        weights=settings.backbone_weights,
        empty=empty,
        most=most,
    )


def _hidden(settings: ModelSettings) -> tuple[int, ...]:
    return (64,) if settings.hidden == "auto" else settings.hidden


def _check_size(make: Callable[[], nn.Module], most: int | None) -> None:
    """Refuse a network that is too large, from its shapes alone."""
    remedy = "use fewer layers, or narrower ones"
    with explained("the network cannot be built", remedy, ModelError), torch.device("meta"):
        size = sum(parameter.numel() for parameter in make().parameters())
    if most is not None and size > most:
        raise ModelError(f"the network has {size} parameters, more than {most}", remedy)
    check_memory(f"a network of {size} parameters and its gradients", _BYTES * size, remedy)


def _own(settings: ModelSettings, shape: Any, outputs: int) -> object:
    name = settings.name
    make = load_object(name, "model")
    if not callable(make):
        raise ModelError(f"{name} is a {type(make).__name__}", "name a function that makes a model")
    with explained(
        f"{name} failed for shape {shape} and {outputs} outputs",
        "mend that function: it takes (input shape, number of outputs)",
        ModelError,
    ):
        asked = inspect.signature(make).parameters
        more = {"vocabulary": settings.vocabulary} if "vocabulary" in asked else {}
        return make(shape, outputs, **more)


def paper_channels(shape: Sequence[int], outputs: int) -> tuple[int, ...]:
    """The paper's widths: two convolutions for 28×28, three for 32×32, four for many classes."""
    if min(shape[1:]) < 32:
        return (32, 64)
    return (32, 64, 128) if outputs <= 10 else (32, 64, 128, 256)


def _cnn(settings: ModelSettings, shape: Sequence[int], outputs: int) -> nn.Module:
    if len(shape) not in (2, 3):
        raise ModelError(
            f"a cnn needs images, or series of shape (channels, length), but samples have shape "
            f"{tuple(shape)}",
            'use model "mlp"',
        )
    layers: list[nn.Module] = []
    before, *space = shape
    convolution: Callable[..., nn.Module] = partial(nn.Conv2d, kernel_size=3, padding=1)
    channels = settings.channels
    if len(shape) == 2:
        convolution, channels = partial(nn.Conv1d, kernel_size=5, padding=2), channels or (16, 32)
    channels = channels or paper_channels(shape, outputs)
    for place, after in enumerate(channels):
        last = place == len(channels) - 1
        activation = _ACTIVATIONS[settings.activation]()
        pooling = SamePool(settings.last_pooling if last else "max")
        # All activations rise, so that the largest of a window stays the largest: after a maximum
        # they give the same numbers as before it, on a quarter of the pixels.
        ends = [pooling, activation] if pooling.kind == "max" else [activation, pooling]
        layers += [convolution(before, after), *ends]
        before, space = after, [math.ceil(length / 2) for length in space]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * math.prod(space), outputs))


def _conv4(settings: ModelSettings, shape: Sequence[int], outputs: int) -> nn.Module:
    """Blocks of a 3×3 convolution, normalisation, activation and pooling, and a linear head.

    The network of matching and prototypical networks and of MAML (Vinyals et al., NeurIPS 2016),
    with groups of channels normalised instead of batches. Large grey images are averaged down
    first, to the 28 pixels or little more that drawings of characters are commonly given.
    """
    if len(shape) != 3:
        raise ModelError(
            f"conv4 needs images, but samples have shape {tuple(shape)}",
            'use model "cnn" for series of shape (channels, length), else "mlp"',
        )
    before, *space = shape
    layers: list[nn.Module] = []
    if before == 1 and (coarser := min(space) // _DRAWING) > 1:
        layers, space = [nn.AvgPool2d(coarser)], [length // coarser for length in space]
    channels = settings.channels or (64,) * 4
    for place, after in enumerate(channels):
        pooling = SamePool(settings.last_pooling if place == len(channels) - 1 else "max")
        activation = _ACTIVATIONS[settings.activation]()
        ends = [pooling, activation] if pooling.kind == "max" else [activation, pooling]
        norm = nn.GroupNorm(math.gcd(after, _GROUPS), after)
        layers += [nn.Conv2d(before, after, 3, padding=1), norm, *ends]
        before, space = after, [math.ceil(length / 2) for length in space]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * math.prod(space), outputs))


def _mlp(settings: ModelSettings, shape: Sequence[int], outputs: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    before = math.prod(shape)
    for after in _hidden(settings):
        layers += [nn.Linear(before, after), _ACTIVATIONS[settings.activation]()]
        before = after
    return nn.Sequential(*layers, nn.Linear(before, outputs))


def _gru(settings: ModelSettings, shape: Sequence[int], outputs: int) -> nn.Module:
    widths = (64,) if settings.hidden == "auto" else settings.hidden
    return RecurrentNetwork(shape, outputs, widths, settings.vocabulary)


def _truncated_normal(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
            if layer.bias is not None:
                nn.init.constant_(layer.bias, 0.1)
