"""Platform and edges in one process: equal bits, lost and repeated messages, resume, joins."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core import randomness, storage
from fedmeta.core.errors import DataError, SettingError
from fedmeta.core.run_folder import RunFolder
from fedmeta.data import federate
from fedmeta.data.few_classes import holds_few_classes
from fedmeta.fleet import edge_job
from fedmeta.fleet import plan as plans
from fedmeta.fleet.app_bundle import write_app
from fedmeta.fleet.edge import Edge
from fedmeta.fleet.edge_state import EdgeState
from fedmeta.fleet.edge_table import read_edges
from fedmeta.fleet.message import Message
from fedmeta.fleet.plan import Plan, carry_out
from fedmeta.fleet.shards import EdgeData, load_shard, save_shard
from fedmeta.fleet.transport import FleetError, FleetSettings
from fedmeta.models.meta_model import load_theta
from fedmeta.report import write_report
from fedmeta.report.format import size
from fedmeta.training.train import RunRequest, train_run
from fleet.transports import InProcessTransport, fleet_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "new_algorithm.py"


def table_of(rounds: int = 3, **tables: Any) -> dict[str, Any]:
    base = {
        "data": {"name": "sinusoid", "nodes": 8, "samples": [6, 9], "target_share": 0.25},
        "model": {"hidden": [4]},
        "training": {"rounds": rounds, "evaluate_every": 2},
        "execution": {"threads": 1, "path": "batched"},
    }
    return merged([base, tables])


def local_theta(table: dict[str, Any], federation: Any, chunk: int) -> dict[str, torch.Tensor]:
    settings = RunSpec.from_dict(merged([table, {"execution": {"chunk": chunk}}]))
    return train_run(RunRequest(settings, federation)).meta_model.theta


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


STALE = {"admm-fedmeta": {"penalty": 50.0, "rule": "stale"}}
KINDS: dict[str, dict[str, Any]] = {
    "auto penalty": {},
    "a fixed penalty": {"algorithms": {"admm-fedmeta": {"penalty": 50.0}}},
    "stale, several steps": {
        "algorithms": {"admm-fedmeta": {"penalty": 50.0, "rule": "stale", "local_steps": 3}}
    },
    "auto penalty, several steps": {"algorithms": {"admm-fedmeta": {"local_steps": 3}}},
    "fedadam": {"algorithm": "fedavg", "algorithms": {"fedavg": {"server": "adam"}}},
    "learned steps": {"inner": {"learned": "tensor"}},
    "fedavg": {"algorithm": "fedavg"},
    "per-fedavg": {"algorithm": "per-fedavg"},
    "fedmeta": {"algorithm": "fedmeta"},
    "reptile": {"algorithm": "reptile"},
    "fedprox": {"algorithm": "fedprox"},
    "scaffold": {"algorithm": "scaffold"},
    "scaffold, learned steps": {"algorithm": "scaffold", "inner": {"learned": "tensor"}},
    "feddyn": {"algorithm": "feddyn"},
    "fedadmm": {"algorithm": "fedadmm"},
    "mini-batches": {"inner": {"batch_size": 2}},
    "one by one": {"execution": {"path": "loop"}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_theta_is_that_of_the_local_engine_bit_for_bit(tmp_path: Path, kind: str) -> None:
    table = table_of(**KINDS[kind])
    federation, homes = fleet_of(tmp_path, table, edges=2)
    run = carry_out(tmp_path / "run", InProcessTransport(homes))
    chunk = 1 if kind == "one by one" else 3
    if kind == "one by one":  # an edge adds its nodes up, then the platform adds the edges
        alone = local_theta(table, federation, chunk)
        for name, leaf in alone.items():
            assert torch.allclose(leaf, run.meta_model.theta[name], atol=1e-6)
        return
    assert same(run.meta_model.theta, local_theta(table, federation, chunk))


def test_whether_devices_hold_few_classes_is_told_by_all_edges_together(tmp_path: Path) -> None:
    """Each edge has but two classes, which are all it knows of: few are two of four."""
    rows = ["a,b,kind,device"]
    for device in range(8):
        for sample in range(6):
            kind = "wxyz"[2 * (device // 4) + sample % 2]
            rows.append(f"{device + sample / 7},{'wxyz'.index(kind) + sample / 5},{kind},d{device}")
    (tmp_path / "own.csv").write_text("\n".join(rows))
    own = {"name": str(tmp_path / "own.csv"), "label": "kind", "node": "device"}
    table = {**table_of(), "data": {**own, "targets": ["d0", "d7"]}}
    federation, homes = fleet_of(tmp_path, table, edges=2)
    for home in homes.values():
        assert not holds_few_classes(load_shard(Path(Edge.load(home).data.path)))
    run = carry_out(tmp_path / "run", InProcessTransport(homes))
    assert run.summary["settings"]["algorithm"]["inner"]["method"] == "head+prototypes"
    assert same(run.meta_model.theta, local_theta(table, federation, 3))


def test_an_algorithm_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = f"{EXAMPLE}:FedProx"
    table = table_of(algorithm=own, algorithms={own: {"pull": 0.2}})
    federation, homes = fleet_of(tmp_path, table, edges=2)
    shipped = write_app(tmp_path / "app", table)
    assert shipped["algorithm"] == "fleet_app.own_new_algorithm:FedProx"
    monkeypatch.syspath_prepend(str(tmp_path / "app"))  # as Flower does with an app
    planned = Plan.load(tmp_path / "run")
    replace(planned, table=shipped).save(tmp_path / "run")
    run = carry_out(tmp_path / "run", InProcessTransport(homes))
    assert same(run.meta_model.theta, local_theta(table, federation, 3))
    assert run.summary["settings"]["algorithm"]["pull"] == 0.2


def test_a_prior_is_the_platforms_business(tmp_path: Path) -> None:
    first = table_of(rounds=1, algorithm="fedavg")
    federation, homes = fleet_of(tmp_path / "a", first, edges=2)
    carry_out(tmp_path / "a/run", InProcessTransport(homes))
    prior = {"model": str(tmp_path / "a/run"), "strength": 0.5}
    table = table_of(prior=prior, algorithms={"admm-fedmeta": {"penalty": 50.0}})
    federation, homes = fleet_of(tmp_path / "b", table, edges=2)
    transport = InProcessTransport(homes)
    run = carry_out(tmp_path / "b/run", transport)
    assert same(run.meta_model.theta, local_theta(table, federation, 3))
    assert all("prior" not in message.facts["table"] for _, message in transport.sent)


def test_the_run_folder_is_like_any_other(tmp_path: Path) -> None:
    _, homes = fleet_of(tmp_path, table_of(), edges=2)
    transport = InProcessTransport(homes)
    run = carry_out(tmp_path / "run", transport)
    opened = RunFolder.open(tmp_path / "run")
    assert [record["round"] for record in opened.history()] == [1, 2, 3]
    assert opened.summary()["target_metric"] == run.summary["target_metric"]
    nodes = opened.federation()["nodes"]
    assert [n["role"] for n in nodes].count("source") == 6
    assert all(n["classes"] == {} for n in nodes if n["role"] == "source")
    rows = read_edges(tmp_path / "run" / "fleet")
    assert [(r.name, r.nodes, r.state, r.rounds) for r in rows] == [
        ("edge-1", 3, "counted", 3),
        ("edge-2", 3, "counted", 3),
    ]
    theta = sum(leaf.numel() for leaf in load_theta(tmp_path / "run").values())
    uploads = [message.size for _, message in transport.received if "round" in message.facts]
    assert max(uploads) <= 4 * theta + 2048


def test_the_report_has_a_table_of_edges_over_all_starts(tmp_path: Path) -> None:
    table = table_of(rounds=2)
    _, homes = fleet_of(tmp_path, table, edges=2)
    carry_out(tmp_path / "run", InProcessTransport(homes))
    planned = Plan.load(tmp_path / "run")
    longer = merged([table, {"training": {"rounds": 3}}])
    replace(planned, table=longer).save(tmp_path / "run")
    carry_out(tmp_path / "run", InProcessTransport(homes))
    first, second = read_edges(tmp_path / "run/fleet")
    assert (first.rounds, second.rounds) == (3, 3)
    page = write_report(tmp_path / "run").read_text()
    assert "<h2>The edges</h2>" in page
    for edge in (first, second):
        row = page[page.index(f'<th scope="row">{edge.name}</th>') :].partition("</tr>")[0]
        assert "<td>counted</td>" in row
        assert size(edge.bytes_up) in row
    assert "a column is a device" not in page  # nobody has told which classes they have


def test_an_upload_does_not_grow_with_the_shard(tmp_path: Path) -> None:
    sizes = []
    for nodes in (4, 16):
        table = table_of(rounds=1, data={"nodes": nodes, "target_share": 0.0})
        _, homes = fleet_of(tmp_path / str(nodes), table, edges=1)
        transport = InProcessTransport(homes)
        carry_out(tmp_path / str(nodes) / "run", transport)
        sizes.append(len(transport.received[-1][1].encoded()[1]))
    assert sizes[0] == sizes[1]


def test_a_lost_upload_is_the_same_as_an_edge_that_was_not_asked(tmp_path: Path) -> None:
    """Edge 2 computes round 2, but its reply is lost: the run goes on as if it had not."""
    thetas = []
    for delivery in ("late", "lost"):
        table = table_of(rounds=4, algorithms={"admm-fedmeta": {"penalty": 50.0}})
        _, homes = fleet_of(tmp_path / delivery, table, edges=2)

        def luck(address: int, message: Message, delivery: str = delivery) -> str:
            return delivery if (address, message.facts["round"]) == (101, 2) else ""

        run = carry_out(tmp_path / delivery / "run", InProcessTransport(homes, luck))
        assert [record["counted"] for record in run.history] == [6, 3, 6, 6]
        assert "was not counted: no answer in time" in run.history[1]["note"]
        thetas.append(run.meta_model.theta)
    assert same(*thetas)


@pytest.mark.parametrize("rule", ["participants", "stale"])
def test_an_edge_of_one_node_that_misses_rounds_is_the_simulations(
    tmp_path: Path, rule: str
) -> None:
    """With an edge per node the fleet's losses are those that the local engine simulates."""
    algorithm = {"admm-fedmeta": {"penalty": 50.0, "rule": rule}}
    table = table_of(rounds=5, algorithms=algorithm, data={"nodes": 5, "target_share": 0.2})
    federation, homes = fleet_of(tmp_path, table, edges=4, quorum=0.25)
    simulated = RunSpec.from_dict(
        merged([table, {"participation": {"lost": 0.4}, "execution": {"chunk": 1}}])
    )
    alone = train_run(RunRequest(simulated, federation))
    counted = [record["counted"] for record in alone.history]
    assert 0 < min(counted) < 4
    draws = randomness.fold(randomness.key(0), 22)  # the local engine's
    arrives = {
        number: {
            100 + place for place in simulated.participation.counted(4, number, draws).tolist()
        }
        for number in range(1, 6)
    }
    run = carry_out(
        tmp_path / "run",
        InProcessTransport(homes, lambda a, p: "" if a in arrives[p.facts["round"]] else "late"),
    )
    assert [record["counted"] for record in run.history] == counted
    assert same(run.meta_model.theta, alone.meta_model.theta)


def test_a_seeded_share_of_the_edges_is_asked(tmp_path: Path) -> None:
    table = table_of(rounds=4, participation={"fraction": 0.5}, data={"nodes": 10})
    asked = []
    for place in ("a", "b"):
        _, homes = fleet_of(tmp_path / place, table, edges=4)
        transport = InProcessTransport(homes)
        carry_out(tmp_path / place / "run", transport)
        asked.append([(a, p.facts["round"]) for a, p in transport.sent if "round" in p.facts])
    assert asked[0] == asked[1]
    assert [number for _, number in asked[0]] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert len({address for address, _ in asked[0]}) > 2


def test_a_round_below_quorum_is_repeated_and_three_stop_the_run(tmp_path: Path) -> None:
    _, homes = fleet_of(tmp_path, table_of(rounds=3), edges=2, quorum=1.0)
    asked: list[int] = []

    def luck(address: int, message: Message) -> str:
        number = message.facts["round"]
        asked.append(number)
        once = number == 2 and asked.count(2) <= 2
        return "late" if address == 101 and (once or number == 3) else ""

    with pytest.raises(FleetError, match=r"round 3 had too few edges 3 times.*resume"):
        carry_out(tmp_path / "run", InProcessTransport(homes, luck))
    assert asked == [1, 1, 2, 2, 2, 2, *[3] * 6]
    history = RunFolder.open(tmp_path / "run").history()
    assert [record["round"] for record in history] == [1, 2]
    assert "it is repeated" in history[1]["note"]
    run = carry_out(tmp_path / "run", InProcessTransport(homes))  # and it can go on
    assert run.summary["status"] == "finished"
    _, homes = fleet_of(tmp_path / "quiet", table_of(rounds=3), edges=2)
    quiet = carry_out(tmp_path / "quiet/run", InProcessTransport(homes))
    assert same(run.meta_model.theta, quiet.meta_model.theta)


class KilledError(BaseException):
    """Stands for a SIGKILL of the platform: nothing catches it."""


@pytest.mark.parametrize("moment", range(1, 13, 2))
def test_a_platform_killed_at_any_message_ends_with_the_same_theta(
    tmp_path: Path, moment: int
) -> None:
    table = table_of(rounds=4, algorithms=STALE)
    federation, homes = fleet_of(tmp_path, table, edges=2)
    left = [moment]

    def deadly(address: int, message: Message) -> str:
        left[0] -= 1
        if left[0] == 0:
            raise KilledError
        return ""

    try:
        carry_out(tmp_path / "run", InProcessTransport(homes, deadly))
    except KilledError:
        run = carry_out(tmp_path / "run", InProcessTransport(homes))
    else:
        run = carry_out(tmp_path / "run", InProcessTransport(homes))  # it was done by then
    assert same(run.meta_model.theta, local_theta(table, federation, 3))
    assert [r["round"] for r in RunFolder.open(tmp_path / "run").history()] == [1, 2, 3, 4]


def test_an_edge_may_join_and_come_back_under_another_address(tmp_path: Path) -> None:
    table = table_of(rounds=5, algorithms=STALE)
    _, homes = fleet_of(tmp_path, table, edges=2, quorum=0.3, authenticated=False)
    late = homes.pop(101)
    planned = Plan.load(tmp_path / "run")
    replace(planned, fleet=replace(planned.fleet, edges=1)).save(tmp_path / "run")
    transport = InProcessTransport(homes)

    def luck(address: int, message: Message) -> str:
        if message.facts["round"] == 2:
            transport.homes[101] = late
        if message.facts["round"] == 4 and 101 in transport.homes:
            transport.homes[107] = transport.homes.pop(101)
        return ""

    transport.delivery = luck
    run = carry_out(tmp_path / "run", transport)
    assert [record["edges"] for record in run.history] == [1, 1, 2, 1, 2]
    assert "edge edge-2 joined in round 3: 3 nodes" in run.history[2]["note"]
    joined = next(p for a, p in transport.sent if a == 101 and "round" in p.facts)
    assert joined.facts["counted"] == 0
    assert "start" in joined.tensors
    assert run.summary["status"] == "finished"


def test_nobody_may_take_anothers_name(tmp_path: Path) -> None:
    _, homes = fleet_of(tmp_path, table_of(rounds=3), edges=2)
    transport = InProcessTransport(homes)
    impostor = tmp_path / "impostor"
    Edge("edge-1", Edge.load(homes[100]).data).save(impostor)

    def luck(address: int, message: Message) -> str:
        transport.homes[999] = impostor
        return ""

    transport.delivery = luck
    run = carry_out(tmp_path / "run", transport)
    assert "another key calls itself edge-1" in run.history[1]["note"]
    assert not any(a == 999 and "round" in p.facts for a, p in transport.sent)


def test_an_edge_with_a_full_disk_is_not_counted_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(rounds=3, algorithms=STALE)
    _, homes = fleet_of(tmp_path, table, edges=2)
    plain = storage._write_synced

    def full(path: Path, content: bytes, *rest: Any) -> None:
        if "edge-2/memory" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(path, content, *rest)

    def luck(address: int, message: Message) -> str:
        filled = message.facts["round"] == 2
        monkeypatch.setattr(storage, "_write_synced", full if filled else plain)
        return ""

    run = carry_out(tmp_path / "run", InProcessTransport(homes, luck))
    assert [record["counted"] for record in run.history] == [6, 3, 6]
    assert "edge-2 was not counted: cannot write" in run.history[1]["note"]
    assert "No space left on device" in run.history[1]["note"]


@pytest.mark.parametrize("harm", ["nan", "shape", "other round"])
def test_a_wrong_reply_is_refused_and_named(tmp_path: Path, harm: str) -> None:
    _, homes = fleet_of(tmp_path, table_of(rounds=1), edges=2)

    class Harmful(InProcessTransport):
        def ask(self, kind: str, messages: Any, deadline: float) -> dict[int, Any]:
            replies = super().ask(kind, messages, deadline)
            if kind == "round":
                facts, tensors = replies[101].facts, dict(replies[101].tensors)
                if harm == "nan":
                    tensors["update"] = tensors["update"] * torch.nan
                elif harm == "shape":
                    tensors["update"] = tensors["update"][:-1]
                else:
                    facts = {**facts, "round": 7}
                replies[101] = Message(facts, tensors)
            return replies

    run = carry_out(tmp_path / "run", Harmful(homes))
    assert run.history[0]["edges"] == 1
    assert "edge edge-2 was not counted" in run.history[0]["note"]


def test_edges_with_files_of_their_own(tmp_path: Path) -> None:
    """Each device knows two of three classes; numbering and scaling are those of all together."""
    rng = np.random.default_rng(0)
    homes = {}
    for number, classes in enumerate((["cat", "dog"], ["dog", "eel"])):
        rows = ["a,b,what"]
        for row in range(16):
            name = classes[row % 2]
            a, b = rng.normal(size=2) + len(name) + row % 2
            rows.append(f"{a},{b},{name}")
        home = tmp_path / f"device-{number}"
        home.mkdir()
        (home / "mine.csv").write_text("\n".join(rows) + "\n")
        Edge(f"device-{number}", EdgeData(str(home / "mine.csv"), "what")).save(home)
        homes[100 + number] = home
    table = table_of(rounds=2)
    table["data"] = {"name": "fleet", "node": "node"}
    Plan("run1", table, FleetSettings(2, deadline=0.2)).save(tmp_path / "run")
    run = carry_out(tmp_path / "run", InProcessTransport(homes))
    assert run.meta_model.task.class_names == ("cat", "dog", "eel")
    assert run.summary["target_metric"] == {}
    both = np.concatenate(
        [
            np.loadtxt(h / "mine.csv", delimiter=",", skiprows=1, usecols=(0, 1))
            for h in homes.values()
        ]
    )
    assert np.allclose(run.meta_model.scaling.mean, both.mean(0))
    (homes[100] / "mine.csv").write_text("a,b,what\n1,2,cat\n2,3,dog\n")
    again = Plan.load(tmp_path / "run")
    longer = merged([again.table, {"training": {"rounds": 3}}])
    replace(again, table=longer).save(tmp_path / "run")
    run = carry_out(tmp_path / "run", InProcessTransport(homes))
    assert "no longer those it joined with" in run.history[2]["note"]


def test_what_a_fleet_cannot_do_is_said_before_it_starts(tmp_path: Path) -> None:
    for wrong, said in (
        ({"participation": {"lost": 0.1}}, "uploads get lost by themselves"),
        ({"participation": {"independent": True}}, "draws edges, not nodes"),
    ):
        Plan("run1", table_of(**wrong), FleetSettings()).save(tmp_path / "run")
        with pytest.raises(SettingError, match=said):
            carry_out(tmp_path / "run", InProcessTransport({}))


def test_too_few_edges_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_POLL", 0.01)
    Plan("run1", table_of(), FleetSettings(3, deadline=0.05)).save(tmp_path / "run")
    with pytest.raises(FleetError, match="only 0 of 3 edges"):
        carry_out(tmp_path / "run", InProcessTransport({}))


def test_a_shard_is_what_was_cut(tmp_path: Path) -> None:
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
    federation = federate(x, y, node=np.arange(20) // 5, target_share=0.25)
    save_shard(tmp_path / "s.safetensors", federation, federation.sources[1:])
    shard = load_shard(tmp_path / "s.safetensors")
    for mine, theirs in zip(shard.nodes, federation.sources[1:], strict=True):
        assert mine.name == theirs.name
        for part in ("support", "query"):
            here, there = getattr(mine, part), getattr(theirs, part)
            assert np.array_equal(shard.inputs[here], federation.inputs[there])
            assert np.array_equal(shard.labels[here], federation.labels[there])


def test_a_shard_says_whether_labels_are_local(tmp_path: Path) -> None:
    x, y = np.arange(400.0).reshape(200, 2), np.arange(200) % 4
    federation = federate(x, y, partition="episodes", nodes=4, classes_per_node=2)
    save_shard(tmp_path / "s.safetensors", federation, federation.sources)
    assert load_shard(tmp_path / "s.safetensors").task == federation.task
    assert federation.task.local_labels


@pytest.mark.parametrize("method", ["8-bit", "top-k"])
def test_short_uploads_lose_nothing_for_good(tmp_path: Path, method: str) -> None:
    table = table_of(rounds=3, uplink={"compression": {"method": method, "keep": 0.3}})
    _, homes = fleet_of(tmp_path, table, edges=2)
    transport = InProcessTransport(homes)
    run = carry_out(tmp_path / "run", transport)
    assert run.summary["status"] == "finished"
    short = transport.received[-1][1].tensors
    assert "update" not in short
    kept = EdgeState(homes[100] / "memory/run1").states(3)
    assert any(bool(leaf.abs().sum() > 0) for leaf in kept["edge.residual"].values())


def test_an_edge_has_the_name_of_its_key(tmp_path: Path) -> None:
    _, homes = fleet_of(tmp_path, table_of(rounds=1), edges=2)
    transport = InProcessTransport(homes)
    transport.names = {100: "edge-1", 101: "edge-9"}
    with pytest.raises(FleetError, match="key of edge-9 calls itself edge-2"):
        carry_out(tmp_path / "run", transport)


def test_labels_are_scaled_by_the_sums_of_all_edges(tmp_path: Path) -> None:
    """Two devices with levels of their own: mean and deviation are those of both together."""
    rng, homes, labels = np.random.default_rng(0), {}, []
    for number in range(2):
        home = tmp_path / f"device-{number}"
        home.mkdir()
        values = np.round(100 + 50 * number + 5 * rng.normal(size=12), 3)
        rows = [f"{x:.3f},{y}" for x, y in zip(rng.normal(size=12), values, strict=True)]
        (home / "mine.csv").write_text("\n".join(["a,y", *rows]) + "\n")
        Edge(f"device-{number}", EdgeData(str(home / "mine.csv"), "y")).save(home)
        homes[100 + number] = home
        labels.append(values)
    table = {
        "data": {"name": "their own", "node": "device", "task": "regression"},
        "model": {"name": "mlp", "hidden": [4]},
        "training": {"rounds": 2},
        "execution": {"threads": 1},
    }
    both = np.concatenate(labels)
    for name, kind in (("run", "standard"), ("plain", "none")):
        own = merged([table, {"data": {"label_scaling": kind}}])
        Plan(name, own, FleetSettings(edges=2)).save(tmp_path / name)
        run = carry_out(tmp_path / name, InProcessTransport(homes))
        found = run.meta_model.scaling.labels
        assert (found is None) == (kind == "none")
        if found is not None:
            assert found.mean.tolist() == pytest.approx([both.mean()])
            assert found.deviation.tolist() == pytest.approx([both.std()])
            assert run.history[0]["meta_loss"] < 10  # of labels around 125
        else:
            assert run.history[0]["meta_loss"] > 1000


def test_a_worker_prepares_a_job_once_and_again_when_its_data_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[str] = []

    def counted(name: str, *rest: Any) -> Any:
        prepared.append(name)
        return of_before(name, *rest)

    of_before = edge_job._prepared
    monkeypatch.setattr(edge_job, "_prepared", counted)
    federation, homes = fleet_of(tmp_path, table_of(rounds=3), edges=2)
    transport = InProcessTransport(homes)
    run = carry_out(tmp_path / "run", transport)
    assert sorted(prepared) == ["edge-1", "edge-2"]
    assert same(run.meta_model.theta, local_theta(table_of(rounds=3), federation, 3))
    (kept, message) = transport.kept[100], transport.sent[-2][1]
    edge = Edge.load(homes[100])
    first = kept.prepared(edge.name, edge.data, {}, message)
    assert kept.prepared(edge.name, edge.data, {}, message) is first
    shard = Path(edge.data.path)
    held = load_shard(shard)
    save_shard(shard, replace(held, inputs=held.inputs + 1), held.nodes)
    again = kept.prepared(edge.name, edge.data, {}, message)
    assert np.allclose(again.federation.inputs, first.federation.inputs + 1)
    assert kept.prepared(edge.name, edge.data, {"threads": 1}, message) is not again
    save_shard(shard, held, held.nodes[:1])
    with pytest.raises(DataError, match="no longer those it joined with"):
        kept.prepared(edge.name, edge.data, {}, message)


@pytest.mark.slow
def test_an_honest_fleet_is_not_ended_by_its_guard(tmp_path: Path) -> None:
    """Late in training edges send mostly noise, and of eight some seem to be against the rest."""
    table = {
        "data": {"name": "digits", "nodes": 40},
        "training": {"rounds": 120, "evaluate_every": 0},
        "execution": {"threads": 1, "path": "batched"},
    }
    _, homes = fleet_of(tmp_path / "made", table, edges=8)
    run = carry_out(tmp_path / "made/run", InProcessTransport(homes))
    assert len(run.history) == 120
