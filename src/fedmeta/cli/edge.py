"""`fedmeta edge`: this device's own data takes part in a platform's training."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

from fedmeta.cli.command import Command, Parameter, Values, given, under
from fedmeta.cli.console import say
from fedmeta.core.errors import SettingError, require

_RETRIES, _PAUSE, _LONG = 10, 10, 120  # tries; seconds between them; seconds that make one good
PARAMETERS = (
    Parameter("platform", "Where the platform is reached.", metavar="HOST:PORT"),
    Parameter("data", "Its samples: .csv, .parquet, .npz or a folder of images.", short="d"),
    Parameter("label", "Label column.", default="label"),
    Parameter("node", "Column that says whose sample it is, if it serves several devices."),
    Parameter("name", "What the platform knows it by.", default="host name"),
    Parameter("home", "Folder for what it must remember.", default="edges/NAME"),
    Parameter("certs", "Folder with ca.crt and nodes/NAME.", default="certs"),
    Parameter("insecure", "Neither encrypt nor authenticate: on trusted networks only.", bool),
    Parameter("retries", "Tries to connect after one that failed.", int, default="10"),
    Parameter("prepare", "Start nothing: print Flower's own commands for it.", bool),
    *under(
        "Machine",
        Parameter("device", "cpu or cuda."),
        Parameter("threads", "CPU threads.", int),
        Parameter("memory", "Memory budget in GiB.", float),
    ),
)


def run(values: Values) -> None:
    """Let this device's data take part in a platform's training, over Flower."""
    from fedmeta.fleet import flower_commands as programs
    from fedmeta.fleet.edge import Edge
    from fedmeta.fleet.flower_commands import ProgramError
    from fedmeta.fleet.launch import running_edge
    from fedmeta.fleet.shards import EdgeData, check_readable

    for needed in ("platform", "data"):
        if not values[needed]:
            raise SettingError(f"--{needed} is missing", "see --help")
    if not re.fullmatch(r".+:\d+", values["platform"]):
        raise SettingError(f"--platform is {values['platform']!r}", "give HOST:PORT")
    name = values["name"] or socket.gethostname()
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is not None
    require(plain, "--name", name, "letters, digits, dots, dashes and underscores")
    path = Path(values["data"]).expanduser().absolute()
    data = EdgeData(str(path), values["label"], values["node"])
    check_readable(data)
    home = Path(values["home"] or f"edges/{name}")
    certs = None if values["insecure"] else Path(values["certs"] or "certs").absolute()
    machine = given(values, "device", "threads", "memory")
    Edge(name, data, machine, str(certs or "")).save(home)
    if values["prepare"]:
        node = programs.supernode(name, home, values["platform"], certs)
        say(programs.typed(node, home / "flower"))
        return
    say(f"edge {name} serves {path} at {values['platform']} until it is interrupted")
    say(f"memory   {home}")
    say(f"log      {home / 'supernode.log'}")
    retries = _RETRIES if values["retries"] is None else values["retries"]
    failed = 0
    while failed <= retries:
        started = time.monotonic()
        with running_edge(name, home, values["platform"], certs) as process:
            code = process.wait()
        failed = 1 if time.monotonic() - started > _LONG else failed + 1
        if failed <= retries:  # perhaps the platform has not registered its key yet
            say(
                f"the platform is not there, or does not let {name} in yet (code {code} of "
                f"Flower's SuperNode): next try in {_PAUSE} s"
            )
            time.sleep(_PAUSE)
    raise ProgramError(
        f"Flower's SuperNode ended with code {code}: the platform does not let {name} in, or has "
        "another certificate",
        f"see {home / 'supernode.log'}",
    )


COMMAND = Command("edge", PARAMETERS, run, "--platform 10.0.0.1:9443 --data mine.csv --label kind")

if __name__ == "__main__":
    COMMAND.main()
