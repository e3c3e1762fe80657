import numpy as np
import pytest

from fedmeta.data import DataSettings, load
from fedmeta.data.loading import deal_out
from fedmeta.data.readers.glyphs import draw_glyphs


@pytest.fixture(scope="module")
def pool():
    return draw_glyphs(seed=0)


def test_four_hundred_characters_by_twenty_hands(pool):
    assert (pool.inputs.shape, pool.inputs.dtype) == ((8000, 1, 28, 28), np.uint8)
    assert np.bincount(pool.labels).tolist() == [20] * 400
    assert pool.class_names[0] == "glyph 000"
    assert pool.class_names[-1] == "glyph 399"
    assert len(set(pool.class_names)) == 400


def test_same_seed_same_drawings(pool):
    few = draw_glyphs(seed=3, classes=5, hands=2)
    assert (few.inputs == draw_glyphs(seed=3, classes=5, hands=2).inputs).all()
    assert (few.inputs != draw_glyphs(seed=4, classes=5, hands=2).inputs).any()


def test_every_drawing_is_ink_on_nothing(pool):
    images = pool.inputs[:, 0]
    inked = (images > 127).mean(axis=(1, 2))
    assert inked.min() > 0.01
    assert inked.max() < 0.5
    assert images.max(axis=(1, 2)).min() == 255
    assert (images == 0).mean() > 0.7
    border = np.r_[images[:, 0].ravel(), images[:, -1].ravel(), images[:, :, 0].ravel()]
    assert (border > 0).mean() < 0.02


def test_hands_differ_and_characters_differ_more(pool):
    """Nearest neighbours by pixels: far above chance (20 %), far below what can be learned."""
    images = (pool.inputs / 255.0).reshape(400, 20, -1)
    rng, right = np.random.default_rng(0), []
    for _ in range(200):
        ways = rng.choice(400, 5, replace=False)
        shown, asked = images[ways, 0], images[ways, 1:6].reshape(25, -1)
        nearest = ((asked[:, None] - shown) ** 2).sum(-1).argmin(1)
        right.append((nearest == np.repeat(np.arange(5), 5)).mean())
    assert 0.35 < np.mean(right) < 0.6
    assert len(np.unique(images.reshape(8000, -1), axis=0)) == 8000


@pytest.mark.parametrize("shots", [1, 5])
def test_140_episodes_of_five_ways(pool, shots):
    asked = DataSettings("glyphs", partition="episodes", nodes=140, shots=shots)
    drawn = deal_out(pool, asked, seed=0)
    assert drawn.task.class_names == ("way 0", "way 1", "way 2", "way 3", "way 4")
    assert drawn.task.local_labels
    assert len(drawn.targets) == 28
    for node in drawn.nodes:
        assert np.bincount(drawn.labels[node.support]).tolist() == [shots] * 5
    seen, new = (
        {int(c) for node in nodes for c in pool.labels[np.r_[node.support, node.query]]}
        for nodes in (drawn.sources, drawn.targets)
    )
    assert not seen & new
    assert not any("share classes" in note for note in drawn.notes)


def test_they_are_dealt_out_as_episodes_where_nothing_is_said():
    assert DataSettings("glyphs").resolved().partition == "episodes"
    assert load(DataSettings("glyphs", nodes=10), seed=1).task.outputs == 5
