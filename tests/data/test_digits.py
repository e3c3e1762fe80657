import sys

import numpy as np
import pytest

from fedmeta.core.errors import MissingExtraError
from fedmeta.data.readers.digits import read_digits


def test_digits_are_channels_first_float32():
    pool = read_digits()
    assert (pool.inputs.shape, pool.inputs.dtype) == ((1797, 1, 8, 8), np.float32)
    assert (pool.inputs.min(), pool.inputs.max()) == (0, 16)
    assert np.bincount(pool.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert pool.class_names == tuple("0123456789")


def test_missing_scikit_learn_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedmeta\[digits\]'"):
        read_digits()
