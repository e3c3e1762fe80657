import sys

import numpy as np
import pytest
from PIL import Image

from fedmeta.core.errors import DataError, MissingExtraError
from fedmeta.data.readers.image_folder import read_image_folder


def save(path, colour, size=(5, 4), mode="RGB"):
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.new(mode, size, colour).save(path)


def test_folders_are_classes(tmp_path):
    save(tmp_path / "dog" / "1.png", (1, 2, 3))
    save(tmp_path / "cat" / "2.png", (4, 5, 6))
    save(tmp_path / "cat" / "1.png", 7, mode="L")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / ".hidden").mkdir()
    pool = read_image_folder(tmp_path)
    assert pool.inputs.shape == (3, 3, 4, 5)
    assert pool.inputs[:, :, 0, 0].tolist() == [[7, 7, 7], [4, 5, 6], [1, 2, 3]]
    assert (pool.labels.tolist(), pool.class_names) == ([0, 0, 1], ("cat", "dog"))


def test_groups_of_classes(tmp_path):
    """Alphabets of characters: both have an "alpha", which are two classes."""
    save(tmp_path / "Greek" / "alpha" / "1.png", 255, mode="1")
    save(tmp_path / "Cyrillic" / "alpha" / "1.png", 0, mode="1")
    save(tmp_path / "Cyrillic" / "beta" / "1.png", 255, mode="1")
    pool = read_image_folder(tmp_path)
    assert pool.class_names == ("Cyrillic/alpha", "Cyrillic/beta", "Greek/alpha")
    assert pool.inputs[:, 0, 0, 0].tolist() == [0, 255, 255]
    (tmp_path / "Greek" / "beta").mkdir()
    with pytest.raises(DataError, match=r"Greek/beta has no images"):
        read_image_folder(tmp_path)


def test_grey_images_have_one_channel(tmp_path):
    save(tmp_path / "a" / "1.png", 9, mode="L")
    save(tmp_path / "b" / "1.png", 1, mode="1")
    pool = read_image_folder(tmp_path)
    assert (pool.inputs.shape, pool.inputs.dtype) == ((2, 1, 4, 5), np.uint8)


def test_different_sizes_name_both_files(tmp_path):
    save(tmp_path / "a" / "1.png", (0, 0, 0))
    save(tmp_path / "a" / "2.png", (0, 0, 0), size=(6, 4))
    with pytest.raises(DataError, match=r"1.png is 5×4 but .*2.png is 6×4: resize all images"):
        read_image_folder(tmp_path)


def test_deep_pixels_are_refused(tmp_path):
    save(tmp_path / "a" / "1.tif", 0, mode="F")
    with pytest.raises(DataError, match=r"1.tif has pixels of type 'F'"):
        read_image_folder(tmp_path)


def test_broken_images_are_told(tmp_path):
    path = tmp_path / "a" / "1.png"
    save(path, (0, 0, 0), size=(50, 40))
    whole = path.read_bytes()
    path.write_bytes(b"text")
    with pytest.raises(DataError, match=r"1.png is not an image"):
        read_image_folder(tmp_path)
    path.write_bytes(whole[:60])
    with pytest.raises(DataError, match=r"1.png is damaged"):
        read_image_folder(tmp_path)


def test_empty_folders_are_told(tmp_path):
    with pytest.raises(DataError, match="has no folders: put the images of each class"):
        read_image_folder(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="a has no images: add some"):
        read_image_folder(tmp_path)


def test_missing_pillow_is_told(tmp_path, monkeypatch):
    save(tmp_path / "a" / "1.png", 0)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"fedmeta\[images\]"):
        read_image_folder(tmp_path)
