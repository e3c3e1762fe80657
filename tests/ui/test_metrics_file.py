from __future__ import annotations

from pathlib import Path

import pytest

from fedmeta.core.errors import RunFolderError
from fedmeta.ui.metrics_file import latest, new_rounds


def line(number: int) -> str:
    return f'{{"round": {number}, "meta_loss": 0.5}}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_before_the_first_round(file: Path) -> None:
    assert new_rounds(file, 0).records == []
    assert latest(file) is None


def test_only_what_is_new_and_complete(file: Path) -> None:
    file.write_text(line(1) + line(2) + line(3)[:10])
    first = new_rounds(file, 0)
    assert [record["round"] for record in first.records] == [1, 2]
    file.write_text(line(1) + line(2) + line(3))
    second = new_rounds(file, first.offset)
    assert [record["round"] for record in second.records] == [3]
    assert not second.restarted
    assert new_rounds(file, second.offset).records == []


def test_a_run_that_was_rewound_is_told_from_its_start(file: Path) -> None:
    file.write_text("".join(map(line, range(1, 9))))
    offset = new_rounds(file, 0).offset
    file.write_text(line(1) + line(2))
    again = new_rounds(file, offset)
    assert again.restarted
    assert [record["round"] for record in again.records] == [1, 2]


def test_a_place_within_a_line_is_a_restart(file: Path) -> None:
    file.write_text(line(1) + line(2))
    assert new_rounds(file, 5).restarted


def test_the_latest_of_many(file: Path) -> None:
    file.write_text("".join(map(line, range(1, 5001))) + '{"rou')
    assert latest(file) == {"round": 5000, "meta_loss": 0.5}


@pytest.mark.parametrize("damage", ["{}", "3", "not json", '{"round": null}'])
def test_damage_is_told(file: Path, damage: str) -> None:
    file.write_text(line(1) + damage + "\n")
    for look in (lambda: new_rounds(file, 0), lambda: latest(file)):
        with pytest.raises(RunFolderError, match="damaged line"):
            look()
