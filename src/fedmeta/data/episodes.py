"""N-way K-shot episodes: every node is a small classification task over classes of its own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedmeta.core.errors import DataError
from fedmeta.core.randomness import DataPurpose, generator
from fedmeta.data.federation import Federation, Node, Task, node_names
from fedmeta.data.partition import class_counts, deal, fit
from fedmeta.data.pool import Pool
from fedmeta.data.settings import DataSettings
from fedmeta.data.splitting import choose_targets

Classes = npt.NDArray[np.int64]


def draw_episodes(pool: Pool, settings: DataSettings, seed: int) -> Federation:
    """One node per episode: N classes in random order are its classes 0 … N−1.

    Sources and targets draw from different classes where there are enough of them (a
    `target_share` of the classes, at least N on each side); a note says if there were not.
    No sample is in two episodes; labels of samples in none are −1.

    Args:
        pool: the samples.
        settings: `nodes` episodes of `classes_per_node` classes with `shots` support and
            `queries` query samples of each class.
        seed: same pool, settings and seed: same episodes.
    """
    ways, each = settings.classes_per_node, settings.shots + settings.queries
    names, rng = node_names(settings.nodes), generator(seed, DataPurpose.SAMPLES)
    is_target = choose_targets(names, settings, generator(seed, DataPurpose.ROLES))
    available = class_counts(pool)
    usable = rng.permutation(np.flatnonzero(available >= each))
    if len(usable) < ways:
        raise DataError(
            f"{ways}-way episodes with {each} samples per class need {ways} such classes but "
            f"{pool.name} has {len(usable)}",
            "use fewer classes_per_node, shots or queries",
        )
    sides, notes = _sides(usable, ways, is_target)
    classes = np.stack(
        [rng.choice(sides[int(target)], ways, replace=False) for target in is_target]
    ).astype(np.int64)
    counts = np.full(classes.shape, each, np.int64)
    if sides[0] is sides[1]:
        groups = [(np.ones_like(is_target), usable)]
    else:
        groups = [(~is_target, sides[0]), (is_target, sides[1])]
    for members, allowed in groups:
        stock = np.zeros_like(available)
        stock[allowed] = available[allowed] // each * each  # what is over fits no episode
        if members.any():
            classes[members], redraws = fit(classes[members], counts[members], stock, pool, rng)
            notes += redraws
    classes = rng.permuted(classes, axis=1)  # redrawing may have left an order behind
    owned = deal(pool.labels, classes, counts, rng)

    labels = np.full(len(pool.labels), -1, np.int64)
    labels[np.concatenate(owned)] = np.tile(np.repeat(np.arange(ways), each), settings.nodes)
    nodes = []
    for name, target, positions in zip(names, is_target, owned, strict=True):
        table = positions.reshape(ways, each)
        support, query = table[:, : settings.shots].ravel(), table[:, settings.shots :].ravel()
        nodes.append(Node(name, "target" if target else "source", support, query))
    task = Task("classification", ways, tuple(f"way {number}" for number in range(ways)))
    notes = pool.notes + notes
    return Federation(pool.inputs, labels, task, nodes, pool.name, notes, pool.features)


def _sides(
    usable: Classes, ways: int, is_target: npt.NDArray[np.bool_]
) -> tuple[tuple[Classes, Classes], tuple[str, ...]]:
    """The classes of the sources and those of the targets."""
    if not is_target.any():
        return (usable, usable), ()
    if len(usable) < 2 * ways:
        note = (
            f"source and target episodes share classes: {2 * ways} are needed to keep "
            f"{ways}-way episodes apart and {len(usable)} have enough samples"
        )
        return (usable, usable), (note,)
    count = int(np.clip(round(is_target.mean() * len(usable)), ways, len(usable) - ways))
    return (usable[count:], usable[:count]), ()
