"""Whom the platform knows: the edges of a run, their nodes, and what all of them have in common."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import accumulate
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
from torch import Tensor

from fedmeta.core.errors import DataError, RunFolderError
from fedmeta.core.serialization import deserialize, serialize
from fedmeta.core.storage import read_json, read_tensors, write_json, write_tensors
from fedmeta.data.federation import Federation, Node, Task
from fedmeta.data.few_classes import few_of_classes
from fedmeta.data.pool import Array
from fedmeta.data.scaling import Scaling, Sums, scaling_from
from fedmeta.data.settings import DataSettings
from fedmeta.engine.cohort import Share
from fedmeta.fleet.message import Message
from fedmeta.fleet.shards import merged_classes, with_classes

_ROSTER, _SCALING = "roster.json", "scaling.safetensors"
_FEWEST = 3  # edges that can be held against their median


@dataclass(frozen=True)
class Member:
    """An edge of the fleet.

    Args:
        name: its own.
        address: the number under which Flower reaches it; may change when it restarts.
        first: the first round that it may take part in.
        data: fingerprint of its nodes, see `edge_job.data_digest`.
        nodes: name, support and query size of each.
        key: public, for masks; empty where there are none.
    """

    name: str
    address: int
    first: int
    data: str
    nodes: tuple[tuple[str, int, int], ...]
    key: str = ""


@dataclass(frozen=True)
class Common:
    """What all edges of a run have in common, fixed when it starts.

    Args:
        task: with all classes that anyone has.
        shape: of one sample.
        pixels: whether samples are bytes.
        features: names of columns, if any.
        few_classes: whether nodes hold few of the classes, see `few_of_classes`.
    """

    task: Task
    shape: tuple[int, ...]
    pixels: bool
    features: tuple[str, ...]
    few_classes: bool = False


@dataclass(frozen=True, eq=False)
class Roster:
    """All edges in a fixed order, which is the order of every sum.

    Args:
        members: those that were there at the start by name, then those that joined.
        common: see `Common`.
        scaling: of inputs and labels, from the sums of those that were there at the start.
    """

    members: tuple[Member, ...]
    common: Common
    scaling: Scaling

    def save(self, folder: Path) -> None:
        """Write it to the platform's folder."""
        write_tensors(folder / _SCALING, self.scaling.tensors(), {})
        write_json(folder / _ROSTER, {"members": serialize(self.members), **serialize(self.common)})

    @classmethod
    def load(cls, folder: Path) -> Roster | None:
        """The roster of a run that was started before; None: there is none yet."""
        if not (folder / _ROSTER).exists():
            return None
        about = read_json(folder / _ROSTER, "roster of the fleet")
        try:
            members = tuple(map(_member, about.pop("members")))
        except (KeyError, TypeError, ValueError) as error:
            what = f"{folder / _ROSTER} is damaged ({error})"
            raise RunFolderError(what, "restore the file") from error
        tensors, _ = read_tensors(folder / _SCALING, "scaling of the fleet")
        return cls(members, deserialize(Common, about, "roster"), Scaling.from_tensors(tensors))

    def until(self, number: int) -> Roster:
        """Without those that joined after a round."""
        kept = [each for each in self.members if each.first <= max(number, 1)]
        return replace(self, members=tuple(kept))

    def named(self, name: str) -> Member | None:
        """The edge of that name, if there is one."""
        return next((each for each in self.members if each.name == name), None)

    def rows(self) -> dict[str, slice]:
        """By name of the edge, the places of its nodes among the nodes of all edges."""
        ends = list(accumulate(len(each.nodes) for each in self.members))
        starts = [0, *ends]
        return {
            each.name: slice(start, end)
            for each, start, end in zip(self.members, starts, ends, strict=False)
        }

    def everyone(self, most: float) -> dict[str, int]:
        """By name of the edge, the ΣD_j that it divides its nodes' sizes by: w_i = D_i/ΣD_j.

        An edge that claims more than `most` times the median counts for that much: to it, ΣD_j is
        larger by what it claims too much. Of fewer than three edges nobody can say who lies.
        """
        claims = {m.name: sum(s + q for _, s, q in m.nodes) for m in self.members}
        bound = most * median_low(claims.values()) if len(claims) >= _FEWEST else float("inf")
        everyone = round(sum(min(claim, bound) for claim in claims.values()))
        return {
            name: everyone if claim <= bound else round(everyone * claim / bound)
            for name, claim in claims.items()
        }

    def message(
        self,
        member: Member,
        request: Mapping[str, Any],
        facts: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        most: float,
    ) -> Message:
        """A message to an edge: of the run, of the fleet it is a part of, and its own content.

        `most` is what an edge may count for, see `everyone`.
        """
        _, support, query = zip(
            *(node for each in self.members for node in each.nodes), strict=True
        )
        sizes = max(support), max(query)
        share = Share(self.everyone(most)[member.name], self.rows()[member.name].start, sizes)
        about = {
            "name": member.name,
            "data": member.data,
            "share": asdict(share),
            "task": asdict(self.common.task),
            "few_classes": self.common.few_classes,
        }
        return Message({**request, **about, **facts}, {**self.scaling.tensors(), **tensors})

    def with_member(self, introduction: Message, address: int, first: int) -> Roster:
        """With an edge that has introduced itself: a new one, or a known one that has come back."""
        facts = introduction.facts
        nodes = tuple((str(name), int(s), int(q)) for name, s, q in facts["nodes"])
        name, data, key = (str(facts.get(part, "")) for part in ("name", "data", "key"))
        member = Member(name, address, first, data, nodes, key)
        known = self.named(member.name)
        if known is not None:
            if known.data != member.data:
                raise DataError(
                    f"edge {member.name} came back with other nodes than it joined with",
                    "put its data back, or give it another name",
                )
            back = replace(known, address=address, key=key)
            others = tuple(back if m is known else m for m in self.members)
            return replace(self, members=others)
        self._check(introduction, member)
        return replace(self, members=(*self.members, member))

    def _check(self, introduction: Message, member: Member) -> None:
        """Refuse an edge that does not fit the run."""
        facts, common = introduction.facts, self.common
        taken = {name for each in self.members for name, _, _ in each.nodes}
        if twice := [name for name, _, _ in member.nodes if name in taken]:
            raise DataError(
                f"edge {member.name} has a node {twice[0]!r} that another edge has already",
                "give every node a name of its own",
            )
        if tuple(facts["shape"]) != common.shape or facts["bytes"] != common.pixels:
            raise DataError(
                f"edge {member.name} has samples of shape {tuple(facts['shape'])}, others of "
                f"{common.shape}",
                "give all edges data of the same kind",
            )
        if tuple(facts["features"]) != common.features:
            raise DataError(
                f"edge {member.name} has other columns than the others",
                f"give all edges the columns {', '.join(common.features) or 'in one order'}",
            )
        task = facts["task"]
        unknown = sorted({*task["class_names"]} - {*common.task.class_names})
        if task["kind"] != common.task.kind or unknown:
            new = f" with class {unknown[0]!r}, which no other had at the start" if unknown else ""
            raise DataError(
                f"edge {member.name} has {task['kind']} labels{new}",
                "let it take part from the start of a new run",
            )


def first_roster(
    introductions: Sequence[tuple[int, Message]], settings: DataSettings
) -> tuple[Roster, dict[int, str]]:
    """The roster of a new run, from what the edges at some addresses have said of themselves.

    What most of them have in common is what the run is about: one edge with other data is left out.

    Returns:
        The roster, and by address why somebody is not on it.
    """
    if settings.scaling_from == "pool":
        raise DataError(
            "scaling_from is 'pool', but nobody sees all samples of a fleet", "use 'sources'"
        )
    ordered = sorted(introductions, key=lambda each: str(each[1].facts["name"]))
    kinds = Counter(_kind(each.facts) for _, each in ordered)
    kind = kinds.most_common(1)[0][0]
    alike = [each for _, each in ordered if _kind(each.facts) == kind]
    first = alike[0].facts
    classes = merged_classes([each.facts["task"]["class_names"] for each in alike])
    outputs = len(classes) if classes else int(first["task"]["outputs"])
    local = bool(first["task"].get("local_labels", False))
    task = Task(first["task"]["kind"], outputs, classes, local)
    common = Common(task, tuple(first["shape"]), bool(first["bytes"]), tuple(first["features"]))
    none = Scaling(np.zeros(()), np.ones(()))
    roster, fitting, left_out = Roster((), common, none), list[Message](), dict[int, str]()
    for address, introduction in ordered:
        try:
            if roster.named(introduction.facts["name"]) is not None:
                raise DataError(
                    f"another edge calls itself {introduction.facts['name']}",
                    "give every edge its own name",
                )
            roster = roster.with_member(introduction, address, first=1)
            fitting.append(introduction)
        except DataError as error:
            left_out[address] = error.problem
    values = task.kind == "regression" and settings.label_scaling != "none"
    scaling = scaling_from(
        _added(fitting) if settings.scaling_kind != "none" else None,
        common.pixels,
        settings.scaling_floor,
        _added(fitting, "label_") if values else None,
    )
    common = replace(common, few_classes=_few_classes(fitting, classes))
    return replace(roster, common=common, scaling=scaling), left_out


def _few_classes(introductions: Sequence[Message], classes: Sequence[str]) -> bool:
    """Whether the nodes of all edges hold few of the classes, which edges name in any order.

    Edges whose data come with the answer, as those of a sequence of tasks, are believed if all are.
    """
    if len(said := {each.facts.get("few_classes") for each in introductions}) == 1:
        (few,) = said
        if few is not None:
            return bool(few)
    holders, nodes = Counter[str](), 0
    for each in introductions:
        names = each.facts["task"]["class_names"]
        holders.update(dict(zip(names, each.facts.get("holders", []), strict=False)))
        nodes += len(each.facts["nodes"])
    return few_of_classes([holders[name] for name in classes], nodes)


def _kind(facts: Mapping[str, Any]) -> tuple[object, ...]:
    """What edges of one run must have in common."""
    task = facts["task"]
    outputs = task["outputs"] if task["kind"] == "regression" else 0
    own = (task["kind"], outputs, task.get("local_labels", False))
    return (tuple(facts["shape"]), facts["bytes"], tuple(facts["features"]), *own)


def _member(about: Mapping[str, Any]) -> Member:
    nodes = tuple((str(name), int(support), int(query)) for name, support, query in about["nodes"])
    return replace(deserialize(Member, {**about, "nodes": ()}, "member"), nodes=nodes)


def _added(introductions: Sequence[Message], prefix: str = "") -> Sums:
    """Σ over edges of the sums that they have sent: of inputs, or of labels ("label_")."""
    parts = []
    for each in introductions:
        total, squares = (each.tensors[f"{prefix}{name}"].numpy() for name in ("total", "squares"))
        parts.append(Sums(int(each.facts[f"{prefix}count"]), total, squares))
    return reduce(Sums.__add__, parts)


def known_federation(roster: Roster, targets: Federation | None) -> Federation:
    """The federation as the platform sees it: all nodes by name and size, the targets' samples.

    The samples of the source nodes are blank: rows of a file that has only holes there, so that
    they take neither memory nor disk.
    """
    common = roster.common
    kind, values = np.uint8 if common.pixels else np.float32, common.task.kind == "regression"
    sources = [node for member in roster.members for node in member.nodes]
    nodes, start = [], 0
    rows: Array = np.zeros((0, *common.shape), kind)
    labels: Array = np.zeros((0, common.task.outputs) if values else 0, float if values else int)
    if targets is not None:
        targets = with_classes(targets, common.task)
        rows, labels, start = targets.inputs, targets.labels, len(targets.inputs)
        nodes = [replace(node, role="target") for node in targets.nodes]
    count = start + sum(support + query for _, support, query in sources)
    with tempfile.TemporaryFile(prefix="fedmeta-blank-") as file:
        inputs = np.memmap(file, kind, "w+", shape=(count, *common.shape))
    inputs[:start] = rows
    all_labels: Array = np.zeros((count, *labels.shape[1:]), labels.dtype)
    all_labels[:start] = labels
    blank = []
    for name, support, query in sources:
        middle, end = start + support, start + support + query
        blank.append(Node(name, "source", np.arange(start, middle), np.arange(middle, end)))
        start = end
    return Federation(
        inputs,
        all_labels,
        common.task,
        [*blank, *nodes],
        "a fleet",
        features=common.features,
        few_classes=common.few_classes,
    )
