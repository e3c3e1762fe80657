"""Secure aggregation between platform and edges in one process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core.errors import DivergedError, SettingError
from fedmeta.fleet.certificates import certify_nodes, make_authority, make_node
from fedmeta.fleet.edge import Edge, answer
from fedmeta.fleet.mask_identity import identity
from fedmeta.fleet.mask_memory import MaskMemory
from fedmeta.fleet.message import Message
from fedmeta.fleet.plan import carry_out
from fedmeta.fleet.transport import FleetError
from fedmeta.training.train import RunRequest, train_run
from fedmeta.uplink.exchange_keys import ExchangeKey
from fedmeta.uplink.masking import Occasion
from fedmeta.uplink.whole_numbers import MaskingError
from fleet.transports import InProcessTransport, fleet_of

pytest.importorskip("cryptography")

EDGES = 4


def table_of(**tables: Any) -> dict[str, Any]:
    base = {
        "data": {"name": "sinusoid", "nodes": 10, "samples": [6, 9], "target_share": 0.2},
        "model": {"hidden": [4]},
        "algorithms": {"admm-fedmeta": {"penalty": 50.0}},
        "training": {"rounds": 3, "evaluate_every": 0},
        "execution": {"threads": 1, "path": "batched"},
        "uplink": {"secure_aggregation": True},
    }
    return merged([base, tables])


OPEN = {"uplink": {"secure_aggregation": False, "guard": {"outliers": "keep"}}}


class Watching(InProcessTransport):
    """Counts messages by kind; some answers to "reveal" are lost."""

    silent: tuple[tuple[int, int], ...] = ()  # address and round; round 0: always

    def ask(self, kind: str, messages: Mapping[int, Message], deadline: float) -> dict[int, Any]:
        self.kinds = [*getattr(self, "kinds", []), kind]
        replies = super().ask(kind, messages, deadline)
        if kind == "reveal":
            for address in list(replies):
                number = messages[address].facts["round"]
                if (address, number) in self.silent or (address, 0) in self.silent:
                    del replies[address]
        return replies


def theta_of(folder: Path, table: dict[str, Any], transport: Any = None, edges: int = EDGES) -> Any:
    _, homes = fleet_of(folder, table, edges)
    carrier = transport or Watching
    made = carrier(homes)
    run = carry_out(folder / "run", made)
    return torch.cat([leaf.reshape(-1) for leaf in run.meta_model.theta.values()]), made, run


def test_the_model_is_that_of_open_sums_up_to_rounding(tmp_path: Path) -> None:
    plain, watched, _ = theta_of(tmp_path / "open", table_of(**OPEN))
    sealed, transport, run = theta_of(tmp_path / "sealed", table_of())
    assert float((plain - sealed).abs().max()) < 1e-6
    assert watched.kinds == ["introduce", "round", "round", "round"]
    assert transport.kinds == ["introduce", "prepare", *["round", "reveal"] * 3]
    for _, reply in transport.received:
        assert {"update", "weight"}.isdisjoint(reply.tensors)  # nothing of a single edge
    assert run.history[-1]["meta_loss"] > 0
    size = 8 * (len(sealed) + 10)
    uploads = [p.size for _, p in transport.received if "round" in p.facts and p.tensors]
    assert max(uploads) < size + 1024
    assert {*transport.received[-1][1].tensors} == set()
    assert run.summary["settings"]["uplink"]["secure_aggregation"] is True


def test_a_lost_edge_is_left_out_of_the_sum(tmp_path: Path) -> None:
    def delivery(address: int, message: Message) -> str:
        return "lost" if (address, message.facts["round"]) == (101, 2) else ""

    def losing(homes: Any) -> Watching:
        return Watching(homes, delivery)

    plain, _, run = theta_of(tmp_path / "open", table_of(**OPEN), losing)
    sealed, _, other = theta_of(tmp_path / "sealed", table_of(), losing)
    assert float((plain - sealed).abs().max()) < 1e-6
    assert [r["edges"] for r in run.history] == [r["edges"] for r in other.history] == [4, 3, 4]


def test_where_other_edges_are_asked_every_time(tmp_path: Path) -> None:
    some = {"participation": {"fraction": 0.7}}
    plain, _, _ = theta_of(tmp_path / "open", table_of(**OPEN, **some), None, 6)
    sealed, transport, run = theta_of(tmp_path / "sealed", table_of(**some), None, 6)
    assert float((plain - sealed).abs().max()) < 1e-6
    assert [record["edges"] for record in run.history] == [4, 4, 4]
    assert transport.kinds.count("prepare") >= 2  # shares are for those who are asked


def test_of_a_late_upload_nobody_gives_the_seed(tmp_path: Path) -> None:
    def losing(homes: Any) -> Watching:
        return Watching(homes, lambda a, p: "late" if (a, p.facts["round"]) == (101, 2) else "")

    _, transport, _ = theta_of(tmp_path / "sealed", table_of(), losing)
    asked = [p for _, p in transport.sent if p.facts.get("round") == 2 and "arrived" in p.facts]
    assert len(asked) == 3
    assert all("edge-2" not in question.facts["arrived"] for question in asked)
    memory = [
        json.loads((transport.homes[address] / "memory" / "run1" / "masks.json").read_text())
        for address in transport.homes
    ]
    assert all(each["newest"][1] >= 4 for each in memory)


@pytest.mark.parametrize("lost", [False, True])
def test_an_edge_lost_between_its_messages_is_counted_all_the_same(
    tmp_path: Path, lost: bool
) -> None:
    five = {"data": {"nodes": 12}}

    def delivery(address: int, message: Message) -> str:
        return "lost" if lost and (address, message.facts["round"]) == (101, 2) else ""

    class Silent(Watching):
        silent = ((102, 2),)

        def __init__(self, homes: Any) -> None:
            super().__init__(homes, delivery)

    edges = 7 if lost else EDGES
    plain, _, _ = theta_of(
        tmp_path / "open", table_of(**OPEN, **five), lambda h: Watching(h, delivery), edges
    )
    sealed, transport, run = theta_of(tmp_path / "sealed", table_of(**five), Silent, edges)
    assert float((plain - sealed).abs().max()) < 1e-6
    assert transport.kinds.count("round") == 3  # nothing is repeated
    assert [record["edges"] for record in run.history] == [edges, edges - lost, edges]


def test_an_edge_that_never_helps_stops_nobody_and_is_left_out(tmp_path: Path) -> None:
    class Silent(Watching):
        silent = ((102, 0),)

    rounds = {"training": {"rounds": 6}}
    _, _, run = theta_of(tmp_path, table_of(**rounds), Silent)
    assert run.summary["status"] == "finished"
    # Counted as long as it sends, then left out: nobody knows what it is up to.
    assert [record["edges"] for record in run.history] == [4, 4, 3, 3, 3, 3]


def test_a_sum_that_cannot_be_opened_is_asked_for_again_without_the_silent(tmp_path: Path) -> None:
    class Silent(Watching):
        silent = ((102, 2), (103, 2))

    plain, _, _ = theta_of(tmp_path / "open", table_of(**OPEN), None, 6)
    sealed, transport, run = theta_of(tmp_path / "sealed", table_of(), Silent, 6)
    assert transport.kinds.count("round") == 4
    assert [record["edges"] for record in run.history] == [6, 4, 6]
    assert "did not help to open the sum" in run.history[1]["note"]
    assert float((plain - sealed).abs().max()) < 1.0
    masked = [
        p.tensors["sealed"]
        for _, p in transport.received
        if p.facts.get("round") == 2 and p.tensors
    ]
    assert len(masked) == 6 + 4
    assert not bool((masked[0] == masked[6]).any())  # no secret serves twice


def test_three_edges_need_each_other(tmp_path: Path) -> None:
    class Silent(Watching):
        silent = ((102, 0),)

    with pytest.raises(FleetError, match="round 1 had too few edges 3 times in a row"):
        theta_of(tmp_path, table_of(), Silent, 3)


def test_a_lie_about_shares_is_found_out_and_costs_nobody_anything(tmp_path: Path) -> None:
    class Lying(Watching):
        def ask(
            self, kind: str, messages: Mapping[int, Message], deadline: float
        ) -> dict[int, Any]:
            replies = super().ask(kind, messages, deadline)
            if kind == "reveal" and 100 in replies:
                replies[100].facts["shares"]["edge-2"] = "1" * 132
            return replies

    plain, _, _ = theta_of(tmp_path / "open", table_of(**OPEN))
    sealed, _, run = theta_of(tmp_path / "sealed", table_of(), Lying)
    assert [record["edges"] for record in run.history] == [4, 3, 3]
    assert float((plain - sealed).abs().max()) < 1.0


def test_an_edge_that_deals_out_nonsense_is_left_out(tmp_path: Path) -> None:
    class Nonsense(Watching):
        def ask(
            self, kind: str, messages: Mapping[int, Message], deadline: float
        ) -> dict[int, Any]:
            replies = super().ask(kind, messages, deadline)
            if kind in ("prepare", "reveal") and 103 in replies:
                replies[103].facts["offer"]["shares"]["edge-1"] = "00" * 160
                replies[103].facts["offer"]["shares"]["edge-2"] = "00" * 160
            return replies

    _, _, run = theta_of(tmp_path, table_of(), Nonsense)
    assert [record["edges"] for record in run.history] == [3, 3, 3]
    assert "are not its own" in run.history[0]["note"]


def one_round(folder: Path) -> tuple[dict[int, Path], dict[int, Message], dict[int, Message]]:
    """Homes of edges that have sent a masked sum, the questions asked, and the answers to these."""
    _, transport, _ = theta_of(folder, table_of(training={"rounds": 1, "evaluate_every": 0}))
    asked = {a: m for a, m in transport.sent if "arrived" in m.facts}
    told = {a: m for a, m in transport.received if "shares" in m.facts}
    return transport.homes, asked, told


def replied(home: Path, kind: str, message: Message) -> Message:
    return Message.decoded(*answer(home, kind, *message.encoded()))


def test_an_occasion_is_opened_once_also_after_a_restart(tmp_path: Path) -> None:
    homes, asked, told = one_round(tmp_path)
    for address, question in asked.items():
        # The same question gets the same answer, which nobody learns from.
        again = replied(homes[address], "reveal", question)
        assert again.facts["shares"] == told[address].facts["shares"]
        # Another, which would open a single upload by differences, gets none; not in this process,
        # nor in one that knows nothing but the edge's folder.
        names = question.facts["arrived"]
        other = [name for name in names if name != names[address - 101]]
        for fewer in ([*other], [*other, "edge-9"], names[:2]):
            refused = replied(
                homes[address], "reveal", Message({**question.facts, "arrived": fewer})
            )
            assert set(refused.facts) == {"refused"}
    code = (
        "import sys, json; from pathlib import Path; from fedmeta.fleet.edge import answer\n"
        "print(answer(Path(sys.argv[1]), 'reveal', sys.argv[2], bytes.fromhex(sys.argv[3]))[0])"
    )
    facts = {**asked[100].facts, "arrived": ["edge-1", "edge-2", "edge-3"]}
    encoded = Message(facts).encoded()
    said = subprocess.run(
        [sys.executable, "-c", code, str(homes[100]), encoded[0], encoded[1].hex()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "another sum of this occasion already" in json.loads(said.stdout)["refused"]


def test_secrets_mask_one_vector_of_one_occasion(tmp_path: Path) -> None:
    homes, asked, _ = one_round(tmp_path)
    memory = homes[100] / "memory" / "run1" / "masks.json"
    assert memory.stat().st_mode & 0o777 == 0o600
    mask = asked[100].facts["mask"]
    part = MaskMemory.open(memory.parent).part(Occasion("run1", 1, mask["serial"], mask["keys"]))
    with pytest.raises(MaskingError, match="masked something else"):
        part.use(b"another vector", part.offers)
    # Nor can an old occasion be begun anew.
    old = Message({**asked[100].facts, "identities": {}, "mask": {**mask, "serial": 0}})
    assert "a newer sum was asked for" in replied(homes[100], "prepare", old).facts["refused"]


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make_authority(folder)
    for number in range(1, EDGES + 1):
        make_node(folder, f"edge-{number}")
    certify_nodes(folder)
    return folder


def with_keys(homes: Mapping[int, Path], certs: Path) -> None:
    for home in homes.values():
        replace(Edge.load(home), certs=str(certs)).save(home)


def signed_fleet(folder: Path, certs: Path, carrier: Any = Watching) -> Any:
    _, homes = fleet_of(folder, table_of(), EDGES)
    with_keys(homes, certs)
    made = carrier(homes)
    return carry_out(folder / "run", made), made


def test_keys_that_node_keys_have_signed(tmp_path: Path, certs: Path) -> None:
    plain, _, _ = theta_of(tmp_path / "open", table_of(**OPEN))
    run, made = signed_fleet(tmp_path / "signed", certs)
    sealed = torch.cat([leaf.reshape(-1) for leaf in run.meta_model.theta.values()])
    assert float((plain - sealed).abs().max()) < 1e-6
    identities = next(m.facts["identities"] for _, m in made.sent if "identities" in m.facts)
    assert {*json.loads(identities["edge-1"])} == {"public", "certificate", "signature"}


@pytest.mark.parametrize("how", ["own", "unsigned", "stranger", "swapped", "other run"])
def test_a_platform_that_puts_its_own_key_in_is_refused(
    tmp_path: Path, certs: Path, how: str
) -> None:
    mine = ExchangeKey.new()
    foreign = tmp_path / "foreign"
    make_authority(foreign)
    make_node(foreign, "edge-2")
    certify_nodes(foreign)

    class Between(Watching):
        def ask(
            self, kind: str, messages: Mapping[int, Message], deadline: float
        ) -> dict[int, Any]:
            if kind == "prepare":
                for message in messages.values():
                    proofs = message.facts["identities"]
                    proof = json.loads(proofs["edge-2"])
                    if how == "own":
                        proof["public"] = mine.public
                    elif how == "unsigned":
                        proof = {"public": mine.public}
                    elif how == "stranger":
                        proof = json.loads(identity(foreign, "edge-2", str(foreign), "run1"))
                    elif how == "swapped":
                        proof = json.loads(proofs["edge-3"])
                    else:
                        home = self.homes[101]
                        proof = json.loads(identity(home, "edge-2", str(certs), "run2"))
                    proofs["edge-2"] = json.dumps(proof)
                    message.facts["mask"]["keys"]["edge-2"] = proof["public"]
            return super().ask(kind, messages, deadline)

    with pytest.raises(FleetError, match="round 1 had too few edges"):
        signed_fleet(tmp_path / "fleet", certs, Between)


def test_an_edge_without_a_certificate_says_what_is_missing(tmp_path: Path, certs: Path) -> None:
    lacking = tmp_path / "certs"
    shutil.copytree(certs, lacking)
    (lacking / "nodes" / "edge-1.crt").unlink()
    _, homes = fleet_of(tmp_path / "fleet", table_of(), EDGES)
    with_keys(homes, lacking)
    with pytest.raises(FleetError, match="cannot prove whose key for masks it has"):
        carry_out(tmp_path / "fleet" / "run", Watching(homes))
    certify_nodes(lacking)  # as `fedmeta certs` does for keys that edges have made themselves
    assert (lacking / "nodes" / "edge-1.crt").exists()
    carry_out(tmp_path / "fleet" / "run", Watching(homes))


def test_a_platform_that_starts_again_opens_nothing_twice(tmp_path: Path) -> None:
    _, homes = fleet_of(tmp_path, table_of(), EDGES)

    class Stops(Watching):
        def ask(
            self, kind: str, messages: Mapping[int, Message], deadline: float
        ) -> dict[int, Any]:
            replies = super().ask(kind, messages, deadline)
            if kind == "reveal" and next(iter(messages.values())).facts["round"] == 2:
                raise KeyboardInterrupt
            return replies

    with pytest.raises(KeyboardInterrupt):
        carry_out(tmp_path / "run", Stops(homes))
    transport = Watching(homes)
    run = carry_out(tmp_path / "run", transport)
    plain, _, _ = theta_of(tmp_path / "open", table_of(**OPEN))
    sealed = torch.cat([leaf.reshape(-1) for leaf in run.meta_model.theta.values()])
    assert float((plain - sealed).abs().max()) < 1e-6
    assert "prepare" in transport.kinds  # with secrets of their own


@pytest.mark.parametrize("dp", ["local", "central"])
def test_with_noise(tmp_path: Path, dp: str) -> None:
    private = {"uplink": {"privacy": {"dp": dp, "noise": 0.01, "clip": 1.0}}}
    pytest.importorskip("dp_accounting", reason="the extra dp is not installed")
    _, _, run = theta_of(tmp_path, table_of(**private))
    promised = run.summary["settings"]["uplink"]["promise"]["epsilon"]
    assert promised > 0
    assert run.summary["status"] == "finished"


def test_a_run_that_diverges_says_so(tmp_path: Path) -> None:
    wild = {"algorithms": {"admm-fedmeta": {"penalty": 1e-30}}}
    with pytest.raises(DivergedError):
        theta_of(tmp_path, table_of(**wild))


def test_too_few_edges_and_nobody_to_hide_from(tmp_path: Path) -> None:
    fleet_of(tmp_path / "two", table_of(), 2)
    with pytest.raises(SettingError, match="a round asks 2 of 2 edges"):
        carry_out(tmp_path / "two" / "run", InProcessTransport({}))
    half = table_of(participation={"fraction": 0.5})
    fleet_of(tmp_path / "half", half, EDGES)
    with pytest.raises(SettingError, match="a round asks 2 of 4 edges"):
        carry_out(tmp_path / "half" / "run", InProcessTransport({}))
    fisher = table_of(importance="fisher")
    fleet_of(tmp_path / "fisher", fisher, EDGES)
    with pytest.raises(SettingError, match="which no mask hides"):
        carry_out(tmp_path / "fisher" / "run", InProcessTransport({}))
    settings = RunSpec.from_dict(table_of())
    federation, _ = fleet_of(tmp_path / "alone", table_of(), EDGES)
    with pytest.raises(SettingError, match="no platform to hide from"):
        train_run(RunRequest(settings, federation))
