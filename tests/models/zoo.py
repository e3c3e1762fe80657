"""Networks as people bring them: small, one of each kind, by name, with the shape they take."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmeta import Federation, federate, freeze_norms


class Animal(NamedTuple):
    """A network and the samples it takes.

    Args:
        make: the network, as drawn by torch's generator.
        shape: of a sample.
        tokens: how many there are, where samples are such numbers; 0: they are real numbers.
        outputs: classes, or values.
        values: whether it predicts values.
        dtype: of the samples as they are given.
        loss: what training takes for one.
        inputs: names of several of that shape; none: there is one.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int = 0
    outputs: int = 3
    values: bool = False
    dtype: type[np.generic] = np.float32
    loss: Any = "auto"
    inputs: tuple[str, ...] = ()

    def federation(self) -> Federation:
        """Eight nodes of twelve samples."""
        draw = np.random.default_rng(0)
        size = (96, *self.shape)
        x = draw.integers(self.tokens, size=size) if self.tokens else draw.normal(size=size)
        node = np.arange(96) // 12
        if self.inputs:
            several = {name: draw.normal(size=size).astype(self.dtype) for name in self.inputs}
            return federate(several, np.arange(96) % self.outputs, node)
        if self.values:
            y = draw.normal(size=(96, self.outputs))
            return federate(x.astype(self.dtype), y, node, task="regression")
        return federate(x.astype(self.dtype), np.arange(96) % self.outputs, node)


class Calling(nn.Module):
    """Some layers, and a function of them and the inputs for a forward pass."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], **layers: Any) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self._call = forward

    def forward(self, x: Tensor) -> Any:
        """What the function says."""
        return self._call(self, x)


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def images(*layers: nn.Module, features: int) -> nn.Sequential:
    """Layers, then the mean over places and a head."""
    ending = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, 3)
    return nn.Sequential(*layers, *ending)


class Residual(nn.Module):
    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            norm(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            norm(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.body(x))


def last(layer: nn.Module) -> nn.Module:
    """A recurrent layer over (n, 5, 4) and a head on what it ends with."""
    width = 5 * (2 if getattr(layer, "bidirectional", False) else 1)
    return Calling(
        lambda me, x: me.head(me.body(x)[0][:, -1]), body=layer, head=nn.Linear(width, 3)
    )


def pooled(body: nn.Module, forward: Callable[[Any, Tensor], Tensor]) -> nn.Module:
    return Calling(
        lambda me, x: me.head(forward(me.body, x).mean(1)), body=body, head=nn.Linear(4, 3)
    )


def embedded(then: Callable[[Any, Tensor], Tensor], tokens: int = 20, **layers: Any) -> nn.Module:
    return Calling(then, table=nn.Embedding(tokens, 6), head=nn.Linear(6, 3), **layers)


def frozen(body: nn.Module, features: int, quiet: bool = False) -> nn.Module:
    """A body that is not trained, and a head that is."""
    body = body.eval().requires_grad_(False)

    def forward(me: Any, x: Tensor) -> Tensor:
        if not quiet:
            return me.head(me.body(x))
        with torch.no_grad():
            found = me.body(x)
        return me.head(found)

    return Calling(forward, body=body, head=nn.Linear(features, 3))


def masked_mean(me: Any, x: Tensor) -> Tensor:
    known = (x > 0).unsqueeze(-1)
    return me.head((me.table(x) * known).sum(1) / known.sum(1).clamp(min=1))


def tied_hidden() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(4, 3))


def tied_language_model() -> nn.Module:
    model = Calling(
        lambda me, x: me.out(me.body(me.table(x))[0][:, -1]),
        table=nn.Embedding(12, 5),
        body=nn.GRU(5, 5, batch_first=True),
        out=nn.Linear(5, 12, bias=False),
    )
    model.out.weight = model.table.weight
    return model


def vision_transformer() -> nn.Module:
    def forward(me: Any, x: Tensor) -> Tensor:
        parts = me.patches(x).flatten(2).transpose(1, 2) + me.places
        return me.head(me.body(parts).mean(1))

    return Calling(
        forward,
        patches=nn.Conv2d(3, 8, 4, stride=4),
        places=nn.Parameter(torch.zeros(4, 8)),
        body=nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True),
        head=nn.Linear(8, 3),
    )


def writes_into_zeros(me: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out = out.index_add(1, torch.tensor([0, 1, 2, 3]), x)
    return me.head(out)


def scan(me: Any, x: Tensor) -> Tensor:
    """h ← σ(a)·h + b x, as in state-space models, one step after the other."""
    state, decay = torch.zeros_like(x[:, 0]), me.decay.sigmoid()
    for step in range(x.shape[1]):
        state = decay * state + me.mix(x[:, step])
    return me.head(state)


def experts(me: Any, x: Tensor) -> Tensor:
    shares = me.gate(x).softmax(-1)
    return torch.stack([each(x) for each in (me.first, me.second)], -1) @ shares.unsqueeze(-1)


def mixer() -> nn.Module:
    def forward(me: Any, x: Tensor) -> Tensor:
        x = x + me.over_places(x.transpose(1, 2)).transpose(1, 2)
        return me.head((x + me.over_channels(x)).mean(1))

    return Calling(
        forward, over_places=mlp(5, 8, 5), over_channels=mlp(4, 8, 4), head=nn.Linear(4, 3)
    )


def mobile_block() -> nn.Module:
    def squeezed(me: Any, x: Tensor) -> Tensor:
        x = functional.hardswish(me.deep(functional.hardswish(me.wide(x))))
        x = me.narrow(x * me.gate(x.mean((2, 3), keepdim=True)).sigmoid())
        return me.head(x.mean((2, 3)))

    return Calling(
        squeezed,
        wide=nn.Conv2d(3, 8, 1),
        deep=nn.Conv2d(8, 8, 3, padding=1, groups=8),
        gate=nn.Conv2d(8, 8, 1),
        narrow=nn.Conv2d(8, 4, 1),
        head=nn.Linear(4, 3),
    )


def convnext_block() -> nn.Module:
    def forward(me: Any, x: Tensor) -> Tensor:
        found = me.norm(me.deep(me.stem(x)).permute(0, 2, 3, 1))
        return me.head(me.down(functional.gelu(me.up(found))).mean((1, 2)))

    return Calling(
        forward,
        stem=nn.Conv2d(3, 6, 2, stride=2),
        deep=nn.Conv2d(6, 6, 7, padding=3, groups=6),
        norm=nn.LayerNorm(6),
        up=nn.Linear(6, 12),
        down=nn.Linear(12, 6),
        head=nn.Linear(6, 3),
    )


def unet() -> nn.Module:
    def forward(me: Any, x: Tensor) -> Tensor:
        top = functional.relu(me.first(x))
        deep = functional.relu(me.down(functional.max_pool2d(top, 2)))
        joined = torch.cat([top, functional.interpolate(deep, scale_factor=2)], 1)
        return me.head(functional.relu(me.up(joined)).mean((2, 3)))

    return Calling(
        forward,
        first=nn.Conv2d(3, 4, 3, padding=1),
        down=nn.Conv2d(4, 8, 3, padding=1),
        up=nn.Conv2d(12, 4, 3, padding=1),
        head=nn.Linear(4, 3),
    )


def siamese(me: Any, x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=1)
    return me.head((me.body(left) - me.body(right)).abs())


def cosine(me: Any, x: Tensor) -> Tensor:
    """Angles to class vectors, as in contrastive image-text models."""
    found = functional.normalize(me.body(x), dim=-1)
    return me.scale.exp() * found @ functional.normalize(me.classes, dim=-1).T


def perceiver() -> nn.Module:
    def forward(me: Any, x: Tensor) -> Tensor:
        asked = me.latents.expand(len(x), -1, -1)
        return me.head(me.cross(asked, x, x)[0].mean(1))

    return Calling(
        forward,
        latents=nn.Parameter(torch.randn(2, 4)),
        cross=nn.MultiheadAttention(4, 2, batch_first=True),
        head=nn.Linear(4, 3),
    )


def fourier(me: Any, x: Tensor) -> Tensor:
    return me.head(torch.fft.rfft(x).abs())


def routed(me: Any, x: Tensor) -> Tensor:
    first = (x.mean(1, keepdim=True) > 0).to(x)
    return first * me.first(x) + (1 - first) * me.second(x)


SERIES, IMAGE = (5, 4), (3, 8, 8)

WORKING: dict[str, Animal] = {
    "perceptron": Animal(lambda: mlp(4, 8, 3), (4,)),
    "CNN with GroupNorm": Animal(
        lambda: images(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), features=8), IMAGE
    ),
    "CNN with LayerNorm": Animal(
        lambda: images(nn.Conv2d(3, 8, 3), nn.LayerNorm((8, 6, 6)), nn.ReLU(), features=8), IMAGE
    ),
    "GroupNorm on a 1 × 1 map": Animal(
        lambda: images(nn.Conv2d(3, 8, 8), nn.GroupNorm(2, 8), features=8), IMAGE
    ),
    "depthwise separable": Animal(
        lambda: images(nn.Conv2d(3, 6, 3, groups=3), nn.Conv2d(6, 8, 1), nn.ReLU(), features=8),
        IMAGE,
    ),
    "dilated": Animal(lambda: images(nn.Conv2d(3, 8, 3, dilation=2), nn.ELU(), features=8), IMAGE),
    "transposed": Animal(
        lambda: images(nn.ConvTranspose2d(3, 8, 3, stride=2), nn.ELU(), features=8), IMAGE
    ),
    "Conv1d": Animal(
        lambda: nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)), (4, 8)
    ),
    "Conv3d": Animal(
        lambda: nn.Sequential(nn.Conv3d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)),
        (1, 4, 4, 4),
    ),
    "residual, GroupNorm": Animal(
        lambda: images(nn.Conv2d(3, 8, 3), Residual(8, lambda w: nn.GroupNorm(2, w)), features=8),
        IMAGE,
    ),
    "residual, InstanceNorm": Animal(
        lambda: images(nn.Conv2d(3, 8, 3), Residual(8, nn.InstanceNorm2d), features=8), IMAGE
    ),
    "residual, frozen BatchNorm": Animal(
        lambda: freeze_norms(images(nn.Conv2d(3, 8, 3), Residual(8, nn.BatchNorm2d), features=8)),
        IMAGE,
    ),
    "LSTM": Animal(lambda: last(nn.LSTM(4, 5, batch_first=True)), SERIES),
    "LSTM, two layers, both ways": Animal(
        lambda: last(nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True)), SERIES
    ),
    "GRU": Animal(lambda: last(nn.GRU(4, 5, batch_first=True)), SERIES),
    "RNN": Animal(lambda: last(nn.RNN(4, 5, batch_first=True)), SERIES),
    "LSTM with dropout": Animal(
        lambda: last(nn.LSTM(4, 5, 2, batch_first=True, dropout=0.2)), SERIES
    ),
    "embedding": Animal(
        lambda: embedded(lambda me, x: me.head(me.table(x).mean(1))), (5,), 20, dtype=np.int64
    ),
    "embedding, bytes": Animal(
        lambda: embedded(lambda me, x: me.head(me.table(x).mean(1))), (5,), 20, dtype=np.uint8
    ),
    "embedding, x.long()": Animal(
        lambda: embedded(lambda me, x: me.head(me.table(x.long()).mean(1))), (5,), 20
    ),
    "embedding and GRU": Animal(
        lambda: embedded(
            lambda me, x: me.head(me.body(me.table(x))[0][:, -1]),
            body=nn.GRU(6, 6, batch_first=True),
        ),
        (5,),
        20,
        dtype=np.int64,
    ),
    "variable length, masked": Animal(lambda: embedded(masked_mean), (5,), 20, dtype=np.int64),
    "encoder layer with dropout": Animal(
        lambda: pooled(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True), lambda b, x: b(x)
        ),
        SERIES,
    ),
    "encoder layer": Animal(
        lambda: pooled(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), lambda b, x: b(x)
        ),
        SERIES,
    ),
    "multi-head attention": Animal(
        lambda: pooled(nn.MultiheadAttention(4, 2, batch_first=True), lambda b, x: b(x, x, x)[0]),
        SERIES,
    ),
    "scaled dot product attention": Animal(
        lambda: pooled(
            nn.Linear(4, 4),
            lambda b, x: functional.scaled_dot_product_attention(b(x), b(x), x),
        ),
        SERIES,
    ),
    "vision transformer": Animal(vision_transformer, IMAGE),
    "frozen backbone": Animal(lambda: frozen(mlp(4, 8, 8), 8), (4,)),
    "frozen backbone, no_grad": Animal(lambda: frozen(mlp(4, 8, 8), 8, quiet=True), (4,)),
    "frozen backbone, BatchNorm and dropout": Animal(
        lambda: frozen(
            nn.Sequential(nn.Conv2d(3, 8, 8), nn.BatchNorm2d(8), nn.Flatten(), nn.Dropout(0.5)), 8
        ),
        IMAGE,
    ),
    "tied hidden layers": Animal(tied_hidden, (4,)),
    "tied language model": Animal(tied_language_model, (5,), 12, outputs=12, dtype=np.int64),
    "dropout": Animal(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3)), (4,)
    ),
    "functional dropout": Animal(
        lambda: Calling(
            lambda me, x: me.head(functional.dropout(x, 0.3, me.training)), head=nn.Linear(4, 3)
        ),
        (4,),
    ),
    "bilinear": Animal(
        lambda: Calling(lambda me, x: me.head(x, x), head=nn.Bilinear(4, 4, 3)), (4,)
    ),
    "weight_norm": Animal(
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 3)
        ),
        (4,),
    ),
    "dict output": Animal(
        lambda: Calling(lambda me, x: {"logits": me.head(x)}, head=nn.Linear(4, 3)), (4,)
    ),
    "tuple output": Animal(
        lambda: Calling(lambda me, x: (me.head(x), x), head=nn.Linear(4, 3)), (4,)
    ),
    "vector regression": Animal(lambda: mlp(4, 8, 2), (4,), outputs=2, values=True),
    "float64 model": Animal(lambda: mlp(4, 8, 3).double(), (4,)),
    "bf16 model": Animal(lambda: mlp(4, 8, 3).bfloat16(), (4,)),
    "Fourier features": Animal(lambda: Calling(fourier, head=nn.Linear(3, 3)), (4,)),
    "more outputs than classes": Animal(lambda: nn.Linear(4, 50), (4,)),
    "head declared first": Animal(
        lambda: Calling(lambda me, x: me.head(me.body(x)), head=nn.Linear(8, 3), body=mlp(4, 8, 8)),
        (4,),
    ),
    "choice by data": Animal(
        lambda: Calling(routed, first=nn.Linear(4, 3), second=nn.Linear(4, 3)), (4,)
    ),
    "writes into zeros": Animal(lambda: Calling(writes_into_zeros, head=nn.Linear(4, 3)), (4,)),
    "softmax at the end": Animal(lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)), (4,)),
    "MobileNet block": Animal(mobile_block, IMAGE),
    "ConvNeXt block": Animal(convnext_block, IMAGE),
    "mixer": Animal(mixer, SERIES),
    "Perceiver": Animal(perceiver, SERIES),
    "U-Net": Animal(unet, IMAGE),
    "temporal convolution": Animal(
        lambda: nn.Sequential(
            nn.ConstantPad1d((4, 0), 0.0),
            nn.Conv1d(4, 6, 3, dilation=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(48, 3),
        ),
        (4, 8),
    ),
    "state-space scan": Animal(
        lambda: Calling(
            scan, decay=nn.Parameter(torch.zeros(4)), mix=nn.Linear(4, 4), head=nn.Linear(4, 3)
        ),
        SERIES,
    ),
    "mixture of experts": Animal(
        lambda: Calling(
            lambda me, x: experts(me, x).squeeze(-1),
            gate=nn.Linear(4, 2),
            first=mlp(4, 6, 3),
            second=mlp(4, 6, 3),
        ),
        (4,),
    ),
    "siamese": Animal(lambda: Calling(siamese, body=mlp(4, 8, 6), head=nn.Linear(6, 3)), (8,)),
    "cosine head": Animal(
        lambda: Calling(
            cosine,
            body=mlp(4, 8, 6),
            classes=nn.Parameter(torch.randn(3, 6)),
            scale=nn.Parameter(torch.tensor(1.0)),
        ),
        (4,),
    ),
    "quantile regression": Animal(lambda: mlp(4, 8, 3), (4,), outputs=3, values=True),
}


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.head(x)


REFUSED: dict[str, tuple[Animal, str]] = {
    "BatchNorm": (
        Animal(lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), (4,)),
        r"layer '1' \(BatchNorm1d\).*freeze_norms",
    ),
    "buffer written": (Animal(Counting, (4,)), "writes into its buffer 'count'"),
    "complex weights": (
        Animal(
            lambda: Calling(
                lambda me, x: (x.to(torch.complex64) @ me.w).abs(),
                w=nn.Parameter(torch.randn(4, 3, dtype=torch.complex64)),
            ),
            (4,),
        ),
        "'w' of .* is complex.*view_as_complex",
    ),
    "no tensor": (
        Animal(lambda: Calling(lambda _me, _x: "no", head=nn.Linear(4, 3)), (4,)),
        "returns str.*return a tensor",
    ),
    "two inputs, given one": (
        Animal(lambda: nn.Bilinear(4, 4, 3), (4,)),
        "missing 1 required.*give that argument a default",
    ),
    "rows shortened in place": (
        Animal(
            lambda: nn.Sequential(nn.Embedding(20, 2, max_norm=1.0), nn.Flatten(), mlp(10, 3)),
            (5,),
            20,
            dtype=np.int64,
        ),
        r"layer '0' \(Embedding\).*max_norm.*leave max_norm out",
    ),
    "per-token answers": (Animal(lambda: nn.Linear(4, 3), SERIES), "the task needs 3 outputs"),
}
