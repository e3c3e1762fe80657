"""What authors of algorithms, priors and readers of data need beside `fedmeta` itself.

An algorithm is a frozen dataclass with a few pure functions on trees (`Algorithm`); a prior is a
divergence from an earlier model (`Regularizer`); a reader returns a `Pool` of samples.
"""

from fedmeta.algorithms.algorithm import (
    Algorithm,
    Contribution,
    Fleet,
    LinearStep,
    Metrics,
    NodeState,
    PlatformState,
    average_step,
    displacement,
    mean_update,
)
from fedmeta.algorithms.learners import Baseline, MetaLearner, StepLearner
from fedmeta.core import randomness, tree
from fedmeta.core.errors import (
    DataError,
    SettingError,
    require,
    require_choice,
    require_positive,
    require_whole,
)
from fedmeta.core.meta_gradient import MetaGradient, meta_gradient
from fedmeta.core.objective import Facts, Objective, Passes
from fedmeta.core.sample_sets import NodeData, Samples, union
from fedmeta.core.tree import Tree
from fedmeta.core.user_code import load_object
from fedmeta.data.pool import Pool
from fedmeta.priors.regularizer import Divergence, Proximal, Regularizer

__all__ = [
    "Algorithm",
    "Baseline",
    "Contribution",
    "DataError",
    "Divergence",
    "Facts",
    "Fleet",
    "LinearStep",
    "MetaGradient",
    "MetaLearner",
    "Metrics",
    "NodeData",
    "NodeState",
    "Objective",
    "Passes",
    "PlatformState",
    "Pool",
    "Proximal",
    "Regularizer",
    "Samples",
    "SettingError",
    "StepLearner",
    "Tree",
    "average_step",
    "displacement",
    "load_object",
    "mean_update",
    "meta_gradient",
    "randomness",
    "require",
    "require_choice",
    "require_positive",
    "require_whole",
    "tree",
    "union",
]
