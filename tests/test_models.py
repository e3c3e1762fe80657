from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedmeta.errors import ModelError, SettingError
from fedmeta.models import ModelSettings, SamePool, build, paper_channels


def pooled_by_hand(image: Tensor, kind: str) -> Tensor:
    """'same' pooling as TensorFlow defines it: 3×3, stride 2, the odd row of padding at the end."""
    rows, columns = image.shape
    out = torch.empty(math.ceil(rows / 2), math.ceil(columns / 2))
    starts = [-(max((math.ceil(n / 2) - 1) * 2 + 3 - n, 0) // 2) for n in (rows, columns)]
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            top, left = starts[0] + 2 * i, starts[1] + 2 * j
            window = image[max(top, 0) : top + 3, max(left, 0) : left + 3]
            out[i, j] = window.max() if kind == "max" else window.mean()
    return out


@pytest.mark.parametrize("shape", [(7, 8), (8, 7), (1, 1), (2, 3), (28, 28), (4, 4)])
@pytest.mark.parametrize("kind", ["max", "average"])
def test_same_pooling(shape: tuple[int, int], kind: str) -> None:
    image = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    got = SamePool(kind)(image[None, None])[0, 0]  # type: ignore[arg-type]
    assert torch.allclose(got, pooled_by_hand(image, kind), atol=1e-6)


def test_the_papers_networks() -> None:
    assert paper_channels((1, 28, 28), 10) == (32, 64)
    assert paper_channels((3, 32, 32), 10) == (32, 64, 128)
    assert paper_channels((3, 32, 32), 100) == (32, 64, 128, 256)
    cnn = build(ModelSettings("cnn"), (1, 28, 28), 10, seed=0)
    assert [type(layer).__name__ for layer in cnn.children()] == [
        "Conv2d",
        "ELU",
        "SamePool",
        "Conv2d",
        "ELU",
        "SamePool",
        "Flatten",
        "Linear",
    ]
    assert sum(p.numel() for p in cnn.parameters()) == (
        32 * 9 + 32 + 64 * 32 * 9 + 64 + 7 * 7 * 64 * 10 + 10
    )
    assert cnn(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_last_pooling_may_average() -> None:
    settings = ModelSettings("cnn", channels=(2, 2, 2), last_pooling="average", activation="relu")
    cnn = build(settings, (1, 9, 9), 2, seed=0)
    pools = [layer.kind for layer in cnn.modules() if isinstance(layer, SamePool)]
    assert pools == ["max", "max", "average"]
    assert cnn(torch.zeros(1, 1, 9, 9)).shape == (1, 2)


def test_auto() -> None:
    assert any(
        isinstance(layer, nn.Conv2d)
        for layer in build(ModelSettings(), (1, 16, 16), 2, seed=0).modules()
    )
    assert not any(
        isinstance(layer, nn.Conv2d)
        for layer in build(ModelSettings(), (1, 8, 8), 2, seed=0).modules()
    )


def test_perceptrons() -> None:
    mlp = build(ModelSettings("mlp", hidden=(5, 4), activation="leaky-relu"), (2, 3), 7, seed=0)
    widths = [(m.in_features, m.out_features) for m in mlp.modules() if isinstance(m, nn.Linear)]
    assert widths == [(6, 5), (5, 4), (4, 7)]
    slopes = [m.negative_slope for m in mlp.modules() if isinstance(m, nn.LeakyReLU)]
    assert slopes == [0.2, 0.2]
    linear = build(ModelSettings("linear"), (3,), 2, seed=0)
    assert sum(p.numel() for p in linear.parameters()) == 8


def test_weights_come_from_the_seed_alone() -> None:
    state = torch.random.get_rng_state()
    first, again, other = (
        next(build(ModelSettings("mlp"), (3,), 2, seed=seed).parameters()) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_truncated_normal_initialisation() -> None:
    settings = ModelSettings("mlp", hidden=(300,), initialisation="truncated-normal")
    model = build(settings, (300,), 10, seed=0)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            assert float(layer.weight.detach().abs().max()) <= 0.2
            assert 0.08 < float(layer.weight.detach().std()) < 0.095
            assert torch.all(layer.bias == 0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "ccn"}, "did you mean 'cnn'"),
        ({"channels": (0,)}, "channels"),
        ({"hidden": (-1,)}, "hidden"),
        ({"activation": "gelu"}, "activation"),
        ({"last_pooling": "mean"}, "last_pooling"),
        ({"initialisation": "zeros"}, "initialisation"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        ModelSettings(**arguments)  # type: ignore[arg-type]


def test_a_cnn_needs_images() -> None:
    with pytest.raises(ModelError, match=r"a cnn needs images, but samples have shape \(3,\)"):
        build(ModelSettings("cnn"), (3,), 2, seed=0)


def test_a_network_of_your_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "def make(shape, outputs):\n    return nn.Linear(shape[0], outputs)\n"
        "def wrong(shape, outputs):\n    return 3\n"
    )
    model = build(ModelSettings(f"{file}:make"), (4,), 3, seed=0)
    assert isinstance(model, nn.Linear)
    assert model.weight.shape == (3, 4)
    with pytest.raises(ModelError, match="returned a int"):
        build(ModelSettings(f"{file}:wrong"), (4,), 3, seed=0)
