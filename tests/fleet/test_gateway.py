"""The fence before the platform, with a real nginx: edges' calls pass, all others get 403."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from fedmeta.core.errors import SettingError
from fedmeta.fleet.certificates import make_authority, make_server
from fedmeta.fleet.gateway import Gateway, write_gateway

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


class Platform(BaseHTTPRequestHandler):
    """Stands for the SuperLink: remembers what reached it and says so."""

    reached: list[tuple[str, str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.reached.append((self.path, self.headers.get("flwr-key", ""), body))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_GET = do_PUT = do_POST  # noqa: N815 - as the base class names them

    def log_message(self, *_: object) -> None:
        pass


def free_port() -> int:
    with socket.socket() as any_:
        any_.bind(("127.0.0.1", 0))
        return int(any_.getsockname()[1])


@contextmanager
def platform(folder: Path) -> Iterator[tuple[int, list[tuple[str, str, bytes]]]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    handler = type("Handler", (Platform,), {"reached": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port, handler.reached
        server.shutdown()
        thread.join()


@contextmanager
def nginx(configuration: Path, port: int) -> Iterator[None]:
    assert NGINX is not None
    command = [NGINX, "-c", str(configuration), "-g", "daemon off;"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.fixture(scope="module")
def fenced(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, int, list[tuple[str, str, bytes]]]]:
    if NGINX is None:
        pytest.skip("nginx is not installed (Debian: apt-get install nginx-light)")
    folder = tmp_path_factory.mktemp("keys")
    make_authority(folder)
    make_server(folder, ["localhost", "127.0.0.1"])
    port = free_port()
    with platform(folder) as (behind, reached):
        where = write_gateway(folder, Gateway(f"127.0.0.1:{port}", f"127.0.0.1:{behind}"))
        with nginx(where, port):
            yield folder, port, reached


def call(folder: Path, port: int, path: str, method: str = "POST") -> int:
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=20)
    try:
        connection.request(method, path, body=b"message", headers={"flwr-key": "proof"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


pytestmark = pytest.mark.fleet


@pytest.mark.parametrize("name", ["pull-messages", "send-node-heartbeat", "push-object"])
def test_calls_of_edges_pass_with_their_body_and_proof(
    fenced: tuple[Path, int, list[tuple[str, str, bytes]]], name: str
) -> None:
    folder, port, reached = fenced
    assert call(folder, port, f"/v1/fleet/{name}") == 200
    assert reached[-1] == (f"/v1/fleet/{name}", "proof", b"message")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/control/register-node"),
        ("POST", "/v1/fleet/../control/start-run"),
        ("POST", "/v1/fleet/..%2fcontrol%2fstart-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("POST", "/v1/control/start-run?x=/v1/fleet/pull-messages"),
        ("POST", "/v1/control/start-run#/v1/fleet/pull-messages"),
        ("POST", "//v1//control/start-run"),
        ("POST", "/V1/FLEET/pull-messages"),
        ("POST", "/v1/fleet/"),
        ("POST", "/v1/fleet/pull-messages/more"),
        ("GET", "/v1/fleet/pull-messages"),
        ("PUT", "/v1/fleet/pull-messages"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/"),
    ],
)
def test_everything_else_gets_403_and_reaches_nothing(
    fenced: tuple[Path, int, list[tuple[str, str, bytes]]], method: str, path: str
) -> None:
    folder, port, reached = fenced
    before = len(reached)
    assert call(folder, port, path, method) == 403
    assert len(reached) == before


def test_what_is_passed_on_is_the_path_as_it_was_judged(
    fenced: tuple[Path, int, list[tuple[str, str, bytes]]],
) -> None:
    folder, port, reached = fenced
    assert call(folder, port, "/v1/control/../fleet/pull-messages") == 200
    assert reached[-1][0] == "/v1/fleet/pull-messages"


def test_an_edge_that_trusts_another_authority_does_not_connect(
    fenced: tuple[Path, int, list[tuple[str, str, bytes]]], tmp_path: Path
) -> None:
    _, port, _ = fenced
    make_authority(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        call(tmp_path, port, "/v1/fleet/pull-messages")


def test_plaintext_is_refused(fenced: tuple[Path, int, list[tuple[str, str, bytes]]]) -> None:
    _, port, reached = fenced
    before = len(reached)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/v1/fleet/pull-messages", body=b"x")
    assert connection.getresponse().status == 400
    connection.close()
    assert len(reached) == before


@pytest.mark.parametrize(
    "settings",
    [
        {"listen": "9443"},
        {"listen": "host:port"},
        {"platform": "127.0.0.1:0"},
        {"platform": "127.0.0.1:80; deny all"},
        {"name": 'x"; return 200'},
    ],
)
def test_addresses_that_are_none_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(SettingError, match="fence"):
        Gateway(**settings)


def test_a_folder_that_would_break_out_of_its_quotes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="a path without"):
        Gateway().configuration(tmp_path / 'a"; return 200')
