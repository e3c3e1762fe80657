import re

import numpy as np
import pytest

from fedmeta.core.errors import DataError
from fedmeta.data.pool import Pool, normalised_inputs, pool_from


def classes(inputs, labels, **more):
    return pool_from(
        np.asarray(inputs), np.asarray(labels), task="classification", name="p", **more
    )


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ((5, 8, 9), (5, 1, 8, 9)),
        ((5, 8, 9, 3), (5, 3, 8, 9)),
        ((5, 3, 8, 9), (5, 3, 8, 9)),
        ((5, 7), (5, 7)),
    ],
)
def test_byte_images_get_channels_first(given, shape):
    pool = classes(np.zeros(given, np.uint8), range(5))
    assert pool.inputs.shape == shape
    assert pool.inputs.dtype == np.uint8


def test_channels_are_moved_not_reshaped():
    image = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    pool = classes(image, [0, 1])
    assert (pool.inputs[1, 2] == image[1, :, :, 2]).all()


@pytest.mark.parametrize("kind", [np.float64, np.int16, bool])
def test_other_numbers_become_float32_of_the_same_shape(kind):
    pool = classes(np.ones((2, 6, 4, 3), kind), [0, 1])
    assert (pool.inputs.dtype, pool.inputs.shape) == (np.float32, (2, 6, 4, 3))


def test_normalised_inputs_may_be_empty():
    assert normalised_inputs(np.zeros((0, 8, 9, 3), np.uint8)).shape == (0, 3, 8, 9)
    assert normalised_inputs(np.zeros((0, 4))).dtype == np.float32


def objects(values):
    return np.array(values, dtype=object)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["b", "a"], ("a", "b")),
        ([np.str_("b"), b"a".decode()], ("a", "b")),
        ([b"b", b"a"], ("a", "b")),
        ([10, np.int8(9)], ("9", "10")),
        ([2**62 + 1, 2**62], (str(2**62), str(2**62 + 1))),
        ([10.0, 9], ("9", "10")),
        ([True, np.False_], ("False", "True")),
    ],
)
def test_objects_of_one_kind_are_converted(labels, names):
    pool = classes(objects([[1, 2.5], [3, 4]]), objects(labels), owners=objects(labels))
    assert pool.inputs.tolist() == [[1, 2.5], [3, 4]]
    assert (pool.labels.tolist(), pool.class_names) == ([1, 0], names)
    assert pool.owners.dtype.kind in "biU"


@pytest.mark.parametrize(
    ("values", "types"),
    [
        ([1, "a"], "int, str"),
        ([True, 2], "bool, int"),
        ([None, "a"], "NoneType, str"),
        ([2**70, 1], "int"),
        ([{}, {}], "dict"),
    ],
)
def test_objects_of_other_kinds_are_told(values, types):
    found = f"of p are objects of type {types}: give only texts, only numbers"
    with pytest.raises(DataError, match=f"labels {found}"):
        classes(np.zeros((2, 1)), objects(values))
    with pytest.raises(DataError, match=f"node values {found}"):
        classes(np.zeros((2, 1)), [0, 1], owners=objects(values))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.longdouble, object])
def test_whole_floats_name_nodes(kind):
    owners = classes(np.zeros((2, 1)), [0, 1], owners=np.array([7.0, 12.0], kind)).owners
    assert (owners.tolist(), owners.dtype) == ([7, 12], np.int64)


@pytest.mark.parametrize(
    ("labels", "numbers", "names"),
    [
        (["b", "a", "b"], [1, 0, 1], ("a", "b")),
        ([b"b", b"a", b"b"], [1, 0, 1], ("a", "b")),
        ([10, 9, 10], [1, 0, 1], ("9", "10")),
        ([[10.0], [9.0], [10.0]], [1, 0, 1], ("9", "10")),
        ([True, False, True], [1, 0, 1], ("False", "True")),
    ],
)
def test_classes_are_numbered_in_sorted_order(labels, numbers, names):
    pool = classes(np.zeros((3, 1)), labels)
    assert pool.labels.tolist() == numbers
    assert pool.labels.dtype == np.int64
    assert pool.class_names == names
    assert pool.task.outputs == 2


def test_class_names_keep_the_numbers():
    pool = classes(np.zeros((2, 1)), [2, 0], class_names=["x", "y", "z"])
    assert pool.labels.tolist() == [2, 0]
    assert pool.task.class_names == ("x", "y", "z")


def test_regression_labels_become_columns():
    pool = pool_from(np.zeros((2, 1)), np.array([1, 2]), task="regression", name="p")
    assert pool.labels.tolist() == [[1.0], [2.0]]
    assert (pool.task.kind, pool.task.outputs) == ("regression", 1)


def test_notes_tell_the_origin():
    assert classes(np.zeros((2, 1)), [0, 1], origin="f.npz").notes == ("2 samples from f.npz",)
    assert classes(np.zeros((2, 1)), [0, 1]).notes == ()


def test_only_keeps_owners_in_step():
    pool = classes(np.arange(4)[:, None], [0, 1, 0, 1], owners=np.array([7, 8, 9, 7]))
    kept = pool.only([1])
    assert isinstance(kept, Pool)
    assert kept.owners.tolist() == [8, 7]
    assert kept.inputs.ravel().tolist() == [1, 3]


@pytest.mark.parametrize(
    ("inputs", "labels", "more", "message"),
    [
        (np.zeros((0, 2)), [], {}, "p has no samples"),
        (np.zeros((2, 2)), [0], {}, "p has 2 inputs but 1 labels"),
        (np.zeros((2, 2)), 3, {}, "p has 2 inputs but one labels"),
        (np.zeros((2, 2)), [0, 1], {"owners": np.zeros(3, int)}, "2 inputs but 3 node values"),
        (np.zeros((2, 2)), [0, 1], {"owners": np.array([1, 0.5])}, "node value 0.5 of sample 1"),
        (np.zeros((2, 2)), [0, 1], {"owners": np.array([1, 1e17])}, "node value 1e+17 of sample 1"),
        (np.zeros((2, 2)), [0, 1], {"owners": np.array([np.inf, 1])}, "node value inf of sample 0"),
        (np.zeros((2, 2)), [0, 1], {"owners": np.array([1j, 1])}, "of type complex128"),
        (np.array([["a"], ["b"]]), [0, 1], {}, "inputs of p are of type <U1"),
        (np.zeros(2), [0, 1], {}, "one axis"),
        (np.zeros((2, 7, 8, 9), np.uint8), [0, 1], {}, "shape (7, 8, 9)"),
        (np.zeros((2, 2)), [0.5, 1], {}, "label 0.5 of sample 0 of p is not a class"),
        (np.zeros((2, 2)), [0, np.nan], {}, "label nan of sample 1 of p"),
        (np.zeros((2, 2)), [1j, 2j], {}, "labels of p are of type complex128"),
        (np.zeros((2, 2)), [[0, 1], [0, 1]], {}, "2 values per sample"),
        (np.zeros((2, 2)), [0, 3], {"class_names": ["a", "b"]}, "run from 0 to 3 but there are 2"),
    ],
)
def test_what_is_no_pool_is_refused(inputs, labels, more, message):
    with pytest.raises(DataError, match=re.escape(message)):
        classes(inputs, labels, **more)


def test_regression_needs_numbers():
    with pytest.raises(DataError, match="not numbers"):
        pool_from(np.zeros((1, 1)), np.array(["a"]), task="regression", name="p")
