"""An experiment: what is declared beside it, and what becomes of its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from experiments.cell import Cell, Key
from experiments.declaration import Declaration, declared_cells
from experiments.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = Mapping[Key, Result]
"""The results of an experiment by their keys, without its name."""
Summary = Mapping[str, Any]
"""What summary.json has: by experiment and key, then goals."""
Goal = tuple[str, str, str | None, bool | None]
"""What is to hold, what is wanted, what was measured, and whether it does (None: not known)."""
MAIN_PAGE, OUTSIDE_PAGE = "results.md", "results-outside.md"
"""Conclusions, and what was run outside the paper; the long tables stand behind them:"""
TABLE1_PAGE, ABLATION_PAGE = "results-table1.md", "results-ablation.md"
TABLES_PAGE = "results-tables.md"
TableOf = Callable[[Summary], str]
Plot = Callable[["Figure", Summary], None]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the page of results; its name is that of its module, see `registry`.

    Args:
        summarised: its entries of the summary, from its results.
        table: in Markdown, from the summary.
        figure: draws it from the summary; None: it has none.
        further: other parts of the page, after its own, by name.
        cells: what is declared, as cells.
        page: the file of the page that it stands on.
    """

    summarised: Callable[[Found], Iterable[tuple[Key, Any]]]
    table: TableOf
    figure: Plot | None = None
    further: Mapping[str, TableOf] = field(default_factory=dict)
    cells: Callable[[Declaration], list[Cell]] = declared_cells
    page: str = TABLES_PAGE
