"""A cell: one entry of a table or one line of a figure, and all that decides its numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedmeta.config.spec import RunSpec, layered
from fedmeta.config.toml_files import Table, merged
from fedmeta.core.errors import require
from fedmeta.core.objective import RECOMMENDED
from fedmeta.core.serialization import serialize
from fedmeta.studies.sequences.declaration import TaskSequence

Key = tuple[str, ...]


@dataclass(frozen=True)
class Tasks:
    """Two tasks: a model θ_p of a prior one, then a new one that starts from it.

    Classes are stretches of all classes in their order, from and to as shares of their number:
    [0.2, 1.0] are the classes 3 to 10 of ten.

    Args:
        prior: classes of the task that θ_p is trained on.
        sources: classes of the source nodes of the new task.
        targets: classes of its target nodes.
        learns: whether the new task is trained; if not, θ_p itself is judged on it.
        begins: where its training begins: at θ_p, or at new weights.
        nodes: its source nodes; None: as many as the prior task has.
        dissimilarity: whether to keep, target by target, how unlike the sources it is.
        training: settings of the training of θ_p where they differ from the cell's own.
    """

    prior: tuple[float, ...]
    sources: tuple[float, ...]
    targets: tuple[float, ...]
    learns: bool = True
    begins: Literal["prior", "anew"] = "prior"
    nodes: int | None = None
    dissimilarity: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("prior", "sources", "targets"):
            pair = getattr(self, name)
            fits = len(pair) == 2 and 0 <= pair[0] < pair[1] <= 1
            require(fits, f"tasks.{name}", pair, "two shares with 0 ≤ from < to ≤ 1")


@dataclass(frozen=True)
class Cell:
    """What is trained, how often, and what it rests on.

    Args:
        key: where its result lies: experiment, then for instance partition, data, algorithm.
        settings: a settings table as `fedmeta.config.settings.layered` takes it.
        repeats: seeds 0, 1, … of its runs.
        tuned: key of the tuning cell whose best point it takes, if any.
        equal: key of the cell whose gradient evaluations it is given, by scaling its rounds.
        equal_settings: settings of that cell.
        grid: values to try, by dotted key of the algorithm; a cell with a grid is a tuning cell.
        beyond: values further out, to be tried where the best point lies at that end. A search
            that has not tried them holds nevertheless: they are no part of the digest.
        tasks: the two tasks, or the whole sequence of them, that are learned in a row, if any.
        final_loss: whether to keep the source meta-loss of the model that a run ended with.
        gradient: whether the default adapts by a gradient step whatever devices hold, as it did
            before class means were added where they hold few classes. No part of the digest: what
            was run before then is as it was.
    """

    key: Key
    settings: Table
    repeats: int
    tuned: Key | None = None
    equal: Key | None = None
    equal_settings: Table = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    beyond: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tasks: Tasks | TaskSequence | None = None
    final_loss: bool = False
    gradient: bool = False

    @property
    def path(self) -> str:
        """The key as a path.

        Example:
            >>> Cell(("rho", "cifar10", "x2"), {}, 10).path
            'rho/cifar10/x2'
        """
        return "/".join(self.key)

    @property
    def seeds(self) -> range:
        """One seed per repeat."""
        return range(self.repeats)

    def digest(self) -> str:
        """A fingerprint of everything that was declared: a result with another one is outdated."""
        known = {
            "settings": layered(self.settings, {}),
            "repeats": self.repeats,
            "tuned": self.tuned,
            "equal": layered(self.equal_settings, {}),
            "grid": self.grid,
            "tasks": _declared(self.tasks),
        }
        if self.final_loss:  # else as ever, so that results without it stay current
            known["final_loss"] = True
        text = json.dumps(known, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def build(self, *layers: Table) -> RunSpec:
        """Its settings under further ones, such as those of the machine."""
        spec = built(self.settings, *layers)
        algorithm: Any = spec.algorithm
        if not self.gradient or getattr(algorithm, "inner", None) is not RECOMMENDED:
            return spec
        return replace(spec, algorithm=replace(algorithm, inner=replace(RECOMMENDED)))


def _declared(tasks: Tasks | TaskSequence | None) -> Any:
    """As it is; what was added to two tasks since is left out, so that results stay current."""
    table = serialize(tasks)
    if isinstance(tasks, Tasks):
        for name in ("begins", "nodes"):
            if getattr(tasks, name) == getattr(Tasks, name):
                del table[name]
    return table


def built(settings: Table, *layers: Table) -> RunSpec:
    """RunSpec from a declared table and what goes on top of it.

    The pull towards a prior is left out: the model θ_p is trained first, not read from a file.
    """
    table = layered(settings, merged(layers))
    table.pop("prior", None)
    return RunSpec.from_dict(table)


def stored_settings(settings: RunSpec) -> Table:
    """Resolved settings to store with a result: all but seed, paths and what the machine does.

    Example:
        >>> stored_settings(built({"algorithm": "fedavg"}))["algorithm"]["name"]
        'fedavg'
    """
    table: Table = serialize(settings)
    table["algorithm"] = {"name": settings.algorithm.name, **table["algorithm"]}
    if settings.data is not None:  # what was left open is kept as it was decided
        decided = {"scaling": settings.data.scaling_kind, "queries": settings.data.queries or 5}
        table["data"] |= decided
    for part, names in _PRIVATE.items():
        for name in names:
            table[part].pop(name, None)
    del table["execution"]
    if not settings.prior.given:  # what "auto" was called before it could be more
        table["prior"]["kind"] = "euclidean"
    return table


_PRIVATE = {
    "data": ("folder",),
    "training": ("seed", "checkpoint_every", "keep_checkpoints"),
}


def budget(settings: RunSpec) -> Table:
    """What the gradient evaluations of a training rest on; other settings may change meanwhile.

    Example:
        >>> budget(built({"algorithm": "fedavg"}))["gradients"]
        {'100 + 100': 200, '100 + 200': 300}
    """
    return {
        "data": stored_settings(settings)["data"],
        "rounds": settings.training.rounds,
        "gradients": {
            f"{support} + {query}": settings.algorithm.gradients(support, query)
            for support, query in _SIZES
        },
    }


# Support and query samples of two nodes: enough to tell passes over the one from the other.
_SIZES = ((100, 100), (100, 200))


def still_holds(stored: Any, now: Any) -> bool:
    """Whether a result would be obtained in the same way today.

    RunSpec that were there then and are there now must agree. One that came later is taken to
    change nothing where no cell sets it, unless it is a switch that is on: an old result need not
    be thrown away for each new option.

    Example:
        >>> still_holds({"a": {"b": 1}}, {"a": {"b": 1, "new": 2}}), still_holds({"a": 1}, {"a": 2})
        (True, False)
        >>> still_holds({}, {"switch": False}), still_holds({}, {"part": {"switch": True}})
        (True, False)
    """
    if not isinstance(now, Mapping):
        return bool(stored == now)
    if not isinstance(stored, Mapping):
        return False
    return all(
        still_holds(stored[name], value) if name in stored else not _is_on(value)
        for name, value in now.items()
    )


def _is_on(value: Any) -> bool:
    return any(map(_is_on, value.values())) if isinstance(value, Mapping) else value is True
