"""Studies on held-out nodes: changes are paired seed by seed with the first one, place by place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedmeta.errors import RunFolderError
from fedmeta.experiments.held_out import compared, studies
from fedmeta.experiments.tables import held_out

FIXED = {"partition": "fixed-pairs", "data": "cifar10"}
RANDOM = {"partition": "random-pairs", "data": "cifar100"}


def test_gains_are_paired_and_their_mean_is_over_places() -> None:
    found = compared(
        [
            {"change": "1.0", **FIXED, "accuracies": [80.0, 90.0]},
            {"change": "1.0", **RANDOM, "accuracies": [50.0, 60.0]},
            {"change": "0.3", **FIXED, "accuracies": [81.0, 91.0]},
            {"change": "0.3", **RANDOM, "accuracies": [53.0, 63.0]},
        ]
    )
    first, other = found
    assert [first["change"], other["change"]] == ["1.0", "0.3"]
    assert (first["gain"], other["gain"]) == (None, 2.0)
    assert other["places"]["fixed-pairs/cifar10"] == {
        "mean": 86.0,
        "ci95": 63.53,
        "n": 2,
        "gain": 1.0,
        "gain_ci95": 0.0,
    }


def test_what_diverged_or_was_not_tried_has_no_gain() -> None:
    rows = [
        {"change": "1.0", **FIXED, "accuracies": [80.0, 90.0]},
        {"change": "9.0", **FIXED, "accuracies": [85.0]},
        {"change": "99", **FIXED, "accuracies": []},
        {"change": "0.3", **RANDOM, "accuracies": [53.0, 63.0]},
    ]
    found = compared(rows)
    assert [each["gain"] for each in found] == [None] * 4
    shown = held_out({"held-out": {"steps": found}})
    assert "| fixed-pairs | CIFAR-10 | 85.00 | 85.00 | – | – |" in shown
    assert "| random-pairs | CIFAR-100 | – | – | – | 58.00 |" in shown


def test_every_file_is_a_study(tmp_path: Path) -> None:
    assert studies(tmp_path) == {}
    assert held_out({"held-out": {}}) == "*not run yet*"
    folder = tmp_path / "held-out"
    folder.mkdir()
    row = {"change": "1.0", **FIXED, "accuracies": [80.0]}
    (folder / "steps.json").write_text(json.dumps({"rows": [row]}))
    assert studies(tmp_path)["steps"][0]["places"]["fixed-pairs/cifar10"]["mean"] == 80.0
    (folder / "torn.json").write_text("[")
    with pytest.raises(RunFolderError, match=r"torn\.json"):
        studies(tmp_path)
