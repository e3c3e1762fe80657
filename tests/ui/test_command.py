from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from fedmeta.cli import ui
from fedmeta.core.errors import FedmetaError, MissingExtraError


def values(folder: Path, **given: object) -> dict[str, object]:
    return {
        "folder": str(folder),
        "port": 0,
        "host": None,
        "token": None,
        "no_browser": True,
        **given,
    }


def test_it_serves_until_it_is_interrupted(runs: Path) -> None:
    program = [sys.executable, "-m", "fedmeta.cli.ui", str(runs), "--port", "0", "--no-browser"]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().split()[1]
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(address, timeout=60) as answer:
                assert b"digits" in answer.read()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (0, "", "")


def test_folders_that_hold_no_runs(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(FedmetaError, match="there is no folder"):
        ui.run(values(tmp_path / "missing"))
    with pytest.raises(FedmetaError, match="is a run itself: name the folder that it lies in"):
        ui.run(values(runs / "digits"))
    with pytest.raises(FedmetaError, match="is a run itself"):
        ui.run(values(runs / "both"))


@pytest.mark.parametrize("port", [-1, 65536])
def test_ports_that_are_none(runs: Path, port: int) -> None:
    with pytest.raises(FedmetaError, match="port is"):
        ui.run(values(runs, port=port))


def test_a_port_that_is_taken(runs: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(FedmetaError, match="give another --port"):
            ui.run(values(runs, port=other.getsockname()[1]))


def test_a_missing_extra_is_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "fedmeta.ui.app", raising=False)
    with pytest.raises(MissingExtraError, match=r"uvicorn is not installed: .*fedmeta\[ui\]"):
        ui.run(values(runs))


def test_off_this_machine_there_must_be_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FedmetaError, match="give --token auto"):
        ui._token(None, "0.0.0.0")
    with pytest.raises(FedmetaError, match="at least 16 letters"):
        ui._token("short", "0.0.0.0")
    assert len(str(ui._token("auto", "0.0.0.0"))) >= 32
    assert ui._token(None, "::1") is None
    ui._announce(tmp_path, "0.0.0.0", 1, "t" * 20, browser=False)
    shown = capsys.readouterr().out
    assert f"/?token={'t' * 20} " in shown
    assert "warning: it is not encrypted" in shown
    ui._announce(tmp_path, "::1", 1, None, browser=False)
    assert capsys.readouterr().out.startswith("page     http://[::1]:1/ ")
