"""What a round of a fleet costs beyond Flower itself.

    python benchmarks/fleet.py [--rounds 10] [--edges 2] [--model 100000]

In one run, with the same SuperLink and SuperNodes and in turns: rounds of ours, and rounds of a
strategy that does nothing but move the same bytes, looking for replies as often as ours does. Needs
fedmeta[flower] and some quiet cores. Prints seconds per round (median, and the middle half) and
bytes per upload.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core.run_folder import RunFolder
from fedmeta.data import load
from fedmeta.engine.ranks import Ranks
from fedmeta.fleet import flower_commands as programs
from fedmeta.fleet.app_bundle import write_app
from fedmeta.fleet.edge import Edge
from fedmeta.fleet.edge_table import read_edges
from fedmeta.fleet.launch import APP, Host, run_to_end, running_edge, running_platform
from fedmeta.fleet.plan import FOLDER, Plan
from fedmeta.fleet.shards import EdgeData, save_shard
from fedmeta.fleet.transport import FleetSettings

_LAPS = 2
_MANIFEST = """\
[project]
name = "nothing"
version = "1.0.0"
description = "Moves bytes."
dependencies = ["flwr=={flwr}"]

[tool.flwr.app]
publisher = "fedmeta"

[tool.flwr.app.components]
serverapp = "nothing.server:app"
clientapp = "nothing.client:app"

[tool.flwr.app.config]
out = ""
rounds = 0
edges = 0
down = 0
up = 0
"""
_SERVER = """\
import json, time
from pathlib import Path
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    say = context.run_config
    while len(nodes := list(grid.get_node_ids())) < say["edges"]:
        time.sleep(0.3)
    times = []
    for number in range(say["rounds"]):
        start = time.perf_counter()
        waiting = set()
        for node in nodes:
            data = number.to_bytes(8, "big") + bytes(say["down"] - 8)
            records = RecordDict({
                "a": ArrayRecord({"a": Array("uint8", (say["down"],), "bytes", data)}),
                "c": ConfigRecord({"up": say["up"]}),
            })
            message = Message(records, dst_node_id=node, message_type="train")
            waiting |= set(grid.push_messages([message]))
        while waiting:
            for reply in grid.pull_messages(list(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
            if waiting:
                time.sleep(0.3)
        times.append(time.perf_counter() - start)
    Path(say["out"]).write_text(json.dumps(times))
"""
_CLIENT = """\
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    size = message.content["c"]["up"]
    data = message.content["a"]["a"].data[:8] + bytes(size - 8)
    records = RecordDict({"a": ArrayRecord({"a": Array("uint8", (size,), "bytes", data)})})
    return Message(records, reply_to=message)
"""


def main() -> None:
    """Measure both and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--edges", type=int, default=2)
    parser.add_argument("--model", type=int, default=100_000, help="parameters, about")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedmeta-bench-") as name:
        measure(Path(name), given.rounds, given.edges, given.model)


def measure(folder: Path, rounds: int, edges: int, parameters: int) -> None:
    """Ours and nothing, in turns, with the same programs."""
    homes = planned(folder, rounds, edges, parameters)
    host = Host(folder / "run", "127.0.0.1", programs.free_port(), None)
    with ExitStack() as stack:
        link = stack.enter_context(running_platform(host, []))
        for home in homes:
            stack.enter_context(running_edge(home.name, home, f"127.0.0.1:{host.port}", None))
        ours, nothing = list[float](), list[float]()
        for lap in range(1, _LAPS + 1):  # in turns: a machine is not always equally busy
            plan = Plan.load(host.folder)
            longer = merged([plan.table, {"training": {"rounds": lap * rounds}}])
            replace(plan, table=longer).save(host.folder)
            run_to_end(host, link, [])
            history = RunFolder.open(host.folder).history()[-rounds:]
            ours += [record["seconds"] for record in history[1:]]
            rows = read_edges(host.place)
            down, up = rows[0].bytes_down // rows[0].rounds, rows[0].bytes_up // rows[0].rounds
            nothing += moved(folder / f"lap-{lap}", host, rounds, edges, down, up)[1:]
    theta = sum(leaf.numel() for leaf in _theta(folder / "run").values())
    print(f"{edges} edges, {rounds} rounds, {theta} parameters, flwr {version('flwr')}")
    print(f"bytes per upload {up}, of which the model's numbers {4 * theta}: {up - 4 * theta} more")
    for label, times in (("ours", ours), ("nothing, same bytes", nothing)):
        low, middle, high = statistics.quantiles(times, n=4)
        print(f"{label:20s} {middle:.2f} s a round (middle half {low:.2f} to {high:.2f})")
    work = max(row.seconds for row in rows)
    print(f"an edge's own work in the last round {work:.2f} s: what its nodes compute is in ours")
    ratio = statistics.median(ours) / statistics.median(nothing)
    print(f"overhead {100 * (ratio - 1):+.0f} %")


def planned(folder: Path, rounds: int, edges: int, parameters: int) -> list[Path]:
    """A run on digits with a perceptron of about that many parameters, and the edges' folders."""
    table: dict[str, Any] = {
        "data": {"name": "digits", "nodes": 50},
        "model": {"name": "mlp", "hidden": [max(1, parameters // 75)]},
        "training": {"rounds": rounds, "evaluate_every": 0},
        "inner": {"scope": "all"},
        "execution": {"threads": 1},
    }
    settings = RunSpec.from_dict(table)
    federation = load(settings.data_settings, 0)
    homes = []
    for number in range(edges):
        share = Ranks(number, edges).share(len(federation.sources))
        home = folder / f"edge-{number + 1}"
        Edge(home.name, EdgeData(str(home / "shard.safetensors"))).save(home)
        save_shard(
            home / "shard.safetensors", federation, federation.sources[share.start : share.stop]
        )
        homes.append(home)
    moved_table = write_app(folder / "run" / FOLDER / APP, table)
    Plan("bench", moved_table, FleetSettings(edges, authenticated=False)).save(folder / "run")
    return homes


def moved(folder: Path, host: Host, rounds: int, edges: int, down: int, up: int) -> list[float]:
    """Seconds of rounds that move so many bytes and do nothing."""
    app, out = folder / "nothing", folder / "nothing.json"
    (app / "nothing").mkdir(parents=True)
    (app / "pyproject.toml").write_text(_MANIFEST.format(flwr=version("flwr")))
    for name, text in (("__init__", ""), ("server", _SERVER), ("client", _CLIENT)):
        (app / "nothing" / f"{name}.py").write_text(text)
    config = f'out="{out}" rounds={rounds} edges={edges} down={down} up={up}'
    programs.finished(["flwr", "run", str(app), programs.LINK, "--run-config", config], host.home)
    while not out.exists():
        time.sleep(0.5)
    times: list[float] = json.loads(out.read_text())
    return times


def _theta(run: Path) -> dict[str, Any]:
    from fedmeta.models.meta_model import load_theta

    return load_theta(run)


if __name__ == "__main__":
    main()
