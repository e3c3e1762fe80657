"""Learned step sizes on the command line: train, adapt, evaluate, compare, report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.calling import SHELLS, call, succeed
from cli.conftest import TRAIN
from fedmeta.models.meta_model import MetaModel


def read(path: str) -> Any:
    return json.loads(Path(path).read_text())


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("algorithm", ["admm-fedmeta", "fedavg"])
def test_from_training_to_a_device(shell: str, algorithm: str, playground: Path) -> None:
    succeed(f"{TRAIN} --algorithm {algorithm} --set inner.learned=parameter --out learned", shell)
    stored = read("learned/settings.json")["settings"]["algorithm"]["inner"]
    assert (stored["learned"], stored["learning_scale"]) == ("parameter", 1.0)
    assert "factors" not in stored
    factors = MetaModel.load("learned").adaptation.factors
    assert factors is not None
    assert any(not torch.equal(leaf, torch.ones_like(leaf)) for leaf in factors.values())
    succeed("evaluate learned --out again.json", shell)
    assert read("again.json")["target_metric"] == read("learned/summary.json")["target_metric"]
    assert "after 2 steps" in succeed("adapt learned --data mine.csv --steps 2", shell)
    succeed("adapt learned --data mine.csv --support-share 1 --out mine.safetensors", shell)
    found = MetaModel.load("mine.safetensors").adaptation.factors
    assert found is not None
    assert all(torch.equal(found[name], leaf) for name, leaf in factors.items())
    succeed("report learned", shell)
    assert "learned=&#39;parameter&#39;" in Path("learned/report.html").read_text()


def test_compared_and_repeated(playground: Path) -> None:
    line = "--data data.csv --node device --model linear --rounds 2 --seeds 2"
    succeed(f"compare per-fedavg fedavg {line} --set inner.learned=tensor --out both")
    succeed(f"train {line} --set inner.learned=tensor --set execution.path=batched --out twice")
    models = [path.parent for path in Path("twice").rglob("model.safetensors")]
    assert len(models) == 2
    assert all(MetaModel.load(each).adaptation.factors for each in models)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("inner.learned=layer", "inner.learned is 'layer'"),
        ("inner.learning_scale=0", "learning_scale is 0.0"),
        ("inner.learning_scale=-2.0", "learning_scale is -2.0"),
        ("inner.factors=1", "has no setting 'factors'"),
        ("algorithms.admm-fedmeta.step_rate=1", "has no setting 'step_rate'"),
    ],
)
def test_nonsense_is_refused(setting: str, complaint: str, playground: Path) -> None:
    outcome = call(f"{TRAIN} --set {setting} --out bad")
    assert outcome.code == 2
    assert complaint in outcome.complaint
    assert not Path("bad").exists()


def test_compare_says_whose_steps_nobody_tuned_and_what_to_do(tmp_path: Path) -> None:
    common = ("compare", "fedavg", "admm-fedmeta", "--data", "sinusoid", "--nodes", "6")
    some = (*common, "--rounds", "2", "--seeds", "1", "--out")
    told = succeed([*some, str(tmp_path / "own")])
    assert "note: fedavg has a default step size that nobody tuned" in told
    assert "add --steps automatic" in told
    assert "fedmeta tune --algorithm fedavg --grid step_size=" in told
    assert "none is called the best" in told
    assert "±" not in told
    fair = succeed([*some, str(tmp_path / "same"), "--steps", "automatic"])
    assert "nobody tuned" not in fair
    page = (tmp_path / "own/report.html").read_text(encoding="utf-8")
    assert "nobody is called ahead" in page
    assert "that nobody tuned for these data" in page


def test_tune_crowns_nothing_by_fewer_than_three_seeds() -> None:
    some = ("tune", "--data", "sinusoid", "--nodes", "8", "--rounds", "1", "--algorithm", "fedavg")
    told = succeed([*some, "--grid", "step_size=0.1,0.2", "--seeds", "2"])
    assert "best: --" not in told
    assert "→" not in told
    assert "±" not in told
    assert "2 seeds cannot tell which is best" in told


def test_a_comparison_goes_on_with_the_steps_it_began_with(playground: Path) -> None:
    line = "--data data.csv --node device --model linear --rounds 2 --seeds 2"
    succeed(f"compare admm-fedmeta fedavg {line} --steps automatic --out same")
    rows = [row["steps"] for row in read("same/comparison.json")["rows"]]
    Path("same/comparison.json").unlink()
    assert "add --steps automatic" not in succeed("compare --resume same")
    assert [row["steps"] for row in read("same/comparison.json")["rows"]] == rows
    succeed("compare --resume same --steps automatic")
    refused = call("compare --resume same --steps own")
    assert "steps was 'automatic' and is now 'own'" in refused.complaint


def test_c_code_is_not_signed(playground: Path) -> None:
    succeed(f"{TRAIN} --out mine")
    refused = call("export mine --format c --sign key.pem --out code")
    assert "--sign goes with ONNX files" in refused.complaint
    assert not Path("code").exists()
