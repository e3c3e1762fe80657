"""What the pages say is what the results are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from experiments.experiment import OUTSIDE_PAGE
from experiments.page import PAGES, between, blank, disagreements, filled, render
from experiments.registry import EXPERIMENTS
from experiments.results import Results
from experiments.summary import current_results, summary_of, write_summary
from experiments.table1 import headline
from experiments.tuning import _at_an_end, best_point
from fedmeta.core.errors import RunFolderError
from invented_results import invent

ROOT = Path(__file__).parents[2]
FRONT = "<!-- reproduced: begin --><!-- reproduced: end -->"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = Results(tmp_path_factory.mktemp("results"))
    for name in EXPERIMENTS:
        invent(name, folder)
    place = {"partition": "fixed-pairs", "data": "cifar10", "seeds": 2}
    rows = [
        {"change": "as-it-is", **place, "accuracies": [80.0, 81.0]},
        {"change": "longer", **place, "accuracies": [82.0, 81.5]},
    ]
    folder.write(("held-out", "steps"), {"rows": rows})
    return folder


@pytest.fixture(scope="module")
def summary(results: Results) -> dict[str, Any]:
    return write_summary(results)


def pages_of_the_paper(summary: dict[str, Any]) -> str:
    """Conclusions and all tables behind them, without words."""
    names = [name for name in PAGES if name != OUTSIDE_PAGE]
    return "".join(filled(blank(name), summary, name) for name in names)


def test_the_page_of_conclusions_is_short() -> None:
    assert len((ROOT / "docs/results.md").read_text("utf-8").splitlines()) < 250


def test_pages_in_the_repository_agree_with_its_results() -> None:
    """If this fails: fedmeta reproduce render."""
    results = Results(ROOT / "results")
    found = summary_of(results)
    assert json.loads((results.folder / "summary.json").read_text("utf-8")) == found
    assert disagreements(found, ROOT / "docs/results.md", ROOT / "README.md") == []


def test_summary_has_every_cell(results: Results, summary: dict[str, Any]) -> None:
    row = summary["table1"]["fixed-pairs"]["cifar10"]["fedavg"]
    assert set(row) == {
        f"{variant}{updates}{equal}{precise}"
        for variant in ("paper", "tuned")
        for updates in ("", "-5", "-10")
        for equal in ("", "-equal")
        for precise in ("", "-precise")
    }
    assert set(row["tuned-5-precise"]) == {"mean", "ci95", "n", "diverged"}
    assert {"prior", "new"} < set(summary["table2"]["cifar100"]["admm-fedmeta"])
    assert len(summary["robustness"]["random-pairs"]["cifar100"]) == 3
    rival = summary["table1"]["random-pairs"]["cifar100"]["fedmeta-adam"]
    assert {name.removesuffix("-precise") for name in rival} == {"matched", "matched-equal"}
    assert not any(summary["older"].values())
    assert all(each["reached"] is not None for each in summary["goals"])
    assert len(list(results.folder.rglob("*.json"))) == len(current_results(results)) + 2


def test_every_number_reaches_the_page(summary: dict[str, Any]) -> None:
    page = pages_of_the_paper(summary)
    assert "not run yet" not in page
    for name in (name for name, each in EXPERIMENTS.items() if each.figure is not None):
        assert f"](figures/{name}.svg)" in page
    entry = summary["table1"]["random-pairs"]["cifar100"]["fedprox-5-orthogonal"]["matched-precise"]
    outside = filled(blank(OUTSIDE_PAGE), summary, OUTSIDE_PAGE)
    assert "not run yet" not in outside
    assert "not all run yet" not in outside
    assert f"{entry['mean']:.2f} ± {entry['ci95']:.2f}" in page
    assert "10 of 10 diverged" in page
    assert "| fixed-pairs | CIFAR-10 | 80.50 | 81.75 (+1.25 ± 9.53) |" in page
    assert "| mean gain |  | – | +1.25 ± 9.53 |" in page


def test_costs_are_those_of_the_first_look_that_is_good_enough(summary: dict[str, Any]) -> None:
    """The invented curves rise as level · t / (t + 8), with 2.01 gradients and 0.2 MB a round."""
    found = summary["convergence"]["fixed-pairs"]["cifar10"]["admm-fedmeta"]["default"]
    rounds, means = found["reached-precise"]
    costs = found["to-reach"]
    assert [each["accuracy"] for each in costs] == [65, 70, 75]
    for each in costs:
        good = [
            number
            for number, mean in zip(rounds, means, strict=True)
            if 100 * mean >= each["accuracy"]
        ]
        first = good[0] if good else None
        assert each["rounds"] == first
        assert each["gradients"] == (None if first is None else round(2.01 * first))
    reached = [each for each in costs if each["rounds"] is not None]
    assert reached
    for each in reached:
        spent = f"{each['rounds']} / {each['gradients']} / {0.2 * each['rounds']:.1f}"
        assert spent in pages_of_the_paper(summary)


def test_the_front_page_names_the_closest_and_all_that_are_not_behind() -> None:
    def row(mean: float, width: float, rival: str, lost: int = 0) -> dict[str, Any]:
        missing = {"n": 10 - lost, "diverged": 0, "diverged_other": lost}
        return {"mean": mean, "ci95": width, "rival": rival, **missing}

    rounds = {
        "fedavg": {"tuned": row(2.0, 0.5, "behind"), "tuned-5": row(0.3, 0.5, "level", lost=2)},
        "fedmeta-adam": {"matched": row(-0.8, 0.5, "ahead")},
        "admm-fedmeta": {"paper": row(-9.0, 0.5, "ahead")},  # ours is nobody's rival
    }
    gradients = {"per-fedavg": {"paper-equal": row(1.0, 0.25, "behind")}}
    place = {"rounds": rounds, "gradients": gradients}
    searches = {
        "fedavg": {"tuned-5": {"at_an_end": ["step_size smallest"]}},
        "fedmeta-adam": {"matched": {"at_an_end": ["inner.steps largest"]}},
    }
    summary = {
        "table1": {},
        "ahead": {"fixed-pairs": {"cifar10": place, "cifar100": {"rounds": rounds}}},
        "tuning": {"fixed-pairs": {"cifar10": searches}},
    }
    text = headline(summary)
    named = "Level: FedAvg tuned-5 (2 of its runs diverged)"
    ahead = "ahead: FedMeta, Adam"
    assert f"| **1 of 3**; -0.80 ± 0.50 to FedMeta, Adam. {named}†. {ahead} |" in text
    assert "| 1 of 1; +1.00 ± 0.25 to Per-FedAvg paper |" in text
    assert f"{named}. {ahead} | – |" in text  # nothing is known of a search there


def test_a_changed_number_is_noticed(summary: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page, front = tmp_path / "results.md", tmp_path / "README.md"
    front.write_text(FRONT)
    render(summary, page, front)
    assert disagreements(summary, page, front) == []
    page.write_text("words of a person\n" + page.read_text("utf-8"))
    assert disagreements(summary, page, front) == []
    for file in (page, front, page.with_name(OUTSIDE_PAGE)):
        kept = file.read_text("utf-8")
        file.write_text(re.sub(r"\d\.\d\d ±", "9.99 ±", kept, count=1))
        assert disagreements(summary, page, front) == [file.name]
        file.write_text(kept)
    other = json.loads(json.dumps(summary))
    other["rho"]["fixed-pairs"]["cifar10"]["rho-7"]["loss"][1][0] += 1
    assert disagreements(other, page, front) == ["rho.svg"]


@pytest.mark.slow
def test_rendering_repeats_to_the_byte(summary: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = render(summary, tmp_path / "page.md")
    first = [file.read_bytes() for file in written]
    figures = [name for name, each in EXPERIMENTS.items() if each.figure is not None]
    assert len(first) == 5 + len(figures)  # conclusions, three pages of tables, outside
    assert render(summary, tmp_path / "page.md") == written
    assert first == [file.read_bytes() for file in written]


def test_outdated_results_are_not_shown(tmp_path: Path) -> None:
    results = Results(tmp_path)
    invent("dissimilarity", results)
    assert len(current_results(results)) == 2
    key = ("dissimilarity", "cifar10", "with-prior")
    found = results.read(key)
    assert found is not None
    results.write(key, {**found, "digest": "another"})
    assert len(current_results(results)) == 1


def test_results_of_an_older_default_are_shown_as_such_but_not_compared(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for name in ("table1", "table2"):
        invent(name, results)
    keys = [
        ("table2", "cifar10", "admm-fedmeta-default"),
        ("table1", "fixed-pairs", "cifar10", "admm-fedmeta", "default"),
    ]
    for key in keys:
        found = results.read(key)
        assert found is not None
        algorithm = {**found["settings"]["algorithm"], "resplit": "random"}
        results.write(key, {**found, "settings": {**found["settings"], "algorithm": algorithm}})
    summary = summary_of(results)
    assert summary["older"]["table2"] == ["cifar10/admm-fedmeta-default"]
    assert summary["older"]["table1"] == []
    assert "cifar10" not in summary["ahead"]["fixed-pairs"]
    page = pages_of_the_paper(summary)
    assert "*Of an older default, not run again yet: cifar10/admm-fedmeta-default.*" in page
    assert "(older default) | yes |" in page


def test_an_outdated_search_takes_with_it_what_rests_on_it(tmp_path: Path) -> None:
    results = Results(tmp_path)
    invent("table1", results)
    first, second = (
        {key[1:] for key in current_results(results) if key[0] == kind}
        for kind in ("tuning", "table1")
    )
    place = ("fixed-pairs", "cifar10", "fedavg")
    found = results.read(("tuning", *place, "tuned"))
    assert found is not None
    results.write(("tuning", *place, "tuned"), {**found, "digest": "another"})
    now = current_results(results)
    searches = {(*place, name) for name in ("tuned", "tuned-5", "tuned-10")}
    assert {key[1:] for key in now if key[0] == "tuning"} == first - searches
    gone = searches | {(*key[:-1], f"{key[-1]}-equal") for key in searches}
    assert {key[1:] for key in now if key[0] == "table1"} == second - gone


def test_markers_must_be_there() -> None:
    with pytest.raises(RunFolderError, match="x: begin"):
        between("a page", "x", "new")


def test_a_best_value_at_an_end_of_what_was_tried_is_named(summary: dict[str, Any]) -> None:
    def found(*means: float) -> list[str]:
        steps = (0.1, 0.2, 0.3)
        trials = [
            {"point": {"step_size": step, "inner": 1.0}, "values": [mean], "mean": mean}
            for step, mean in zip(steps, means, strict=True)
        ]
        return _at_an_end(trials, best_point(trials))

    assert found(0.9, 0.8, 0.7) == ["step_size smallest"]
    assert found(0.7, 0.8, 0.9) == ["step_size largest"]
    assert found(0.7, 0.9, 0.8) == []
    assert _at_an_end([], None) == []
    assert "step_size smallest" in pages_of_the_paper(summary)
