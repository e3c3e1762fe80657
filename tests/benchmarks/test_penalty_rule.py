"""Trials of other constants change the rule while they train, and nothing afterwards."""

from __future__ import annotations

import pytest

from benchmarks.penalty_rule import changed, tried
from fedmeta.algorithms import automatic_penalty
from fedmeta.settings import build_settings


def test_constants_are_changed_for_a_trial_alone() -> None:
    before = automatic_penalty._LONGEST
    settings = build_settings(
        {
            "data": {"name": "digits", "nodes": 12},
            "training": {"rounds": 6, "evaluate_every": 0},
        }
    )
    seeds = range(100, 102)
    as_it_is = tried(settings, seeds, changed("as-it-is").constants)
    short_steps = tried(settings, seeds, changed("longest=1e-6").constants)
    assert before == automatic_penalty._LONGEST
    assert all(share == pytest.approx(1, abs=0.01) for share in short_steps["loss_left"])
    assert short_steps["not_halved"] == 2
    assert max(as_it_is["loss_left"]) < 0.9


def test_unknown_constants_are_refused() -> None:
    with pytest.raises(SystemExit, match="'lenght' is neither"):
        changed("lenght=3")
