"""Trials of other constants change the rule while they train, and nothing afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import held_out_nodes
from benchmarks.held_out_nodes import (
    DIVISIONS,
    changed,
    divided_anew,
    main,
    parsed,
    trials,
    tried,
    words,
)
from experiments.held_out import studies
from experiments.training import federation
from fedmeta.algorithms import step_search
from fedmeta.config.spec import RunSpec
from fedmeta.core.errors import SettingError

ROW: dict[str, Any] = {
    "change": "as-it-is",
    "data": "cifar10",
    "partition": "fixed-pairs",
    "seeds": 2,
    "accuracies": [80.0, 70.0],
    "held_out": 75.0,
    "ci95": 63.5,
    "loss_left": [0.1, 0.2],
    "not_halved": 0,
    "rejected": [0, 1],
}


def test_constants_are_changed_for_a_trial_alone() -> None:
    before = step_search._SEARCH
    settings = RunSpec.from_dict(
        {
            "data": {"name": "digits", "nodes": 12},
            "inner": {"step_size": 0.3},
            "training": {"rounds": 12, "evaluate_every": 0},
        }
    )
    seeds = range(100, 102)
    as_it_is = tried(settings, seeds, changed("as-it-is").constants)
    short_steps = tried(settings, seeds, changed("search=1e-6").constants)
    assert before == step_search._SEARCH
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
    settings = RunSpec.from_dict(
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


def test_gains_are_paired_with_the_first_change(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = iter([[80.0, 70.0, 60.0], [81.0, 70.5, 61.5], [90.0, 80.0]])

    def invented(*_: object) -> dict[str, Any]:
        return {
            "accuracies": next(reached),
            "held_out": 70.0,
            "ci95": 1.0,
            "loss_left": [0.1],
            "not_halved": 0,
            "rejected": [0],
        }

    monkeypatch.setattr(held_out_nodes, "tried", invented)
    changes = ["as-it-is", "augmentation.flip=true", "averaging=0.8"]
    asked = [part for each in changes for part in ("--change", each)]
    place = ["--data", "cifar10", "--partition", "fixed-pairs", "--seeds", "3"]
    first, flips, lost = trials(parsed([*asked, *place]))
    assert flips["gain"] == [1.0, pytest.approx(1.24, abs=0.01)]
    assert "70.00 ± 1.00 (+1.00 ± 1.24) %" in words(flips)
    assert "gain" not in first
    assert lost["gain"] is None  # a run of it diverged: there is nothing to pair


def test_rows_are_kept_as_a_study_of_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fedmeta reproduce render` reads what lies in results/held-out."""
    monkeypatch.setattr(held_out_nodes, "trials", lambda _: iter([ROW]))
    file = tmp_path / "held-out" / "steps.json"
    file.parent.mkdir()
    main(["--results", str(file)])
    assert studies(tmp_path)["steps"][0]["change"] == "as-it-is"
    assert json.loads(file.read_text())["precision"] == "full"


def test_held_out_nodes_are_divided_otherwise_every_time() -> None:
    """Their samples stay theirs, in sets of the same sizes, and each judges at some time."""
    settings = RunSpec.from_dict({"data": {"name": "digits", "nodes": 12}})
    drawn = federation(settings.data, 100).hold_out(0.2, 100)
    divisions = list(divided_anew(drawn, settings.data.support_share))
    assert len(divisions) == DIVISIONS
    for place, node in enumerate(drawn.targets):
        again = [each.nodes[place] for each in divisions]
        owned = sorted([*node.support, *node.query])
        assert all(sorted([*each.support, *each.query]) == owned for each in again)
        assert all(len(each.support) == len(node.support) for each in again)
        assert len({tuple(sorted(each.query)) for each in again}) > DIVISIONS // 2
        assert set(np.concatenate([each.query for each in again])) == set(owned)
