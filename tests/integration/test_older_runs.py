"""Runs that an older version has begun go on as they would have then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from cli.calling import succeed
from fedmeta.core.storage import read_tensors
from fedmeta.models.meta_model import load_theta

FOLDER = Path(__file__).parents[1] / "fixtures/older_runs"


def machine() -> dict[str, str]:
    """What the last bits of sums depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else "unknown",
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }


@pytest.mark.parametrize("name", ["default", "all-settings"])
def test_a_run_of_an_older_version_goes_on(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(FOLDER / name, run)
    assert not (run / "model.safetensors").exists()
    succeed(f"train --resume {run}")
    wanted, _ = read_tensors(run / "expected.safetensors", "parameters")
    found = load_theta(run)
    assert list(found) == list(wanted)
    same = machine() == json.loads((FOLDER / "machine.json").read_text())
    for leaf, expected in ((found[key], wanted[key]) for key in wanted):
        # On another processor sums have other last bits.
        assert torch.equal(leaf, expected) if same else torch.allclose(leaf, expected, atol=1e-4)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, 13))
