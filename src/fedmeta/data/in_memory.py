"""A federation from what is in memory: arrays, data frames, or the data of every client."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedmeta.core.errors import DataError, SettingError, in_python
from fedmeta.data.columns import Column, Table, from_array, table_of_frame
from fedmeta.data.faults import such_as
from fedmeta.data.federation import Federation, node_names
from fedmeta.data.given_inputs import is_named, one_by_one
from fedmeta.data.loading import deal_out
from fedmeta.data.named_inputs import InputParts
from fedmeta.data.pool import Array, Pool, as_array, pool_from
from fedmeta.data.readers.table import pool_of_table
from fedmeta.data.settings import DataSettings


def federate(
    x: Any,
    y: Any = None,
    node: Any = None,
    *,
    seed: int = 0,
    name: str = "own data",
    **fields: Any,
) -> Federation:
    """A federation from arrays, a data frame, or clients.

    Args:
        x: (N, *shape) inputs; see `pool_from` for shapes and types (tensors of types that numpy
            lacks, such as torch.bfloat16, become float32). Or several inputs, a mapping of names to
            such arrays or a list with a mapping per sample, or sequences of different lengths, a
            list of arrays (see `fedmeta.data.named_inputs`). Or a pandas, polars or pyarrow table,
            whose columns become features as those of a file do and are matched by name later. Or
            clients: a mapping of names to (inputs, labels), to `torch.utils.data.Dataset`s of such
            pairs or to `DataLoader`s, or a list of these; then y and node are left out. Or clients
            with a table each; then y names the label column.
        y: (N,) class numbers or names; for task="regression" (N,) or (N, outputs) values. Of a
            table also the name of the label column.
        node: (N,) whose sample each one is, of a table also the name of the column; None: nodes
            are drawn.
        seed: same data, fields and seed: same federation.
        name: what to call the data.
        fields: any other field of `DataSettings`.

    Example:
        >>> x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
        >>> federate(x, y, node=np.arange(40) // 10, target_share=0.25).targets[0].size
        10
        >>> federate({"a": (x[:20], y[:20]), "b": (x[20:], y[20:])}).nodes[0].name
        'a'
    """
    if "label" in fields or "folder" in fields:
        raise SettingError("federate takes no 'label' or 'folder'", "give the labels as y")
    if node is None and (joined := _joined_tables(x)) is not None:
        if not isinstance(y, str):
            raise SettingError(
                "the clients have tables, but y names no column of them", "give y, e.g. y='state'"
            )
        x, node = joined
    elif y is None and node is None and table_of_frame(x) is None and not isinstance(x, np.ndarray):
        x, y, node = _clients(x)
    if y is None:
        raise SettingError(
            "there are no labels",
            "use federate(x, y, node), where y and node of a table may be names of its columns",
        )
    if node is not None:
        fields["node"] = node if isinstance(node, str) else "node"
    settings = DataSettings(name=name, **fields).resolved()
    assert settings.task is not None  # resolved
    table = table_of_frame(x, name)
    if table is not None:
        pool = _pool_of_frame(table, y, node, settings)
        remarks = tuple(map(in_python, pool.remarks))
        return deal_out(pool._replace(remarks=remarks), settings, seed)
    if isinstance(y, str) or isinstance(node, str):
        raise SettingError(
            "y or node names a column, but x is no table", "give one value per sample"
        )
    owners = None if node is None else as_array(node)
    parts = None
    if is_named(x):
        parts, x = InputParts.of(x)
    pool = pool_from(as_array(x), as_array(y), task=settings.task, name=name, owners=owners)
    return deal_out(pool._replace(parts=parts), settings, seed)


def _pool_of_frame(table: Table, y: Any, node: Any, settings: DataSettings) -> Pool:
    named: dict[str, Array] = {}
    columns = {"label": y, "node": node}
    for what, given in columns.items():
        if given is not None and not isinstance(given, str):
            column, values = f"({what})", as_array(given)  # a name that no file has
            if len(values) != table.rows:
                raise DataError(
                    f"{table.where} has {table.rows} rows but {len(values)} {what}s",
                    "give one per row",
                )
            named[column], columns[what] = values, column
    several = isinstance(columns["label"], str) and named.get("(label)", np.empty(0)).ndim == 2
    if several:
        named["(label)"] = np.zeros(table.rows)

    def load(name: str, written: bool) -> Column:
        if name in named:
            return from_array(name, named[name], written=written)
        return table.column(name, written=written)

    both = replace(table, names=(*table.names, *named), load=load)
    how = settings.task or "classification", columns["label"], columns["node"], settings.features
    pool = pool_of_table(both, settings.name, "", *how, settings.table)
    assert pool.encoding is not None
    label, owner = (None if each in named else each for each in columns.values())
    ignored = tuple(each for each in pool.encoding.ignored if each not in named)
    encoding = replace(pool.encoding, ignored=ignored, label=label, node=owner)
    pool = pool._replace(encoding=encoding)
    if not several:
        return pool
    if len(pool.labels) != table.rows:
        raise DataError("rows were left out of a table with several outputs", "drop them first")
    return pool._replace(labels=as_array(y).astype(np.float64))


def _joined_tables(clients: Any) -> tuple[Any, Array] | None:
    """One table of all clients' tables, and whose row each one is; None: they are no tables."""
    if isinstance(clients, Mapping):
        named = {str(name): each for name, each in clients.items()}
    elif isinstance(clients, list | tuple):
        named = dict(zip(node_names(len(clients)), clients, strict=True))
    else:
        return None
    tables = {name: table_of_frame(each, f"client {name!r}") for name, each in named.items()}
    first = next(iter(tables.values()), None)
    if first is None:
        return None
    for name, table in tables.items():
        if table is None or {*table.names} != {*first.names}:
            odd = {*first.names} ^ {*(table.names if table is not None else ())}
            raise DataError(
                f"client {name!r} has no table like the first one's"
                + (f" ({such_as(sorted(odd))})" if table is not None else ""),
                "give all clients the same columns",
            )
    kinds = {type(each).__module__.split(".")[0] for each in named.values()}
    if len(kinds) > 1:
        raise DataError(f"the clients have tables of {' and '.join(sorted(kinds))}", "use one kind")
    library = importlib.import_module(kinds.pop())
    parts = [each.collect() if hasattr(each, "collect") else each for each in named.values()]
    if hasattr(library, "concat_tables"):  # pyarrow
        joined = library.concat_tables([each.select(list(first.names)) for each in parts])
    else:
        joined = library.concat([each[list(first.names)] for each in parts])
    counts = [table.rows for table in tables.values() if table is not None]
    return joined, np.repeat(list(tables), counts)


def _clients(clients: Any) -> tuple[Any, Array, Array]:
    """Inputs, labels and owners of all clients together."""
    if isinstance(clients, Mapping):
        named = {str(name): each for name, each in clients.items()}
    elif isinstance(clients, Sequence) and not isinstance(clients, str):
        named = dict(zip(node_names(len(clients)), clients, strict=True))
    else:
        raise SettingError(
            f"a federation cannot be made of {type(clients).__name__}",
            "give arrays with y, a table, or clients: a mapping of names to (inputs, labels)",
        )
    if not named:
        raise DataError("there are no clients", "give at least one")
    pairs = {name: _pair(name, each) for name, each in named.items()}
    labels = np.concatenate([pair[1] for pair in pairs.values()])
    owners = np.repeat(list(pairs), [len(pair[1]) for pair in pairs.values()])
    if any(isinstance(inputs, list) for inputs, _ in pairs.values()):
        return [sample for inputs, _ in pairs.values() for sample in inputs], labels, owners
    shapes = {name: inputs.shape[1:] for name, (inputs, _) in pairs.items()}
    first = next(iter(shapes))
    other = next((each for each in shapes if shapes[each] != shapes[first]), None)
    if other is not None:
        raise DataError(
            f"samples of client {first!r} have shape {shapes[first]}, of {other!r} {shapes[other]}",
            "all clients share one model: give samples of one shape",
        )
    inputs = np.concatenate([pair[0] for pair in pairs.values()])
    return inputs, labels, owners


def _pair(name: str, client: Any) -> tuple[Any, Array]:
    """Inputs and labels of one client; inputs as a list where a sample is no plain array."""
    inputs: Any
    if isinstance(client, torch.utils.data.DataLoader):
        client = client.dataset  # batches and their order are the training's business
    if isinstance(client, tuple) and len(client) == 2:
        given, labels = client[0], as_array(client[1])
        inputs = one_by_one(given) if is_named(given) else as_array(given)
    elif isinstance(client, torch.utils.data.Dataset):
        # Not by iter(client): what has __getitem__ alone need not raise IndexError at its end.
        data: Any = client
        sized = hasattr(data, "__len__")
        samples = [data[place] for place in range(len(data))] if sized else list(data)
        if not samples:
            raise DataError(f"client {name!r} has no samples", "leave it out")
        if any(not isinstance(each, tuple | list) or len(each) != 2 for each in samples):
            raise DataError(
                f"samples of client {name!r} are no pairs", "give a Dataset of (input, label)"
            )
        given = [sample[0] for sample in samples]
        inputs = given if is_named(given) else np.stack([*map(as_array, given)])
        labels = np.stack([as_array(sample[1]) for sample in samples])
    else:
        raise DataError(
            f"client {name!r} is a {type(client).__name__}",
            "give (inputs, labels), a torch Dataset of such pairs or its DataLoader, or a table",
        )
    if (
        (not isinstance(inputs, list) and inputs.ndim == 0)
        or labels.ndim == 0
        or len(inputs) != len(labels)
    ):
        raise DataError(f"client {name!r} has not as many labels as inputs", "give one per sample")
    return inputs, labels
