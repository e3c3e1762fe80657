"""Trainings with a prior, from settings to θ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedmeta.core.tree import Tree
from fedmeta.models.meta_model import load_scaling, load_theta
from fedmeta.report import write_report
from fedmeta.training import checkpoints
from prior.conftest import trained

PAPER = {"algorithms": {"admm-fedmeta": {"penalty": 1.0}}}


def theta_of(**rest: Any) -> Tree:
    found: Tree = trained(**rest).meta_model.theta
    return found


def same(a: Tree, b: Tree) -> bool:
    return list(a) == list(b) and all(torch.equal(leaf, b[name]) for name, leaf in a.items())


@pytest.mark.parametrize("algorithm", [{}, PAPER], ids=["automatic", "fixed"])
@pytest.mark.parametrize("start", [{}, {"init": "early"}], ids=["fresh", "from the prior"])
@pytest.mark.parametrize("kind", ["euclidean", "outputs"])
def test_no_strength_is_no_prior_bit_for_bit(
    tasks: Path, algorithm: dict[str, Any], start: dict[str, Any], kind: str
) -> None:
    data = {"data": "unlabelled.npz"} if kind == "outputs" else {}
    prior = {"model": "early", "strength": 0.0, "kind": kind, **data}
    assert same(theta_of(**algorithm, **start, prior=prior), theta_of(**algorithm, **start))
    tied = theta_of(**algorithm, **start, prior={**prior, "strength": 0.3})
    assert not same(tied, theta_of(**algorithm, **start))


def test_runs_checkpoints_and_plain_files_are_priors(tasks: Path, tmp_path: Path) -> None:
    save_file(load_theta("early"), tmp_path / "plain.safetensors")
    last = checkpoints.rounds(Path("early/checkpoints"))[-1]
    point = Path("early/checkpoints") / f"round-{last:06d}"
    for path in ("early/model.safetensors", str(tmp_path / "plain.safetensors")):
        assert same(load_theta(path), load_theta("early"))
    # At a checkpoint a step may still be on trial; what was accepted is what counts.
    assert same(load_theta(point), load_theta(point / "state.safetensors"))
    ends = [
        theta_of(init="early", prior={"model": path, "strength": 0.3, "kind": "euclidean"})
        for path in ("early", "early/model.safetensors", str(tmp_path / "plain.safetensors"))
    ]
    assert same(ends[0], ends[1])
    assert same(ends[0], ends[2])
    held = theta_of(init=str(point), prior={"model": str(point), "strength": 1e6})
    assert all(torch.allclose(held[n], leaf, atol=1e-3) for n, leaf in load_theta(point).items())


def test_inputs_are_scaled_as_the_earlier_model_wants_them(tasks: Path) -> None:
    early = load_scaling("early")
    assert early is not None
    last = checkpoints.rounds(Path("early/checkpoints"))[-1]
    point = f"early/checkpoints/round-{last:06d}"
    tied = {"model": "early", "strength": 0.1}
    for rest in ({"init": "early"}, {"prior": tied}, {"init": point}):
        scaling = trained(**rest).meta_model.scaling
        assert np.array_equal(scaling.mean, early.mean)
    assert not np.array_equal(trained().meta_model.scaling.mean, early.mean)


def test_a_backbone_is_tied_and_the_rest_is_free(tasks: Path, tmp_path: Path) -> None:
    theta = load_theta("early")
    body = {name: leaf for name, leaf in theta.items() if name.startswith("1.")}
    save_file(body, tmp_path / "body.safetensors")
    prior = {"model": str(tmp_path / "body.safetensors"), "strength": 1e4}
    run = trained(str(tmp_path / "run"), init="early", prior=prior)
    about = run.summary["settings"]["prior"]
    assert sorted(about["tied"]) == sorted(body)
    assert sorted(about["free"]) == sorted(name for name in theta if name not in body)
    free = theta_of(init="early")
    for name, leaf in run.meta_model.theta.items():
        near = float((leaf - theta[name]).abs().max())
        far = float((free[name] - theta[name]).abs().max())
        assert near < 0.5 * far or name not in body
    page = write_report(tmp_path / "run").read_text()
    assert "Prior model" in page
    assert all(name in page for name in theta)


def test_the_strength_that_is_found_is_stored(tasks: Path, tmp_path: Path) -> None:
    run = trained(str(tmp_path / "run"), init="early", prior={"model": "early"})
    found = run.summary["settings"]["prior"]["strength"]
    assert found > 0
    given = trained(init="early", prior={"model": "early", "strength": found})
    assert same(given.meta_model.theta, run.meta_model.theta)
