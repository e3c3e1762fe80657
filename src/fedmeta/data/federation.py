"""A federation: one pool of samples and, for every node, which of them are its own.

Nodes hold positions into the pool, not copies, so a hundred thousand nodes stay cheap and
"no sample belongs to two nodes" is a statement about integers that can be checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from fedmeta.core.errors import DataError
from fedmeta.core.notebook import facts_table

if TYPE_CHECKING:
    from fedmeta.data.encoding import Encoding
    from fedmeta.data.named_inputs import InputParts

Role = Literal["source", "target"]
TaskKind = Literal["classification", "regression"]
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """What the labels mean.

    Args:
        kind: "classification" (labels are class numbers) or "regression" (labels are values).
        outputs: how many numbers a model returns per sample (C classes, or label columns).
        class_names: names of the classes, in the order of their numbers; empty for regression.
        local_labels: whether the same number is another class on every node, as in episodes: then
            numbers say nothing, and training may draw them anew.
    """

    kind: TaskKind
    outputs: int
    class_names: tuple[str, ...] = ()
    local_labels: bool = False

    def with_outputs(self, outputs: int) -> Task:
        """The same for a model with more outputs than there are classes; the others have numbers.

        Example:
            >>> Task("classification", 2, ("cat", "dog")).with_outputs(4).class_names
            ('cat', 'dog', 'output 2', 'output 3')
        """
        known = self.class_names
        spare = tuple(f"output {number}" for number in range(len(known), outputs))
        return replace(self, outputs=outputs, class_names=(*known, *spare) if known else ())


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """One device: its name, its role, and where its samples lie in the pool.

    Args:
        name: like no other.
        role: "source" or "target".
        support: what it adapts on.
        query: what it is judged on, and what a source learns from.
        precise: of a target, further samples to judge it on, which no source holds; they may be
            its own query samples and those of other targets, and do not count as its own.
    """

    name: str
    role: Role
    support: Positions
    query: Positions
    precise: Positions = field(default_factory=lambda: np.empty(0, np.int64))

    def __repr__(self) -> str:
        """A line, however many samples it has."""
        sizes = f"{len(self.support)} support, {len(self.query)} query"
        return f"Node({self.name!r}, {self.role}, {sizes})"

    @property
    def size(self) -> int:
        """D_i = |support| + |query|, in samples."""
        return len(self.support) + len(self.query)


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Nodes over one pool of samples.

    Args:
        inputs: (N, *shape) array, uint8 images (channels first) or floats.
        labels: (N,) int64 class numbers, or (N, outputs) floats for regression.
        task: what the labels mean.
        nodes: the devices; sources train, targets only ever adapt.
        name: where the data came from, for people.
        notes: what the reader should know of how it was drawn (redraws, dropped nodes, …).
        features: names of the columns of `inputs`, where they come from a table; else empty.
        encoding: how the columns of a table became inputs, to do the same with others; else None.
        parts: what a row of `inputs` consists of, where samples have several inputs; else None.
        few_classes: whether sources hold few of the classes, where the samples at hand cannot tell
            since they are not all of them (see the module `few_classes`); None: they can.

    Raises:
        DataError: on an empty support or query set, a sample in two places, a precise set that is
            not a target's or has samples of its support set or of a source, non-finite features,
            feature names that are not one per column.

    Example:
        >>> pool = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
        >>> nodes = [Node("a", "source", np.array([0, 1]), np.array([2, 3]))]
        >>> Federation(*pool, Task("classification", 2, ("no", "yes")), nodes).sources[0].size
        4
    """

    inputs: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    task: Task
    nodes: Sequence[Node]
    name: str = "own data"
    notes: tuple[str, ...] = field(default=())
    features: tuple[str, ...] = ()
    encoding: Encoding | None = None
    parts: InputParts | None = None
    few_classes: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        _check(self)

    def __repr__(self) -> str:
        """A line, however many samples there are."""
        counts = f"{len(self.sources)} source and {len(self.targets)} target nodes"
        return f"Federation({self.name}: {counts}, {len(self.labels)} samples, {self.task.kind})"

    def _repr_html_(self) -> str:
        """The same for a notebook, with the sizes of nodes and the classes."""
        sizes = [node.size for node in self.nodes]
        shape = " × ".join(map(str, self.inputs.shape[1:]))
        if self.parts is not None:
            shape = ", ".join(f"{n} {tuple(s)}" for n, s in self.parts.shapes.items())
        outputs = f"{self.task.outputs} {'classes' if self.task.class_names else 'outputs'}"
        facts = {
            "nodes": f"{len(self.sources)} sources, {len(self.targets)} targets",
            "samples": f"{sum(sizes):,} of shape {shape}; {min(sizes)} to {max(sizes)} per node",
            "task": f"{self.task.kind}, {outputs}",
            **({"classes": _shortlist(self.task.class_names)} if self.task.class_names else {}),
            **({"features": _shortlist(self.features)} if self.features else {}),
            **({"notes": "; ".join(self.notes)} if self.notes else {}),
        }
        return facts_table(f"Federation {self.name}", facts)

    @property
    def sources(self) -> tuple[Node, ...]:
        """The nodes that train."""
        return tuple(node for node in self.nodes if node.role == "source")

    @property
    def targets(self) -> tuple[Node, ...]:
        """The nodes that arrive later and only adapt."""
        return tuple(node for node in self.nodes if node.role == "target")

    @property
    def class_counts(self) -> tuple[int, ...]:
        """n_c: how many samples of every class the sources have; empty for regression."""
        if self.task.kind == "regression":
            return ()
        held = [each for node in self.sources for each in (node.support, node.query)]
        labels = self.labels[np.concatenate(held)] if held else np.empty(0, np.int64)
        return tuple(np.bincount(labels, minlength=self.task.outputs).tolist())

    def node(self, name: str) -> Node:
        """The node of that name."""
        for node in self.nodes:
            if node.name == name:
                return node
        known = [node.name for node in self.targets or self.nodes]
        more = f", … ({len(known)} in all)" if len(known) > 20 else ""
        raise DataError(
            f"there is no node {name!r} in {self.name}",
            f"use one of: {', '.join(known[:20])}{more}",
        )

    def with_nodes(self, nodes: Iterable[Node]) -> Federation:
        """The same pool with other nodes."""
        return replace(self, nodes=tuple(nodes))

    def hold_out(self, share: float, seed: int) -> Federation:
        """Only the sources, a seeded `share` of which plays target: what tuning may look at.

        The real targets are gone from the result, so nothing judged on it has seen them; nor has
        it seen samples of no node: what plays target has no precise set.
        """
        sources = self.sources
        count = max(1, round(share * len(sources)))
        if count >= len(sources):
            raise DataError(
                f"holding out {share:.0%} of {len(sources)} source nodes leaves none to train",
                "use more source nodes or a smaller share",
            )
        held = set(np.random.default_rng([seed, 0x7E1D]).permutation(len(sources))[:count].tolist())
        return self.with_nodes(
            replace(node, role="target" if i in held else "source")
            for i, node in enumerate(sources)
        )


def _shortlist(names: Sequence[str], most: int = 12) -> str:
    """The first of some names, and how many more there are."""
    more = f", … ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def node_names(count: int) -> list[str]:
    """Names of drawn nodes, all of one length so that they sort as they are numbered.

    Example:
        >>> node_names(2)
        ['node-000', 'node-001']
    """
    width = max(3, len(str(count - 1)))
    return [f"node-{number:0{width}}" for number in range(count)]


def describe(federation: Federation) -> dict[str, Any]:
    """A federation in numbers, as plain values that JSON can hold, without a single sample.

    Returns:
        `name`, `task` (kind, outputs, class_names), `input_shape`, `features` (names of the
        columns of a table, else empty), `counts` (nodes, sources, targets, samples), `notes`, and
        `nodes`: for each its `name`, `role`, `support`, `query` and `precise` (in samples) and
        `classes` (class name → samples, support and query together, only classes it has; empty
        for regression).

    Example:
        >>> node = Node("a", "source", np.array([0]), np.array([1]))
        >>> task = Task("classification", 2, ("no", "yes"))
        >>> (row,) = describe(Federation(np.zeros((2, 1)), np.array([1, 1]), task, [node]))["nodes"]
        >>> row["support"], row["query"], row["precise"], row["classes"]
        (1, 1, 0, {'yes': 2})
    """
    task, sources = federation.task, len(federation.sources)
    return {
        "name": federation.name,
        "task": {
            "kind": task.kind,
            "outputs": task.outputs,
            "class_names": list(task.class_names),
        },
        "input_shape": list(federation.inputs.shape[1:]),
        "features": list(federation.features),
        "counts": {
            "nodes": len(federation.nodes),
            "sources": sources,
            "targets": len(federation.nodes) - sources,
            "samples": sum(node.size for node in federation.nodes),
        },
        "notes": list(federation.notes),
        "nodes": [
            {
                "name": node.name,
                "role": node.role,
                "support": len(node.support),
                "query": len(node.query),
                "precise": len(node.precise),
                "classes": _class_counts(federation, node),
            }
            for node in federation.nodes
        ],
    }


def _class_counts(federation: Federation, node: Node) -> dict[str, int]:
    task = federation.task
    if task.kind == "regression":
        return {}
    labels = federation.labels[np.concatenate([node.support, node.query])]
    numbers, counts = np.unique(labels, return_counts=True)
    names = task.class_names or tuple(map(str, range(task.outputs)))
    return {names[n]: int(c) for n, c in zip(numbers, counts, strict=True)}


def _check(federation: Federation) -> None:
    """Refuse what would only fail later, or silently: see `Federation`."""
    total = len(federation.inputs)
    if len(federation.labels) != total:
        raise DataError(
            f"{federation.name} has {total} inputs but {len(federation.labels)} labels",
            "give one label per sample",
        )
    shape = federation.inputs.shape[1:]
    if federation.features and shape != (len(federation.features),):
        raise DataError(
            f"{federation.name} has {len(federation.features)} feature names for inputs of shape "
            f"{shape}",
            "give one name per column, or none",
        )
    if not federation.nodes:
        raise DataError(f"{federation.name} has no nodes", "ask for at least one")
    names = [node.name for node in federation.nodes]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"two nodes are called {twice!r}", "give every node its own name")
    for node in federation.nodes:
        for part in ("support", "query"):
            if len(getattr(node, part)) == 0:
                raise DataError(
                    f"node {node.name!r} has an empty {part} set",
                    "every node needs at least one support and one query sample; "
                    "raise min_samples to drop such nodes",
                )
    positions = np.concatenate([p for node in federation.nodes for p in (node.support, node.query)])
    precise = np.concatenate([node.precise for node in federation.nodes])
    everything = np.concatenate([positions, precise])
    if everything.min() < 0 or everything.max() >= total:
        raise DataError(
            f"a node of {federation.name} points outside its {total} samples",
            "use positions from 0 to N-1",
        )
    used, counts = np.unique(positions, return_counts=True)
    if counts.max() > 1:
        raise DataError(
            f"sample {used[counts.argmax()]} of {federation.name} is in more than one set",
            "support and query sets of all nodes must be disjoint",
        )
    if len(precise):
        _check_precise(federation)
        used = np.unique(everything)
    _check_finite(federation, federation.inputs, "features", used)
    _check_finite(federation, federation.labels, "labels", used)
    whole = not np.issubdtype(federation.labels.dtype, np.floating)
    if whole and federation.task.kind == "classification":
        seen = federation.labels[used]
        if seen.min() < 0 or seen.max() >= federation.task.outputs:
            raise DataError(
                f"labels of {federation.name} run from {seen.min()} to {seen.max()} "
                f"but the task has {federation.task.outputs} classes",
                "number the classes from 0",
            )


def _check_precise(federation: Federation) -> None:
    """Judged must be what was neither adapted on nor trained on."""
    trained_on = np.zeros(len(federation.inputs), np.bool_)
    for node in federation.sources:
        trained_on[node.support] = trained_on[node.query] = True
    for node in federation.nodes:
        if len(node.precise) == 0:
            continue
        if node.role == "source":
            raise DataError(
                f"source node {node.name!r} has a precise set", "give one to targets alone"
            )
        if len(np.unique(node.precise)) < len(node.precise):
            raise DataError(
                f"the precise set of node {node.name!r} has a sample twice", "name each one once"
            )
        adapted_on = np.isin(node.precise, node.support)
        for wrong, whose in (
            (trained_on[node.precise], "that a source node holds"),
            (adapted_on, "of its support set"),
        ):
            if wrong.any():
                raise DataError(
                    f"the precise set of node {node.name!r} has sample "
                    f"{node.precise[wrong.argmax()]} {whose}",
                    "leave such samples out of it",
                )


def _check_finite(
    federation: Federation, values: npt.NDArray[Any], what: str, used: Positions
) -> None:
    if not np.issubdtype(values.dtype, np.floating):
        return
    flat = values.reshape(len(values), -1)
    for start in range(0, len(used), 65536):  # in blocks: the pool may be larger than memory
        rows = used[start : start + 65536]
        bad = ~np.isfinite(flat[rows]).all(axis=1)
        if bad.any():
            raise DataError(
                f"sample {rows[bad.argmax()]} of {federation.name} has NaN or infinite {what}",
                "clean or drop such samples first",
            )
