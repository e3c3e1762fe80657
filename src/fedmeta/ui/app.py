"""The server: which address shows what. Everything of substance is done elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fedmeta.core.errors import DataError, FedmetaError, RunFolderError
from fedmeta.core.plain_values import parse_json
from fedmeta.core.run_folder import RunFolder
from fedmeta.report import format as fmt
from fedmeta.report import report_page
from fedmeta.report.comparison_reading import read_comparison
from fedmeta.report.headline import comparison_headline, comparison_remarks
from fedmeta.report.reading import read_run
from fedmeta.report.sequence_page import read_sequence_facts
from fedmeta.ui import uploads
from fedmeta.ui.adaptation import MOST_STEPS
from fedmeta.ui.keeping import delete, read_notes, write_notes
from fedmeta.ui.metrics_file import new_rounds
from fedmeta.ui.open_models import OpenModels
from fedmeta.ui.run_view import run_content
from fedmeta.ui.runs import RunIndex
from fedmeta.ui.security import RequestFilter
from fedmeta.ui.side_by_side import method_curves, side_by_side
from fedmeta.ui.timed_protocol import TimedProtocol
from fedmeta.ui.turns import BusyError, Turns

_HERE = Path(__file__).parent
_REPORT = _HERE.parent / "report"  # whose colours, type and parts of pages are used here too
_MOST_CONNECTIONS = 100
_LONGEST_QUESTION = 2**20  # bytes of the JSON that a page asks with


def create_app(root: Path, host: str = "127.0.0.1", token: str | None = None) -> Starlette:
    """The page of a folder of runs, on a server that is bound to a host.

    Args:
        root: the folder.
        host: what the server is bound to.
        token: that all requests need; see `RequestFilter`.
    """
    site = Site(root)
    adapt_node = partial(site.adapt_with, site.models.adapt_node)
    adapt_own = partial(site.adapt_with, site.models.adapt_own)
    return Starlette(
        routes=[
            Route("/", site.overview),
            Route("/compare", site.compare),
            Route("/run/{name:path}", site.run),
            Route("/comparison/{name:path}", site.comparison),
            Route("/sequence/{name:path}", site.sequence),
            Route("/report/{name:path}", site.report, methods=["POST"]),
            Route("/adapt/{name:path}", site.adapt),
            Route("/own/{name:path}", site.own),
            Route("/api/rounds/{name:path}", site.rounds),
            Route("/api/adapt/{name:path}", adapt_node, methods=["POST"]),
            Route("/api/bring/{name:path}", site.add_file, methods=["POST"]),
            Route("/api/adapt-own/{name:path}", adapt_own, methods=["POST"]),
            Route("/api/notes/{name:path}", site.keep_notes, methods=["POST"]),
            Route("/api/delete/{name:path}", site.delete, methods=["POST"]),
            Route("/api/model/{token}", site.model),
            Route(
                "/report.css", lambda _: FileResponse(_REPORT / "style.css", media_type="text/css")
            ),
            Mount("/static", StaticFiles(directory=_HERE / "static")),
        ],
        middleware=[Middleware(RequestFilter, name=host, token=token)],
        exception_handlers=dict.fromkeys((FedmetaError, HTTPException, OSError), site.show_error),
    )


def server(root: Path, host: str = "127.0.0.1", token: str | None = None) -> uvicorn.Server:
    """A server for the page of a folder of runs; `run` it on a socket that listens."""
    config = uvicorn.Config(
        create_app(root, host, token),
        http=TimedProtocol,
        limit_concurrency=_MOST_CONNECTIONS,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=1,  # a page that polls shall not hold the end up
    )
    return uvicorn.Server(config)


class Site:
    """The endpoints, over one folder of runs."""

    def __init__(self, root: Path) -> None:
        self._index, self.models = RunIndex(root), OpenModels()
        self._reports, self._uploads = Turns(2, waiting=8), Turns(4, waiting=16)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader([_HERE / "templates", _REPORT]),
            autoescape=True,  # whatever comes from a run
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(fmt=fmt, place=root.name or str(root))

    def overview(self, request: Request) -> Response:
        """The list of runs."""
        return self._page("overview.html", {"rows": self._index.rows()})

    def compare(self, request: Request) -> Response:
        """Runs that were chosen in the list, side by side."""
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        runs = {name: read_run(self._index.folder(name)) for name in names}
        return self._page("compare.html", side_by_side(runs))

    def run(self, request: Request) -> Response:
        """One run: curves, nodes, what it reached."""
        name, folder = self._asked(request)
        content = {**run_content(read_run(folder)), "notes": read_notes(folder)}
        running = RunFolder(folder).is_running()
        about = {"name": name, "trail": self._trail(folder), "running": running}
        return self._page("run.html", {**about, **content})

    def comparison(self, request: Request) -> Response:
        """One comparison, and the way to its runs."""
        name, folder = self._asked(request)
        facts, rows = read_comparison(folder), self._index.rows(folder)
        content = {"name": name, "comparison": facts, "rows": rows, "notes": read_notes(folder)}
        content["said"] = " ".join([comparison_headline(facts), *comparison_remarks(facts)])
        unit = fmt.unit(facts.metric, facts.data.get("label"))
        return self._page(
            "comparison.html", {**content, "curves": method_curves(facts), "unit": unit}
        )

    def sequence(self, request: Request) -> Response:
        """One sequence of tasks: what is left of each after the others."""
        name, folder = self._asked(request)
        rows = sorted(self._index.rows(folder), key=lambda row: row.name)  # as they were learned
        ended = (folder / "sequence.json").exists()
        facts = read_sequence_facts(folder) if ended else None
        return self._page("sequence.html", {"name": name, "sequence": facts, "rows": rows})

    async def report(self, request: Request) -> Response:
        """The report of a run, comparison or sequence, made anew and written nowhere."""
        _, folder = self._asked(request)
        async with self._reports:
            return HTMLResponse(await run_in_threadpool(report_page, folder))

    def adapt(self, request: Request) -> Response:
        """A target of the run, its samples, and the button."""
        name, folder = self._asked(request)
        stage = self.models.target(folder, request.query_params.get("node"))
        content = {"name": name, "stage": stage, "most_steps": MOST_STEPS}
        return self._page("adapt.html", {**content, "trail": self._trail(folder)})

    def own(self, request: Request) -> Response:
        """A place to bring one's own samples to."""
        name, folder = self._asked(request)
        limits = {"limit": uploads.LIMIT, "most_samples": uploads.MOST_SAMPLES}
        content = {"name": name, "stage": self.models.about(folder), "most_steps": MOST_STEPS}
        return self._page("own.html", {**content, **limits, "trail": self._trail(folder)})

    def rounds(self, request: Request) -> Response:
        """Rounds since the last look."""
        _, folder = self._asked(request)
        offset = request.query_params.get("offset", "0")
        if not offset.isdecimal():
            raise DataError(f"offset is {offset[:20]!r}", "give a whole number")
        found = new_rounds(folder / "metrics.jsonl", int(offset))
        return JSONResponse({**vars(found), "ended": (folder / "summary.json").exists()})

    async def adapt_with(
        self, work: Callable[[Path, Mapping[str, Any]], dict[str, Any]], request: Request
    ) -> Response:
        """Adapt to a target's support set, or to samples that were brought."""
        _, folder = self._asked(request)
        async with self._uploads:
            asked = await _question(request)
            return JSONResponse(await run_in_threadpool(work, folder, asked))

    async def keep_notes(self, request: Request) -> Response:
        """Keep a title and tags of a run, comparison or sequence."""
        _, folder = self._known(request)
        async with self._uploads:
            asked = await _question(request)
            return JSONResponse(asdict(await run_in_threadpool(write_notes, folder, asked)))

    async def delete(self, request: Request) -> Response:
        """Remove a run, comparison or sequence, if that was confirmed."""
        name, folder = self._known(request)
        async with self._uploads:
            await run_in_threadpool(delete, folder, name, await _question(request))
        return JSONResponse({"deleted": name})

    async def add_file(self, request: Request) -> Response:
        """Take a file of the user's."""
        _, folder = self._asked(request)
        asked = request.query_params
        _check_length(request, uploads.LIMIT)
        token, name, invert = asked.get("set"), asked.get("name", ""), asked.get("invert") == "yes"
        async with self._uploads:
            content = await uploads.read_body(request.stream())
            work = partial(self.models.add_file, folder, token, name, content, invert=invert)
            return JSONResponse(await run_in_threadpool(work))

    def model(self, request: Request) -> Response:
        """Download an adapted model."""
        name, content = self.models.download(request.path_params["token"])
        how = f"attachment; filename*=UTF-8''{quote(name, safe='')}.safetensors"
        kind = "application/octet-stream"
        return Response(content, media_type=kind, headers={"Content-Disposition": how})

    async def show_error(self, request: Request, error: Exception) -> Response:
        """An error in words: as JSON to scripts, as a page to people."""
        code = _status(error)
        problem = getattr(error, "problem", None) or getattr(error, "detail", None) or str(error)
        words = {"problem": problem, "remedy": getattr(error, "remedy", "go back to the list")}
        if request.url.path.startswith("/api/"):
            return JSONResponse(words, status_code=code)
        name = request.path_params.get("name", "")
        return self._page("error.html", {**words, "name": name}, code)

    def _asked(self, request: Request) -> tuple[str, Path]:
        folder = self._index.folder(request.path_params["name"])
        return self._index.name(folder), folder

    def _known(self, request: Request) -> tuple[str, Path]:
        """The same of what may be changed: a run, comparison or sequence, not a folder of them."""
        name, folder = self._asked(request)
        self._index.kind(folder)
        return name, folder

    def _trail(self, folder: Path) -> list[tuple[str, str]]:
        """Addresses and names that lead to a run: of what it is part of, if so, and its own."""
        name, found = self._index.name(folder), self._index.enclosing(folder)
        if found is None:
            return [(f"/run/{name}", name)]
        kind, outer = found
        whole = self._index.name(outer)
        return [(f"/{kind}/{whole}", whole), (f"/run/{name}", name.removeprefix(f"{whole}/"))]

    def _page(self, template: str, content: Mapping[str, Any], code: int = 200) -> Response:
        return HTMLResponse(self._templates.get_template(template).render(content), code)


async def _question(request: Request) -> dict[str, Any]:
    """The JSON object that a page asks with."""
    _check_length(request, _LONGEST_QUESTION)
    try:
        asked = parse_json(await uploads.read_body(request.stream()))
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        raise DataError("the request is not a JSON object", "reload the page")
    return asked


def _check_length(request: Request, most: int) -> None:
    """Refuse what says it is too large before a byte of it is read."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise uploads.TooLargeError(most)


def _status(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, uploads.TooLargeError):
        return 413
    if isinstance(error, BusyError):
        return 503
    if isinstance(error, OSError):
        return 500
    return 404 if isinstance(error, RunFolderError) else 422
