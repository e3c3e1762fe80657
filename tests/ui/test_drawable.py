from __future__ import annotations

import base64

import numpy as np

from fedmeta.ui.drawable import drawable, finite


def test_colour_images_become_bytes_with_channels_last() -> None:
    image = np.arange(12, dtype=np.uint8).reshape(1, 3, 2, 2)
    found = drawable(image)
    assert (found["kind"], found["channels"], found["height"], found["width"]) == ("image", 3, 2, 2)
    raw = np.frombuffer(base64.b64decode(found["samples"][0]), np.uint8)
    assert (raw.reshape(2, 2, 3) == np.moveaxis(image[0], 0, 2)).all()


def test_images_of_floats_share_one_range() -> None:
    found = drawable(np.array([0.0, 4.0, 8.0, 16.0], np.float32).reshape(2, 1, 1, 2))
    pixels = [list(base64.b64decode(each)) for each in found["samples"]]
    assert pixels == [[0, 64], [128, 255]]


def test_constant_images_are_drawn_too() -> None:
    assert set(base64.b64decode(drawable(np.ones((1, 1, 2, 2)))["samples"][0])) == {0}


def test_signals_run_along_the_longer_axis_and_are_thinned() -> None:
    found = drawable(np.zeros((2, 128, 6), np.float32))
    assert found["kind"] == "signal"
    assert np.shape(found["samples"]) == (2, 6, 64)


def test_long_rows_are_cut_and_nameless_columns_get_names() -> None:
    found = drawable(np.zeros((1, 300)))
    assert (len(found["samples"][0]), found["features"][:2]) == (64, ["x1", "x2"])


def test_json_knows_no_nan() -> None:
    assert [finite(np.nan), finite(-np.inf), finite(0.5)] == [None, None, 0.5]
