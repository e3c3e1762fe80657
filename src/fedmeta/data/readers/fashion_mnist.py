"""Fashion-MNIST: 70,000 grey images of 28×28 in ten classes, from its IDX files or an .npz."""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from pathlib import Path

import numpy as np

from fedmeta.core.errors import DataError
from fedmeta.core.input_files import open_regular
from fedmeta.data.pool import Array, Pool
from fedmeta.data.readers.npz import read_npz
from fedmeta.data.readers.search_folders import not_found, places

_MOST = 64 * 2**20  # bytes of an unpacked file; the largest published one has 47 MB
DEBIAN_FOLDER = "/usr/share/datasets/fashion-mnist"
CLASS_NAMES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
# SHA-256 of the decompressed bytes: gzip headers differ between distributors of the same files.
DIGESTS = {
    "train-images-idx3-ubyte.gz": (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
    ),
    "train-labels-idx1-ubyte.gz": (
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
    ),
}


def read_fashion_mnist(folder: str | None = None) -> Pool:
    """Train and test images pooled: (N, 1, 28, 28) uint8.

    Args:
        folder: looked in first; then $FEDMETA_DATA, then where Debian puts the files. In each,
            the four IDX .gz files are taken before a fashion_mnist.npz.
    """
    looked = places(folder, DEBIAN_FOLDER)
    for place in looked:
        if any((place / name).exists() for name in DIGESTS):
            arrays = [_checked(place / name, digest) for name, digest in DIGESTS.items()]
            images = np.concatenate(arrays[0::2])[:, None]
            labels = np.concatenate(arrays[1::2]).astype(np.int64)
            return Pool(images, labels, CLASS_NAMES, "fashion-mnist", origin="IDX files")
        if (place / "fashion_mnist.npz").exists():
            return read_npz(place / "fashion_mnist.npz")._replace(name="fashion-mnist")
    raise not_found(
        "fashion-mnist",
        looked,
        "run fedmeta data get fashion-mnist, or install Debian's package dataset-fashion-mnist, or "
        "fetch the four .gz files from "
        "https://github.com/zalandoresearch/fashion-mnist",
    )


def read_idx(path: Path) -> tuple[Array, str]:
    """One gzipped IDX file of bytes: its array, and the SHA-256 of its decompressed bytes."""
    again = "fetch the file again"
    try:
        with open_regular(path) as raw, gzip.open(raw) as packed:
            content = packed.read(_MOST + 1)
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing", "all four files of fashion-mnist are needed"
        ) from None
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error})", again) from None
    if len(content) > _MOST:
        raise DataError(f"{path} unpacks to more than {_MOST // 2**20} MB", again)
    axes = content[3] if len(content) >= 4 else 0
    # An IDX file of bytes begins with 0, 0, 8 (the type: unsigned byte) and its number of axes.
    if content[:3] != b"\x00\x00\x08" or axes not in (1, 3):
        raise DataError(f"{path} is not an IDX file of bytes (begins {content[:4].hex()})", again)
    start = 4 + 4 * axes
    shape = [int(size) for size in np.frombuffer(content[4:start], ">u4")]
    expected = start + math.prod(shape)
    if len(shape) != axes or len(content) != expected:
        raise DataError(
            f"{path} says it holds {shape}, so {expected} bytes, but has {len(content)}", again
        )
    array = np.frombuffer(content, np.uint8, offset=start).reshape(shape)
    return array, hashlib.sha256(content).hexdigest()


def _checked(path: Path, digest: str) -> Array:
    array, found = read_idx(path)
    if found != digest:
        raise DataError(
            f"{path} is not the published file (SHA-256 {found[:12]}…, not {digest[:12]}…)",
            "fetch the file again",
        )
    return array
