"""`fedmeta fleet`, `platform` and `edge` without starting anything: plans, messages, refusals."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import pytest

from fedmeta.cli import certs, edge, evaluate, fleet, importance, platform, sequence
from fedmeta.cli.argparse_shell import run_argparse
from fedmeta.cli.command import Command
from fedmeta.core.errors import DataError, FedmetaError, RunFolderError, SettingError
from fedmeta.fleet import worker
from fedmeta.fleet.app_bundle import write_app
from fedmeta.fleet.edge import Edge
from fedmeta.fleet.edge_job import KeptJob
from fedmeta.fleet.flower_commands import free_port
from fedmeta.fleet.launch import follow, is_running
from fedmeta.fleet.message import Message, MessageError
from fedmeta.fleet.plan import Plan, carry_out
from fedmeta.fleet.sequences_over_fleet import FleetTasks
from fedmeta.fleet.worker_socket import ask, socket_of
from fleet.transports import InProcessTransport, fleet_of

pytest.importorskip("flwr")


def called(command: Command, *arguments: object) -> None:
    run_argparse([command], [str(each) for each in arguments])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_plain_flower_way_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    called(platform.COMMAND, "--prepare", "--insecure", "--out", "runs/a", "--rounds", 7)
    printed = capsys.readouterr().out
    assert "flower-superlink --host 127.0.0.1 --port 8000" in printed
    assert "flwr run" in printed
    assert "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1" in printed
    plan = Plan.load(Path("runs/a"))
    assert plan.table["training"]["rounds"] == 7
    assert not plan.fleet.authenticated
    config = Path("runs/a/fleet/flower/config.toml").read_text()
    assert 'address = "127.0.0.1:8000"\ninsecure = true' in config


def test_an_edge_is_described_in_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.csv").write_text("a,label,who\n1,x,u\n2,y,u\n")
    called(
        edge.COMMAND,
        *("--prepare", "--insecure", "--platform", "far.example:9443", "--name", "hall"),
        *("--data", "mine.csv", "--node", "who", "--threads", 2),
    )
    assert "--superlink far.example:9443" in capsys.readouterr().out
    one = Edge.load(Path("edges/hall"))
    assert one.data.path == str(Path("mine.csv").absolute())
    assert (one.data.node, one.execution) == ("who", {"threads": 2})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "mine.csv"], "--platform is missing"),
        (["--data", "mine.csv", "--platform", "far"], "give HOST:PORT"),
        (["--data", "none.csv", "--platform", "far:1"], "there is no file or folder"),
        (["--data", "mine.csv", "--platform", "far:1", "--label", "z"], "has no column 'z'"),
        (["--data", "mine.csv", "--platform", "far:1"], r"there is no .*certs/nodes/hall"),
        (["--data", "mine.csv", "--platform", "far:1", "--name", "../hall"], "--name is"),
    ],
)
def test_an_edge_says_what_it_lacks(arguments: list[str], said: str) -> None:
    Path("mine.csv").write_text("a,label\n1,x\n2,y\n")
    with pytest.raises((SettingError, DataError), match=said):
        called(edge.COMMAND, "--name", "hall", *arguments)


def test_a_run_goes_on_as_it_was_planned() -> None:
    called(platform.COMMAND, "--prepare", "--insecure", "--out", "runs/a", "--rounds", 7)
    again = ["--prepare", "--insecure", "--resume", "runs/a"]
    called(platform.COMMAND, *again, "--rounds", 9, "--quorum", 0.3)
    plan = Plan.load(Path("runs/a"))
    assert (plan.table["training"]["rounds"], plan.fleet.quorum) == (9, 0.3)
    with pytest.raises(RunFolderError, match="step_size"):
        called(platform.COMMAND, *again, "--inner-step-size", 0.5)
    with pytest.raises(RunFolderError, match="holds a run already"):
        called(platform.COMMAND, "--prepare", "--insecure", "--out", "runs/a")


def test_keys_are_wanted_unless_insecure_is_written_out() -> None:
    with pytest.raises(SettingError, match=r"ca.crt.*write --insecure"):
        called(platform.COMMAND, "--out", "runs/a", "--port", free_port())


def test_edges_are_told_where_the_fence_is(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--host", "platform.example", "--node", "hall", "--fence", "0.0.0.0:9443"]
    called(certs.COMMAND, "keys", *arguments)
    capsys.readouterr()
    platform._say_how_to_join(Path("keys"), "127.0.0.1", 8000)
    told = capsys.readouterr().out
    assert "fedmeta edge --platform platform.example:9443 --name NAME" in told
    assert "keys/nginx.conf must run" in told
    Path("keys/nginx.conf").unlink()
    platform._say_how_to_join(Path("keys"), "10.0.0.1", 8000)
    told = capsys.readouterr().out
    assert "--platform platform.example:8000" in told
    assert "whoever reaches this port may control the fleet" in told
    platform._say_how_to_join(None, "127.0.0.1", 8000)
    assert "--platform HOST:8000" in capsys.readouterr().out


def test_more_edges_than_nodes_are_refused_before_anything_is_written() -> None:
    few = ["--data", "sinusoid", "--nodes", 5, "--edges", 9, "--insecure", "--out", "runs/a"]
    with pytest.raises(SettingError, match="9 edges for 4 source nodes"):
        called(fleet.COMMAND, *few)
    assert not Path("runs").exists()


def test_a_fleets_run_is_judged_on_its_targets_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {
        "data": {"name": "sinusoid", "nodes": 8, "samples": [6, 9], "target_share": 0.25},
        "model": {"hidden": [4]},
        "training": {"rounds": 1},
    }
    _, homes = fleet_of(tmp_path / "f", table, edges=2)
    carry_out(tmp_path / "f/run", InProcessTransport(homes))
    called(evaluate.COMMAND, tmp_path / "f/run")
    assert "mse of 2 target nodes" in capsys.readouterr().out
    with pytest.raises(RunFolderError, match="are on the edges of a fleet"):
        called(importance.COMMAND, tmp_path / "f/run")
    with pytest.raises(SettingError, match="precise sets are drawn at its start"):
        called(evaluate.COMMAND, tmp_path / "f/run", "--precise", 5)
    planned = Plan.load(tmp_path / "f/run")
    replace(planned, targets=None).save(tmp_path / "f/run")
    with pytest.raises(RunFolderError, match="without target nodes"):
        called(evaluate.COMMAND, tmp_path / "f/run")


def test_a_sequence_remembers_its_fleet(tmp_path: Path) -> None:
    assert sequence._fleet(tmp_path / "runs", None) is None
    new = sequence._fleet(tmp_path / "runs", 3)
    again = sequence._fleet(tmp_path / "runs", None)
    assert isinstance(new, FleetTasks)
    assert isinstance(again, FleetTasks)
    assert new.fleet == again.fleet
    assert new.place == again.place == tmp_path / "runs-edges"
    with pytest.raises(SettingError, match="edges"):
        sequence._fleet(tmp_path / "other", 0)


@pytest.mark.parametrize("flag", [["--edges", 0], ["--quorum", 0], ["--deadline", -1]])
def test_wrong_numbers_are_refused(flag: list[object]) -> None:
    with pytest.raises(SettingError, match=str(flag[0]).strip("-")):
        called(fleet.COMMAND, "--data", "sinusoid", "--insecure", "--out", "runs/a", *flag)


def test_the_shipped_app_loads_no_pytorch(tmp_path: Path) -> None:
    write_app(tmp_path / "app", {})
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import fleet_app.client_app as c; "
        "assert c.app is not None; print('torch' in sys.modules, 'fedmeta' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "app")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "False"]


def test_code_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no\.py does not exist"):
        write_app(tmp_path / "app", {"algorithm": "no.py:Mine"})


def test_a_worker_answers_as_the_edge_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    table = {"data": {"name": "sinusoid", "nodes": 4, "samples": [6, 6], "target_share": 0.0}}
    _, homes = fleet_of(tmp_path / "f", table, edges=1)
    question = Message({"run": "run1", "life": 1, "table": table}).encoded()
    assert ask(homes[100], "introduce", *question) is None  # there is no worker
    here, there = Pipe()
    for part in (b"introduce", question[0].encode(), question[1]):
        here.send_bytes(part)
    worker._answer(there, homes[100], KeptJob())
    reply = Message.decoded(here.recv_bytes().decode(), here.recv_bytes())
    assert reply.facts["name"] == "edge-1"
    assert len(reply.facts["nodes"]) == 4
    here.close()
    worker._answer(there, homes[100], KeptJob())  # whoever asked is gone
    there.close()
    assert len(str(socket_of(homes[100]))) < 108


def test_what_is_no_message_is_refused() -> None:
    for facts, tensors in (("{", b""), ("[]", Message({}).encoded()[1]), ("{}", b"pickle")):
        with pytest.raises(MessageError):
            Message.decoded(facts, tensors)


def test_a_watch_tells_how_a_run_ended(tmp_path: Path) -> None:
    class Living:
        def poll(self) -> None:
            return None

    called(platform.COMMAND, "--prepare", "--insecure", "--out", "runs/a", "--rounds", 2)
    place = Path("runs/a/fleet/outcome.json")
    place.write_text('{"problem": "too few edges", "remedy": "bring some", "code": 4}')
    with pytest.raises(FedmetaError, match="too few edges: bring some") as caught:
        follow(Path("runs/a"), 0, (), Living(), lambda: True)  # type: ignore[arg-type]
    assert caught.value.exit_code == 4
    assert is_running('{"runs": [{"status": "running"}]}')
    assert not is_running('{"runs": [{"status": "finished:failed"}]}')


def test_without_a_worker_the_client_app_does_the_work_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plain Flower way: a SuperNode that somebody has started by hand."""
    from flwr.app import Context, RecordDict

    from fedmeta.fleet import client_app
    from fedmeta.fleet.server_app import from_records, to_records

    class Asked:
        content = None

    # Outside of Flower's own processes there are no real messages.
    monkeypatch.setattr(client_app, "Message", lambda content, **_: content)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    table = {"data": {"name": "sinusoid", "nodes": 4, "samples": [6, 6], "target_share": 0.0}}
    _, homes = fleet_of(tmp_path / "f", table, edges=1)
    message, context = Asked(), Context(1, 7, {"edge": str(homes[100])}, RecordDict(), {})
    message.content = to_records(Message({"run": "run1", "life": 1, "table": table}))
    reply = from_records(client_app._answered("introduce", message, context))
    assert reply.facts["name"] == "edge-1"
    assert set(reply.tensors) == {"total", "squares", "label_total", "label_squares"}
