"""Forgetting as a release gate: may a candidate take the place of the model in service?

Both models adapt on every stored target node i of an earlier task and are judged on its m_i
samples. With s_ij what the metric is the mean of (right or wrong, an error), sample j has a fall
d_ij = s_ij(old) − s_ij(new). A device tells the mean d_i and its squared error
v_i = Σ_j (d_ij − d_i)² / (m_i (m_i − 1)); only sums over the n devices are needed, so that they can
be masked as any contribution:

    mean fall   d̄ = Σ d_i / n
    interval    d̄ ± t·√(Σ v_i) / n

The pairs cancel what makes samples and nodes differ. The stored nodes are those that earlier tasks
are judged by, so what is an accident is which samples they hold, not which nodes they are: one on
which the model falls apart is no accident. t is Student's two-sided 95 % point for Σ m_i − n
degrees of freedom, with 5 % shared by all comparisons of one candidate (Bonferroni). A candidate
is blocked by a task where

    d̄ > limit   and   d̄ − t·√(Σ v_i) / n > 0:

the fall is larger than what is allowed, and it is no accident of these samples. Accuracy falls in
points; an error rises in percent of what the model in service has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedmeta.core.errors import DataError, SettingError, require
from fedmeta.core.metrics import METRICS, sign_of
from fedmeta.core.plain_values import is_finite_number
from fedmeta.data.pool import Array
from fedmeta.evaluation.intervals import FEWEST, student_quantile
from fedmeta.evaluation.result import Evaluation

LIMIT = 1.0
"""Points (percent, of an error) that a task may fall by."""


@dataclass(frozen=True)
class FallSums:
    """What devices tell, added up.

    Args:
        nodes: n, how many have told.
        samples: Σ m_i.
        fall: Σ d_i, in the metric's unit; positive where the candidate is worse.
        noise: Σ v_i.
        before: Σ of the metric under the model in service.

    Example:
        >>> import numpy as np
        >>> right, wrong = np.array([1.0, 1.0]), np.array([0.0, 1.0])
        >>> FallSums.of_node(right, wrong, "accuracy") + FallSums.of_node(right, right, "accuracy")
        FallSums(nodes=2, samples=4, fall=0.5, noise=0.25, before=2.0)
    """

    nodes: int = 0
    samples: int = 0
    fall: float = 0.0
    noise: float = 0.0
    before: float = 0.0

    @classmethod
    def of_node(cls, old: Array, new: Array, metric: str) -> FallSums:
        """Of one device: what its metric is the mean of, sample by sample, under both models."""
        falls, count = sign_of(metric) * (old - new), len(old)
        # A single sample says nothing of its accident: as if it could as well have been another.
        noise = float(falls.var(ddof=1)) / count if count > 1 else float(falls[0]) ** 2
        return cls(1, count, float(falls.mean()), noise, float(old.mean()))

    def __add__(self, other: FallSums) -> FallSums:
        return FallSums(
            self.nodes + other.nodes,
            self.samples + other.samples,
            self.fall + other.fall,
            self.noise + other.noise,
            self.before + other.before,
        )


@dataclass(frozen=True)
class Verdict:
    """What the gate says of one task.

    Args:
        task: its name.
        against: name of the model in service.
        nodes: how many target nodes were asked.
        fall: mean fall; None where a model is no longer finite on a node.
        half_width: of its interval; None likewise.
        limit: the fall that is allowed.
        unit: "points", or "percent" of the error in service.
    """

    task: str
    against: str
    nodes: int
    fall: float | None
    half_width: float | None
    limit: float
    unit: str = "points"

    @property
    def blocked(self) -> bool:
        """Whether the candidate may not take the place of the model in service."""
        if self.fall is None or self.half_width is None:
            return True
        return self.fall > self.limit and self.fall > self.half_width

    @property
    def line(self) -> str:
        """The verdict for people.

        Example:
            >>> Verdict("task 2", "old", 10, 3.1, 0.8, 1.0).line
            'blocked: task 2 falls by 3.1 ± 0.8 points; limit 1 (against old, 10 nodes)'
            >>> Verdict("task 1", "old", 4, 0.5, 2.0, 1.0).line.partition(" (")[0]
            'passed: task 1 falls by 0.5 ± 2.0 points; limit 1; a fall of 2.5 cannot be ruled out'
        """
        word, after = "blocked" if self.blocked else "passed", f"(against {self.against}, "
        after += f"{self.nodes} nodes)"
        if self.fall is None or self.half_width is None:
            return f"{word}: {self.task} cannot be compared: a loss is not finite {after}"
        moved = "falls" if self.fall >= 0 else "gains"
        if self.unit == "percent":
            moved = "has an error that rises" if self.fall >= 0 else "has an error that sinks"
        highest = self.fall + self.half_width
        doubt = f"; a fall of {highest:.1f} cannot be ruled out"
        unsure = doubt if not self.blocked and highest > self.limit else ""
        return (
            f"{word}: {self.task} {moved} by {abs(self.fall):.1f} ± {self.half_width:.1f} "
            f"{self.unit}; limit {self.limit:g}{unsure} {after}"
        )

    def to_dict(self) -> dict[str, Any]:
        """For files."""
        return {**asdict(self), "blocked": self.blocked, "line": self.line}


def judge(
    sums: FallSums,
    metric: str,
    *,
    task: str,
    against: str,
    limit: float = LIMIT,
    comparisons: int = 1,
) -> Verdict:
    """The verdict on one task, from sums over its target nodes.

    Args:
        sums: what the devices told.
        metric: what was measured.
        task: its name.
        against: name of the model in service.
        limit: the fall that is allowed, in points or percent.
        comparisons: how many verdicts are given on this candidate.

    Example:
        >>> import numpy as np
        >>> old, new = np.arange(100) < 90, np.arange(100) < 85
        >>> told = [FallSums.of_node(old * 1.0, new * 1.0, "accuracy")] * 3
        >>> judge(sum(told, FallSums()), "accuracy", task="task 2", against="old").line
        'blocked: task 2 falls by 5.0 ± 2.5 points; limit 1 (against old, 3 nodes)'
    """
    check_limit(limit)
    if sums.nodes < FEWEST:
        raise DataError(
            f"{task} has {sums.nodes} target nodes, too few to speak for it",
            f"judge on tasks with at least {FEWEST}",
        )
    share = metric in METRICS and METRICS[metric].share
    unit = "points" if share else "percent"
    if not all(map(math.isfinite, (sums.fall, sums.noise, sums.before))):
        return Verdict(task, against, sums.nodes, None, None, limit, unit)
    n, mean = sums.nodes, sums.fall / sums.nodes
    freedom = max(1, sums.samples - n)
    width = student_quantile(freedom, 0.025 / comparisons) * math.sqrt(sums.noise) / n
    whole = 1.0 if share else abs(sums.before) / n
    if whole == 0:
        raise DataError(f"{task}: the model in service has no error", "nothing can be told of it")
    return Verdict(task, against, n, 100 * mean / whole, 100 * width / whole, limit, unit)


def check_limit(limit: float) -> None:
    """Refuse a limit that is no finite number of at least 0."""
    require(is_finite_number(limit) and limit >= 0, "limit", limit, "a number of at least 0")


def falls(old: Evaluation, new: Evaluation) -> FallSums:
    """What the nodes of two evaluations tell, each model after its own number of steps.

    Nodes that have precise sets are judged on these, which hold more samples.
    """
    before, after = node_samples(old), node_samples(new)
    if {name: len(each) for name, each in before.items()} != {n: len(e) for n, e in after.items()}:
        raise SettingError("the two evaluations are of other nodes", "evaluate both on the same")
    return add_up(before, after, old.metric)


def node_samples(found: Evaluation) -> dict[str, Array]:
    """What the metric of every node is the mean of; on its precise set if any."""
    values = dict(zip(found.nodes, found.singles, strict=True))
    return values if found.precise is None else {**values, **node_samples(found.precise)}


def add_up(old: Mapping[str, Array], new: Mapping[str, Array], metric: str) -> FallSums:
    """The sums over nodes of two models' samples, by the nodes' names."""
    return sum(
        (FallSums.of_node(value, new[name], metric) for name, value in old.items()), FallSums()
    )


def conclusion(verdicts: Sequence[Verdict]) -> str:
    """All verdicts in one line: those that block, else how many tasks were passed.

    Example:
        >>> conclusion([Verdict("task 1", "old", 9, 0.2, 0.3, 1.0)])
        'passed: no fall above 1 on 1 task'
    """
    if found := [each.line for each in verdicts if each.blocked]:
        return "; ".join(found)
    tasks = len({each.task for each in verdicts})
    return f"passed: no fall above {verdicts[0].limit:g} on {tasks} task{'s' * (tasks > 1)}"
