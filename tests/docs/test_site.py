"""The documentation site: builds without a warning, complete, and asks nothing of the network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedmeta
from docs.pages import ROOT
from fedmeta.cli import commands

pytestmark = pytest.mark.slow
# What a browser fetches by itself; links that a person may follow are fine.
_FETCHED = re.compile(
    r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//|<link[^>]*href="(?:https?:)?//'
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_command_and_option_has_its_place(site: Path) -> None:
    page = (site / "reference/commands.html").read_text("utf-8")
    for command in commands():
        assert f"fedmeta {command.name}" in page
        for each in command.parameters:
            assert each.argument or f"{each.flag}" in page


def test_every_public_name_has_its_place(site: Path) -> None:
    page = (site / "reference/fedmeta.html").read_text("utf-8")
    for name in fedmeta.__all__:
        assert f'id="fedmeta.{name}"' in page, name


def test_every_page_is_reachable(site: Path) -> None:
    front = (site / "index.html").read_text("utf-8")
    for folder in ("how-to", "explanation"):
        for path in (ROOT / "docs" / folder).glob("*.md"):
            assert f"{folder}/{path.stem}.html" in front, path


def test_formulas_are_drawn_without_a_script(site: Path) -> None:
    page = (site / "explanation/method.html").read_text("utf-8")
    assert page.count("<math") > 10
    assert "arithmatex" not in page


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert not _FETCHED.search(path.read_text("utf-8")), path
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", path.read_text("utf-8")), path
