"""From settings to a federation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedmeta.core.errors import DataError, SettingError, nearest
from fedmeta.core.input_files import check_memory
from fedmeta.core.randomness import DataPurpose, generator
from fedmeta.data.encoding import Encoding
from fedmeta.data.episodes import draw_episodes
from fedmeta.data.federation import Federation, Node, TaskKind
from fedmeta.data.named_inputs import InputParts
from fedmeta.data.partition import Parts, partition
from fedmeta.data.pool import Pool
from fedmeta.data.readers.image_folder import read_image_folder
from fedmeta.data.readers.npz import read_npz
from fedmeta.data.readers.registry import BUILT_IN
from fedmeta.data.readers.table import TABLES, TableSettings, is_table, read_table
from fedmeta.data.settings import DataSettings
from fedmeta.data.splitting import choose_targets, ordered_split, split, with_precise

_NODE, _SAMPLE = 1000, 40  # bytes: what a node, and each of its samples, take besides the data


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


def read(settings: DataSettings, seed: int, encoding: Encoding | None = None) -> Pool:
    """The samples the settings name, not yet dealt out.

    Args:
        settings: which data.
        seed: for data that are drawn.
        encoding: of a model that a table is read for; None: as the settings say. Data of other
            kinds have no columns and do not look at it.
    """
    settings = settings.resolved()
    _check_nodes(settings)
    if settings.name in BUILT_IN:
        return BUILT_IN[settings.name].read(settings, seed)
    assert settings.task is not None  # resolved
    own = settings.task, settings.label, settings.node, settings.features
    return read_own(settings.name, *own, table=settings.table, encoding=encoding)


def _check_nodes(settings: DataSettings) -> None:
    """Refuse more drawn nodes than memory can hold, before any is drawn."""
    if settings.partition == "column" and settings.name not in BUILT_IN:
        return  # the nodes are those of the file
    samples = settings.samples[1]
    if settings.samples_per_class is not None:
        samples = settings.samples_per_class[1] * settings.classes_of_a_node
    if settings.partition == "episodes":
        samples = (settings.shots + (settings.queries or 1)) * settings.classes_of_a_node
    check_memory(
        f"{settings.nodes} nodes of up to {samples} samples",
        settings.nodes * (_NODE + _SAMPLE * samples),
        "ask for fewer nodes or samples",
    )


def read_own(
    name: str,
    task: TaskKind,
    label: str | None = None,
    node: str | None = None,
    features: Sequence[str] | None = None,
    *,
    table: TableSettings = TableSettings(),
    encoding: Encoding | None = None,
    parts: InputParts | None = None,
) -> Pool:
    """The samples in the user's own file or folder.

    Args:
        name, task, label, node, features: see `DataSettings`; of an .npz file, features are the
            names of its arrays where there are several inputs.
        table: how a table is read.
        encoding: see `read`.
        parts: likewise, of a model with several inputs.
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
    if is_table(path):
        return read_table(path, task, label, node, features, table, encoding)
    if path.suffix.lower() != ".npz":
        kinds = ", ".join([".npz", *TABLES[:-1]])
        remedy = f"give {kinds} or {TABLES[-1]}; a spreadsheet saves one as 'CSV UTF-8'"
        raise DataError(f"{path} is of a kind that is not read", remedy)
    if table.drop or table.time or table.text:
        raise SettingError(
            f"drop, time or text is set but {path} has no columns", "leave these settings out"
        )
    return read_npz(path, task, label, node, features or (), parts)


def deal_out(pool: Pool, settings: DataSettings, seed: int) -> Federation:
    """A federation from a pool: who holds what, who is a target, what is support and precise."""
    settings = settings.resolved()
    if settings.partition == "episodes":
        return draw_episodes(without_gaps(pool, ()), settings, seed)
    try:
        parts = _drop_small(partition(pool, settings, seed), settings.min_samples, pool.name)
    except DataError as error:  # a forgotten node column is likelier than too little data
        hint = next((each for each in pool.remarks if "--node" in each), None)
        if hint is None:
            raise
        raise DataError(error.problem, f"{hint}; or {error.remedy}") from None
    targets = choose_targets(parts.names, settings, generator(seed, DataPurpose.ROLES))
    strata = pool.labels if pool.class_names else np.zeros(len(pool.labels), np.int64)
    if pool.times is not None:
        sets = ordered_split(parts.positions, pool.times, settings.support_share)
    else:
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
    pool = without_gaps(pool, nodes)
    parts_of_pool = pool.inputs, pool.labels, pool.task
    about = pool.features, pool.encoding, pool.parts
    return Federation(*parts_of_pool, nodes, pool.name, notes, *about)


def without_gaps(pool: Pool, nodes: Sequence[Node]) -> Pool:
    """The pool with gaps of a table filled: with the means over the source nodes' samples.

    Args:
        pool: its inputs are changed in place.
        nodes: who holds what.
    """
    if pool.encoding is None or pool.encoding.missing != "mean":
        return pool
    encoding = pool.encoding
    if not encoding.means:
        held = [
            each for node in nodes if node.role == "source" for each in (node.support, node.query)
        ]
        rows = np.sort(np.concatenate(held)) if held else np.arange(len(pool.inputs))
        encoding = encoding.with_means(pool.inputs, rows)
    return pool._replace(inputs=encoding.filled(pool.inputs), encoding=encoding)


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
