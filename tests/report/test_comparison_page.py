"""The page of a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedmeta.core.errors import RunFolderError
from fedmeta.report import write_report
from report.conftest import write_comparison
from report.test_run_page import Elements, heading


def read(folder: Path) -> str:
    return write_report(folder).read_text(encoding="utf-8")


def changed(folder: Path, row: int, **values: Any) -> Path:
    stored = json.loads((folder / "comparison.json").read_text())
    stored["rows"][row].update(values)
    (folder / "comparison.json").write_text(json.dumps(stored))
    return folder


def test_three_seeds(tmp_path: Path) -> None:
    text = read(write_comparison(tmp_path / "c", 3))
    assert heading(text) == (
        "Over three seeds, admm-fedmeta reaches 80.0 ± 2.0 % accuracy after one gradient step: "
        "ahead of fedavg."
    )
    assert "95\u00a0%" not in heading(text)
    assert "+7.0 to +13.0" in text
    assert sum(tag == "svg" for tag, _ in Elements(text).tags) == 6
    assert "http:" not in text
    assert "https:" not in text


def test_one_seed_claims_no_certainty(tmp_path: Path) -> None:
    text = read(write_comparison(tmp_path / "c", 1))
    assert heading(text).startswith("admm-fedmeta reaches 80.0 % accuracy")
    assert "differences may be chance" in text


def test_an_interval_that_holds_zero_is_no_lead(tmp_path: Path) -> None:
    paired = [{"against": "fedavg", "mean": 0.1, "ci95": 0.2}]
    text = read(write_comparison(tmp_path / "c", 3, paired=paired))
    assert "not clearly apart from fedavg" in heading(text)


def test_lower_is_better_for_errors(tmp_path: Path) -> None:
    text = read(write_comparison(tmp_path / "c", 3, metric="mse", equal="gradients"))
    assert "mean squared error of 0.800 ± 0.020 after one gradient step: behind" in heading(text)
    assert "gradient evaluations per device" in text


def test_diverged_runs_are_told(tmp_path: Path) -> None:
    folder = changed(write_comparison(tmp_path / "c", 3), 1, diverged=1, values=[0.7, None, 0.7])
    text = read(folder)
    assert "Diverged, and left out of the means: 1 run of fedavg." in text
    assert "1 of 3" in text


def test_diverged_runs_may_count_as_the_untrained_model(tmp_path: Path) -> None:
    text = read(changed(write_comparison(tmp_path / "c", 3), 1, diverged=1))
    assert "Diverged, and counted as the untrained model: 1 run of fedavg." in text


def test_equal_gradients_leave_out_who_computes_none(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "c", 1, equal="gradients")
    text = read(changed(folder, 1, gradient_evaluations=0))
    assert "fedavg computes none on the sources" in text


def test_a_row_that_diverged_altogether(tmp_path: Path) -> None:
    nothing = {"mean": None, "ci95": None, "before_mean": None, "values": [], "diverged": 3}
    folder = changed(write_comparison(tmp_path / "c", 3, paired=[]), 0, **nothing)
    assert heading(read(folder)).startswith("All runs of admm-fedmeta diverged")


def test_differing_steps_are_told(tmp_path: Path) -> None:
    text = read(changed(write_comparison(tmp_path / "c", 1), 1, adaptation_steps=100))
    assert "fedavg takes 100 steps" in text


def test_runs_that_are_gone_are_counted(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "c", 1)
    for file in sorted((folder / "runs").rglob("*.json*")):
        file.unlink()
    text = read(folder)
    assert "2 run folders" in text
    assert "Its federation" not in text


def test_hostile_labels_are_text(tmp_path: Path) -> None:
    hostile = "<script>$\\alpha"
    folder = changed(write_comparison(tmp_path / "c", 3), 0, label=hostile)
    assert "<script" not in read(folder)


def test_same_bytes(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "c", 3)
    assert read(folder) == read(folder)


@pytest.mark.parametrize("content", ["[]", "{", '{"format": 1}', '{"format": 1, "rows": []}'])
def test_damaged(tmp_path: Path, content: str) -> None:
    (tmp_path / "comparison.json").write_text(content)
    with pytest.raises(RunFolderError):
        write_report(tmp_path)
