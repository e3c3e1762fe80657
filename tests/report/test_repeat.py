"""The code on the page makes the run again, and the page gives away no sample."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import fedmeta as fm
from fedmeta.report import repeat, write_report
from fedmeta.report.reading import read_run
from report.conftest import settings


def test_code_makes_the_same_run(tmp_path: Path) -> None:
    data = fm.DataSettings("sinusoid", nodes=8, scaling="none")
    first = fm.train(
        data,
        fm.ModelSettings("mlp", hidden=(5,)),
        fm.ADMMFedMeta(penalty=2.0, inner=fm.Adaptation(step_size=0.02)),
        fm.TrainingSettings(rounds=3, seed=3, evaluate_every=1),
        participation=fm.Participation(fraction=0.5),
        folder=tmp_path / "run",
    )
    run = read_run(tmp_path / "run")
    code = repeat.code(run.settings).replace("fm.train(", "again = fm.train(")
    names: dict[str, Any] = {}
    exec(code, names)
    assert [r["meta_loss"] for r in names["again"].history] == [
        r["meta_loss"] for r in first.history
    ]


def test_what_code_cannot_hold_is_named() -> None:
    stored = settings()["settings"]
    stored["model"] = {"class": "mine.Net"}
    stored["algorithm"] = {"name": "mine\nalgorithm"}
    code = repeat.code(stored)
    assert "your own: toy" in code
    assert "your own: mine.Net" in code
    assert "your own: mine algorithm" in code
    compile(code, "page", "exec")


def test_an_algorithm_of_ones_own_is_not_taken_for_ours_of_its_name() -> None:
    stored = settings()["settings"]
    stored["algorithm"] = {"name": "fedprox", "proximity": 0.5}
    assert "fm.FedProx(proximity=0.5)" in repeat.code(stored, {"algorithm": "fedprox"})
    own = repeat.code(stored, {"algorithm": "mine.py:FedProx"})
    assert "your own: fedprox" in own
    assert "fm.FedProx" not in own


def test_page_holds_no_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(40, 3)) + 7_000_000
    nodes = [
        fm.Node(
            f"n{i}",
            "source" if i < 3 else "target",
            np.arange(5) + 10 * i,
            np.arange(5, 10) + 10 * i,
        )
        for i in range(4)
    ]
    federation = fm.Federation(
        inputs, rng.normal(size=(40, 1)) + 9_000_000, fm.Task("regression", 1), nodes
    )
    fm.train(
        federation,
        fm.ModelSettings("linear"),
        fm.FedAvg(step_size=1e-20),
        fm.TrainingSettings(rounds=1),
        folder=tmp_path / "run",
    )
    text = re.sub(r"\s|\u202f", "", write_report(tmp_path / "run").read_text(encoding="utf-8"))
    assert "7000" not in text
    assert "9000" not in text
