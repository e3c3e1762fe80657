"""Run folders as checked values: damage is found here, not halfway in a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmeta.core.run_folder import Record, RunFolder, parsing
from fedmeta.core.serialization import deserialize
from fedmeta.core.storage import read_json

UNFINISHED = "unfinished"
"""The status of a run without summary.json: still running, or interrupted."""


@dataclass(frozen=True)
class NodeFacts:
    """What is known of a node: its role, its set sizes and how many samples of which class."""

    name: str
    role: str
    support: int
    query: int
    classes: Mapping[str, int]

    @property
    def size(self) -> int:
        """Samples, support and query together."""
        return self.support + self.query


@dataclass(frozen=True)
class FederationFacts:
    """What federation.json says."""

    name: str
    kind: str
    outputs: int
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    nodes: tuple[NodeFacts, ...]
    notes: tuple[str, ...]

    @property
    def sources(self) -> list[NodeFacts]:
        """The nodes that train."""
        return [node for node in self.nodes if node.role == "source"]

    @property
    def targets(self) -> list[NodeFacts]:
        """The new nodes that adapt."""
        return [node for node in self.nodes if node.role == "target"]


@dataclass(frozen=True)
class TargetFacts:
    """The metric of one target by number of adaptation steps."""

    name: str
    query: int
    metric: Mapping[int, float]


@dataclass(frozen=True)
class EdgeFacts:
    """What the platform of a fleet last saw of an edge: a row of edges.json."""

    name: str
    nodes: int
    state: str = "waiting"
    last_seen: str = ""
    rounds: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    failed: tuple[int, ...] = ()
    opposite: bool = False


MEASURES = ("metrics", "baseline", "classes", "confusion")


@dataclass(frozen=True)
class RunFacts:
    """A run folder.

    Args:
        identity: settings.json without the settings proper: id, dates, versions, seed, digest.
        settings: the resolved settings.
        federation: its nodes.
        history: one record per round.
        status: of summary.json, or "unfinished".
        ended: when, if it has.
        metric: "accuracy" or "mse".
        adaptation_steps: how many steps the algorithm has its targets take.
        target_metric: statistics over the targets after the last round, by steps.
        targets: the same target by target.
        own_mean: the same of predicting each device's own mean; of a regression alone.
        parameters: size of the model, once known.
        gradient_evaluations: per node, in passes over all its samples; once known.
        edges: of a fleet, as the platform last saw them.
        notes: what a reader of the result should know.
        measures: `metrics`, `baseline`, `classes` and `confusion` of summary.json, if it has them.
    """

    identity: Mapping[str, Any]
    settings: Mapping[str, Any]
    federation: FederationFacts
    history: Sequence[Record]
    status: str
    ended: str | None
    metric: str
    adaptation_steps: int
    target_metric: Mapping[int, Mapping[str, float]]
    targets: Sequence[TargetFacts]
    parameters: int | None
    gradient_evaluations: float | None
    edges: Sequence[EdgeFacts]
    own_mean: Mapping[str, float]
    notes: Sequence[str] = ()
    measures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def algorithm(self) -> str:
        """Its name."""
        return str(self.settings["algorithm"]["name"])

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return len(self.history)

    @property
    def planned(self) -> int:
        """Rounds asked for."""
        return int(self.settings["training"]["rounds"])

    def total(self, key: str) -> float:
        """Sum of a number over all rounds."""
        return float(sum(self.series(key)[1]))

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Rounds that logged a finite number under a key, and the numbers."""
        return _finite((record["round"], record.get(key)) for record in self.history)

    @property
    def loss_key(self) -> str:
        """What the training loss is logged as: methods without a meta-loss have a local one."""
        return "meta_loss" if self.series("meta_loss")[0] else "local_loss"

    def target_series(self, steps: int) -> tuple[list[int], list[float]]:
        """Rounds after which targets were evaluated, and their mean metric after some steps."""
        key = str(steps)
        return _finite((each["round"], each.get("target", {}).get(key)) for each in self.history)

    def outcome(self, before: float, after: float) -> str:
        """Whether a metric got "better", stayed "unchanged" or got "worse"."""
        if before == after:
            return "unchanged"
        return "better" if (after > before) == (self.metric == "accuracy") else "worse"

    def outcomes(self) -> dict[str, int]:
        """How many targets adapting made better, left the same, and made worse."""
        found = {"better": 0, "unchanged": 0, "worse": 0}
        for target in self.targets:
            if 0 in target.metric and self.adaptation_steps in target.metric:
                found[self.outcome(target.metric[0], target.metric[self.adaptation_steps])] += 1
        return found

    @property
    def evaluated_steps(self) -> list[int]:
        """Numbers of adaptation steps that targets were evaluated after."""
        logged = {int(s) for record in self.history for s in record.get("target", {})}
        return sorted(logged | set(self.target_metric))


def read_run(path: Path) -> RunFacts:
    """Everything a page says of a run, checked.

    Raises:
        RunFolderError: there is no run, or a file of it is damaged.
    """
    folder = RunFolder.open(path)
    stored, history = folder.settings(), folder.history()
    with parsing(path, "federation.json"):
        facts = _federation(folder.federation())
    with parsing(path, "metrics.jsonl"):
        for record in history:
            int(record["round"]), dict(record.get("target", {}))
    with parsing(path, "settings.json"):
        settings = dict(stored["settings"])
        algorithm = dict(settings["algorithm"])
        str(algorithm["name"]), int(settings["training"]["rounds"]), int(stored["seed"])
        inner = algorithm.get("inner") or {}
        steps = int(inner.get("steps", algorithm.get("steps", 1)))
    with parsing(path, "summary.json"):
        ended = (path / "summary.json").exists()
        summary: dict[str, Any] = folder.summary() if ended else {"status": UNFINISHED}
        parameters, gradients = summary.get("parameters"), summary.get("gradient_evaluations")
        return RunFacts(
            identity={k: v for k, v in stored.items() if k not in ("settings", "format")},
            settings=settings,
            federation=facts,
            history=history,
            status=str(summary["status"]),
            ended=summary.get("ended"),
            metric="mse" if facts.kind == "regression" else "accuracy",
            adaptation_steps=int(summary.get("adaptation_steps", steps)),
            target_metric={
                int(s): {name: _or_nan(value) for name, value in row.items()}
                for s, row in summary.get("target_metric", {}).items()
            },
            targets=[_target(row) for row in summary.get("targets", [])],
            parameters=None if parameters is None else int(parameters),
            gradient_evaluations=None if gradients is None else float(gradients),
            edges=_edges(path / "fleet" / "edges.json"),
            notes=[str(each) for each in summary.get("notes", [])],
            own_mean={k: _or_nan(v) for k, v in summary.get("own_mean", {}).items()},
            measures=_measures(summary),
        )


def _federation(stored: Mapping[str, Any]) -> FederationFacts:
    task = stored["task"]
    outputs = int(task["outputs"])
    names = tuple(map(str, task.get("class_names") or range(outputs)))
    return FederationFacts(
        name=str(stored["name"]),
        kind=str(task["kind"]),
        outputs=outputs,
        class_names=names,
        input_shape=tuple(int(n) for n in stored["input_shape"]),
        nodes=tuple(
            NodeFacts(
                name=str(node["name"]),
                role=str(node["role"]),
                support=int(node["support"]),
                query=int(node["query"]),
                classes={str(name): int(n) for name, n in node["classes"].items()},
            )
            for node in stored["nodes"]
        ),
        notes=tuple(map(str, stored.get("notes", []))),
    )


def _edges(file: Path) -> list[EdgeFacts]:
    """The table of edges; empty before the first round, and without a fleet."""
    if not file.exists():
        return []
    rows = read_json(file, "table of edges").get("edges", [])
    return [deserialize(EdgeFacts, row, "edges") for row in rows]


def _or_nan(value: Any) -> float:
    """A metric; None stands for one that was not finite."""
    return math.nan if value is None else float(value)


def _measures(summary: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: summary[key] for key in MEASURES if key in summary}
    baseline = dict(found.get("baseline", {}))
    for name, by_steps in dict(found.get("metrics", {})).items():
        _or_nan(baseline.get(name))
        for row in dict(by_steps).values():
            _or_nan(row["mean"])
    for row in list(found.get("classes", [])):
        str(row["name"]), int(row["samples"])
        for key in ("recall", "precision", "f1", "auc"):
            _or_nan(row[key])
    for row in list(found.get("confusion", [])):
        list(map(int, row))
    return found


def _target(row: Mapping[str, Any]) -> TargetFacts:
    metric = {int(steps): _or_nan(value) for steps, value in row["metric"].items()}
    return TargetFacts(str(row["name"]), int(row["query"]), metric)


def _finite(pairs: Iterable[tuple[int, Any]]) -> tuple[list[int], list[float]]:
    kept = [(number, float(value)) for number, value in pairs if is_number(value)]
    return [number for number, _ in kept], [value for _, value in kept]


def is_number(value: Any) -> bool:
    """Whether it is a finite one."""
    return isinstance(value, int | float) and math.isfinite(value)
