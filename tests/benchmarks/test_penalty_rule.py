"""Trials of other constants change the rule while they train, and nothing afterwards."""

from __future__ import annotations

import pytest

from benchmarks.penalty_rule import changed, tried, words
from fedmeta.algorithms import automatic_penalty
from fedmeta.errors import SettingError
from fedmeta.settings import build_settings


def test_constants_are_changed_for_a_trial_alone() -> None:
    before = automatic_penalty._SEARCH
    settings = build_settings(
        {
            "data": {"name": "digits", "nodes": 12},
            "training": {"rounds": 12, "evaluate_every": 0},
        }
    )
    seeds = range(100, 102)
    as_it_is = tried(settings, seeds, changed("as-it-is").constants)
    short_steps = tried(settings, seeds, changed("search=1e-6").constants)
    assert before == automatic_penalty._SEARCH
    assert all(share == pytest.approx(1, abs=0.01) for share in short_steps["loss_left"])
    assert short_steps["not_halved"] == 2
    assert max(as_it_is["loss_left"]) < 0.9


def test_what_cannot_be_changed_is_refused() -> None:
    with pytest.raises(SettingError, match="'lenght' is neither"):
        changed("lenght=3")
    with pytest.raises(SettingError, match="'search' gives no number"):
        changed("search")


def test_runs_that_diverge_are_counted() -> None:
    """And when all do, there is a row that says so."""
    settings = build_settings(
        {
            "data": {"name": "digits", "nodes": 12},
            "algorithms": {"admm-fedmeta": {"penalty": 1e-30}},
            "training": {"rounds": 3, "evaluate_every": 0},
        }
    )
    row = tried(settings, range(100, 102), {})
    assert row["not_halved"] == 2
    assert row["held_out"] is None
    about = {"change": "penalty=1e-30", "data": "digits", "partition": "any"}
    assert words({**about, **row}).endswith("all diverged")
