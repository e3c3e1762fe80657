"""Studies on held-out nodes: changes are paired seed by seed with the first one, place by place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.held_out import compared, studies, table
from fedmeta.core.errors import RunFolderError

FIXED = {"partition": "fixed-pairs", "data": "cifar10"}
RANDOM = {"partition": "random-pairs", "data": "cifar100"}


def row(change: str, place: dict[str, str], *accuracies: float) -> dict[str, Any]:
    """Of two seeds."""
    return {"change": change, **place, "seeds": 2, "accuracies": list(accuracies)}


def test_gains_are_paired_and_their_mean_is_over_places() -> None:
    first, other = compared(
        [
            row("1.0", FIXED, 80.0, 90.0),
            row("1.0", RANDOM, 50.0, 60.0),
            row("0.3", FIXED, 81.0, 91.0),
            row("0.3", RANDOM, 53.0, 63.2),
        ]
    )
    assert [first["change"], other["change"]] == ["1.0", "0.3"]
    assert first["gain"] is None
    assert other["places"]["fixed-pairs/cifar10"] == {
        "mean": 86.0,
        "ci95": 63.53,
        "n": 2,
        "gain": {"mean": 1.0, "ci95": 0.0},
    }
    assert other["places"]["random-pairs/cifar100"]["gain"] == {"mean": 3.1, "ci95": 1.27}
    assert other["gain"] == {"mean": 2.05, "ci95": 0.64}  # √(0² + 1.27²) / 2


def test_runs_that_diverged_are_paired_with_none() -> None:
    """Not even where both lost one, since it need not be that of the same seed."""
    found = compared(
        [
            row("1.0", FIXED, 80.0, 90.0),
            row("1.0", RANDOM, 50.0),
            row("0.3", FIXED, 81.0, 91.0),
            row("0.3", RANDOM, 63.0),
            row("0.1", FIXED, 85.0),
            row("99", FIXED),
        ]
    )
    assert [each["gain"] for each in found] == [None] * 4  # none gained everywhere
    shown = table({"held-out": {"steps": found}})
    assert "| fixed-pairs | CIFAR-10 | 85.00 | 86.00 (+1.00 ± 0.00) | 85.00 | – |" in shown
    assert "| random-pairs | CIFAR-100 | 50.00 | 63.00 | – | – |" in shown
    assert "| mean gain |  | – | – | – | – |" in shown


def test_every_file_is_a_study(tmp_path: Path) -> None:
    assert studies(tmp_path) == {}
    assert table({"held-out": {}}) == "*not run yet*"
    folder = tmp_path / "held-out"
    folder.mkdir()
    (folder / "steps.json").write_text(json.dumps({"rows": [row("1.0", FIXED, 80.0, 81.0)]}))
    assert studies(tmp_path)["steps"][0]["places"]["fixed-pairs/cifar10"]["mean"] == 80.5
    for text, problem in (
        ("[", "damaged"),
        ("{}", "has no rows"),
        ('{"rows": [{"change": "1.0", "accuracies": [80]}]}', "without data, partition, seeds"),
    ):
        (folder / "torn.json").write_text(text)
        with pytest.raises(RunFolderError, match=problem):
            studies(tmp_path)
