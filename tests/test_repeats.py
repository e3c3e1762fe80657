from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedmeta.algorithms import ALGORITHMS, ADMMFedMeta, FedAvg, PlatformOptimizer
from fedmeta.algorithms.algorithm import Algorithm
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import DivergedError, MemoryBudgetError, SettingError
from fedmeta.core.objective import Adaptation
from fedmeta.core.run_folder import Record, RunFolder
from fedmeta.data import load
from fedmeta.data.augmentation import Augmentation
from fedmeta.engine import recording
from fedmeta.engine.local import LocalEngine
from fedmeta.training.callbacks import Callback
from fedmeta.training.job import Job
from fedmeta.training.many import jobs_together, train_many, train_to_stops, why_apart
from fedmeta.training.run import Run
from fedmeta.training.train import RunRequest, train
from fedmeta.uplink.guard import Guard
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.privacy import Privacy
from fedmeta.uplink.uplink import Uplink
from problems import UNEVEN, classification, flat, job_of, mlp, together

DOUBLE = Execution(dtype="float64", path="batched")
ADMM = ADMMFedMeta(Adaptation(0.2), penalty=0.5)
TRAINING = TrainingSettings(rounds=20, evaluate_every=7, evaluation_steps=(1,))
TARGETS = ((3, 4), (5, 2))


def federation(seed: int) -> Any:
    # Other sizes for every seed: padding must come from all repeats.
    sizes = [(s + seed % 2, q + seed % 3) for s, q in UNEVEN]
    return classification(sizes, TARGETS, seed=seed)


def jobs_for(
    seeds: tuple[int, ...],
    algorithm: Algorithm = ADMM,
    execution: Execution = DOUBLE,
    training: TrainingSettings = TRAINING,
    **arguments: Any,
) -> list[Job]:
    jobs: list[Job] = []
    for seed in seeds:
        settings = replace(training, seed=seed)
        shared = {"repeats": len(seeds), "layout": jobs[0].layout if jobs else None}
        job = job_of(
            federation(seed),
            mlp(seed=seed),
            algorithm,
            settings,
            execution=execution,
            **shared,
            **arguments,
        )
        jobs.append(job)
    return jobs


def alone(seed: int, algorithm: Algorithm = ADMM, training: TrainingSettings = TRAINING) -> Run:
    settings = replace(training, seed=seed)
    return train(federation(seed), mlp(seed=seed), algorithm, settings, execution=DOUBLE)


VARIANTS: dict[str, Algorithm] = {
    **{name: make() for name, make in ALGORITHMS.items()},
    # Networks of one's own that differ would each get a step that fits their features.
    "admm-fedmeta": ADMMFedMeta(Adaptation(0.3, scope="head")),
    **{name: ALGORITHMS[name](inner=Adaptation(0.3)) for name in ("fedewc", "fedlwf", "target")},
    "several steps": ADMMFedMeta(Adaptation(0.2), local_steps=3),
    "adam": FedAvg(server="adam"),
    "yogi": FedAvg(server="yogi"),
    "averaged": FedAvg(server=PlatformOptimizer("momentum", 0.5, averaging=0.5)),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_repeat_ends_as_it_would_have_alone(name: str) -> None:
    algorithm = VARIANTS[name]
    training = replace(TRAINING, rounds=5)
    runs = together(jobs_for((4, 5, 9), algorithm, training=training))
    for seed, run in zip((4, 5, 9), runs, strict=True):
        assert isinstance(run, Run)
        single = alone(seed, algorithm, training)
        far = flat(run.meta_model.theta) - flat(single.meta_model.theta)
        assert float(far.abs().max()) < 1e-12


@pytest.mark.parametrize("chunk", [1, 2, 5])
@pytest.mark.parametrize("patience", [1e9, -1.0], ids=["plain", "recorded"])
def test_admm_over_chunks_and_recordings(
    chunk: int, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_PATIENCE", patience)
    runs = together(jobs_for((4, 5), execution=replace(DOUBLE, chunk=chunk)))
    for seed, run in zip((4, 5), runs, strict=True):
        single = alone(seed)
        assert isinstance(run, Run)
        far = flat(run.meta_model.theta) - flat(single.meta_model.theta)
        assert float(far.abs().max()) < 1e-10
        assert len(run.history) == 20
        for mine, theirs in zip(run.history, single.history, strict=True):
            assert numbers(mine) == pytest.approx(numbers(theirs), rel=1e-9, abs=1e-12)
        targets = run.summary["target_metric"]["1"], single.summary["target_metric"]["1"]
        assert targets[0] == pytest.approx(targets[1], rel=1e-9)


def numbers(record: Record) -> dict[str, Any]:
    flat_record = {k: v for k, v in record.items() if k not in ("seconds", "target")}
    return flat_record | {f"target {k}": v for k, v in record.get("target", {}).items()}


def repeats_of(table: dict[str, Any]) -> list[RunRequest]:
    settings = RunSpec.from_dict(table)
    return [
        RunRequest(
            replace(settings, training=replace(settings.training, seed=seed)),
            load(settings.data_settings, seed),
        )
        for seed in (0, 1)
    ]


SINUSOIDS: dict[str, Any] = {
    "algorithm": "admm-fedmeta",
    "data": {"name": "sinusoid", "nodes": 8},
    "training": {"rounds": 3, "evaluate_every": 2},
    "execution": {"path": "batched"},
}


def test_shorter_trainings_are_the_beginning_of_the_longest() -> None:
    """Bit for bit what they come to by themselves, evaluations on the way included."""
    repeats = repeats_of(SINUSOIDS)
    found = train_to_stops(repeats, [5, 2])
    assert sorted(found) == [2, 3, 5]
    for rounds, outcomes in found.items():
        wanted = train_many([each.lasting(rounds) for each in repeats])
        for mine, theirs in zip(outcomes, wanted, strict=True):
            assert isinstance(mine, Run)
            assert isinstance(theirs, Run)
            assert torch.equal(flat(mine.meta_model.theta), flat(theirs.meta_model.theta))
            assert [numbers(each) for each in mine.history] == [
                numbers(each) for each in theirs.history
            ]
            own = ("id", "created", "ended", "seconds", "last_round")
            assert {k: v for k, v in mine.summary.items() if k not in own} == {
                k: v for k, v in theirs.summary.items() if k not in own
            }


@pytest.mark.parametrize(
    "change",
    [
        {"execution": {"path": "loop"}},
        {"algorithm": "fedavg", "uplink": {"privacy": {"dp": "local", "noise": 6.4}}},
        {"training": {"patience": 1}},
    ],
    ids=["one by one", "noise for so many rounds", "may stop early"],
)
def test_only_their_own_rounds_where_nothing_is_passed(change: dict[str, Any]) -> None:
    found = train_to_stops(repeats_of(merged([SINUSOIDS, change])), [5, 2])
    assert list(found) == [3]


def test_a_run_that_diverges_later_has_not_diverged_before() -> None:
    """Its shorter training is whole; when all have diverged, so have those that were to come."""
    far = {"fedavg": {"step_size": 1e6}}
    own = {"algorithm": "fedavg", "algorithms": far, "training": {"rounds": 60}}
    found = train_to_stops(repeats_of(merged([SINUSOIDS, own])), [0, 40])
    assert [isinstance(each, DivergedError) for each in found[0]] == [False, False]
    assert [isinstance(each, DivergedError) for each in found[40] + found[60]] == [True] * 4


def test_notes_belong_to_those_who_were_there(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter([[], ["memory ran out"], [], [], []])
    monkeypatch.setattr(LocalEngine, "notes", lambda _: next(said))
    found = train_to_stops(repeats_of(SINUSOIDS), [1, 5])
    noted = {
        rounds: [each.get("note") for run in runs if isinstance(run, Run) for each in run.history]
        for rounds, runs in found.items()
    }
    assert noted[1] == [None] * 2
    for rounds in (3, 5):
        assert noted[rounds] == ([None] * (rounds - 1) + ["memory ran out"]) * 2


def test_one_that_diverges_does_not_disturb_the_others(tmp_path: Path) -> None:
    jobs = jobs_for((4, 5, 6))
    blown = {name: leaf * torch.inf for name, leaf in jobs[1].model.theta.items()}
    jobs[1] = replace(jobs[1], model=replace(jobs[1].model, theta=blown))
    folders = [tmp_path / str(i) for i in range(3)]
    outcomes = together(jobs, folders=folders)
    assert isinstance(outcomes[1], DivergedError)
    assert "diverged in round 1" in str(outcomes[1])
    assert RunFolder.open(folders[1]).summary()["status"] == "diverged"
    for i, seed in ((0, 4), (2, 6)):
        run = outcomes[i]
        assert isinstance(run, Run)
        far = flat(run.meta_model.theta) - flat(alone(seed).meta_model.theta)
        assert float(far.abs().max()) < 1e-10


def test_training_ends_when_all_have_diverged() -> None:
    rounds: list[int] = []

    class Counting(Callback):
        def on_round(self, record: Record) -> None:
            rounds.append(int(record["round"]))

    jobs = jobs_for((4, 5))
    for i, job in enumerate(jobs):
        blown = {name: leaf * torch.inf for name, leaf in job.model.theta.items()}
        jobs[i] = replace(job, model=replace(job.model, theta=blown))
    outcomes = together(jobs, callbacks=[Counting()])
    assert all(isinstance(each, DivergedError) for each in outcomes)
    assert rounds == list(range(1, len(rounds) + 1))
    assert len(rounds) < TRAINING.rounds


def test_folders_are_those_of_runs(tmp_path: Path) -> None:
    told: list[Record] = []

    class Listener:
        def on_start(self, first_round: int, rounds: int) -> None:
            told.append({"rounds": rounds})

        def on_round(self, record: Record) -> None:
            told.append(record)

        def on_end(self, summary: Mapping[str, Any]) -> None:
            told.append({"status": summary["status"]})

    folders = [tmp_path / name for name in ("a", "b")]
    runs = together(
        jobs_for((4, 5)),
        folders=folders,
        origins=[{"table": {"seed": 4}}, {}],
        callbacks=[Listener()],
    )
    for run, path in zip(runs, folders, strict=True):
        assert isinstance(run, Run)
        folder = RunFolder.open(path)
        assert folder.history() == list(run.history)
        assert folder.summary()["together"] == 2
        assert folder.model.exists()
    assert RunFolder.open(folders[0]).settings()["origin"] == {"table": {"seed": 4}}
    assert [each.get("round") for each in told] == [None, *range(1, 21), None]


def test_what_cannot_be_trained_together() -> None:
    loop = replace(DOUBLE, path="loop")
    few, seldom = replace(TRAINING, rounds=3), replace(TRAINING, evaluation_steps=(1, 7))
    jobs = jobs_for((4, 5))
    assert why_apart(jobs) is None
    for group, reason in [
        (jobs_for((4, 5), execution=loop), "one by one"),
        (jobs_for((4, 5), participation=Participation(fraction=0.5)), "not all nodes are counted"),
        (jobs_for((4, 5), participation=Participation(lost=0.5)), "not all nodes are counted"),
        (jobs_for((4, 5), training=replace(TRAINING, patience=2)), "stop early"),
        ([jobs[0], *jobs_for((5,), training=few)], "numbers of rounds"),
        ([jobs[0], *jobs_for((5,), training=seldom)], "at different times"),
        ([jobs[0], *jobs_for((5,), uplink=Uplink(Guard("reject")))], "different ways"),
        (jobs_for((4, 5), uplink=Uplink(privacy=Privacy("central", noise=1.0))), "noise"),
    ]:
        assert reason in (why_apart(group) or "")
        with pytest.raises(SettingError, match=reason):
            together(group)
    fewer = job_of(classification(UNEVEN[:3], TARGETS), mlp(), ADMM, TRAINING, execution=DOUBLE)
    assert "numbers of source nodes" in (why_apart([jobs[0], fewer]) or "")


def test_frozen_parts_must_be_the_same() -> None:
    def model(seed: int) -> nn.Module:
        network = mlp(seed=seed)
        network[0].weight.requires_grad_(False)
        return network

    jobs: list[Job] = []
    for seed in (4, 5):
        layout = jobs[0].layout if jobs else None
        jobs.append(
            job_of(federation(seed), model(seed), ADMM, TRAINING, execution=DOUBLE, layout=layout)
        )
    assert "frozen parts" in (why_apart(jobs) or "")


def test_precise_sets_and_augmentation_are_those_of_runs_alone(tmp_path: Path) -> None:
    """Also where targets of one repeat have larger precise sets than those of another."""
    training = replace(TRAINING, rounds=6)
    augmentation = Augmentation(flip=True, shift=1)
    jobs: list[Job] = []
    singles: list[Run] = []
    for seed in (4, 5):
        sizes = [(s + seed % 2, q + seed % 3) for s, q in UNEVEN]
        data = classification(sizes, TARGETS, shape=(1, 3, 3), seed=seed)
        first, second = data.targets
        precise = np.concatenate([first.query, second.query])[: seed + 1]
        data = data.with_nodes([*data.sources, first, replace(second, precise=precise)])
        network = nn.Sequential(nn.Flatten(), *mlp(9, seed=seed))
        options: dict[str, Any] = {"execution": DOUBLE, "augmentation": augmentation}
        settings = replace(training, seed=seed)
        singles.append(train(data, network, ADMM, settings, **options))
        layout = jobs[0].layout if jobs else None
        jobs.append(job_of(data, network, ADMM, settings, repeats=2, layout=layout, **options))
    folders = [tmp_path / name for name in "ab"]
    for run, single in zip(together(jobs, folders=folders), singles, strict=True):
        assert isinstance(run, Run)
        far = flat(run.meta_model.theta) - flat(single.meta_model.theta)
        assert float(far.abs().max()) < 1e-10
        mine, theirs = (each.summary["precise_metric"]["1"] for each in (run, single))
        assert mine == pytest.approx(theirs, rel=1e-9)
        assert [row["precise"] for row in run.summary["targets"]] == [
            0,
            run.summary["seed"] + 1,
        ]
        assert run.history[-1]["precise"] == pytest.approx(single.history[-1]["precise"])
        assert run.summary["settings"]["augmentation"] == {"flip": True, "shift": 1}


def test_no_rounds() -> None:
    runs = together(jobs_for((4, 5), FedAvg(), training=replace(TRAINING, rounds=0)))
    for seed, run in zip((4, 5), runs, strict=True):
        assert isinstance(run, Run)
        assert torch.equal(
            flat(run.meta_model.theta), flat(dict(mlp(seed=seed).named_parameters()))
        )


def test_what_does_not_fit_together_is_trained_one_by_one() -> None:
    model, budget = {"name": "mlp", "hidden": [4000]}, {"memory": 0.75, "device": "cpu"}
    rounds = {"rounds": 1, "evaluate_every": 0}
    table = {"model": model, "execution": budget, "training": rounds, "algorithm": "fedavg"}
    federation = classification(((4, 3),) * 12, shape=(64,), classes=10)
    repeats = [
        RunRequest(RunSpec.from_dict(merged([table, {"training": {"seed": seed}}])), federation)
        for seed in range(10)
    ]
    assert jobs_together(repeats[:2]) is not None
    assert jobs_together(repeats) is None
    assert all(isinstance(each, Run) for each in train_many(repeats))
    little = RunSpec.from_dict(merged([table, {"execution": {"memory": 0.1}}]))
    with pytest.raises(MemoryBudgetError, match="give Execution a memory"):
        train_many([replace(each, spec=little) for each in repeats])
