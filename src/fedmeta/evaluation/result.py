"""What an evaluation found: metrics by number of steps, node by node."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedmeta.core.metrics import METRICS, sign_of
from fedmeta.core.notebook import rows_table
from fedmeta.data.pool import Array

Values = dict[int, list[float]]


@dataclass(frozen=True, repr=False)
class Evaluation:
    """What targets reach on their query sets after some numbers of adaptation steps.

    On their precise sets it is the same with other samples, so it is one of these too.

    Args:
        metric: "accuracy" (argmax over all classes), or "mse" (in the labels' own unit, squared;
            lower is better).
        nodes: names of the targets.
        query_sizes: how many samples they are judged on.
        values: metric of every node, by number of steps.
        seen_classes: the same with predictions restricted to the classes of the node's support set;
            empty for regression.
        losses: loss of every node, by number of steps; of labels as they are scaled.
        own_means: for regression, the mse of every node if it predicted the mean of its support
            set's labels; empty for classification.
        precise: the same on the precise sets of those nodes that have one; None if none has.
        further: other metrics of every node, by name and number of steps (`core.metrics`); NaN
            where a node's samples cannot tell.
        details: every class over all nodes' samples, see `class_table`; where scores were kept.
        decided: metric of every node where its support set decides how it adapts (see
            `core.decision`); None where that was not asked for.
        choices: what it decided, node by node.
        singles: of every node and sample what the metric is the mean of, where scores were kept.

    Example:
        >>> from dataclasses import replace
        >>> query = Evaluation("accuracy", ("a",), (3,), {1: [1.0]}, {}, {1: [0.2]})
        >>> precise = Evaluation("accuracy", ("a",), (200,), {1: [0.9]}, {}, {1: [0.3]})
        >>> row = replace(query, precise=precise).per_node()[0]
        >>> row["query"], row["metric"], row["precise"], row["precise_metric"]
        (3, {'1': 1.0}, 200, {'1': 0.9})
    """

    metric: str
    nodes: tuple[str, ...]
    query_sizes: tuple[int, ...]
    values: Values
    seen_classes: Values
    losses: Values
    own_means: tuple[float, ...] = ()
    precise: Evaluation | None = None
    further: Mapping[str, Values] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    decided: list[float] | None = None
    choices: tuple[str, ...] = ()
    singles: tuple[Array, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        # One NaN for all, so that equal evaluations are equal.
        further = {
            name: {steps: [math.nan if v != v else v for v in row] for steps, row in table.items()}
            for name, table in self.further.items()
        }
        object.__setattr__(self, "further", further)

    def __repr__(self) -> str:
        """A line: the mean by steps, however many nodes there are."""
        means = (f"{s}: {shown(self.metric, row['mean'])}" for s, row in self.summary().items())
        return f"Evaluation({self.metric} of {len(self.nodes)} nodes by steps: {', '.join(means)})"

    def _repr_html_(self) -> str:
        """The same for a notebook, with the worst decile and all metrics."""
        keys = ("mean", "median", "worst_decile")
        rows = [
            [s, *(shown(self.metric, row[key]) for key in keys)]
            for s, row in self.summary().items()
        ]
        title = f"{self.metric} of {len(self.nodes)} nodes"
        columns = ("steps", "mean", "median", "worst decile")
        found = self.metrics()
        steps = list(dict.fromkeys(s for table in found.values() for s in table))
        further = [
            [name, *(shown(name, table.get(s, {}).get("mean")) for s in steps)]
            for name, table in found.items()
        ]
        named = ("metric", *(f"after {s} step{'' if s == '1' else 's'}" for s in steps))
        return rows_table(title, columns, rows) + rows_table("Means over nodes", named, further)

    def summary(self) -> dict[str, dict[str, float | None]]:
        """Mean over nodes, mean over query samples, median and worst decile, by steps.

        What is not finite, because adaptation blew a node's model up, is None.
        """
        table = {
            str(s): statistics(v, self.query_sizes, self.metric) for s, v in self.values.items()
        }
        for steps, seen in self.seen_classes.items():
            table[str(steps)]["mean_seen_classes"] = float(np.mean(seen))
        for steps, losses in self.losses.items():
            table[str(steps)]["mean_loss"] = float(np.mean(losses))
        return {s: {name: _finite(v) for name, v in row.items()} for s, row in table.items()}

    def metrics(self) -> dict[str, dict[str, dict[str, float]]]:
        """All metrics by name and steps: statistics over the nodes that they can be told of."""
        table: dict[str, dict[str, dict[str, float]]] = {}
        for name, values in {self.metric: self.values, **self.further}.items():
            table[name] = {}
            for steps, each in values.items():
                known = [i for i, value in enumerate(each) if math.isfinite(value)]
                if known:
                    sizes = [self.query_sizes[i] for i in known]
                    found = statistics([each[i] for i in known], sizes, name)
                    table[name][str(steps)] = {**found, "nodes": len(known)}
        return table

    def mean(self, metric: str, steps: int) -> float | None:
        """The mean over nodes of a metric; None where it is not known."""
        return self.metrics().get(metric, {}).get(str(steps), {}).get("mean")

    def own_mean(self) -> dict[str, float]:
        """The statistics of `own_means`, what a regression is held against; else nothing."""
        return statistics(self.own_means, self.query_sizes, self.metric) if self.own_means else {}

    def decided_summary(self) -> dict[str, dict[str, Any]]:
        """The same where nodes decide, as `target` and `precise`, with how many chose what."""
        both = {"target": self, "precise": self.precise}
        return {
            name: {
                **{
                    key: _finite(value)
                    for key, value in statistics(
                        each.decided, each.query_sizes, self.metric
                    ).items()
                },
                "choices": {one: each.choices.count(one) for one in dict.fromkeys(each.choices)},
            }
            for name, each in both.items()
            if each is not None and each.decided is not None
        }

    def means(self) -> dict[str, dict[str, float | None]]:
        """What a round's record says: means over nodes by steps, as `target` and `precise`.

        And as `decided`, where nodes decide, on either.
        """
        both = {"target": self, "precise": self.precise}
        found = {
            name: {steps: row["mean"] for steps, row in each.summary().items()}
            for name, each in both.items()
            if each is not None
        }
        decided = {name: row["mean"] for name, row in self.decided_summary().items()}
        return {**found, "decided": decided} if decided else found

    def is_finite(self, steps: int) -> bool:
        """Whether no node's model blew up in that many adaptation steps."""
        precise = self.precise is None or self.precise.is_finite(steps)
        return precise and all(math.isfinite(loss) for loss in self.losses[steps])

    def per_node(self) -> list[dict[str, Any]]:
        """One row per target for reports: name, query size and metric by steps.

        And `precise` and `precise_metric`, the same of its precise set: 0 and nothing where it has
        none. Where nodes decide: `choice`, `decided` and `precise_decided`.
        """
        further = {row["name"]: row for row in self.precise.per_node()} if self.precise else {}
        none = {"query": 0, "metric": {}, "decided": None}

        def decided(i: int, name: str) -> dict[str, Any]:
            if self.decided is None:
                return {}
            precise = further.get(name, none)["decided"]
            own = {"choice": self.choices[i], "decided": _finite(self.decided[i])}
            return {**own, "precise_decided": precise}

        return [
            {
                "name": name,
                "query": size,
                "metric": {str(steps): _finite(values[i]) for steps, values in self.values.items()},
                "precise": further.get(name, none)["query"],
                "precise_metric": further.get(name, none)["metric"],
                **({"own_mean": self.own_means[i]} if self.own_means else {}),
                **decided(i, name),
            }
            for i, (name, size) in enumerate(zip(self.nodes, self.query_sizes, strict=True))
        ]


def shown(metric: str, value: float | None) -> str:
    """A value of a metric as people read it.

    Example:
        >>> shown("accuracy", 0.9775), shown("mse", 10.3912), shown("f1", None)
        ('97.8 %', '10.39', '–')
    """
    if value is None:
        return "–"
    share = metric in METRICS and METRICS[metric].share
    return f"{100 * value:.1f} %" if share else f"{value:.4g}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def statistics(values: Sequence[float], sizes: Sequence[int], metric: str) -> dict[str, float]:
    """Mean over nodes, mean over samples, median, and the mean of the worst tenth of the nodes.

    Example:
        >>> statistics([1.0, 0.5, 0.9], [10, 30, 10], "accuracy")["worst_decile"]
        0.5
    """
    ordered = np.sort(values)[:: sign_of(metric)]
    worst = ordered[: max(1, int(np.ceil(len(ordered) / 10)))]
    return {
        "mean": float(np.mean(values)),
        "weighted_mean": float(np.average(values, weights=sizes)),
        "median": float(np.median(values)),
        "worst_decile": float(np.mean(worst)),
    }
