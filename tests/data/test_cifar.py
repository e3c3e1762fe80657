import pickle
from pathlib import Path

import numpy as np
import pytest

from fedmeta.core.errors import DataError
from fedmeta.data.readers.cifar import read_cifar
from fedmeta.data.readers.pickled_images import load_pickle

pytestmark = pytest.mark.usefixtures("no_data")


def dump(path, content, protocol=2):
    path.write_bytes(pickle.dumps(content, protocol))


def batch(count, seed, key=b"labels", classes=10):
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
    return {b"data": data, key: rng.integers(0, classes, count).tolist()}


@pytest.fixture
def cifar10(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for i in range(1, 6):
        dump(folder / f"data_batch_{i}", batch(4, i))
    dump(folder / "test_batch", batch(3, 9), protocol=3)
    dump(folder / "batches.meta", {"label_names": [f"class {i}" for i in range(10)]})
    return folder


def test_batches_are_pooled_channels_first(cifar10):
    for folder in (cifar10, cifar10.parent):
        pool = read_cifar("cifar10", str(folder))
        assert pool.inputs.shape == (23, 3, 32, 32)
        assert (pool.inputs[4:8].reshape(4, -1) == batch(4, 2)[b"data"]).all()
        assert pool.labels[20:].tolist() == batch(3, 9)[b"labels"]
        assert pool.class_names[3] == "class 3"


def test_cifar100_has_fine_labels(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    dump(folder / "train", batch(5, 0, b"fine_labels", 100))
    dump(folder / "test", batch(2, 1, b"fine_labels", 100))
    dump(folder / "meta", {b"fine_label_names": [f"{i}".encode() for i in range(100)]})
    pool = read_cifar("cifar100", str(tmp_path))
    assert (len(pool.labels), pool.task.outputs, pool.class_names[99]) == (7, 100, "99")


def test_column_major_arrays_are_read_right(tmp_path):
    data = np.asfortranarray(batch(2, 0)[b"data"])
    dump(tmp_path / "b", {"data": data})
    assert (load_pickle(tmp_path / "b")[b"data"].array == data).all()


def test_as_python_2_wrote_it(tmp_path):
    """The opcodes of the published files: byte texts and the old module name."""
    head = b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
    array = b"K\x00\x85U\x01btR(K\x01K\x02K\x03\x86cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
    state = b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    content = b"U\x06\x01\x02\x03\x04\x05\x06tb"
    (tmp_path / "b").write_bytes(head + array + state + content + b"s.")
    assert load_pickle(tmp_path / "b")[b"data"].array.tolist() == [[1, 2, 3], [4, 5, 6]]


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_malicious_pickle_is_refused_unrun(tmp_path, cifar10, protocol):
    dump(cifar10 / "data_batch_1", {b"data": Malicious(tmp_path / "owned")}, protocol)
    with pytest.raises(DataError, match=r"data_batch_1: it asks for .*do not trust this file"):
        read_cifar("cifar10", str(cifar10))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("call", [b"cos\nsystem\n(S'true'\ntR.", b"cbuiltins\neval\n(S'1'\ntR."])
def test_classic_attacks_are_refused(tmp_path, call):
    (tmp_path / "b").write_bytes(call)
    with pytest.raises(DataError, match="which image data do not need"):
        load_pickle(tmp_path / "b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({b"data": np.zeros((1, 3072), object), b"labels": [1]}, "array of type 'O8'"),
        ({b"data": np.zeros((1, 3072)), b"labels": [1]}, "array of type 'f8'"),
        ({b"labels": [1]}, "lacks 'data'"),
        ({b"data": np.zeros((1, 3072), np.uint8)}, "or 'labels'"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["x"]}, "whole numbers"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, r"shape \(2, 3072\)"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}, "labels from 10 to 10"),
        ([1, 2], "holds no dictionary"),
    ],
)
def test_wrong_contents_are_told(cifar10, content, message):
    dump(cifar10 / "test_batch", content)
    with pytest.raises(DataError, match=f"test_batch.*{message}"):
        read_cifar("cifar10", str(cifar10))


def test_truncated_and_missing_files_are_told(cifar10):
    path = cifar10 / "test_batch"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="test_batch is not a whole pickle"):
        read_cifar("cifar10", str(cifar10))
    path.unlink()
    with pytest.raises(DataError, match="test_batch is missing: unpack the whole archive"):
        read_cifar("cifar10", str(cifar10))


def test_not_found_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match=f"looked in: {tmp_path}.*kriz/cifar.html"):
        read_cifar("cifar10", str(tmp_path))


def test_npz_is_read_too(tmp_path):
    x = np.zeros((2, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "cifar100.npz", x=x, y=[0, 1], class_names=["a", "b"])
    pool = read_cifar("cifar100", str(tmp_path))
    assert (pool.name, pool.inputs.shape, pool.class_names) == (
        "cifar100",
        (2, 3, 32, 32),
        ("a", "b"),
    )


def test_real_npz(real_data):
    pool = read_cifar("cifar10", str(real_data))
    assert pool.inputs.shape == (15000, 3, 32, 32)
    assert np.bincount(pool.labels).tolist() == [1500] * 10
    assert pool.class_names[0] == "airplane"
