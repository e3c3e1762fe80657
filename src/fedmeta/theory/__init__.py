"""The convergence theory of ADMM-FedMeta as instruments: constants, inequalities, bounds, verdicts.

Everything the paper prints and its proof gives otherwise exists in both forms (`printed=True`).
"""

from fedmeta.theory.assumptions import (
    RoughLayer,
    Summability,
    departures,
    rough_layers,
    summability,
)
from fedmeta.theory.bounds import Bound, Forgetting, Sizes, adaptation_bound, data_size, forgetting
from fedmeta.theory.closed_form import softmax_regression
from fedmeta.theory.constants import Constants, NodeConstants
from fedmeta.theory.estimation import Search, estimate
from fedmeta.theory.examination import Effort, examine
from fedmeta.theory.findings import Findings
from fedmeta.theory.lagrangian import (
    Descent,
    Moves,
    Snapshot,
    augmented_lagrangian,
    descent,
    dual_residual,
    moves,
    primal_residual,
    snapshot,
)
from fedmeta.theory.penalties import Inequality, inequalities, smallest_penalty
from fedmeta.theory.problem import Differences, Divergence, Problem, difference_errors
from fedmeta.theory.rate import stationarity
from fedmeta.theory.replay import Look, Replay, replay
from fedmeta.theory.verdicts import (
    Diagnosis,
    Status,
    Verdict,
    diagnose,
    judge_bound,
    judge_penalties,
)

__all__ = [
    "Bound",
    "Constants",
    "Descent",
    "Diagnosis",
    "Differences",
    "Divergence",
    "Effort",
    "Findings",
    "Forgetting",
    "Inequality",
    "Look",
    "Moves",
    "NodeConstants",
    "Problem",
    "Replay",
    "RoughLayer",
    "Search",
    "Sizes",
    "Snapshot",
    "Status",
    "Summability",
    "Verdict",
    "adaptation_bound",
    "augmented_lagrangian",
    "data_size",
    "departures",
    "descent",
    "diagnose",
    "difference_errors",
    "dual_residual",
    "estimate",
    "examine",
    "forgetting",
    "inequalities",
    "judge_bound",
    "judge_penalties",
    "moves",
    "primal_residual",
    "replay",
    "rough_layers",
    "smallest_penalty",
    "snapshot",
    "softmax_regression",
    "stationarity",
    "summability",
]
