"""`fedmeta report`: the page of a run or comparison."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import say

PARAMETERS = (
    Parameter("folder", str, "Folder of a run or comparison.", argument=True, required=True),
    Parameter("open", bool, "Show it in a browser."),
)


def run(values: Values) -> None:
    """Write report.html."""
    from fedmeta.report import write_report

    page = write_report(Path(values["folder"]))
    say(f"report   {page}")
    if values["open"]:
        webbrowser.open(page.resolve().as_uri())


COMMAND = Command(
    "report",
    "Write the self-contained report.html of a run or comparison.",
    PARAMETERS,
    run,
    example="fedmeta report runs/demo --open",
)

if __name__ == "__main__":
    from fedmeta.cli import run_one

    run_one(COMMAND)
