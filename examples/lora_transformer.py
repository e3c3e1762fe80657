"""LoRA on a small transformer: the base is frozen and never travels, users adapt an adapter.

The base has learned on public sentences what words mean to most people. Every user means some of
them otherwise. What is trained over the users, sent, and adapted by a new one, is an adapter: two
thin matrices beside the weights of two layers, and the head.

    python examples/lora_transformer.py
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import fedmeta


@dataclass(frozen=True)
class Config:
    """Of the transformer: its sizes."""

    vocabulary: int = 40
    length: int = 8
    width: int = 16
    heads: int = 2
    layers: int = 1
    classes: int = 2


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        shape = n, length, self.heads, width // self.heads
        h = self.before(x)
        q, k, v = (
            layer(h).reshape(shape).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        more: Tensor = self.down(nn.functional.gelu(self.up(self.between(x))))
        return x + more


class Transformer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.places = nn.Parameter(torch.zeros(config.length, config.width))
        self.body = nn.Sequential(*[Block(config) for _ in range(config.layers)])
        self.head = nn.Linear(config.width, config.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.body(self.words(tokens) + self.places).mean(1))
        return outputs


CONFIG = Config()


def sentences(
    meaning: np.ndarray, count: int, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Words at random; a sentence is good if its words mean more good than bad."""
    words = draw.integers(CONFIG.vocabulary, size=(count, CONFIG.length))
    return words, (meaning[words].sum(1) > 0).astype(np.int64)


def pretrained(meaning: np.ndarray, draw: np.random.Generator) -> Transformer:
    """The base, as it might come from a file."""
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        words, good = map(torch.from_numpy, sentences(meaning, 64, draw))
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(words), good))
        optimizer.step()
    return model


def main() -> None:
    """Pretrain, put an adapter in, train it over the users, and adapt it for new ones."""
    draw = np.random.default_rng(0)
    meaning = draw.normal(size=CONFIG.vocabulary)
    base = pretrained(meaning, draw)
    # Users differ along one direction: how ironically they use half of the words.
    ironic = draw.random(CONFIG.vocabulary) < 0.5
    samples = []
    for _ in range(30):
        irony = draw.choice([-1.0, 1.0])
        samples.append(sentences(np.where(ironic, irony * meaning, meaning), 40, draw))
    words, good = (np.concatenate(part) for part in zip(*samples, strict=True))
    users = fedmeta.federate(words, good, np.arange(len(good)) // 40)

    adapted = fedmeta.lora(base, rank=2, targets=["body.*.value", "body.*.out"], train=["head"])
    # What a device adapts: "*lora_*" the adapter, scope "head" the head, scope "all" both.
    rule = fedmeta.Adaptation(0.3, steps=3, scope="all")
    run = fedmeta.train(users, adapted, fedmeta.ADMMFedMeta(inner=rule), rounds=40)
    sent = sum(leaf.numel() for leaf in run.meta_model.theta.values())
    whole = sum(leaf.numel() for leaf in adapted.parameters())
    print(f"{sent:,} of {whole:,} parameters are trained, sent and adapted")
    print(f"new users without adapting: {100 * run.accuracy(0):.1f} %")
    print(f"after adapting the adapter: {100 * run.accuracy(3):.1f} %")


if __name__ == "__main__":
    main()
