"""Robust sums: a minority moves them little; one implementation for nodes here and edges there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core.errors import SettingError
from fedmeta.fleet.audit import FILE, read_audit
from fedmeta.fleet.edge_table import read_edges
from fedmeta.fleet.plan import Plan, carry_out
from fedmeta.fleet.transport import EDGES, FleetSettings
from fedmeta.training.train import RunRequest, train_run
from fedmeta.uplink.guard import Guard, Reply, judge
from fedmeta.uplink.robust_sum import RobustSum
from fedmeta.uplink.uplink import Uplink
from fleet.test_in_process import local_theta, same, table_of
from fleet.transports import InProcessTransport, fleet_of


def rows(*values: list[float], weights: list[float] | None = None) -> tuple[Contribution, Any]:
    """Contributions whose v/w are these values."""
    each = torch.tensor(values, dtype=torch.float64)
    shares = torch.tensor(weights or [1 / len(values)] * len(values), dtype=torch.float64)
    v = each * shares.unsqueeze(1)
    return Contribution({"a": v, "b": v[:, 0]}, shares, {"meta_loss": v[:, 0]}), shares


@given(st.lists(st.floats(-1, 1), min_size=7, max_size=7), st.floats(-1e9, 1e9))
def test_what_three_of_ten_send_stays_within_what_the_honest_send(
    honest: list[float], lie: float
) -> None:
    together, shares = rows(*[[value] for value in honest], *[[lie]] * 3)
    for method in ("trimmed-mean", "median"):
        total = RobustSum(method).added(together, shares)  # type: ignore[arg-type]
        for found in (total.update["a"], total.update["b"], total.metrics["meta_loss"]):
            assert min(honest) - 1e-9 <= float(found) <= max(honest) + 1e-9


def test_a_claim_to_samples_gives_no_further_say() -> None:
    plain, shares = rows([1.0], [2.0], [3.0], [4.0], [90.0])
    heavy, more = rows([1.0], [2.0], [3.0], [4.0], [90.0], weights=[0.01, 0.01, 0.01, 0.01, 0.96])
    for method in ("trimmed-mean", "median"):
        robust = RobustSum(method)  # type: ignore[arg-type]
        one, other = robust.added(plain, shares), robust.added(heavy, more)
        assert float(one.update["a"]) == pytest.approx(float(other.update["a"]))


def test_the_refused_are_no_zeros() -> None:
    together, shares = rows([5.0], [5.0], [5.0], [7.0])
    refused = together._replace(
        update={name: leaf.clone() for name, leaf in together.update.items()},
        weight=together.weight * torch.tensor([1.0, 0.0, 0.0, 1.0]),
    )
    refused.update["a"][1:3] = 0
    total = RobustSum("median").added(refused, shares)
    assert float(total.update["a"]) == pytest.approx(0.5 * 6.0)  # half of the weight is left


def test_krum_leaves_out_who_is_far_from_all_others() -> None:
    honest = [[1.0, 1.1], [0.9, 1.0], [1.0, 0.9], [1.1, 1.0], [1.0, 1.0], [0.9, 0.9], [1.1, 1.1]]
    together, shares = rows(*honest, *[[-1.0, -1.0]] * 2, [60.0, 0.0])
    everyone = torch.ones(10, dtype=torch.bool)
    assert (
        RobustSum("krum").selected(together, shares, everyone).tolist() == [True] * 7 + [False] * 3
    )
    nobody_far = RobustSum("sum").selected(together, shares, everyone)
    assert nobody_far.all()


def test_krum_leaves_out_no_more_than_its_share_with_whom_the_guard_refused() -> None:
    values = [[1.0], [1.1], [0.9], [1.0], [1.2], [0.8], [3.0], [1e6], [-1e6], [2e6]]
    together, shares = rows(*values)
    left = torch.tensor([True] * 7 + [False] * 3)
    assert RobustSum("krum").selected(together, shares, left).tolist() == left.tolist()
    seven, of_seven = rows(*values[:7])
    everyone = torch.ones(7, dtype=torch.bool)
    assert RobustSum("krum").selected(seven, of_seven, everyone, refused=3).all()
    two = RobustSum("krum").selected(seven, of_seven, everyone)  # of seven, two may lie
    assert (int(two.sum()), bool(two[6])) == (5, False)


@pytest.mark.parametrize("method", ["trimmed-mean", "median", "krum"])
def test_a_fleet_adds_up_as_the_local_engine_does(tmp_path: Path, method: str) -> None:
    """With a node per edge both hold the same contributions against each other."""
    own = {
        "data": {"nodes": 6, "target_share": 0.0},
        "uplink": {"robust": {"method": method}, "guard": {"outliers": "keep"}},
        "algorithms": {"admm-fedmeta": {"penalty": 50.0}},
    }
    table = merged([table_of(rounds=4), own])
    federation, homes = fleet_of(tmp_path, table, edges=6, quorum=0.3)
    run = carry_out(tmp_path / "run", InProcessTransport(homes))
    alone = local_theta(table, federation, 6)
    for name, leaf in alone.items():
        assert torch.allclose(leaf, run.meta_model.theta[name], atol=1e-6)
    plain = local_theta(merged([table, {"uplink": {"robust": {"method": "sum"}}}]), federation, 6)
    assert not same(plain, alone)


def test_the_guard_of_edges_is_on_and_leaves_an_honest_fleet_alone(tmp_path: Path) -> None:
    """Six edges of eight nodes each: nobody is refused, and the bits are the local engine's."""
    own = {"data": {"name": "digits", "nodes": 48, "target_share": 0.0}, "model": {"hidden": [8]}}
    table = {**table_of(rounds=4), **own}
    federation, homes = fleet_of(tmp_path, table, edges=6)
    run = carry_out(tmp_path / "run", InProcessTransport(homes))
    assert [record["edges"] for record in run.history] == [6] * 4
    assert same(run.meta_model.theta, local_theta(table, federation, 8))

    class Flipped(InProcessTransport):
        def ask(self, kind: str, messages: Any, deadline: float) -> dict[int, Any]:
            replies = super().ask(kind, messages, deadline)
            if kind == "round":
                tensors = {**replies[103].tensors, "update": -replies[103].tensors["update"]}
                replies[103] = replies[103]._replace(tensors=tensors)
            return replies

    _, homes = fleet_of(tmp_path / "b", table, edges=6)
    run = carry_out(tmp_path / "b/run", Flipped(homes))
    assert [record["edges"] for record in run.history] == [5] * 4
    assert "edge-4 was not counted: its direction is opposite" in run.history[0]["note"]
    assert [r.name for r in read_edges(tmp_path / "b/run/fleet") if r.opposite] == ["edge-4"]
    why = [line["why"] for line in read_audit(tmp_path / "b/run/fleet") if "why" in line]
    assert len(why) == 4
    assert (tmp_path / "b/run/fleet" / FILE).stat().st_mode & 0o777 == 0o600


def test_who_was_opposite_stays_out_when_nobody_agrees_any_more(tmp_path: Path) -> None:
    """Also over a restart of the platform: the verdict lies in the table of edges."""
    own = {"data": {"name": "digits", "nodes": 48, "target_share": 0.0}, "model": {"hidden": [8]}}
    _, homes = fleet_of(tmp_path, {**table_of(rounds=2), **own}, edges=6)

    class Liar(InProcessTransport):
        def ask(self, kind: str, messages: Any, deadline: float) -> dict[int, Any]:
            replies = super().ask(kind, messages, deadline)
            if kind != "round":
                return replies
            first = min(message.facts["round"] for message in messages.values()) == 1
            for address, reply in replies.items():  # later everybody goes a way of its own
                update = reply.tensors["update"]
                kept = torch.arange(len(update)) % len(homes) == address - min(homes)
                sent = update if first else update * kept
                sign = -1 if first and address == 103 else 1
                replies[address] = reply._replace(tensors={**reply.tensors, "update": sign * sent})
            return replies

    run = carry_out(tmp_path / "run", Liar(homes))
    assert [record["edges"] for record in run.history] == [5, 5]
    assert [r.name for r in read_edges(tmp_path / "run/fleet") if r.opposite] == ["edge-4"]
    plan = Plan.load(tmp_path / "run")
    longer = merged([plan.table, {"training": {"rounds": 4}}])
    replace(plan, table=longer).save(tmp_path / "run")
    run = carry_out(tmp_path / "run", Liar(homes))
    assert [record["edges"] for record in run.history][2:] == [5, 5]


def test_whom_the_fleet_judges_by() -> None:
    fleet, central = (
        FleetSettings(),
        RunSpec.from_dict({"uplink": {"privacy": {"dp": "central", "noise": 1.0}}}),
    )
    assert fleet.edge_guard({}, Uplink()) == EDGES
    assert fleet.edge_guard({}, Uplink(secure_aggregation=True)) == Guard()
    assert fleet.edge_guard({}, central.uplink) == Guard()
    given = {"uplink": {"guard": {"outliers": "clip"}}}
    assert fleet.edge_guard(given, Uplink(Guard("clip"))) == Guard("clip")


def test_a_run_of_before_goes_on_unjudged(tmp_path: Path) -> None:
    Plan("run1", table_of(), FleetSettings()).save(tmp_path)
    assert Plan.load(tmp_path).fleet == FleetSettings()
    file = tmp_path / "fleet/plan.json"
    text = file.read_text().replace('"guard": null', '"strikes": 3')
    file.write_text(text.replace('"max_weight": 4.0,', ""))
    older = Plan.load(tmp_path).fleet
    assert older.guard == Guard("keep")
    assert older.max_weight > 1e6


def test_who_sends_the_other_way_is_refused_only_among_enough() -> None:
    def reply(value: float) -> Reply:
        one = Contribution({"a": torch.tensor([value, value])}, torch.tensor(0.2), {})
        return Reply(one, 0.2, 0.2)

    theta = {"a": torch.zeros(2)}
    five = {"a": reply(1.0), "b": reply(1.2), "c": reply(0.8), "d": reply(0.9), "e": reply(-1.0)}
    assert list(judge(EDGES, five, theta).refused) == ["e"]
    assert judge(Guard("reject"), five, theta).refused == {}
    four = {name: five[name] for name in "bcde"}
    assert judge(EDGES, four, theta).refused == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"uplink": {"robust": {"method": "median"}, "secure_aggregation": True}},
        {"uplink": {"robust": {"method": "mode"}}},
        {"uplink": {"robust": {"method": "krum", "share": 0.5}}},
    ],
)
def test_what_does_not_go_together(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="robust"):
        RunSpec.from_dict(wrong)


def test_a_median_of_changes_cannot_be_taken_back(tmp_path: Path) -> None:
    own = {"uplink": {"robust": {"method": "median"}}}
    stale = {"algorithms": {"admm-fedmeta": {"penalty": 50.0, "rule": "stale"}}}
    table = merged([table_of(), own, stale])
    federation, _ = fleet_of(tmp_path, table_of(), edges=2)
    with pytest.raises(SettingError, match="rule is 'stale'"):
        train_run(RunRequest(RunSpec.from_dict(table), federation))
