"""Every page and every question, without a browser."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from cli.calling import snapshot
from fedmeta.core.run_folder import RunFolder
from fedmeta.fleet.reopen import own_federation
from fedmeta.models.meta_model import MetaModel
from fedmeta.ui import open_models as desk
from fedmeta.ui import uploads
from ui.client import Client

CSV = "width,height,label\n0,0,a\n1,-1,b\n2,-2,c\n0.1,0.1,a\n1.1,-1,b\n2,-2.1,c\n"
ESCAPES = ["..%2f..%2fetc", "%2fetc%2fpasswd", "digits%2f..%2f..%2f..", "%00", "nothing", ""]


def data_of(page: str) -> Any:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(found)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/", ["digits", "group/other", "both", "damaged", "it has no settings.json"]),
        ("/run/digits", ["Watch it adapt", "New devices", "source device"]),
        ("/run/group/other", ["seed 1"]),
        ("/run/waves", ["Mean squared error"]),
        ("/comparison/both", ["fedavg", "both/runs/fedavg-seed0", "nobody is called ahead"]),
        ("/compare?run=digits&run=group/other", ["Two runs side by side", "training.seed"]),
        ("/adapt/digits", ["support samples", "Adapt"]),
        ("/own/table", ["width, height"]),
        ("/own/digits", ["8 × 8 pixels"]),
        ("/static/ui.css", [".dumbbell"]),
        ("/report.css", ["--accent"]),
    ],
)
def test_pages(client: Client, path: str, words: list[str]) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert [word for word in words if word not in unescape(answer.text)] == []


def test_the_report_is_made_and_not_written(client: Client, runs: Path) -> None:
    before = snapshot(runs)
    assert "To repeat it" in client.post("/report/digits").text
    assert snapshot(runs) == before


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("route", ["run", "comparison", "sequence", "adapt", "own", "api/rounds"])
def test_no_address_leaves_the_folder(client: Client, route: str, name: str) -> None:
    answer = client.get(f"/{route}/{name}")
    assert answer.status_code == 404
    assert "root:" not in answer.text


@pytest.mark.parametrize("name", ESCAPES)
def test_no_upload_leaves_the_folder(client: Client, name: str) -> None:
    for route in ("api/adapt", "api/bring", "api/adapt-own", "report"):
        assert client.post(f"/{route}/{name}", json={}).status_code == 404


@pytest.mark.parametrize("name", ["..%2fapp.py", "..%2f..%2frun_folder.py", "%2fetc%2fpasswd"])
def test_static_files_are_only_ours(client: Client, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404


@pytest.mark.parametrize("path", ["/run/broken", "/run/half", "/adapt/half"])
def test_a_damaged_run_says_so_and_the_others_go_on(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "That did not work" in answer.text
    assert client.get("/run/digits").status_code == 200


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/compare", "0 runs are chosen"),
        ("/compare?run=digits", "1 runs are chosen"),
        ("/compare?run=digits&run=waves", "different metrics"),
        ("/compare?run=digits&run=..", "There is no"),
        ("/adapt/digits?node=nobody", "There is no node"),
        ("/nowhere", "Not Found"),
    ],
)
def test_what_makes_no_sense_is_told(client: Client, path: str, words: str) -> None:
    answer = client.get(path)
    assert answer.status_code in (404, 422)
    assert words in unescape(answer.text)


def test_names_of_runs_are_escaped(runs: Path, tmp_path: Path) -> None:
    name = '<img src=x onerror=alert(1)>&"'
    shutil.copytree(runs / "digits", tmp_path / name)
    client = Client(tmp_path)
    overview = client.get("/").text
    assert "<img" not in overview
    (link,) = re.findall(r'href="(/run/[^"]+)"', overview)
    page = client.get(unescape(link))
    assert page.status_code == 200
    assert "<img" not in page.text
    assert "<img" not in client.get(unescape(link).replace("/run/", "/adapt/")).text


def test_rounds_as_they_come(client: Client, runs: Path) -> None:
    first = client.get("/api/rounds/digits").json()
    assert [record["round"] for record in first["records"]] == [1, 2, 3]
    assert first["ended"]
    assert client.get(f"/api/rounds/digits?offset={first['offset']}").json()["records"] == []
    assert client.get("/api/rounds/digits?offset=-1").status_code == 422


def test_an_unfinished_run_is_watched(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "digits", tmp_path / "going")
    for late in ("summary.json", "model.safetensors"):
        (tmp_path / "going" / late).unlink()
    client = Client(tmp_path)
    assert 'id="live"' in client.get("/run/going").text
    assert not client.get("/api/rounds/going").json()["ended"]
    answer = client.get("/adapt/going")
    assert answer.status_code == 404
    assert "it has not finished" in unescape(answer.text)


def test_adapting_to_a_target(client: Client, runs: Path, tmp_path: Path) -> None:
    federation = own_federation(RunFolder.open(runs / "digits"))
    node = federation.targets[-1]
    stage = data_of(client.get(f"/adapt/digits?node={node.name}").text)["stage"]
    assert stage["nodes"] == [each.name for each in federation.targets]
    assert len(stage["drawing"]["samples"]) == node.size
    assert stage["labels"] == federation.labels[[*node.support, *node.query]].tolist()

    before = snapshot(runs)
    answer = client.post("/api/adapt/digits", json={"node": node.name, "steps": 5}).json()
    summary = json.loads((runs / "digits/summary.json").read_text())
    (reached,) = [row["metric"] for row in summary["targets"] if row["name"] == node.name]
    found = {str(step["number"]): step["metric"] for step in answer["steps"]}
    assert {
        steps: pytest.approx(value) for steps, value in reached.items()
    }.items() <= found.items()
    assert snapshot(runs) == before

    download = client.get(f"/api/model/{answer['model']}")
    assert f"digits-{node.name}.safetensors" in download.headers["content-disposition"]
    (tmp_path / "mine.safetensors").write_bytes(download.content)
    MetaModel.load(tmp_path / "mine.safetensors")


def test_large_sets_are_drawn_in_part_and_used_whole(
    client: Client, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = own_federation(RunFolder.open(runs / "digits")).targets[0]
    asked = {"node": node.name, "steps": 1}
    whole = client.post("/api/adapt/digits", json=asked).json()["steps"][1]
    monkeypatch.setattr(desk, "MOST_SUPPORT", 3)
    monkeypatch.setattr(desk, "MOST_QUERY", 4)
    stage = data_of(client.get(f"/adapt/digits?node={node.name}").text)["stage"]
    assert (stage["support"], stage["support_shown"]) == (len(node.support), 3)
    assert len(stage["labels"]) == 7
    part = client.post("/api/adapt/digits", json=asked).json()["steps"][1]
    assert part["metric"] == whole["metric"]
    assert len(part["predicted"]) == 4


def test_bringing_a_table(client: Client, runs: Path) -> None:
    before = snapshot(runs.parent)
    brought = client.post("/api/bring/table?name=mine.csv", content=CSV).json()
    assert brought["labels"] == ["a", "b", "c", "a", "b", "c"]
    asked = {**{key: brought[key] for key in ("set", "labels", "uses")}, "steps": 3}
    answer = client.post("/api/adapt-own/table", json=asked).json()
    assert [step["number"] for step in answer["steps"]] == [0, 1, 2, 3]
    assert len(answer["steps"][0]["predicted"]) == brought["uses"].count("test")
    assert client.get(f"/api/model/{answer['model']}").status_code == 200
    assert snapshot(runs.parent) == before


def test_a_set_grows(client: Client) -> None:
    first = client.post("/api/bring/table?name=a.csv", content=CSV).json()
    more = client.post(f"/api/bring/table?name=b.csv&set={first['set']}", content=CSV).json()
    assert more["set"] == first["set"]
    assert len(more["names"]) == 12
    wrong = client.post(f"/api/bring/digits?name=b.csv&set={first['set']}", content=CSV)
    assert wrong.json()["problem"] == "these samples are for another model"


@pytest.mark.parametrize(
    ("route", "options", "code", "words"),
    [
        ("bring/table?name=mine.csv", {"content": "a,b\n1,2\n"}, 422, "mine.csv has no column"),
        ("bring/table?name=mine.csv&set=guess", {"content": CSV}, 422, "no longer in memory"),
        ("adapt-own/table", {"json": {"set": "guess"}}, 422, "no longer in memory"),
        ("adapt-own/table", {"json": {"set": ["x"]}}, 422, "no longer in memory"),
        ("adapt/digits", {"content": "not json"}, 422, "not a JSON object"),
        ("adapt/digits", {"content": "[]"}, 422, "not a JSON object"),
        ("adapt/digits", {"content": b"\xff"}, 422, "not a JSON object"),
        ("adapt/digits", {"json": {"node": 3, "steps": 1}}, 422, "there is no node '3'"),
        ("adapt/half", {"json": {}}, 404, "half"),
    ],
)
def test_bad_questions_get_words(
    client: Client, route: str, options: dict[str, Any], code: int, words: str
) -> None:
    answer = client.post(f"/api/{route}", **options)
    assert answer.status_code == code
    assert words in answer.json()["problem"]


@pytest.mark.parametrize("steps", [None, "many", 1000, -1])
def test_bad_numbers_of_steps(client: Client, runs: Path, steps: Any) -> None:
    node = own_federation(RunFolder.open(runs / "digits")).targets[0].name
    answer = client.post("/api/adapt/digits", json={"node": node, "steps": steps})
    assert answer.status_code == 422
    assert answer.json()["problem"].startswith("steps is")


@pytest.mark.parametrize("told", [True, False])
def test_uploads_over_the_limit_are_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    monkeypatch.setattr(uploads, "LIMIT", 2**20)
    content = b"x" * (2**20 + 1)

    async def pieces() -> Any:  # a body of unknown length
        yield content

    answer = client.post("/api/bring/table?name=a.csv", content=content if told else pieces())
    assert answer.status_code == 413
    assert answer.json()["problem"] == "the file has more than 1 MB"


def test_a_run_whose_data_are_gone(client: Client, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    answer = client.get("/adapt/table")
    assert answer.status_code == 404
    assert "cannot be read again" in unescape(answer.text)
    assert client.get("/own/table").status_code == 200  # its model can still adapt


@pytest.mark.parametrize(
    "file",
    ["settings.json", "federation.json", "metrics.jsonl", "summary.json", "model.safetensors"],
)
@pytest.mark.parametrize("content", [b"", b"{}\n", b"[]\n", b"null\n", b"\xff\n", None])
def test_no_damage_brings_a_page_down(
    runs: Path, tmp_path: Path, file: str, content: bytes | None
) -> None:
    for name in ("bad", "good"):
        shutil.copytree(runs / "table", tmp_path / name)
    whole = (tmp_path / "bad" / file).read_bytes()
    (tmp_path / "bad" / file).write_bytes(whole[: len(whole) // 2] if content is None else content)
    client = Client(tmp_path)
    for route in ("run", "adapt", "own", "api/rounds"):
        assert client.get(f"/{route}/bad").status_code in (200, 404)
    assert client.post("/api/bring/bad?name=a.csv", content=CSV).status_code in (200, 404)
    assert "good" in client.get("/").text
    assert client.get("/run/good").status_code == 200


def test_sequences(tmp_path: Path) -> None:
    folder = tmp_path / "seq"
    folder.mkdir()
    declaration = {"format": 1, "name": "two", "methods": ["none"], "seeds": [0]}
    (folder / "declaration.json").write_text(json.dumps(declaration))
    client = Client(tmp_path)
    assert "has not ended" in client.get("/sequence/seq").text

    def value(mean: float) -> dict[str, Any]:
        return {"mean": mean, "ci95": None, "n": 1}

    matrix = [[value(0.1), value(0.2)], [value(0.9), value(0.3)], [value(0.6), value(0.8)]]
    measures = {"average": 0.7, "forgetting": 0.3, "new": 0.8, "forward": 0.1, "cost": 1.0}
    method = {
        "strength": None,
        "measures": {"accuracy": {**{k: value(v) for k, v in measures.items()}, "diverged": 0}},
        "matrix": {"accuracy": matrix},
    }
    found = {"title": "Two tasks", "tasks": ["first", "second"], "methods": {"none": method}}
    (folder / "sequence.json").write_text(json.dumps({"format": 1, "seeds": [0], **found}))
    page = client.get("/sequence/seq").text
    for words in ("The forgetting matrix", "after second", "60.0\u00a0%", "+30.0\u00a0points"):
        assert words in page
    assert page.count('class="own-task"') == 2
    assert "2 tasks" in client.get("/").text


@pytest.mark.parametrize("method", ["none", "replay"])
def test_a_task_of_a_sequence_adapts(tasks: Path, method: str) -> None:
    client, name = Client(tasks), f"two/{method}/seed-0/2-2-3"
    listed = re.findall(r'href="/run/([^"]+)"', client.get("/sequence/two").text)
    assert name in listed
    assert listed == sorted(listed)
    assert 'href="/sequence/two">two</a>' in client.get(f"/run/{name}").text
    page = client.get(f"/adapt/{name}")
    assert page.status_code == 200
    assert f'href="/run/{name}">{method}/seed-0/2-2-3</a>' in page.text
    node = data_of(page.text)["stage"]["node"]
    answer = client.post(f"/api/adapt/{name}", json={"node": node, "steps": 1})
    summary = json.loads((tasks / name / "summary.json").read_text())
    (wanted,) = [each["metric"] for each in summary["targets"] if each["name"] == node]
    found = {str(each["number"]): each["metric"] for each in answer.json()["steps"]}
    assert found == {steps: pytest.approx(wanted[steps], abs=1e-6) for steps in ("0", "1")}


def test_a_damaged_sequence_says_so(tasks: Path, tmp_path: Path) -> None:
    shutil.copytree(tasks / "two", tmp_path / "two")
    (tmp_path / "two/declaration.json").write_text("{}")
    client = Client(tmp_path)
    assert "damaged" in client.get("/").text
    answer = client.get("/adapt/two/none/seed-0/1-0-1")
    assert answer.status_code == 404
    assert "declaration.json" in answer.text
