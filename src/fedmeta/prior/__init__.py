"""Prior models made usable: from settings and files to the regulariser that ADMM-FedMeta takes.

| file | what it has |
|---|---|
| `kinds.py` | a regulariser by the name of its kind |
| `settings.py` | the table [prior], and what it reads from files |
| `importance.py` | how much each parameter mattered: estimated on the sources, stored, checked |
| `path.py` | ADMM-FedMeta that collects importance along its training |
| `strength.py` | λ = "auto" |
| `drawing.py` | the picture of a sweep over λ |
"""

from fedmeta.prior.importance import federated_fisher, read_importance, write_importance
from fedmeta.prior.kinds import KINDS, regularizer
from fedmeta.prior.settings import PriorSettings, load_prior

__all__ = [
    "KINDS",
    "PriorSettings",
    "federated_fisher",
    "load_prior",
    "read_importance",
    "regularizer",
    "write_importance",
]
