"""Statistics of labels: sums of nodes by hand, what is not scaled, and where they are applied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmeta.core.errors import DataError, SettingError
from fedmeta.data import DataSettings, Federation, Node, Scaling, Task, fit_scaling, pack, unpacked
from fedmeta.data.scaling import label_sums, scaling_from

#            node a: 1, 3 | 5, 7      node b: 11 | 9      target: 1000 | 2000
ONE = np.array([1.0, 3.0, 5.0, 7.0, 11.0, 9.0, 1000.0, 2000.0])[:, None]
TWO = np.hstack([ONE, np.full((8, 1), 4.0)])


def federation(labels: np.ndarray) -> Federation:
    nodes = [
        Node("a", "source", np.array([0, 1]), np.array([2, 3])),
        Node("b", "source", np.array([4]), np.array([5])),
        Node("t", "target", np.array([6]), np.array([7])),
    ]
    inputs = np.arange(8.0)[:, None]
    return Federation(inputs, labels, Task("regression", labels.shape[1]), nodes)


def test_two_nodes_by_hand() -> None:
    """n = 6, Σy = 36, Σy² = 286: m = 6, s² = 286/6 − 36 = 35/3."""
    sums = label_sums(federation(ONE), "standard")
    assert sums is not None
    assert (sums.count, sums.total.tolist(), sums.squares.tolist()) == (6, [36.0], [286.0])
    found = fit_scaling(federation(ONE)).labels
    assert found is not None
    assert found.mean.tolist() == [6.0]
    assert found.deviation.tolist() == pytest.approx([(35 / 3) ** 0.5])


def test_sums_of_nodes_add_up_to_those_of_all() -> None:
    whole = federation(TWO)
    parts = [label_sums(whole.with_nodes([node]), "standard") for node in whole.sources]
    assert parts[0] is not None
    assert parts[1] is not None
    both = scaling_from(None, False, 0.0, parts[0] + parts[1]).labels
    wanted = fit_scaling(whole, "none").labels
    assert both is not None
    assert wanted is not None
    assert np.array_equal(both.mean, wanted.mean)
    assert np.array_equal(both.deviation, wanted.deviation)


def test_every_output_by_itself_and_a_constant_one_is_divided_by_one() -> None:
    found = fit_scaling(federation(TWO)).labels
    assert found is not None
    assert found.mean.tolist() == [6.0, 4.0]
    assert found.deviation.tolist() == pytest.approx([(35 / 3) ** 0.5, 1.0])


@pytest.mark.parametrize("over", ["sources", "pool"])
def test_targets_are_never_looked_at(over: str) -> None:
    found = fit_scaling(federation(ONE), "per-feature", over).labels  # type: ignore[arg-type]
    assert found is not None
    assert found.mean.tolist() == [6.0]


def test_what_is_not_scaled() -> None:
    assert fit_scaling(federation(ONE), labels="none").labels is None
    classes = replace(federation(ONE), labels=np.arange(8) % 2, task=Task("classification", 2))
    assert fit_scaling(classes).labels is None
    values = Scaling(np.zeros(()), np.ones(()), Scaling(np.array([6.0]), np.array([2.0])))
    packed = pack(classes, classes.sources, values)
    assert packed.support.labels.tolist() == [[0, 1], [0, 0]]


def test_without_sources_there_is_nothing_to_scale_by() -> None:
    targets = federation(ONE).with_nodes(federation(ONE).targets)
    with pytest.raises(DataError, match="no source nodes to take mean"):
        fit_scaling(targets, "none")
    assert fit_scaling(targets, "none", labels="none").labels is None


def test_labels_are_packed_scaled_whatever_the_padding() -> None:
    data = federation(TWO)
    scaling = Scaling(
        np.zeros(()), np.ones(()), Scaling(np.array([6.0, 4.0]), np.array([2.0, 1.0]))
    )
    packed = pack(data, data.sources, scaling, torch.float64, sizes=(3, 4))
    assert packed.support.labels[0, :2].tolist() == [[-2.5, 0.0], [-1.5, 0.0]]
    assert packed.query.labels[1, :1].tolist() == [[1.5, 0.0]]
    plain = unpacked(data, data.sources[0], scaling, torch.float64)
    assert torch.equal(plain.query.labels, packed.query.labels[0, :2])
    short = fit_scaling(data).labels
    assert short is not None
    assert short.mean.tolist() == [6.0, 4.0]  # padding repeats samples, sums do not


def test_a_mean_far_from_zero_costs_no_precision() -> None:
    scaling = Scaling(np.zeros(()), np.ones(()), Scaling(np.array([9e6]), np.array([2.0])))
    labels = np.array([[9e6 + 0.25]])
    assert scaling.scaled_labels(labels, torch.float32).tolist() == [[0.125]]


def test_tensors_round_trip_and_older_ones_have_no_labels() -> None:
    values = Scaling(np.array([6.0]), np.array([2.0]))
    both = Scaling(np.array([1.5]), np.array([2.5]), values)
    back = Scaling.from_tensors(both.tensors())
    assert back.labels is not None
    assert (back.labels.mean.tolist(), back.labels.deviation.tolist()) == ([6.0], [2.0])
    older = {name: each for name, each in both.tensors().items() if "label" not in name}
    assert Scaling.from_tensors(older).labels is None
    assert [*replace(both, labels=None).tensors()] == ["mean", "deviation"]


def test_the_setting() -> None:
    assert DataSettings().label_scaling == "standard"
    with pytest.raises(SettingError, match="label_scaling"):
        DataSettings(label_scaling="unit")  # type: ignore[arg-type]
