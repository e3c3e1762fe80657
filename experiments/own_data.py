"""Data that a name of `data.name` stands for here: tables that are made up, and people in motion.

Everything is drawn anew by every seed, so that ten seeds are ten fleets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedmeta.core.errors import DataError
from fedmeta.core.user_code import load_object
from fedmeta.data import DataSettings, Federation, Pool
from fedmeta.data.pool import pool_from

MOTION = "hapt_windows.npz"
_PEOPLE = Path(__file__).parents[1] / "examples/motion/people.py"


def people(data: DataSettings, seed: int) -> Federation:
    """A node per person of the motion example: ten windows to adapt to, the last five targets.

    Args:
        data: its folder has the file; without one $FEDMETA_DATA is looked at.
        seed: draws everybody's windows.
    """
    folder = Path(data.folder or os.environ.get("FEDMETA_DATA", "."))
    if not (folder / MOTION).is_file():
        raise DataError(f"there is no {MOTION} in {folder}", "name its folder by --data-folder")
    federation: Federation = load_object(f"{_PEOPLE}:load_people", "data")(folder / MOTION, seed)
    return federation


def bands(seed: int, wearers: int = 40, samples: int = 30) -> Pool:
    """The wristbands of the tutorial: worn one way round or the other, axes change their sign.

    Args:
        seed: same seed, same table.
        wearers: how many people.
        samples: of each.

    Example:
        >>> pool = bands(0)
        >>> pool.inputs.shape, pool.class_names
        ((1200, 4), ('cycling', 'still', 'walking'))
    """
    draw = np.random.default_rng([seed, 0xBA])
    wearer = np.repeat(np.arange(wearers), samples)
    turned = np.where(wearer % 2, 1.0, -1.0)
    activity = draw.integers(3, size=len(wearer))
    middle = np.array([[-2.0, -1.0], [0.0, 0.0], [2.0, 1.0]])[activity] * turned[:, None]
    values = np.column_stack([middle, np.ones(len(wearer)), 0.3 * turned])
    values += draw.normal(0, 0.6, values.shape)
    labels = np.array(["cycling", "still", "walking"])[activity]
    owners = np.array([f"person-{each:02}" for each in wearer])
    return pool_from(values, labels, task="classification", name="bands", owners=owners)


def thermometers(seed: int, devices: int = 40, samples: int = 30) -> Pool:
    """Sensors of a fleet: each has an offset and a gain of its own, labels vary by about 79.

        y = o_i + g_i (2 a + 3 tanh(b) + c·d) · 2 + noise

    Args:
        seed: same seed, same table.
        devices: how many sensors.
        samples: of each.

    Example:
        >>> bool(40 < thermometers(0).labels.var() < 120)
        True
    """
    draw = np.random.default_rng([seed, 0x7E])
    device = np.repeat(np.arange(devices), samples)
    offset, gain = draw.normal(20, 6, devices)[device], draw.uniform(0.5, 1.5, devices)[device]
    x = draw.normal(0, 1, (len(device), 4))
    shared = 2 * (2 * x[:, 0] + 3 * np.tanh(x[:, 1]) + x[:, 2] * x[:, 3])
    y = offset + gain * shared + draw.normal(0, 1, len(device))
    owners = np.array([f"sensor-{each:02}" for each in device])
    scale = np.array([1.0, 100.0, 0.01, 10.0])  # columns of a table have units of their own
    return pool_from(x * scale, y, task="regression", name="thermometers", owners=owners)


TABLES: dict[str, Callable[[int], Pool]] = {"bands.csv": bands, "thermometers.csv": thermometers}
"""By `data.name`; no such files lie anywhere."""
