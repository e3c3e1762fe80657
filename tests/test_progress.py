"""A bar where a person watches, and nowhere else."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fedmeta
from fedmeta.training import progress

SMALL = fedmeta.DataSettings("sinusoid", nodes=4)


def run(**given: Any) -> fedmeta.Run:
    return fedmeta.train(
        SMALL, fedmeta.ModelSettings("linear"), fedmeta.FedAvg(), rounds=2, **given
    )


class Terminal:
    """Standard error as a person sees it."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True


def test_silent_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    run()
    assert capsys.readouterr() == ("", "")
    run(progress=True)
    assert "fedavg" in capsys.readouterr().err


def test_a_terminal_has_a_bar_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    run()
    assert "2/2" in screen.text
    assert screen.text.endswith("\n")
    screen.text = ""
    run(progress=False)
    monkeypatch.setenv(progress.SETTING, "off")
    run()
    assert screen.text == ""


def test_a_notebook_has_one_element_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class ZMQInteractiveShell: ...

    def display(text: str, display_id: bool) -> Any:
        shown.append(text)
        return SimpleNamespace(update=shown.append)

    python, drawing = ModuleType("IPython"), ModuleType("IPython.display")
    python.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    drawing.display, drawing.HTML = display, str  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", drawing)
    run()
    assert "value=0 max=2" in shown[0]
    assert "value=2 max=2" in shown[-1]
