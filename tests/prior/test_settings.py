"""From the table [prior] and files to a regulariser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedmeta.config.spec import RunSpec
from fedmeta.core.errors import DataError, FedmetaError, ModelError, RunFolderError, SettingError
from fedmeta.data import load
from fedmeta.models.meta_model import MetaModel, load_scaling, load_theta
from fedmeta.priors import (
    KINDS,
    Bregman,
    ConvexityWarning,
    GeneralisedKL,
    ItakuraSaito,
    OutputKL,
    PriorSettings,
    SquaredEuclidean,
    SquaredMahalanobis,
    load_prior,
    regularizer,
)
from fedmeta.priors.importance import UNIT, importance_file
from fedmeta.training.run_importance import store_importance
from prior.conftest import task_table, trained

CLASSES: dict[str, type] = {
    "euclidean": SquaredEuclidean,
    "fisher": SquaredMahalanobis,
    "path": SquaredMahalanobis,
    "outputs": OutputKL,
    "generalised-kl": GeneralisedKL,
    "itakura-saito": ItakuraSaito,
}


@pytest.fixture
def importances(tasks: Path) -> None:
    for kind in ("fisher", "path"):
        if not importance_file(tasks / "early", kind).exists():
            data = RunSpec.from_dict(task_table("early")).data
            store_importance(tasks / "early", kind, MetaModel.load("early"), load(data, 0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("importances")
def test_every_kind_by_name(tasks: Path, kind: str) -> None:
    data = "unlabelled.npz" if kind == "outputs" else None
    prior = load_prior(PriorSettings("early", 0.5, kind, data=data))
    assert type(prior) is CLASSES[kind]
    assert prior is not None
    assert prior.strength == 0.5
    theta = load_theta("early")
    assert float(prior.value(theta)) == pytest.approx(0.0, abs=1e-6)
    away = {name: leaf + 0.1 for name, leaf in theta.items()}
    assert float(prior.value(away)) > 0
    assert prior.checked(theta).strength == 0.5


@pytest.mark.parametrize("kind", ["generalised-kl", "itakura-saito"])
def test_divergences_of_probabilities(tasks: Path, kind: str) -> None:
    """With data they compare outputs: other parameters with the same outputs cost nothing."""
    prior = load_prior(PriorSettings("early", 1.0, kind, data="unlabelled.npz"))
    assert prior is not None
    theta = load_theta("early")
    last = [name for name in theta if name.endswith("bias")][-1]
    shifted = {**theta, last: theta[last] + 3.0}  # softmax does not see it
    assert float(prior.checked(theta).value(shifted)) == pytest.approx(0.0, abs=1e-5)
    other = {**theta, last: theta[last] + torch.arange(4.0)}
    assert float(prior.value(other)) > 1e-3


def test_outputs_are_compared_as_the_prior_saw_inputs(tasks: Path) -> None:
    prior = load_prior(PriorSettings("early", 1.0, "outputs", data="unlabelled.npz"))
    assert isinstance(prior, OutputKL)
    model = MetaModel.load("early")
    raw = np.load("unlabelled.npz")["x"]
    expected = model.predict(raw)
    found = prior.predict(model.theta, prior.inputs).softmax(dim=-1)
    assert torch.allclose(found, expected)


def test_half_of_the_fisher_diagonal() -> None:
    theta, f = {"a": torch.zeros(2)}, {"a": torch.tensor([4.0, 0.0])}
    away = {"a": torch.ones(2)}
    assert float(regularizer("fisher", 1.0, theta, f).value(away)) == 2.0
    assert float(regularizer("path", 1.0, theta, f).value(away)) == 4.0


H = """
def convex(theta):
    return sum(leaf.square().sum() + leaf.exp().sum() for leaf in theta.values())

def bumpy(theta):
    return -sum(leaf.square().sum() for leaf in theta.values())
"""


def test_a_convex_h_of_ones_own(tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "h.py").write_text(H)
    prior = load_prior(PriorSettings("early", 0.1, f"{tmp_path}/h.py:convex"))
    assert isinstance(prior, Bregman)
    run = trained(
        prior={"model": "early", "strength": 0.1, "kind": f"{tmp_path}/h.py:convex"}, init="early"
    )
    assert run.summary["settings"]["prior"]["kind"] == "Bregman"


def test_an_h_that_is_not_convex_is_warned_of(tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "h.py").write_text(H)
    kind = f"{tmp_path}/h.py:bumpy"
    with pytest.warns(ConvexityWarning, match=r"not convex: at random point \d+ .* below 0"):
        trained(prior={"model": "early", "strength": 1e-6, "kind": kind}, init="early")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"strength": -1.0, "model": "early"}, "prior.strength is -1.0"),
        ({"strength": float("nan"), "model": "early"}, "prior.strength is nan"),
        ({"strength": 0.1}, "no prior model"),
        ({"kind": "fischer", "model": "early"}, "did you mean 'fisher'"),
        (
            {"data": "x.npz", "model": "early", "kind": "euclidean"},
            "prior.data is set but prior.kind is 'euclidean'",
        ),
        ({"importance": "x", "model": "early", "kind": "path-like"}, "prior.kind is 'path-like'"),
        (
            {"importance": "x", "model": "early", "kind": "euclidean"},
            "prior.importance is set but",
        ),
        ({"model": "big.onnx"}, "nothing to ask it about"),
        ({"model": "big.onnx", "data": "x.npz", "kind": "itakura-saito"}, "has no parameters"),
        ({"model": "early", "teacher": len, "data": "x.npz"}, "both given"),
        ({"model": "early", "answers": "guesses"}, "prior.answers is 'guesses'"),
        ({"kind": "outputs", "temperature": 0.0}, "prior.temperature is 0.0"),
    ],
)
def test_settings_that_make_no_sense(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        PriorSettings(**fields)


def bad_files(folder: Path) -> None:
    torch.save({"a": torch.ones(1)}, folder / "model.pt")
    (folder / "text.safetensors").write_text("no tensors")
    (folder / "table.csv").write_text("a,b\n1,2\n")
    save_file({"a": torch.ones(1)}, folder / "plain.safetensors")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "{t}/nowhere"}, "there is no"),
        ({"model": "{t}/model.pt"}, "pickled code.*safetensors"),
        ({"model": "{t}/text.safetensors"}, "damaged or not a safetensors file"),
        ({"model": "early", "kind": "outputs"}, "without data"),
        ({"model": "early", "kind": "outputs", "data": "{t}/none.npz"}, "no file or folder"),
        ({"model": "early", "kind": "outputs", "data": "{t}/model.pt"}, "kind that is not read"),
        ({"model": "early", "kind": "outputs", "data": "{t}/table.csv"}, "not trained on one"),
        (
            {"model": "{t}/plain.safetensors", "kind": "outputs", "data": "unlabelled.npz"},
            "does not say which network",
        ),
        ({"model": "{t}/plain.safetensors", "kind": "fisher"}, "has no importance of the kind"),
        ({"model": "early", "kind": "path", "importance": "early/model.safetensors"}, "but no imp"),
    ],
)
def test_files_that_cannot_be_used(
    tasks: Path, tmp_path: Path, fields: dict[str, str], words: str
) -> None:
    bad_files(tmp_path)
    given = {name: value.format(t=tmp_path) for name, value in fields.items()}
    with pytest.raises(FedmetaError, match=words):
        load_prior(PriorSettings(strength=1.0, **given))  # type: ignore[arg-type]


def test_a_table_of_unlabelled_samples(tasks: Path, tmp_path: Path) -> None:
    """Columns are found by name; a label among them is not looked at."""
    rng = np.random.default_rng(0)
    rows = [f"{a},{b},{i % 2}" for i, (a, b) in enumerate(rng.normal(size=(40, 2)))]
    (tmp_path / "train.csv").write_text("\n".join(["x,z,label", *rows]))
    (tmp_path / "more.csv").write_text("z,junk,x\n2.0,text,1.0\n")
    data = {"name": str(tmp_path / "train.csv"), "nodes": 2, "samples": [10, 10]}
    trained(str(tmp_path / "run"), data=data)
    settings = PriorSettings(str(tmp_path / "run"), 1.0, "outputs", data=str(tmp_path / "more.csv"))
    prior = load_prior(settings)
    assert isinstance(prior, OutputKL)
    assert prior.inputs.shape == (1, 2)
    scaling = load_scaling(tmp_path / "run")
    assert scaling is not None
    assert torch.allclose(prior.inputs, scaling.apply(np.array([[1.0, 2.0]]), torch.float32))


def test_importance_of_another_model(tasks: Path, tmp_path: Path, importances: None) -> None:
    other = load_theta("early")
    name = list(other)[1]
    other[name] = other[name] + 1
    save_file(other, tmp_path / "other.safetensors")
    file = str(importance_file(Path("early"), "fisher"))
    settings = PriorSettings(str(tmp_path / "other.safetensors"), 1.0, "fisher", importance=file)
    with pytest.raises(RunFolderError, match=f"another model: tensor '{name}' has other values"):
        load_prior(settings)
    with pytest.raises(RunFolderError, match="of the kind 'fisher', not 'path'"):
        load_prior(PriorSettings("early", 1.0, "path", importance=file))


def test_importance_of_a_backbone(tasks: Path, tmp_path: Path, importances: None) -> None:
    theta = load_theta("early")
    body = dict(list(theta.items())[:2])
    save_file(body, tmp_path / "body.safetensors")
    file = str(importance_file(Path("early"), "fisher"))
    prior = load_prior(
        PriorSettings(str(tmp_path / "body.safetensors"), 1.0, "fisher", importance=file)
    )
    assert prior is not None
    assert set(prior.fitted(theta).prior) == set(body)


def test_a_run_that_kept_no_path(tasks: Path) -> None:
    if not Path("plain-run").exists():
        trained("plain-run", "early")
    with pytest.raises(RunFolderError, match='train that run with importance="path"'):
        load_prior(PriorSettings("plain-run", 1.0, "path"))
    early = load(RunSpec.from_dict(task_table("early")).data, 0)
    with pytest.raises(RunFolderError, match="did not keep the path"):
        store_importance(Path("plain-run"), "path", MetaModel.load("plain-run"), early)


def test_other_shapes_are_named(tasks: Path, tmp_path: Path) -> None:
    theta = load_theta("early")
    name = next(iter(theta))
    save_file({**theta, name: torch.ones(2, 2)}, tmp_path / "other.safetensors")
    prior = {"model": str(tmp_path / "other.safetensors"), "strength": 1.0}
    with pytest.raises(ModelError, match=f"tensor '{name}' has shape"):
        trained(str(tmp_path / "run"), prior=prior)
    assert not (tmp_path / "run").exists()  # refused before there is a run
    with pytest.raises(RunFolderError, match=f"tensor '{name}' is"):
        trained(str(tmp_path / "run"), init=prior["model"])


def test_data_of_another_shape(tasks: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "wide.npz", x=np.zeros((3, 7)))
    with pytest.raises(DataError, match=r"samples have shape \(7,\)"):
        load_prior(PriorSettings("early", 1.0, "outputs", data=str(tmp_path / "wide.npz")))


def test_auto_takes_what_is_there(tasks: Path, importances: None, tmp_path: Path) -> None:
    """Outputs with data, a normalised Fisher with an importance, else the plain distance."""
    (tmp_path / "bare.safetensors").write_bytes(Path("early/model.safetensors").read_bytes())
    bare = PriorSettings(str(tmp_path / "bare.safetensors"))
    weighed = PriorSettings("early")
    taught = PriorSettings("early", data="unlabelled.npz")
    kinds = [each.divergence for each in (bare, weighed, taught)]
    assert kinds == ["euclidean", "fisher", "outputs"]
    assert [each.known_strength for each in (bare, weighed, taught)] == [None, UNIT, 1.0]
    assert (taught.teaches, weighed.teaches) == (True, False)
    prior = load_prior(weighed)
    assert isinstance(prior, SquaredMahalanobis)
    assert prior.strength == UNIT
    mean = sum(float(leaf.sum()) for leaf in prior.importance.values())
    assert mean / sum(leaf.numel() for leaf in prior.importance.values()) == pytest.approx(0.5)
    assert isinstance(load_prior(bare), SquaredEuclidean)


def test_a_known_strength_is_trained_for_once(tasks: Path, importances: None) -> None:
    run = trained(init="early", prior={"model": "early"})
    assert run.summary["settings"]["prior"]["strength"] == UNIT
    given = trained(init="early", prior={"model": "early", "strength": UNIT})
    for name, leaf in run.meta_model.theta.items():
        assert torch.equal(leaf, given.meta_model.theta[name])
