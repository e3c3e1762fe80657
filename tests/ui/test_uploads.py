from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmeta.core.errors import DataError
from fedmeta.data.readers import image_folder
from fedmeta.fleet.reopen import open_model
from fedmeta.models.meta_model import MetaModel
from fedmeta.ui import uploads
from fedmeta.ui.uploads import OwnSamples, no_samples, pixel_range, read_upload, split_uploads


@pytest.fixture
def table(runs: Path) -> MetaModel:
    return open_model(runs / "table")


@pytest.fixture
def digits(runs: Path) -> MetaModel:
    return open_model(runs / "digits")


def png(width: int = 20, height: int = 30, mode: str = "RGB", colour: Any = "white") -> bytes:
    image = pytest.importorskip("PIL.Image").new(mode, (width, height), colour)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def read(model: MetaModel, name: str, content: bytes | str, invert: bool = False) -> OwnSamples:
    raw = content.encode() if isinstance(content, str) else content
    return read_upload(model, name, raw, "label", invert=invert)


def test_a_table_by_its_columns_names(table: MetaModel) -> None:
    own = read(table, "mine.csv", "note,height,label,width\nx,2,a,1\ny,4,b,3\nz,6,,5\n")
    assert own.inputs.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert own.labels == ("a", "b", None)
    assert own.names[2] == "mine.csv, row 3"
    assert own.uses[2] == "test"
    assert sorted(own.uses[:2]) == ["adapt", "test"]


def test_half_of_every_class_is_adapted_to(table: MetaModel) -> None:
    rows = "\n".join(f"{i},{i},{'ab'[i % 2]}" for i in range(8))
    own = read(table, "mine.csv", f"width,height,label\n{rows}\n")
    by_class = {c: [u for u, y in zip(own.uses, own.labels, strict=True) if y == c] for c in "ab"}
    assert [each.count("adapt") for each in by_class.values()] == [2, 2]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("mine.csv", "width,label\n1,a\n", "mine.csv has no column 'height'"),
        ("mine.csv", "width,height\n1,x\n", "mine.csv: in column 'height' 1 value not a number"),
        ("mine.csv", "width,height\n", "mine.csv has a header but no rows"),
        ("mine.csv", b"\xff\xff", "mine.csv is not a CSV text"),
        ("mine.csv", "width,height,label\n1,2,z\n", "the model knows no class 'z'"),
        ("mine.csv", "width,height\n" + "1,2\n" * 501, "has 501 rows, and the page takes 500"),
        ("mine.exe", "x", "mine.exe is of a kind that is not read"),
        ("", "x", "is of a kind that is not read"),
        ("mine.parquet", "x", "mine.parquet is not a parquet file"),
    ],
)
def test_what_cannot_be_read_is_told_by_the_users_name(
    table: MetaModel, name: str, content: str | bytes, words: str
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=words) as caught:
        read(table, name, content)
    assert "/tmp" not in str(caught.value)


@pytest.mark.parametrize("name", ["../../etc/passwd.csv", "C:\\x\\mine.csv", "/etc/x.csv"])
def test_names_are_shown_without_their_path(table: MetaModel, name: str) -> None:
    own = read(table, name, "width,height\n1,2\n")
    assert "/" not in own.names[0]
    assert "\\" not in own.names[0]


def test_images_are_made_to_fit(digits: MetaModel) -> None:
    assert pixel_range(digits) == 16
    own = read(digits, "white.png", png())
    assert own.inputs.shape == (1, 1, 8, 8)
    assert set(own.inputs.ravel().tolist()) == {16.0}
    assert set(read(digits, "white.png", png(), invert=True).inputs.ravel().tolist()) == {0.0}
    grey = read(digits, "grey.png", png(mode="L", colour=51))
    assert np.allclose(grey.inputs, 16 * 51 / 255)


@pytest.mark.parametrize("content", [b"", b"no image", png()[:60]])
def test_damaged_images_are_refused(digits: MetaModel, content: bytes) -> None:
    with pytest.raises(DataError, match=r"is (not an image|damaged)"):
        read(digits, "mine.png", content)


def test_huge_images_are_refused(digits: MetaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_folder, "MOST_PIXELS", 100)
    with pytest.raises(DataError, match="too many pixels"):
        read(digits, "mine.png", png())


def test_an_image_for_a_table_is_refused(table: MetaModel) -> None:
    with pytest.raises(DataError, match="takes no images"):
        read(table, "mine.png", png())


def test_sets_grow_up_to_a_limit(table: MetaModel) -> None:
    some = read(table, "mine.csv", "width,height\n" + "1,2\n" * 300)
    assert len((no_samples(table) + some).names) == 300
    with pytest.raises(DataError, match="makes 600 samples"):
        some + some


def test_files_over_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def chunks(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b"x" * 10

    monkeypatch.setattr(uploads, "LIMIT", 25)
    assert asyncio.run(uploads.read_body(chunks(2))) == b"x" * 20
    with pytest.raises(uploads.TooLargeError):
        asyncio.run(uploads.read_body(chunks(3)))


def test_samples_are_divided_by_use_and_label(table: MetaModel) -> None:
    own = read(table, "mine.csv", "width,height\n1,1\n2,2\n3,3\n4,4\n")
    uses = ["adapt", "test", "test", "adapt"]
    support, tested, shown = split_uploads(table, own, ["b", "c", None, ""], uses)
    assert support.inputs.tolist() == [[1, 1]]
    assert support.labels.tolist() == [1]
    assert (tested.inputs.tolist(), tested.labels.tolist()) == ([[2, 2]], [2])
    assert shown.tolist() == [[2, 2], [3, 3]]


@pytest.mark.parametrize(
    ("labels", "uses", "words"),
    [
        (["a"], ["adapt"], "there are 2 samples but 1 labels"),
        ([None, None], ["adapt", "adapt"], "no sample to adapt to has a label"),
        (["a", "a"], ["test", "test"], "no sample to adapt to has a label"),
        (["zebra", "a"], ["adapt", "adapt"], "the model knows no class 'zebra'"),
        ([["a"], "a"], ["adapt", "adapt"], "the model knows no class"),
        ("ab", ["adapt", "adapt"], "labels and uses are missing"),
    ],
)
def test_bad_labels_are_told(table: MetaModel, labels: Any, uses: Any, words: str) -> None:
    own = read(table, "mine.csv", "width,height\n1,1\n2,2\n")
    with pytest.raises(DataError, match=words):
        split_uploads(table, own, labels, uses)


@pytest.mark.parametrize("label", ["x", "nan", [1], {}])
def test_values_must_be_numbers(runs: Path, label: Any) -> None:
    waves = open_model(runs / "waves")
    own = read(waves, "mine.csv", "x\n1\n")
    with pytest.raises(DataError, match="is not a number"):
        split_uploads(waves, own, [label], ["adapt"])
