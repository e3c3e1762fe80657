"""Fleets without processes: edges that live in folders, and a transport that loses messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmeta.config.spec import RunSpec
from fedmeta.data import Federation, load
from fedmeta.engine.ranks import Ranks
from fedmeta.fleet.edge import Edge, answer
from fedmeta.fleet.edge_job import KeptJob
from fedmeta.fleet.message import Message
from fedmeta.fleet.plan import Plan
from fedmeta.fleet.shards import EdgeData, save_shard
from fedmeta.fleet.transport import FleetSettings

Delivery = Callable[[int, Message], str]
"""Of a round's message to an address: "" (it arrives), "lost", "late" (the reply is lost), …"""


class InProcessTransport:
    """Calls the edges in this process, and passes every message through bytes as a wire would."""

    def __init__(self, homes: Mapping[int, Path], delivery: Delivery = lambda *_: "") -> None:
        self.homes, self.delivery = dict(homes), delivery
        self.kept = {address: KeptJob() for address in homes}  # of the edges' workers
        self.names: dict[int, str] = {}  # under which keys were let in
        self.sent: list[tuple[int, Message]] = []
        self.received: list[tuple[int, Message]] = []

    def connected(self) -> dict[int, str]:
        return {address: self.names.get(address, "") for address in self.homes}

    def ask(self, kind: str, messages: Mapping[int, Message], deadline: float) -> dict[int, Any]:
        replies: dict[int, Any] = {}
        for address, message in messages.items():
            delivery = self.delivery(address, message) if kind == "round" else ""
            if delivery == "lost" or address not in self.homes:
                continue
            self.sent.append((address, message))
            kept = self.kept.setdefault(address, KeptJob())
            reply = Message.decoded(*answer(self.homes[address], kind, *message.encoded(), kept))
            self.received.append((address, reply))
            if delivery != "late":
                replies[address] = reply
        return replies


def fleet_of(
    folder: Path, table: dict[str, Any], edges: int, **settings: Any
) -> tuple[Federation, dict[int, Path]]:
    """Plan a run in `folder`/run and deal its source nodes out to edges."""
    built = RunSpec.from_dict(table)
    federation = load(built.data, built.training.seed)
    homes = {}
    for number in range(edges):
        share = Ranks(number, edges).share(len(federation.sources))
        home = folder / f"edge-{number + 1}"
        home.mkdir(parents=True)
        shard = home / "shard.safetensors"
        save_shard(shard, federation, federation.sources[share.start : share.stop])
        Edge(f"edge-{number + 1}", EdgeData(str(shard))).save(home)
        homes[100 + number] = home
    targets = None
    if federation.targets:
        save_shard(folder / "targets.safetensors", federation, federation.targets)
        targets = EdgeData(str(folder / "targets.safetensors"))
    fleet = replace(FleetSettings(edges=edges, deadline=0.2), **settings)
    Plan("run1", table, fleet, targets).save(folder / "run")
    return federation, homes
