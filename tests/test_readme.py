"""What the README shows is what happens."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest

from docs.pages import run_command
from fedmeta.algorithms import PerFedAvg
from fedmeta.cli import commands
from fedmeta.config.spec import RunSpec
from fedmeta.core.objective import Adaptation

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = {command.name: command for command in commands()}


def blocks(language: str) -> list[str]:
    fences = re.finditer(r"^```(\w*)\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)
    return [fence[2] for fence in fences if fence[1] == language]


def test_python_block_runs_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    program, by_hand = blocks("python")
    scope: dict[str, object] = {}
    exec(program, scope)
    accuracy, names = capsys.readouterr().out.strip().splitlines()
    assert float(accuracy) > 0.8
    assert names.count("'") == 6
    exec(by_hand, scope)
    loss, _, _ = capsys.readouterr().out.partition(" ")
    assert float(loss) < 1.1
    assert len(by_hand.strip().splitlines()) == 5


def test_python_block_is_ten_lines() -> None:
    program, _ = blocks("python")
    statements = program.split("\n\n", 2)[2]  # after the import and the made-up data
    assert len([line for line in statements.splitlines() if line.strip()]) <= 10


LINES = [line.strip() for block in blocks("") for line in block.splitlines()]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("fedmeta ")])
def test_every_command_shown_exists_with_its_flags(line: str) -> None:
    _, name, *words = shlex.split(line, comments=True)
    flags = {flag for each in COMMANDS[name].parameters for flag in each.flags}
    assert {word for word in words if word.startswith("-")} <= flags


def write_tables(folder: Path) -> None:
    """What the README calls devices.csv and new_device.csv."""
    rng = np.random.default_rng(0)
    rows = [
        f"{rng.normal(number % 3):.2f},{rng.normal():.2f},{'abc'[number % 3]}"
        for number in range(240)
    ]
    owned = [f"{row},user-{number // 12}" for number, row in enumerate(rows)]
    (folder / "devices.csv").write_text("\n".join(["x,y,activity,user", *owned]))
    (folder / "new_device.csv").write_text("\n".join(["x,y,activity", *rows[:20]]))


@pytest.mark.slow
def test_the_commands_shown_work_one_after_the_other(tmp_path: Path) -> None:
    """All on data that come along but make's and `reproduce`, each with two rounds at most."""
    pytest.importorskip("sklearn")
    write_tables(tmp_path)
    shown = [line for line in LINES if line.startswith(("fedmeta ", "torchrun "))]
    elsewhere = ("fedmeta reproduce", "fashion-mnist")
    tried = [line for line in shown if not any(word in line for word in elsewhere)]
    assert len(tried) >= 5
    for line in tried:
        command, mark, comment = line.partition("#")
        trains = re.search(r"\b(train|compare|tune)\b", command)
        run_command(f"{command} {'--rounds 2' if trains else ''} {mark}{comment}", tmp_path)
    assert (tmp_path / "new_device.safetensors").exists()


def test_files_and_targets_named_in_the_readme_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert target.startswith("http") or (ROOT / target).exists(), target
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make ([a-z-]+)", TEXT):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_settings_file_shown_is_valid() -> None:
    (text,) = blocks("toml")
    settings = RunSpec.from_dict(tomllib.loads(text))
    assert settings.algorithm == PerFedAvg(Adaptation(0.1), 0.3, 5)
    assert (settings.data.name, settings.data.node) == ("devices.csv", "user")


def test_nothing_is_left_to_fill_in() -> None:
    assert "@@" not in TEXT
