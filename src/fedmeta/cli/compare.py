"""`fedmeta compare`: several algorithms on the same footing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmeta.algorithms import ALGORITHMS
from fedmeta.algorithms.algorithm import takes_prior
from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import plus_minus, print_report, progress_bars, results_folder, say, table
from fedmeta.config.spec import RunSpec, build_algorithm
from fedmeta.config.toml_files import Table, merged, nested, subtable
from fedmeta.core.errors import SettingError, require_choice
from fedmeta.core.user_code import is_code_name
from fedmeta.studies.compare import Contestant, Equal, compare

PARAMETERS = (
    Parameter(
        "algorithms",
        "Algorithms to compare, the first against all others; settings may follow a colon: "
        "fedavg:local_steps=5,step_size=0.1",
        argument=True,
        many=True,
    ),
    *options.CONFIG,
    options.SEEDS,
    Parameter("equal", "Give all equal rounds or equal gradients.", metavar="WHAT"),
    options.OUT,
    *options.DATA,
    *options.METHOD,
    *options.PARTICIPATION,
    *options.UPLINK,
    *options.MACHINE,
)


def run(values: Values) -> None:
    """Compare algorithms on the same nodes, splits and initial weights."""
    equal: Any = values["equal"] or "rounds"
    require_choice("equal", equal, ("rounds", "gradients"))
    full = options.settings_table(PARAMETERS, values)
    names = values["algorithms"] or ["admm-fedmeta", "fedavg", "per-fedavg"]
    compare_and_print(values, full, names, equal, Path(values["config"] or "comparison").stem)


def compare_and_print(
    values: Values, full: Table, names: Sequence[str], equal: Equal, folder_name: str
) -> None:
    """Train some algorithms with several seeds and print the table.

    Args:
        values: the command's flags, of which `seeds` and `out` are used.
        full: the settings table.
        names: algorithms, as `contestant` reads them.
        equal: what they are given equally much of.
        folder_name: where results go under runs/ if no folder is given.
    """
    seeds = options.repeats(values, 3)
    contestants = [contestant(full, text) for text in names]
    # Not by the first one's name, which may be an algorithm of the user's own.
    settings = replace(
        RunSpec.from_dict({key: each for key, each in full.items() if key != "algorithm"}),
        algorithm=contestants[0].algorithm,
    )
    tied = any(takes_prior(each.algorithm) for each in contestants)
    if not tied and subtable(full, "prior").get("model") is not None:
        raise SettingError(
            "there is a prior model, but none of the algorithms takes one",
            "compare admm-fedmeta too, or leave [prior] out",
        )
    folder = results_folder(values["out"], folder_name)
    say(
        f"{settings.data_settings.name}: {len(contestants)} algorithms × {len(seeds)} seeds, "
        f"{settings.training.rounds} rounds, equal {equal}"
    )
    with progress_bars() as bar:
        comparison = compare(
            settings, contestants, seeds, equal, folder, lambda title: [bar(title)]
        )
    print_comparison(comparison)
    print_report(folder)


def contestant(full: Table, text: str) -> Contestant:
    """An algorithm with settings of its own, from "name" or "name:key=value,key=value".

    Example:
        >>> contestant({}, "fedavg:local_steps=5").algorithm.passes
        Passes(support=5, query=5)
    """
    head, _, tail = text.rpartition(":")
    if head in ALGORITHMS and "=" not in tail:
        raise SettingError(f"{text!r} has no setting after its colon", "write NAME:KEY=VALUE")
    name, extra = (head, tail) if head and "=" in tail else (text, "")
    own = dict(options.parse_assignment(each) for each in extra.split(",") if each)
    table = merged([full, {"algorithm": name, "algorithms": {name: nested(own)}}])
    algorithm = build_algorithm(table, name)
    if not takes_prior(algorithm):  # the others take no prior, and run without it
        table.pop("prior", None)
    # An algorithm of one's own goes by its name, not by the path of its file.
    label = f"{algorithm.name}:{extra}".rstrip(":") if is_code_name(name) else text
    return Contestant(label, algorithm, table)


def print_comparison(comparison: dict[str, Any]) -> None:
    """The table of means and intervals."""
    metric = comparison["metric"]
    differences = {each["against"]: each for each in comparison["paired"]}
    precise = all("precise" in row for row in comparison["rows"])
    rows = []
    for row in comparison["rows"]:
        less = differences.get(row["label"])
        both = [(row, less)]
        if precise:
            both.append((row["precise"], less and less["precise"]))
        rows.append(
            [
                row["label"],
                plus_minus(metric, row["before_mean"], None),
                *(cell for found, less in both for cell in _cells(metric, found, less)),
                str(row["rounds"]),
                f"{row['gradient_evaluations']:.0f}",
                f"{row['bytes_per_node'] / 1e6:.1f}",
                f"{row['seconds']:.1f}",
                str(row["diverged"]) if row["diverged"] else "–",
            ]
        )
    columns = ["algorithm", "before", "adapted", "first minus this"]
    columns += ["precise", "first minus this, precise"] if precise else []
    columns += ["rounds", "gradients", "MB/node", "seconds", "diverged"]
    seeds = len(comparison["seeds"])
    title = f"{metric} of the target nodes, mean ± 95 % interval over {seeds} seeds"
    table(title, columns, rows)


def _cells(metric: str, found: dict[str, Any], less: dict[str, Any] | None) -> list[str]:
    """What was reached, and the paired difference: accuracies differ by percentage points."""
    reached = plus_minus(metric, found["mean"], found["ci95"])
    if less is None:
        return [reached, ""]
    mean, width = less["mean"], less["ci95"]
    if metric == "accuracy":
        interval = "" if width is None else f" ± {100 * width:.1f}"
        return [reached, f"{100 * mean:+.1f}{interval} points"]
    return [reached, f"{mean:+.3g}" + ("" if width is None else f" ± {width:.2g}")]


COMMAND = Command("compare", PARAMETERS, run, "admm-fedmeta fedavg per-fedavg --seeds 3")

if __name__ == "__main__":
    COMMAND.main()
