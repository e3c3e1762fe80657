"""What is printed: tables that keep their lines, and progress on a terminal or without one."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from cli.calling import succeed
from fedmeta.cli import console
from fedmeta.studies.comparison import reached


def test_tables_in_a_pipe_are_not_squeezed(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ["a rather long first column", *(f"number {i} of many" for i in range(8))]
    console.table("a title that is longer than nothing", columns, [["x", *"12345678"]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "a title that is longer than nothing"
    assert all(any(column in line for line in lines) for column in columns)


def test_metrics_for_people() -> None:
    assert reached("accuracy", 0.5, 0.1234) == "50.0 ± 12.3 %"
    assert reached("accuracy", 0.5, None) == "50.0 %"
    assert reached("mse", 0.5, 0.1234) == "0.5 ± 0.12"
    assert console.percent("mse", None) == "–"


def test_progress_bar_on_a_terminal() -> None:
    screen = io.StringIO()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"))
    with Progress(*columns, console=Console(file=screen, force_terminal=True)) as bars:
        bar = console.RichProgress(bars, "fedavg")
        bar.on_start(3, 10)
        assert bars.tasks[0].completed == 2
        bar.on_round({"round": 3, "meta_loss": 0.5})
        bar.on_round({"round": 4, "meta_loss": 0.25, "target": {"0": 0.1, "1": 0.75}})
        bar.on_end({})
        assert bars.tasks[0].completed == 4
        assert bars.tasks[0].total == 10
        assert bars.tasks[0].fields["status"] == "loss 0.25  adapted 0.75"


def test_plain_progress_ends_with_the_last_round(capsys: pytest.CaptureFixture[str]) -> None:
    progress = console.PlainProgress("fedavg")
    progress.on_start(1, 2)
    for number in (1, 2):
        progress.on_round({"round": number, "local_loss": 1.5})
    assert capsys.readouterr().err.splitlines()[-1] == "fedavg: round 2/2  loss 1.5"


def test_report_may_be_shown(playground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    succeed("report run --open")
    assert shown == [(playground / "run/report.html").resolve().as_uri()]
