"""`fedmeta platform`: train over edges on other machines."""

from __future__ import annotations

from pathlib import Path

from fedmeta.cli import fleet
from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values, under
from fedmeta.cli.console import progress_bars, results_folder, say
from fedmeta.cli.train import PARAMETERS as TRAIN
from fedmeta.cli.train import HeadLine
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core.errors import FedmetaError

_DEFAULT_PORT = 8000
_LEFT_OUT = (
    *("seeds", "lost", "track"),
    *("data", "folder", "partition", "nodes", "classes_per_node", "shots", "queries", "precise"),
)
PARAMETERS = (
    *fleet.FLEET,
    *under(
        "Fleet",
        Parameter("host", "Address to listen at.", default="127.0.0.1"),
        Parameter("certs", "Folder: ca.crt, server.pem, server.key, nodes/*.pub.", default="certs"),
        Parameter("targets", "File with nodes to judge the model on, which take no part."),
        Parameter("prepare", "Start nothing: print Flower's own commands for it.", bool),
    ),
    *(each for each in TRAIN if each.name not in _LEFT_OUT),
)


def run(values: Values) -> None:
    """Train over edges on other machines, over Flower."""
    from fedmeta.fleet import flower_commands as programs
    from fedmeta.fleet.launch import Host, run_to_end, running_platform

    folder = fleet.resumed(PARAMETERS, values) if values["resume"] else _planned(values)
    certs = None if values["insecure"] else Path(values["certs"] or "certs")
    address, port = values["host"] or "127.0.0.1", values["port"] or _DEFAULT_PORT
    host = Host(folder.absolute(), address, port, certs)
    keys = sorted((certs / "nodes").glob("*.pub")) if certs else []
    if values["prepare"]:
        programs.write_config(host.home, port, certs)
        for command in host.commands(keys):
            say(programs.typed(command, host.home))
        return
    with running_platform(host, keys) as superlink:
        _say_how_to_join(certs, address, port)
        try:
            with progress_bars() as bar:
                run_to_end(host, superlink, [HeadLine(folder), bar("fleet")])
        except FedmetaError:
            fleet.print_edges(folder)
            raise
    fleet.print_outcome(folder)


def _planned(values: Values) -> Path:
    from fedmeta.fleet.local_fleet import new_plan
    from fedmeta.fleet.plan import check_fleet
    from fedmeta.fleet.shards import EdgeData, check_readable

    # Nodes come with the edges, a column that names them or not.
    comes = {"data": {"name": "fleet", "node": "node"}}
    full = merged([comes, options.settings_table(PARAMETERS, values)])
    settings = RunSpec.from_dict(full)
    name = f"platform-{settings.algorithm.name}"
    folder = results_folder(values["out"], name)
    targets = None
    if values["targets"]:
        path = Path(values["targets"]).expanduser().absolute()
        targets = EdgeData(str(path), values["label"], values["node"])
        check_readable(targets)
    chosen = fleet.fleet_settings(values)
    check_fleet(chosen, settings)
    new_plan(folder, full, chosen, targets)
    say(
        f"{settings.algorithm.name}, {settings.training.rounds} rounds, seed "
        f"{settings.training.seed}; run {folder}"
    )
    fleet.say_of_prior(settings, folder)
    return folder


def _say_how_to_join(certs: Path | None, address: str, port: int) -> None:
    """What to type on the other machines.

    Args:
        certs: folder of the keys; None: there are none.
        address, port: where the platform listens.
    """
    say(f"the platform listens at {address}:{port}; on every edge:")
    here, how, gateway = address, "--insecure", None
    if certs is not None:
        from fedmeta.fleet.certificates import server_name
        from fedmeta.fleet.gateway import gateway_port

        here, how, gateway = server_name(certs), "--certs FOLDER", gateway_port(certs)
    elif address in ("127.0.0.1", "0.0.0.0"):
        here = "HOST"
    join = (
        f"fedmeta edge --platform {here}:{gateway or port} --name NAME --data FILE --label COLUMN"
    )
    say(f"  {join} {how}")
    if certs is not None:
        say("FOLDER has ca.crt and nodes/NAME, which fedmeta certs has made here")
    if gateway is not None:
        say(f"they come through the fence: nginx -c {(certs or Path()) / 'nginx.conf'} must run")
    elif address == "127.0.0.1":
        say("edges on other machines need a fence (fedmeta certs FOLDER --fence 0.0.0.0:9443)")
    if address != "127.0.0.1":
        say(
            "whoever reaches this port may control the fleet: put the fence before it "
            "(docs/how-to/run-a-fleet.md)"
        )


COMMAND = Command("platform", PARAMETERS, run, "--edges 3 --rounds 100 --out runs/fleet")

if __name__ == "__main__":
    COMMAND.main()
