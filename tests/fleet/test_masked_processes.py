"""Secure aggregation between real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedmeta.config.spec import RunSpec
from fedmeta.core.run_folder import RunFolder
from fedmeta.data import load
from fedmeta.models.meta_model import load_theta
from fedmeta.training.train import RunRequest, train_run
from fleet.processes import awaited, fleet

pytest.importorskip("flwr")
pytestmark = [pytest.mark.fleet, pytest.mark.slow]


def test_the_platform_opens_the_sum_of_real_edges(tmp_path: Path) -> None:
    table = {
        "data": {"name": "digits", "nodes": 10},
        "model": {"name": "linear"},
        "algorithms": {"admm-fedmeta": {"penalty": 1.0}},
        "training": {"rounds": 2},
        "execution": {"threads": 1},
    }
    with fleet(tmp_path) as here:
        command = here.start(
            "fleet",
            *("--data", "digits", "--nodes", 10, "--rounds", 2, "--out", "run", "--threads", 1),
            *("--set", 'model.name="linear"', "--penalty", 1.0),
            *("--edges", 3, "--secure-aggregation"),
        )
        assert awaited(lambda: command.poll() is not None)
        assert command.returncode == 0
    run = RunFolder.open(tmp_path / "run")
    assert [record["edges"] for record in run.history()] == [3, 3]
    settings = RunSpec.from_dict(table)
    alone = train_run(RunRequest(settings, load(settings.data_settings, 0))).meta_model.theta
    for name, leaf in load_theta(run.path).items():
        assert torch.allclose(leaf, alone[name], atol=1e-5)
    for log in tmp_path.rglob("*.log"):
        text = log.read_text(errors="replace")
        assert "PRIVATE" not in text
        assert "seeds" not in text
        assert '"shares"' not in text
