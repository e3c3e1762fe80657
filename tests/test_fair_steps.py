"""Whose steps were found how, and who takes automatic ones."""

from __future__ import annotations

import pytest

from fedmeta.algorithms import ALGORITHMS, ADMMFedMeta, FedAvg, PlatformOptimizer
from fedmeta.cli.compare import contestant
from fedmeta.core.objective import RECOMMENDED
from fedmeta.studies.fair_steps import automatic_steps, steps_found, unfair_note


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_with_a_platform_step_can_be_made_automatic(name: str) -> None:
    plain = contestant({}, name)
    assert steps_found(plain.algorithm) in ("automatic", "default")
    made = contestant({}, name, automatic=True)
    takes = hasattr(plain.algorithm, "server")
    assert steps_found(made.algorithm) == ("automatic" if takes else "default")


def test_what_somebody_wrote_down_is_given_and_stays() -> None:
    for text in ("fedavg:step_size=0.1", "fedavg:step_size=0.7", "admm-fedmeta:penalty=0.3"):
        made = contestant({}, text, automatic=True)
        assert steps_found(made.algorithm, made.own_settings) == "given"
    assert steps_found(FedAvg(server=PlatformOptimizer("adam", 0.01))) == "given"


def test_the_automatic_inner_step_is_that_of_the_default() -> None:
    made = contestant({}, "fedavg", automatic=True).algorithm
    assert made.inner is RECOMMENDED
    assert made.server is ADMMFedMeta().server
    shared = contestant({"inner": {"step_size": 0.7}}, "fedavg", automatic=True).algorithm
    assert shared.inner.step_size == 0.7
    assert shared.server is ADMMFedMeta().server
    assert automatic_steps(made) == {}


def test_nothing_is_noted_where_nobody_finds_steps_or_older_files_do_not_say() -> None:
    assert unfair_note({"a": "given", "b": "default"}) is None
    assert unfair_note({"a": "automatic", "b": ""}) is None
