"""Commands around earlier tasks: importance, priors by kind, λ found and λ swept."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch

from cli.calling import call, spawn, succeed
from fedmeta.models.meta_model import MetaModel, load_theta

DATA = "--data data.csv --node device --model linear"


def test_importance_is_stored_and_used(playground: Path) -> None:
    printed = succeed("importance run", "plain")
    assert "run/importance-fisher.safetensors" in printed
    printed = succeed(
        f"train {DATA} --rounds 2 --init run --prior run --prior-kind fisher "
        "--prior-strength 1e9 --out held"
    )
    assert "SquaredMahalanobis, λ = 1e+09; all tensors tied" in printed
    failed = call("importance run --kind path")
    assert failed.code == 2
    assert "did not keep the path" in failed.complaint
    assert "importance is 'other'" in call("importance run --kind other").complaint
    assert "no run folder" in call("importance nowhere").complaint


def test_path_importance_with_the_run(playground: Path) -> None:
    succeed(f"train {DATA} --rounds 3 --importance path --out first")
    assert (playground / "first/importance-path.safetensors").is_file()
    succeed(
        f"train {DATA} --rounds 2 --init first --prior first --prior-kind path "
        "--prior-strength 1 --out second"
    )
    refused = call(f"train {DATA} --rounds 2 --importance fisher --seeds 2 --out third")
    assert "--seeds and --importance" in refused.complaint


def test_lambda_is_found_and_a_resumed_run_goes_on_with_it(playground: Path) -> None:
    line = f"train {DATA} --init run --prior run"
    printed = succeed(f"{line} --rounds 4 --out whole")
    found = json.loads(Path("whole/settings.json").read_text())["settings"]["prior"]["strength"]
    assert f"λ = {found:.4g}" in printed
    stored = json.loads(Path("whole/settings.json").read_text())["origin"]["table"]
    assert stored["prior"]["strength"] == found
    succeed(f"{line} --rounds 2 --prior-strength {found!r} --out parts")
    succeed("train --resume parts --rounds 4")
    whole, parts = (MetaModel.load(name).theta for name in ("whole", "parts"))
    assert all(torch.equal(leaf, parts[name]) for name, leaf in whole.items())


def test_a_sweep_of_lambda(playground: Path) -> None:
    pytest.importorskip("matplotlib")
    printed = succeed(
        f"tune {DATA} --init run --prior run --grid prior.strength=0,0.1,auto --seeds 1 "
        "--rounds 2 --out sweep"
    )
    assert "prior task" in printed
    assert "1 seed cannot tell which is best" in printed
    result = json.loads(Path("sweep/tuning.json").read_text())
    assert all(0 <= trial["earlier"]["mean"] <= 1 for trial in result["trials"])
    both = [trial["mean"] + trial["earlier"]["mean"] for trial in result["trials"]]
    best = result["best"]["mean"] + result["best"]["earlier"]["mean"]
    assert best == max(both)
    assert "<svg" in Path("sweep/strength.svg").read_text()


def test_a_sweep_without_the_prior_run(playground: Path) -> None:
    """A bare file says nothing of the nodes it was trained on."""
    from safetensors.torch import save_file

    save_file(load_theta("run"), "bare.safetensors")
    printed = succeed(
        f"tune {DATA} --prior bare.safetensors --grid prior.strength=0,1 --seeds 1 --rounds 1"
    )
    assert "the prior task is not judged" in printed
    refused = call(f"tune {DATA} --grid prior.strength=0,1 --seeds 1 --rounds 1")
    assert "no prior model" in refused.complaint


def test_code_is_not_loaded_because_a_run_names_it(playground: Path) -> None:
    Path("h.py").write_text(
        "def h(theta):\n    return sum(v.square().sum() for v in theta.values())"
    )
    succeed(
        f"train {DATA} --rounds 1 --prior run --prior-strength 0.1 --prior-kind h.py:h --out mine"
    )
    refused = call("train --resume mine --rounds 2")
    assert "name it again: --prior-kind h.py:h" in refused.complaint
    succeed("train --resume mine --rounds 2 --prior-kind h.py:h")


def test_an_h_that_is_not_convex(playground: Path) -> None:
    code = "def h(theta):\n    return -sum(leaf.square().sum() for leaf in theta.values())\n"
    Path("h.py").write_text(code)
    line = (
        f"train {DATA} --rounds 1 --prior run --prior-strength 1e-9 --prior-kind h.py:h --out new"
    )
    outcome = spawn(shlex.split(f"{line} --out new"), playground)
    assert outcome.code == 0
    (warning,) = [each for each in outcome.err.splitlines() if "convex" in each]
    assert warning.startswith("warning: h is not convex: at random point ")


def test_a_pickle_is_refused(playground: Path) -> None:
    torch.save({"a": torch.ones(1)}, "model.pt")
    for flag in ("--prior", "--init"):
        assert "pickled code" in call(f"train {DATA} --rounds 1 {flag} model.pt").complaint
