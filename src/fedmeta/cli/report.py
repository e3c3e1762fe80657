"""`fedmeta report`: the page of a run or comparison."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import say

PARAMETERS = (
    Parameter("folder", "Folder of a run or comparison.", argument=True),
    Parameter("open", "Show it in a browser.", bool),
)


def run(values: Values) -> None:
    """Write the self-contained report.html of a run or comparison."""
    from fedmeta.report import write_report

    page = write_report(Path(values["folder"]))
    say(f"report   {page}")
    if values["open"]:
        webbrowser.open(page.resolve().as_uri())


COMMAND = Command("report", PARAMETERS, run, "runs/demo --open")

if __name__ == "__main__":
    COMMAND.main()
