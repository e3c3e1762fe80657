"""From settings, or from arrays in memory, to a federation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmeta.core.errors import DataError, SettingError, nearest
from fedmeta.core.randomness import DataPurpose, generator
from fedmeta.data.federation import Federation, Node, TaskKind
from fedmeta.data.partition import Parts, draw_episodes, partition
from fedmeta.data.pool import Array, Pool, as_array, pool_from
from fedmeta.data.readers.image_folder import read_image_folder
from fedmeta.data.readers.registry import BUILT_IN, FILES
from fedmeta.data.settings import DataSettings
from fedmeta.data.splitting import choose_targets, split, with_precise


def load(settings: DataSettings, seed: int) -> Federation:
    """Read the data the settings name and deal them out to nodes.

    Same files, settings and seed give the same federation (numpy may change its streams between
    versions, so record that too). Which samples a
    node holds, which nodes are targets, how a node splits its samples and what is in its precise
    set are drawn from independent streams of the seed (see `fedmeta.core.randomness`).

    Args:
        settings: which data, and how.
        seed: a whole number of at least 0.

    Raises:
        DataError: for data that are missing, damaged, or too few for what is asked.

    Example:
        >>> federation = load(DataSettings("sinusoid", nodes=10, samples=(10, 10)), seed=0)
        >>> len(federation.sources), len(federation.targets), federation.sources[0].size
        (8, 2, 10)
    """
    return deal_out(read(settings, seed), settings, seed)


def federate(
    x: Array | torch.Tensor,
    y: Array | torch.Tensor,
    node: Array | torch.Tensor | None = None,
    *,
    seed: int = 0,
    name: str = "own data",
    **fields: Any,
) -> Federation:
    """A federation from arrays in memory.

    Args:
        x: (N, *shape) inputs; see `pool_from` for shapes and types. Tensors of types that numpy
            lacks, such as torch.bfloat16, become float32.
        y: (N,) class numbers or names; for task="regression" (N,) or (N, outputs) values.
        node: (N,) whose sample each one is; None: nodes are drawn.
        seed: same arrays, fields and seed: same federation.
        name: what to call the data.
        fields: any other field of `DataSettings`.

    Example:
        >>> x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
        >>> federate(x, y, node=np.arange(40) // 10, target_share=0.25).targets[0].size
        10
    """
    if "label" in fields or "folder" in fields:
        raise SettingError("federate takes no 'label' or 'folder'", "give the labels as y")
    if node is not None:
        fields["node"] = "node"
    settings = DataSettings(name=name, **fields).resolved()
    assert settings.task is not None  # resolved
    owners = None if node is None else as_array(node)
    pool = pool_from(as_array(x), as_array(y), task=settings.task, name=name, owners=owners)
    return deal_out(pool, settings, seed)


def read(settings: DataSettings, seed: int, features: Sequence[str] | None = None) -> Pool:
    """The samples the settings name, not yet dealt out.

    Args:
        settings: which data.
        seed: for data that are drawn.
        features: the columns of a table to read, in this order; None: all. Data of other kinds
            have no columns and do not look at it.
    """
    settings = settings.resolved()
    if settings.name in BUILT_IN:
        return BUILT_IN[settings.name].read(settings, seed)
    assert settings.task is not None  # resolved
    return read_own(settings.name, settings.task, settings.label, settings.node, features)


def read_own(
    name: str,
    task: TaskKind,
    label: str | None = None,
    node: str | None = None,
    features: Sequence[str] | None = None,
) -> Pool:
    """The samples in the user's own file or folder.

    Args:
        name, task, label, node: see `DataSettings`.
        features: see `read`.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        if node or label or task == "regression":
            raise SettingError(
                f"label, node or task 'regression' is set but {path} is a folder of images",
                "its folders are the labels: leave these settings out",
            )
        return read_image_folder(path)
    if not path.is_file():
        if path.suffix or path.name != name:
            raise DataError(f"there is no file or folder {path}", "check the path")
        raise DataError(
            f"there is no data set {name!r}",
            f"{nearest(name, BUILT_IN)}; or give the path of a file or folder",
        )
    ending = path.suffix.lower()
    if ending not in FILES:
        *most, last = FILES
        raise DataError(
            f"{path} is of a kind that is not read", f"give {', '.join(most)} or {last}"
        )
    return FILES[ending](path, task, label, node, features)


def deal_out(pool: Pool, settings: DataSettings, seed: int) -> Federation:
    """A federation from a pool: who holds what, who is a target, what is support and precise."""
    settings = settings.resolved()
    if settings.partition == "episodes":
        return draw_episodes(pool, settings, seed)
    parts = _drop_small(partition(pool, settings, seed), settings.min_samples, pool.name)
    targets = choose_targets(parts.names, settings, generator(seed, DataPurpose.ROLES))
    strata = pool.labels if pool.class_names else np.zeros(len(pool.labels), np.int64)
    sets = split(
        parts.positions, strata, settings.support_share, generator(seed, DataPurpose.SPLIT)
    )
    nodes = [
        Node(name, "target" if target else "source", *sets_of_node)
        for name, target, sets_of_node in zip(parts.names, targets, sets, strict=True)
    ]
    notes = pool.notes + parts.notes
    if settings.precise > 0:
        nodes, more = with_precise(nodes, pool.labels, settings.precise, seed)
        notes += more
    return Federation(pool.inputs, pool.labels, pool.task, nodes, pool.name, notes, pool.features)


def _drop_small(parts: Parts, least: int, name: str) -> Parts:
    kept = [number for number, each in enumerate(parts.positions) if len(each) >= least]
    if len(kept) == len(parts.names):
        return parts
    if not kept:
        largest = max(len(each) for each in parts.positions)
        raise DataError(
            f"none of the {len(parts.names)} nodes of {name} has {least} samples; the largest "
            f"has {largest}",
            "give more data" if least == 2 else "lower min_samples or give more data",
        )
    dropped = [parts.names[n] for n in sorted(set(range(len(parts.names))) - set(kept))]
    shown = ", ".join(dropped[:5]) + (", …" if len(dropped) > 5 else "")
    note = (
        f"{len(dropped)} of {len(parts.names)} nodes were dropped because they have fewer than "
        f"{least} samples: {shown}"
    )
    return Parts(
        [parts.names[n] for n in kept], [parts.positions[n] for n in kept], (*parts.notes, note)
    )
