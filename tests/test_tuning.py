"""Searching hyper-parameters: points, judging, and never a look at targets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import nested
from fedmeta.core.errors import DivergedError, SettingError
from fedmeta.data import load
from fedmeta.studies.tune import HELD_OUT, Range, grid, random_points, tune
from fedmeta.training.callbacks import Callback

TABLE: dict[str, Any] = {
    "data": {"name": "sinusoid", "nodes": 8, "samples": [10, 10]},
    "model": {"name": "linear"},
    "training": {"rounds": 2, "evaluate_every": 0},
}


def quiet(_: str) -> Sequence[Callback]:
    return ()


def test_grid() -> None:
    points = grid({"a": [1, 2], "b": ["x"], "c": [True, False]})
    assert len(points) == 4
    assert points[0] == {"a": 1, "b": "x", "c": True}
    assert grid({}) == [{}]


def test_random_points_are_seeded_and_log_uniform() -> None:
    choices = {"a": Range(0.01, 100), "b": [1, 2, 3]}
    points = random_points(choices, 400, seed=1)
    assert points == random_points(choices, 400, seed=1)
    assert points != random_points(choices, 400, seed=2)
    logs = np.log10([point["a"] for point in points])
    assert logs.min() >= -2
    assert logs.max() <= 2
    assert abs(logs.mean()) < 0.2
    assert np.mean(logs < -1) == pytest.approx(0.25, abs=0.08)
    assert {point["b"] for point in points} == {1, 2, 3}


@pytest.mark.parametrize("bounds", [(0, 1), (2, 1), (-1, 1), (1, float("inf")), (float("nan"), 1)])
def test_ranges_that_make_no_sense(bounds: tuple[float, float]) -> None:
    with pytest.raises(SettingError, match="low < high"):
        Range(*bounds)


def test_nested() -> None:
    assert nested({"a.b.c": 1, "a.b.d": 2, "e": 3}) == {"a": {"b": {"c": 1, "d": 2}}, "e": 3}
    with pytest.raises(SettingError, match="has a value already"):
        nested({"a": 1, "a.b": 2})


def test_the_best_has_the_lowest_error_on_held_out_sources(tmp_path: Path) -> None:
    points = [{"penalty": value} for value in (0.01, 0.3, 1000.0)]
    result = tune(TABLE, points, [0, 1], quiet, tmp_path)
    means = [trial["mean"] for trial in result["trials"]]
    assert result["best"]["mean"] == min(mean for mean in means if mean is not None)
    assert len(set(means)) == 3
    settings = RunSpec.from_dict(TABLE)
    whole = load(settings.data_settings, settings.training.seed)  # one draw: targets stay targets
    for seed in (0, 1):
        judges = {node.name for node in whole.hold_out(HELD_OUT, seed).targets}
        sources = {node.name for node in whole.sources}
        assert judges < sources
        about = json.loads((tmp_path / f"trials/000-seed{seed}/federation.json").read_text())
        nodes = {node["name"]: node["role"] for node in about["nodes"]}
        assert set(nodes) == sources  # no real target is even there
        assert {name for name, role in nodes.items() if role == "target"} == judges


def test_a_point_with_one_diverged_run_is_out() -> None:
    result = tune(TABLE, [{"penalty": 1e-30}, {"penalty": 1.0}], [0], quiet)
    assert [trial["diverged"] for trial in result["trials"]] == [1, 0]
    assert result["trials"][0]["mean"] is None
    assert result["best"]["settings"] == {"penalty": 1.0}


def test_all_diverged() -> None:
    with pytest.raises(DivergedError, match="all 1 points diverged"):
        tune(TABLE, [{"penalty": 1e-30}], [0], quiet)


def test_precise_sets_are_not_looked_at(tmp_path: Path) -> None:
    data = {"name": "digits", "nodes": 10, "samples": [6, 8]}
    results = {}
    for precise in (0, 50):
        table = {**TABLE, "data": {**data, "precise": precise}}
        place = tmp_path / str(precise)
        results[precise] = tune(table, [{"penalty": 1.0}], [0], quiet, place)
        about = json.loads((place / "trials/000-seed0/federation.json").read_text())
        assert all(node["precise"] == 0 for node in about["nodes"])
        summary = json.loads((place / "trials/000-seed0/summary.json").read_text())
        assert summary["precise_metric"] == {}
        assert summary["settings"]["data"]["precise"] == 0
    assert results[0] == results[50]


def test_nothing_to_tune() -> None:
    with pytest.raises(SettingError, match="nothing to tune"):
        tune(TABLE, [], [0], quiet)


def test_all_points_are_checked_before_the_first_is_tried(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="-1"):
        tune(TABLE, [{"penalty": 1.0}, {"penalty": -1.0}], [0], quiet, tmp_path)
    assert not list(tmp_path.iterdir())
