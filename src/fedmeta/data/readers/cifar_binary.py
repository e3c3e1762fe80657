"""CIFAR-10 and CIFAR-100 in their binary version: plain records of bytes, nothing to unpickle."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmeta.core.errors import DataError
from fedmeta.data.pool import Array, Pool


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


def read_binary(name: str, folder: Path) -> Pool:
    """Train and test images pooled: (N, 3, 32, 32) uint8, 10 or 100 (fine) classes."""
    layout = BINARY[name]
    class_names = tuple(_content(folder / layout.names).decode(errors="replace").split())
    parts = [
        _read_batch(folder / batch, layout.label_bytes, len(class_names))
        for batch in layout.batches
    ]
    inputs = np.concatenate([part[0] for part in parts])
    labels = np.concatenate([part[1] for part in parts])
    return Pool(inputs, labels, class_names, name, origin=layout.folder)


def _read_batch(path: Path, label_bytes: int, classes: int) -> tuple[Array, Array]:
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
