"""Who may talk to the page, and what the page may do: checked before any route is reached."""

from __future__ import annotations

import ipaddress
import secrets
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Styles are allowed inline because the charts of the report carry theirs in attributes.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # without any, a form would not say where it comes from
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_SAFE_METHODS = ("GET", "HEAD")
_NO_TOKEN = "open the address that fedmeta ui has printed, or reload the page"


class RequestFilter:
    """Refuses foreign names, foreign pages and who has no token; sends all answers with `HEADERS`.

    A browser gets the token as a cookie that other sites cannot use (SameSite) and no script can
    read (HttpOnly). What changes or computes something, a POST, must bring it along.

    Args:
        app: what is guarded.
        name: the host that the server was bound to; localhost and plain addresses go without
            saying.
        token: that every request must have, in the address at first and as a cookie then; None:
            the token is drawn, any page hands it out, and only POSTs need it.
    """

    def __init__(self, app: ASGIApp, name: str, token: str | None = None) -> None:
        self._app, self._name = app, name
        self._needed, self._token = token is not None, token or secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it with 403."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, method = Headers(scope=scope), scope["method"]
        port = headers.get("host", "").rpartition(":")[2]
        cookie = f"fedmeta-{port}" if port.isdecimal() else "fedmeta"
        brought = cookie_parser(headers.get("cookie", "")).get(cookie, "")
        known = secrets.compare_digest(brought.encode(), self._token.encode())
        hands_out = method in _SAFE_METHODS and not known and not self._needed

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer.update(HEADERS)
                if hands_out:
                    answer.append("set-cookie", self._cookie(cookie))
            await send(message)

        reason = refusal(method, headers, self._name)
        app: ASGIApp = self._app
        if reason is not None:
            hands_out, app = False, PlainTextResponse(reason, status_code=403)
        elif not known and (self._needed or method not in _SAFE_METHODS):
            app = PlainTextResponse(_NO_TOKEN, status_code=403)
            asked = parse_qs(scope["query_string"].decode("latin1")).get("token", [""])[0]
            right = secrets.compare_digest(asked.encode(), self._token.encode())
            if self._needed and right and method in _SAFE_METHODS:
                app = RedirectResponse(scope["path"], 303, {"set-cookie": self._cookie(cookie)})
        await app(scope, receive, send_with_headers)

    def _cookie(self, name: str) -> str:
        return f"{name}={self._token}; Path=/; HttpOnly; SameSite=Strict"


def refusal(method: str, headers: Headers, name: str) -> str | None:
    """Why a request is refused; None if it is not.

    A web site that makes its own name point here (DNS rebinding) is known by that name: only
    localhost, plain addresses and the name that the server was started with are answered. What a
    browser says another site has asked for is not answered at all. What changes or computes
    something must come from a page of ours: its origin is this very host.

    Example:
        >>> refusal("GET", Headers({"host": "127.0.0.1:8484"}), "127.0.0.1") is None
        True
        >>> refusal("GET", Headers({"host": "evil.example:8484"}), "127.0.0.1")
        'this page is not served under that name; open it as localhost'
    """
    host = headers.get("host", "")
    if not _is_ours(host, name):
        return "this page is not served under that name; open it as localhost"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "another site has asked for this; type the address, or use a bookmark"
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
