"""The page of a run in all states a run can be in."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedmeta.core.errors import MissingExtraError, RunFolderError
from fedmeta.report import write_report
from report.conftest import federation, history, settings, summary, write_run

Page = Callable[..., str]


class Elements(HTMLParser):
    """All tags of a page with their attributes, and its first heading."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.heading, self._open = "", False
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._open = tag == "h1"

    def handle_endtag(self, tag: str) -> None:
        self._open = False

    def handle_data(self, data: str) -> None:
        if self._open:
            self.heading += data


def heading(page: str) -> str:
    return Elements(page).heading.replace("\u00a0", " ")


def test_page_needs_nothing_but_itself(page: Page) -> None:
    text = page(result=summary())
    assert not re.search(r"https?:|//[a-z]|@import", text)
    for tag, attributes in Elements(text).tags:
        assert tag not in ("script", "link", "img", "iframe", "object")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)


def test_ids_are_unique_and_references_resolve(page: Page) -> None:
    text = page(result=summary())
    ids = [a["id"] for _, a in Elements(text).tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
    used = {a or b for a, b in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)}
    assert used <= set(ids)


def test_figures_are_described_and_take_the_colours_of_the_page(page: Page) -> None:
    text = page(result=summary())
    figures = [a for tag, a in Elements(text).tags if tag == "svg"]
    assert len(figures) == 7
    assert all(a["role"] == "img" and len(a["aria-label"] or "") > 20 for a in figures)
    body = text[text.index("<body") :]
    assert not re.search(r"(fill|stroke): #", body)


def test_hostile_names_are_text(page: Page) -> None:
    hostile = "<script>alert(1)</script>$x_1$ -->\"'&#0a0b10"
    nodes, result = federation(), summary()
    nodes["nodes"][6]["name"] = nodes["name"] = nodes["notes"][0] = hostile
    nodes["task"]["class_names"][0] = hostile
    for node in nodes["nodes"]:
        node["classes"] = {hostile if k == "class 0" else k: v for k, v in node["classes"].items()}
    result["targets"][0]["name"] = hostile
    stored = settings()
    stored["settings"]["data"]["name"] = stored["settings"]["model"]["class"] = hostile
    text = page(nodes=nodes, result=result, stored=stored)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert all(tag != "script" for tag, _ in Elements(text).tags)


def test_unusual_letters_and_control_characters_do_not_stop_a_page(page: Page) -> None:
    nodes, result = federation(), summary()
    nodes["nodes"][6]["name"] = result["targets"][0]["name"] = "設備\x01 🛰"
    assert "設備" in page(nodes=nodes, result=result)


def test_same_run_gives_same_bytes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", result=summary())
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first


@pytest.mark.parametrize(
    ("before", "after", "kind", "expected"),
    [
        (0.5, 0.7, "classification", "three new devices reach 70.0 % accuracy (before: 50.0 %)."),
        (0.7, 0.5, "classification", "fall to 50.0 % accuracy (before: 70.0 %): adapting made"),
        (0.7, 0.7, "classification", "stay at 70.0 % accuracy: adapting changed nothing"),
        (2.0, 1.5, "regression", "reach a mean squared error of 1.50 (before: 2)."),
        (1.5, 2.0, "regression", "rise to a mean squared error of 2 (before: 1.50): adapting made"),
    ],
)
def test_headline_is_true_however_it_went(
    page: Page, before: float, after: float, kind: str, expected: str
) -> None:
    text = page(nodes=federation(kind=kind), result=summary(before, after))
    assert heading(text).startswith("After one gradient step on 5 samples, three new devices ")
    assert expected in heading(text)


def test_headline_has_the_unit_of_labels_with_a_name(page: Page) -> None:
    stored = settings()
    stored["settings"]["data"]["label"] = "hours"
    text = page(nodes=federation(kind="regression"), result=summary(2.0, 1.5), stored=stored)
    assert "a mean squared error of 1.50 hours² (before: 2)." in heading(text)


def test_a_single_target(page: Page) -> None:
    text = page(nodes=federation(targets=1), result=summary(targets=1))
    assert "one new device reaches 70.0 % accuracy" in heading(text)


def test_no_adaptation_and_no_value_before(page: Page) -> None:
    result = summary()
    result["target_metric"].pop("0")
    assert heading(page(result=result)).endswith("three new devices reach 70.0 % accuracy.")


def test_diverged(page: Page) -> None:
    text = page(result=summary(targets=0, status="diverged"), stored=settings(rounds=60))
    assert heading(text) == "Training diverged in round 5 of 60; no model came of it."
    assert "raise the penalty" in text


def test_stopped_early(page: Page) -> None:
    stored = settings(rounds=60)
    stored["settings"]["training"]["patience"] = 3
    text = page(result=summary(status="stopped early"), stored=stored)
    assert "after 4 of 60 rounds: the loss had not fallen for 3 rounds" in text


def test_unfinished(page: Page) -> None:
    text = page(stored=settings(rounds=60))
    assert heading(text) == "Still running or interrupted: 4 rounds of 60 done so far."
    assert "when last looked at, in round 4" in text


def test_nothing_logged_yet(page: Page) -> None:
    assert "No round has been logged yet" in page(records=[])


def test_no_targets(page: Page) -> None:
    text = page(
        nodes=federation(targets=0),
        records=history(evaluated=False),
        result=summary(targets=0),
    )
    assert heading(text) == (
        "Trained for 4 rounds on six devices; there were no new devices to test it on."
    )


def test_methods_without_a_meta_loss(page: Page) -> None:
    records = [{"round": n, "local_loss": 1.0 / n, "step_norm": 0.5} for n in (1, 2, 3)]
    text = page(records=records, result=summary())
    assert "Local loss" in text
    assert "Residuals" not in text


def test_regression_has_no_classes(page: Page) -> None:
    text = page(nodes=federation(kind="regression"), result=summary(2.0, 1.5))
    assert "Who has which classes" not in text
    assert "Samples per device" in text


def test_fifty_nodes_fit_well(page: Page) -> None:
    text = page(nodes=federation(40, 10, 10), records=history(1000), result=summary(targets=10))
    assert len(text.encode()) < 500_000


def test_many_nodes_are_summarised(page: Page) -> None:
    nodes = federation(sources=700, targets=300, classes=100)
    text = page(nodes=nodes, result=summary(targets=300))
    assert len(text.encode()) < 1_500_000
    assert "Classes per device" in text
    assert "Who has which classes" not in text
    assert "The 200 that do worst; 100 more are in summary.json." in text
    assert "800 more are in federation.json." in text


def test_a_penalty_per_node_is_counted_not_listed(page: Page) -> None:
    stored = settings()
    stored["settings"]["algorithm"]["penalty"] = {f"node-{i}": 0.1 * (i + 1) for i in range(50)}
    assert "50 values, one each" in page(stored=stored, result=summary())


def test_half_written_last_line_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "meta_l')
    assert "4 rounds done so far" in write_report(folder).read_text()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("settings.json", '{"format": 1}'),
        ("settings.json", '{"format": 99}'),
        ("settings.json", "{"),
        ("federation.json", '{"name": "x"}'),
        ("federation.json", "[1]"),
        ("metrics.jsonl", "[]\n"),
        ("metrics.jsonl", '{"round": 1, "target": 3}\n'),
        ("metrics.jsonl", "x\n"),
        ("summary.json", '{"rounds": 3}'),
        ("summary.json", '{"status": "finished", "targets": [{}]}'),
        ("summary.json", "[]"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, file: str, content: str) -> None:
    folder = write_run(tmp_path / "run", result=summary())
    (folder / file).write_text(content)
    with pytest.raises(RunFolderError):
        write_report(folder)
    assert not (folder / "report.html").exists()


def test_no_run_at_all(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run"):
        write_report(tmp_path)
    with pytest.raises(RunFolderError, match="no run folder"):
        write_report(tmp_path / "absent")


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=f"{package} is not installed"):
        write_report(write_run(tmp_path / "run", result=summary()))


def test_what_is_adapted_and_what_a_reader_should_know(tmp_path: Path) -> None:
    result = {**summary(), "notes": ["the most frequent class (a) alone gives 87.7 %: try more"]}
    folder = write_run(tmp_path / "run", result=result)
    file = folder / "settings.json"
    stored = json.loads(file.read_text())
    adapted = {"names": ["out.weight", "out.bias"], "parameters": 6, "of": 9, "note": "tied"}
    file.write_text(json.dumps({**stored, "head": adapted}))
    page = write_report(folder).read_text()
    assert "The most frequent class (a) alone gives 87.7 %: try more." in page
    assert "out.weight, out.bias" in page
