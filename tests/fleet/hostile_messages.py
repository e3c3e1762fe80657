"""A generator of messages that no honest edge sends: mutations of an honest one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedmeta.fleet.message import Message

_DEEP: list[Any] = []
for _ in range(60):
    _DEEP = [_DEEP]
VALUES: list[Any] = [
    *(None, True, False, 0, -1, -(10**30), 10**400, 1e308, -0.5, "", "nan", "inf", "\ud800"),
    *("x\x1b[2J\x07", "a" * 1_000_000, [], {}, [[]], {"a": {"b": [1, {"c": None}]}}, _DEEP),
    *(["note"] * 100, ["y" * 5000], ["\udcff"], [1], ["\u202egnp"], float("nan"), float("inf")),
]
DTYPES = [
    *(torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int64),
    torch.bool,
]

Mutation = Callable[[random.Random, dict[str, Any], dict[str, Tensor]], None]


def _other_fact(luck: random.Random, facts: dict[str, Any], _: dict[str, Tensor]) -> None:
    name = luck.choice(sorted(facts))
    choices = [each for each in VALUES if not _same(each, facts[name], name)]
    facts[name] = luck.choice(choices)


def _missing_fact(luck: random.Random, facts: dict[str, Any], _: dict[str, Tensor]) -> None:
    del facts[luck.choice(sorted(facts))]


def _further_fact(luck: random.Random, facts: dict[str, Any], _: dict[str, Tensor]) -> None:
    facts[luck.choice(["extra", "\ud800", "", "table", "metrics"])] = luck.choice(VALUES)


def _missing_tensor(luck: random.Random, _: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    del tensors[luck.choice(sorted(tensors))]


def _further_tensor(luck: random.Random, _: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    name = luck.choice(["metric/extra", "start", "sealed", "\x1b", "wire/x", "metric/"])
    tensors[name] = luck.choice([torch.zeros(()), torch.zeros(10), torch.ones(2, 2).bool()])


def _other_dtype(luck: random.Random, _: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    name = luck.choice(sorted(tensors))
    tensors[name] = tensors[name].to(luck.choice([d for d in DTYPES if d != tensors[name].dtype]))


def _other_shape(luck: random.Random, _: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    name = luck.choice(sorted(tensors))
    leaf = tensors[name]
    tensors[name] = luck.choice(
        [leaf.unsqueeze(0), leaf.reshape(-1).repeat(3), leaf.new_zeros(0), leaf.new_zeros(1, 0, 7)]
    )


def _not_finite(luck: random.Random, _: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    name = luck.choice(sorted(tensors))
    tensors[name] = tensors[name].float() * luck.choice([float("nan"), float("inf")])


def _other_weight(luck: random.Random, _: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    name = "weight" if "weight" in tensors else sorted(tensors)[0]
    tensors[name] = tensors[name].float() * luck.choice([0.0, -1.0, 1000.0, 1e30])


# In an order in which none undoes another.
MUTATIONS: list[Mutation] = [
    *(_missing_fact, _missing_tensor, _other_fact, _other_weight, _not_finite),
    *(_other_dtype, _other_shape, _further_fact, _further_tensor),
]


def hostile(luck: random.Random, honest: Message) -> Message:
    """An honest message with one thing, or several, that cannot be."""
    facts, tensors = dict(honest.facts), dict(honest.tensors)
    chosen = luck.sample(range(len(MUTATIONS)), luck.choice([1, 1, 1, 2, 3]))
    for place in sorted(chosen):
        if facts and tensors:
            MUTATIONS[place](luck, facts, tensors)
    return Message(facts, tensors)


def _same(value: Any, honest: Any, name: str) -> bool:
    """Whether a value would pass: what is allowed is no attack."""
    if name == "seconds" and type(value) in (int, float):
        return bool(0 <= value <= 1e9)
    return (name == "notes" and value == []) or (type(value) is type(honest) and value == honest)
