from __future__ import annotations

import time

from benchmarks.timing import interleaved


def test_competitors_take_turns_after_a_warm_up() -> None:
    calls: list[str] = []
    competitors = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = interleaved(competitors, "cpu", repetitions=4, budget=60)
    assert calls == list("ab") * 5
    assert list(times) == ["a", "b"]


def test_spent_budget_still_leaves_three_repetitions() -> None:
    calls: list[int] = []
    interleaved({"a": lambda: calls.append(1)}, "cpu", repetitions=50, budget=0)
    assert len(calls) == 1 + 3


def test_times_are_in_milliseconds() -> None:
    # No upper bound: a busy machine may take any time.
    assert interleaved({"a": lambda: time.sleep(0.02)}, "cpu", 1, 60)["a"] >= 20
