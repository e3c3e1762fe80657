"""In an environment without torch: fedmeta-edge installs, adapts, and is small."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge.conftest import Exported
from export.exporting import adapted, farthest, samples

ROOT = Path(__file__).parents[2]
MOST_MEMORY, MOST_INSTALLED = 150, 300  # MB


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment with fedmeta-edge in it."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    source = folder / "source"  # a copy: building leaves files behind
    shutil.copytree(ROOT / "edge", source)
    install = [folder / "bin/python", "-m", "pip", "install", "--quiet", "-c", "constraints.txt"]
    done = subprocess.run([*install, source], cwd=ROOT, capture_output=True, text=True)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip(f"there is no package index to install from: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.mark.slow
def test_it_adapts_without_torch(programs: Path, digits: Exported, tmp_path: Path) -> None:
    inputs, labels = samples(digits.model, 12)
    np.savez(tmp_path / "mine.npz", x=inputs, y=np.array(digits.model.task.class_names)[labels])
    found = subprocess.run([programs / "python", "-c", "import torch"], capture_output=True)
    assert found.returncode != 0
    line = ["adapt", digits.path, "--data", tmp_path / "mine.npz", "-o", tmp_path / "mine-w.npz"]
    done = subprocess.run([programs / "fedmeta-edge", *line], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ms per step" in done.stdout
    with np.load(tmp_path / "mine-w.npz") as arrays:
        weights = {name: arrays[name] for name in arrays.files if name != "about"}
    assert farthest(weights, adapted(digits.model, inputs, labels, 1)) <= 1e-5


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_import_and_one_step_take_little_memory(programs: Path, digits: Exported) -> None:
    line = [programs / "fedmeta-edge", "measure", digits.path]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^(\w+ ?\w+) +([\d.]+) MB", done.stdout, flags=re.MULTILINE))
    assert 10 < float(found["peak memory"]) < MOST_MEMORY
    assert 50 < float(found["installed"]) < MOST_INSTALLED
    assert "ms, median of" in done.stdout
