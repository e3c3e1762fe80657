"""What adapting takes on this machine: memory, time and room on the disk."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import numpy as np

from fedmeta_edge.errors import EdgeError
from fedmeta_edge.model import Array, Model

_STATUS = Path("/proc/self/status")


def example_samples(model: Model, count: int) -> tuple[Array, Array]:
    """Random samples of the model's shape, with labels.

    Args:
        model: from `load`.
        count: how many, at least one.
    """
    if count < 1:
        raise EdgeError(f"samples is {count}", "give a whole number of at least 1")
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(count, *model.input_shape)).astype(np.float32)
    if model.classes:
        return inputs, np.arange(count) % model.outputs
    return inputs, rng.normal(size=(count, model.outputs)).astype(np.float32)


def step_seconds(model: Model, inputs: Array, labels: Array, repeats: int) -> list[float]:
    """How long each of some steps takes, all of them from the meta-model.

    Args:
        model: from `load`.
        inputs, labels: what it adapts to.
        repeats: how many steps.
    """
    mask = np.ones(len(inputs), np.float32)
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        model.step(inputs, labels, mask)
        found.append(time.perf_counter() - started)
    return found


def peak_memory() -> int | None:
    """The most memory that this process ever had, in bytes; None where Linux does not tell."""
    # Not getrusage, which counts what the parent had before the program was started.
    found = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text()) if _STATUS.exists() else None
    return None if found is None else 1024 * int(found[1])


def installed_sizes(name: str = "fedmeta-edge") -> Mapping[str, int]:
    """Bytes on disk of a distribution and of all that it needs, the largest first."""
    found: dict[str, int] = {}
    waiting = [name]
    while waiting:
        each = waiting.pop()
        try:
            known = distribution(each)
        except PackageNotFoundError:  # not for this system
            continue
        if known.name not in found:
            found[known.name] = _size(known)
            # Extras were not asked for; what other conditions say shows in what is installed.
            needed = [line for line in known.requires or () if "extra ==" not in line]
            waiting += [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in needed]
    return dict(sorted(found.items(), key=lambda item: item[1], reverse=True))


def _size(known: Distribution) -> int:
    files = (Path(str(known.locate_file(file))) for file in known.files or ())
    return sum(file.stat().st_size for file in files if file.is_file())
