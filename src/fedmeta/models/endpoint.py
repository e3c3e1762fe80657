"""A model behind an address: asked by HTTP, within limits of time and size.

    POST URL     {"inputs": [[…], …]}            one nested list per input
    reply        {"probabilities": [[…], …]}     or {"logits": [[…], …]}, one row per input

Addresses are typed by hand, never taken from a file of a run (`core.user_code`), and a reply that
points elsewhere is not followed: nobody else decides whom this machine talks to. A server that is
late, cannot be reached or is busy is asked again; one that answers rubbish is not.
$FEDMETA_TEACHER_TOKEN, if set, goes along as a bearer token.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from fedmeta.core.errors import ModelError, SettingError
from fedmeta.core.plain_values import parse_json
from fedmeta.data.pool import Array

TOKEN = "FEDMETA_TEACHER_TOKEN"
KEYS = ("probabilities", "logits")
TRIES = 3
_PAUSE = 0.5  # seconds before the second try; twice that before the third
_MOST = 64 * 2**20  # bytes of a reply
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_CONTINUE = "see that it runs, then go on: train --resume"


def is_endpoint(name: str) -> bool:
    """Whether a name is an address.

    Example:
        >>> is_endpoint("http://127.0.0.1:8000/predict"), is_endpoint("runs/early")
        (True, False)
    """
    return name.lower().startswith(("http://", "https://"))


def ask_endpoint(
    address: str,
    inputs: Array,
    timeout: float = 10.0,
    pause: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """What it says of the inputs: {"probabilities": rows} or {"logits": rows}, not yet checked.

    Args:
        address: of the endpoint.
        inputs: raw, (n, *shape).
        timeout: seconds for each try.
        pause: waits between tries.
    """
    request = _request(address, inputs)
    problem = ""
    for attempt in range(TRIES):
        if attempt:
            pause(_PAUSE * 2 ** (attempt - 1))
        try:
            return _read(address, _sent(request, timeout))
        except HTTPError as error:
            error.close()
            if error.code not in _BUSY:
                raise ModelError(
                    f"teacher {address} refuses with status {error.code} ({error.reason})",
                    "check the address and what it wants",
                ) from None
            problem = f"answers with status {error.code}"
        except TimeoutError:
            problem = f"does not answer within {timeout:g} s"
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            late = isinstance(reason, TimeoutError)
            problem = (
                f"does not answer within {timeout:g} s" if late else f"is not reached ({reason})"
            )
    raise ModelError(f"teacher {address} {problem}, asked {TRIES} times", _CONTINUE)


def _request(address: str, inputs: Array) -> Request:
    try:
        parts = urlsplit(address)
        usable = bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise SettingError(f"{address} is no address", "write http://HOST:PORT/PATH")
    if parts.username is not None or parts.password is not None:
        raise SettingError(
            "the address of the teacher has a password in it, which would be stored with the run",
            f"leave it out, and set ${TOKEN}",
        )
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if token := os.environ.get(TOKEN):
        headers["Authorization"] = f"Bearer {token}"
    body = json.dumps({"inputs": inputs.tolist()}).encode()
    return Request(address, body, headers, method="POST")


class _NoRedirect(HTTPRedirectHandler):
    """A reply that points elsewhere is an error, with the status that it has."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        """Go nowhere."""


def _sent(request: Request, timeout: float) -> bytes:
    """The body of the reply; it ends in time, however slowly it comes."""
    late = time.monotonic() + timeout
    parts: list[bytes] = []
    size = 0
    with build_opener(_NoRedirect()).open(request, timeout=timeout) as reply:
        while part := reply.read1(2**16):
            parts.append(part)
            size += len(part)
            if size > _MOST:
                raise ModelError(
                    f"teacher {request.full_url} answers with more than {_MOST / 1e6:.0f} MB",
                    "let it return one row of numbers per input",
                )
            if time.monotonic() > late:
                raise TimeoutError
    return b"".join(parts)


def _read(address: str, body: bytes) -> dict[str, Any]:
    try:
        found = parse_json(body)
        ((key, rows),) = found.items()
        if key not in KEYS or not isinstance(rows, list):
            raise ValueError
    except (ValueError, AttributeError, UnicodeDecodeError):
        raise ModelError(
            f"teacher {address} answers with something else than probabilities",
            'let it return {"probabilities": [[…], …]} or {"logits": [[…], …]}',
        ) from None
    return {key: rows}
