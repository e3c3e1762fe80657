from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from experiments.cell import Cell, budget, built
from experiments.results import Results
from experiments.running import Ended, Plan, run_cells, selected, state
from experiments.training import federation, pool, record
from experiments.tuning import tried_before
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core.errors import SettingError
from fedmeta.core.run_folder import Record
from fedmeta.training.many import train_many
from fedmeta.training.train import RunRequest

pytest.importorskip("sklearn")

SETTINGS: dict[str, Any] = {
    "algorithm": "fedavg",
    "data": {"name": "digits", "nodes": 12, "samples": [10, 12], "precise": 10},
    "training": {"rounds": 2, "evaluate_every": 1},
    "model": {"hidden": [8]},
}
CELL = Cell(("mine", "fedavg"), SETTINGS, 2)
TUNING = Cell(("tuning", "fedavg"), SETTINGS, 2, grid={"step_size": [0.01, 1.0]})
TUNED = replace(CELL, key=("mine", "tuned"), tuned=TUNING.key)


def run(cells: list[Cell], results: Results, **options: Any) -> list[Ended]:
    return list(run_cells(cells, Plan(results, **options), lambda _label: []))


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path)


def test_result_holds_what_was_done_and_what_came_of_it(results: Results) -> None:
    (ended,) = run([CELL], results)
    assert ended.state == "ran"
    found = json.loads((results.folder / "mine/fedavg.json").read_text())
    assert found["key"] == ["mine", "fedavg"]
    assert found["settings"]["algorithm"]["name"] == "fedavg"
    assert found["settings"]["data"]["precise"] == 10
    assert {"versions", "machine", "date", "seconds", "seeds", "digest"} <= set(found)
    assert str(results.folder) not in json.dumps(found)
    first, second = found["repeats"]
    assert (first["seed"], second["seed"]) == (0, 1)
    assert set(first["accuracy"]) == set(first["precise"]) == {"0", "1", "5"}
    assert first["gradients"] == 2
    assert first["loss"][0] == first["reached"][0] == first["reached_precise"][0] == [1, 2]
    assert first["reached"][1][-1] == pytest.approx(first["accuracy"]["1"], abs=1e-5)


def test_repeats_together_are_those_one_by_one() -> None:
    settings = RunSpec.from_dict(SETTINGS)
    repeats = [
        RunRequest(
            replace(settings, training=replace(settings.training, seed=s)),
            federation(settings.data, s),
        )
        for s in (0, 1)
    ]
    together = [record(s, run) for s, run in enumerate(train_many(repeats))]
    alone = [record(s, train_many([each])[0]) for s, each in enumerate(repeats)]
    for a, b in zip(together, alone, strict=True):
        assert a["accuracy"] == b["accuracy"]
        assert a["loss"][1] == pytest.approx(b["loss"][1], rel=1e-4)


def test_loss_of_final_model_is_seen_on_samples_of_first_round(results: Results) -> None:
    """A model that did not move has the very loss of the first round; one that learned, less."""
    own = {"algorithm": "admm-fedmeta", "data": {"precise": 0}, "training": {"evaluate_every": 0}}
    cell = Cell(("mine", "auto"), merged([SETTINGS, own]), 2, final_loss=True)
    still = {"algorithms": {"admm-fedmeta": {"first_penalty": 1e12}}, "training": {"rounds": 1}}
    moving = {"training": {"rounds": 40}}
    for change in (still, moving):
        run([replace(cell, settings=merged([cell.settings, change]))], results, force=True)
        found = results.read(cell.key)
        assert found is not None
        for each in found["repeats"]:
            first = each["loss"][1][0]
            if change is still:
                assert each["final_loss"] == pytest.approx(first, rel=1e-3)
            else:
                assert each["final_loss"] < 0.8 * first


def test_cell_all_of_whose_runs_diverge_has_a_result(results: Results) -> None:
    own = {"algorithm": "admm-fedmeta", "algorithms": {"admm-fedmeta": {"penalty": 1e-30}}}
    run([Cell(("mine", "lost"), merged([SETTINGS, own]), 2, final_loss=True)], results)
    found = results.read(("mine", "lost"))
    assert found is not None
    assert [each["diverged"] for each in found["repeats"]] == [True, True]
    assert [each["final_loss"] for each in found["repeats"]] == [None, None]


def test_files_are_read_once() -> None:
    data = RunSpec.from_dict(SETTINGS).data
    assert pool(data, 0).inputs is pool(replace(data, nodes=5), 1).inputs


def test_current_results_are_kept(results: Results) -> None:
    run([CELL], results)
    assert state(CELL, results) == "done"
    assert [each.state for each in run([CELL], results)] == ["kept"]
    assert [each.state for each in run([CELL], results, force=True)] == ["ran"]


def test_result_of_other_settings_is_outdated(results: Results) -> None:
    run([CELL], results)
    other = replace(CELL, settings=merged([SETTINGS, {"training": {"rounds": 3}}]))
    assert state(other, results) == "outdated"
    # A default that has changed since: nothing that the cell declares, but it decides the numbers.
    found = results.read(CELL.key)
    assert found is not None
    found["settings"]["algorithm"]["step_size"] = 17.0
    results.write(CELL.key, found)
    assert state(CELL, results) == "outdated"


def test_settings_that_came_later_do_not_outdate(results: Results) -> None:
    run([CELL], results)
    found = results.read(CELL.key)
    assert found is not None
    del found["settings"]["data"]["precise"]
    results.write(CELL.key, found)
    assert state(CELL, results) == "done"


def test_tuned_cell_takes_the_best_point_and_goes_out_of_date_with_it(results: Results) -> None:
    assert run([TUNED], results)[0].problem.startswith("mine/tuned has no tuned settings")
    assert [each.state for each in run([TUNING, TUNED], results)] == ["ran", "ran"]
    tuning, tuned = results.read(TUNING.key), results.read(TUNED.key)
    assert tuning is not None
    assert tuned is not None
    best = max(tuning["trials"], key=lambda trial: trial["mean"])
    assert tuning["best"] == tuned["point"] == best["point"]
    assert tuned["settings"]["algorithm"]["step_size"] == best["point"]["step_size"]
    results.write(TUNING.key, {**tuning, "best": {"step_size": 0.5}})
    assert state(TUNED, results) == "outdated"


def test_a_search_with_values_beyond_its_end_goes_on_from_there(results: Results) -> None:
    run([TUNING, TUNED], results)
    found = results.read(TUNING.key)
    assert found is not None
    end = found["best"]["step_size"]
    further = replace(TUNING, beyond={"step_size": [end / 10, end * 10]})
    assert (state(TUNING, results), state(further, results)) == ("done", "unfinished")
    # Until it does, everything holds.
    assert [each.state for each in run([further, TUNED], results, seconds=-1.0)] == [
        "no time",
        "kept",
    ]
    assert run([further], results)[0].state == "ran"
    on = results.read(TUNING.key)
    assert on is not None
    assert on["trials"][:2] == found["trials"]
    assert len(on["trials"]) > 2
    assert state(further, results) == "done"
    # And a grid that grows then knows what it has tried.
    grown = replace(further, grid={"step_size": [0.01, 0.02, 1.0]})
    assert state(grown, results) == "outdated"
    assert tried_before(grown, results) == on["trials"]


def test_a_search_after_another_rests_on_what_it_does_not_try_itself(results: Results) -> None:
    first = replace(TUNING, grid={"step_size": [0.01, 1.0], "inner.step_size": [0.1]})
    after = replace(TUNING, key=("tuning", "after"), tuned=first.key)
    run([first, after], results)
    found = results.read(first.key)
    assert found is not None
    results.write(first.key, {**found, "best": {**found["best"], "step_size": 0.5}})
    assert state(after, results) == "done"
    results.write(first.key, {**found, "best": {**found["best"], "inner.step_size": 0.5}})
    assert state(after, results) == "outdated"


def test_a_search_that_found_nothing_is_not_asked_for_again(results: Results) -> None:
    run([TUNING], results)
    found = results.read(TUNING.key)
    assert found is not None
    lost = [{**each, "values": [], "mean": None} for each in found["trials"]]
    results.write(TUNING.key, {**found, "trials": lost, "best": None})
    search, tuned = run([TUNING, TUNED], results)
    assert search.state == "kept"
    assert "every run of tuning/fedavg diverged" in tuned.problem


def test_a_result_says_at_which_point_it_was_trained(results: Results) -> None:
    """Though its search comes to another one meanwhile, in another process."""
    run([TUNING], results)
    found = results.read(TUNING.key)
    assert found is not None
    then = found["best"]

    def move(_label: str) -> list[Any]:
        results.write(TUNING.key, {**found, "best": {"step_size": 0.5}})
        return []

    list(run_cells([TUNED], Plan(results), move))
    trained = results.read(TUNED.key)
    assert trained is not None
    assert trained["point"] == then
    assert trained["settings"]["algorithm"]["step_size"] == then["step_size"]
    assert state(TUNED, results) == "outdated"


def test_tuning_looks_at_source_nodes_alone(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RunRequest] = []

    def watched(repeats: list[RunRequest], callbacks: Any = ()) -> Any:
        seen.extend(repeats)
        return train_many(repeats, callbacks)

    monkeypatch.setattr("experiments.training.train_many", watched)
    run([TUNING], results)
    drawn = federation(RunSpec.from_dict(SETTINGS).data_settings, 0)
    sources = {node.name for node in drawn.sources}
    assert len(seen) == 4
    for each in seen:
        assert {node.name for node in each.federation.nodes} == sources
        assert all(len(node.precise) == 0 for node in each.federation.nodes)


def test_diverged_runs_are_kept_as_such(results: Results) -> None:
    wild = replace(
        CELL, settings=merged([SETTINGS, {"algorithms": {"fedavg": {"step_size": 1e30}}}])
    )
    run([wild], results)
    found = results.read(wild.key)
    assert found is not None
    assert [each["diverged"] for each in found["repeats"]] == [True, True]
    assert "diverged" in found["repeats"][0]["why"]


def test_a_cell_that_cannot_run_does_not_stop_the_others(results: Results) -> None:
    wrong = Cell(("mine", "wrong"), {"algorithm": "fedvag"}, 1)
    ended = run([wrong, CELL], results)
    assert [each.state for each in ended] == ["failed", "ran"]
    assert "did you mean 'fedavg'" in ended[0].problem
    assert state(wrong, results) == "cannot run"


def test_no_cell_is_started_after_the_time_is_spent(results: Results) -> None:
    assert [each.state for each in run([CELL], results, seconds=-1.0)] == ["no time"]
    assert results.read(CELL.key) is None


def test_equal_cost_scales_the_rounds(results: Results) -> None:
    dear = merged([SETTINGS, {"algorithms": {"fedavg": {"local_steps": 3}}}])
    equal = replace(CELL, key=("mine", "equal"), equal=("mine", "dear"), equal_settings=dear)
    run([equal], results)
    found = results.read(equal.key)
    assert found is not None
    assert [each["rounds"] for each in found["repeats"]] == [6, 6]
    assert state(equal, results) == "done"


def test_equal_cost_holds_until_the_cost_changes(results: Results) -> None:
    """Of the other cell nothing else counts: its step size may become another one."""
    equal = replace(CELL, key=("mine", "equal"), equal=("mine", "dear"), equal_settings=SETTINGS)
    run([equal], results)
    found = results.read(equal.key)
    assert found is not None
    for changed, expected in (
        ({"algorithms": {"fedavg": {"step_size": 0.5}}}, "done"),
        ({"algorithms": {"fedavg": {"local_steps": 3}}}, "outdated"),
        ({"training": {"rounds": 7}}, "outdated"),
    ):
        then = merged([SETTINGS, changed])
        results.write(equal.key, {**found, "equal": budget(built(then))})
        assert state(equal, results) == expected
    results.write(equal.key, {**found, "equal": {"data": found["equal"]["data"]}})
    assert state(equal, results) == "outdated"  # nothing says what it was given


def test_the_same_runs_are_not_trained_twice(results: Results) -> None:
    """Neither those of another cell, nor of a tuned point, nor of rounds that cost as much."""
    chosen = merged([SETTINGS, {"algorithms": {"fedavg": {"step_size": 1.0}}}])
    start = replace(CELL, settings=chosen)
    other = replace(start, key=("other", "name"))
    equal = replace(start, key=("mine", "equal"), equal=CELL.key, equal_settings=SETTINGS)
    run([start, TUNING], results)
    for key, add in ((CELL.key, "repeats"), (TUNING.key, "trials")):
        found = results.read(key)
        assert found is not None
        marked = [{**each, "mark": 1} for each in found[add]]
        results.write(key, {**found, add: marked, "best": {"step_size": 1.0}, "date": "2000-01-01"})
    ended = run([other, equal, TUNED], results, others=[start])
    assert [each.state for each in ended] == ["same"] * 3
    for cell in (other, equal, TUNED):
        found = results.read(cell.key)
        assert found is not None
        assert [each["mark"] for each in found["repeats"]] == [1, 1]
        assert found["date"] == "2000-01-01"
        assert state(cell, results) == "done"


def test_a_result_that_is_replaced_meanwhile_is_taken_as_it_was(results: Results) -> None:
    """A search that comes to another point gives the tuned cell other runs, not its twin."""
    run([TUNING, TUNED], results)
    before = results.read(TUNED.key)
    assert before is not None
    first = before["point"]["step_size"]
    own = {"algorithms": {"fedavg": {"step_size": first}}}
    twin = replace(CELL, key=("mine", "twin"), settings=merged([SETTINGS, own]))
    other = replace(TUNING, grid={"step_size": [0.5]})
    ended = run([other, TUNED, twin], results, others=[TUNED])
    assert [each.state for each in ended] == ["ran", "ran", "same"]
    after, taken = results.read(TUNED.key), results.read(twin.key)
    assert after is not None
    assert taken is not None
    assert taken["repeats"] == before["repeats"] != after["repeats"]


def test_other_runs_are_trained(results: Results) -> None:
    """One setting, one seed or what is kept of a run makes another cell of it."""
    run([CELL], results)
    steps = merged([SETTINGS, {"algorithms": {"fedavg": {"local_steps": 2}}}])
    changes: list[dict[str, Any]] = [{"settings": steps}, {"repeats": 1}, {"final_loss": True}]
    cells = [replace(CELL, key=("mine", str(i)), **each) for i, each in enumerate(changes)]
    assert [each.state for each in run(cells, results, others=[CELL])] == ["ran"] * 3
    again = replace(CELL, key=("mine", "again"))
    ended = run([CELL, again], results, others=[CELL], force=True)
    assert [each.state for each in ended] == ["ran", "same"], "of runs that are as new"


def test_what_rests_on_a_search_that_was_not_run_is_not_run(results: Results) -> None:
    run([TUNING, TUNED], results)
    other = replace(TUNING, grid={"step_size": [-1.0]})
    ended = run([other, TUNED], results)
    assert [each.state for each in ended] == ["failed", "failed"]
    assert ended[1].problem == ended[0].problem


def test_selection_brings_what_it_rests_on() -> None:
    assert selected([TUNING, CELL, TUNED], ["mine/tu*"]) == [TUNING, TUNED]
    more = replace(TUNING, key=("tuning", "more"), tuned=TUNING.key)
    last = replace(CELL, key=("mine", "last"), tuned=more.key)
    assert selected([TUNING, CELL, more, last], ["mine/la*"]) == [TUNING, more, last]
    with pytest.raises(SettingError, match="no cell fits"):
        selected([CELL], ["nothing"])


def test_a_wider_grid_tries_what_is_new_alone(results: Results) -> None:
    narrow = replace(TUNING, grid={"step_size": [0.01]})
    run([narrow], results)
    found = results.read(TUNING.key)
    assert found is not None
    marked = [{**trial, "mark": 1} for trial in found["trials"]]
    results.write(TUNING.key, {**found, "trials": marked})
    run([TUNING], results)
    wide = results.read(TUNING.key)
    assert wide is not None
    assert [trial.get("mark") for trial in wide["trials"]] == [1, None]
    assert wide["best"] == max(wide["trials"], key=lambda trial: trial["mean"])["point"]
    assert state(TUNING, results) == "done"
    rounds = merged([SETTINGS, {"training": {"rounds": 1}}])
    run([replace(narrow, settings=rounds)], results)
    other = results.read(TUNING.key)
    assert other is not None
    assert [trial.get("mark") for trial in other["trials"]] == [None], "another training"
    run([replace(TUNING, settings=rounds)], results, force=True)
    assert len((results.read(TUNING.key) or {})["trials"]) == 2


@dataclass
class Lengths:
    """Notes for how many rounds was trained under a label."""

    label: str
    noted: list[tuple[str, int]]

    def on_start(self, first: int, rounds: int) -> None:
        self.noted.append((self.label, rounds))

    def on_round(self, record: Record) -> None:
        pass

    def on_end(self, summary: Mapping[str, Any]) -> None:
        pass


def test_a_longer_training_is_taken_for_shorter_ones(results: Results, tmp_path: Path) -> None:
    """Trained once, to the longest; what is kept is what each would have come to alone."""
    dear = merged([SETTINGS, {"algorithms": {"fedavg": {"local_steps": 3}}}])
    long = replace(CELL, key=("mine", "long"), equal=("mine", "dear"), equal_settings=dear)
    brief = merged([SETTINGS, {"training": {"rounds": 1}}])
    short = replace(CELL, key=("mine", "short"), settings=brief)
    cells = [CELL, TUNING, TUNED, short, long]
    alone = Results(tmp_path / "alone")
    for each in cells:
        run([each], alone)
    noted: list[tuple[str, int]] = []
    ended = list(run_cells(cells, Plan(results), lambda label: [Lengths(label, noted)]))
    assert [each.state for each in ended] == ["ran", "ran", "ran", "same", "same"]
    assert [rounds for label, rounds in noted if not label.startswith("tuning")] == [6, 2]
    for each in cells:
        found, wanted = results.read(each.key), alone.read(each.key)
        assert found is not None
        assert wanted is not None
        same = ("key", "digest", "settings", "point", "equal", "seeds")
        assert {name: found[name] for name in same} == {name: wanted[name] for name in same}
        if not each.grid:
            assert found["repeats"] == wanted["repeats"]
            assert state(each, results) == "done"
    again = run(cells, results)
    assert [each.state for each in again] == ["kept"] * 5


def test_a_later_cell_that_cannot_be_run_does_not_stop_another(results: Results) -> None:
    never = replace(
        CELL, key=("mine", "never"), settings=merged([SETTINGS, {"training": {"rounds": -1}}])
    )
    ended = run([CELL, never], results)
    assert [each.state for each in ended] == ["ran", "failed"]
    forced = run([CELL, never], results, force=True)
    assert [each.state for each in forced] == ["ran", "failed"]
    wrong = merged([SETTINGS, {"algorithms": {"fedavg": {"step_size": -1.0}}}])
    equal = replace(CELL, key=("mine", "equal"), equal=("mine", "wrong"), equal_settings=wrong)
    ended = run([replace(CELL, key=("mine", "other")), equal], results)
    assert [each.state for each in ended] == ["ran", "failed"]


def test_one_by_one_nothing_is_trained_for_later_cells(results: Results) -> None:
    """There is nothing to be had on the way, so each is written when it ends."""
    longer = merged([SETTINGS, {"training": {"rounds": 4}}])
    cells = [CELL, replace(CELL, key=("mine", "long"), settings=longer)]
    ended = run(cells, results, machine={"execution": {"path": "loop"}})
    assert [each.state for each in ended] == ["ran", "ran"]


def test_known_runs_are_taken_when_the_time_is_over(results: Results) -> None:
    """And those of as many rounds as cost as much are known as well."""
    dear = merged([SETTINGS, {"algorithms": {"fedavg": {"local_steps": 3}}}])
    equal = replace(CELL, key=("mine", "equal"), equal=("mine", "dear"), equal_settings=dear)
    run([equal], results)
    longer = merged([SETTINGS, {"training": {"rounds": 6}}])
    twin = replace(CELL, key=("mine", "twin"), settings=longer)
    wrong = merged([SETTINGS, {"algorithms": {"fedavg": {"step_size": -1.0}}}])
    broken = replace(CELL, key=("mine", "broken"), equal=("mine", "wrong"), equal_settings=wrong)
    ended = run([CELL, broken, twin], results, others=[equal], seconds=-1.0)
    assert [each.state for each in ended] == ["no time", "no time", "same"]
    taken, found = results.read(twin.key), results.read(equal.key)
    assert taken is not None
    assert found is not None
    assert taken["repeats"] == found["repeats"]
