"""`fedmeta fleet`: a whole fleet on this machine, for trying: a platform and its edges."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import progress_bars, say, table
from fedmeta.cli.train import PARAMETERS as TRAIN
from fedmeta.cli.train import free_folder, print_report, print_result
from fedmeta.data import Federation, load
from fedmeta.engines.ranks import Ranks
from fedmeta.errors import RunFolderError, SettingError
from fedmeta.meta_model import MetaModel
from fedmeta.plain import from_plain
from fedmeta.run_folder import RunFolder, difference
from fedmeta.settings import Table, build_settings, merged
from fedmeta.training import Run

_F = "Fleet"
FLEET = (
    Parameter("edges", int, "How many edges to wait for before the first round.", _F, default="2"),
    Parameter("quorum", float, "Share of the edges asked that must answer.", _F, default="0.5"),
    Parameter(
        "deadline", float, "Longest wait for a round's answers, in seconds.", _F, default="300"
    ),
    Parameter("insecure", bool, "Neither encrypt nor authenticate: on trusted networks only.", _F),
    Parameter("port", int, "Where the platform listens.", _F),
)
_LEFT_OUT = ("seeds", "lost", "track")
PARAMETERS = (*FLEET, *(each for each in TRAIN if each.name not in _LEFT_OUT))


def run(values: Values) -> None:
    """Start platform and edges, train, stop them, and print what came of it."""
    from fedmeta.engines.flower import programs
    from fedmeta.engines.flower.hosting import Host, hosting, run_to_end, serving
    from fedmeta.engines.flower.programs import Credentials

    folder = _planned(values)
    edges, homes = _edges_folder(folder), sorted(_edges_folder(folder).glob("edge-*"))
    credentials = None if values["insecure"] else Credentials(edges / "certs")
    port = values["port"] or programs.free_port()
    host = Host(folder.absolute(), "127.0.0.1", port, credentials)
    keys = [] if credentials is None else [edges / "certs/nodes" / f"{h.name}.pub" for h in homes]
    with ExitStack() as stack:
        superlink = stack.enter_context(hosting(host, keys))
        for home in homes:
            stack.enter_context(serving(home.name, home, f"127.0.0.1:{port}", credentials))
        bar = stack.enter_context(progress_bars())
        run_to_end(host, superlink, [bar(f"{len(homes)} edges")])
    print_outcome(folder)


def print_outcome(folder: Path) -> None:
    """The same tables as after `fedmeta train`, and one of the edges."""
    opened = RunFolder.open(folder)
    model = MetaModel.load(folder)
    print_result(Run(model, opened.summary(), opened.history(), None, folder))
    print_edges(folder)
    print_report(folder)


def print_edges(folder: Path) -> None:
    """The edges as the platform last saw them."""
    from fedmeta.engines.flower.edge_table import read_edges
    from fedmeta.engines.flower.plan import FOLDER

    rows = [
        [
            row["name"],
            str(row["nodes"]),
            row["state"],
            row["last_seen"] or "never",
            str(row["rounds"]),
            f"{row['bytes_down'] / 1e6:.3f}",
            f"{row['bytes_up'] / 1e6:.3f}",
            f"{row['seconds']:.2f}",
        ]
        for row in read_edges(folder / FOLDER)
    ]
    columns = ["edge", "nodes", "state", "last seen", "rounds", "MB down", "MB up", "s/round"]
    table("edges", columns, rows)


def fleet_settings(values: Values) -> dict[str, Any]:
    """The flags of `FLEET` that were given, as fields of `FleetSettings`."""
    given = {name: values[name] for name in ("edges", "quorum", "deadline")}
    return {
        **{name: value for name, value in given.items() if value is not None},
        "authenticated": not values["insecure"],
    }


def new_plan(folder: Path, full: Table, fleet: Mapping[str, Any], targets: Any) -> None:
    """Write the plan and the app of a new run."""
    from fedmeta.engines.flower.app import write_app
    from fedmeta.engines.flower.courier import FleetSettings
    from fedmeta.engines.flower.hosting import APP
    from fedmeta.engines.flower.plan import FOLDER, Plan

    if (folder / FOLDER).exists():
        raise RunFolderError(
            f"{folder} holds a run already", "continue it with --resume, or choose another --out"
        )
    RunFolder(folder).check_free()
    settings = from_plain(FleetSettings, fleet, "fleet")
    table = write_app(folder / FOLDER / APP, full)
    Plan(secrets.token_hex(8), table, settings, targets).save(folder)


def _planned(values: Values) -> Path:
    """The folder of a new run with its edges' shards, or of one that goes on."""
    if values["resume"]:
        return resumed(PARAMETERS, values)
    from fedmeta.engines.flower.shards import EdgeData, save_shard

    full = options.settings_table(PARAMETERS, values)
    settings = build_settings(full)
    federation = load(settings.data, settings.training.seed)
    name = f"fleet-{settings.algorithm.name}-{Path(settings.data.name).stem}"
    folder = Path(values["out"]) if values["out"] else free_folder(Path("runs"), name)
    count = 2 if values["edges"] is None else values["edges"]
    place, targets = _edges_folder(folder), None
    if place.exists():
        raise RunFolderError(f"{place} is there already", "choose another --out, or delete it")
    if federation.targets:
        targets = EdgeData(str((place / "targets.safetensors").absolute()))
    new_plan(folder, full, {**fleet_settings(values), "edges": count}, targets)
    _deal_out(place, federation, count)
    if targets:
        save_shard(place / "targets.safetensors", federation, federation.targets)
    if not values["insecure"]:
        _make_keys(place / "certs", count)
    say(
        f"{federation.name}: {len(federation.sources)} source nodes on {count} edges, "
        f"{len(federation.targets)} target nodes; {settings.algorithm.name}, "
        f"{settings.training.rounds} rounds, seed {settings.training.seed}"
    )
    return folder


def resumed(parameters: tuple[Parameter, ...], values: Values) -> Path:
    """The folder of a run that goes on as it was planned, perhaps for more rounds."""
    from fedmeta.engines.flower.plan import Plan

    folder = Path(values["resume"])
    if values["out"]:
        raise SettingError("--out and --resume are both given", "a resumed run stays where it is")
    plan = Plan.load(folder)
    given = options.settings_table(parameters, values)
    now = {"training": {k: v for k, v in given.get("training", {}).items() if k == "rounds"}}
    if (other := difference(merged([plan.table, now]), merged([plan.table, given]))) is not None:
        raise RunFolderError(
            f"run {folder} was started with other settings: {other}",
            "resume it as it was started (only rounds, quorum and deadline may change)",
        )
    fleet = replace(plan.fleet, **fleet_settings(values))
    replace(plan, table=merged([plan.table, now]), fleet=fleet).save(folder)
    return folder


def _edges_folder(folder: Path) -> Path:
    """Beside the run folder, which holds no samples."""
    return folder.parent / f"{folder.name}-edges"


def _deal_out(place: Path, federation: Federation, count: int) -> None:
    """A folder with a shard of the source nodes for every edge."""
    from fedmeta.engines.flower.edge import Edge
    from fedmeta.engines.flower.shards import EdgeData, save_shard

    digits = len(str(count))  # so that the order of names is that of numbers
    for number in range(count):
        share = Ranks(number, count).share(len(federation.sources))
        home = place / f"edge-{number + 1:0{digits}d}"
        shard = (home / "shard.safetensors").absolute()
        Edge(home.name, EdgeData(str(shard))).save(home)
        save_shard(shard, federation, federation.sources[share.start : share.stop])


def _make_keys(folder: Path, count: int) -> None:
    from fedmeta.fleet.certificates import make_authority, make_node, make_server

    make_authority(folder)
    make_server(folder, ["localhost", "127.0.0.1"])
    digits = len(str(count))
    for number in range(count):
        make_node(folder, f"edge-{number + 1:0{digits}d}")


COMMAND = Command(
    "fleet",
    "Try a whole fleet on this machine: a platform and edges as processes, over Flower.",
    PARAMETERS,
    run,
    example="fedmeta fleet --data digits --edges 2 --rounds 5",
)

if __name__ == "__main__":
    from fedmeta.cli import run_one

    run_one(COMMAND)
