"""Titles, tags and deleting: what is kept, what is refused, what is gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedmeta.core.manifest import listed
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.storage import seal
from ui.client import ORIGIN, Client


@pytest.fixture
def own(runs: Path, tmp_path: Path) -> Path:
    """A folder of runs that may be changed."""
    shutil.copytree(runs, tmp_path / "runs")
    return tmp_path / "runs"


def test_a_title_and_tags_are_kept_and_shown(own: Path) -> None:
    client = Client(own)
    asked = {"title": " The <good> one ", "tags": ["paper", " ", "paper", "b"]}
    answer = client.post("/api/notes/digits", json=asked)
    assert answer.json() == {"title": "The <good> one", "tags": ["paper", "b"]}
    shown = client.get("/").text
    assert "The &lt;good&gt; one" in shown
    assert '<span class="tag">paper</span>' in shown
    assert "The &lt;good&gt; one: " in client.get("/run/digits").text


TOO_MANY = [*"abcdefghijklm"]


@pytest.mark.parametrize(
    "asked",
    [{"title": 3}, {"tags": "a"}, {"tags": [1]}, {"title": "x" * 81}, {"tags": TOO_MANY}],
)
def test_bad_notes_are_refused(own: Path, asked: dict[str, object]) -> None:
    assert Client(own).post("/api/notes/digits", json=asked).status_code == 422
    assert not (own / "digits/notes.json").exists()


def test_damaged_notes_are_no_notes(own: Path) -> None:
    for text in ("{", "[]", '{"title": 1}'):
        (own / "digits/notes.json").write_text(text)
        assert Client(own).get("/").status_code == 200


def test_deleting_needs_a_confirmation_and_a_run(own: Path) -> None:
    client = Client(own)
    for path, asked, code in (
        ("digits", {}, 422),
        ("digits", {"confirmed": "table"}, 422),
        ("group", {"confirmed": "group"}, 404),  # a folder of runs is none
        ("nowhere", {"confirmed": "nowhere"}, 404),
    ):
        assert client.post(f"/api/delete/{path}", json=asked).status_code == code
        assert (own / "digits/summary.json").exists()
    assert (own / "group/other").exists()
    assert client.get("/api/delete/digits").status_code == 405
    elsewhere = {"Origin": "http://evil.example"}
    answer = client.post("/api/delete/digits", json={"confirmed": "digits"}, headers=elsewhere)
    assert answer.status_code == 403
    assert client.post("/api/delete/digits", json={"confirmed": "digits"}).status_code == 200
    assert not (own / "digits").exists()
    assert (own / "table").exists()


def test_what_runs_reads_so_and_is_not_deleted(own: Path) -> None:
    (own / "digits/summary.json").unlink()
    client = Client(own)
    assert "Interrupted: " in client.get("/run/digits").text
    running = '<span class="badge running">running</span>'
    with RunFolder(own / "digits").locked():
        assert RunFolder(own / "digits").is_running()
        page = client.get("/run/digits").text
        assert "Running: " in page
        assert running in page
        assert running in client.get("/").text
        refused = client.post("/api/delete/digits", json={"confirmed": "digits"})
        assert refused.status_code == 404
        assert "is running" in refused.json()["problem"]
    assert not RunFolder(own / "digits").is_running()
    assert not RunFolder(own / "table").is_running()


def test_numbers_of_a_regression_have_a_unit_and_methods_their_curves(client: Client) -> None:
    assert '<small class="unit">label²</small>' in client.get("/").text
    page = client.get("/comparison/both").text
    assert '"curves": [{"name": "fedavg", "points": [[' in page


@pytest.mark.parametrize("what", ["notes", "delete"])
def test_nothing_is_changed_without_the_token_or_for_another_site(own: Path, what: str) -> None:
    client, asked = Client(own), {"confirmed": "digits", "title": "theirs"}

    def answer(**headers: str) -> int:
        given = {
            "Origin": ORIGIN,
            **{name.replace("_", "-"): each for name, each in headers.items()},
        }
        return client.request("POST", f"/api/{what}/digits", json=asked, headers=given).status_code

    assert answer() == 403
    client.get("/")  # hands the token out
    assert answer(Sec_Fetch_Site="cross-site") == 403
    assert answer(Origin="http://evil.example") == 403
    assert (own / "digits/summary.json").exists()
    assert not (own / "digits/notes.json").exists()
    assert answer(Sec_Fetch_Site="same-origin") == 200


@pytest.mark.parametrize("name", ["digits", "both"])
def test_notes_are_no_part_of_the_manifest(own: Path, name: str) -> None:
    client = Client(own)
    for title in ("one", "another"):  # the second changes the file
        assert client.post(f"/api/notes/{name}", json={"title": title}).status_code == 200
        seal(own / name)  # as at the end of a run that has notes already
        assert "notes.json" not in (listed(own / name) or {"notes.json": ""})
    assert "another" in client.get("/").text
    assert client.post(f"/report/{name}").status_code == 200


def test_a_comparison_that_lost_a_run_to_the_page_still_opens(own: Path) -> None:
    client, part = Client(own), next((own / "both/runs").iterdir())
    path = f"both/runs/{part.name}"
    assert client.post(f"/api/delete/{path}", json={"confirmed": path}).status_code == 200
    assert not part.exists()
    assert client.get("/comparison/both").status_code == 200
    assert client.get("/").status_code == 200
