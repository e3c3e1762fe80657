"""What secure aggregation costs an edge and the platform, in CPU seconds and bytes of a round.

python -m benchmarks.secure_sums
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core.storage import payload_bytes
from fedmeta.uplink.masking import (
    Content,
    MaskContext,
    MaskingKey,
    from_whole,
    mask_of,
    masked,
    revealed,
    to_whole,
)

PARAMETERS = (4_810, 99_985, 1_000_000)
EDGES = (3, 10, 100)


def costs(parameters: int, edges: int, home: Path) -> list[str]:
    """A line of the table: one edge of ten (at least one) is lost between its two messages."""
    secrets = {f"edge-{i:03d}": MaskingKey.open(home / f"{i}.key") for i in range(edges)}
    keys = {name: one.public for name, one in secrets.items()}
    context = MaskContext("benchmark", 1, 1, 0, keys)
    update = {"theta": torch.ones(parameters)}
    one = Contribution(update, torch.tensor(1.0), {"loss": torch.tensor(1.0)})
    content = Content(update, ("loss",))
    names = list(secrets)
    arrived = names if edges == EDGES[0] else names[: -max(1, edges // 10)]
    start = time.process_time()
    sent = masked(to_whole(one, content, edges), names[0], secrets[names[0]], context)
    sealed = time.process_time() - start
    start = time.process_time()
    told = revealed(arrived, names[0], secrets[names[0]], context)
    revealing = time.process_time() - start
    seeds = {name: revealed(arrived, name, secrets[name], context) for name in arrived}
    start = time.process_time()
    from_whole(sent - mask_of(seeds, len(sent)), content)
    opening = time.process_time() - start
    plain = payload_bytes({**update, "weight": one.weight, **one.metrics})
    more = sum(len(name) + len(seed) + 6 for name, seed in told.items())
    cells = [f"{parameters:,}", str(edges), str(len(arrived)), f"{sealed:.3f}"]
    cells += [f"{revealing:.3f}", f"{opening:.3f}", f"{plain:,}"]
    return [*cells, f"{payload_bytes({'sealed': sent}) + more:,}"]


def main() -> None:
    """Print the table."""
    columns = ["parameters", "edges asked", "arrived", "edge masks, s", "edge reveals, s"]
    columns += ["platform opens, s", "bytes up, open", "bytes up, masked"]
    print(f"| {' | '.join(columns)} |\n| {' | '.join('---' for _ in columns)} |")
    with tempfile.TemporaryDirectory() as home:
        for parameters in PARAMETERS:
            for edges in EDGES:
                print(f"| {' | '.join(costs(parameters, edges, Path(home)))} |", flush=True)


if __name__ == "__main__":
    main()
