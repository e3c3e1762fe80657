"""A run, or a comparison of runs, as one HTML page that needs nothing but itself.

The page holds what the run folder says: settings, curves, counts and metrics, never a sample. It
fetches nothing, runs no script, and is the same to the byte whenever it is made of the same run.
"""

from __future__ import annotations

from pathlib import Path

from fedmeta.report.comparison_page import comparison_page
from fedmeta.report.pages import require_extras
from fedmeta.report.reading import read_comparison, read_run
from fedmeta.report.run_page import run_page
from fedmeta.run_folder import RunFolder
from fedmeta.storage import write_bytes

__all__ = ["write_report"]


def write_report(folder: Path | str) -> Path:
    """Write report.html into a run folder or a comparison folder.

    Args:
        folder: made by a run (it may still be going on) or by a comparison.

    Returns:
        The path of the page.

    Raises:
        RunFolderError: the folder holds neither, or one of its files is damaged.
        MissingExtraError: matplotlib or jinja2 is not installed.
    """
    folder = Path(folder)
    require_extras()
    if (folder / "comparison.json").is_file():
        page = comparison_page(read_comparison(folder))
    else:
        page = run_page(read_run(folder))
    path = RunFolder(folder).report
    write_bytes(path, page.encode())
    return path
