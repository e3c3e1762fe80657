"""The page outside the paper: its data, and its numbers from results that are made up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import backbone, duals, goals, lost_uploads, outside
from experiments.cell import Cell
from experiments.declaration import declaration
from experiments.own_data import MOTION, bands, people, thermometers
from experiments.registry import cells
from experiments.training import federation, pool, train_cell
from experiments.tuning import search
from fedmeta.core.errors import DataError
from fedmeta.data import DataSettings

ROOT = Path(__file__).parents[2]


def repeat(seed: int, one: float, **more: Any) -> dict[str, Any]:
    accuracy = {"0": 0.5, "1": one}
    return {
        **{"seed": seed, "diverged": False, "accuracy": accuracy, "steps": 1, "gradients": 200.0},
        **more,
    }


def summary_of(results: Mapping[Any, list[dict[str, Any]]]) -> dict[str, Any]:
    found = {key: {"repeats": repeats} for key, repeats in results.items()}
    tables: dict[str, Any] = {}
    for (data, task), about in outside.summarised(found):
        tables.setdefault(data, {})[task] = about
    return {"outside": tables, "tuning": {}}


def told(summary: dict[str, Any]) -> dict[str, tuple[str | None, bool | None]]:
    return {text: (measured, reached) for text, _, measured, reached in outside.goals(summary)}


def test_bands_turn_with_their_wearer() -> None:
    """Walking lies at ±(2, 1): plus for odd wearers, minus for even ones; cycling opposite."""
    made = bands(0)
    assert made.owners is not None
    odd = np.array([int(name[-2:]) % 2 == 1 for name in made.owners.tolist()])
    walking = made.labels == made.class_names.index("walking")
    assert made.inputs[odd & walking, :2].mean(0) == pytest.approx([2, 1], abs=0.15)
    assert made.inputs[~odd & walking, :2].mean(0) == pytest.approx([-2, -1], abs=0.15)
    assert not np.array_equal(made.inputs, bands(1).inputs)
    assert np.array_equal(made.inputs, bands(0).inputs)


def test_thermometers_have_offsets_of_their_own() -> None:
    """Var(y) ≈ 36 + E g² · Var(shared) + 1, with E g² = 13/12; offsets deviate by 6."""
    many = thermometers(0, devices=400, samples=50)
    assert many.owners is not None
    shared = 4 * (4 + 9 * 0.3943 + 1)  # Var(tanh z) of a standard normal z is 0.3943
    assert many.labels.var() == pytest.approx(36 + 13 / 12 * shared + 1, rel=0.1)
    means = [many.labels[many.owners == name].mean() for name in np.unique(many.owners)]
    assert np.std(means) == pytest.approx(6, rel=0.15)


def test_made_up_tables_are_dealt_out_by_their_column() -> None:
    data = DataSettings("bands.csv", label="activity", node="wearer")
    assert len(federation(data, 0).nodes) == 40
    assert federation(data, 0).sources[0].name.startswith("person-")
    assert pool(data, 0).inputs is not pool(data, 1).inputs


def test_absent_people_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"there is no {MOTION}"):
        people(DataSettings(MOTION, str(tmp_path), node="subject"), 0)


@pytest.mark.skipif(
    not (ROOT.parent / "shared/data" / MOTION).exists(), reason=f"there is no {MOTION}"
)
def test_people_are_those_of_the_example() -> None:
    found = federation(DataSettings(MOTION, str(ROOT.parent / "shared/data"), node="subject"), 0)
    assert [node.name for node in found.targets] == [f"person-{each}" for each in range(26, 31)]


def test_leads_are_paired_by_seed() -> None:
    """Accuracies 90, 80 against 85, 79 in another order: +5 and +1, 3 ± 25.41 (t = 12.706)."""
    key = ("digits", "fixed-pairs")
    ours = [repeat(0, 0.9, decided=0.95), repeat(1, 0.8, decided=0.85)]
    summary = summary_of({
        (*key, "default"): ours,
        (*key, "fedavg"): [repeat(1, 0.79), repeat(0, 0.85)],
        (*key, "fedmeta"): [repeat(0, 0.915), repeat(1, 0.81)],
    })  # fmt: skip
    found = summary["outside"]["digits"]["fixed-pairs"]
    assert found["lead"]["fedavg"] == {"mean": 3.0, "ci95": 25.41, "n": 2}
    assert found["lead"]["fedmeta"]["mean"] == -1.25
    assert (found["decided"]["mean"], found["before"]["mean"]) == (90.0, 50.0)
    text = outside.table(summary)
    assert "| digits, fixed pairs | 50.00 ± 0.00 | 85.00" in text
    assert "-1.25 ± 3.18 (FedMeta, the default's server step) |" in text


def test_precise_sets_come_first() -> None:
    one = repeat(0, 0.9, precise={"0": 0.4, "1": 0.7}, decided=0.9, decided_precise=0.8)
    found = summary_of({("digits", "fixed-pairs", "default"): [one]})["outside"]["digits"]
    numbers = found["fixed-pairs"]
    assert numbers["reached"]["default"]["mean"] == 70.0
    assert numbers["decided"]["mean"] == 80.0


def test_errors_are_held_against_each_devices_mean() -> None:
    """1 against a rival's 2, where the own mean leaves 4: 25 points, and 75 of the own mean."""
    key = ("thermometers.csv", "own-nodes")
    ours = [repeat(seed, 1.0, own_mean=4.0) for seed in (0, 1)]
    theirs = [repeat(seed, 2.0, own_mean=4.0) for seed in (0, 1)]
    rivals: dict[Any, list[dict[str, Any]]]
    rivals = {(*key, name): theirs for name in ("per-fedavg", "fedavg", "fedmeta")}
    summary = summary_of({(*key, "default"): ours, **rivals})
    found = summary["outside"]["thermometers.csv"]["own-nodes"]
    assert found["lead"]["fedavg"]["mean"] == 25.0
    assert found["lead-of-own-mean"]["mean"] == 75.0
    reached = told(summary)
    assert reached["thermometers: no worse than each device's own mean"] == ("1.00 ± 0.00", True)
    best = "thermometers: at most 1 point behind the best tuned rival"
    assert reached[best] == ("+25.00 ± 0.00 (Per-FedAvg)", True)
    worse = summary_of({(*key, "default"): [repeat(0, 5.0, own_mean=4.0)], **rivals})
    assert told(worse)["thermometers: no worse than each device's own mean"][1] is False
    assert told(worse)[best][1] is False


def test_goals_wait_for_all_rivals() -> None:
    key = ("digits", "random-pairs")
    names = ("default", "per-fedavg", "fedavg", "fedmeta")
    some: dict[Any, list[dict[str, Any]]]
    some = {(*key, name): [repeat(0, 0.9)] for name in names}
    goal = "digits, random pairs: at most 1 point behind the best tuned rival"
    assert told(summary_of(some))[goal] == (None, None)
    level = {**some, (*key, "prototypes"): [repeat(0, 0.91)]}
    assert told(summary_of(level))[goal][1] is True
    behind = {**some, (*key, "prototypes"): [repeat(0, 0.911)]}
    assert told(summary_of(behind))[goal] == ("-1.10 (prototypes)", False)


@pytest.mark.parametrize(("lead", "gradients", "reached"), [
    (0.15, 200.0, True), (0.149, 200.0, False), (0.3, 100.0, False),
])  # fmt: skip
def test_one_shot_is_judged_at_equal_gradients(
    lead: float, gradients: float, reached: bool
) -> None:
    key = ("glyphs", "5-way-1-shot")
    theirs = [repeat(seed, 0.5, gradients=gradients) for seed in (0, 1)]
    ours = [repeat(seed, 0.5 + lead) for seed in (0, 1)]
    summary = summary_of({(*key, "default"): ours, (*key, "per-fedavg"): theirs})
    goal = "glyphs, 5-way 1-shot: ahead of tuned Per-FedAvg at equal gradients"
    assert told(summary)[goal][1] is reached


def test_a_step_must_halve_the_error_of_waves() -> None:
    key = ("sinusoid", "own-nodes", "default")
    goal = "sinusoid, 50 nodes: one step at least halves the error"
    for after, reached in ((0.25, True), (0.26, False)):  # 0.5 before
        summary = summary_of({key: [repeat(0, after, own_mean=1.0)]})
        assert told(summary)[goal] == (f"{after:.2f}", reached)


def test_gains_of_duals_are_paired() -> None:
    """At K = 5: 90 and 92 with both, 89 and 90 without duals, 85 and 90 at K = 1."""

    def result(*shares: float) -> dict[str, Any]:
        rows = [repeat(seed, 0.0, precise={"1": each}) for seed, each in enumerate(shares)]
        return {"repeats": rows}

    place = ("digits", "lost-30")
    found: dict[tuple[str, ...], dict[str, Any]] = {
        (*place, "K-1", "both"): result(0.85, 0.90),
        (*place, "K-5", "both"): result(0.90, 0.92),
        (*place, "K-5", "no-duals"): result(0.89, 0.90),
        (*place, "K-5", "both-equal"): result(0.80, 0.80),
    }
    entries = dict(duals.summarised(found))
    assert entries[(*place, "K-5", "no-duals")]["gain"]["mean"] == 1.5
    assert entries[(*place, "K-5", "both")]["over-one-step"]["mean"] == 3.5
    assert entries[(*place, "K-5", "both-equal")]["over-one-step"]["mean"] == -7.5
    assert entries[(*place, "K-1", "both")]["over-one-step"] is None
    nested: dict[str, Any] = {}
    for (data, lost, steps, rule), entry in entries.items():
        nested.setdefault(data, {}).setdefault(lost, {}).setdefault(steps, {})[rule] = entry
    text = duals.table({"duals": nested})
    assert "| digits | 30 % | 5 | 50 rounds | 91.00 ± 12.71 | – | +1.50 ± 6.35 | +3.50" in text
    assert "| digits | 30 % | 5 | equal gradients | 80.00 ± 0.00 | – | – | -7.50" in text


def test_rounds_in_the_table_are_those_declared() -> None:
    for cell in cells("duals"):
        assert cell.build().training.rounds == 50


def test_a_diverged_run_fails_the_goal() -> None:
    def summary(diverged: int, steps: tuple[int, ...] = (1, 5, 10)) -> dict[str, Any]:
        entry = {"mean": 95.0, "ci95": 1.0, "n": 10, "diverged": 0}
        table = {f"K-{k}": {f"lost-{p}": {**entry} for p in (0, 10, 30, 50)} for k in steps}
        table["K-1"]["lost-50"]["diverged"] = diverged
        return {"lost_uploads": {"digits": table}}

    assert next(lost_uploads.goals(summary(0)))[2:] == ("0 of 120", True)
    assert next(lost_uploads.goals(summary(1)))[2:] == ("1 of 120", False)
    assert next(lost_uploads.goals(summary(0, (1, 5))))[2:] == ("0 of 80", None)
    assert "| digits | 1 | 50 % | 95.00 ± 1.00 | 1 of 10 |" in lost_uploads.table(summary(1))


def test_every_cell_is_a_place_that_the_page_names() -> None:
    names = {cell.key[1:3] for cell in cells("outside") if cell.key[0] == "outside"}
    assert names == set(outside.PLACES)
    assert len(cells("lost_uploads")) == lost_uploads.CELLS


def test_default_has_no_options() -> None:
    """But for what names data, network and how it is judged."""
    for cell in cells("outside"):
        if cell.key[-1] == "default":
            settings = dict(cell.settings)
            assert settings.pop("algorithm") == "admm-fedmeta"
            assert settings.pop("training")["rounds"] == 100
            settings.pop("data")
            assert settings in ({}, {"model": {"name": "mlp"}})


def test_values_are_searched_for_the_smallest_error() -> None:
    """A step size of 1e-9 learns nothing; one of 0.1 must win though its number is smaller."""
    settings = {
        "algorithm": "fedavg",
        "data": {"name": "sinusoid", "nodes": 10, "samples": [10, 10]},
        "training": {"rounds": 20, "evaluate_every": 0},
        "algorithms": {"fedavg": {"local_steps": 5}},
    }
    cell = Cell(("tuning", "x"), settings, 1, grid={"step_size": [1e-9, 0.1]})
    found = search(cell, {}, {}, lambda _label: [])
    assert found["best"] == {"step_size": 0.1}
    assert all(trial["mean"] < 0 for trial in found["trials"])


def test_records_keep_own_means_and_decisions() -> None:
    settings = {
        "data": {"name": "sinusoid", "nodes": 6, "samples": [10, 10]},
        "training": {"rounds": 1, "evaluate_every": 0, "decide": True},
    }
    cell = Cell(("mine", "x"), settings, 1)
    ((kept,),) = train_cell(cell, cell.build(), [], []).values()
    assert {"own_mean", "decided"} <= set(kept)
    assert "decided_precise" not in kept


def test_pages_have_titles_and_goals_of_their_own() -> None:
    assert declaration("duals").title == "What ADMM itself contributes"
    summary: dict[str, Any] = {"outside": {}, "tuning": {}, "lost_uploads": {}, "older": {}}
    rows = goals.outside_goals(summary)
    others = (len(list(each.goals(summary))) for each in (lost_uploads, backbone))
    assert len(rows) == len(outside.PLACES) + 4 + sum(others)
    assert {each["reached"] for each in rows} == {None}
