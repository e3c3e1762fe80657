from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from fedmeta.ui.security import is_loopback, refusal
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
