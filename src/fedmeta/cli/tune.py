"""`fedmeta tune`: hyper-parameters, judged on held-out source nodes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import advising, continued_by, progress_bars, say, table
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import Table, merged, subtable
from fedmeta.core.errors import (
    FedmetaError,
    MissingExtraError,
    RunFolderError,
    SettingError,
    require_whole,
)
from fedmeta.core.run_folder import RunFolder, difference
from fedmeta.core.storage import seal, unseal, write_json
from fedmeta.core.user_code import refuse_code
from fedmeta.data import Federation
from fedmeta.evaluation.intervals import FEWEST
from fedmeta.fleet.reopen import own_federation
from fedmeta.report.format import counted
from fedmeta.studies.comparison import reached
from fedmeta.studies.continuing import FILE, begun, declared
from fedmeta.studies.search import Point
from fedmeta.studies.tune import Range, grid, placed, random_points, tune

_USUAL = "admm-fedmeta"

PARAMETERS = (
    *options.CONFIG,
    Parameter(
        "grid",
        "Values to try for a setting of the algorithm or the prior, e.g. --grid penalty=0.1,0.3,1 "
        "or --grid prior.strength=0,0.1,1 (repeatable).",
        many=True,
        metavar="KEY=A,B,…",
    ),
    Parameter(
        "range",
        "Range to draw from on a log scale, e.g. --range penalty=0.01..10 (needs --trials).",
        many=True,
        metavar="KEY=LOW..HIGH",
    ),
    Parameter("trials", "Random draws instead of the whole grid.", int),
    options.SEED,
    Parameter("seeds", "How many repeats, each with its own held-out nodes and weights.", int),
    options.OUT,
    Parameter("resume", "Continue the search in this folder.", metavar="FOLDER"),
    *options.DATA,
    *options.METHOD,
    *options.ALGORITHM,
    *options.PRIOR,
    *options.PARTICIPATION,
    *options.MACHINE,
)


def run(values: Values) -> None:
    """Search hyper-parameters on a held-out fifth of the source nodes, never on targets."""
    full = options.settings_table(PARAMETERS, values)
    seeds = options.repeats(values, 3)
    choices: dict[str, list[Any] | Range] = {}
    for text in values["grid"] or ():
        key, value = _assignment("--grid", text)
        choices[key] = [options.parse_value(each) for each in value.split(",")]
    for text in values["range"] or ():
        key, value = _assignment("--range", text)
        choices[key] = _range(key, value)
    if values["trials"] is None:
        if ranges := [key for key, each in choices.items() if isinstance(each, Range)]:
            raise SettingError(f"{ranges[0]} is a range", "give the number of draws with --trials")
        points = grid({key: each for key, each in choices.items() if isinstance(each, list)})
    else:
        points = random_points(choices, values["trials"], seed=0)
    points = points if choices else []
    folder, resume = Path(values["out"]) if values["out"] else None, False
    count = len(seeds)
    begins: AbstractContextManager[None] = nullcontext()
    if values["resume"]:
        folder, resume = Path(values["resume"]), True
        full, points, count = _resumed(folder, values, full, points, count)
    elif folder is not None:
        _check_points(full, points)  # a slip is told before anything is written
        begins = begun(folder, "tune", {"table": full, "points": points, "seeds": count})
    own_prior = any(key.startswith("prior.") for point in points for key in point)
    earlier = _earlier(full) if own_prior else None
    kept = nullcontext() if folder is None else RunFolder(folder).locked()
    with begins, advising(lambda: _advice(folder)), kept, progress_bars() as bar:
        result = tune(
            full, points, range(count), lambda label: [bar(label)], folder, earlier, resume=resume
        )
    rows = []
    for trial in result["trials"]:
        judged = [trial, *([trial["earlier"]] if earlier is not None else [])]
        rows.append(
            [
                ("→ " if trial is result["best"] and result["crowned"] else "  ")
                + ", ".join(f"{key}={value}" for key, value in trial["settings"].items()),
                *(
                    reached(trial["metric"], each["mean"], each["ci95"])
                    if trial["mean"] is not None
                    else "diverged"
                    for each in judged
                ),
            ]
        )
    columns = ["settings", "held out", *(["prior task"] if earlier is not None else [])]
    table(f"{result['algorithm']}: judged on {result['judged_on']}", columns, rows)
    own = f"algorithms.{result['algorithm']}."
    best = " ".join(
        f"--set {'' if key.startswith('prior.') else own}{key}={value}"
        for key, value in result["best"]["settings"].items()
    )
    if result["crowned"]:
        say(f"best: {best}")
    else:
        say(f"{counted(count, 'seed')} cannot tell which is best: use --seeds {FEWEST} or more")
    if folder is not None:
        unseal(folder)
        write_json(folder / "tuning.json", result)
        seal(folder)
        say(f"kept in {folder}")
        _draw(result, folder)


def _resumed(
    folder: Path, values: Values, given: Table, points: list[Point], count: int
) -> tuple[Table, list[Point], int]:
    """What was asked for in a folder; what is given again must be as it was."""
    if values["out"]:
        raise SettingError("--out and --resume are both given", "it stays where it is")
    asked = declared(folder, "tune")
    table, known, seeds = asked.get("table"), asked.get("points"), asked.get("seeds")
    if not isinstance(table, dict) or not isinstance(known, list):
        raise RunFolderError(f"{folder / FILE} is damaged", "restore the file")
    if not all(isinstance(point, dict) for point in known):
        raise RunFolderError(f"{folder / FILE} is damaged", "restore the file")
    require_whole("seeds", seeds, 1)
    assert isinstance(seeds, int)
    refuse_code(table, given, folder)
    typed = {
        "table": merged([table, given]),
        "points": points or known,
        "seeds": seeds if values["seeds"] is None else count,
    }
    found = difference({"table": table, "points": known, "seeds": seeds}, typed)
    if found is not None:
        raise RunFolderError(
            f"{folder} was started with other settings: {found}", "leave them out to go on with it"
        )
    return table, known, seeds


def _advice(folder: Path | None) -> str:
    if folder is None:
        return "nothing was kept; with --out FOLDER a search can be continued"
    return continued_by("tune", folder, FILE)


def _check_points(full: Table, points: list[Point]) -> None:
    for point in points:
        RunSpec.from_dict(merged([full, placed(str(full.get("algorithm", _USUAL)), point)]))


def _earlier(full: Table) -> Federation | None:
    """The federation of the prior's run, or None where it cannot be opened again."""
    path = subtable(full, "prior").get("model")
    if path is None:
        raise SettingError("there is no prior model to tune the pull of", "name one with --prior")
    try:
        return own_federation(RunFolder.open(Path(path)), sources=True)
    except FedmetaError as error:
        say(f"the prior task is not judged: {error}")
        return None


def _draw(result: dict[str, Any], folder: Path) -> None:
    """The picture of a sweep over λ alone, where there is what draws it."""
    if {key for trial in result["trials"] for key in trial["settings"]} != {"prior.strength"}:
        return
    from fedmeta.report.strength_figure import draw_sweep

    try:
        draw_sweep(result, folder / "strength.svg")
        say(f"picture  {folder / 'strength.svg'}")
    except MissingExtraError as error:
        say(f"picture  not drawn: {error}")


def _assignment(flag: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key or not value:
        raise SettingError(f"{flag} {text!r} is not an assignment", "write KEY=VALUES")
    return key.strip(), value


def _range(key: str, text: str) -> Range:
    low, _, high = text.partition("..")
    try:
        return Range(float(low), float(high))
    except ValueError as error:
        raise SettingError(
            f"--range {key} is {text!r}", "write LOW..HIGH, e.g. 0.01..10"
        ) from error


COMMAND = Command("tune", PARAMETERS, run, "--algorithm fedavg --grid step_size=0.01,0.1,1")

if __name__ == "__main__":
    COMMAND.main()
