"""Presets: `paper`, the experiments of Yue et al. as printed, and `authors`, as in their code.

Where print and code differ: the authors give node u the classes (2u, 2u+1) mod C instead of two
random ones, draw the same number of samples for both classes, keep 20 % of Fashion-MNIST for
support, start duals at random, step proximally, let the distance of difference quotients shrink
ten times slower, and scale each pixel by its deviation over the whole data set, however small.
Both presets share the networks, their initialisation and Per-FedAvg's step size.
"""

from __future__ import annotations

from typing import Any

from fedmeta.core.errors import SettingError, nearest

Table = dict[str, Any]

PRESETS = ("paper", "authors")

_RHO = {"fashion-mnist": 0.3, "cifar10": 0.7, "cifar100": 0.7}
_BETA = {"fashion-mnist": 0.005, "cifar10": 0.005, "cifar100": 0.001}


def preset(name: object, data: object) -> Table:
    """The settings of a preset for a data set; own data takes those of CIFAR-10.

    Args:
        name: "paper" or "authors".
        data: name of the data set.

    Example:
        >>> preset("paper", "fashion-mnist")["algorithms"]["admm-fedmeta"]["penalty"]
        0.3
    """
    if name not in PRESETS:
        raise SettingError(f"preset {name!r} is unknown", nearest(str(name), PRESETS))
    if not isinstance(data, str):
        raise SettingError(f"data.name is {data!r}", "give the name of a data set as text")
    known = data if data in _RHO else "cifar10"
    return _paper(known) if name == "paper" else _authors(known)


def _paper(data: str) -> Table:
    """As printed. Print is silent on scaling: here it is per pixel, from the sources, and with the
    default `scaling_floor`, the least that a pixel is divided by.
    """
    beta = _BETA[data]
    return {
        "data": {
            "nodes": 100 if data == "cifar100" else 50,
            "partition": "random-classes",
            "classes_per_node": 2,
            "samples": [20, 40],
            "support_share": 0.5,
            "target_share": 0.2,
            "scaling": "per-feature",
        },
        "model": {
            "name": "auto",
            "activation": "elu",
            "last_pooling": "max" if data == "fashion-mnist" else "average",
            "initialisation": "truncated-normal",
        },
        "augmentation": {"flip": False, "shift": 0},
        "inner": {"step_size": 0.01, "steps": 1, "scope": "all"},
        "training": {"rounds": 100},
        "algorithms": {
            "admm-fedmeta": {
                "penalty": _RHO[data],
                "curvature": "finite-difference",
                "difference": {"growth": 10.0, "offset": 100.0},
                "platform": "linearised",
                "resplit": False,  # "none"; results/ go by the table as it was
            },
            "fedavg": {"step_size": 0.01},
            "per-fedavg": {"step_size": beta, "curvature": "finite-difference"},
            "fedmeta": {"step_size": beta},
        },
    }


def _authors(data: str) -> Table:
    """As in the authors' code, where that differs: all of it, so `scaling_floor` is off."""
    table, difference = _paper(data), {"growth": 1.0, "offset": 100.0}
    table["data"] |= {
        "partition": "fixed-pairs",
        "samples_per_class": [10, 20],
        "support_share": 0.2 if data == "fashion-mnist" else 0.5,
        "scaling_from": "pool",
        "scaling_floor": 0.0,
    }
    table["model"]["activation"] = "leaky-relu" if data == "cifar10" else "elu"
    table["algorithms"]["admm-fedmeta"] |= {
        "penalty": 0.35 if data == "fashion-mnist" else _RHO[data],
        "difference": dict(difference),
        "platform": "proximal",
        "dual_deviation": 0.01,
    }
    table["algorithms"]["per-fedavg"]["difference"] = difference
    return table
