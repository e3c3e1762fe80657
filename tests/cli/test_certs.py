"""`fedmeta certs`: what it makes and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from fedmeta.cli import guarded
from fedmeta.cli.argparse_shell import run_argparse
from fedmeta.cli.certs import COMMAND
from fedmeta.fleet.certificates import node_keys


def certs(*arguments: str) -> int:
    return guarded(run_argparse, [COMMAND], arguments)


def test_a_fleet_from_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "keys"
    asked = ["--host", "platform.example", "--node", "edge-1", "--node", "edge-2"]
    assert certs(str(folder), *asked, "--fence", "0.0.0.0:9443") == 0
    printed = capsys.readouterr().out
    assert "may join   edge-1, edge-2" in printed
    assert "listen 0.0.0.0:9443 ssl;" in (folder / "nginx.conf").read_text()
    for secret in ("ca.key", "server.key", "nodes/edge-1"):
        assert (folder / secret).read_text().splitlines()[1] not in printed
    assert certs(str(folder), "--revoke", "edge-1") == 0
    assert "flwr supernode unregister" in capsys.readouterr().out
    assert list(node_keys(folder)) == ["edge-2"]


def test_a_later_node_leaves_the_platform_as_it_is(tmp_path: Path) -> None:
    assert certs(str(tmp_path), "--node", "a") == 0
    before = (tmp_path / "server.pem").read_bytes()
    assert certs(str(tmp_path), "--node", "b") == 0
    assert (tmp_path / "server.pem").read_bytes() == before
    assert certs(str(tmp_path), "--host", "elsewhere") == 0
    assert (tmp_path / "server.pem").read_bytes() != before


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--node", "../a"], "letters, digits"),
        (["--revoke", "nobody"], "there is no key of a node 'nobody'"),
        (["--platform", "127.0.0.1:1"], "without --fence"),
        (["--fence", "here"], "HOST:PORT"),
        (["--host", "a b"], "without a port"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert certs(str(tmp_path), *arguments) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1
