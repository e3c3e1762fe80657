"""Secure aggregation between platform and edges in one process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core.errors import DivergedError, SettingError
from fedmeta.fleet.message import Message
from fedmeta.fleet.plan import carry_out
from fedmeta.fleet.transport import FleetError
from fedmeta.training.train import RunRequest, train_run
from fleet.transports import InProcessTransport, fleet_of

pytest.importorskip("flwr", reason="keys are made by Flower's helpers")

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


OPEN = {"uplink": {"secure_aggregation": False}}


class Watching(InProcessTransport):
    """Counts messages by kind; some answers to "reveal" are lost."""

    silent: tuple[tuple[int, int, int], ...] = ()  # address, round, attempt

    def ask(self, kind: str, messages: Mapping[int, Message], deadline: float) -> dict[int, Any]:
        self.kinds = [*getattr(self, "kinds", []), kind]
        replies = super().ask(kind, messages, deadline)
        if kind == "reveal":
            for address, number, attempt in self.silent:
                facts: dict[str, Any] = messages[address].facts
                if facts["round"] == number and facts["mask"]["attempt"] == attempt:
                    del replies[address]
        return replies


def theta_of(folder: Path, table: dict[str, Any], transport: Any = None, **settings: Any) -> Any:
    _, homes = fleet_of(folder, table, EDGES, **settings)
    carrier = transport or Watching
    made = carrier(homes)
    run = carry_out(folder / "run", made)
    return torch.cat([leaf.reshape(-1) for leaf in run.meta_model.theta.values()]), made, run


def test_the_model_is_that_of_open_sums_up_to_rounding(tmp_path: Path) -> None:
    plain, watched, _ = theta_of(tmp_path / "open", table_of(**OPEN))
    sealed, transport, run = theta_of(tmp_path / "sealed", table_of())
    assert float((plain - sealed).abs().max()) < 1e-6
    assert watched.kinds == ["introduce", "round", "round", "round"]
    assert transport.kinds == ["introduce", *["round", "reveal"] * 3]
    for _, reply in transport.received:
        assert {"update", "weight"}.isdisjoint(reply.tensors)  # nothing of a single edge
    assert run.history[-1]["meta_loss"] > 0
    size = 8 * (len(sealed) + 10)
    uploads = [p.size for _, p in transport.received if "round" in p.facts and p.tensors]
    assert max(uploads) < size + 1024
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


def test_a_late_upload_stays_closed(tmp_path: Path) -> None:
    def losing(homes: Any) -> Watching:
        return Watching(homes, lambda a, p: "late" if (a, p.facts["round"]) == (101, 2) else "")

    _, transport, _ = theta_of(tmp_path / "sealed", table_of(), losing)
    revealed = {
        name
        for _, reply in transport.received
        if reply.facts.get("round") == 2 and "seeds" in reply.facts
        for name in [reply.facts["name"]]
    }
    assert "edge-2" not in revealed  # its own seed is with itself


def test_a_round_whose_seeds_do_not_come_is_asked_again_with_others(tmp_path: Path) -> None:
    class Silent(Watching):
        silent = ((102, 2, 0),)

    plain, _, _ = theta_of(tmp_path / "open", table_of(**OPEN))
    sealed, transport, run = theta_of(tmp_path / "sealed", table_of(), Silent)
    assert float((plain - sealed).abs().max()) < 1e-6
    assert transport.kinds.count("round") == 4
    assert "did not reveal its seeds" in run.history[1]["note"]
    masked = [
        p.tensors["sealed"]
        for _, p in transport.received
        if p.facts.get("round") == 2 and p.tensors
    ]
    assert len(masked) == 2 * EDGES
    assert not bool((masked[0] == masked[EDGES]).any())  # no seed serves twice


def test_a_sum_that_cannot_be_opened_stops_the_run(tmp_path: Path) -> None:
    class Silent(Watching):
        silent = tuple((102, 2, attempt) for attempt in range(3))

    with pytest.raises(FleetError, match="round 2 had too few edges 3 times in a row"):
        theta_of(tmp_path, table_of(), Silent)


def test_a_lie_about_seeds_is_noticed(tmp_path: Path) -> None:
    class Lying(Watching):
        def ask(
            self, kind: str, messages: Mapping[int, Message], deadline: float
        ) -> dict[int, Any]:
            replies = super().ask(kind, messages, deadline)
            if kind == "reveal":
                replies[100].facts["seeds"]["edge-1"] = "0" * 64
            return replies

    with pytest.raises(FleetError, match="the sum of all edges cannot be"):
        theta_of(tmp_path, table_of(), Lying)


@pytest.mark.parametrize("dp", ["local", "central"])
def test_with_noise(tmp_path: Path, dp: str) -> None:
    private = {"uplink": {"privacy": {"dp": dp, "noise": 0.01, "clip": 1.0}}}
    pytest.importorskip("dp_accounting", reason="the extra dp is not installed")
    _, _, run = theta_of(tmp_path, table_of(**private))
    promised = run.summary["settings"]["uplink"]["promise"]["epsilon"]
    assert promised > 0 if dp == "central" else promised is None
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
