"""A fleet for trying, all of it on this machine: keys, shards of a federation, and processes.

RUN-edges/certs            keys of platform and edges
RUN-edges/edge-1/ …        an edge each: its shard, and what it must remember
RUN-edges/targets.safetensors
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from fedmeta.config.toml_files import Table
from fedmeta.core.errors import RunFolderError, SettingError
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.storage import private_folder
from fedmeta.core.user_code import refuse_code
from fedmeta.data.federation import Federation
from fedmeta.engine.ranks import Ranks
from fedmeta.fleet import flower_commands as programs
from fedmeta.fleet.app_bundle import shipped, write_app
from fedmeta.fleet.certificates import certify_nodes, make_authority, make_node, make_server
from fedmeta.fleet.edge import Edge
from fedmeta.fleet.launch import APP, Host, lasting_edge, run_to_end, running_platform
from fedmeta.fleet.plan import FOLDER, Plan
from fedmeta.fleet.shards import EdgeData, save_shard
from fedmeta.fleet.transport import FleetSettings
from fedmeta.training.callbacks import Callback


def new_plan(folder: Path, table: Table, fleet: FleetSettings, targets: EdgeData | None) -> None:
    """Write the plan of a new run (see `Plan`) and its app."""
    if (folder / FOLDER).exists():
        raise RunFolderError(
            f"{folder} holds a run already", "continue it with --resume, or choose another --out"
        )
    RunFolder(folder).check_free()
    moved = write_app(folder / FOLDER / APP, table)
    Plan(secrets.token_hex(8), moved, fleet, targets).save(folder)


def resume_plan(folder: Path, typed: Table) -> Plan:
    """The plan of a run that goes on, with its app written anew.

    Nothing that lies in a run folder is run: the app is ours, and code of the user's own is what
    was typed now.
    """
    plan = Plan.load(folder)
    refuse_code(plan.table, shipped(typed), folder)
    app = folder / FOLDER / APP
    if app.is_symlink():
        app.unlink()
    elif app.exists():
        shutil.rmtree(app)
    write_app(app, typed)
    return plan


def write_shards(
    place: Path,
    federation: Federation,
    count: int,
    device: Callable[[str], str] = lambda node: node,
) -> EdgeData | None:
    """A folder with a shard of the source nodes for every edge; returns where the targets are.

    `device` tells where a node of that name lives, if several may live together.
    """
    homes = list(dict.fromkeys(device(node.name) for node in federation.sources))
    if count > len(homes):
        raise SettingError(
            f"there are {count} edges for {len(homes)} source nodes",
            "give every edge at least one: fewer --edges or more --nodes",
        )
    private_folder(place)
    for number, name in enumerate(_names(count)):
        share = Ranks(number, count).share(len(homes))
        here = homes[share.start : share.stop]
        shard = (place / name / "shard.safetensors").absolute()
        Edge(name, EdgeData(str(shard))).save(place / name)
        save_shard(shard, federation, [n for n in federation.sources if device(n.name) in here])
    if not federation.targets:
        return None
    targets = (place / "targets.safetensors").absolute()
    save_shard(targets, federation, federation.targets)
    return EdgeData(str(targets))


def make_keys(folder: Path, count: int) -> None:
    """An authority, the platform's certificate, and a key for every edge."""
    make_authority(folder)
    make_server(folder, ["localhost", "127.0.0.1"])
    for name in _names(count):
        make_node(folder, name)
    certify_nodes(folder)


def run_trial(
    folder: Path, place: Path, certs: Path | None, port: int | None, callbacks: Sequence[Callback]
) -> None:
    """Start platform and edges, follow the run to its end, and stop them.

    `place` has a folder for every edge, `certs` the keys (None: neither encrypted nor
    authenticated), `port` is the platform's (None: any free one).
    """
    homes = sorted(place.glob("edge-*"))
    keys = [] if certs is None else [certs / "nodes" / f"{home.name}.pub" for home in homes]
    host = Host(folder.absolute(), "127.0.0.1", port or programs.free_port(), certs)
    with ExitStack() as stack:
        superlink = stack.enter_context(running_platform(host, keys))
        for home in homes:
            own = "" if certs is None else str(certs.absolute())
            replace(Edge.load(home), certs=own).save(home)
            stack.enter_context(lasting_edge(home.name, home, f"127.0.0.1:{host.port}", certs))
        run_to_end(host, superlink, callbacks)


def _names(count: int) -> list[str]:
    digits = len(str(count))  # so that the order of names is that of numbers
    return [f"edge-{number:0{digits}d}" for number in range(1, count + 1)]
