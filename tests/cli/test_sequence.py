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
        *("average", "incremental", "forgetting", "new", "forward", "cost", "diverged")
    }
    assert {"class-incremental", "task-incremental"} <= set(found["methods"]["none"]["matrix"])
    assert (out / "none/seed-1/2-high/summary.json").exists()
    page = (out / "report.html").read_text()
    assert "replay+euclidean" in page
    assert page.count("<svg") == 2
    assert "replay+euclidean, class-incremental" in page
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


def test_the_release_gate_has_a_line_and_a_place_on_the_page(tmp_path: Path) -> None:
    file, out = tmp_path / "two.toml", tmp_path / "run"
    file.write_text("limit = 100\n" + FILE.replace("nodes = 5", "nodes = 15"))
    text = succeed(f"sequence {file} --out {out}", "plain")
    line = "1 of 1 updates would be released"
    assert f"gate     auto: {line}" in text
    assert f"Release gate, auto: {line}" in (out / "report.html").read_text()
    found = json.loads((out / "sequence.json").read_text())["methods"]["auto"]
    assert found["gate"] == {"updates": 1, "blocked": 0, "line": line}
    assert found["repeats"][0]["gate"][0][0]["limit"] == 100
    (out / "sequence.json").unlink()
    succeed(f"sequence --resume {out}", "plain")
    assert json.loads((out / "sequence.json").read_text())["methods"]["auto"] == found
    assert "limit is -1" in call(f"sequence {write(tmp_path, -1)}").complaint


def write(folder: Path, limit: float) -> Path:
    file = folder / "other.toml"
    file.write_text(f"limit = {limit}\n{FILE}")
    return file
