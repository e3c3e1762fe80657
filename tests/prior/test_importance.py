"""Importance: what nodes send, what training keeps, what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fedmeta.algorithms.path_importance import PathKeeping
from fedmeta.config.spec import RunSpec
from fedmeta.core import tree
from fedmeta.core.errors import DataError, RunFolderError, SettingError
from fedmeta.core.storage import read_tensors
from fedmeta.data import load, unpacked
from fedmeta.models.meta_model import MetaModel, load_theta
from fedmeta.priors import federated_fisher, read_importance, write_importance
from fedmeta.priors.importance import add_up, importance_file, normalised
from fedmeta.training.run_importance import store_importance
from prior.conftest import task_table, trained


def test_fisher_at_the_adapted_models(tasks: Path) -> None:
    """Against a loop over samples with plain autograd."""
    model = MetaModel.load("early")
    federation = load(RunSpec.from_dict(task_table("early")).data, 0)
    total, count = tree.zeros_like(model.theta), 0
    for node in federation.sources:
        raw = federation.inputs[node.support], federation.labels[node.support]
        phi = model.adapt(raw[0], [model.task.class_names[i] for i in raw[1]]).theta
        query = unpacked(federation, node, model.scaling).query
        for i in range(len(query.labels)):
            leaves = {name: leaf.clone().requires_grad_() for name, leaf in phi.items()}
            outputs = model.network(leaves, query.inputs[i : i + 1])
            model.loss(outputs, query.labels[i : i + 1]).sum().backward()  # type: ignore[no-untyped-call]
            for name, leaf in leaves.items():
                assert leaf.grad is not None
                total[name] = total[name] + leaf.grad.square()
            count += 1
    found = federated_fisher(model, federation)
    for name, leaf in found.items():
        assert torch.allclose(leaf, total[name] / count, rtol=1e-4, atol=1e-9)


def test_fisher_on_other_data(tasks: Path) -> None:
    data = load(RunSpec.from_dict({"data": {"name": "sinusoid", "nodes": 5}}).data, 0)
    with pytest.raises(DataError, match="other classes or shapes"):
        federated_fisher(MetaModel.load("early"), data)


@pytest.mark.parametrize("penalty", ["auto", 1.0])
def test_keeping_the_path_changes_nothing(tasks: Path, penalty: float | str) -> None:
    rest: dict[str, Any] = {"algorithms": {"admm-fedmeta": {"penalty": penalty}}}
    plain, keeping = trained(**rest), trained(**rest, importance="path")
    for name, leaf in plain.meta_model.theta.items():
        assert torch.equal(leaf, keeping.meta_model.theta[name])


def test_the_path_adds_up_to_the_fall_of_the_loss(tasks: Path, tmp_path: Path) -> None:
    """With short steps Σω is the loss at the start less that at the end."""
    keeping = trained(
        str(tmp_path / "run"),
        importance="path",
        training={"rounds": 60},
        algorithms={"admm-fedmeta": {"penalty": 20.0, "resplit": "none"}},
    )
    tensors, _ = read_tensors(
        tmp_path / "run/checkpoints/round-000060/state.safetensors", "checkpoint"
    )
    work = sum(float(v.sum()) for k, v in tensors.items() if k.startswith("memory/path-work/"))
    losses = [record["meta_loss"] for record in keeping.history]
    assert losses[0] - losses[-1] > 0.05
    assert work == pytest.approx(losses[0] - losses[-1], rel=0.1)


def test_steps_that_were_taken_back_are_not_on_the_path(tasks: Path, tmp_path: Path) -> None:
    """Under "auto" the path leads from θ¹ to the last accepted θ, whatever was tried."""
    bold = {"longest_step": 100.0, "resplit": "none"}  # so that some steps are bad

    def kept(rounds: int, start: float) -> tuple[dict[str, torch.Tensor], int]:
        folder = tmp_path / f"{rounds}-{start}"
        run = trained(
            str(folder),
            importance="path",
            training={"rounds": rounds},
            algorithms={"admm-fedmeta": {"first_penalty": start, **bold}},
        )
        file = folder / f"checkpoints/round-{rounds:06d}/state.safetensors"
        return read_tensors(file, "checkpoint")[0], sum(r["rejected"] for r in run.history)

    first, _ = kept(1, 1e-9)
    last, rejected = kept(12, 1e-9)
    assert rejected > 0
    for name, start in first.items():
        if name.startswith("memory/accepted/"):
            leaf = name.removeprefix("memory/accepted/")
            moved = last[f"memory/path-moved/{leaf}"]
            torch.testing.assert_close(moved, last[name] - start, rtol=1e-4, atol=1e-6)
            assert last[f"memory/path-work/{leaf}"].isfinite().all()


def test_a_resumed_run_keeps_the_same_path(tasks: Path, tmp_path: Path) -> None:
    whole = trained(str(tmp_path / "whole"), importance="path")
    from fedmeta.training.train import RunRequest, train_run

    trained(str(tmp_path / "parts"), importance="path", training={"rounds": 2})
    settings = RunSpec.from_dict(task_table("later", importance="path"))
    federation = load(settings.data_settings, 0)
    train_run(RunRequest(settings, federation, folder=tmp_path / "parts"), resume=True)
    for name in ("whole", "parts"):
        store_importance(tmp_path / name, "path", whole.meta_model, federation)
    first, second = (
        importance_file(tmp_path / name, "path").read_bytes() for name in ("whole", "parts")
    )
    assert first == second


def test_what_has_no_path() -> None:
    with pytest.raises(SettingError, match="stale"):
        PathKeeping(penalty=1.0, rule="stale")
    with pytest.raises(SettingError, match="keeps no path"):
        RunSpec.from_dict({"algorithm": "fedavg", "importance": "path"})
    with pytest.raises(SettingError, match="importance is 'fischer'"):
        RunSpec.from_dict({"importance": "fischer"})


def test_earlier_tasks_count_too(tasks: Path, tmp_path: Path) -> None:
    later = trained(str(tmp_path / "later"), init="early")
    data = load(RunSpec.from_dict(task_table("later")).data, 0)
    early = load(RunSpec.from_dict(task_table("early")).data, 0)
    first = store_importance(Path("early"), "fisher", MetaModel.load("early"), early)
    both = store_importance(
        tmp_path / "later", "fisher", later.meta_model, data, earlier=[Path("early")]
    )
    sums = read_importance(both, later.meta_model.theta, "fisher")
    own = federated_fisher(later.meta_model, data)
    old = read_importance(first, load_theta("early"), "fisher")
    for name, leaf in sums.items():
        assert torch.allclose(leaf, own[name] + old[name])
    with pytest.raises(RunFolderError, match="tensor 'a' differs"):
        add_up([{"a": torch.ones(1)}, {"b": torch.ones(1)}])


def test_files(tmp_path: Path) -> None:
    theta = {"a": torch.tensor([1.0, 2.0]), "b": torch.ones(1)}
    file = tmp_path / "importance.safetensors"
    write_importance(file, tree.scale(2.0, theta), theta, {"kind": "path"})
    found = read_importance(file, theta, "path")
    assert torch.equal(found["a"], torch.tensor([2.0, 4.0]))
    assert list(read_importance(file, {"b": theta["b"]}, "path")) == ["b"]
    with pytest.raises(RunFolderError, match="tensor 'c' is absent"):
        read_importance(file, {"c": torch.ones(1)}, "path")
    save_file(theta, tmp_path / "plain.safetensors")
    with pytest.raises(RunFolderError, match="no importance"):
        read_importance(tmp_path / "plain.safetensors", theta, "path")


def test_importance_too_small_for_its_numbers_is_alike_for_all() -> None:
    """A node whose adapted model is never wrong leaves squares below what float32 can divide by."""
    found = normalised({"a": torch.tensor([1e-44, 0.0]), "b": torch.tensor([0.0])})
    assert [leaf.tolist() for leaf in found.values()] == [[1.0, 1.0], [1.0]]
