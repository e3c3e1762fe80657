"""Files that ask for too much, or that are no files, are refused before they cost anything."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedmeta.core.errors import DataError, SettingError
from fedmeta.core.input_files import FLOOR, input_budget
from fedmeta.data import DataSettings, load
from fedmeta.data.loading import read_own
from fedmeta.data.readers import image_folder
from fedmeta.data.readers.image_folder import read_image_folder
from fedmeta.data.readers.pickled_images import load_pickle
from fedmeta.models.networks import ModelSettings, build


def _image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (9, 9)).save(path)


def test_the_budget_can_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert input_budget(10) == FLOOR
    np.savez(tmp_path / "a.npz", x=np.zeros((1000, 10)), y=np.zeros(1000, np.int64))
    monkeypatch.setenv("FEDMETA_INPUT_GB", "0.00001")
    with pytest.raises(DataError, match="set FEDMETA_INPUT_GB"):
        read_own(str(tmp_path / "a.npz"), "classification")
    monkeypatch.setenv("FEDMETA_INPUT_GB", "much")
    with pytest.raises(SettingError, match="FEDMETA_INPUT_GB is 'much'"):
        input_budget(10)


def test_pipes_loops_and_folders_among_images(tmp_path: Path) -> None:
    _image(tmp_path / "a/1.png")
    for make in (os.mkfifo, os.mkdir, lambda path: path.symlink_to("2.png")):
        make(tmp_path / "a/2.png")
        with pytest.raises(DataError, match=r"2\.png"):
            read_image_folder(tmp_path)
        place = tmp_path / "a/2.png"
        place.rmdir() if place.is_dir() else place.unlink()
    assert len(read_image_folder(tmp_path).labels) == 1


def test_no_other_format_under_a_promised_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/1.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    with pytest.raises(DataError, match="is not an image"):
        read_image_folder(tmp_path)


def test_pixels_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _image(tmp_path / "a/1.png")
    monkeypatch.setattr(image_folder, "MOST_PIXELS", 80)
    with pytest.raises(DataError, match="too many pixels"):
        read_image_folder(tmp_path)


def test_nodes_are_held_against_memory() -> None:
    for more in ({"nodes": 10**9}, {"nodes": 10**5, "samples": [2, 10**9]}):
        with pytest.raises(SettingError, match="GB of memory"):
            load(DataSettings("sinusoid", **more), seed=0)  # type: ignore[arg-type]


def test_networks_are_held_against_memory() -> None:
    with pytest.raises(SettingError, match="GB of memory"):
        build(ModelSettings("mlp", hidden=(10**6, 10**6, 10**6)), (1,), 2, seed=0)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02Nr\xff\xff\xff\x1f.",  # a memo of half a billion places
        b"\x80\x02}(N" + b"\x86q\x00h\x00h\x00" * 60 + b"K\x01u.",  # a key that takes 2^60 steps
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        b"\x80\x02}2.",
    ],
)
def test_pickles_that_ask_for_much(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b").write_bytes(content)
    with pytest.raises(DataError):
        load_pickle(tmp_path / "b")


def test_columns_have_a_limit_and_names_are_compared_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",".join(["a"] * 9000) + "\n1\n")
    with pytest.raises(DataError, match="1 name for several columns"):
        read_own(str(tmp_path / "a.csv"), "classification")
    (tmp_path / "a.csv").write_text(",".join(f"c{i}" for i in range(20_001)) + "\n1\n")
    with pytest.raises(DataError, match="20001 columns"):
        read_own(str(tmp_path / "a.csv"), "classification")


def test_a_gzipped_text_is_unpacked_within_its_budget(tmp_path: Path) -> None:
    file = tmp_path / "bomb.csv.gz"
    with gzip.open(file, "wb", compresslevel=1) as opened:
        opened.write(b"a,label\n")
        for _ in range(160):
            opened.write(b"1,0\n" * 2**18)
    with pytest.raises(DataError, match="GB of memory, more than"):
        read_own(str(file), "classification")


def test_a_pipe_is_no_table(tmp_path: Path) -> None:
    for name in ("a.csv", "a.csv.gz", "a.parquet"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(DataError):
            read_own(str(tmp_path / name), "classification")
