"""CIFAR-10 and CIFAR-100, from python or binary batches or an .npz, without trusting any pickle."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmeta.core.errors import DataError
from fedmeta.core.input_files import read_regular
from fedmeta.data.pool import Array, Pool
from fedmeta.data.readers.npz import read_npz
from fedmeta.data.readers.pickled_images import ByteArray, load_pickle
from fedmeta.data.readers.search_folders import not_found, places


class _PickledLayout(NamedTuple):
    folder: str
    batches: tuple[str, ...]
    labels: bytes
    names_file: str
    names: bytes


PICKLED = {
    "cifar10": _PickledLayout(
        "cifar-10-batches-py",
        (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
        b"labels",
        "batches.meta",
        b"label_names",
    ),
    "cifar100": _PickledLayout(
        "cifar-100-python", ("train", "test"), b"fine_labels", "meta", b"fine_label_names"
    ),
}


class BinaryLayout(NamedTuple):
    """Where images and names lie, and how many label bytes stand before an image.

    Args:
        folder: as the published archive calls it.
        batches: files of records: the label bytes, then 3 × 32 × 32 bytes.
        label_bytes: 1; 2 for CIFAR-100, whose coarse label comes first and the fine one last.
        names: the file with a class name per line.
    """

    folder: str
    batches: tuple[str, ...]
    label_bytes: int
    names: str

    @property
    def files(self) -> tuple[str, ...]:
        """All files that are needed."""
        return (*self.batches, self.names)


BINARY = {
    "cifar10": BinaryLayout(
        "cifar-10-batches-bin",
        (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
        1,
        "batches.meta.txt",
    ),
    "cifar100": BinaryLayout(
        "cifar-100-binary", ("train.bin", "test.bin"), 2, "fine_label_names.txt"
    ),
}


def read_cifar(name: str, folder: str | None = None) -> Pool:
    """Train and test images pooled: (N, 3, 32, 32) uint8, 10 or 100 (fine) classes.

    Args:
        name: "cifar10" or "cifar100".
        folder: looked in first, then $FEDMETA_DATA. In each, python batches are taken before
            binary ones, and those before an .npz (`cifar10.npz`: x
            (N, 32, 32, 3) uint8, y, class_names).
    """
    looked = places(folder)
    for place in looked:
        for layout in (PICKLED[name], BINARY[name]):
            for batches in (place / layout.folder, place):
                if (batches / layout.batches[0]).exists():
                    return _read_batches(name, batches, layout)
        if (place / f"{name}.npz").exists():
            return read_npz(place / f"{name}.npz")._replace(name=name)
    raise not_found(
        name,
        looked,
        f"run fedmeta data get {name}, or fetch the python version ({PICKLED[name].folder}) from "
        "https://www.cs.toronto.edu/~kriz/cifar.html and unpack it, or make "
        f"{name}.npz with x (N, 32, 32, 3) uint8, y and class_names",
    )


def _read_batches(name: str, folder: Path, layout: _PickledLayout | BinaryLayout) -> Pool:
    if isinstance(layout, BinaryLayout):
        names = tuple(_content(folder / layout.names).decode(errors="replace").split())
        read = partial(_read_records, label_bytes=layout.label_bytes)
    else:
        stored = load_pickle(folder / layout.names_file).get(layout.names, [])
        if not isinstance(stored, list) or not all(isinstance(n, str | bytes) for n in stored):
            raise DataError(f"{folder / layout.names_file} has no class names", "fetch it again")
        names = tuple(n.decode(errors="replace") if isinstance(n, bytes) else n for n in stored)
        read = partial(_read_pickled, labels_key=layout.labels)
    parts = [read(folder / batch, classes=len(names)) for batch in layout.batches]
    inputs, labels = (np.concatenate(each) for each in zip(*parts, strict=True))
    if not len(labels):
        raise DataError(f"{folder} has no images", "fetch it again")
    return Pool(inputs, labels, names, name, origin=layout.folder)


def _read_records(path: Path, label_bytes: int, classes: int) -> tuple[Array, Array]:
    content, width = np.frombuffer(_content(path), np.uint8), label_bytes + 3072
    if len(content) % width or not len(content):
        raise DataError(
            f"{path} has {len(content)} bytes, which is no whole number of images", "fetch it again"
        )
    records = content.reshape(-1, width)
    labels = records[:, label_bytes - 1].astype(np.int64)
    if labels.max() >= classes:
        raise DataError(
            f"{path} has labels up to {labels.max()} for {classes} class names",
            "fetch the folder again",
        )
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), labels


def _content(path: Path) -> bytes:
    try:
        return read_regular(path)
    except FileNotFoundError:
        raise DataError(f"{path} is missing", "unpack the whole archive") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})", "fetch it again") from None


def _read_pickled(path: Path, labels_key: bytes, classes: int) -> tuple[Array, Array]:
    batch = load_pickle(path)
    data, labels = batch.get(b"data"), batch.get(labels_key)
    if (
        not isinstance(data, ByteArray)
        or not isinstance(labels, list)
        or not all(isinstance(label, int) and abs(label) < 2**31 for label in labels)
    ):
        raise DataError(
            f"{path} lacks 'data' (bytes) or {labels_key.decode()!r} (whole numbers)",
            "fetch it again",
        )
    images, numbers = data.array, np.array(labels, dtype=np.int64)
    if images.shape != (len(labels), 3072):
        raise DataError(
            f"{path} has {len(labels)} labels but data of shape {images.shape}",
            "it should be (labels, 3072): fetch it again",
        )
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < classes:
        raise DataError(
            f"{path} has labels from {numbers.min()} to {numbers.max()} for {classes} class names",
            "fetch the folder again",
        )
    return images.reshape(-1, 3, 32, 32), numbers
