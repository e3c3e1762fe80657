"""Low-rank adapters: the network starts as it was, and the base neither moves nor travels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmeta import Adaptation, ADMMFedMeta, Execution, federate, lora, train
from fedmeta.core.errors import FedmetaError
from models.zoo import WORKING, mlp


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    return nn.Sequential(*layers)


def test_it_starts_as_the_network_was() -> None:
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(lora(convolutions(), rank=2)(x), convolutions()(x))


def test_the_change_is_of_that_rank() -> None:
    layer = lora(nn.Linear(6, 5), rank=2)
    before = layer.weight.detach().clone()
    with torch.no_grad():
        layer.get_parameter("parametrizations.weight.0.lora_B").normal_()
    assert torch.linalg.matrix_rank(layer.weight - before) == 2


@pytest.mark.parametrize(
    ("scope", "moves"),
    [
        (("*lora_*",), {"lora_A", "lora_B"}),
        ("head", {"weight", "bias"}),
        ("all", {"lora_A", "lora_B", "weight", "bias"}),
    ],
)
def test_a_device_adapts_adapter_head_or_both(
    scope: str | tuple[str, ...], moves: set[str]
) -> None:
    data = WORKING["residual, frozen BatchNorm"].federation()
    algorithm = ADMMFedMeta(inner=Adaptation(0.1, scope=scope))
    models = []
    for path in ("auto", "loop"):
        network = lora(convolutions(), rank=2, train=["4"])
        base = network.get_parameter("0.parametrizations.weight.original").clone()
        how = Execution(path=path, dtype="float64")
        models.append(train(data, network, algorithm, rounds=3, execution=how).meta_model)
        frozen = models[-1].network.constants["0.parametrizations.weight.original"]
        assert torch.equal(frozen, base.double())
    first, second = models
    assert {name.split(".")[-1] for name in first.theta} == {"lora_A", "lora_B", "weight", "bias"}
    assert all(torch.allclose(first.theta[n], leaf) for n, leaf in second.theta.items())
    node = data.targets[0]
    names = [first.task.class_names[each] for each in data.labels[node.support]]
    adapted = first.adapt(data.inputs[node.support], names).theta
    moved = {n.split(".")[-1] for n, leaf in adapted.items() if not leaf.equal(first.theta[n])}
    assert moved == moves


def test_what_names_nothing_is_refused() -> None:
    for wrong in ({"targets": ["query"]}, {"train": ["classifier"]}, {"rank": 0}):
        with pytest.raises(FedmetaError, match=next(iter(wrong))):
            lora(mlp(4, 8, 3), **wrong)


def test_a_model_of_peft_is_taken_as_it_is() -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    network = peft.get_peft_model(mlp(4, 8, 3), peft.LoraConfig(r=2, target_modules=["0"]))
    x, y = torch.randn(96, 4), torch.arange(96) % 3
    run = train(federate(x, y, torch.arange(96) // 12), network, rounds=2)
    assert {name.split(".")[-3] for name in run.meta_model.theta} == {"lora_A", "lora_B"}
