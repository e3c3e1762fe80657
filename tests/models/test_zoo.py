"""Every kind of network goes all the way, or one clear line says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedmeta import (
    Adaptation,
    ADMMFedMeta,
    DataSettings,
    Execution,
    MetaModel,
    PerFedAvg,
    export_onnx,
    train,
)
from fedmeta.core.errors import FedmetaError, ModelError
from fedmeta.engine import recording
from models.zoo import REFUSED, WORKING, Animal
from models.zoo_more import KINDS, MORE, MORE_REFUSED, NAMED

WORKING = {**WORKING, **MORE, **NAMED}
REFUSED = {**REFUSED, **MORE_REFUSED}
# Seconds each: of these the whole way is a slow test.
SLOW = {"ResNet-18", "BERT", "DistilBERT", "10,000 classes", "residual", "LSTM, two", "U-Net"}
ANIMALS = [
    pytest.param(name, marks=[pytest.mark.slow] * any(name.startswith(each) for each in SLOW))
    for name in WORKING
]
OTHERWISE = {  # tested by functions of their own below, or by the first one: it is in float64
    "embedding, x.long(), scaling none",
    "embedding, bytes, scaling none",
    "perceptron, bf16 precision",
    "embedding, bf16 precision",
}
OF_LIBRARIES = {name for name in KINDS.values() if "BERT" in name}

LAYERS_OF_ALL_KINDS = ADMMFedMeta(inner=Adaptation(step_size=0.05))


def made(animal: Animal) -> nn.Module:
    torch.manual_seed(0)
    return animal.make()


def test_every_kind_has_its_place() -> None:
    """71 that were asked after and twelve more: at least 75 work, the others have a clear line."""
    assert len(KINDS) == 83
    places = {*WORKING, *REFUSED, *OTHERWISE, *OF_LIBRARIES}
    assert {*KINDS.values()} <= places
    assert sum(name not in REFUSED for name in KINDS.values()) >= 75
    assert not {*WORKING} & {*REFUSED}


@pytest.mark.parametrize("name", sorted(OF_LIBRARIES))
def test_libraries_are_there(name: str) -> None:
    """Says which tests of the zoo are left out where a library is absent."""
    pytest.importorskip("peft" if "peft" in name else "transformers", reason=f"for {name}")
    assert name in WORKING


@pytest.mark.parametrize("name", ANIMALS)
def test_batched_against_loop_against_plain_autograd(name: str, tmp_path: Path) -> None:
    """Also adapted, stored and read again."""
    animal = WORKING[name]
    data = animal.federation()
    runs = [
        train(
            data,
            made(animal),
            rounds=2,
            loss=animal.loss,
            execution=Execution(path=path, dtype="float64"),
        )
        for path in ("auto", "loop")
    ]
    first, second = (run.meta_model for run in runs)
    for leaf, other in zip(first.theta.values(), second.theta.values(), strict=True):
        assert torch.allclose(leaf, other, rtol=1e-5, atol=1e-7)
    node = data.targets[0]
    x, y = data.inputs[node.support], data.labels[node.support]
    if animal.inputs:
        x = dict(zip(animal.inputs, np.split(x, len(animal.inputs), axis=1), strict=True))
    names = y if animal.values else [first.task.class_names[each] for each in y]
    adapted = first.adapt(x, names)

    module = first.module().train(False)
    moves = first.adaptation.moves(first.theta)
    wanted = {n: p for n, p in module.named_parameters() if n in moves}
    scaled = first.scaled(x)
    if "mapping" in name:
        outputs = module(dict(zip(animal.inputs, scaled.chunk(2, 1), strict=True)))
    else:
        outputs = module(*scaled.chunk(max(1, len(animal.inputs)), 1))
    outputs = getattr(outputs, "logits", outputs)
    outputs = outputs["logits"] if isinstance(outputs, dict) else outputs
    outputs = outputs[0] if isinstance(outputs, tuple) else outputs
    loss = first.loss(outputs, first._labels(names)).mean()
    slopes = torch.autograd.grad(loss, list(wanted.values()))
    for (key, leaf), slope in zip(wanted.items(), slopes, strict=True):
        expected = leaf - first.adaptation.step_size * slope
        assert torch.allclose(adapted.theta[key], expected, rtol=1e-5, atol=1e-8)

    adapted.save(tmp_path / "own.safetensors")
    loss = None if animal.loss == "auto" else animal.loss
    again = MetaModel.load(tmp_path / "own.safetensors", made(animal).double(), loss)
    assert torch.allclose(again.predict(x), adapted.predict(x), rtol=1e-12)


@pytest.mark.parametrize("name", ANIMALS)
def test_recorded_against_plain_calls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded after some seconds of a long run goes on with the same bits."""
    animal, thetas = WORKING[name], []
    for patience in (float("inf"), -1):
        monkeypatch.setattr(recording, "_PATIENCE", patience)
        run = train(animal.federation(), made(animal), rounds=2, loss=animal.loss)
        thetas.append(run.meta_model.theta)
    for leaf, other in zip(*(each.values() for each in thetas), strict=True):
        assert torch.equal(leaf, other)


@pytest.mark.parametrize("name", ANIMALS)
def test_second_derivatives_by_all_layers(name: str) -> None:
    animal = WORKING[name]
    for algorithm in (LAYERS_OF_ALL_KINDS, PerFedAvg()):
        run = train(animal.federation(), made(animal), algorithm, rounds=1, loss=animal.loss)
        assert all(bool(leaf.isfinite().all()) for leaf in run.meta_model.theta.values())


NOT_EXPORTED = {
    "bilinear",  # no such operation in ONNX
    "if on data",  # a graph has one branch
    "writes into rows of zeros",  # made for `len(x)` samples, as many as the trace sees
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKING)
def test_exported_with_its_adaptation(name: str, tmp_path: Path) -> None:
    """The exporter compares with PyTorch by itself, and names what it cannot write."""
    pytest.importorskip("onnxruntime")
    animal = WORKING[name]
    run = train(animal.federation(), made(animal), rounds=1, loss=animal.loss)
    if name in NOT_EXPORTED:
        with pytest.raises(ModelError, match="cannot be exported"):
            export_onnx(run.meta_model, tmp_path / "own.onnx", adaptable=True)
        return
    for adaptable in (True, False):
        export_onnx(run.meta_model, tmp_path / "own.onnx", adaptable=adaptable)
        assert (tmp_path / "own.onnx").stat().st_size > 0


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_tokens_are_tokens_whatever_the_scaling_is_said_to_be(
    dtype: type[np.generic], tmp_path: Path
) -> None:
    draw = np.random.default_rng(0)
    x, node = draw.integers(20, size=(96, 5)).astype(dtype), np.arange(96) // 12
    np.savez(tmp_path / "tokens.npz", x=x, y=np.arange(96) % 3, node=node)
    runs = [
        train(
            DataSettings(f"{tmp_path}/tokens.npz", node="node", scaling=scaling),
            made(WORKING["embedding"]),
            rounds=1,
        ).meta_model
        for scaling in (None, "none")
    ]
    assert all(model.scaling.tokens for model in runs)
    assert all(torch.equal(runs[1].theta[name], leaf) for name, leaf in runs[0].theta.items())


@pytest.mark.parametrize("name", ["perceptron", "embedding"])
def test_layers_in_bfloat16(name: str) -> None:
    animal, execution = WORKING[name], Execution(precision="bf16")
    models = [
        train(animal.federation(), made(animal), rounds=2, execution=how).meta_model
        for how in (execution, Execution())
    ]
    for leaf, other in zip(*(model.theta.values() for model in models), strict=True):
        assert leaf.dtype == torch.float32
        assert torch.allclose(leaf, other, atol=0.05)


@pytest.mark.parametrize("name", REFUSED)
def test_one_clear_line(name: str) -> None:
    animal, message = REFUSED[name]
    with pytest.raises(FedmetaError, match=message) as caught:
        train(animal.federation(), made(animal), rounds=1, loss=animal.loss)
    assert "\n" not in str(caught.value)
