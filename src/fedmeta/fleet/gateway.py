"""A gateway in front of the platform: nginx that lets edges reach the fleet API and nothing else.

Whoever reaches a SuperLink's port may also call its control API, which asks for no proof of who one
is: register keys, stop runs, send code to every edge. So the SuperLink listens on the platform's
own machine alone, and edges connect to nginx, which passes POST /v1/fleet/CALL on and answers
everything else with 403. Both connections are TLS; edges still prove themselves to the SuperLink by
their keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fedmeta.core.errors import require
from fedmeta.core.storage import write_bytes

FILE = "nginx.conf"
_ADDRESS = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})")
_CONFIGURATION = """\
# Passes the calls of edges on to the platform, and nothing else. Start:  nginx -c THIS_FILE
worker_processes 1;
pid "{folder}/nginx.pid";
error_log "{folder}/nginx.log" warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path "{folder}/nginx-body";
    proxy_temp_path "{folder}/nginx-proxy";
    fastcgi_temp_path "{folder}/nginx-unused";
    uwsgi_temp_path "{folder}/nginx-unused";
    scgi_temp_path "{folder}/nginx-unused";
    client_max_body_size 0;        # models are as large as they are
    proxy_request_buffering off;
    proxy_read_timeout 120s;

    upstream platform {{ server {platform}; keepalive 16; }}

    server {{
        listen {listen} ssl;
        ssl_certificate "{folder}/server.pem";
        ssl_certificate_key "{folder}/server.key";
        ssl_protocols TLSv1.2 TLSv1.3;

        # What is passed on is the one word that was matched, so that no spelling of a path can mean
        # one thing here and another there.
        location ~ ^/v1/fleet/(?<call>[a-z]+(-[a-z]+)*)$ {{
            limit_except POST {{ deny all; }}
            proxy_pass https://platform/v1/fleet/$call;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_ssl_verify on;
            proxy_ssl_trusted_certificate "{folder}/ca.crt";
            proxy_ssl_name "{name}";
        }}

        location / {{ return 403; }}
    }}
}}
"""


@dataclass(frozen=True)
class Gateway:
    """Where edges connect, and where the platform is.

    Args:
        listen: HOST:PORT that edges are told; host 0.0.0.0 is all of the machine's addresses.
        platform: HOST:PORT of the SuperLink, best on the same machine.
        name: of the platform in its certificate, see `make_server`.
    """

    listen: str = "0.0.0.0:9443"
    platform: str = "127.0.0.1:8000"
    name: str = "localhost"

    def __post_init__(self) -> None:
        for field in ("listen", "platform"):
            value = getattr(self, field)
            found = _ADDRESS.fullmatch(value)
            fits = found is not None and 0 < int(found[2]) < 2**16
            require(fits, f"fence.{field}", value, "HOST:PORT")
        plain = re.fullmatch(r"[A-Za-z0-9.:-]+", self.name) is not None
        require(plain, "fence.name", self.name, "a name that stands in the certificate")

    def configuration(self, folder: Path) -> str:
        """The text of nginx's configuration; `folder` holds the keys, see `certificates`."""
        place = str(folder.resolve())
        require(not re.search(r'["$\\\n]', place), "folder", place, 'a path without ", $ or \\')
        return _CONFIGURATION.format(
            folder=place, listen=self.listen, platform=self.platform, name=self.name
        )


def gateway_port(folder: Path) -> int | None:
    """Where the gateway whose file lies beside the keys listens; None: there is none."""
    file = folder / FILE
    if not file.is_file():
        return None
    found = re.search(r"^ *listen .*:([0-9]+) ssl;$", file.read_text(), re.MULTILINE)
    return int(found[1]) if found else None


def write_gateway(folder: Path, gateway: Gateway) -> Path:
    """Write nginx.conf beside the keys; returns where."""
    path = folder / FILE
    write_bytes(path, gateway.configuration(folder).encode())
    return path
