"""Fleets of real processes over Flower: TLS, keys, SIGKILL of everyone, and the same bits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import Table, merged
from fedmeta.core.run_folder import RunFolder
from fedmeta.data import Federation, load
from fedmeta.fleet.flower_commands import free_port
from fedmeta.fleet.message import Message
from fedmeta.fleet.plan import Plan, carry_out
from fedmeta.fleet.transport import FleetSettings
from fedmeta.models.meta_model import load_theta
from fedmeta.training.train import RunRequest, train_run
from fleet.processes import Fleet, awaited, client_of, fleet, kill_family
from fleet.transports import InProcessTransport, fleet_of

pytest.importorskip("flwr")
pytestmark = [pytest.mark.fleet, pytest.mark.slow]

DIGITS: Table = {
    "data": {"name": "digits", "nodes": 10},
    "model": {"hidden": [8]},
    "algorithms": {"admm-fedmeta": {"penalty": 1.0, "rule": "stale"}},
    "execution": {"threads": 1},
}
METHOD = [
    *("--set", "model.hidden=[8]"),
    *("--set", "algorithms.admm-fedmeta.penalty=1.0"),
    *("--set", "algorithms.admm-fedmeta.rule=stale"),
    *("--threads", "1"),
]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def local_theta(rounds: int) -> dict[str, torch.Tensor]:
    """The local engine, with the two edges' shards as its chunks and one thread."""
    chunks = {"execution": {"chunk": 4}, "training": {"rounds": rounds}}
    settings = RunSpec.from_dict(merged([DIGITS, chunks]))
    return train_run(RunRequest(settings, load(settings.data_settings, 0))).meta_model.theta


def done(folder: Path) -> int:
    """Rounds that are in the metrics file."""
    return len(RunFolder(folder).history())


def test_a_fleet_with_tls_and_keys_trains_as_the_local_engine_does(tmp_path: Path) -> None:
    with fleet(tmp_path) as here:
        command = here.start(
            "fleet", "--data", "digits", "--nodes", 10, "--rounds", 3, "--out", "runs/a", *METHOD
        )
        assert awaited(lambda: command.poll() is not None)
        assert command.returncode == 0
    run = RunFolder.open(tmp_path / "runs/a")
    assert run.summary()["status"] == "finished"
    assert [record["edges"] for record in run.history()] == [2, 2, 2]
    assert same(load_theta(run.path), local_theta(3))
    assert (run.path / "report.html").is_file()
    printed = (tmp_path / "fleet-0.log").read_text()
    assert "accuracy of 2 target nodes" in printed
    assert "edge-2" in printed
    secrets = [p.read_text().splitlines()[2] for p in tmp_path.rglob("certs/nodes/edge-?")]
    assert len(secrets) == 2
    for file in [*run.path.rglob("*"), *tmp_path.rglob("*.log")]:
        if file.is_file():
            assert not any(secret.encode() in file.read_bytes() for secret in secrets)


def prepared(tmp_path: Path, edges: int = 2) -> Federation:
    """Shards, targets and keys of a fleet whose commands are started one by one."""
    from fedmeta.fleet.certificates import make_authority, make_node, make_server

    federation, _ = fleet_of(tmp_path, DIGITS, edges)
    make_authority(tmp_path / "certs")
    make_server(tmp_path / "certs", ["localhost", "127.0.0.1"])
    for number in range(edges):
        make_node(tmp_path / "certs", f"edge-{number + 1}")
    return federation


def edge(here: Fleet, number: int, port: int) -> Any:
    home = here.folder / f"edge-{number}"
    return here.start(
        "edge",
        *("--platform", f"127.0.0.1:{port}", "--name", f"edge-{number}"),
        *("--data", home / "shard.safetensors", "--home", home, "--certs", "certs"),
    )


def test_a_killed_platform_goes_on_where_it_was(tmp_path: Path) -> None:
    prepared(tmp_path)
    port, run = free_port(), tmp_path / "runs/a"
    with fleet(tmp_path) as here:
        for number in (1, 2):
            edge(here, number, port)
        start = ["--port", port, "--certs", "certs", "--deadline", 600]
        new = ["--rounds", 3, "--out", "runs/a", "--targets", "targets.safetensors", *METHOD]
        platform = here.start("platform", *start, *new)
        awaited(lambda: done(run) >= 1, platform)
        time.sleep(2.0)  # into the second round
        kill_family(platform.pid)
        assert platform.wait(30) != 0
        assert done(run) < 3
        platform = here.start("platform", *start, "--resume", "runs/a")
        awaited(lambda: platform.poll() is not None)
        assert platform.returncode == 0
    assert [record["round"] for record in RunFolder.open(run).history()] == [1, 2, 3]
    assert same(load_theta(run), local_theta(3))


def test_killed_edges_and_clients_corrupt_nothing(tmp_path: Path) -> None:
    """Round 2 loses a client process, a later one a whole edge, which is started again.

    Whether Flower asks again in time or the round goes on without them: what was counted is
    replayed without processes, and gives the same θ, bit for bit.
    """
    prepared(tmp_path)
    port, run = free_port(), tmp_path / "runs/a"
    with fleet(tmp_path) as here:
        first, second = edge(here, 1, port), edge(here, 2, port)
        start = ["--port", port, "--certs", "certs", "--deadline", 30, "--quorum", 0.5]
        platform = here.start("platform", *start, "--rounds", 4, "--out", "runs/a", *METHOD)
        awaited(lambda: done(run) >= 1, platform)
        kill_family(awaited(lambda: client_of(first.pid), platform))
        awaited(lambda: done(run) >= 2, platform)
        kill_family(second.pid)
        edge(here, 2, port)
        awaited(lambda: platform.poll() is not None)
        assert platform.returncode == 0
    history = RunFolder.open(run).history()
    lost = {
        (name, record["round"])
        for record in history
        for name in ("edge-1", "edge-2")
        # Of a round that was repeated only the last attempt counts.
        if f"edge {name} was not counted" in record.get("note", "").rpartition("repeated")[2]
    }
    assert [record["round"] for record in history] == [1, 2, 3, 4]
    assert [record["edges"] for record in history] == [
        2 - sum(number == record["round"] for _, number in lost) for record in history
    ]
    replayed = tmp_path / "replay"
    _, homes = fleet_of(replayed, DIGITS, 2)
    Plan("again", Plan.load(run).table, FleetSettings(2, 0.5, 0.2)).save(replayed / "run")

    def delivery(address: int, message: Message) -> str:
        missed = (f"edge-{address - 99}", message.facts["round"]) in lost
        return "lost" if missed else ""

    again = carry_out(replayed / "run", InProcessTransport(homes, delivery))
    assert same(load_theta(run), again.meta_model.theta)
