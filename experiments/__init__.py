"""The paper's tables and figures, and our own, as experiments that run again with one command.

An experiment is declared in a TOML file, `table1.toml` for instance. It expands into cells; a cell
is trained with several seeds and leaves one small result file. `summary.json` and the page of
results are computed from those files, by the module beside the declaration: `table1.py`.

| file | what it has |
|---|---|
| `NAME.py`, `NAME.toml` | one experiment: its cells, summary, table and figure |
| `common.toml` | axes and grids that they share |
| `experiment.py`, `registry.py` | what an experiment is, and all of them |
| `declaration.py`, `cell.py` | from a declared experiment to its cells |
| `running.py`, `training.py`, `same_runs.py` | running cells, each run no more than once |
| `two_tasks.py` | cells of two tasks, the second of which starts from the model of the first |
| `own_data.py` | data that are made up for experiments outside the paper |
| `tuning.py` | cells that search for settings |
| `results.py`, `summary.py`, `statistics.py` | result files, and all numbers from them |
| `goals.py`, `held_out.py`, `ahead.py` | parts of the page that are no experiments |
| `page.py`, `tables.py`, `figures.py`, `names.py` | the page, and what its parts share |
| `command.py` | `fedmeta reproduce` |
"""
