import numpy as np
import pytest

from fedmeta.core.errors import DataError
from fedmeta.data import DataSettings
from fedmeta.data.splitting import choose_targets


def chosen(count, seed=0, **fields):
    names = [f"n{i}" for i in range(count)]
    return choose_targets(names, DataSettings(**fields), np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("nodes", "share", "targets"),
    [(50, 0.2, 10), (2, 0.01, 1), (2, 0.99, 1), (1, 0.5, 0), (10, 0.0, 0), (3, 0.9, 2)],
)
def test_count(nodes, share, targets):
    assert chosen(nodes, target_share=share).sum() == targets


def test_seeded():
    assert (chosen(50, 1) == chosen(50, 1)).all()
    assert (chosen(50, 1) != chosen(50, 2)).any()


def test_named():
    assert chosen(4, targets=("n1", "n3")).tolist() == [False, True, False, True]
    with pytest.raises(DataError, match=r"no node 'm1' to be a target: .*known: n0, n1"):
        chosen(2, targets=("m1",))
    with pytest.raises(DataError, match="targets names all 2 nodes"):
        chosen(2, targets=("n0", "n1"))
