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

    def __init__(self, root: Path) -> None:
        self._transport = httpx.ASGITransport(app=create_app(root))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        options.setdefault("headers", {"Origin": ORIGIN})
        return self.request("POST", path, **options)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url=ORIGIN) as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())
