"""Raw data stay on their edge: all messages, logs and files of a fleet, searched for canaries.

`tests/test_privacy.py` does the same for the local engine and says what is planted, and what this
cannot show.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.data.federation import Federation
from fedmeta.fleet.edge import Edge
from fedmeta.fleet.local_fleet import write_shards
from fedmeta.fleet.message import Message
from fedmeta.fleet.plan import Plan, carry_out
from fedmeta.fleet.sequences_over_fleet import FleetTasks
from fedmeta.fleet.shards import EdgeData, load_shard
from fedmeta.fleet.transport import FleetSettings
from fedmeta.models.meta_model import load_scaling, load_theta
from fedmeta.studies.sequences import TaskSequence, TaskSettings, run_sequence
from fleet.processes import awaited, fleet
from fleet.test_tasks import InThisProcess
from fleet.transports import InProcessTransport
from test_privacy import CANARIES, METRICS, allowed, leaks, patterns, planted, secrets

pytest.importorskip("flwr")

OWN = ("shard.safetensors", "targets.safetensors")  # the data themselves
BASE: dict[str, Any] = {
    "model": {"hidden": [4]},
    "training": {"rounds": 3, "evaluate_every": 1},
    "execution": {"threads": 1, "path": "batched"},
}
FIXED = {"algorithms": {"admm-fedmeta": {"penalty": 5.0}}}
RUNS: dict[str, dict[str, Any]] = {
    "automatic penalty": {},
    "stale": {"algorithms": {"admm-fedmeta": {"penalty": 5.0, "rule": "stale"}}},
    "learned steps": {"inner": {"learned": "parameter"}},
    "fedavg": {"algorithm": "fedavg"},
    "reptile": {"algorithm": "reptile"},
    "8-bit": {**FIXED, "uplink": {"compression": {"method": "8-bit"}}},
    "top-k": {**FIXED, "uplink": {"compression": {"method": "top-k"}}},
    "guard": {**FIXED, "uplink": {"guard": {"outliers": "reject", "factor": 100.0}}},
    "dp": {**FIXED, "uplink": {"privacy": {"dp": "local", "clip": 1.0, "noise": 6.4}}},
    "importance": {**FIXED, "importance": "fisher"},
}

FLEET = {"run", "life", "table"}  # of every question
MEMBER = {"name", "data", "share", "task", "few_classes"}
SCALING = {"mean", "deviation"}


def of_fleet(folder: Path, table: dict[str, Any], federation: Federation) -> InProcessTransport:
    """Train with two edges; returns what has carried all messages."""
    targets = write_shards(folder / "edges", federation, 2)
    Plan("run1", table, FleetSettings(2, deadline=0.2), targets).save(folder / "run")
    homes = sorted((folder / "edges").glob("edge-*"))
    transport = InProcessTransport({100 + i: home for i, home in enumerate(homes)})
    carry_out(folder / "run", transport)
    return transport


def check_question(message: Message, model: int) -> None:
    """Only these facts and tensors go down."""
    facts, sizes = set(message.facts), {n: leaf.numel() for n, leaf in message.tensors.items()}
    if "round" in facts:
        assert facts == FLEET | MEMBER | {"round", "counted"}
        assert set(sizes) - {"start"} == {"shared"} | SCALING
        assert sizes["shared"] == model
    elif "what" in facts:
        assert facts == FLEET | MEMBER | {"what", "models"}
        assert set(sizes) == SCALING | set(message.facts["models"])
    else:
        assert facts == FLEET
        assert not sizes


def check_reply(message: Message, model: int, features: int) -> None:
    """Only these facts and tensors go up: sums as long as the model, sums of inputs, numbers."""
    facts, sizes = set(message.facts), {n: leaf.numel() for n, leaf in message.tensors.items()}
    if "round" in facts:
        assert facts == {"round", "run", "name", "seconds", "notes"}
        assert message.facts["notes"] == []
        numbers = {"weight"} | {f"metric/{name}" for name in (*METRICS, "refused")}
        for name, size in sizes.items():
            if name == "update":
                assert size == model
            elif name.startswith("wire/"):
                assert size <= 2 * model
            else:
                assert (name in numbers, size) == (True, 1)
    elif "what" in facts:
        assert facts == {"run", "what", "name"}
        whole = {"model": model, "count": 1}
        assert sizes == whole if message.facts["what"] == "fisher" else set(sizes.values()) == {1}
    else:
        known = {"name", "nodes", "data", "task", "shape", "bytes", "features", "count"}
        assert facts == known | {"holders", "few_classes"}
        assert {type(count) for count in message.facts["holders"]} == {int}
        assert sizes == {"total": features, "squares": features}
        for name, support, query in message.facts["nodes"]:
            assert (type(name), type(support), type(query)) == (str, int, int)


def content(message: Message) -> bytes:
    """A message as it goes over the wire."""
    facts, tensors = message.encoded()
    return facts.encode() + tensors


def check_transports(
    transports: list[InProcessTransport], secret: set[bytes], model: int, width: int
) -> None:
    for transport in transports:
        assert transport.sent
        for _, message in transport.sent:
            check_question(message, model)
            assert not leaks(content(message), secret)
        for _, message in transport.received:
            check_reply(message, model, width)
            assert not leaks(content(message), secret)


def check_files(folder: Path, secret: set[bytes]) -> set[str]:
    """No file has a canary but the data themselves, which do; returns the names of all."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        assert path.name in OWN or not leaks(path.read_bytes(), secret), path
    assert any(leaks(path.read_bytes(), secret) for path in files if path.name in OWN)
    return {path.name for path in files}


@pytest.mark.parametrize("kind", RUNS)
def test_messages_states_and_logs_have_no_canary(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.DEBUG)
    transport = of_fleet(tmp_path, merged([BASE, RUNS[kind]]), planted())
    scaling = load_scaling(tmp_path / "run")
    assert scaling is not None
    secret = secrets(scaling)
    algorithm = RunSpec.from_dict(merged([BASE, RUNS[kind]])).algorithm
    sizes = allowed(algorithm, load_theta(tmp_path / "run"))  # with learned steps, if any
    check_transports([transport], secret, sum(sizes.values()), width=3)
    names = check_files(tmp_path, secret)
    assert {"edges.json", "roster.json", "round-000003.safetensors", "metrics.jsonl"} <= names
    assert not leaks(caplog.text.encode(), secret)


def test_finding_lambda_tells_three_numbers_of_an_edge(tmp_path: Path) -> None:
    of_fleet(tmp_path / "a", merged([BASE, {"algorithm": "fedavg"}]), planted())
    earlier = str(tmp_path / "a/run")
    tied = {"prior": {"model": earlier}, "init": earlier, "training": {"rounds": 20}, **FIXED}
    transport = of_fleet(tmp_path / "b", merged([BASE, tied]), planted())
    scaling = load_scaling(tmp_path / "b/run")
    assert scaling is not None
    secret = secrets(scaling)
    check_transports([transport], secret, model=31, width=3)
    told = [message for _, message in transport.received if "what" in message.facts]
    assert [set(message.tensors) for message in told] == [{"tied", "free", "count"}] * 2
    check_files(tmp_path / "b", secret)


def devices(path: Path) -> None:
    """A table of eight devices with twelve samples of each of two tasks, a canary in each."""
    rng, lines = np.random.default_rng(0), ["a,b,c,label,device"]
    for device in range(8):
        for number in range(24):
            label = number % 4
            values = rng.normal(size=3) + np.eye(4, 3)[label]
            if number in (0, 2):  # one of the first task, one of the second
                values = CANARIES[number // 2]
            lines.append(",".join([*map(repr, map(float, values)), str(label), f"d{device}"]))
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("method", ["fisher", "replay+euclidean", "replay+isolation", "joint"])
def test_a_sequence_over_a_fleet_has_no_canary(tmp_path: Path, method: str) -> None:
    """Importance is a sum, and what devices keep for replay they keep for themselves."""
    devices(tmp_path / "devices.csv")
    data = {"name": str(tmp_path / "devices.csv"), "node": "device", "target_share": 0.25}
    settings = merged([BASE, {"data": data, "training": {"rounds": 2}}])
    pair = TaskSettings("one", (0, 1)), TaskSettings("two", (2, 3))
    sequence = TaskSequence("pair", pair, settings, replay=20).using(method)
    conduct = InThisProcess()
    trainer = FleetTasks(tmp_path / "runs", tmp_path / "edges", FleetSettings(2), conduct)
    (found,) = run_sequence(sequence, folder=tmp_path / "runs", trainer=trainer)
    assert not found["diverged"]
    runs = sorted((tmp_path / "runs/seed-0").iterdir())
    scaling = load_scaling(runs[-1])
    assert scaling is not None
    secret = secrets(scaling)
    check_transports(conduct.transports, secret, model=4 * 3 + 4 + 4 * 4 + 4, width=3)
    check_files(tmp_path / "edges", secret)
    run_sequence(sequence, folder=tmp_path / "alone")  # in one process, for its files
    for folder in ("runs", "alone"):
        for path in (tmp_path / folder).rglob("*"):
            assert path.is_dir() or not leaks(path.read_bytes(), secret), path
    if "replay" in method:  # the canary of the first task is in the second, on its device alone
        shards = (tmp_path / "edges/seed-0/2-two").glob("edge-*/shard.safetensors")
        first = patterns(CANARIES[:1])
        assert all(leaks(shard.read_bytes(), first) for shard in shards)


def test_an_edge_that_leaks_would_be_seen(tmp_path: Path) -> None:
    """The test itself: a reply with a sample in it, and a sample in a file of the platform."""
    transport = of_fleet(tmp_path, merged([BASE, FIXED]), planted())
    secret = patterns(CANARIES)
    home = transport.homes[100]
    sample = load_shard(Path(Edge.load(home).data.path)).inputs
    address, reply = transport.received[-1]
    transport.received[-1] = (
        address,
        Message(reply.facts, {**reply.tensors, "sample": torch.from_numpy(sample)}),
    )
    with pytest.raises(AssertionError):
        check_transports([transport], secret, model=31, width=3)
    assert leaks(content(transport.received[-1][1]), secret)
    (tmp_path / "run/note.txt").write_text("a value of 271.828 was seen")
    with pytest.raises(AssertionError, match=r"note\.txt"):
        check_files(tmp_path, secret)


@pytest.mark.fleet
@pytest.mark.slow
def test_real_processes_log_and_store_no_canary(tmp_path: Path) -> None:
    """Flower's logs and databases as well, in which messages lie for a while."""
    devices(tmp_path / "devices.csv")
    with fleet(tmp_path) as here:
        command = here.start(
            "fleet",
            *("--data", "devices.csv", "--node", "device", "--rounds", 2),
            *(
                "--out",
                "runs/a",
                "--set",
                "model.hidden=[4]",
                "--threads",
                1,
                "--importance",
                "fisher",
            ),
        )
        assert awaited(lambda: command.poll() is not None)
        assert command.returncode == 0
    scaling = load_scaling(tmp_path / "runs/a")
    assert scaling is not None
    secret = secrets(scaling)
    (tmp_path / "devices.csv").unlink()
    names = check_files(tmp_path, secret)
    assert {"superlink.log", "supernode.log", "worker.log", "superlink.db"} <= names
    assert "importance-fisher.safetensors" in names


def test_edge_data_of_a_person_stays_where_it_is(tmp_path: Path) -> None:
    """An edge keeps the path of its file, not the samples."""
    devices(tmp_path / "devices.csv")
    data = EdgeData(str(tmp_path / "devices.csv"), "label", "device")
    Edge("hall", data).save(tmp_path / "home")
    assert not leaks((tmp_path / "home/edge.json").read_bytes(), patterns(CANARIES))
