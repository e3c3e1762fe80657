from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.results import Entry, load, merged, save

ENTRY = Entry("rounds", "CPU a", "cifar-10", 40, "float32", 10.0, {"plain loop": 25.0}, 2.0)


def test_same_figure_is_replaced_and_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    elsewhere = replace(ENTRY, machine="GPU b")
    save(file, [ENTRY, elsewhere])
    save(file, [replace(ENTRY, median_ms=5.0)])
    assert [(e.machine, e.median_ms) for e in load(file)] == [("CPU a", 5.0), ("GPU b", 10.0)]
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    "change",
    [{"name": "b"}, {"machine": "b"}, {"network": "b"}, {"nodes": 1}, {"dtype": "bf16"}],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_the_key_tells_figures_apart(change: dict[str, str]) -> None:
    assert len(merged([ENTRY], [replace(ENTRY, **change)])) == 2


def test_file_has_the_agreed_fields(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    save(file, [replace(ENTRY, median_ms=1.23456789)])
    assert json.loads(file.read_text()) == [
        {
            "name": "rounds",
            "machine": "CPU a",
            "network": "cifar-10",
            "nodes": 40,
            "dtype": "float32",
            "median_ms": 1.235,
            "peer_ms": {"plain loop": 25.0},
            "limit_ms": 2.0,
        }
    ]


def test_no_file_means_no_results(tmp_path: Path) -> None:
    assert load(tmp_path / "none.json") == []


def test_ratio_is_the_peers_time_over_ours() -> None:
    assert ENTRY.ratio("plain loop") == 2.5
