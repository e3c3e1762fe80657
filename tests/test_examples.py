"""The examples do what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedmeta
from cli.calling import succeed
from fedmeta.algorithms import FedAvg, FedProx
from fedmeta.config.spec import RunSpec, layered
from fedmeta.config.toml_files import read_toml
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.user_code import load_object

EXAMPLES = Path(__file__).parent.parent / "examples"
PROX = f"{EXAMPLES}/new_algorithm.py:FedProx"


def trained(algorithm: Any, rounds: int = 3) -> fedmeta.Run:
    federation = fedmeta.load(fedmeta.DataSettings("sinusoid", nodes=6), seed=0)
    training = fedmeta.TrainingSettings(rounds=rounds)
    return fedmeta.train(federation, fedmeta.ModelSettings("mlp"), algorithm, training)


def test_fedprox_without_pull_is_fedavg() -> None:
    prox = load_object(PROX, "algorithm")
    plain = trained(FedAvg(step_size=0.1, local_steps=5)).meta_model.theta
    free = trained(prox(pull=1e-30)).meta_model.theta
    pulled = trained(prox(pull=1.0)).meta_model.theta
    for name, leaf in plain.items():
        assert leaf.allclose(free[name], rtol=1e-5, atol=1e-6)
    assert any(not leaf.allclose(pulled[name], rtol=1e-3) for name, leaf in plain.items())


def test_fedprox_is_the_one_that_fedmeta_has() -> None:
    prox = load_object(PROX, "algorithm")
    mine, ours = (
        trained(each).meta_model.theta for each in (prox(pull=1.0), FedProx(proximity=1.0))
    )
    assert all(leaf.allclose(ours[name], rtol=1e-5, atol=1e-6) for name, leaf in mine.items())


def test_fedprox_stays_closer_the_harder_it_is_pulled() -> None:
    prox = load_object(PROX, "algorithm")
    start = trained(prox(), rounds=0).meta_model.theta

    def moved(pull: float) -> float:
        theta = trained(prox(step_size=0.001, pull=pull), rounds=1).meta_model.theta
        return sum(float((theta[n] - leaf).square().sum()) for n, leaf in start.items())

    assert moved(200.0) < moved(50.0) < moved(0.01)


def test_fedprox_on_the_command_line(tmp_path: Path) -> None:
    data = "--data sinusoid --nodes 6 --rounds 2 --model linear"
    succeed(f"train {data} --algorithm {PROX} --local-steps 2 --out {tmp_path}/run")
    settings = RunFolder(tmp_path / "run").settings()["settings"]
    assert (settings["algorithm"]["name"], settings["algorithm"]["local_steps"]) == (
        "own-fedprox",
        2,
    )
    succeed(f"compare {PROX}:pull=0.5 {PROX} fedavg {data} --seeds 1 --out {tmp_path}/both")
    rows = json.loads((tmp_path / "both/comparison.json").read_text())["rows"]
    assert [row["algorithm"] for row in rows] == ["own-fedprox", "own-fedprox", "fedavg"]
    assert rows[0]["values"] != rows[1]["values"]


def test_fedprox_tuned(tmp_path: Path) -> None:
    data = "--data sinusoid --nodes 6 --rounds 1 --model linear --seeds 1"
    succeed(f"tune {data} --algorithm {PROX} --grid pull=0.1,0.5 --out {tmp_path}/search")
    found = json.loads((tmp_path / "search/tuning.json").read_text())
    assert [trial["settings"]["pull"] for trial in found["trials"]] == [0.1, 0.5]


def test_a_prior_of_ones_own() -> None:
    """Its gradient is that of its value, and training is held by it."""
    huber = load_object(f"{EXAMPLES}/new_prior.py:Huber", "prior")
    theta_p = {"a": torch.tensor([0.0, 1.0, -2.0])}
    theta = {"a": torch.tensor([0.005, 1.5, -2.0]), "b": torch.ones(1)}
    prior = huber(2.0, theta_p)
    found = torch.func.grad(prior.value)(theta)
    assert all(torch.allclose(found[name], leaf) for name, leaf in prior.gradient(theta).items())
    assert float(prior.value(theta)) == pytest.approx(2 * (0.005**2 / 2 + 0.01 * (0.5 - 0.005)))
    with pytest.raises(fedmeta.FedmetaError, match="width"):
        huber(2.0, theta_p, width=0.0)
    free = trained(fedmeta.ADMMFedMeta(penalty=30.0), rounds=8)
    start = trained(fedmeta.ADMMFedMeta(penalty=30.0), rounds=0).meta_model.theta

    def moved(run: fedmeta.Run) -> float:
        theta = run.meta_model.theta
        return sum(float((theta[n] - leaf).square().sum()) for n, leaf in start.items())

    held = trained(fedmeta.ADMMFedMeta(penalty=30.0, prior=huber(5.0, start, 10.0)), rounds=8)
    assert moved(held) < moved(free)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "line", "times"),
    [("new_prior.py", "moved by", 2), ("new_algorithm.py", "adaptation steps", 3)],
)
def test_the_files_run_as_they_are(file: str, line: str, times: int) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / file)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(line) == times


@pytest.mark.parametrize(("file", "data"), [("demo.toml", "sinusoid"), ("digits.toml", "digits")])
def test_the_demos_are_settings_files(file: str, data: str) -> None:
    settings = RunSpec.from_dict(layered(read_toml(EXAMPLES / file), {}))
    assert settings.data.name == data


def test_the_demo_makes_the_case_and_draws_it(tmp_path: Path) -> None:
    """New devices gain from a step only where the model was trained for it."""
    line = f"compare admm-fedmeta fedavg --config {EXAMPLES}/demo.toml --steps automatic --seeds 1"
    told = succeed(f"{line} --rounds 90 --out {tmp_path}/demo")
    assert "nobody tuned" not in told
    rows = json.loads((tmp_path / "demo/comparison.json").read_text())["rows"]
    ours, averaged = (row["mean"] / row["before_mean"] for row in rows)
    assert ours < 0.5 < averaged
    picture = load_object(f"{EXAMPLES}/demo_picture.py:main", "picture")(tmp_path / "demo")
    assert b"after one step" in picture.read_bytes()
