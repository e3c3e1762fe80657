from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.cell import Cell, Tasks
from experiments.results import Results
from experiments.running import Plan, run_cells
from experiments.training import pool
from experiments.two_tasks import draw
from fedmeta.data import DataSettings

pytest.importorskip("sklearn")

DATA = DataSettings("digits", nodes=10, samples=(10, 12), partition="fixed-pairs", precise=15)
HALVES = Tasks((0.0, 0.5), (0.5, 1.0), (0.5, 1.0))
OVERLAP_CLASSES = (0.2, 1.0), (0.0, 0.8), (0.0, 1.0)
OVERLAP = Tasks(*OVERLAP_CLASSES)
MORE: list[dict[str, Any]] = [{}, {"begins": "prior"}, {"begins": "anew"}, {"nodes": 3}]
SETTINGS: dict[str, Any] = {
    "algorithm": "admm-fedmeta",
    "data": {"name": "digits", "nodes": 10, "samples": [10, 12], "precise": 15},
    "training": {"rounds": 3, "evaluate_every": 0},
    "model": {"hidden": [8]},
    "inner": {"step_size": 0.1},  # a longer step would make up for what was never learned
    "algorithms": {"admm-fedmeta": {"penalty": 0.3, "platform": "proximal"}},
}


@pytest.mark.parametrize(
    ("tasks", "prior", "sources", "targets"),
    [
        (HALVES, range(5), range(5, 10), range(5, 10)),
        (OVERLAP, range(2, 10), range(8), range(10)),
    ],
)
def test_tasks_have_their_classes_and_share_no_sample(
    tasks: Tasks, prior: range, sources: range, targets: range
) -> None:
    both = draw(pool(DATA, 0), DATA, tasks, seed=0).tasks
    first, second = both
    labels = second.labels
    groups = [
        (first.nodes, prior),
        (second.sources, sources),
        (second.targets, targets),
    ]
    for nodes, classes in groups:
        held = np.concatenate([np.r_[node.support, node.query] for node in nodes])
        assert set(labels[held].tolist()) <= set(classes)
    everything = [np.r_[node.support, node.query] for f in both for node in f.nodes]
    used = np.concatenate(everything)
    assert len(np.unique(used)) == len(used)
    assert first.task == second.task
    assert first.task.outputs == 10
    trained_on = np.concatenate([np.r_[n.support, n.query] for f in both for n in f.sources])
    for federation in both:
        assert (len(federation.sources), len(federation.targets)) == (8, 2)
        for node in federation.targets:
            assert len(node.precise) == 15
            assert not np.isin(node.precise, trained_on).any()


def run(cell: Cell, folder: Path) -> list[dict[str, Any]]:
    results = Results(folder)
    (ended,) = run_cells([cell], Plan(results), lambda _label: [])
    assert ended.state == "ran", ended.problem
    found = results.read(cell.key)
    assert found is not None
    repeats: list[dict[str, Any]] = found["repeats"]
    return repeats


def test_theta_p_itself_is_judged_without_training(tmp_path: Path) -> None:
    tasks = Tasks(HALVES.prior, HALVES.sources, HALVES.targets, learns=False)
    for repeat in run(Cell(("t", "prior-model"), SETTINGS, 2, tasks=tasks), tmp_path):
        assert repeat["rounds"] == 3  # its own, on the prior task
        assert repeat["prior"]["1"] > repeat["accuracy"]["1"]
        assert set(repeat["prior"]) == set(repeat["prior_precise"]) == {"0", "1", "5"}
        assert repeat["prior_loss"]["1"] < repeat["prior_loss"]["0"]


def test_a_strong_prior_keeps_the_model_near_theta_p(tmp_path: Path) -> None:
    def losses(name: str, settings: dict[str, Any], learns: bool = True) -> list[float]:
        tasks = Tasks(HALVES.prior, HALVES.sources, HALVES.targets, learns=learns)
        repeats = run(Cell(("t", name), {**SETTINGS, **settings}, 2, tasks=tasks), tmp_path)
        return [repeat["prior_loss"]["0"] for repeat in repeats]

    at_theta_p = losses("start", {}, learns=False)
    free = losses("free", {})
    held = losses("held", {"prior": {"strength": 1e4}})
    assert held == pytest.approx(at_theta_p, rel=0.02)
    assert np.mean(free) > 1.05 * np.mean(at_theta_p)
    # Others have no prior to be held by; they run without it.
    assert losses("fedavg", {"algorithm": "fedavg", "prior": {"strength": 1e4}})


def test_dissimilarity_is_kept_target_by_target(tmp_path: Path) -> None:
    tasks = Tasks(OVERLAP.prior, OVERLAP.sources, OVERLAP.targets, dissimilarity=True)
    for repeat in run(Cell(("d", "x"), SETTINGS, 2, tasks=tasks), tmp_path):
        assert len(repeat["targets"]) == 2
        assert all(psi > 0 and 0 <= reached <= 1 for psi, reached in repeat["targets"])


def test_the_new_task_may_begin_anew_and_have_few_sources(tmp_path: Path) -> None:
    few = Tasks(*OVERLAP_CLASSES, nodes=3)
    first, second = draw(pool(DATA, 0), DATA, few, seed=0).tasks
    assert (len(first.sources), len(second.sources)) == (8, 3)

    def prior_losses(name: str, tasks: Tasks, strength: float = 0.0) -> list[float]:
        settings = {**SETTINGS, "prior": {"strength": strength}, "training": {"rounds": 1}}
        repeats = run(Cell(("b", name), settings, 2, tasks=tasks), tmp_path)
        return [repeat["prior_loss"]["0"] for repeat in repeats]

    longer = {"training": {"rounds": 20}}  # of θ_p
    known = prior_losses("known", Tasks(*OVERLAP_CLASSES, learns=False, training=longer))
    anew = Tasks(*OVERLAP_CLASSES, begins="anew", training=longer)
    assert np.mean(prior_losses("anew", anew)) > np.mean(known)
    # One step of a strong prior leads from new weights back to θ_p.
    assert np.mean(prior_losses("held", anew, 1e4)) == pytest.approx(np.mean(known), rel=0.2)


def test_what_was_added_since_leaves_digests_as_they_were() -> None:
    cells = [Cell(("x", "y"), SETTINGS, 2, tasks=Tasks(*OVERLAP_CLASSES, **more)) for more in MORE]
    assert len({cell.digest() for cell in cells[:2]}) == 1
    assert len({cell.digest() for cell in cells}) == 3
