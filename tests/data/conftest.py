"""What several tests of the data share."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedmeta.data import Pool


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets, or a skip that says what is missing."""
    default = Path(__file__).parents[3] / "shared" / "data"
    folder = Path(os.environ.get("FEDMETA_DATA", default))
    if not (folder / "cifar10.npz").exists():
        pytest.skip(f"no real data in {folder} (set FEDMETA_DATA)")
    return folder


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """No data to be found anywhere but where the test puts them."""
    monkeypatch.delenv("FEDMETA_DATA", raising=False)
    monkeypatch.setattr("fedmeta.data.readers.fashion_mnist.DEBIAN_FOLDER", "/nonexistent/debian")


def pool_of(*per_class: int) -> Pool:
    """A pool with that many samples of class 0, 1, …; each input is its own position."""
    labels = np.repeat(np.arange(len(per_class)), per_class)
    order = np.random.default_rng(0).permutation(len(labels))
    inputs = np.arange(len(labels), dtype=np.float32)[:, None]
    return Pool(inputs, labels[order], tuple(f"c{i}" for i in range(len(per_class))), "toy")
