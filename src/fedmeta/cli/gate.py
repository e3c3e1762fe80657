"""`fedmeta gate`: may a candidate take the place of the model in service?"""

from __future__ import annotations

from pathlib import Path

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import say, write_result
from fedmeta.config.execution import Execution
from fedmeta.config.toml_files import merged, subtable
from fedmeta.core.errors import BlockedError, SettingError
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.serialization import deserialize
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.fleet.reopen import open_model, own_federation, stored_part
from fedmeta.studies.gate import LIMIT, Verdict, check_limit, conclusion, falls, judge

PARAMETERS = (
    Parameter("new", "Run folder of the candidate.", argument=True),
    Parameter("against", "Run folder of a model in service.", many=True, metavar="RUN"),
    Parameter(
        "tasks",
        "Run folder of an earlier task, whose target nodes judge.",
        many=True,
        metavar="RUN",
        default="those in service",
    ),
    Parameter(
        "limit", "Points (of an error: percent) that a task may fall by.", float, default="1"
    ),
    Parameter("out", "Write the verdicts to this JSON file.", short="o", metavar="FILE"),
    *options.OWN_CODE,
    *options.MACHINE,
)


def run(values: Values) -> None:
    """Compare a candidate with the models in service on earlier tasks; exit code 4: blocked."""
    if not values["against"]:
        raise SettingError("there is no model in service", "name its run: --against RUN")
    limit = LIMIT if values["limit"] is None else values["limit"]
    check_limit(limit)
    olds, tasks = values["against"], values["tasks"] or values["against"]
    machinery = subtable(options.settings_table(PARAMETERS, values), "execution")
    opened = {
        path: open_model(RunFolder.open(Path(path)).path, values)
        for path in dict.fromkeys([values["new"], *olds])
    }
    verdicts: list[Verdict] = []
    for task in dict.fromkeys(tasks):
        folder = RunFolder.open(Path(task))
        federation = own_federation(folder)
        stored = stored_part(folder, "execution")
        execution = deserialize(Execution, merged([stored, machinery]), "execution")
        found = {
            path: evaluate_model(model, federation, [model.adaptation.steps], execution=execution)
            for path, model in opened.items()
        }
        for old in dict.fromkeys(olds):
            sums = falls(found[old], found[values["new"]])
            count = len(set(tasks)) * len(set(olds))
            metric = found[old].metric
            verdicts.append(
                judge(sums, metric, task=task, against=old, limit=limit, comparisons=count)
            )
            say(verdicts[-1].line)
    if values["out"]:
        blocked = any(each.blocked for each in verdicts)
        write_result(
            Path(values["out"]),
            {"blocked": blocked, "verdicts": [each.to_dict() for each in verdicts]},
        )
    if any(each.blocked for each in verdicts):
        raise BlockedError(conclusion(verdicts), "keep the model in service, or raise --limit")
    say(conclusion(verdicts))


COMMAND = Command("gate", PARAMETERS, run, "runs/new --against runs/old --tasks runs/task-1")

if __name__ == "__main__":
    COMMAND.main()
