"""The paper's tables and figures, and our own, as experiments that run again with one command.

An experiment is declared in a TOML file beside this one. It expands into cells; a cell is trained
with several seeds and leaves one small result file. Everything else, `summary.json` and the page of
results, is computed from those files.
"""

EXPERIMENTS = (
    "table1",
    "table2",
    "convergence",
    "rho",
    "prior",
    "samples",
    "dissimilarity",
    "ablation",
    "robustness",
    "sequences",
)
"""Their names: of the command's argument, of the declarations and of the folders of results."""
