"""What `fedmeta reproduce` does: run what is missing, then bring summary and pages up to date."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from experiments.cell import Cell
from experiments.page import HEADLINE, render
from experiments.registry import EXPERIMENTS, all_cells, cells
from experiments.results import Results
from experiments.running import Plan, run_cells, selected, state
from experiments.summary import write_summary
from fedmeta.cli.command import Values
from fedmeta.cli.console import progress_bars, say, table
from fedmeta.cli.reproduce import PAGE, RESULTS
from fedmeta.config.toml_files import Table, nested
from fedmeta.core.errors import FedmetaError, MissingExtraError, SettingError, nearest

_WORDS = (*EXPERIMENTS, "all", "summary", "render")


def run(values: Values) -> None:
    """Run what is missing, then bring the summary up to date."""
    what = values["what"]
    if what not in _WORDS:
        raise SettingError(f"there is no experiment {what!r}", nearest(what, _WORDS))
    results = Results(_folder(values))
    if what in EXPERIMENTS or what == "all":
        names = tuple(EXPERIMENTS) if what == "all" else (what,)
        found = _cells(names, values)
        if values["list"]:
            _show(found, results)
            return
        failed = _run(found, results, values)
    else:
        failed = 0
    summary = write_summary(results, quick=values["quick"])
    say(f"summary  {results.folder / 'summary.json'}")
    if what != "summary":
        _render(summary, results, values)
    if failed:
        raise FedmetaError(f"{failed} cells could not be run", "see above; the others are kept")


def _folder(values: Values) -> Path:
    if values["list"] or not values["quick"]:
        return Path(values["out"] or RESULTS)
    if values["out"] is None:
        return Path(tempfile.mkdtemp(prefix="fedmeta-quick-"))
    if Path(values["out"]).resolve() == Path(RESULTS).resolve():
        raise SettingError("a quick run has no place among the results", "give another --out")
    return Path(values["out"])


def _cells(names: tuple[str, ...], values: Values) -> list[Cell]:
    """All cells that are asked for; a tuning cell that two experiments rest on is there once."""
    found = {each.key: each for name in names for each in cells(name, quick=values["quick"])}
    return selected(list(found.values()), values["only"] or ())


def _show(found: list[Cell], results: Results) -> None:
    rows = [[each.path, str(each.repeats), state(each, results)] for each in found]
    table(f"{len(rows)} cells", ["cell", "repeats", "state"], rows)


def _run(found: list[Cell], results: Results, values: Values) -> int:
    machine: dict[str, Any] = {
        "data.folder": values["data_folder"],
        "execution.device": values["device"],
        "execution.precision": values["precision"],
        "execution.threads": values["threads"],
    }
    given: Table = nested({name: each for name, each in machine.items() if each is not None})
    others = all_cells(quick=values["quick"])
    plan = Plan(results, given, values["force"], values["seconds"], others)
    counts = dict.fromkeys(("ran", "same", "kept", "failed", "no time"), 0)
    with progress_bars() as bar:
        for ended in run_cells(found, plan, lambda label: [bar(label)]):
            counts[ended.state] += 1
            if ended.state == "ran":
                say(f"{ended.cell.path}  {ended.seconds:.1f} s")
            elif ended.state == "same":
                say(f"{ended.cell.path}  the same runs as another cell")
            elif ended.state == "failed":
                say(f"{ended.cell.path}  failed: {ended.problem}")
    say("  ".join(f"{count} {name}" for name, count in counts.items()))
    return counts["failed"]


def _render(summary: dict[str, Any], results: Results, values: Values) -> None:
    """Bring the pages up to date; results elsewhere, as of a quick run, have one beside them."""
    page, front = Path(values["page"] or PAGE), Path("README.md")
    ours = results.folder.resolve() == Path(RESULTS).resolve()
    if not ours and values["page"] is None:
        page = results.folder / page.name
    wanted = ours and front.exists() and HEADLINE in front.read_text("utf-8")
    try:
        render(summary, page, front if wanted else None)
    except MissingExtraError as error:
        if values["what"] == "render":
            raise
        say(f"page     not rendered: {error}")
    else:
        say(f"page     {page}")
