"""What people see in notebooks, and the notebook of the examples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedmeta

NOTEBOOK = Path(__file__).parents[1] / "examples/first_steps.ipynb"


@pytest.fixture(scope="module")
def run() -> fedmeta.Run:
    settings = fedmeta.DataSettings("sinusoid", nodes=6)
    return fedmeta.train(settings, fedmeta.ModelSettings("linear"), fedmeta.FedAvg(), rounds=2)


def test_reprs_are_short_and_pages_say_what_matters(run: fedmeta.Run) -> None:
    names = [f"class <{number}>" for number in range(40)]
    labels = np.array([names[number % 40] for number in range(800)])
    federation = fedmeta.federate(np.zeros((800, 3)), labels, node=np.arange(800) // 40)
    for thing in (federation, run, run.meta_model):
        assert len(repr(thing)) < 200
        assert len(thing._repr_html_()) < 2000
    shown = federation._repr_html_()
    assert "class &lt;0&gt;" in shown
    assert "(40 in all)" in shown
    assert repr(run).endswith("after 1 step)")
    assert "<th>mse after 1 step</th>" in run._repr_html_()
    assert "1 step of" in run.meta_model._repr_html_()
    assert "<td>1 value</td>" in run.meta_model._repr_html_()
    assert repr(run.meta_model).endswith("1 → 1 output)")
    classes = fedmeta.train(federation, fedmeta.ModelSettings("linear"), rounds=1)
    assert "worst decile 0.0 %</td>" in classes._repr_html_()
    assert "% after 1 step)" in repr(classes)


def test_a_run_draws_itself(run: fedmeta.Run) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = run.plot(figure.subplots())
    assert axes.get_ylabel() == "mse of the target nodes"
    assert [line.get_label() for line in axes.lines][:2] == ["before adapting", "after 1 step"]
    bare = [{"round": 1, "local_loss": 2.0}, {"round": 2, "local_loss": 1.0}]
    other = fedmeta.Run(run.meta_model, run.summary, type(run.history)(bare), None, None)
    assert other.plot(figure.subplots()).get_ylabel() == "loss of the source nodes"


def test_the_notebook_runs(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert stored["nbformat"] == 4
    cells = ["".join(each["source"]) for each in stored["cells"] if each["cell_type"] == "code"]
    assert all(not each.get("outputs") for each in stored["cells"])  # nothing stale
    (tmp_path / "cells.py").write_text("\n".join(cells), encoding="utf-8")
    quiet = {**os.environ, "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, "cells.py"], cwd=tmp_path, env=quiet, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # silent: nobody watches
