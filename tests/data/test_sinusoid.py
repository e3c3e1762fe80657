import numpy as np

from fedmeta.data import DataSettings, load
from fedmeta.data.readers.sinusoid import draw_sinusoids


def test_every_node_is_one_wave():
    pool = draw_sinusoids(20, (30, 40), seed=3)
    names, sizes = np.unique(pool.owners, return_counts=True)
    assert len(names) == 20
    assert 30 <= sizes.min() <= sizes.max() <= 40
    assert np.abs(pool.inputs).max() <= 5
    assert pool.task.kind == "regression"
    for name in names:
        mine = pool.owners == name
        x, y = pool.inputs[mine, 0].astype(np.float64), pool.labels[mine, 0]
        # A sin(x − φ) = (A cos φ) sin x − (A sin φ) cos x: two unknowns, no residual.
        (a, b), residual, *_ = np.linalg.lstsq(np.stack([np.sin(x), -np.cos(x)], 1), y, rcond=None)
        assert residual.max() < 1e-20
        assert 0.1 <= np.hypot(a, b) <= 5
        assert 0 <= np.arctan2(b, a) <= np.pi


def test_seeded():
    one, same, other = (draw_sinusoids(3, (5, 9), seed=s) for s in (0, 0, 1))
    assert (one.labels == same.labels).all()
    assert one.labels[0] != other.labels[0]


def test_notes_say_where_samples_come_from() -> None:
    federation = load(DataSettings("sinusoid", nodes=4), seed=0)
    assert federation.notes[0].endswith("samples from waves drawn here")
