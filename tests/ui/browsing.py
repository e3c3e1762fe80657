"""A real server and a real browser."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from fedmeta.ui.app import server

CHROMIUM = shutil.which("chromium")

expect.set_options(timeout=30_000)  # milliseconds; the machine may be busy


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """The address of a page that is served in another thread."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        running = server(root)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            running.should_exit = True
            thread.join()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def visiting(
    browser: Browser, address: str, forgiven: str | None = None, **context: Any
) -> Iterator[Page]:
    """A page that must neither complain nor ask anybody else for anything.

    Args:
        browser: to open it in.
        address: of the server.
        forgiven: what it must complain of.
        context: screen, colours, motion.
    """
    troubles: list[str] = []
    opened = browser.new_context(base_url=address, **context)
    page = opened.new_page()
    page.on("console", lambda said: troubles.append(said.text) if said.type != "log" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("requestfailed", lambda request: troubles.append(request.url))
    page.on(
        "request",
        lambda request: None if request.url.startswith(address) else troubles.append(request.url),
    )
    yield page
    page.wait_for_load_state()  # what is still on its way when the page closes has failed, too
    complaints = [*troubles]
    opened.close()
    foreseen = [each for each in complaints if forgiven is not None and forgiven in each]
    assert complaints == foreseen, complaints
    assert bool(foreseen) == (forgiven is not None)
