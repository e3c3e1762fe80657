"""What secure aggregation costs an edge and the platform, in CPU seconds and bytes of a round.

python -m benchmarks.secure_sums
"""

from __future__ import annotations

import json
import time

import torch

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core.storage import payload_bytes
from fedmeta.uplink.exchange_keys import ExchangeKey
from fedmeta.uplink.masking import Occasion, Secrets, answered, masked, offer, opened
from fedmeta.uplink.whole_numbers import Content, from_whole, to_whole

PARAMETERS = (4_810, 99_985, 1_000_000)
EDGES = (3, 10, 100)


def costs(parameters: int, edges: int) -> list[str]:
    """A line of the table: one edge of ten (at least one) is lost before it has sent its sum."""
    keys = {f"edge-{i:03d}": ExchangeKey.new() for i in range(edges)}
    names, own = list(keys), {name: Secrets.new() for name in keys}
    occasion = Occasion("benchmark", 1, 1, {name: key.public for name, key in keys.items()})
    update = {"theta": torch.ones(parameters)}
    one = Contribution(update, torch.tensor(1.0), {"loss": torch.tensor(1.0)})
    content = Content(update, ("loss",))
    arrived = names if edges == EDGES[0] else names[: -max(1, edges // 10)]
    first = names[0]
    start = time.process_time()
    offer(own[first], first, keys[first], occasion)
    dealing = time.process_time() - start
    offers = {name: offer(own[name], name, keys[name], occasion) for name in names}
    mine = {name: each.to(first) for name, each in offers.items()}
    start = time.process_time()
    sent = masked(to_whole(one, content), first, own[first], keys[first], occasion, mine)
    masking = time.process_time() - start
    start = time.process_time()
    told = answered(arrived, first, keys[first], occasion, mine)
    answering = time.process_time() - start
    answers = {
        name: answered(
            arrived, name, keys[name], occasion, {o: e.to(name) for o, e in offers.items()}
        )
        for name in arrived
    }
    start = time.process_time()
    found = opened(answers, arrived, offers, occasion, len(sent))
    assert found.mask is not None
    from_whole(sent - found.mask, content)
    opening = time.process_time() - start
    plain = payload_bytes({**update, "weight": one.weight, **one.metrics})
    more = len(json.dumps(told)) + len(json.dumps(offers[first]._asdict()))
    cells = [f"{parameters:,}", str(edges), str(len(arrived)), f"{dealing + masking:.3f}"]
    cells += [f"{answering:.3f}", f"{opening:.3f}", f"{plain:,}"]
    return [*cells, f"{payload_bytes({'sealed': sent}) + more:,}"]


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)  # CPU time of one core
    columns = ["parameters", "edges asked", "arrived", "edge masks, CPU s", "edge reveals, CPU s"]
    columns += ["platform opens, CPU s", "bytes up, open", "bytes up, masked"]
    print(f"| {' | '.join(columns)} |\n| {' | '.join('---' for _ in columns)} |")
    for parameters in PARAMETERS:
        for edges in EDGES:
            print(f"| {' | '.join(costs(parameters, edges))} |", flush=True)


if __name__ == "__main__":
    main()
