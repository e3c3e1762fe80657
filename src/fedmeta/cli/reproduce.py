"""`fedmeta reproduce`: the tables and figures of the paper, and ours, from scratch.

The experiments are part of the source tree, not of the installed package.
"""

from __future__ import annotations

import sys
from pathlib import Path

import fedmeta
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.core.errors import FedmetaError

RESULTS, PAGE = "results", "docs/results.md"

PARAMETERS = (
    Parameter(
        "what",
        "An experiment (table1, table2, convergence, …), or all of them; summary: compute "
        "summary.json from the results again; render: that, and tables and figures.",
        argument=True,
    ),
    Parameter("only", "Only cells like '*/cifar10/*' (repeatable).", many=True, metavar="PATTERN"),
    Parameter("list", "Show the cells and whether they have results; run nothing.", bool),
    Parameter("force", "Run again what has a current result.", bool),
    Parameter("seconds", "Start no further cell after so many seconds.", float),
    Parameter("quick", "A small version on handwritten digits, for a CPU and some minutes.", bool),
    Parameter("out", "Folder of the results.", short="o", metavar="FOLDER", default=RESULTS),
    Parameter("page", "Page to render.", metavar="FILE", default=PAGE),
    Parameter("data_folder", "Where the data sets lie.", metavar="FOLDER"),
    Parameter("device", "cpu or cuda."),
    Parameter("precision", "full, tf32 or bf16."),
    Parameter("threads", "CPU threads.", int),
)


def run(values: Values) -> None:
    """Run the experiments of the paper and our own, cell by cell, and keep what they give."""
    root = Path(fedmeta.__file__).resolve().parents[2]
    if not (root / "experiments/command.py").is_file():
        raise FedmetaError(
            "the experiments are in the source tree of fedmeta, not in the installed package",
            "get the source, install it with pip install -e '.[all]', and run this there",
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    from experiments.command import run as reproduce

    reproduce(values)


COMMAND = Command("reproduce", PARAMETERS, run, "table1 --device cuda --seconds 600")

if __name__ == "__main__":
    COMMAND.main()
