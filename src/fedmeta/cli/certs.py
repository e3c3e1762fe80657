"""`fedmeta certs`: keys of a trial fleet, and the gateway in front of its platform."""

from __future__ import annotations

from pathlib import Path

from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import say
from fedmeta.core.errors import SettingError

PARAMETERS = (
    Parameter("folder", "Folder of the keys.", argument=True),
    Parameter("host", "Name or address that the certificate is for (repeatable).", many=True),
    Parameter("node", "Make a key for this edge (repeatable).", many=True),
    Parameter("revoke", "Take this edge's key back (repeatable).", many=True),
    Parameter(
        "fence",
        "Write an nginx configuration that listens here and passes only edges' calls on.",
        metavar="HOST:PORT",
    ),
    Parameter("platform", "Where the SuperLink listens, for --fence.", default="127.0.0.1:8000"),
)


def run(values: Values) -> None:
    """Make the certificates and keys of a trial fleet, revoke a key, write the fence."""
    # Imported here: `fedmeta --help` needs no extra.
    from fedmeta.fleet import certificates
    from fedmeta.fleet.gateway import Gateway, write_gateway

    if values["platform"] and not values["fence"]:
        raise SettingError("--platform is given without --fence", "say where the fence listens")
    folder, hosts = Path(values["folder"]), list(values["host"] or ())
    for name in values["revoke"] or ():
        place = certificates.revoke_node(folder, name)
        say(f"revoked    {place}")
        say(
            f"           {name} cannot join a platform that is started from now on; one that runs "
            "has registered the key: end it there with"
        )
        say("           flwr supernode list, flwr supernode unregister NODE_ID")
    if values["revoke"] and not (hosts or values["node"] or values["fence"]):
        return
    authority = certificates.make_authority(folder)
    say(f"authority  {authority.public}   give it to every edge")
    if hosts or not (folder / "server.pem").exists():
        server = certificates.make_server(
            folder, [*dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
        )
        say(f"platform   {server.public}   its key {server.secret} stays here")
    for name in values["node"] or ():
        pair = certificates.make_node(folder, name)
        say(f"edge       {pair.secret}   give it to {name} and to nobody else")
    for path in certificates.certify_nodes(folder):  # keys that edges have made themselves too
        say(f"edge       {path}   give it to {path.stem}, with its key")
    if values["fence"]:
        gateway = Gateway(values["fence"], values["platform"] or Gateway().platform)
        path = write_gateway(folder, gateway).resolve()
        say(f"fence      {path}   start it with  nginx -c {path}")
    say(f"may join   {', '.join(certificates.node_keys(folder)) or 'nobody yet: --node NAME'}")


COMMAND = Command("certs", PARAMETERS, run, "keys --host platform.example --node hall --node yard")

if __name__ == "__main__":
    COMMAND.main()
