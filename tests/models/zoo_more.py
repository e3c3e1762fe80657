"""Further networks as people bring them, and a list of all kinds with where each stands."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmeta import ModelSettings, freeze_norms
from fedmeta.models.networks import build
from models.zoo import IMAGE, SERIES, Animal, Calling, Residual, embedded, images, mlp

CHARACTERS = (1, 16, 16)


class Stage(nn.Module):
    """Two blocks of a residual network, the first of which halves the sides."""

    def __init__(self, before: int, after: int, stride: int, batch: bool) -> None:
        super().__init__()

        def norm(width: int) -> nn.Module:
            return nn.BatchNorm2d(width) if batch else nn.GroupNorm(2, width)

        self.short = nn.Conv2d(before, after, 1, stride=stride)
        self.first = nn.Sequential(
            nn.Conv2d(before, after, 3, stride=stride, padding=1),
            norm(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1),
            norm(after),
        )
        self.second = Residual(after, norm)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(functional.relu(self.short(x) + self.first(x)))


def resnet18(batch: bool) -> nn.Module:
    """Eighteen layers in four stages, four channels wide and more."""
    widths = (4, 4, 6, 8, 8)
    pairs = zip(widths[:-1], widths[1:], (1, 2, 2, 2), strict=True)
    stages = [Stage(before, after, stride, batch) for before, after, stride in pairs]
    norm = nn.BatchNorm2d(4) if batch else nn.GroupNorm(2, 4)
    return images(nn.Conv2d(3, 4, 3, padding=1), norm, nn.ReLU(), *stages, features=8)


def packed(me: Any, x: Tensor) -> Tensor:
    lengths = (x > 0).sum(1).clamp(min=1).cpu()
    rows = nn.utils.rnn.pack_padded_sequence(
        me.table(x), lengths, batch_first=True, enforce_sorted=False
    )
    return me.head(me.body(rows)[1][0][-1])


def bert(dropout: float, wrapped: bool) -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=3,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    model = transformers.BertForSequenceClassification(config)
    return Calling(lambda me, x: me.body(x).logits, body=model) if wrapped else model


def distilbert() -> nn.Module:
    import transformers

    config = transformers.DistilBertConfig(
        vocab_size=20,
        dim=8,
        n_layers=1,
        n_heads=2,
        hidden_dim=16,
        max_position_embeddings=8,
        num_labels=3,
        dropout=0.0,
        attention_dropout=0.0,
    )
    model = transformers.DistilBertForSequenceClassification(config)
    return Calling(lambda me, x: me.body(x).logits, body=model)


def adapted_bert() -> nn.Module:
    import peft

    config = peft.LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"])
    return peft.get_peft_model(bert(0.1, wrapped=False), config)


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is a newer one
        layer = nn.utils.weight_norm(nn.Linear(4, 8))
    return nn.Sequential(layer, nn.ReLU(), nn.Linear(8, 3))


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is a newer way
        return torch.jit.script(mlp(4, 8, 3))


def branches(me: Any, x: Tensor) -> Tensor:
    if x.abs().max() > 1e6:
        x = x / 1e6
    return me.head(x)


def writes_rows(me: Any, x: Tensor) -> Tensor:
    out = torch.zeros(len(x), 3, dtype=x.dtype)
    out[:, :] = me.head(x)
    return out


def hard_routing(me: Any, x: Tensor) -> Tensor:
    out, first = me.second(x), x.mean(1) > 0
    out = out.clone()
    out[first] = me.first(x[first])
    return out


def tabular(me: Any, x: Tensor) -> Tensor:
    """Two columns of categories looked up, two of numbers as they are."""
    kinds = [table(x[:, n].long()) for n, table in enumerate((me.colour, me.size))]
    return me.head(torch.cat([*kinds, x[:, 2:].to(kinds[0]) / 4], 1))


def pinball(outputs: Tensor, labels: Tensor) -> Tensor:
    """Three quantiles of one value."""
    levels = outputs.new_tensor([0.1, 0.5, 0.9])
    over = labels[:, :1] - outputs
    return torch.maximum(levels * over, (levels - 1) * over).mean(1)


def own_labels(outputs: Tensor, labels: Tensor) -> Tensor:
    """Every label for itself, as values 0 and 1."""
    wanted = (labels > 0).to(outputs)
    return functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="none").mean(1)


def expanded() -> nn.Module:
    """A buffer whose numbers share one place in memory."""
    model = Calling(lambda me, x: me.head(x * me.scale), head=nn.Linear(4, 3))
    model.register_buffer("scale", torch.full((1,), 2.0).expand(4))
    return model


class Running(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.head(x - self.mean)


TOKENS: dict[str, Any] = {"shape": (5,), "tokens": 20, "dtype": np.int64}

MORE: dict[str, Animal] = {
    "ResNet-18, GroupNorm": Animal(lambda: resnet18(batch=False), (3, 16, 16)),
    "ResNet-18, frozen BatchNorm": Animal(lambda: freeze_norms(resnet18(batch=True)), (3, 16, 16)),
    "weight_norm, old hook": Animal(old_weight_norm, (4,)),
    "multi-label": Animal(lambda: mlp(4, 8, 3), (4,), values=True, loss=own_labels),
    "quantile loss": Animal(lambda: mlp(4, 8, 3), (4,), values=True, loss=pinball),
    "compiled": Animal(lambda: torch.compile(mlp(4, 8, 3), backend="eager"), (4,)),
    "10,000 classes": Animal(lambda: nn.Sequential(nn.Linear(4, 10_000)), (4,)),
    "if on data": Animal(lambda: Calling(branches, head=nn.Linear(4, 3)), (4,)),
    "writes into rows of zeros": Animal(lambda: Calling(writes_rows, head=nn.Linear(4, 3)), (4,)),
    "hard routing": Animal(
        lambda: Calling(hard_routing, first=nn.Linear(4, 3), second=nn.Linear(4, 3)), (4,)
    ),
    "single parameter": Animal(
        lambda: Calling(lambda me, x: x @ me.w, w=nn.Parameter(torch.zeros(4, 3))), (4,)
    ),
    "lazy layers": Animal(
        lambda: nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3)), (4,)
    ),
    "data parallel": Animal(lambda: nn.DataParallel(mlp(4, 8, 3)), (4,)),
    "tabular embeddings": Animal(
        lambda: Calling(
            tabular, colour=nn.Embedding(9, 3), size=nn.Embedding(9, 2), head=mlp(7, 8, 3)
        ),
        (4,),
        9,
        dtype=np.int64,
    ),
    "conv4": Animal(
        lambda: build(ModelSettings("conv4", channels=(4, 4, 4, 4)), CHARACTERS, 3, seed=0),
        CHARACTERS,
    ),
    "attention pooling": Animal(
        lambda: Calling(
            lambda me, x: me.head((me.score(x).softmax(1) * x).sum(1)),
            score=nn.Linear(4, 1),
            head=nn.Linear(4, 3),
        ),
        SERIES,
    ),
    "squeezing autoencoder": Animal(
        lambda: Calling(
            lambda me, x: me.head(me.up(me.down(x)) + x),
            down=mlp(4, 2),
            up=mlp(2, 4),
            head=nn.Linear(4, 3),
        ),
        (4,),
    ),
    "gated linear units": Animal(
        lambda: Calling(
            lambda me, x: me.head(functional.glu(me.body(x))),
            body=nn.Linear(4, 16),
            head=nn.Linear(8, 3),
        ),
        (4,),
    ),
    **{
        f"embedding bag, {mode}": Animal(
            lambda mode=mode: Calling(
                lambda me, x: me.head(me.bag(x)),
                bag=nn.EmbeddingBag(20, 6, mode=mode, padding_idx=0),
                head=nn.Linear(6, 3),
            ),
            **TOKENS,
        )
        for mode in ("mean", "sum", "max")
    },
    "sparse embedding": Animal(
        lambda: nn.Sequential(nn.Embedding(20, 6, sparse=True), nn.Flatten(), nn.Linear(30, 3)),
        **TOKENS,
    ),
    "expanded buffer": Animal(expanded, (4,)),
    "PReLU and instance scale": Animal(
        lambda: images(nn.Conv2d(3, 8, 3), nn.PReLU(8), features=8), IMAGE
    ),
}
if importlib.util.find_spec("transformers") is not None:
    MORE |= {
        "BERT, as it is": Animal(lambda: bert(0.0, wrapped=False), **TOKENS),
        "BERT, wrapped, default dropout": Animal(lambda: bert(0.1, wrapped=True), **TOKENS),
        "BERT, wrapped, no dropout": Animal(lambda: bert(0.0, wrapped=True), **TOKENS),
        "DistilBERT, wrapped": Animal(distilbert, **TOKENS),
    }
    if importlib.util.find_spec("peft") is not None:
        MORE["BERT with LoRA of peft"] = Animal(adapted_bert, **TOKENS)

MORE_REFUSED: dict[str, tuple[Animal, str]] = {
    "variable length, packed": (
        Animal(lambda: embedded(packed, body=nn.LSTM(6, 6, batch_first=True)), **TOKENS),
        "packed sequences.*mask what is padding",
    ),
    "scripted": (Animal(scripted, (4,)), "is a ScriptModule.*the nn.Module that it was"),
    "ResNet-18, BatchNorm": (
        Animal(lambda: resnet18(batch=True), (3, 16, 16)),
        r"BatchNorm2d.*freeze_norms",
    ),
    "running mean": (Animal(Running, (4,)), "changes with the other samples of its batch"),
    "spectral_norm": (
        Animal(
            lambda: nn.Sequential(
                nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8)), nn.Linear(8, 3)
            ),
            (4,),
        ),
        "writes into its buffer",
    ),
}


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(4, 8, 6), nn.Linear(6, 3)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return self.head((self.body(x1) - self.body(x2)).abs())


class OneMapping(TwoInputs):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(batch["x1"], batch["x2"])


NAMED: dict[str, Animal] = {
    "two inputs": Animal(TwoInputs, (4,), inputs=("x1", "x2")),
    "mapping of inputs": Animal(OneMapping, (4,), inputs=("x1", "x2")),
}

KINDS = {
    "MLP": "perceptron",
    "CNN GroupNorm": "CNN with GroupNorm",
    "CNN LayerNorm": "CNN with LayerNorm",
    "depthwise separable": "depthwise separable",
    "dilated conv": "dilated",
    "transposed conv": "transposed",
    "Conv1d": "Conv1d",
    "Conv3d": "Conv3d",
    "ResNet blocks GroupNorm": "residual, GroupNorm",
    "ResNet blocks InstanceNorm": "residual, InstanceNorm",
    "ResNet18 BatchNorm": "ResNet-18, BatchNorm",
    "ResNet18 GroupNorm": "ResNet-18, GroupNorm",
    "LSTM": "LSTM",
    "LSTM 2-layer bidirectional": "LSTM, two layers, both ways",
    "GRU": "GRU",
    "RNN": "RNN",
    "LSTM dropout=0.2": "LSTM with dropout",
    "Embedding, ints, as is": "embedding",
    "Embedding, x.long(), default scaling": "embedding, x.long()",
    "Embedding, x.long(), scaling none": "embedding, x.long(), scaling none",
    "Embedding, uint8 tokens, scaling none": "embedding, bytes, scaling none",
    "Embedding + GRU": "embedding and GRU",
    "variable length, masked": "variable length, masked",
    "variable length, packed": "variable length, packed",
    "TransformerEncoderLayer dropout=0.1": "encoder layer with dropout",
    "TransformerEncoderLayer dropout=0": "encoder layer",
    "MultiheadAttention": "multi-head attention",
    "scaled_dot_product_attention": "scaled dot product attention",
    "small ViT": "vision transformer",
    "HF BERT, as is": "BERT, as it is",
    "HF BERT, wrapped, default dropout": "BERT, wrapped, default dropout",
    "HF BERT, wrapped, dropout 0": "BERT, wrapped, no dropout",
    "HF DistilBERT, wrapped, dropout 0": "DistilBERT, wrapped",
    "LoRA (peft) on BERT": "BERT with LoRA of peft",
    "frozen backbone": "frozen backbone",
    "frozen backbone, no_grad": "frozen backbone, no_grad",
    "frozen backbone with BatchNorm in eval": "frozen backbone, BatchNorm and dropout",
    "tied hidden layers": "tied hidden layers",
    "tied embedding and output (LM)": "tied language model",
    "Dropout": "dropout",
    "F.dropout": "functional dropout",
    "Bilinear": "bilinear",
    "weight_norm parametrization": "weight_norm",
    "weight_norm, old hook": "weight_norm, old hook",
    "spectral_norm parametrization": "spectral_norm",
    "two inputs forward(x1, x2)": "two inputs",
    "dict input": "mapping of inputs",
    "dict output": "dict output",
    "tuple output": "tuple output",
    "multi-label BCE": "multi-label",
    "vector regression": "vector regression",
    "float64 model": "float64 model",
    "float64 execution": "perceptron",
    "bf16 model": "bf16 model",
    "bf16 precision": "perceptron, bf16 precision",
    "bf16 precision, Embedding": "embedding, bf16 precision",
    "complex weights": "complex weights",
    "FFT features": "Fourier features",
    "buffers: counter in forward": "buffer written",
    "buffers: running mean": "running mean",
    "torch.compile'd": "compiled",
    "ScriptModule": "scripted",
    "10k classes": "10,000 classes",
    "head declared first": "head declared first",
    "if on data": "if on data",
    "writes into zeros()": "writes into rows of zeros",
    "hard routing (x[mask])": "hard routing",
    "single Parameter model": "single parameter",
    "Lazy layers": "lazy layers",
    "DataParallel": "data parallel",
    "softmax at the end": "softmax at the end",
    # Twelve more.
    "MobileNetV3": "MobileNet block",
    "ConvNeXt block": "ConvNeXt block",
    "MLP-Mixer": "mixer",
    "Perceiver cross-attention": "Perceiver",
    "U-Net": "U-Net",
    "temporal convolution": "temporal convolution",
    "Mamba-like scan": "state-space scan",
    "mixture of experts": "mixture of experts",
    "Siamese": "siamese",
    "CLIP-like head": "cosine head",
    "tabular embedding net": "tabular embeddings",
    "quantile regression": "quantile loss",
}
"""What people ask after, by what it is called here."""
