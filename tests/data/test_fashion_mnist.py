import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedmeta.core.errors import DataError
from fedmeta.data.readers import fashion_mnist
from fedmeta.data.readers.fashion_mnist import DEBIAN_FOLDER, DIGESTS, read_fashion_mnist, read_idx

pytestmark = pytest.mark.usefixtures("no_data")


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.tobytes()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Four tiny files in the form of the real ones, 6 train and 4 test images."""
    contents = {
        name: idx(
            np.arange(count, dtype=np.uint8)
            if "labels" in name
            else np.full((count, 28, 28), count, np.uint8)
        )
        for name, count in zip(DIGESTS, (6, 6, 4, 4), strict=True)
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(gzip.compress(content))
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(fashion_mnist, "DIGESTS", digests)
    return tmp_path


def test_train_and_test_are_pooled(folder):
    pool = read_fashion_mnist(str(folder))
    assert pool.inputs.shape == (10, 1, 28, 28)
    assert pool.inputs[:, 0, 0, 0].tolist() == [6] * 6 + [4] * 4
    assert pool.labels.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert pool.task.outputs == 10


def test_environment_names_the_folder(folder, monkeypatch):
    monkeypatch.setenv("FEDMETA_DATA", str(folder))
    assert len(read_fashion_mnist().labels) == 10


def test_npz_is_read_too(tmp_path):
    x = np.zeros((3, 28, 28), np.uint8)
    np.savez(tmp_path / "fashion_mnist.npz", x=x, y=np.array([0, 9, 3], np.uint8))
    pool = read_fashion_mnist(str(tmp_path))
    assert (pool.name, pool.inputs.shape) == ("fashion-mnist", (3, 1, 28, 28))


def test_not_found_says_where_it_looked(tmp_path):
    with pytest.raises(DataError, match=f"looked in: {tmp_path}, /nonexistent.*dataset-fashion"):
        read_fashion_mnist(str(tmp_path))


def rewrite(path, change):
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: b"\x00\x00\x09" + c[3:], "not an IDX file of bytes .begins 00000903"),
        (lambda _: b"", "not an IDX file of bytes"),
        (lambda c: c[:-1], r"says it holds \[6, 28, 28\], so 4720 bytes, but has 4719"),
        (lambda c: c[:8], r"says it holds \[6\]"),
        (lambda c: c[:-1] + b"\x07", "not the published file .SHA-256 "),
    ],
)
def test_damage_is_told(folder, change, message):
    rewrite(folder / "train-images-idx3-ubyte.gz", change)
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte.gz.*{message}"):
        read_fashion_mnist(str(folder))


def test_truncated_gzip_is_told(folder):
    path = folder / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match="not a whole gzip file"):
        read_fashion_mnist(str(folder))
    path.write_bytes(b"plain")
    with pytest.raises(DataError, match="not a whole gzip file"):
        read_idx(path)


def test_missing_file_is_told(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte.gz is missing: all four"):
        read_fashion_mnist(str(folder))


@pytest.mark.slow
@pytest.mark.skipif(
    not Path(DEBIAN_FOLDER).exists(), reason=f"dataset-fashion-mnist is not in {DEBIAN_FOLDER}"
)
def test_real_files_have_the_published_digests():
    pool = read_fashion_mnist(DEBIAN_FOLDER)
    assert pool.inputs.shape == (70000, 1, 28, 28)
    assert np.bincount(pool.labels).tolist() == [7000] * 10


def test_real_npz(real_data):
    pool = read_fashion_mnist(str(real_data))
    assert np.bincount(pool.labels).tolist() == [1500] * 10
    assert pool.class_names == fashion_mnist.CLASS_NAMES
