"""Which fleets are simulated: the lines of the tables of `benchmarks.fleet_simulation`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.simulated_edges import Attack, EdgeLoss, EdgeUplink
from fedmeta.algorithms import ADMMFedMeta
from fedmeta.core.objective import Adaptation
from fedmeta.core.storage import read_json
from fedmeta.uplink.compression import Compression
from fedmeta.uplink.guard import Guard
from fedmeta.uplink.privacy import Exposure, Privacy, calibrated
from fedmeta.uplink.uplink import Uplink

RESULTS = Path(__file__).resolve().parents[1] / "results" / "fleet"
EDGES, NODES, ROUNDS = 10, 50, 100
SOURCES = NODES * 4 // 5
GROUPS = ("lost", "hostile", "uploads", "privacy")
_LOSSES = (("30 % of 10 edges", 10), ("30 % of 40 edges", SOURCES))
_ATTACKS = {
    "sign flip × 1": Attack("sign", 1.0),
    "sign flip × 10": Attack("sign", 10.0),
    "sign flip × 100": Attack("sign", 100.0),
    "noise of equal norm": Attack("noise", 1.0),
    "flipped labels": None,
}
_GUARDS = {"reject": Guard("reject"), "clip": Guard("clip"), "no guard": Guard()}
_UPLOADS = {"8 bits": Compression("8-bit"), "5 % of the numbers": Compression("top-k", 0.05)}

_DEFAULT = ADMMFedMeta()


@dataclass(frozen=True)
class Case:
    """One line of a table.

    Args:
        group: the table it belongs to.
        name: of the line.
        settings: its uplink and participation, where they are not the ordinary ones.
        algorithm: what is trained.
        data: changes to the data settings.
        rounds: T.
        flips: the first edge has flipped labels.
        baseline: name of the case in the same group that it is compared with.
    """

    group: str
    name: str
    settings: Mapping[str, Any]
    algorithm: ADMMFedMeta = _DEFAULT
    data: Mapping[str, Any] | None = None
    rounds: int = ROUNDS
    flips: bool = False
    baseline: str | None = None


def cases(data: str) -> list[Case]:
    """All cases of a data set."""
    found = [Case("lost", "none", {})]
    for name, edges in _LOSSES:
        loss = EdgeLoss(lost=0.3, edges=edges)
        found.append(Case("lost", name, {"participation": loss}, baseline="none"))
    hostile = []
    for kind, guard in _GUARDS.items():
        for name, attack in {"honest": Attack(), **_ATTACKS}.items():
            uplink = EdgeUplink(guard, edges=EDGES, nodes=SOURCES, attack=attack or Attack())
            line = f"{name}, {kind}"
            baseline = None if line == "honest, no guard" else "honest, no guard"
            flips = attack is None
            settings = {"uplink": uplink}
            hostile.append(Case("hostile", line, settings, flips=flips, baseline=baseline))
    # What others are compared with comes first: a table must make sense at every moment.
    found += sorted(hostile, key=lambda case: case.baseline is not None)
    found.append(Case("uploads", "32 bits", {}))
    for name, shorter in _UPLOADS.items():
        found.append(
            Case("uploads", name, {"uplink": Uplink(compression=shorter)}, baseline="32 bits")
        )
    return found + _private(data)


@dataclass(frozen=True)
class Population:
    """Who is to be kept private.

    Args:
        nodes: how many there are, targets included: what privacy depends on most.
        samples: fewest and most of a node.
        step_size: α of a linear model on such samples.
    """

    nodes: int
    samples: tuple[int, int]
    step_size: float

    @property
    def sources(self) -> int:
        """How many take part."""
        return self.nodes * 4 // 5

    @property
    def changes(self) -> dict[str, Any]:
        """Of the data settings."""
        return {"nodes": self.nodes, "samples": self.samples}

    def algorithm(self, penalty: float) -> ADMMFedMeta:
        """What is trained, with Σρ_i as given."""
        inner = Adaptation(step_size=self.step_size)
        return ADMMFedMeta(inner=inner, penalty=penalty, penalty_unit="weight")


POPULATIONS = {
    "digits": (Population(50, (20, 40), 1.0), Population(240, (6, 8), 1.0)),
    "fashion-mnist": (Population(800, (12, 18), 0.1),),
}
PROMISES: tuple[tuple[Literal["central", "local"], float | None], ...] = (
    ("central", None),
    ("central", 8.0),
    ("central", 2.0),
    ("local", 8.0),
    ("local", 2.0),
)


def promised(dp: str, epsilon: float | None) -> str:
    """The name of a promise.

    Example:
        >>> promised("central", 8.0), promised("central", None)
        ('central, ε = 8', 'clipped, ε = ∞')
    """
    return "clipped, ε = ∞" if epsilon is None else f"{dp}, ε = {epsilon:g}"


def private(
    dp: Literal["central", "local"], epsilon: float | None, clip: float, rounds: int
) -> Privacy:
    """Clipping with the noise that an ε takes over all rounds; None: without any.

    Example:
        >>> private("local", None, 1.0, 10).noise
        0.0
    """
    if epsilon is None:
        return Privacy(dp, clip=clip, noise=0.0)
    return calibrated(Privacy(dp, epsilon, clip=clip), Exposure(rounds))


def tuning_file(data: str, population: Population) -> Path:
    """Where the settings lie that `benchmarks.fleet_privacy` has found."""
    return RESULTS / "tuning" / f"{data}-{population.sources}.json"


def _private(data: str) -> list[Case]:
    """Every promise that settings were found for, on populations of growing size."""
    found = []
    for population in POPULATIONS[data]:
        file, size = tuning_file(data, population), f"{population.sources} nodes"
        if not file.exists():
            continue
        tuned = read_json(file, "tuned settings")["best"]
        start = f"{size}, untrained"
        found.append(
            Case("privacy", start, {}, population.algorithm(1.0), population.changes, rounds=0)
        )
        for dp, epsilon in PROMISES:
            if promised(dp, epsilon) not in tuned:
                continue
            best = tuned[promised(dp, epsilon)]
            privacy = private(dp, epsilon, best["clip"], best["rounds"])
            found.append(
                Case(
                    "privacy",
                    f"{size}, {promised(dp, epsilon)}",
                    {"uplink": Uplink(privacy=privacy)},
                    population.algorithm(best["penalty"]),
                    population.changes,
                    best["rounds"],
                    baseline=start,
                )
            )
    return found
