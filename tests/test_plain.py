from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch

from fedmeta.algorithms import ADMMFedMeta
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Adaptation
from fedmeta.core.serialization import deserialize, serialize


@dataclass(frozen=True)
class Inner:
    size: int = 1


@dataclass(frozen=True)
class Outer:
    name: str
    rate: float = 0.5
    on: bool = False
    count: int | None = None
    mode: Literal["slow", "fast"] = "slow"
    inner: Inner = Inner()
    rates: float | Mapping[str, float] = 1.0
    widths: tuple[int, ...] = ()
    pick: Inner | str | None = None


def read(**values: Any) -> Outer:
    return deserialize(Outer, {"name": "x", **values}, "outer")


def test_round_trip() -> None:
    made = read(
        rate=2,
        on=True,
        count=3,
        mode="fast",
        inner={"size": 4},
        rates={"a": 1},
        widths=[1, 2],
        pick={"size": 5},
    )
    assert made == Outer("x", 2.0, True, 3, "fast", Inner(4), {"a": 1.0}, (1, 2), Inner(5))
    assert isinstance(made.rate, float)
    assert deserialize(Outer, serialize(made), "outer") == made
    assert read(count=None, pick="text").pick == "text"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rat": 1.0}, "outer has no setting 'rat': did you mean 'rate'"),
        ({"inner": {"sise": 1}}, "outer.inner has no setting 'sise': did you mean 'size'"),
        ({"rate": "much"}, "outer.rate is 'much': give a number"),
        ({"rate": True}, "outer.rate is True: give a number"),
        ({"rate": None}, "outer.rate is None: give a number"),
        ({"count": 1.5}, "outer.count is 1.5: give a whole number"),
        ({"count": True}, "outer.count is True: give a whole number"),
        ({"on": 1}, "outer.on is 1: give true or false"),
        ({"mode": "fats"}, "outer.mode is 'fats': did you mean 'fast'"),
        ({"inner": 3}, "outer.inner is 3: give a table"),
        ({"inner": {"size": "big"}}, "outer.inner.size is 'big': give a whole number"),
        ({"rates": "high"}, "outer.rates is 'high': give a number or a table"),
        ({"rates": {"a": "high"}}, "outer.rates"),
        ({"widths": 3}, "outer.widths is 3: give a list of whole numbers"),
        ({"widths": [1, "b"]}, r"outer.widths\[1\] is 'b': give a whole number"),
        ({"pick": {"sise": 1}}, "outer.pick has no setting 'sise'"),
        ({"pick": 4}, "outer.pick is 4: give a table or text"),
    ],
)
def test_what_does_not_fit_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        read(**values)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(SettingError, match="outer lacks 'name': give text"):
        deserialize(Outer, {"rate": 1.0}, "outer")


def test_algorithms_as_plain_tables() -> None:
    wanted = ADMMFedMeta(Adaptation(0.1, scope=("head.*",)), {"a": 1.0}, platform="proximal")
    table = {
        "inner": {"step_size": 0.1, "scope": ["head.*"]},
        "penalty": {"a": 1},
        "platform": "proximal",
    }
    assert deserialize(ADMMFedMeta, table, "algorithm") == wanted
    plain = serialize(wanted)
    assert plain["penalty"] == {"a": 1.0}
    assert plain["difference"] == {"growth": 10.0, "offset": 100.0, "power": 1.0}


def test_functions_and_tensors_can_be_told_apart() -> None:
    assert serialize(test_round_trip).endswith(":test_round_trip")
    zeros, ones = serialize(torch.zeros(2, 3)), serialize(torch.ones(2, 3))
    assert "(2, 3)" in zeros
    assert zeros != ones
    assert zeros == serialize(torch.zeros(3, 2).T)
