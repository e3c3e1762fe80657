"""Who may talk to the page, and what the page may do: checked before any route is reached."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Styles are allowed inline because the charts of the report carry theirs in attributes.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_SAFE_METHODS = ("GET", "HEAD")


class RequestFilter:
    """Refuses foreign names and foreign pages, and sends every answer with `HEADERS`.

    Args:
        app: what is guarded.
        name: the host that the server was bound to; localhost and plain addresses go without
            saying.
    """

    def __init__(self, app: ASGIApp, name: str) -> None:
        self._app, self._name = app, name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it with 403."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        reason = refusal(scope["method"], Headers(scope=scope), self._name)
        app = self._app if reason is None else PlainTextResponse(reason, status_code=403)
        await app(scope, receive, send_with_headers)


def refusal(method: str, headers: Headers, name: str) -> str | None:
    """Why a request is refused; None if it is not.

    A web site that makes its own name point here (DNS rebinding) is known by that name: only
    localhost, plain addresses and the name that the server was started with are answered. What
    changes something must come from a page of ours: its origin is this very host.

    Example:
        >>> refusal("GET", Headers({"host": "127.0.0.1:8484"}), "127.0.0.1") is None
        True
        >>> refusal("GET", Headers({"host": "evil.example:8484"}), "127.0.0.1")
        'this page is not served under that name; open it as localhost'
    """
    host = headers.get("host", "")
    if not _is_ours(host, name):
        return "this page is not served under that name; open it as localhost"
    if method in _SAFE_METHODS:
        return None
    if headers.get("origin") != f"http://{host}":
        return "this request does not come from a page of fedmeta ui"
    return None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_ours(host: str, name: str) -> bool:
    try:
        hostname = urlsplit(f"//{host}").hostname or ""
        if hostname in ("localhost", name.lower()):
            return True
        ipaddress.ip_address(hostname)
    except ValueError:
        return False
    return True
