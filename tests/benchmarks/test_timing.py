from __future__ import annotations

import time

from benchmarks.timing import interleaved


def test_competitors_take_turns_after_a_warm_up() -> None:
    calls: list[str] = []
    competitors = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = interleaved(competitors, "cpu", repetitions=4, budget=60)
    assert calls == ["a"] * 4 + ["b"] * 4 + list("ab") * 4
    assert list(times) == ["a", "b"]


def test_spent_budget_still_leaves_three_repetitions() -> None:
    calls: list[int] = []
    interleaved({"a": lambda: calls.append(1)}, "cpu", repetitions=50, budget=0)
    assert len(calls) == 4 + 3


def test_warm_up_lasts() -> None:
    calls: list[int] = []
    interleaved({"a": lambda: (calls.append(1), time.sleep(0.01))}, "cpu", 1, 0, warm=0.1)
    assert len(calls) > 4 + 1


def test_times_are_in_milliseconds() -> None:
    # No upper bound: a busy machine may take any time.
    assert interleaved({"a": lambda: time.sleep(0.02)}, "cpu", 1, 60)["a"] >= 20
