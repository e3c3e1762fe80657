"""docs/results.md, other pages beside it, the front page: tables and figures, prose from people.

What stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->` is written here; everything else
is left as it is.
"""

from __future__ import annotations

from pathlib import Path

from experiments import goals
from experiments.declaration import declaration
from experiments.experiment import (
    ABLATION_PAGE,
    MAIN_PAGE,
    OUTSIDE_PAGE,
    TABLE1_PAGE,
    TABLES_PAGE,
    Summary,
    TableOf,
)
from experiments.figures import draw, fingerprint
from experiments.registry import EXPERIMENTS
from experiments.table1 import headline
from fedmeta.core.errors import RunFolderError
from fedmeta.core.storage import write_bytes

HEADLINE = "reproduced"
PAGES: dict[str, dict[str, TableOf]] = {
    MAIN_PAGE: {"goals": goals.table},
    OUTSIDE_PAGE: {goals.OUTSIDE: goals.outside_table},
    TABLE1_PAGE: {},
    ABLATION_PAGE: {},
    TABLES_PAGE: {},
}
"""What every page has between its markers, in this order."""
for _name, _each in EXPERIMENTS.items():
    PAGES[_each.page] |= {_name: _each.table, **_each.further}
FIGURES = {name: each.figure for name, each in EXPERIMENTS.items() if each.figure is not None}


def render(summary: Summary, page: Path, front: Path | None = None) -> list[Path]:
    """Bring the pages and figures up to date; returns what was written.

    Args:
        summary: of all results.
        page: the page of results; made if it is not there, like the other pages beside it.
            Figures go to `figures` beside it.
        front: a page with the headline, if any.

    Raises:
        MissingExtraError: without matplotlib; nothing is written then.
    """
    files = _beside(page)
    texts = {
        name: file.read_text(encoding="utf-8") if file.exists() else blank(name)
        for name, file in files.items()
    }
    figures = draw(FIGURES, summary, page.parent / "figures")
    for name, file in files.items():
        write_bytes(file, filled(texts[name], summary, name).encode())
    if front is None:
        return [*files.values(), *figures]
    front_text = front.read_text(encoding="utf-8")
    write_bytes(front, between(front_text, HEADLINE, headline(summary)).encode())
    return [*files.values(), front, *figures]


def _beside(page: Path) -> dict[str, Path]:
    """Where all pages are: the main one may be called otherwise, the others lie beside it."""
    return {name: page if name == MAIN_PAGE else page.with_name(name) for name in PAGES}


def blank(page: str = MAIN_PAGE) -> str:
    """A page of results with places for everything and no words."""
    titles = {name: declaration(name).title for name in EXPERIMENTS}
    parts = [
        f"## {titles.get(name, name.capitalize())}\n\n{_begin(name)}\n{_end(name)}"
        for name in PAGES[page]
    ]
    return "# Results\n\n" + "\n\n".join(parts) + "\n"


def filled(text: str, summary: Summary, page: str = MAIN_PAGE) -> str:
    """A page with all its generated parts as the summary has them."""
    for name, table in PAGES[page].items():
        parts = [table(summary), _older(name, summary), _picture(name, summary)]
        text = between(text, name, "\n\n".join(part for part in parts if part))
    return text


def between(page: str, name: str, text: str) -> str:
    """The page with the text in place of what stands between the markers of that name.

    Example:
        >>> print(between("a <!-- x: begin --> old <!-- x: end --> b", "x", "new"))
        a <!-- x: begin -->
        <BLANKLINE>
        new
        <BLANKLINE>
        <!-- x: end --> b
    """
    before, begin, rest = page.partition(_begin(name))
    _, end, after = rest.partition(_end(name))
    if not begin or not end:
        raise RunFolderError(f"the page has no {_begin(name)} … {_end(name)}", "put them back")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def _begin(name: str) -> str:
    return f"<!-- {name}: begin -->"


def _end(name: str) -> str:
    return f"<!-- {name}: end -->"


def _older(name: str, summary: Summary) -> str:
    """Which numbers of an experiment are not those of today's default."""
    cells = summary["older"].get(name)
    return f"*Of an older default, not run again yet: {', '.join(cells)}.*" if cells else ""


def _picture(name: str, summary: Summary) -> str:
    """The line that shows a figure, where there is something to show."""
    if name not in FIGURES or not summary[name]:
        return ""
    return f"![{declaration(name).title}](figures/{name}.svg)"


def disagreements(summary: Summary, page: Path, front: Path) -> list[str]:
    """What the pages and figures say that the summary does not: empty when all is well."""
    wrong = []
    for name, file in _beside(page).items():
        text = file.read_text(encoding="utf-8")
        if filled(text, summary, name) != text:
            wrong.append(file.name)
    text = front.read_text(encoding="utf-8")
    if between(text, HEADLINE, headline(summary)) != text:
        wrong.append(front.name)
    for name in FIGURES:
        if not _picture(name, summary):
            continue
        file = page.parent / "figures" / f"{name}.svg"
        if not file.exists() or fingerprint(name, summary) not in file.read_text(encoding="utf-8"):
            wrong.append(file.name)
    return wrong
