"""Every kind of network goes all the way, or one clear line says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fedmeta import Adaptation, ADMMFedMeta, Execution, MetaModel, PerFedAvg, export_onnx, train
from fedmeta.core.errors import FedmetaError, ModelError
from models.zoo import REFUSED, WORKING, Animal

LAYERS_OF_ALL_KINDS = ADMMFedMeta(inner=Adaptation(step_size=0.05))


def made(animal: Animal) -> nn.Module:
    torch.manual_seed(0)
    return animal.make()


@pytest.mark.parametrize("name", WORKING)
def test_batched_against_loop_against_plain_autograd(name: str, tmp_path: Path) -> None:
    """Also adapted, stored and read again."""
    animal = WORKING[name]
    data = animal.federation()
    runs = [
        train(data, made(animal), rounds=2, execution=Execution(path=path, dtype="float64"))
        for path in ("auto", "loop")
    ]
    first, second = (run.meta_model for run in runs)
    for leaf, other in zip(first.theta.values(), second.theta.values(), strict=True):
        assert torch.allclose(leaf, other, rtol=1e-5, atol=1e-7)
    node = data.targets[0]
    x, y = data.inputs[node.support], data.labels[node.support]
    names = y if animal.values else [first.task.class_names[each] for each in y]
    adapted = first.adapt(x, names)

    module = first.module().train(False)
    moves = first.adaptation.moves(first.theta)
    wanted = {n: p for n, p in module.named_parameters() if n in moves}
    outputs = module(first.scaled(x))
    outputs = outputs["logits"] if isinstance(outputs, dict) else outputs
    outputs = outputs[0] if isinstance(outputs, tuple) else outputs
    loss = first.loss(outputs, first._labels(names)).mean()
    slopes = torch.autograd.grad(loss, list(wanted.values()))
    for (key, leaf), slope in zip(wanted.items(), slopes, strict=True):
        expected = leaf - first.adaptation.step_size * slope
        assert torch.allclose(adapted.theta[key], expected, rtol=1e-5, atol=1e-8)

    adapted.save(tmp_path / "own.safetensors")
    again = MetaModel.load(tmp_path / "own.safetensors", made(animal).double())
    assert torch.allclose(again.predict(x), adapted.predict(x), rtol=1e-12)


@pytest.mark.parametrize("name", WORKING)
def test_second_derivatives_by_all_layers(name: str) -> None:
    animal = WORKING[name]
    for algorithm in (LAYERS_OF_ALL_KINDS, PerFedAvg()):
        run = train(animal.federation(), made(animal), algorithm, rounds=1)
        assert all(bool(leaf.isfinite().all()) for leaf in run.meta_model.theta.values())


NOT_EXPORTED = {"bilinear", "Perceiver"}  # no such operation in ONNX; `len(x)` in forward


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKING)
def test_exported_with_its_adaptation(name: str, tmp_path: Path) -> None:
    """The exporter compares with PyTorch by itself, and names what it cannot write."""
    pytest.importorskip("onnxruntime")
    animal = WORKING[name]
    run = train(animal.federation(), made(animal), rounds=1)
    if name in NOT_EXPORTED:
        with pytest.raises(ModelError, match="cannot be exported"):
            export_onnx(run.meta_model, tmp_path / "own.onnx", adaptable=True)
        return
    export_onnx(run.meta_model, tmp_path / "own.onnx", adaptable=True)
    assert (tmp_path / "own.onnx").stat().st_size > 0


@pytest.mark.parametrize("name", REFUSED)
def test_one_clear_line(name: str) -> None:
    animal, message = REFUSED[name]
    with pytest.raises(FedmetaError, match=message) as caught:
        train(animal.federation(), made(animal), rounds=1)
    assert "\n" not in str(caught.value)
