"""The convergence theory of ADMM-FedMeta: constants, inequalities, bounds, the diagnosis of a run.

Everything the paper prints and its proof gives otherwise exists in both forms (`printed=True`).
"""

from fedmeta.theory.constants import Constants, NodeConstants
from fedmeta.theory.diagnose import Diagnosis, DiagnosisSettings, diagnose_run
from fedmeta.theory.penalties import smallest_penalty

__all__ = [
    "Constants",
    "Diagnosis",
    "DiagnosisSettings",
    "NodeConstants",
    "diagnose_run",
    "smallest_penalty",
]
