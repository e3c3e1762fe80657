"""CIFAR-10 and CIFAR-100, from python or binary batches or an .npz, without trusting any pickle."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from fedmeta.core.errors import DataError
from fedmeta.data.pool import Array, Pool
from fedmeta.data.readers.npz import read_npz
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
        names = tuple(each.decode() if isinstance(each, bytes) else str(each) for each in stored)
        read = partial(_read_pickled, labels_key=layout.labels)
    parts = [read(folder / batch, classes=len(names)) for batch in layout.batches]
    inputs, labels = (np.concatenate(each) for each in zip(*parts, strict=True))
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
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} is missing", "unpack the whole archive") from None


def _read_pickled(path: Path, labels_key: bytes, classes: int) -> tuple[Array, Array]:
    batch = load_pickle(path)
    data, labels = batch.get(b"data"), batch.get(labels_key)
    if (
        not isinstance(data, _PickledBytes)
        or not isinstance(labels, list)
        or not all(isinstance(label, int) for label in labels)
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


def load_pickle(path: Path) -> dict[bytes, Any]:
    """A pickled dictionary of plain values and uint8 arrays; anything else is refused unrun."""
    try:
        with path.open("rb") as file:
            content = _OnlyBytesUnpickler(file, encoding="bytes").load()
    except FileNotFoundError:
        raise DataError(f"{path} is missing", "unpack the whole archive") from None
    except DataError as error:
        raise DataError(f"{path}: {error.problem}", error.remedy) from None
    except Exception as error:  # a damaged pickle can fail in any way; none of them is ours
        raise DataError(f"{path} is not a whole pickle ({error})", "fetch it again") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no dictionary", "fetch it again")
    return {key.encode() if isinstance(key, str) else key: value for key, value in content.items()}


class _PickledBytes:
    """Stands in for a numpy array while unpickling, so that numpy never runs a stranger's state."""

    array: Array

    def __setstate__(self, state: tuple[int, tuple[int, ...], _PickledType, bool, bytes]) -> None:
        _version, shape, _type, column_major, content = state
        order: Literal["F", "C"] = "F" if column_major else "C"
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order=order)


class _PickledType:
    """Stands in for a numpy dtype; the only one allowed is the unsigned byte."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        if code not in ("u1", b"u1"):
            raise DataError(f"it holds an array of type {code!r}", "only bytes are read from it")

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which bytes do not have."""


class _OnlyBytesUnpickler(pickle.Unpickler):
    """Knows four names, all of which it answers itself; no other code can be reached."""

    known: ClassVar[dict[tuple[str, str], Callable[..., object]]] = {
        ("numpy.core.multiarray", "_reconstruct"): lambda *_: _PickledBytes(),
        ("numpy._core.multiarray", "_reconstruct"): lambda *_: _PickledBytes(),
        ("numpy", "ndarray"): _PickledBytes,
        ("numpy", "dtype"): _PickledType,
        # How Python 3 writes bytes into an old pickle.
        ("_codecs", "encode"): lambda text, _codec: text.encode("latin1"),
    }

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        try:
            return self.known[module, name]
        except KeyError:
            raise DataError(
                f"it asks for {module}.{name}, which image data do not need",
                "do not trust this file; fetch it again from its origin",
            ) from None
