"""Who gets through the fence to a real SuperLink: known keys, neither strange nor revoked ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedmeta.fleet import flower_commands as programs
from fedmeta.fleet.certificates import KeyPair, make_authority, make_node, make_server
from fedmeta.fleet.gateway import Gateway, write_gateway
from fleet.test_gateway import NGINX, call, free_port, nginx

pytestmark = [pytest.mark.fleet, pytest.mark.slow]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int, int]]:
    """A SuperLink behind a fence: the folder of its keys, its port, and the fence's."""
    if NGINX is None:
        pytest.skip("nginx is not installed (Debian: apt-get install nginx-light)")
    folder = tmp_path_factory.mktemp("fleet")
    keys = folder / "keys"
    make_authority(keys)
    make_server(keys, ["localhost", "127.0.0.1"])
    port, gateway = free_port(), free_port()
    command = programs.superlink(folder, "127.0.0.1", port, keys)
    where = write_gateway(keys, Gateway(f"127.0.0.1:{gateway}", f"127.0.0.1:{port}"))
    with programs.running(command, folder / "home", folder / "log"), nginx(where, gateway):
        for _ in range(1200):
            if call(keys, gateway, "/v1/fleet/activate-node") != 502:  # nobody behind the fence yet
                break
            time.sleep(0.1)
        yield keys, port, gateway


def activated(keys: Path, port: int, pair: KeyPair) -> int:
    """The id that the SuperLink gives a node with that key."""
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    secret: Any = load_ssh_private_key(pair.secret.read_bytes(), None)
    public = secret.public_key()
    proof = [RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(secret, public)]
    with FleetHttpClient.from_server_address(
        f"127.0.0.1:{port}", False, (keys / "ca.crt").read_bytes(), interceptors=proof
    ) as client:
        request = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=30)
        return int(client.ActivateNode(request).node_id)


def test_a_known_key_gets_through_until_it_is_revoked(fleet: tuple[Path, int, int]) -> None:
    import httpx
    from flwr.proto.control_pb2 import RegisterNodeRequest, UnregisterNodeRequest
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    keys, port, gateway = fleet
    pair = make_node(keys, "known")
    secret: Any = load_ssh_private_key(pair.secret.read_bytes(), None)
    request = RegisterNodeRequest(public_key=public_key_to_bytes(secret.public_key()))
    with pytest.raises(httpx.HTTPStatusError, match="Client error '4"):  # a stranger yet
        activated(keys, gateway, pair)
    # Over the control API, which is reached on the platform's own machine alone.
    with ControlHttpClient.from_server_address(
        f"127.0.0.1:{port}",
        False,
        (keys / "ca.crt").read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor("flwr CLI")],
    ) as control:
        number = int(control.RegisterNode(request).node_id)
        assert activated(keys, gateway, pair) == number
        control.UnregisterNode(UnregisterNodeRequest(node_id=number))
        with pytest.raises(httpx.HTTPStatusError, match="Client error '4"):
            activated(keys, gateway, pair)
        with pytest.raises(httpx.HTTPStatusError):  # nor does the database take it back
            control.RegisterNode(request)


def test_calls_without_a_key_and_control_calls_are_refused(fleet: tuple[Path, int, int]) -> None:
    keys, port, gateway = fleet
    assert call(keys, gateway, "/v1/fleet/pull-messages") in (400, 401, 415, 422)
    for path in ("list-nodes", "register-node", "start-run"):
        assert call(keys, gateway, f"/v1/control/{path}") == 403
        assert call(keys, port, f"/v1/control/{path}") != 403  # which is why there is a fence
