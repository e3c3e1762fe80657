"""Times of competitors that take turns, so that what disturbs the machine disturbs all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median

import torch

_LEAST = 3  # repetitions, however slow
_BATCH = 50.0  # ms of GPU work between two looks at the clock
_WARM_CALLS = 4  # before anything counts: recordings are made and libraries set up by then


def interleaved(
    competitors: Mapping[str, Callable[[], object]],
    device: str,
    repetitions: int,
    budget: float,
    warm: float = 0.0,
) -> dict[str, float]:
    """Median time of one call of each, in ms; they are called in turn, again and again.

    Args:
        competitors: what to call; everyone is called a few times beforehand to warm up.
        device: "cpu" or "cuda"; on a GPU the time is taken with CUDA events.
        repetitions: calls of each that count.
        budget: seconds after which no further repetition is begun.
        warm: seconds for which each is called before, at least.
    """
    times: dict[str, list[float]] = {name: [] for name in competitors}
    for call in competitors.values():
        start, calls = time.perf_counter(), 0
        while calls < _WARM_CALLS or time.perf_counter() - start < warm:
            call()
            calls += 1
    begin = time.perf_counter()
    for done in range(repetitions):
        if done >= _LEAST and time.perf_counter() - begin > budget:
            break
        for name, call in competitors.items():
            times[name].append(milliseconds(call, device))
    return {name: median(values) for name, values in times.items()}


def milliseconds(call: Callable[[], object], device: str) -> float:
    """How long one call takes, in ms, until the device has done what it was told to."""
    if not device.startswith("cuda"):
        start = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start)
    torch.cuda.synchronize()
    once = _on_gpu(call, 1)
    if once > _BATCH / 2:
        return once
    return _on_gpu(call, int(_BATCH / once))


def _on_gpu(call: Callable[[], object], times: int) -> float:
    """Time of one of several calls back to back, as rounds are in a training, in ms."""
    before, after = (_event() for _ in range(2))
    before.record()
    for _ in range(times):
        call()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / times


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@contextmanager
def float32_rounding(allowed: bool) -> Iterator[None]:
    """Let products of float32 numbers on a GPU round their inputs to 10 bits (TF32), or not.

    torch's own setting allows it for convolutions, which would give peers an edge in the float32
    rows.
    """
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
