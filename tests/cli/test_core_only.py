"""With nothing but torch, numpy and safetensors, every command but `report` works."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.calling import Outcome, spawn

BARE = """
import importlib.machinery
MISSING = {"typer", "click", "rich", "matplotlib", "jinja2", "sklearn", "pyarrow", "PIL"}
find = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = staticmethod(
    lambda name, path=None, target=None: (
        None if name.split(".")[0] in MISSING else find(name, path, target)
    )
)
"""
WAVES = "--data sinusoid --nodes 6 --rounds 2 --model linear"


def bare(command: str, line: str, folder: Path) -> Outcome:
    return spawn(line.split(), folder, f"fedmeta.cli.{command}", BARE)


@pytest.mark.slow
def test_every_command(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "own.csv").write_text("x,label\n1,2\n2,4\n3,6\n")
    for command, line, words in [
        ("data", "--data sinusoid --nodes 6", "6 nodes: 5 sources, 1 targets"),
        ("train", f"{WAVES} --out run", "report   not written: matplotlib"),
        ("train", "--resume run --rounds 3", "finished after 3 rounds"),
        ("evaluate", "run", "mse of 1 target nodes"),
        ("adapt", "run --data own.csv --out own.safetensors", "after 1 step"),
        ("compare", f"fedavg reptile {WAVES} --seeds 1 --out both", "first minus this"),
        ("tune", f"{WAVES} --grid penalty=0.3,1 --seeds 1", "1 seed cannot tell"),
    ]:
        outcome = bare(command, line, folder)
        assert outcome.code == 0, outcome
        assert words in outcome.out
    assert (folder / "own.safetensors").exists()
    assert (folder / "both/comparison.json").exists()
    for command, line, extra in [
        ("report", "run", "fedmeta[report]"),
        ("train", "--data digits --rounds 1", "fedmeta[digits]"),
        ("train", "--data own.parquet --rounds 1", "fedmeta[parquet]"),
    ]:
        (folder / "own.parquet").touch()
        outcome = bare(command, line, folder)
        assert outcome.code == 2
        assert f"pip install '{extra}'" in outcome.complaint
    # The program itself falls back to argparse.
    outcome = spawn(["train", "--rounds", "x"], folder, prelude=BARE)
    assert outcome.code == 2
    assert "argument --rounds/-r: invalid int value: 'x'" in outcome.complaint


def test_the_core_imports_without_them(tmp_path: Path) -> None:
    outcome = spawn(["--version"], tmp_path, "fedmeta.cli.train", BARE)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("fedmeta ")
