"""Competitors compute what we compute; those that are not installed here are skipped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from benchmarks import ours
from benchmarks.bench import Bench, Disagreement, check_agreement
from benchmarks.peers import Missing, Round, explicit_hessian, library
from benchmarks.peers.fedjax_round import fedjax_round
from benchmarks.peers.flower_simulation import flower_simulation
from benchmarks.peers.higher_loop import higher_loop
from benchmarks.peers.pfl_round import pfl_round
from benchmarks.peers.plain_loop import plain_loop
from benchmarks.peers.torchopt_loop import torchopt_loop
from benchmarks.problems import Problem, cifar, fashion, perceptron

DIGITS = perceptron(5, 3)


def agree(problem: Problem, mine: Round, peer: Callable[[Problem, str], Round]) -> None:
    try:
        theirs = peer(problem, "cpu")
    except Missing as missing:
        pytest.skip(str(missing))
    check_agreement(problem, {"fedmeta": mine, "peer": theirs}, "cpu")


@pytest.mark.parametrize("loop", [plain_loop, higher_loop, torchopt_loop])
@pytest.mark.parametrize("problem", [DIGITS, fashion(1), cifar(1)], ids=lambda p: p.network)
def test_loops_reach_our_theta(loop: Callable[[Problem, str], Round], problem: Problem) -> None:
    agree(problem, ours.admm_fedmeta(problem, "cpu"), loop)


@pytest.mark.filterwarnings("ignore")  # what libraries warn of in each other
@pytest.mark.parametrize("engine", [pfl_round, fedjax_round, explicit_hessian.explicit_hessian])
def test_per_fedavg_of_others_reaches_our_theta(engine: Callable[[Problem, str], Round]) -> None:
    agree(DIGITS, ours.per_fedavg(DIGITS, "cpu"), engine)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_flower_reaches_our_theta() -> None:
    try:
        with flower_simulation(DIGITS, "cpu") as theirs:
            agree(DIGITS, ours.per_fedavg(DIGITS, "cpu"), lambda *_: theirs)
    except Missing as missing:
        pytest.skip(str(missing))


def test_autocast_loop_stays_near_the_plain_one() -> None:
    plain, autocast = plain_loop(DIGITS, "cpu")(), plain_loop(DIGITS, "cpu", autocast=True)()
    for name, leaf in plain.items():
        assert not torch.equal(leaf, autocast[name]), "it did compute in bfloat16"
        assert torch.allclose(leaf, autocast[name], atol=1e-2)


def test_competitor_that_computes_something_else_is_refused() -> None:
    def lazy() -> dict[str, torch.Tensor]:
        return {n: leaf.detach() for n, leaf in DIGITS.module("cpu").named_parameters()}

    with pytest.raises(Disagreement, match="lazy differs from fedmeta"):
        check_agreement(DIGITS, {"fedmeta": ours.admm_fedmeta(DIGITS, "cpu"), "lazy": lazy}, "cpu")


def test_missing_library_is_named() -> None:
    with pytest.raises(Missing, match="no_such_library is not installed"):
        library("no_such_library.part")


def test_hessian_that_does_not_fit_is_left_out() -> None:
    with pytest.raises(Missing, match="GB"):
        explicit_hessian.explicit_hessian(perceptron(300, 1), "cpu")


def test_absent_peer_leaves_a_line_and_the_row_goes_on() -> None:
    lines: list[str] = []

    def absent() -> Round:
        raise Missing("it is not installed here")

    row = Bench(quick=True, say=lines.append).compare(
        "rounds", DIGITS, lambda: ours.admm_fedmeta(DIGITS, "cpu"), {"absent": absent}
    )
    assert row is not None
    assert row.peer_ms == {}
    assert "  absent left out: it is not installed here" in lines
