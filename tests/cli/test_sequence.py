from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.calling import call, succeed

pytest.importorskip("sklearn")

FILE = """
title = "Two tasks"
replay = 4

[settings]
data = { name = "digits", nodes = 5, samples = [8, 8] }
training = { rounds = 2, evaluate_every = 0 }
model.hidden = [6]
execution.threads = 1

[[tasks]]
name = "low"
classes = [0, 1]

[[tasks]]
name = "high"
classes = [2, 3]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(FILE)
    return path


def test_methods_side_by_side(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    text = succeed(f"sequence {file} --method none --method replay+euclidean --seeds 2 --out {out}")
    assert "Two tasks: 2 tasks, none, replay+euclidean, seeds 0, 1" in text
    assert "forgetting" in text
    found = json.loads((out / "sequence.json").read_text())
    assert list(found["methods"]) == ["none", "replay+euclidean"]
    assert found["methods"]["none"]["strength"] is None
    assert set(found["methods"]["none"]["measures"]["accuracy"]) == {
        *("average", "forgetting", "new", "forward", "cost", "diverged")
    }
    assert (out / "none/seed-1/2-high/summary.json").exists()
    page = (out / "report.html").read_text()
    assert "replay+euclidean" in page
    assert page.count("<svg") == 2
    again = call(f"sequence {file} --out {out}")
    assert "is not empty" in again.complaint


def test_resuming_needs_the_folder_alone(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    succeed(f"sequence {file} --method fisher --strength 3 --out {out}", "plain")
    first = (out / "sequence.json").read_text()
    for late in ("sequence.json", "fisher/seed-0/2-high/summary.json"):
        (out / late).unlink()
    text = succeed(f"sequence --resume {out}", "plain")
    assert (out / "sequence.json").read_text() == first
    assert json.loads(first)["methods"]["fisher"]["strength"] == 3.0
    assert "fisher: accuracy on the targets of each task" in text
    assert "goes on as it was begun" in call(f"sequence --resume {out} --rounds 9").complaint


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sequence", "there is no sequence"),
        ("sequence digit", "there is no sequence 'digit': did you mean 'digits'"),
        ("sequence {file} --method ewc", "method 'ewc' is unknown"),
        ("sequence {file} --method euclidean --strength -1", "strength.euclidean λ is -1.0"),
        ("sequence {file} --method replay --strength 1", "method 'replay' has no prior"),
        ("sequence {file} --method none --method fisher --strength 1", "for one method alone"),
        ("sequence {file} --seeds 0", "seeds is 0"),
        ("sequence {file} --set data.nodez=3", "data has no setting 'nodez'"),
        ("sequence --resume {folder}", "holds no sequence"),
    ],
)
def test_bad_input(line: str, words: str, file: Path, tmp_path: Path) -> None:
    outcome = call(line.format(file=file, folder=tmp_path))
    assert outcome.code == 2
    assert words in outcome.complaint
    assert not (tmp_path / "runs").exists()
