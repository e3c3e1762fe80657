"""Invented characters, drawn here: many classes of few samples, for few-shot episodes.

A character is two to five pen strokes. Each of twenty hands draws every character once, with a
slant, a size, a pen and a tremble of its own. Nothing is fetched: the strokes are random numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedmeta.core.randomness import DataPurpose, generator
from fedmeta.data.pool import Pool

Floats = npt.NDArray[np.float32]

_SIDE = 28  # pixels
_STROKES = (2, 5)  # of a character, fewest and most
_POINTS = 40  # along a stroke: less than a pixel apart
_BLOCK = 1000  # images that are drawn at once


def draw_glyphs(seed: int, classes: int = 400, hands: int = 20) -> Pool:
    """Every character by every hand: (classes·hands, 1, 28, 28) uint8, ink 255 on 0.

    Args:
        seed: same seed, same characters and same drawings.
        classes: how many characters.
        hands: drawings of each.

    Example:
        >>> pool = draw_glyphs(seed=0, classes=3, hands=4)
        >>> pool.inputs.shape, pool.labels.tolist()
        ((12, 1, 28, 28), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    """
    rng = generator(seed, DataPurpose.GLYPHS)
    characters, present = _characters(classes, rng)
    styles = _styles(hands, rng)
    images = np.empty((classes * hands, 1, _SIDE, _SIDE), np.uint8)
    label, hand = np.divmod(np.arange(classes * hands), hands)
    for start in range(0, len(images), _BLOCK):
        some = slice(start, start + _BLOCK)
        strokes = _drawn(characters[label[some]], styles[hand[some]], rng)
        images[some, 0] = _inked(strokes, present[label[some]], styles[hand[some], -1])
    width = len(str(classes - 1))
    names = tuple(f"glyph {number:0{width}}" for number in range(classes))
    return Pool(images, label.astype(np.int64), names, "glyphs", origin="strokes drawn here")


def _characters(count: int, rng: np.random.Generator) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The strokes of every character, (count, most, points, 2) in a unit square, and which it has.

    A stroke has four control points, of a cubic Bézier curve or of a line with corners; both are
    linear in them. Two in three strokes begin on the one before.
    """
    most = _STROKES[1]
    shape = (count, most)
    present = np.arange(most) < rng.integers(*_STROKES, count, endpoint=True)[:, None]
    # Most strokes go up, down or across; how far they bend aside says what kind they are.
    angle = rng.integers(8, size=shape) * (np.pi / 4) + rng.normal(0, 0.2, shape)
    length = rng.uniform(0.35, 0.85, shape)
    along = np.stack([np.cos(angle), np.sin(angle)], -1)
    aside = np.stack([-along[..., 1], along[..., 0]], -1)
    bend = rng.normal(0, 0.45, (*shape, 2)) * rng.choice([0.0, 1.0, 1.0], (*shape, 1))
    cornered = rng.random(shape) < 0.35
    third = np.array([0.0, 1 / 3, 2 / 3, 1.0])
    sideways = np.stack([0 * length, bend[..., 0], bend[..., 1], 0 * length], -1)
    control = (length[..., None] * third)[..., None] * along[..., None, :]
    control += (length[..., None] * sideways)[..., None] * aside[..., None, :]
    curves = np.where(cornered[..., None, None], _CORNERED @ control, _CURVED @ control)
    curves += (rng.uniform(0.2, 0.8, (*shape, 2)) - curves.mean(axis=2))[:, :, None]
    joined, place = rng.random(shape) < 2 / 3, rng.integers(_POINTS, size=shape)
    everyone = np.arange(count)
    for stroke in range(1, most):
        onto = curves[everyone, stroke - 1, place[:, stroke]] - curves[:, stroke, 0]
        curves[:, stroke] += (joined[:, stroke, None] * onto)[:, None]
    # All that a character has, brought into the square by one shift and one scale.
    inside = present[:, :, None, None]
    low = np.where(inside, curves, np.inf).min(axis=(1, 2), keepdims=True)
    high = np.where(inside, curves, -np.inf).max(axis=(1, 2), keepdims=True)
    size = np.maximum((high - low).max(axis=-1, keepdims=True), 0.5)
    return ((curves - (low + high) / 2) / size).astype(np.float32), present


def _styles(hands: int, rng: np.random.Generator) -> Floats:
    """(hands, 5): rotation and slant in radians, width and height in pixels, half a pen's width."""
    columns = (
        rng.normal(0, 0.1, hands),
        rng.normal(0, 0.2, hands),
        rng.uniform(15, 22, hands),
        rng.uniform(15, 22, hands),
        rng.uniform(0.75, 1.15, hands),
    )
    return np.stack(columns, -1).astype(np.float32)


def _drawn(characters: Floats, styles: Floats, rng: np.random.Generator) -> Floats:
    """The strokes as hands draw them, in pixels from the top left corner.

    Every drawing has a slip of its own: each stroke is moved, turned, stretched and bent a little,
    and the whole is moved.
    """
    count, most = characters.shape[:2]
    slip = rng.normal(0, 1, (count, most, 3, 2))
    centre = characters.mean(axis=2, keepdims=True)
    matrix = np.eye(2) + 0.15 * rng.normal(0, 1, (count, most, 2, 2))
    time = np.linspace(-1, 1, _POINTS)[:, None]
    moved = centre + (characters - centre) @ matrix.swapaxes(-1, -2) + 0.045 * slip[:, :, :1]
    moved += 0.06 * slip[:, :, 1:2] * time**2 + 0.04 * slip[:, :, 2:] * np.sin(2.5 * time)
    turn, slant, width, height, _ = styles.T
    turn = turn + rng.normal(0, 0.12, count)
    cosine, sine = np.cos(turn), np.sin(turn)
    tilt = np.stack([np.ones(count), -slant, np.zeros(count), np.ones(count)], -1)
    rotation = np.stack([cosine, -sine, sine, cosine], -1).reshape(count, 2, 2)
    scale = np.stack([width, height], -1)[:, :, None] * np.eye(2)
    affine = scale @ rotation @ tilt.reshape(count, 2, 2)
    shift = (_SIDE - 1) / 2 + rng.normal(0, 1.5, (count, 1, 1, 2))
    pixels: Floats = (moved @ affine.swapaxes(-1, -2)[:, None] + shift).astype(np.float32)
    return pixels


def _inked(strokes: Floats, present: npt.NDArray[np.bool_], pen: Floats) -> npt.NDArray[np.uint8]:
    """Images of strokes, with edges that fade within a pixel.

    A point of a stroke lays down a Gaussian blob, a row times a column, so that all blobs of an
    image are one matrix product. Weighed by the length that each stands for, they add up to
    exp(−d²/2σ²) at distance d of a long line, which is cut off at one half.
    """
    step = np.linalg.norm(np.diff(strokes, axis=2), axis=-1)
    length = (np.pad(step, ((0, 0), (0, 0), (1, 0))) + np.pad(step, ((0, 0), (0, 0), (0, 1)))) / 2
    sigma = (pen / np.sqrt(2 * np.log(2)))[:, None, None]
    weight = present[:, :, None] * length / (sigma * np.sqrt(2 * np.pi))
    count = len(strokes)
    points, spread = strokes.reshape(count, -1, 2), 2 * sigma[..., None] ** 2
    blobs = np.exp(-((points[:, :, :, None] - np.arange(_SIDE)) ** 2) / spread)
    rows, columns = blobs[:, :, 1] * weight.reshape(count, -1, 1), blobs[:, :, 0]
    level = rows.swapaxes(1, 2) @ columns
    # The level falls by sqrt(log(2) / 2) / σ per pixel at one half; the ink by 1, or a little more.
    slope = np.maximum(1, sigma / np.sqrt(np.log(2) / 2))
    ink = np.clip((level - 0.5) * slope + 0.5, 0, 1)
    images: npt.NDArray[np.uint8] = np.round(255 * ink).astype(np.uint8)
    return images


def _bases() -> tuple[Floats, Floats]:
    """Points along a stroke as weights of its four control points: curved, and with corners."""
    time = np.linspace(0, 1, _POINTS)[:, None]
    power = np.arange(4)
    curved = np.array([1, 3, 3, 1]) * time**power * (1 - time) ** (3 - power)
    cornered = np.clip(1 - np.abs(3 * time - power), 0, 1)
    return curved.astype(np.float32), cornered.astype(np.float32)


_CURVED, _CORNERED = _bases()
