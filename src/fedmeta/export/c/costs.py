"""What a model costs on a device, before anything is flashed: memory, flash, multiplications."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from fedmeta.core.errors import MemoryBudgetError, SettingError
from fedmeta.export.c.adaptation import Adapting
from fedmeta.export.c.layer_kinds import Convolution, Layer, Linear, Recurrent

_CODE = {"streams": 4 << 10, "decides": 8 << 10}
_LIBRARY = {"streams": 4 << 10, "decides": 10 << 10}
_FLAGS = 8
"""Bytes of code and of the C library's functions, rounded up: Cortex-M, -Os; and of two flags."""


@dataclass(frozen=True)
class Costs:
    """What a model takes.

    Args:
        memory: bytes of buffers, by what they are for.
        stack: bytes that calls take besides, at most.
        constants: bytes of weights and other constants.
        code: bytes of the program, with what it takes of the C library, at most.
        predict: multiply-adds of a prediction.
        sample: multiply-adds of a sample in an adaptation step.
        step: multiply-adds of a step besides.
    """

    memory: Mapping[str, int]
    stack: int
    constants: int
    code: int
    predict: int
    sample: int
    step: int

    @property
    def ram(self) -> int:
        """Bytes of memory."""
        return sum(self.memory.values()) + _FLAGS + self.stack

    @property
    def flash(self) -> int:
        """Bytes of flash."""
        return self.constants + self.code

    @property
    def lines(self) -> list[str]:
        """All of it for people."""
        parts = ", ".join(f"{size:,} {what}" for what, size in self.memory.items())
        return [
            f"RAM    {self.ram:,} bytes: {parts}, {self.stack:,} stack",
            f"flash  {self.flash:,} bytes: {self.constants:,} constants, {self.code:,} code",
            f"multiply-adds  {self.predict:,} per prediction, "
            f"{self.sample:,} per sample of a step, {self.step:,} per step",
        ]


def costs_of(adapting: Adapting, memory: Mapping[str, int], constants: int) -> Costs:
    """The costs of a model.

    Args:
        adapting: how it adapts, and the plan of its network.
        memory: bytes of every buffer.
        constants: bytes of all constants.
    """
    plan, kind = adapting.plan, "decides" if adapting.decides or adapting.by_means else "streams"
    forward = sum(map(products, (*plan.body, *plan.rest)))
    # Two more products of the same size on the way back, but for the first layer that moves.
    back = 0 if adapting.decides else sum(2 * products(layer) for layer in plan.rest)
    back = max(0, back - products(plan.rest[0])) if back else 0
    step = plan.parameters * (plan.samples if adapting.decides else 1)
    stack = 512 if kind == "streams" else 1024 + 48 * plan.outputs
    code = _CODE[kind] + _LIBRARY[kind]
    return Costs(memory, stack, constants, code, forward, forward + back, step)


def products(layer: Layer) -> int:
    """Multiply-adds of a layer; those on padding count too."""
    match layer:
        case Linear(rows=rows, inputs=inputs, outputs=outputs):
            return rows * inputs * outputs
        case Recurrent(steps=steps, width=width):
            return steps * 3 * width * width
        case Convolution(frame=frame):
            return frame.out_channels * math.prod(frame.out_space) * frame.taps
        case _:
            return 0


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def parse_budget(text: str) -> dict[str, int]:
    """Bytes of RAM and flash that there are.

    Example:
        >>> parse_budget("ram=64K,flash=1M")
        {'ram': 65536, 'flash': 1048576}
    """
    found = {}
    for entry in text.split(","):
        match = re.fullmatch(r"\s*(ram|flash)\s*=\s*(\d+)\s*([KkMm]?)B?\s*", entry)
        if match is None:
            raise SettingError(
                f"the budget {text!r} cannot be read", "write it as ram=64K,flash=512K"
            )
        found[match[1]] = int(match[2]) * _UNITS[match[3].upper()]
    return found


def _over(costs: Costs, budget: Mapping[str, int]) -> list[str]:
    """What there is too little of: "ram", "flash"."""
    return [name for name, most in budget.items() if getattr(costs, name) > most]


def fits(costs: Costs, budget: Mapping[str, int]) -> bool:
    """Whether a model fits into so many bytes of "ram" and "flash"."""
    return not _over(costs, budget)


def refuse(
    costs: Costs, budget: Mapping[str, int], smaller: Costs | None, samples: int, fewer: int
) -> NoReturn:
    """Say that a model does not fit, with the arithmetic and a proposal.

    Args:
        costs: of the model.
        budget: bytes of "ram" and "flash" that there are.
        smaller: what it would take in int8, where that is possible.
        samples: how many it keeps; 0: it does not decide.
        fewer: how many it may keep instead; 0: none.

    Raises:
        MemoryBudgetError: always.
    """
    names = {"ram": "RAM", "flash": "flash"}
    over = [
        f"{names[each]} {getattr(costs, each):,} > {budget[each]:,} bytes"
        for each in _over(costs, budget)
    ]
    details = " ".join(" ".join(line.split()) + ";" for line in costs.lines[:2])
    remedies = []
    if smaller is not None and fits(smaller, budget):
        remedies.append(f"export with --int8 ({smaller.ram:,} RAM, {smaller.flash:,} flash)")
    if fewer:
        remedies.append(f"keep at most {fewer} samples (--decide {fewer})")
    if samples:
        remedies.append("leave out --decide")
    remedies.append("train a smaller network (channels, hidden)")
    raise MemoryBudgetError(
        f"the model does not fit: {'; '.join(over)}. {details.rstrip(';')}", "; or ".join(remedies)
    )
