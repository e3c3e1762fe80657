"""The inequalities on ρ, the smallest ρ, and what the diagnosis says below it."""

from dataclasses import replace
from math import inf

import pytest
from torch import nn

from fedmeta.algorithms import ADMMFedMeta
from fedmeta.core.errors import SettingError
from fedmeta.core.meta_gradient import InverseSchedule, MetaGradient
from fedmeta.core.objective import Adaptation
from fedmeta.models.networks import SamePool
from fedmeta.theory.constants import Constants, NodeConstants
from fedmeta.theory.penalties import Setting, inequalities, smallest_penalty
from fedmeta.theory.theorem_check import (
    check_penalties,
    check_theorem,
    nonsmooth_layers,
    summability,
)
from problems import paper_admm
from theory.cases import CASES, SOFTMAX, Case

# μ = 1, α = 1, ζ = 0: derived ν = 4, printed ν = 4. They differ where α ≠ 1.
UNIT = Constants((NodeConstants(1.0, 1.0, 0.0),) * 2, 1.0, closed_form=True)


def test_inequalities_by_hand() -> None:
    # ν = 4, w = 1/2: wν = 2. ρ = 20, λμ_r = 3·2, I = 2:
    # ρ/2 − 4wν = 10 − 8; a_p = 10 − 2·4·(8/400 + 1/20) − 6/4 = 10 − 0.56 − 1.5; ρ − 3wν = 14.
    setting = Setting(UNIT, [0.5, 0.5], [20.0, 20.0], 3.0, 2.0)
    found = inequalities(setting, printed=False)
    assert [(one.name, one.node) for one in found[:3]] == [
        ("ρ/2 > 4wν", 0),
        ("a_p > 0", 0),
        ("ρ > 3wν", 0),
    ]
    assert [one.slack for one in found[:3]] == pytest.approx([2.0, 7.94, 14.0])
    printed = inequalities(setting, printed=True)
    assert (printed[2].name, printed[2].slack) == ("ρ > 3ν", pytest.approx(8.0))


@pytest.mark.parametrize("strength", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("printed", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_smallest_penalty_is_the_smallest(case: Case, printed: bool, strength: float) -> None:
    constants, weights = case.constants(), case.weights
    least = smallest_penalty(constants, weights, strength, 2.0, printed)
    setting = Setting(constants, weights, least, strength, 2.0)
    assert all(one.satisfied for one in inequalities(setting, printed))
    below = replace(setting, penalties=[rho * (1 - 1e-6) for rho in least])
    for node in range(len(weights)):
        mine = [one for one in inequalities(below, printed) if one.node == node]
        assert any(not one.satisfied for one in mine)


def test_the_strongest_prior_decides_by_the_platforms_inequality() -> None:
    # For λ → ∞ a_p > 0 is ρ > λμ_r/I, up to s²/ρ.
    least = smallest_penalty(UNIT, [0.5, 0.5], 1e6, 2.0, printed=False)
    assert least == pytest.approx([1e6, 1e6], rel=1e-6)
    # Without curvature or prior every ρ will do.
    flat = Constants((NodeConstants(0.0, 1.0, 0.0),), 0.1, closed_form=True)
    assert 0 < smallest_penalty(flat, [1.0])[0] < 1e-6
    rough = Constants((NodeConstants(inf, 1.0, 0.0),), 0.1, closed_form=True)
    assert smallest_penalty(rough, [1.0]) == (inf,)


def test_derived_penalties_are_smaller_than_printed_ones() -> None:
    for case in CASES:
        derived, printed = (
            smallest_penalty(case.constants(), case.weights, printed=p) for p in (False, True)
        )
        assert all(d < p / 2 for d, p in zip(derived, printed, strict=True))


@pytest.mark.parametrize("weights", [[0.5], [0.5, 0.0], [0.5, -1.0]])
def test_weights_must_fit_the_nodes(weights: list[float]) -> None:
    with pytest.raises(SettingError, match="one positive number for each of 2 nodes"):
        smallest_penalty(UNIT, weights)


def test_estimates_never_say_holds() -> None:
    found = inequalities(Setting(UNIT, [0.5, 0.5], [20.0, 20.0]), printed=False)
    assert {v.status for v in check_penalties(found, True)} == {"holds"}
    assert {v.status for v in check_penalties(found, False)} == {"not contradicted"}


def test_the_diagnosis_names_what_a_small_penalty_violates() -> None:
    constants, weights = SOFTMAX.constants(), SOFTMAX.weights
    least = smallest_penalty(constants, weights)
    algorithm = paper_admm(Adaptation(0.1), curvature="exact")
    good = check_theorem(algorithm, Setting(constants, weights, least), SOFTMAX.module)
    assert good.inside
    assert [v.status for v in good.penalties if not v.printed] == ["holds"] * 3

    # One node alone, a little below: the first inequality, at that node.
    bad = [rho * (0.9 if node == 3 else 1.0) for node, rho in enumerate(least)]
    for known, other in ((True, "holds"), (False, "not contradicted")):
        setting = Setting(replace(constants, closed_form=known), weights, bad)
        seen = check_theorem(algorithm, setting)
        assert not seen.inside
        derived = {v.name: (v.status, v.where) for v in seen.penalties if not v.printed}
        assert derived["ρ/2 > 4wν"] == ("violated", 3)
        assert derived["a_p > 0"][0] == derived["ρ > 3wν"][0] == other
        assert any(
            line.startswith("ρ/2 > 4wν (as derived): violated at node 3") for line in seen.lines()
        )


def test_the_papers_own_schedule_is_not_summable() -> None:
    def of(curvature: str, schedule: object) -> bool | None:
        return summability(MetaGradient(Adaptation(), curvature, schedule)).summable  # type: ignore[arg-type]

    assert of("finite-difference", InverseSchedule()) is False
    assert of("finite-difference", InverseSchedule(power=1.01)) is True
    assert of("finite-difference", InverseSchedule(growth=0.0, power=2.0)) is False
    assert of("finite-difference", lambda facts: facts.round) is None
    assert of("exact", InverseSchedule()) is True
    assert of("none", InverseSchedule(power=2.0)) is False


def test_layers_that_break_smoothness_are_named() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.LeakyReLU(0.2),
        SamePool("max"),
        SamePool("average"),
        nn.ModuleDict({"inner": nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))}),
        nn.ELU(),
        nn.ELU(alpha=0.5),
        nn.Softplus(),
    )
    assert [(x.name, x.breaks) for x in nonsmooth_layers(module)] == [
        ("1", "gradient"),
        ("2", "gradient"),
        ("4.inner.0", "gradient"),
        ("4.inner.1", "gradient"),
        ("5", "Hessian"),
        ("6", "gradient"),
    ]


def test_departures_from_the_theorems_algorithm_are_named() -> None:
    algorithm = ADMMFedMeta(Adaptation(0.1, steps=3, batch_size=2))
    seen = check_theorem(algorithm, Setting(UNIT, [0.5, 0.5], [40.0, 40.0]), nn.ReLU())
    assert not seen.inside
    assert {
        "the penalty changes during the run",
        "support and query sets are divided anew in every round",
        "3 adaptation steps instead of 1",
        "adaptation in mini-batches",
        "layer '' (ReLU) breaks the gradient",
    } <= set(seen.lines())
