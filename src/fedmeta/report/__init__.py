"""A run, a comparison or a sequence of tasks as one HTML page that needs nothing but itself.

The page holds what the run folder says: settings, curves, counts and metrics, never a sample. It
fetches nothing, runs no script, and is the same to the byte whenever it is made of the same run.
"""

from __future__ import annotations

from pathlib import Path

from fedmeta.core.run_folder import RunFolder
from fedmeta.core.storage import seal_again, write_bytes
from fedmeta.report.comparison_page import comparison_page
from fedmeta.report.comparison_reading import read_comparison
from fedmeta.report.pages import require_extras
from fedmeta.report.reading import read_run
from fedmeta.report.run_page import run_page
from fedmeta.report.sequence_page import read_sequence_facts, sequence_page

__all__ = ["report_page", "write_report"]


def write_report(folder: Path | str) -> Path:
    """Write report.html into the folder of a run, a comparison or a sequence.

    Args:
        folder: made by a run (it may still be going on), by a comparison or by a sequence.

    Returns:
        The path of the page.

    Raises:
        RunFolderError: the folder holds none of them, or one of its files is damaged.
        MissingExtraError: matplotlib or jinja2 is not installed.
    """
    folder = Path(folder)
    path = RunFolder(folder).report
    write_bytes(path, report_page(folder).encode())
    seal_again(path)
    return path


def report_page(folder: Path) -> str:
    """The HTML that `write_report` writes."""
    require_extras()
    if (folder / "comparison.json").is_file():
        return comparison_page(read_comparison(folder))
    if (folder / "sequence.json").is_file():
        return sequence_page(read_sequence_facts(folder))
    return run_page(read_run(folder))
