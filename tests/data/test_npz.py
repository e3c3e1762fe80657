import numpy as np
import pytest

from fedmeta.core.errors import DataError
from fedmeta.data.readers.npz import read_npz


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(
        path,
        x=np.arange(8.0).reshape(4, 2),
        y=np.array([1, 0, 1, 1]),
        coarse=np.array([5, 5, 7, 5]),
        value=np.array([0.5, 1.5, 2.5, 3.5]),
        user=np.array(["u", "v", "u", "v"]),
        class_names=np.array(["no", "yes"]),
    )
    return path


def test_default_arrays(path):
    pool = read_npz(path)
    assert (pool.name, pool.origin, pool.owners) == ("mine", "mine.npz", None)
    assert pool.inputs.dtype == np.float32
    assert (pool.labels.tolist(), pool.class_names) == ([1, 0, 1, 1], ("no", "yes"))


def test_class_names_are_not_put_on_other_labels(path):
    pool = read_npz(path, label="coarse", node="user")
    assert (pool.labels.tolist(), pool.class_names) == ([0, 0, 1, 0], ("5", "7"))
    assert pool.owners.tolist() == ["u", "v", "u", "v"]


def test_regression(path):
    assert read_npz(path, task="regression", label="value").labels.shape == (4, 1)


def test_missing_array_is_told(path):
    with pytest.raises(DataError, match=r"mine.npz has no array 'usr': did you mean 'user'\?"):
        read_npz(path, node="usr")


def test_objects_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "o.npz", x=np.array([{}, {}]), y=[0, 1])
    with pytest.raises(DataError, match=r"o.npz is not an .npz file of plain arrays"):
        read_npz(tmp_path / "o.npz")


def test_nobody_is_advised_to_load_a_file_unsafely(tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"bad.npz is not an .npz file of plain arrays") as refused:
        read_npz(tmp_path / "bad.npz")
    assert "unsafely" not in str(refused.value)
    assert "allow_pickle" not in str(refused.value)


def test_other_files_are_refused(tmp_path, path):
    other = tmp_path / "other.npz"
    np.save(tmp_path / "one.npy", np.zeros(3))
    whole = path.read_bytes()
    single = (tmp_path / "one.npy").read_bytes()
    for content, message in [
        (b"", "not an .npz file"),
        (b"text", "not an .npz file"),
        (whole[: len(whole) // 2], "not an .npz file"),
        (single, "is a single array"),
    ]:
        other.write_bytes(content)
        with pytest.raises(DataError, match=f"other.npz.*{message}"):
            read_npz(other)


def test_real_windows(real_data):
    pool = read_npz(real_data / "hapt_windows.npz", node="subject")
    assert (pool.inputs.shape, pool.task.outputs) == ((10411, 128, 6), 6)
    assert len(np.unique(pool.owners)) == 30
