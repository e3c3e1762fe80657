from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from fedmeta.models.meta_model import MetaModel
from fedmeta.ui import timed_protocol
from fedmeta.ui.app import server
from fedmeta.ui.security import is_loopback, refusal
from fedmeta.ui.turns import BusyError, Turns
from ui.client import ORIGIN, Client


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8484", "localhost:1", "localhost", "[::1]:8484", "192.168.0.7", "box:80"]
)
def test_own_names_are_answered(host: str) -> None:
    assert refusal("GET", Headers({"host": host}), "box") is None


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8484", "localhost.evil.example", "", "[::1"]
)
def test_foreign_names_are_refused(client: Client, host: str) -> None:
    assert refusal("GET", Headers({"host": host}), "127.0.0.1") is not None
    assert client.get("/", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "https://127.0.0.1:8484", "http://127.0.0.1:1"]
)
def test_posts_from_other_pages_are_refused(client: Client, origin: str | None) -> None:
    headers = {} if origin is None else {"Origin": origin}
    answer = client.post("/api/adapt/digits", headers=headers, json={})
    assert answer.status_code == 403
    assert client.post("/api/adapt/digits", json={"node": "x"}).status_code == 422


@pytest.mark.parametrize("path", ["/", "/static/ui.css", "/nowhere", "/api/rounds/digits"])
def test_every_answer_forbids_what_is_not_ours(client: Client, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


def test_no_page_names_another_host(client: Client) -> None:
    for path in ("/", "/run/digits", "/adapt/digits", "/own/digits", "/comparison/both"):
        assert "http" not in client.get(path).text


@pytest.mark.parametrize(
    ("host", "only_here"), [("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("box", False)]
)
def test_who_can_reach_it(host: str, only_here: bool) -> None:
    assert is_loopback(host) == only_here


def test_the_origin_of_the_test_client_is_its_own() -> None:
    headers = Headers({"host": ORIGIN.removeprefix("http://"), "origin": ORIGIN})
    assert refusal("POST", headers, "127.0.0.1") is None


def test_what_another_site_asks_for_is_not_answered(client: Client) -> None:
    for site in ("cross-site", "same-site"):
        for path in ("/", "/adapt/digits"):
            assert client.get(path, headers={"Sec-Fetch-Site": site}).status_code == 403
        headers = {"Origin": ORIGIN, "Sec-Fetch-Site": site}
        assert client.post("/report/digits", headers=headers).status_code == 403
    assert client.get("/", headers={"Sec-Fetch-Site": "none"}).status_code == 200


GETS = [
    *("/", "/compare?run=digits&run=waves", "/run/digits", "/run/../data.csv", "/run/broken"),
    *("/comparison/both", "/sequence/both", "/adapt/digits", "/adapt/digits?node=x"),
    *("/own/digits", "/own/table", "/api/rounds/digits?offset=0", "/api/model/x", "/report.css"),
    *("/report/digits", "/api/delete/digits", "/api/notes/digits", "/api/adapt/digits"),
]


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a folder: when it was written, and what it holds."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_no_get_changes_a_file_or_computes(
    client: Client, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(*_: object, **__: object) -> None:
        raise AssertionError("a GET must not adapt or draw")

    monkeypatch.setattr(MetaModel, "adapt", computed)
    before = contents(runs.parent)
    answers = {path: client.get(path).status_code for path in GETS}
    assert contents(runs.parent) == before
    assert {"/", "/run/digits", "/adapt/digits", "/own/digits"} <= {
        path for path, status in answers.items() if status == 200
    }
    assert all(status < 500 for status in answers.values()), answers


def test_a_report_is_not_made_by_a_get(client: Client) -> None:
    assert client.get("/report/digits").status_code == 405


def test_a_post_brings_the_token(client: Client) -> None:
    headers = {"Origin": ORIGIN}
    assert client.request("POST", "/api/adapt/digits", headers=headers, json={}).status_code == 403
    cookie = client.get("/").headers["set-cookie"]
    assert "HttpOnly; SameSite=Strict" in cookie
    asked = client.request("POST", "/api/adapt/digits", headers=headers, json={"node": "x"})
    assert asked.status_code == 422


def test_a_page_with_a_token_of_its_own(runs: Path) -> None:
    client, token = Client(runs, token="t" * 20), "t" * 20
    for path in ("/", "/static/ui.css", "/?token=wrong"):
        assert client.get(path).status_code == 403
    answer = client.get(f"/?token={token}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert client.get("/").status_code == 200


def test_a_few_at_once_some_wait_and_more_are_sent_away() -> None:
    async def three() -> list[object]:
        turns, done = Turns(1, waiting=1), asyncio.Event()

        async def work() -> None:
            async with turns:
                await done.wait()

        tasks = [asyncio.create_task(work()) for _ in range(3)]
        await asyncio.sleep(0)
        done.set()
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    found = asyncio.run(three())
    assert found[:2] == [None, None]
    assert isinstance(found[2], BusyError)


def test_a_connection_that_says_nothing_is_closed(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_protocol, "HEADERS_WITHIN", 0.2)
    page = server(runs)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=page.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            with socket.create_connection(listener.getsockname(), timeout=60) as slow:
                slow.sendall(b"GET / HTTP/1.1\r\nHost:")
                assert slow.recv(100) == b""
        finally:
            page.should_exit = True
            thread.join()
