"""The table of attacks says what the results say, and these keep what the page promises."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import attacks
from benchmarks.attacks import ALGORITHMS, ATTACKS, Case
from experiments.page import between
from fedmeta.data import DataSettings, load

KEPT = json.loads(attacks.RESULTS.read_text(encoding="utf-8"))

MISSED = {("admm-fedmeta", "sample lie × 1,000, sign flip", 3)}  # as the page says


def points(case: Case) -> float:
    """Lost against an honest fleet without a guard."""
    honest = KEPT["cases"][Case(case.algorithm, "nobody", 0, "none").key]["accuracy"]
    return float(100 * np.mean(np.subtract(honest, KEPT["cases"][case.key]["accuracy"])))


def test_page_and_results_agree() -> None:
    text = attacks.PAGE.read_text(encoding="utf-8")
    assert between(text, "attacks", attacks.table(KEPT)) == text, "run attacks render"


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
@pytest.mark.parametrize("attack", list(ATTACKS)[1:])
@pytest.mark.parametrize(("hostile", "defence", "most"), [(1, "default", 2.0), (3, "median", 5.0)])
def test_the_results_keep_the_aims(
    algorithm: str, attack: str, hostile: int, defence: str, most: float
) -> None:
    missed = points(Case(algorithm, attack, hostile, defence)) > most
    assert missed == ((algorithm, attack, hostile) in MISSED), "the page says otherwise"


def test_a_liar_counts_for_as_much_as_it_is_let() -> None:
    federation = load(DataSettings("digits", nodes=50), 0)
    lying = attacks.overstated(federation, 1)
    for before, after in zip(federation.sources, lying.sources, strict=True):
        named = before.name in {node.name for node in attacks.hostile_nodes(federation, 1)}
        assert after.size == before.size * (attacks.MAX_WEIGHT if named else 1)
        assert {*lying.labels[after.query]} == {*federation.labels[before.query]}


def test_a_case_is_measured() -> None:
    case = Case("fedavg", "backdoor × 3", 3, "median")
    found = attacks.measured(case, range(2), rounds=2)
    assert len(found["accuracy"]) == len(found["trigger"]) == 2
    assert all(0 <= value <= 1 for values in found.values() for value in values)
