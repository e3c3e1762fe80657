"""`fedmeta tune`: hyper-parameters, judged on held-out source nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import plus_minus, progress_bars, say, table
from fedmeta.config.toml_files import Table, subtable
from fedmeta.core.errors import FedmetaError, MissingExtraError, SettingError
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.storage import write_json, writing
from fedmeta.data import Federation
from fedmeta.fleet.reopen import own_federation
from fedmeta.studies.tune import Range, grid, random_points, tune

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
    folder = Path(values["out"]) if values["out"] else None
    if folder is not None and ((folder / "tuning.json").exists() or (folder / "trials").exists()):
        raise SettingError(
            f"{folder} holds a search already", "choose another --out, or delete that folder"
        )
    earlier = _earlier(full) if any(key.startswith("prior.") for key in choices) else None
    with progress_bars() as bar:
        points = points if choices else []
        result = tune(full, points, seeds, lambda label: [bar(label)], folder, earlier)
    rows = []
    for trial in result["trials"]:
        judged = [trial, *([trial["earlier"]] if earlier is not None else [])]
        rows.append(
            [
                ("→ " if trial is result["best"] else "  ")
                + ", ".join(f"{key}={value}" for key, value in trial["settings"].items()),
                *(
                    plus_minus(trial["metric"], each["mean"], each["ci95"])
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
    say(f"best: {best}")
    if folder is not None:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "tuning.json", result)
        say(f"kept in {folder}")
        _draw(result, folder)


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
