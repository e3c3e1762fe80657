"""500 messages that no honest edge sends: nobody else is touched, and the run ends as it should."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedmeta.config.toml_files import merged
from fedmeta.core.run_folder import RunFolder
from fedmeta.fleet.audit import FILE, read_audit, record
from fedmeta.fleet.edge import Edge, answer
from fedmeta.fleet.edge_table import read_edges
from fedmeta.fleet.message import Message, MessageError
from fedmeta.fleet.plan import Plan, carry_out
from fedmeta.fleet.transport import FleetError
from fleet.hostile_messages import hostile
from fleet.test_in_process import same, table_of
from fleet.transports import InProcessTransport, fleet_of

MESSAGES = 500


class Hostile(InProcessTransport):
    """The edges at some addresses answer with mutations of what an honest one has said."""

    def __init__(self, homes: dict[int, Path], liars: set[int], kind: str) -> None:
        super().__init__(homes)
        self.liars, self.kind, self.luck, self.told = liars, kind, random.Random(7), 0
        self.heard: dict[int, Message] = {}

    def ask(self, kind: str, messages: Any, deadline: float) -> dict[int, Any]:
        if kind != self.kind:
            return super().ask(kind, messages, deadline)
        lying = {a: m for a, m in messages.items() if a in self.liars}
        replies = super().ask(
            kind, {a: m for a, m in messages.items() if a not in self.liars}, deadline
        )
        for address, message in lying.items():
            if address not in self.heard:  # what it would have said once
                one = super().ask(kind, {address: message}, deadline)[address]
                self.heard[address] = one
            honest = self.heard[address]
            if kind == "round":
                honest = Message({**honest.facts, "round": message.facts["round"]}, honest.tensors)
            replies[address] = self._on_the_wire(hostile(self.luck, honest))
            self.told += 1
        return replies

    def _on_the_wire(self, message: Message) -> Message:
        """Through bytes as Flower carries them, damaged or not."""
        try:
            facts = json.dumps(message.facts)  # NaN and ∞ included, as JSON has them not
            return Message.decoded(facts, Message({}, message.tensors).encoded()[1])
        except MessageError as error:
            return Message({"damaged": error.problem})


def long_table(rounds: int, **tables: Any) -> dict[str, Any]:
    own = {"data": {"nodes": 12, "target_share": 0.0}, "training": {"evaluate_every": 0}}
    return merged([table_of(rounds), own, tables])


def test_500_hostile_replies_leave_the_theta_of_the_honest_edges(tmp_path: Path) -> None:
    """Bit for bit that of a run in which the hostile edges never answer."""
    liars, rounds = set(range(102, 112)), MESSAGES // 10
    thetas = []
    for name in ("hostile", "absent"):
        place = tmp_path / name
        _, homes = fleet_of(place, long_table(rounds), edges=12, quorum=0.1, strikes=10**6)
        transport = Hostile(homes, liars, "round" if name == "hostile" else "")
        if name == "absent":
            transport.delivery = lambda address, _: "lost" if address in liars else ""
        run = carry_out(place / "run", transport)
        assert [record["edges"] for record in run.history] == [2] * rounds
        thetas.append(run.meta_model.theta)
        if name == "hostile":
            assert transport.told == MESSAGES
    assert same(*thetas)
    place = tmp_path / "hostile/run"
    texts = [(place / "metrics.jsonl").read_text(), (place / "fleet" / FILE).read_text()]
    assert all("\\u001b" not in text and "\x1b" not in text for text in texts)
    assert max(len(line) for text in texts for line in text.splitlines()) < 5000
    refused = [line for line in read_audit(place / "fleet") if line["event"] == "not counted"]
    assert len(refused) == MESSAGES
    assert {line["edge"] for line in refused} == {f"edge-{number}" for number in range(3, 13)}


@pytest.mark.parametrize("strikes", [1, 3])
def test_who_fails_again_and_again_is_quarantined_also_after_a_resume(
    tmp_path: Path, strikes: int
) -> None:
    _, homes = fleet_of(tmp_path, long_table(2), edges=3, strikes=strikes)
    transport = Hostile(homes, {102}, "round")
    carry_out(tmp_path / "run", transport)
    assert transport.told == min(2, strikes)
    planned = Plan.load(tmp_path / "run")
    longer = merged([planned.table, {"training": {"rounds": 6}}])
    replace(planned, table=longer).save(tmp_path / "run")
    run = carry_out(tmp_path / "run", transport)
    assert transport.told == strikes
    assert [record["edges"] for record in run.history] == [2] * 6
    row = read_edges(tmp_path / "run/fleet")[2]
    assert row.state.startswith("quarantined: ")
    assert row.failed == tuple(range(1, strikes + 1))
    events = [line["event"] for line in read_audit(tmp_path / "run/fleet")]
    assert events.count("quarantined") == 1
    assert events.count("counted") == 6


def test_hostile_introductions_are_left_out_and_the_run_begins(tmp_path: Path) -> None:
    """Many strangers besides two honest edges, who need nobody else."""
    _, homes = fleet_of(tmp_path, long_table(2), edges=2, authenticated=False)
    honest = carry_out(tmp_path / "run", InProcessTransport(homes)).meta_model.theta
    again = tmp_path / "again"
    _, homes = fleet_of(again, long_table(2), edges=2, authenticated=False)
    strangers = {}
    for number in range(60):
        home = again / f"stranger-{number}"
        Edge(f"stranger-{number}", Edge.load(homes[100]).data).save(home)
        strangers[200 + number] = home
    transport = Hostile({**homes, **strangers}, {*strangers}, "introduce")
    run = carry_out(again / "run", transport)
    assert same(run.meta_model.theta, honest)
    assert [row.name for row in read_edges(again / "run/fleet")] == ["edge-1", "edge-2"]
    refused = [line for line in read_audit(again / "run/fleet") if line["event"] == "refused"]
    assert len({line["edge"] for line in refused}) == 60


def test_a_reason_without_end_is_cut(tmp_path: Path) -> None:
    _, homes = fleet_of(tmp_path, long_table(1), edges=2)

    class Loud(InProcessTransport):
        def ask(self, kind: str, messages: Any, deadline: float) -> dict[int, Any]:
            replies = super().ask(kind, messages, deadline)
            if kind == "round":
                replies[101] = Message({"refused": "\x1b[31m" + "no! " * 10**6})
            return replies

    run = carry_out(tmp_path / "run", Loud(homes))
    note = RunFolder.open(tmp_path / "run").history()[0]["note"]
    assert "edge-2 was not counted: \\x1b[31mno! " in note
    assert len(note) < 500
    assert run.history[0]["edges"] == 1
    assert read_edges(tmp_path / "run/fleet")[1].failed == ()  # to say no is no failure


def test_an_edge_that_claims_too_much_is_refused_or_capped(tmp_path: Path) -> None:
    class Greedy(InProcessTransport):
        def ask(self, kind: str, messages: Any, deadline: float) -> dict[int, Any]:
            replies = super().ask(kind, messages, deadline)
            if kind == "introduce" and 103 in replies:
                facts, tensors = replies[103].facts, dict(replies[103].tensors)
                nodes = [[name, s * times, q * times] for name, s, q in facts["nodes"]]
                tensors = {name: leaf * times for name, leaf in tensors.items()}
                counts = {n: facts[n] * times for n in facts if n.endswith("count")}
                replies[103] = Message({**facts, "nodes": nodes, **counts}, tensors)
            return replies

    _, homes = fleet_of(tmp_path / "a", long_table(1), edges=4, max_samples=100)
    times = 1000
    with pytest.raises(FleetError, match=r"edge 103 cannot take part.*nodes"):
        carry_out(tmp_path / "a/run", Greedy(homes))
    _, homes = fleet_of(tmp_path / "b", long_table(1), edges=4)
    transport = Greedy(homes)
    carry_out(tmp_path / "b/run", transport)
    share = {a: m.facts["share"]["samples"] for a, m in transport.sent if "share" in m.facts}
    claims = {a: r.facts["nodes"] for a, r in transport.received if "nodes" in r.facts}
    held = {a: sum(s + q for _, s, q in nodes) for a, nodes in claims.items()}
    weights = {a: held[a] * (times if a == 103 else 1) / share[a] for a in held}
    assert sum(weights.values()) == pytest.approx(1, abs=0.01)
    assert weights[103] == pytest.approx(4 * sorted(weights.values())[1], rel=0.01)


def test_an_edge_refuses_what_no_platform_asks(tmp_path: Path) -> None:
    _, homes = fleet_of(tmp_path, long_table(1), edges=2)
    transport = InProcessTransport(homes)
    carry_out(tmp_path / "run", transport)
    luck, refused = random.Random(3), 0
    for kind, known in (("introduce", "table"), ("round", "round")):
        honest = next(m for _, m in transport.sent if known in m.facts)
        for _ in range(60):
            message = hostile(luck, honest)
            try:
                facts, tensors = json.dumps(message.facts), message.tensors
                reply = Message.decoded(
                    *answer(homes[100], kind, facts, Message({}, tensors).encoded()[1])
                )
            except MessageError:
                continue
            refused += "refused" in reply.facts
    assert refused > 40


def test_a_damaged_audit_log_gives_its_other_lines(tmp_path: Path) -> None:
    record(tmp_path, "started", run="a")
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"event": "jo\xe2ned"\n' + b"[" * 5000 + b"\n" + b"9" * 5000 + b"\n")
    record(tmp_path, "joined", name="edge-1")
    assert [line["event"] for line in read_audit(tmp_path)] == ["started", "joined"]
