"""An edge that keeps count of what it was promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.fleet.edge import answer
from fedmeta.fleet.edge_promise import PromiseError, spend
from fedmeta.fleet.message import Message
from fedmeta.fleet.plan import carry_out
from fleet.transports import InProcessTransport, fleet_of

pytest.importorskip("cryptography")
pytest.importorskip("dp_accounting")


def table_of(**tables: Any) -> dict[str, Any]:
    base = {
        "data": {"name": "sinusoid", "nodes": 6, "samples": [6, 9], "target_share": 0.2},
        "model": {"hidden": [4]},
        "algorithms": {"admm-fedmeta": {"penalty": 50.0}},
        "training": {"rounds": 2, "evaluate_every": 0},
        "execution": {"threads": 1, "path": "batched"},
        "uplink": {"privacy": {"dp": "local", "epsilon": 8.0}},
    }
    return merged([base, tables])


def test_no_upload_beyond_those_that_were_promised(tmp_path: Path) -> None:
    _, homes = fleet_of(tmp_path, table_of(), 2)
    transport = InProcessTransport(homes)
    run = carry_out(tmp_path / "run", transport)
    assert run.summary["settings"]["uplink"]["promise"]["epsilon"] == pytest.approx(8, rel=0.01)
    last = [message for address, message in transport.sent if address == 100][-1]
    replies = [message for address, message in transport.received if address == 100]

    def asked(facts: dict[str, Any]) -> Message:
        message = Message({**last.facts, **facts}, last.tensors)
        return Message.decoded(*answer(homes[100], "round", *message.encoded()))

    # The same message gets the same reply: with the same noise, so nothing more is learned.
    again = asked({})
    assert (again.tensors["update"] == replies[-1].tensors["update"]).all()
    assert "all 2 uploads" in asked({"round": 3, "counted": 2}).facts["refused"]
    table = merged([last.facts["table"], {"training": {"rounds": 50}}])
    more = asked({"round": 3, "counted": 2, "table": table}).facts["refused"]
    assert "other settings of privacy" in more
    table = merged([last.facts["table"], {"uplink": {"privacy": {"epsilon": 800.0}}}])
    less = asked({"round": 3, "counted": 2, "table": table}).facts["refused"]
    assert "other settings of privacy" in less
    table = {**last.facts["table"], "uplink": {}}
    none = asked({"round": 3, "counted": 2, "table": table}).facts["refused"]
    assert "other settings of privacy" in none


def test_without_a_promise_nothing_is_counted(tmp_path: Path) -> None:
    spend(tmp_path, RunSpec.from_dict({**table_of(), "uplink": {}}))
    assert list(tmp_path.iterdir()) == []
    promised = RunSpec.from_dict(table_of())
    spend(tmp_path, promised)
    assert (tmp_path / "promise.json").stat().st_mode & 0o777 == 0o600
    spend(tmp_path, promised)
    with pytest.raises(PromiseError):
        spend(tmp_path, promised)
