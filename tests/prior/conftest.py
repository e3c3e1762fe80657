"""Two tasks of a few devices each, and a finished run on the first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import Table, merged
from fedmeta.data import load
from fedmeta.training.train import RunRequest, train_run

CLASSES = ("ant", "bee", "cat", "dog")


def task_table(name: str, **rest: Any) -> Table:
    """Settings of a small training on a task: "early" or "later"."""
    return merged(
        [
            {
                "data": {"name": f"{name}.npz", "nodes": 6, "samples": [12, 12]},
                "model": {"name": "mlp", "hidden": [5]},
                "training": {"rounds": 4, "evaluate_every": 0, "checkpoint_every": 2},
            },
            rest,
        ]
    )


def trained(folder: str | None = None, name: str = "later", **rest: Any) -> Any:
    """A run of a task, from settings as the command line has them."""
    settings = RunSpec.from_dict(task_table(name, **rest))
    federation = load(settings.data_settings, settings.training.seed)
    return train_run(RunRequest(settings, federation, folder=Path(folder) if folder else None))


@pytest.fixture(scope="session")
def _tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    rng = np.random.default_rng(0)
    y = np.arange(400) % 4
    x = (rng.normal(size=(400, 3)) + 2 * rng.normal(size=(4, 3))[y] + 3).astype(np.float32)
    for name, some in (("early", y < 2), ("later", y >= 2)):
        np.savez(folder / f"{name}.npz", x=x[some], y=y[some], class_names=CLASSES)
    np.savez(folder / "unlabelled.npz", x=x[:9])
    before = Path.cwd()
    os.chdir(folder)
    try:
        trained("early", "early", importance="path")
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def tasks(_tasks: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with early.npz, later.npz, unlabelled.npz and the run `early`, as the cwd."""
    monkeypatch.chdir(_tasks)
    return _tasks
