"""The page of robust fleets says what the results say."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from benchmarks import fleet_simulation as simulation


def test_page_and_results_agree() -> None:
    text = simulation.PAGE.read_text(encoding="utf-8")
    assert simulation.rendered(text, simulation.RESULTS) == text, "run fleet_simulation render"


def test_a_result_says_how_it_was_obtained() -> None:
    files = sorted(simulation.RESULTS.glob("*.json"))
    assert files
    for file in files:
        kept = json.loads(file.read_text(encoding="utf-8"))
        for case in kept["cases"].values():
            assert {"about", "accuracy", "versions", "date", "device"} <= set(case)
            assert len(case["accuracy"]) == case["about"]["seeds"]
            assert case["baseline"] is None or case["baseline"] in kept["cases"]


def test_a_case_is_run_once_and_seen_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [case for case in simulation.cases("digits") if case.group == "lost"][:2]
    short = [replace(case, rounds=2) for case in found]
    monkeypatch.setattr(simulation, "cases", lambda _: short)
    said: list[str] = []

    def run(groups: str, seconds: float = inf) -> bool:
        return simulation.run(
            "digits",
            [groups],
            folder=None,
            device="cpu",
            seeds=2,
            results=tmp_path,
            seconds=seconds,
            say=said.append,
        )

    assert run("hostile")
    assert not said
    assert not run("lost", seconds=-1.0)
    assert not said
    for _ in range(2):
        assert run("lost")
    assert len(said) == 2
    assert "30 % of 10 edges" in simulation.tables(tmp_path)["lost"]
