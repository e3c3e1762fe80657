"""A client that calls the app in this process, as a browser on the same machine would."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from fedmeta.ui.app import create_app

ORIGIN = "http://127.0.0.1:8484"


class Client:
    """Requests to the page of a folder."""

    def __init__(self, root: Path, token: str | None = None) -> None:
        self._transport = httpx.ASGITransport(app=create_app(root, token=token))
        self._cookies = httpx.Cookies()

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        options.setdefault("headers", {"Origin": ORIGIN})
        self.get("/report.css")  # any page hands out the token that is needed
        return self.request("POST", path, **options)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            given = {"transport": self._transport, "base_url": ORIGIN, "cookies": self._cookies}
            async with httpx.AsyncClient(**given) as client:
                answer = await client.request(method, path, **options)
                self._cookies = client.cookies
                return answer

        return asyncio.run(send())
