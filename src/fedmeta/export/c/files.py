"""A meta-model as model.h and model.c."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from fedmeta.core.errors import ModelError, require
from fedmeta.core.storage import write_bytes, writing
from fedmeta.export.c.adaptation import adapting
from fedmeta.export.c.costs import Costs, costs_of, fits, refuse
from fedmeta.export.c.plan import plan_of, tensors
from fedmeta.export.c.quantisation import quantised
from fedmeta.export.c.ranges import Ranges
from fedmeta.export.c.source import Written, written
from fedmeta.models.meta_model import MetaModel

HEADER, SOURCE = "model.h", "model.c"


def export_c(
    model: MetaModel,
    folder: Path | str,
    *,
    samples: int = 0,
    int8: Ranges | None = None,
    budget: Mapping[str, int] | None = None,
) -> Costs:
    """Write a model as a pair of C files, model.h and model.c; returns what it takes on a device.

    Args:
        model: the meta-model, or one adapted by `MetaModel.adapt`.
        folder: where to.
        samples: how many a device keeps to decide on; 0: it keeps none and does not decide.
        int8: the ranges of the network's numbers (`source_ranges`), for a body in eight bits; None:
            all is float32.
        budget: bytes of "ram" and "flash" that there are; nothing is written that takes more.

    Raises:
        ModelError: for a model that cannot be written; it names the layer.
        MemoryBudgetError: for one that does not fit.
    """
    require(samples == 0 or samples >= 2, "decide", samples, "a number of samples of at least 2")
    _check_inputs(model)
    model = plain(model)
    found, costs = _made(model, samples, int8)
    if budget and not fits(costs, budget):
        smaller = None if int8 is not None else _in_bytes(model, samples)
        refuse(costs, budget, smaller, samples, _most_samples(model, samples, int8, budget))
    folder = Path(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / HEADER, found.header.encode())
    write_bytes(folder / SOURCE, found.source.encode())
    return costs


def _made(model: MetaModel, samples: int, ranges: Ranges | None) -> tuple[Written, Costs]:
    plan = plan_of(model, samples, int8=ranges is not None)
    how = adapting(model, plan)
    body = None if ranges is None else quantised(plan, tensors(model), ranges)
    found = written(model, how, body)
    return found, costs_of(how, found.memory, found.constants)


def _check_inputs(model: MetaModel) -> None:
    """Refuse samples that are more than one tensor of numbers."""
    calling = model.network.calling
    what = "tokens" if model.scaling.tokens else ""
    if calling is not None:
        what = f"inputs by name ({', '.join(map(repr, calling.parts.names))})"
    if what:
        raise ModelError(
            f"C code takes one tensor of numbers, but this model takes {what}",
            "export the model to ONNX",
        )


def _most_samples(
    model: MetaModel, samples: int, ranges: Ranges | None, budget: Mapping[str, int]
) -> int:
    """How many samples may be kept instead; 0: none fit."""
    few, many = 1, samples  # few fit (or are none), many do not
    while many - few > 1:
        middle = (few + many) // 2
        within = fits(_made(model, middle, ranges)[1], budget)
        few, many = (middle, many) if within else (few, middle)
    return few if few > 1 else 0


def _in_bytes(model: MetaModel, samples: int) -> Costs | None:
    """What a model would take in int8, whatever its ranges are; None: it cannot be."""
    try:
        layers = 1 + len(plan_of(model).body) + len(plan_of(model).rest)
        return _made(model, samples, Ranges((-1.0,) * layers, (1.0,) * layers))[1]
    except ModelError:
        return None


def plain(model: MetaModel) -> MetaModel:
    """The same in float32 on the CPU."""
    device, dtype = torch.device("cpu"), torch.float32
    network = model.network.to(device, dtype)
    theta = {name: leaf.detach().to(device, dtype) for name, leaf in model.theta.items()}
    return replace(model, network=network, theta=theta)
