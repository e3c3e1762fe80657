from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from experiments.cell import Cell, Tasks
from experiments.declaration import Declaration, declaration
from experiments.registry import EXPERIMENTS, cells
from experiments.tuning import _training_of
from fedmeta.algorithms import ADMMFedMeta, FedAvg
from fedmeta.algorithms.learners import MetaLearner
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import nested
from fedmeta.core.errors import SettingError
from fedmeta.core.serialization import serialize
from fedmeta.studies.sequences import TaskSequence
from fedmeta.studies.tune import grid

ALL = {name: cells(name) for name in EXPERIMENTS}


def one(path: str) -> Cell:
    (found,) = (each for each in ALL[path.split("/")[0]] if each.path == path)
    return found


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("quick", [False, True])
def test_every_cell_has_settings_that_hold_together(name: str, quick: bool) -> None:
    for cell in cells(name, quick=quick):
        settings = cell.build()
        # A sequence has a name of its own, and photographs go by the backbone that sees them.
        if not isinstance(cell.tasks, TaskSequence) and settings.model.backbone is None:
            assert settings.data.name in cell.key


def test_cells_of_one_key_are_the_same_in_all_experiments() -> None:
    digests: dict[str, str] = {}
    for each in (cell for found in ALL.values() for cell in found):
        assert digests.setdefault(each.path, each.digest()) == each.digest()


def test_table1_has_the_rows_of_the_paper_and_those_it_leaves_empty() -> None:
    keys = {cell.key[1:] for cell in ALL["table1"] if cell.key[0] == "table1"}
    for partition in ("fixed-pairs", "random-pairs"):
        for data in ("fashion-mnist", "cifar10", "cifar100"):
            variants = Counter(key[2] for key in keys if key[:2] == (partition, data))
            # Paper and tuned at 1, 5, 10 updates, ours tuned at 1; all others at equal cost too.
            ours = {"fedavg": 12, "per-fedavg": 12, "admm-fedmeta": 5}
            assert {name: variants[name] for name in ours} == ours
            matched = {name: count for name, count in variants.items() if name not in ours}
            assert len(matched) == 17
            assert set(matched.values()) == {2}
    assert all(cell.repeats == 10 for cell in ALL["table1"] if not cell.grid)


def test_choices_become_settings() -> None:
    cell = one("table1/random-pairs/cifar100/fedavg/paper-5")
    settings = cell.build()
    assert settings.algorithm == FedAvg(
        step_size=0.01, local_steps=5, inner=settings.algorithm.inner
    )
    assert settings.algorithm.inner.step_size == 0.01
    assert (settings.data.partition, settings.data.nodes) == ("random-classes", 100)
    assert settings.data.precise == 200
    assert settings.model.initialisation == "truncated-normal"


def test_paper_cells_have_the_papers_hyper_parameters() -> None:
    algorithm = one("table1/fixed-pairs/fashion-mnist/admm-fedmeta/paper").build().algorithm
    assert isinstance(algorithm, ADMMFedMeta)
    assert (algorithm.penalty, algorithm.local_steps) == (0.3, 1)


def test_default_is_what_training_does_without_options() -> None:
    settings, plain = (
        one("table1/fixed-pairs/cifar10/admm-fedmeta/default").build(),
        RunSpec.from_dict({}),
    )
    assert serialize(settings.algorithm) == serialize(plain.algorithm)
    assert (settings.model, settings.augmentation) == (plain.model, plain.augmentation)
    assert settings.training.rounds == plain.training.rounds


def test_tuning_comes_first_and_is_as_thorough_for_every_baseline_as_for_ours() -> None:
    seen: set[tuple[str, ...]] = set()
    for cell in ALL["table1"]:
        assert cell.tuned is None or cell.tuned in seen
        seen.add(cell.key)
    for cell in (each for each in ALL["table1"] if each.grid and "matched" not in each.key):
        points, ours = len(grid(cell.grid)), "admm-fedmeta" in cell.key
        least = 16 if cell.tuned is None else 4
        assert points == least or (points > least and not ours)
    # What is tuned on is drawn without precise sets.
    assert all(cell.build().data.precise == 0 for cell in ALL["table1"] if cell.grid)


def test_rivals_have_what_the_default_has_and_three_trainings_each() -> None:
    default = RunSpec.from_dict({})
    for cell in (each for each in ALL["table1"] if "matched" in each.key[-1]):
        spec = cell.build()
        algorithm: Any = spec.algorithm
        assert (spec.model, spec.augmentation) == (default.model, default.augmentation)
        direction = cell.key[3].rpartition("-")[2].replace("prototypes", "orthogonal")
        assert algorithm.server.direction == direction
        if direction != "plain":
            assert algorithm.server == replace(default.algorithm.server, direction=direction)
        if isinstance(algorithm, MetaLearner):
            assert algorithm.resplit == default.algorithm.resplit
        if algorithm.name == "pfedme":  # whose inner steps move everything
            assert algorithm.inner.scope == "all"
        elif algorithm.name != "prototypes":
            alike = replace(algorithm.inner, steps=1, pull=0.0)
            assert alike == default.algorithm.inner
        if cell.grid:
            points = [
                cell.build({"algorithms": {algorithm.name: nested(p)}}) for p in grid(cell.grid)
            ]
            trainings = {_training_of(each) for each in points}
            assert len(trainings) == (1 if algorithm.name == "ditto" else 3)
            assert cell.repeats == 2
            assert cell.beyond == {}


def test_a_block_may_have_a_grid_of_its_own() -> None:
    searches = {cell.path: cell for cell in ALL["table1"] if cell.grid}
    assert len(searches["tuning/fixed-pairs/cifar100/per-fedavg/tuned-5"].grid["step_size"]) == 6
    assert len(searches["tuning/fixed-pairs/cifar10/per-fedavg/tuned-5"].grid["step_size"]) == 4


def test_what_lies_beyond_a_grid_is_not_far_from_its_ends() -> None:
    for cell in (each for each in ALL["table1"] if each.grid):
        assert cell.beyond.keys() <= cell.grid.keys()
        for name, values in cell.beyond.items():
            low, high = min(cell.grid[name]), max(cell.grid[name])
            below, above = [v for v in values if v < low], [v for v in values if v > high]
            assert low / max(below) < 4
            assert min(above) / high < 4


def test_many_updates_keep_the_inner_step_of_one() -> None:
    key = one("table1/random-pairs/cifar100/per-fedavg/tuned-10").tuned
    (cell,) = (each for each in ALL["table1"] if each.key == key)
    assert cell.tuned == ("tuning", "random-pairs", "cifar100", "per-fedavg", "tuned")
    assert list(cell.grid) == ["step_size"]


def test_cells_at_equal_cost_know_whose() -> None:
    cell = one("table1/fixed-pairs/cifar10/fedavg/tuned-5-equal")
    assert cell.tuned == ("tuning", "fixed-pairs", "cifar10", "fedavg", "tuned-5")
    assert cell.equal_settings == one("table1/fixed-pairs/cifar10/admm-fedmeta/default").settings


def test_digest_sees_what_is_declared() -> None:
    cell = one("rho/fixed-pairs/cifar10/rho-0.7")
    changed = Cell(cell.key, {**cell.settings, "loss": "squared-error"}, cell.repeats)
    more = Cell(cell.key, cell.settings, 11)
    assert len({cell.digest(), changed.digest(), more.digest()}) == 3


def test_slips_in_a_declaration_are_named() -> None:
    def expanded(block: dict[str, object]) -> Declaration:
        common = declaration("rho").common
        return Declaration("mine", {"title": "", "repeats": 1, "cells": [block]}, common)

    from experiments.declaration import _expanded

    for block, words in [
        ({"key": "{dta}"}, "no axis 'dta'"),
        ({"key": "{data}", "data": ["cifar"]}, "axis 'data' has no 'cifar'"),
        ({"key": "{data}", "tund": True}, "a block with 'tund'"),
        ({"key": "{data}", "grid": {"step_size": [0.1]}}, "a grid for no search"),
    ]:
        with pytest.raises(SettingError, match=words):
            list(_expanded(expanded(block), block))
    with pytest.raises(SettingError, match=r"tasks\.prior"):
        Tasks((0.5, 0.2), (0, 1), (0, 1))
    with pytest.raises(SettingError, match="did you mean 'table2'"):
        cells("table")
