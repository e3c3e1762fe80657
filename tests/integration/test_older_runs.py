"""Runs that an older version has begun go on as they would have then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from cli.calling import succeed
from fedmeta.algorithms import ADMMFedMeta
from fedmeta.config.spec import RunSpec
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


def test_what_was_the_default_then_is_kept(tmp_path: Path) -> None:
    """An episode run as older versions wrote it, which knew no renaming and no kept classes."""
    line = "train --data digits --partition episodes --nodes 6 --model linear --rounds 4"
    then = "--set algorithms.admm-fedmeta.resplit=true --set augmentation.rename_labels=never"
    succeed(f"{line} --classes-per-node 2 {then} --out {tmp_path}/whole")
    file = tmp_path / "older/settings.json"
    shutil.copytree(tmp_path / "whole", file.parent)
    stored = json.loads(file.read_text())
    settings, table = stored["settings"], stored["origin"]["table"]
    assert settings["algorithm"]["resplit"] == "random"
    settings["algorithm"]["resplit"] = True
    del settings["augmentation"]["rename_labels"]
    del table["algorithms"], table["augmentation"], table["data"]["classes_per_node"]
    file.write_text(json.dumps(stored))
    shutil.rmtree(file.parent / "checkpoints")
    (file.parent / "summary.json").unlink()
    (file.parent / "manifest.json").unlink()  # older versions wrote none
    succeed(f"train --resume {file.parent}")
    whole, found = load_theta(tmp_path / "whole"), load_theta(file.parent)
    assert all(torch.equal(found[name], leaf) for name, leaf in whole.items())


def test_a_fixed_division_was_a_switch() -> None:
    for older, word in ((True, "random"), (False, "none")):
        table = {"algorithms": {"admm-fedmeta": {"resplit": older}}}
        algorithm = RunSpec.from_dict(table).algorithm
        assert isinstance(algorithm, ADMMFedMeta)
        assert algorithm.resplit == word
    assert ADMMFedMeta().resplit == "classes"
    paper = RunSpec.from_dict({"preset": "paper"}).algorithm
    assert isinstance(paper, ADMMFedMeta)
    assert paper.resplit == "none"
