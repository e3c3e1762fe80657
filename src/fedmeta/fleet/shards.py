"""An edge's own data: a file of a person's, or the shard that `fedmeta fleet` cut for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fedmeta.core.errors import DataError, RunFolderError
from fedmeta.core.randomness import DataPurpose, generator
from fedmeta.core.storage import read_tensors, write_tensors
from fedmeta.data.federation import Federation, Node, Task
from fedmeta.data.loading import read_own, without_gaps
from fedmeta.data.readers.table import TableSettings
from fedmeta.data.settings import DataSettings
from fedmeta.data.splitting import ordered_split, split

SUFFIX = ".safetensors"
_PARTS = ("support", "query", "precise")


@dataclass(frozen=True)
class EdgeData:
    """Where an edge's samples are.

    Args:
        path: a .csv, .parquet or .npz file, a folder of images, or a shard (`save_shard`).
        label: name of the label column.
        node: name of the column that says whose sample it is; None: all are of one node.
    """

    path: str
    label: str | None = None
    node: str | None = None


def save_shard(path: Path, federation: Federation, nodes: Sequence[Node]) -> None:
    """Write some nodes of a federation, with their samples, to a file of their own."""
    if federation.parts is not None:
        raise DataError(
            f"{federation.name} has several inputs per sample, which are not trained on over a "
            "fleet",
            "train in one process, or join them to one array",
        )
    sets = [getattr(node, part) for node in nodes for part in _PARTS]
    used, places = np.unique(np.concatenate(sets), return_inverse=True)
    about = {
        "name": federation.name,
        "task": [federation.task.kind, federation.task.outputs, list(federation.task.class_names)],
        "local_labels": federation.task.local_labels,
        "few_classes": federation.few_classes,
        "features": list(federation.features),
        "nodes": [
            {"name": node.name, "role": node.role, **{p: len(getattr(node, p)) for p in _PARTS}}
            for node in nodes
        ],
    }
    tensors = {
        "inputs": torch.from_numpy(np.ascontiguousarray(federation.inputs[used])),
        "labels": torch.from_numpy(np.ascontiguousarray(federation.labels[used])),
        "places": torch.from_numpy(places.astype(np.int64)),
    }
    write_tensors(path, tensors, {"about": json.dumps(about)}, private=True)


def load_shard(path: Path) -> Federation:
    """The inverse of `save_shard`."""
    try:
        tensors, text = read_tensors(path, "shard of nodes")
        about = json.loads(text["about"])
        places, nodes = tensors["places"].numpy(), []
        sizes = [each[part] for each in about["nodes"] for part in _PARTS]
        sets = iter(np.split(places, np.cumsum(sizes)[:-1]))
        for each in about["nodes"]:
            nodes.append(Node(each["name"], each["role"], *(next(sets) for _ in _PARTS)))
        kind, outputs, names = about["task"]
        local = bool(about.get("local_labels", False))  # older shards do not say
        task = Task(kind, outputs, tuple(names), local)
        features, few = tuple(about["features"]), about.get("few_classes")
    except (RunFolderError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a shard of nodes ({error})", "write it again") from error
    inputs, labels = tensors["inputs"].numpy(), tensors["labels"].numpy()
    found = Federation(inputs, labels, task, nodes, about["name"], (), features)
    return replace(found, few_classes=few if isinstance(few, bool) else None)


def check_readable(source: EdgeData) -> None:
    """Refuse data that nobody can read, before anyone is waited for.

    What the labels stand for the platform says, so they may be classes or values.
    """
    path = Path(source.path)
    if not path.exists():
        raise DataError(f"there is no file or folder {path}", "check the path")
    if path.suffix == SUFFIX:
        load_shard(path)
        return
    forgiving = TableSettings(missing="mean")  # the platform says what is done about gaps
    try:
        read_own(source.path, "classification", source.label, source.node, table=forgiving)
    except DataError as error:
        try:
            read_own(source.path, "regression", source.label, source.node, table=forgiving)
        except DataError:
            raise error from None


def read_shard(
    source: EdgeData, settings: DataSettings, seed: int, owner: str, role: str = "source"
) -> Federation:
    """The nodes of an edge: those of its shard, or its own file's, split into support and query.

    How a node is split depends on the seed and on its name alone, so that it does not matter which
    edge serves it, or who else there is.

    Args:
        source: where the samples are.
        settings: `task`, `support_share`, `min_samples` and `classes` of the run.
        seed: of the run.
        owner: what the only node is called where no column names any.
        role: of the nodes in a person's own file; a shard says so itself.
    """
    path = Path(source.path)
    if path.suffix == SUFFIX:
        return load_shard(path)
    settings = settings.resolved()
    assert settings.task is not None  # resolved
    columns = settings.task, source.label, source.node, settings.features
    pool = read_own(source.path, *columns, table=settings.table)
    if pool.parts is not None:
        raise DataError(
            f"{path} has several inputs per sample, which are not trained on over a fleet",
            "train in one process, or join them to one array",
        )
    texts = pool.owner_texts
    owners = np.full(len(pool.labels), owner) if texts is None else texts
    strata = pool.labels if pool.class_names else np.zeros(len(pool.labels), np.int64)
    nodes, small = [], 0
    for value in np.unique(owners):
        positions, name = np.flatnonzero(owners == value), str(value)
        if len(positions) < settings.min_samples:
            small += 1
            continue
        rng = generator(seed, DataPurpose.SPLIT, name)
        if pool.times is None:
            ((support, query),) = split([positions], strata, settings.support_share, rng)
        else:
            ((support, query),) = ordered_split([positions], pool.times, settings.support_share)
        nodes.append(Node(name, "target" if role == "target" else "source", support, query))
    if not nodes:
        raise DataError(
            f"no node in {path} has {settings.min_samples} samples", "give it more data"
        )
    notes = (f"{small} nodes have fewer than {settings.min_samples} samples",) if small else ()
    pool = without_gaps(pool, nodes)  # with what this edge knows: means stay where they are
    return Federation(
        pool.inputs, pool.labels, pool.task, nodes, pool.name, notes, tuple(pool.features)
    )


def merged_classes(several: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """All classes that anyone has, in the order in which one file with all of them would have them.

    Example:
        >>> merged_classes([["10", "2"], ["2", "9"]]), merged_classes([["b", "a"], ["b", "a"]])
        (('2', '9', '10'), ('b', 'a'))
    """
    if all(tuple(each) == tuple(several[0]) for each in several):
        return tuple(several[0])
    names = {name for each in several for name in each}
    if all(name.removeprefix("-").isdecimal() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def with_classes(federation: Federation, task: Task) -> Federation:
    """The same nodes, with classes numbered as the whole fleet numbers them."""
    own = federation.task
    if own == task:
        return federation
    unknown = [name for name in own.class_names if name not in task.class_names]
    if own.kind != task.kind or (own.kind == "regression" and own.outputs != task.outputs):
        raise DataError(
            f"{federation.name} has labels for {own.kind} with {own.outputs} outputs, the run is "
            f"{task.kind} with {task.outputs}",
            "check the label column",
        )
    if unknown:
        raise DataError(
            f"{federation.name} has class {unknown[0]!r}, which the run does not know",
            "let an edge with that class be there when the run starts",
        )
    numbers = np.array([task.class_names.index(name) for name in own.class_names])
    return replace(federation, labels=numbers[federation.labels], task=task)
