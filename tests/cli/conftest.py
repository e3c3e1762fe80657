"""A playground of small files and finished runs, fresh for every test."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from cli.calling import succeed

OWN_CODE = """
from dataclasses import dataclass

import torch
from torch import nn

from fedmeta import FedAvg

def good(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], outputs))

def number(shape, outputs):
    return 3

def raises(shape, outputs):
    raise KeyError("no such layer\\nand a second line")

def no_arguments():
    return nn.Linear(1, 1)

def batch_norm(shape, outputs):
    return nn.Sequential(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], outputs))

def wide(shape, outputs):
    return nn.Linear(shape[0], outputs + 1)

def narrow(shape, outputs):
    return nn.Linear(shape[0], outputs - 1)

def other_inputs(shape, outputs):
    return nn.Linear(shape[0] + 1, outputs)

def loss(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels, reduction="none")

def mean_loss(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels)

def broken_loss(outputs, labels):
    raise ValueError("oops")

thing = 5

@dataclass(frozen=True)
class Own(FedAvg):
    pass

class NotAnAlgorithm:
    pass
"""


def write_tables(folder: Path) -> None:
    """A table of classes (6 devices of 12 samples) and one of values, a device's own samples."""
    rng = np.random.default_rng(0)
    rows = [
        f"{rng.normal() + i % 3:.4f},{rng.normal() - i % 3:.4f},{'abc'[i % 3]},device-{i // 12}"
        for i in range(72)
    ]
    (folder / "data.csv").write_text("\n".join(["width,height,label,device", *rows]) + "\n")
    own = [row.rsplit(",", 1)[0] for row in rows[:12]]
    (folder / "mine.csv").write_text("\n".join(["width,height,label", *own]) + "\n")
    inputs = rng.normal(size=60)
    waves = [f"{x:.4f},{(i // 10) * x:.4f},device-{i // 10}" for i, x in enumerate(inputs)]
    (folder / "waves.csv").write_text("\n".join(["x,y,device", *waves]) + "\n")


TRAIN = "train --data data.csv --node device --model linear --rounds 3"


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every playground is a copy of: data, own code, and two finished runs."""
    folder = tmp_path_factory.mktemp("template")
    write_tables(folder)
    (folder / "own.py").write_text(OWN_CODE)
    before = Path.cwd()
    os.chdir(folder)
    try:
        succeed(f"{TRAIN} --set training.checkpoint_every=1 --out run")
        succeed("train --data data.csv --node device --model mlp --rounds 1 --out other")
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def playground(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh copy of the template, and the working folder."""
    folder = tmp_path / "playground"
    shutil.copytree(template, folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("FEDMETA_DATA", raising=False)
    return folder
