import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmeta.core.errors import DataError
from fedmeta.data import Federation, Node, Scaling, Task, fit_scaling, sums_of


def federation(inputs, roles=("source", "target")):
    half = len(inputs) // 2
    nodes = [
        Node(
            f"n{i}",
            role,
            np.arange(i * half, i * half + 1),
            np.arange(i * half + 1, (i + 1) * half),
        )
        for i, role in enumerate(roles)
    ]
    return Federation(inputs, np.zeros((len(inputs), 1)), Task("regression", 1), nodes)


def test_per_feature_by_hand():
    inputs = np.array([[1, 7], [3, 7], [100, 200], [300, 400]], np.float32)
    scaling = fit_scaling(federation(inputs))
    assert scaling.mean.tolist() == [2, 7]
    assert scaling.deviation.tolist() == [1, 1]  # the second does not vary
    scaled = scaling.apply(inputs, torch.float64)
    assert scaled.tolist() == [[-1, 0], [1, 0], [98, 193], [298, 393]]


def test_whole_pool_looks_at_targets():
    inputs = np.array([[1], [3], [5], [7]], np.float32)
    assert fit_scaling(federation(inputs), over="pool").mean.tolist() == [4]


def test_per_channel_equals_numpy():
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 4, 5), dtype=np.uint8)
    scaling = fit_scaling(federation(images), "per-channel")
    mine = images[:3]
    assert scaling.mean.shape == (3, 1, 1)
    np.testing.assert_allclose(scaling.mean.ravel(), mine.mean(axis=(0, 2, 3)))
    np.testing.assert_allclose(scaling.deviation.ravel(), mine.std(axis=(0, 2, 3)))
    scaled = scaling.apply(mine, torch.float32)
    assert scaled.shape == (3, 3, 4, 5)
    assert abs(scaled.mean()) < 1e-6


def test_per_channel_of_plain_features_is_per_feature():
    inputs = np.random.default_rng(0).normal(size=(6, 4))
    a, b = (fit_scaling(federation(inputs), kind) for kind in ("per-channel", "per-feature"))
    assert (a.mean == b.mean).all()


@pytest.mark.parametrize(
    ("more", "deviations"),
    [({}, [12.75, 127.5]), ({"floor": 0.1}, [25.5, 127.5]), ({"floor": 0}, [1.5, 127.5])],
)
@pytest.mark.parametrize("over", ["sources", "pool"])
def test_only_bytes_have_a_floor(more, deviations, over):
    inputs = np.array([[0, 0], [3, 255]] * 2, np.uint8)
    assert fit_scaling(federation(inputs), "per-feature", over, **more).deviation.tolist() == (
        deviations
    )
    floats = federation(inputs.astype(np.float32))
    assert fit_scaling(floats, "per-feature", over, **more).deviation.tolist() == [1.5, 127.5]


def test_none_only_divides_bytes():
    images = np.full((4, 1, 2, 2), 255, np.uint8)
    assert fit_scaling(federation(images), "none").apply(images, torch.float32).max() == 1
    floats = np.full((4, 2), 7.0)
    assert fit_scaling(federation(floats), "none").apply(floats, torch.float32).max() == 7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_type_of_the_result(dtype):
    images = np.arange(256, dtype=np.uint8)[:, None]
    scaled = fit_scaling(federation(images), "none").apply(images, dtype)
    assert scaled.dtype == dtype
    assert abs(scaled[254].item() - 254 / 255) < 4e-3


def test_tensors_round_trip():
    scaling = Scaling(np.array([1.5]), np.array([2.5]))
    back = Scaling.from_tensors(scaling.tensors())
    assert (back.mean.tolist(), back.deviation.tolist()) == ([1.5], [2.5])
    assert scaling.tensors()["mean"].dtype == torch.float64


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(0, 20), seed=st.integers(0, 99))
def test_sums_of_parts_add_up(cut, seed):
    inputs = np.random.default_rng(seed).normal(3, 2, (20, 2, 3))
    whole = np.arange(20)
    for kind in ("per-feature", "per-channel"):
        parts = sums_of(inputs, whole[:cut], kind) + sums_of(inputs, whole[cut:], kind)
        scaling = Scaling.from_sums(parts)
        axes = 0 if kind == "per-feature" else (0, 2)
        np.testing.assert_allclose(scaling.deviation.squeeze(), inputs.std(axis=axes))
        assert parts.count == (20 if kind == "per-feature" else 60)


def test_many_samples_go_in_blocks():
    inputs = np.random.default_rng(0).normal(size=(9001, 2))
    sums = sums_of(inputs, np.arange(9001), "per-feature")
    np.testing.assert_allclose(sums.total, inputs.sum(axis=0))


def test_a_large_constant_does_not_vary():
    sums = sums_of(np.full((1000, 1), 1e6 / 3), np.arange(1000), "per-feature")
    assert Scaling.from_sums(sums).deviation.tolist() == [1.0]


def test_no_sources_is_told():
    with pytest.raises(DataError, match="no source nodes to take mean"):
        fit_scaling(federation(np.zeros((4, 1)), ("target", "target")))
