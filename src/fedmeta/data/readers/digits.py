"""The handwritten digits that come with scikit-learn: 1797 images of 8×8, nothing to download."""

from __future__ import annotations

import numpy as np

from fedmeta.core.errors import MissingExtraError
from fedmeta.data.pool import Pool


def read_digits() -> Pool:
    """All 1797 digits: (1797, 1, 8, 8) float32 from 0 to 16, ten classes.

    Example:
        >>> read_digits().inputs.shape
        (1797, 1, 8, 8)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtraError("scikit-learn, which holds the digits,", "digits") from None
    bunch = load_digits()
    names = tuple(str(name) for name in bunch.target_names)
    images = bunch.images.astype(np.float32)[:, None]
    return Pool(images, bunch.target.astype(np.int64), names, "digits", origin="scikit-learn")
