"""Whether meta-gradients are compiled, in closed form in PyTorch, or left to autograd."""

from __future__ import annotations

from typing import Literal

from fedmeta.algorithms.algorithm import Algorithm
from fedmeta.config.execution import Execution
from fedmeta.core.errors import SettingError
from fedmeta.core.objective import Objective
from fedmeta.engine.compiled.compiler import library
from fedmeta.engine.compiled.nodes_half import is_compiled
from fedmeta.uplink.uplink import Uplink


def derivatives(
    execution: Execution, objective: Objective, algorithm: Algorithm, uplink: Uplink
) -> Literal["compiled", "closed-form", "autograd"]:
    """How meta-gradients are computed, of what the execution allows and the machine has."""
    if objective.closed_form is None:
        return "autograd"
    asked = execution.derivatives
    if asked == "closed-form" or not is_compiled(algorithm, objective, uplink):
        return "closed-form"
    if library(execution.dtype) is not None:
        return "compiled"
    if asked == "compiled":
        raise SettingError(
            "derivatives are 'compiled', but there is no C compiler here that works",
            "install one (cc, gcc or clang) or, for a run that has not begun yet, leave it out",
        )
    return "closed-form"
