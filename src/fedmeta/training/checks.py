"""What cannot be trained, or not together: refused before anything is computed."""

from __future__ import annotations

from fedmeta.algorithms.algorithm import Algorithm
from fedmeta.algorithms.learners import StepLearner
from fedmeta.config.spec import RunSpec
from fedmeta.core.errors import DataError, SettingError
from fedmeta.data.federation import Federation
from fedmeta.engine.layout import Layout


def check_data(federation: Federation) -> None:
    """Refuse a federation that nobody could learn from."""
    if not federation.sources:
        raise DataError(f"{federation.name} has no source nodes", "lower target_share")
    if federation.task.kind == "classification" and federation.task.outputs < 2:
        raise DataError(
            f"all samples of {federation.name} are of one class",
            "give at least two classes, or check the label column",
        )


def check_inner(algorithm: Algorithm) -> None:
    """Refuse learned step sizes of an algorithm that learns none."""
    if algorithm.inner.learned != "none" and not isinstance(algorithm, StepLearner):
        raise SettingError(
            f"inner.learned is {algorithm.inner.learned!r}, but {algorithm.name} learns no step "
            "sizes",
            "leave it out, or make the algorithm a StepLearner",
        )


def check_uplink(spec: RunSpec, layout: Layout, nodes: int) -> None:
    """Refuse what the uplink cannot have together with the rest."""
    privacy = spec.uplink.privacy
    if privacy.on and spec.algorithm.needs_losses:
        length = "penalty" if hasattr(spec.algorithm, "penalty") else "server.step_size"
        raise SettingError(
            f"{length} is 'auto', which looks at the losses of the nodes, but dp hides them",
            f"give a {length} as a number",
        )
    if privacy.on and privacy.delta * nodes >= 1:
        raise SettingError(
            f"privacy.delta is {privacy.delta:g} with {nodes} nodes: a mechanism that gives "
            "one of them away entirely would keep that promise",
            f"give a δ far below {1 / nodes:.2g}",
        )
    if spec.uplink.judges and layout.execution.path == "loop" and nodes > 1:
        raise SettingError(
            "nodes that are computed one by one cannot be judged against each other",
            "use --path batched, or leave guard and robust sum out",
        )
    if spec.uplink.robust.number_by_number and getattr(spec.algorithm, "rule", "") == "stale":
        raise SettingError(
            f"robust.method is {spec.uplink.robust.method!r} and the rule is 'stale', which keeps "
            "the sum of what everybody sent last: parts of it would never be taken back",
            "use krum, or the rule 'participants'",
        )
