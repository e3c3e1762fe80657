"""`fedmeta evaluate`: a trained meta-model on target nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import percent, table, write_result
from fedmeta.config.execution import Execution
from fedmeta.config.toml_files import Table, merged, subtable
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import DivergedError, SettingError, require, require_positive
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.serialization import deserialize
from fedmeta.data.federation import Federation
from fedmeta.data.loading import deal_out, read
from fedmeta.data.settings import DataSettings
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.fleet.reopen import open_model, own_federation, stored_part
from fedmeta.models.meta_model import MetaModel

PARAMETERS = (
    Parameter("run", "Folder of a finished run.", argument=True),
    Parameter("steps", "Numbers of adaptation steps, e.g. 0,1,5.", metavar="N,N,…"),
    Parameter("inner_step_size", "Another step size α for the adaptation.", float),
    Parameter("per_node", "Print every target node.", bool),
    Parameter("out", "Write the numbers to this JSON file.", short="o", metavar="FILE"),
    Parameter("seed", "Of nodes of other data (--data).", int, short="s", setting="training.seed"),
    *options.OWN_CODE,
    *(each for each in options.CONFIG if each.name != "preset"),
    *options.DATA,
    *options.MACHINE,
)


def run(values: Values) -> None:
    """Evaluate a trained meta-model on target nodes, before and after adaptation."""
    folder = RunFolder.open(Path(values["run"]))
    given = options.settings_table(PARAMETERS, values)
    model = open_model(folder.path, values["model"], values["loss"])
    data, changes = subtable(given, "data"), subtable(given, "training")
    training = deserialize(
        TrainingSettings, merged([stored_part(folder, "training"), changes]), "training"
    )
    if set(data) - {"precise"} or "seed" in changes:
        federation = _other_federation(folder, model, data, training.seed)
    else:
        federation = own_federation(folder, data.get("precise"))
    rule = model.adaptation
    if (alpha := values["inner_step_size"]) is not None:
        require_positive("inner_step_size", alpha)
        rule = replace(rule, step_size=alpha)
    steps = _steps(values["steps"]) or (0, *training.evaluation_steps, rule.steps)
    # Laid out as in training, for the same numbers to the last bit; on another device if asked.
    machinery = merged([stored_part(folder, "execution"), subtable(given, "execution")])
    execution = deserialize(Execution, machinery, "execution")
    model = replace(model, adaptation=rule)
    result = evaluate_model(model, federation, steps, execution=execution, seed=training.seed)
    metric, summary = result.metric, result.summary()
    columns = ["steps", "mean", "by samples", "median", "worst decile"]
    keys = ["mean", "weighted_mean", "median", "worst_decile"]
    if result.seen_classes:
        columns.append("only seen classes")
        keys.append("mean_seen_classes")
    rows = [[count, *(percent(metric, row[key]) for key in keys)] for count, row in summary.items()]
    precise = result.precise.summary() if result.precise else {}
    if precise:
        columns.append("precise")
        rows = [[*row, percent(metric, precise[row[0]]["mean"])] for row in rows]
    table(f"{metric} of {len(result.nodes)} target nodes of {federation.name}", columns, rows)
    if values["per_node"]:
        names = [*summary]
        each = [
            [row["name"], str(row["query"]), *(percent(metric, row["metric"][s]) for s in names)]
            for row in result.per_node()
        ]
        table("Every target node", ["node", "query", *(f"{s} steps" for s in names)], each)
    for count in (rule.steps,) if rule.steps in steps else steps:
        if not result.is_finite(count):
            raise DivergedError(
                f"after {count} adaptation steps of size {rule.step_size:g} the loss of a target "
                "node is no longer finite",
                "lower the inner step size or evaluate after fewer steps",
            )
    if values["out"]:
        found = {"target_metric": summary, "precise_metric": precise, "targets": result.per_node()}
        write_result(Path(values["out"]), found)


def _other_federation(folder: RunFolder, model: MetaModel, data: Table, seed: int) -> Federation:
    """Nodes of other data, by the run's own data settings where no others are given.

    The run's own data are refused: of nodes drawn anew, the targets could hold samples that the
    model was trained on.
    """
    stored = stored_part(folder, "data")
    settings = deserialize(DataSettings, merged([stored, data]), "data")
    own, other = (Path(str(each)).expanduser() for each in (stored.get("name"), settings.name))
    if own.resolve() == other.resolve():
        raise SettingError(
            f"drawing nodes of {settings.name} anew could make targets of samples that run "
            f"{folder.path} was trained on",
            "leave out --data, --seed and other settings of the data, or name other data",
        )
    features = model.about.get("features") or None
    return deal_out(read(settings, seed, features=features), settings, seed)


def _steps(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        steps = tuple(int(each) for each in text.split(","))
    except ValueError as error:
        raise SettingError(f"--steps is {text!r}", "write whole numbers, e.g. 0,1,5") from error
    require(min(steps) >= 0, "--steps", text, "whole numbers of at least 0")
    return steps


COMMAND = Command("evaluate", PARAMETERS, run, "runs/mine --steps 0,1,2,5,10")

if __name__ == "__main__":
    COMMAND.main()
