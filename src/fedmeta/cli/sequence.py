"""`fedmeta sequence`: tasks one after the other, and what is left of the earlier ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import print_report, progress_bars, results_folder, say, table
from fedmeta.config.toml_files import merged
from fedmeta.core.errors import SettingError, require
from fedmeta.core.run_folder import difference
from fedmeta.core.user_code import refuse_code
from fedmeta.studies.comparison import reached
from fedmeta.studies.sequences import read_sequence, ready, run_sequence
from fedmeta.studies.sequences.declaration import TaskSequence
from fedmeta.studies.sequences.folder import begin, conclude, declared
from fedmeta.studies.sequences.methods import COMPARED, NAMES, Method
from fedmeta.studies.sequences.one_head import CLASS_INCREMENTAL, TASK_INCREMENTAL
from fedmeta.studies.sequences.running import Trainer

_MEASURES = ("average", "incremental", "forgetting", "new", "forward")
_JUDGED = {
    "accuracy": "targets adapted, query sets",
    "precise": "targets adapted, precise sets",
    CLASS_INCREMENTAL: "class-incremental: one model, one head, the task unknown",
    TASK_INCREMENTAL: "task-incremental: one model, the task's classes known",
}
_SETTINGS = ("folder", "nodes", "precise", "rounds")

PARAMETERS = (
    Parameter("sequence", f"TOML file, or {', '.join(ready())}.", argument=True, required=False),
    Parameter(
        "method",
        f"{', '.join(NAMES)}, several joined by +, or all (repeatable).",
        many=True,
        default="as the sequence says",
    ),
    Parameter(
        "strength",
        "λ of the method's prior (of auto: a factor of it).",
        float,
        default="as the sequence says",
    ),
    options.SEEDS,
    options.OUT,
    Parameter("resume", "Continue the sequence in this folder.", metavar="FOLDER"),
    Parameter(
        "edges", "Train over that many edges, as Flower processes.", int, default="in this process"
    ),
    *(each for each in (*options.DATA, *options.METHOD) if each.name in _SETTINGS),
    *(each for each in options.CONFIG if each.name == "set"),
    *options.MACHINE,
)


def run(values: Values) -> None:
    """Learn tasks one after the other and measure what is forgotten."""
    if values["resume"]:
        folder = Path(values["resume"])
        sequence, methods, seeds = _resumed(values)
    else:
        sequence, methods, seeds = _asked(values)
        folder = results_folder(values["out"], sequence.name)
        begin(folder, sequence, methods, seeds)
    trainer = _fleet(folder, values["edges"])
    say(
        f"{sequence.title or sequence.name}: {len(sequence.tasks)} tasks, "
        f"{', '.join(methods)}, seeds {', '.join(map(str, seeds))}"
    )
    found: dict[str, Any] = {}
    with progress_bars() as bar:
        for method in methods:
            found[method] = run_sequence(
                sequence.using(method),
                seeds,
                folder=folder / method,
                progress=lambda label: [bar(label)],
                trainer=trainer,
            )
    print_sequence(conclude(folder, sequence, seeds, found))
    print_report(folder)


def _fleet(folder: Path, edges: int | None) -> Trainer | None:
    """What trains tasks over edges of this machine; None: none were asked for, now or before."""
    from fedmeta.fleet.plan import edges_folder
    from fedmeta.fleet.transport import FleetSettings

    certs = edges_folder(folder) / "certs"
    known = list(certs.glob("nodes/*.pub"))
    if edges is None and not known:
        return None
    fleet = FleetSettings(len(known) if edges is None else edges)
    from fedmeta.fleet.local_fleet import make_keys, run_trial
    from fedmeta.fleet.sequences_over_fleet import FleetTasks

    if not known:
        make_keys(certs, fleet.edges)
    return FleetTasks(
        folder,
        certs.parent,
        fleet,
        lambda run, homes, told: run_trial(run, homes, certs, None, told),
    )


def _asked(values: Values) -> tuple[TaskSequence, list[str], list[int]]:
    """The sequence that flags ask for, the methods to learn it with, and the seeds."""
    if not values["sequence"]:
        raise SettingError("there is no sequence", f"name a TOML file, or {', '.join(ready())}")
    sequence = read_sequence(values["sequence"], options.settings_table(PARAMETERS, values))
    methods = list(values["method"] or [str(sequence.method)])
    if "all" in methods:
        methods = list(COMPARED)
    if (strength := values["strength"]) is not None:
        require(len(methods) == 1, "strength", strength, "it for one method alone")
        sequence = sequence.using(methods[0], strength)
    for method in methods:
        Method.parse(method)
    seeds = options.repeats(values, 1)
    for number in range(len(sequence.tasks)):
        sequence.of_task(number, 0)  # says what is wrong before anything is written
    return sequence, list(dict.fromkeys(methods)), list(seeds)


def _resumed(values: Values) -> tuple[TaskSequence, list[str], list[int]]:
    """What goes on as it was begun; code of the user's own is named again with --set."""
    given = [name for name, value in values.items() if name not in ("resume", "set") and value]
    if given:
        raise SettingError(
            f"--resume and {given[0]} are both given", "a resumed sequence goes on as it was begun"
        )
    folder = Path(values["resume"])
    sequence, methods, seeds = declared(folder)
    typed = options.settings_table(PARAMETERS, values)
    if (other := difference(sequence.settings, merged([sequence.settings, typed]))) is not None:
        raise SettingError(
            f"--resume and --set are both given, and {other}",
            "a resumed sequence goes on as it was begun",
        )
    refuse_code(sequence.settings, typed, folder, "--set {setting}={name}")
    return sequence, methods, seeds


def print_sequence(result: dict[str, Any]) -> None:
    """Measures of every method and, for a single one, its accuracy matrix."""
    for which, judged in _JUDGED.items():
        rows = [
            [
                name,
                *(_cell(measures[each]) for each in _MEASURES),
                _cell(measures["cost"], "loss"),
                str(measures["diverged"]),
            ]
            for name, found in result["methods"].items()
            if (measures := found["measures"].get(which)) is not None
        ]
        if rows:
            count = len(result["seeds"])
            over = f"{count} seed{'s' if count > 1 else ''}"
            title = f"{result['title']}, {judged}, mean ± 95 % interval over {over}"
            columns = ["method", *_MEASURES, "L_p", "diverged"]
            table(title, columns, rows)
    for name, found in result["methods"].items():
        if gate := found.get("gate"):
            say(f"gate     {name}: {gate['line']}")
    if len(result["methods"]) == 1:
        ((name, found),) = result["methods"].items()
        matrix = found["matrix"]["accuracy"]
        after = ["all at once"] if len(matrix) == 1 else ["nothing", *result["tasks"]]
        rows = [[name, *map(_cell, row)] for name, row in zip(after, matrix, strict=False)]
        table(f"{name}: accuracy on the targets of each task", ["after", *result["tasks"]], rows)


def _cell(found: dict[str, Any], metric: str = "accuracy") -> str:
    return "–" if found["mean"] is None else reached(metric, found["mean"], found["ci95"])


COMMAND = Command("sequence", PARAMETERS, run, "digits --method none --method replay+euclidean")

if __name__ == "__main__":
    COMMAND.main()
