"""The paper's networks, TensorFlow's "same" pooling, and initial weights."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from fedmeta.core.errors import FedmetaError, ModelError, SettingError
from fedmeta.models.networks import ModelSettings, SamePool, build, paper_channels

PAPER = ModelSettings("auto", last_pooling="average", initialisation="truncated-normal")


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def by_hand(channels: list[int], side: int, outputs: int) -> int:
    """3×3 convolutions with biases, halved after each one, then a linear layer."""
    total = 0
    for before, after in itertools.pairwise(channels):
        total += 9 * before * after + after
        side = math.ceil(side / 2)
    return total + channels[-1] * side * side * outputs + outputs


@pytest.mark.parametrize(
    ("shape", "outputs", "channels", "count"),
    [
        ((1, 28, 28), 10, [1, 32, 64], 50186),
        ((3, 32, 32), 10, [3, 32, 64, 128], 113738),
        ((3, 32, 32), 100, [3, 32, 64, 128, 256], 490916),
    ],
    ids=["Fashion-MNIST", "CIFAR-10", "CIFAR-100"],
)
def test_the_papers_networks(
    shape: tuple[int, int, int], outputs: int, channels: list[int], count: int
) -> None:
    model = build(PAPER, shape, outputs, seed=0)
    assert size(model) == count == by_hand(channels, shape[1], outputs)
    assert model(torch.zeros(5, *shape)).shape == (5, outputs)
    assert [m.out_channels for m in model if isinstance(m, nn.Conv2d)] == channels[1:]
    assert paper_channels(shape, outputs) == tuple(channels[1:])
    kinds = [layer.kind for layer in model if isinstance(layer, SamePool)]
    assert kinds == ["max"] * (len(kinds) - 1) + ["average"]
    assert sum(isinstance(layer, nn.ELU) for layer in model) == len(channels) - 1


def tensorflow_pool(image: npt.NDArray[np.float64], kind: str) -> npt.NDArray[np.float64]:
    """3×3, stride 2, padding 'same' as TensorFlow documents it: one window after the other."""

    def windows(length: int) -> list[range]:
        count = -(-length // 2)
        padding = max((count - 1) * 2 + 3 - length, 0)
        before = padding // 2
        starts = [2 * i - before for i in range(count)]
        return [range(max(start, 0), min(start + 3, length)) for start in starts]

    reduce = np.max if kind == "max" else np.mean
    return np.array(
        [
            [reduce(image[np.ix_(rows, columns)]) for columns in windows(image.shape[1])]
            for rows in windows(image.shape[0])
        ]
    )


@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize(
    ("height", "width"),
    [(28, 28), (7, 7), (8, 7), (7, 8), (32, 32), (4, 4), (2, 2), (3, 5), (1, 6), (1, 1), (5, 2)],
)
def test_same_pooling(kind: Literal["max", "average"], height: int, width: int) -> None:
    images = np.random.default_rng(0).normal(size=(2, 3, height, width)) - 3  # all below the zeros
    found = SamePool(kind)(torch.tensor(images)).numpy()
    expected = np.array([[tensorflow_pool(plane, kind) for plane in image] for image in images])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_truncated_normal_weights() -> None:
    model = build(PAPER, (3, 32, 32), 10, seed=0)
    weights = torch.cat([m.weight.flatten() for m in model if hasattr(m, "weight")])
    assert weights.abs().max() <= 0.2
    assert weights.abs().max() > 0.19
    # A normal distribution cut at 2σ has a deviation of 0.87963σ.
    assert float(weights.detach().std()) == pytest.approx(0.087963, rel=0.02)
    assert abs(float(weights.detach().mean())) < 0.001
    biases = torch.cat([m.bias for m in model if hasattr(m, "bias")])
    assert biases.eq(0.1).all()


def test_seeds_and_torchs_own_generator() -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    one, same, other = (build(ModelSettings("mlp"), (4,), 2, seed=s) for s in (1, 1, 2))
    assert torch.get_rng_state().equal(before)
    assert all(a.equal(b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not any(a.equal(b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_kinds() -> None:
    assert size(build(ModelSettings("linear"), (1, 8, 8), 10, seed=0)) == 650
    assert size(build(ModelSettings("mlp", hidden=(5, 3)), (4,), 2, seed=0)) == 25 + 18 + 8
    small = build(ModelSettings(), (1, 8, 8), 10, seed=0)  # too small for convolutions
    assert not any(isinstance(layer, nn.Conv2d) for layer in small)
    tiny = ModelSettings("cnn", channels=(2,), activation="leaky-relu")
    model = build(tiny, (1, 5, 5), 3, seed=0)
    assert size(model) == (9 * 2 + 2) + (2 * 3 * 3 * 3 + 3)
    slope = next(layer for layer in model if isinstance(layer, nn.LeakyReLU)).negative_slope
    assert slope == 0.2
    assert ModelSettings(hidden=[4, 3]).hidden == (4, 3)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "mpl"}, "did you mean 'mlp'"),
        ({"hidden": (0,)}, "at least 1"),
        ({"channels": (3, -1)}, "at least 1"),
        ({"activation": "gelu"}, "did you mean"),
        ({"last_pooling": "mean"}, "average, max"),
        ({"initialisation": "zeros"}, "truncated-normal"),
    ],
)
def test_settings_that_make_no_sense(fields: dict[str, object], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        ModelSettings(**fields)


def test_series_have_a_network_of_their_own() -> None:
    model = build(ModelSettings("cnn"), (6, 127), 4, seed=0)
    assert model(torch.zeros(5, 6, 127)).shape == (5, 4)
    assert size(model) == (6 * 16 * 5 + 16) + (16 * 32 * 5 + 32) + (32 * 32 * 4 + 4)
    series = torch.randn(2, 3, 9)
    for kind in ("max", "average"):
        flat = SamePool(kind)(series)
        tall = SamePool(kind)(series.unsqueeze(-2).expand(-1, -1, 9, -1))
        assert torch.allclose(flat, tall[:, :, 2], atol=1e-6)


def test_a_cnn_needs_images() -> None:
    with pytest.raises(ModelError, match="a cnn needs images"):
        build(ModelSettings("cnn"), (7,), 2, seed=0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return 3", "return an nn.Module"),
        ("raise KeyError('x')", "KeyError"),
    ],
)
def test_own_functions_that_fail(body: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"def make(shape, outputs):\n    {body}\n")
    with pytest.raises(FedmetaError, match=words):
        build(ModelSettings(f"{tmp_path}/mine.py:make"), (2,), 3, seed=0)


def test_own_functions_are_seeded(tmp_path: Path) -> None:
    code = (
        "from torch import nn\ndef make(shape, outputs):\n    return nn.Linear(*shape, outputs)\n"
    )
    (tmp_path / "mine.py").write_text(code)
    settings = ModelSettings(f"{tmp_path}/mine.py:make")
    one, same = (build(settings, (2,), 3, seed=4) for _ in range(2))
    assert one.weight.equal(same.weight)
