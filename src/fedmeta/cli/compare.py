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
from fedmeta.cli.console import (
    advising,
    continued_by,
    print_report,
    progress_bars,
    results_folder,
    say,
    table,
)
from fedmeta.config.spec import RunSpec, build_algorithm
from fedmeta.config.toml_files import Table, merged, nested, subtable
from fedmeta.core.errors import RunFolderError, SettingError, require_choice, require_whole
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.run_folder import difference as changed
from fedmeta.core.user_code import is_code_name, refuse_code
from fedmeta.report.format import counted
from fedmeta.studies.compare import Contestant, Equal, compare
from fedmeta.studies.comparison import Comparison, difference, reached
from fedmeta.studies.continuing import FILE, begun, declared
from fedmeta.studies.fair_steps import GRID, automatic_steps, unfair_note

_Contest = tuple[RunSpec, list[Contestant]]

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
    Parameter(
        "steps",
        "own, or automatic: algorithms whose step sizes nobody gave find them as the default does.",
        metavar="HOW",
        default="own",
    ),
    options.OUT,
    Parameter("resume", "Continue the comparison in this folder.", metavar="FOLDER"),
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
    require_choice("steps", values["steps"] or "own", ("own", "automatic"))
    full = options.settings_table(PARAMETERS, values)
    if values["resume"]:
        resume_comparison(values, full, values["algorithms"] or (), values["equal"])
        return
    names = values["algorithms"] or ["admm-fedmeta", "fedavg", "per-fedavg"]
    compare_and_print(values, full, names, equal, Path(values["config"] or "comparison").stem)


def compare_and_print(
    values: Values, full: Table, names: Sequence[str], equal: Equal, folder_name: str
) -> None:
    """Train some algorithms with several seeds and print the table.

    Args:
        values: the command's flags, of which `seeds`, `steps` and `out` are used.
        full: the settings table.
        names: algorithms, as `contestant` reads them.
        equal: what they are given equally much of.
        folder_name: where results go under runs/ if no folder is given.
    """
    seeds = len(options.repeats(values, 3))
    folder = results_folder(values["out"], folder_name)
    steps = values.get("steps") or "own"
    contest = _contest(full, names, steps)  # a slip is told before anything is written
    with begun(folder, "compare", _asked(full, names, equal, seeds, steps)):
        _go_on(folder, contest, range(seeds), equal, steps, resume=False)


def resume_comparison(
    values: Values, given: Table, names: Sequence[str], equal: str | None = None
) -> None:
    """Go on with a comparison; what is given again must be as it was.

    Args:
        values: the command's flags: `resume` is the folder.
        given: the settings that were typed now.
        names: algorithms that were typed now, needed where one is code of the user's own.
        equal: likewise.
    """
    folder = Path(values["resume"])
    if values["out"]:
        raise SettingError("--out and --resume are both given", "it stays where it is")
    asked = declared(folder, "compare")
    full, known, count = asked.get("table"), asked.get("algorithms"), asked.get("seeds")
    if (
        not isinstance(full, dict)
        or not isinstance(known, list)
        or not all(isinstance(name, str) for name in known)
        or asked.get("equal") not in ("rounds", "gradients")
        or asked.get("steps") not in ("own", "automatic")
    ):
        raise RunFolderError(f"{folder / FILE} is damaged", "restore the file")
    require_whole("seeds", count, 1)
    assert isinstance(count, int)
    own = [name for name in known if name.partition(":")[0] not in ALGORITHMS]
    if own and list(names) != known:
        raise RunFolderError(
            f"{folder} names code of your own ({own[0]}), which is not run unless you say so",
            f"name all algorithms again: {' '.join(known)}",
        )
    refuse_code({k: v for k, v in full.items() if k != "algorithm"}, given, folder)
    steps = asked["steps"]
    typed = _asked(
        merged([full, given]),
        names or known,
        equal or asked["equal"],
        count if values["seeds"] is None else values["seeds"],
        values.get("steps") or steps,
    )
    kept = {key: asked[key] for key in typed}
    if (found := changed(kept, typed)) is not None:
        raise RunFolderError(
            f"{folder} was started with other settings: {found}", "leave them out to go on with it"
        )
    contest = _contest(full, known, steps)
    _go_on(folder, contest, range(count), asked["equal"], steps, resume=True)


def _asked(full: Table, names: Sequence[str], equal: str, seeds: int, steps: str) -> dict[str, Any]:
    return {
        "table": full,
        "algorithms": list(names),
        "equal": equal,
        "seeds": seeds,
        "steps": steps,
    }


def _contest(full: Table, names: Sequence[str], steps: str) -> _Contest:
    """What is compared: the runs' common settings, and the algorithms."""
    contestants = [contestant(full, text, automatic=steps == "automatic") for text in names]
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
    return settings, contestants


def _go_on(
    folder: Path,
    contest: _Contest,
    seeds: Sequence[int],
    equal: Equal,
    steps: str,
    *,
    resume: bool,
) -> None:
    settings, contestants = contest
    say(
        f"{settings.data_settings.name}: {counted(len(contestants), 'algorithm')} × "
        f"{counted(len(seeds), 'seed')}, {counted(settings.training.rounds, 'round')}, "
        f"equal {equal}"
    )
    with (
        advising(lambda: continued_by("compare", folder, FILE)),
        RunFolder(folder).locked(),
        progress_bars() as bar,
    ):
        comparison = compare(
            settings, contestants, seeds, equal, folder, lambda title: [bar(title)], resume=resume
        )
    print_comparison(comparison, automatic=steps == "automatic")
    print_report(folder)


def contestant(full: Table, text: str, *, automatic: bool = False) -> Contestant:
    """An algorithm with settings of its own, from "name" or "name:key=value,key=value".

    Args:
        full: the settings table of all.
        text: its name, and what is set for it alone.
        automatic: whether it finds step sizes that nobody has given, as the default does.

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
    own_table = table.get("algorithms", {}).get(name, {})
    written = {*own_table, *(["inner"] if table.get("inner") else [])}
    if automatic and (found := automatic_steps(algorithm, written)):
        table = merged([table, {"algorithms": {name: found}}])
        algorithm = build_algorithm(table, name)
    if not takes_prior(algorithm):  # the others take no prior, and run without it
        table.pop("prior", None)
    # An algorithm of one's own goes by its name, not by the path of its file.
    label = f"{algorithm.name}:{extra}".rstrip(":") if is_code_name(name) else text
    return Contestant(label, algorithm, table)


def print_comparison(comparison: Comparison, *, automatic: bool = False) -> None:
    """The table of means and intervals, and what to know before anything is concluded.

    Args:
        comparison: what was found.
        automatic: whether all that take automatic steps have them already.
    """
    metric = comparison["metric"]
    differences = {each["against"]: each for each in comparison["paired"]}
    precise = all("precise" in row for row in comparison["rows"])
    rows = []
    for row, (label, before, adapted, less, steps) in zip(
        comparison["rows"], comparison.cells(), strict=True
    ):
        cells = [label, steps, before, adapted, less]
        if precise:
            on_precise = differences.get(row["label"], {}).get("precise")
            cells.append(reached(metric, row["precise"]["mean"], row["precise"]["ci95"]))
            cells.append(difference(metric, on_precise))
        cells += [
            str(row["rounds"]),
            f"{row['gradient_evaluations']:.0f}",
            f"{row['bytes_per_node'] / 1e6:.1f}",
            f"{row['seconds']:.1f}",
            str(row["diverged"]) if row["diverged"] else "–",
        ]
        rows.append(cells)
    columns = ["algorithm", "step sizes", "before", "adapted", "first minus this"]
    columns += ["precise", "first minus this, precise"] if precise else []
    columns += ["rounds", "gradients", "MB/node", "seconds", "diverged"]
    table(comparison.title, columns, rows)
    for note in comparison.notes:
        say(f"note: {note}")
    untuned = [row for row in comparison["rows"] if row["steps"] == "default"]
    if untuned and unfair_note({row["label"]: row["steps"] for row in comparison["rows"]}):
        name = untuned[0]["algorithm"]
        if not automatic:
            say("      the same automatic steps for all: add --steps automatic")
        say(f"      or tune them, e.g. fedmeta tune --algorithm {name} {GRID}")


COMMAND = Command("compare", PARAMETERS, run, "admm-fedmeta fedavg per-fedavg --seeds 3")

if __name__ == "__main__":
    COMMAND.main()
