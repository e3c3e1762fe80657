"""The pages of the documentation as programs: what in them is run, and how.

In order, per page, in one folder:

- a fence with title="FILE" is written to that file;
- ```python is executed, all blocks of a page in one scope;
- ```console: lines after "$ " are run by bash, and every other line must be printed by the command
  above it, whatever numbers it has ("…" stands for any lines).

A fence right after `<!-- not run: WHY -->` is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "edge/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(
    r"^(?P<why><!-- not run: [^\n]+ -->\n+)?"
    r"(?P<fence> *```)(?P<kind>\w+)(?P<rest>[^\n]*)\n(?P<body>.*?)^(?P=fence)$",
    flags=re.MULTILINE | re.DOTALL,
)
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the file it is to be written to, if any."""

    kind: str
    text: str
    file: str | None


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page that do something."""
    for found in _FENCE.finditer(text):
        title = _TITLE.search(found["rest"])
        active = title or found["kind"] in ("python", "console")
        if active and not found["why"]:
            yield Block(found["kind"], dedent(found["body"]), title[1] if title else None)


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    r"""The commands of a console block, each with the lines it is shown to print.

    A line that ends in a backslash goes on in the next one.
    """
    command, shown = "", []  # type: str, list[str]
    goes_on = False
    for line in text.splitlines():
        if goes_on or line.startswith("$ "):
            if not goes_on:
                if command:
                    yield command, shown
                command, shown = "", []
            command += line.removeprefix("$ ") + "\n"
            goes_on = line.endswith("\\")
        elif line.strip():
            shown.append(line)
    if command:
        yield command, shown


def run_page(text: str, folder: Path) -> None:
    """Do what a page says, in a folder; fails with the first thing that does not work."""
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
    scope: dict[str, Any] = {"__name__": "page"}
    for block in blocks(text):
        if block.file is not None:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            exec(compile(block.text, "a block of the page", "exec"), scope)
        else:
            for command, shown in commands(block.text):
                printed = run_command(command, folder)
                for line in missing(shown, printed):
                    raise AssertionError(f"$ {command}does not print {line!r} but\n{printed}")


def run_command(command: str, folder: Path) -> str:
    """Run a line as a reader would; returns what it printed."""
    here = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": f"{here}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"$ {command}{done.stdout}"
    return done.stdout


def missing(shown: list[str], printed: str) -> list[str]:
    """The shown lines that were not printed; numbers and the width of tables may differ."""
    seen = {_masked(line) for line in printed.splitlines()}
    return [line for line in shown if line.strip() != "…" and _masked(line) not in seen]


def _masked(line: str) -> str:
    bare = re.sub(r"[━─]+", "─", re.sub(r"[-+−]?\d[\d.,]*(e[-+]?\d+)?", "#", line))
    return " ".join(bare.split())
