"""`fedmeta evaluate`: a trained meta-model on target nodes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import (
    known,
    own_mean_lines,
    percent,
    print_metrics,
    say,
    table,
    write_result,
)
from fedmeta.config.execution import Execution
from fedmeta.config.toml_files import Table, merged, subtable
from fedmeta.config.training import TrainingSettings
from fedmeta.core.calibration import SHARE
from fedmeta.core.errors import (
    DivergedError,
    SettingError,
    require,
    require_choice,
    require_positive,
)
from fedmeta.core.metrics import METRICS, check_metric
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.serialization import deserialize
from fedmeta.data.encoding import model_encoding
from fedmeta.data.federation import Federation
from fedmeta.data.loading import deal_out, read
from fedmeta.data.settings import DataSettings
from fedmeta.evaluation.baseline import baseline
from fedmeta.evaluation.calibrating import Abstaining, abstaining
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.evaluation.majority import majority, majority_note
from fedmeta.evaluation.result import Evaluation
from fedmeta.fleet.reopen import open_model, own_federation, stored_part
from fedmeta.models.meta_model import MetaModel

PARAMETERS = (
    Parameter("run", "Folder of a finished run.", argument=True),
    Parameter("steps", "Numbers of adaptation steps, e.g. 0,1,5.", metavar="N,N,…"),
    Parameter("inner_step_size", "Another step size α for the adaptation.", float),
    Parameter("decide", "Measure also nodes that decide whether and how to adapt.", bool),
    Parameter(
        "abstain", "Share of answers to leave open, the least sure ones.", float, default="0.1"
    ),
    Parameter(
        "metric",
        "Shown first, and per node: accuracy, balanced-accuracy, f1; mse, mae, r2.",
        default="as in training",
    ),
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
    if note := folder.note():
        say(note)
    given = options.settings_table(PARAMETERS, values)
    model = open_model(folder.path, values)
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
    result = evaluate_model(
        model,
        federation,
        steps,
        execution=execution,
        seed=training.seed,
        decides=bool(values["decide"]),
    )
    share = SHARE if values["abstain"] is None else values["abstain"]
    if values["abstain"] is not None and model.calibration is None:
        raise SettingError(
            "the model has no calibration: it predicts values, or was trained by an older "
            "version, with dp or over a fleet",
            "leave --abstain out, or train it again in one process",
        )
    unsure = abstaining(model, federation, execution, training.seed, share)
    asked: str | None = values["metric"] or training.metric
    if asked is not None:
        require_choice("metric", asked, METRICS)
        check_metric(asked, model.task.kind)
    if asked is not None and asked in result.further and asked != result.metric:
        _print_asked(result, asked)
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
    decided = result.decided_summary()
    if decided:
        shown = [percent(metric, decided["target"].get(key)) for key in keys]
        more = [percent(metric, decided["precise"]["mean"])] if "precise" in decided else []
        rows.append(["decided", *shown, *more])
    table(f"{metric} of {len(result.nodes)} target nodes of {federation.name}", columns, rows)
    for line in own_mean_lines(summary, result.own_mean(), rule.steps):
        say(line)
    used = rule.steps if str(rule.steps) in summary else max(map(int, summary))
    always, details = baseline(federation), result.details
    print_metrics(result.metrics(), always, details.get("classes", ()), used)
    if decided:
        chosen = decided["target"]["choices"].items()
        say("decided: " + ", ".join(f"{name} on {count}" for name, count in chosen) + " nodes")
    if unsure is not None:
        say(_abstained(unsure))
        if model.calibration is not None and model.calibration.decides:
            say("  (of nodes that decide how to adapt)")
    if values["per_node"] and asked is not None and asked in result.further:
        of_nodes = result.further[asked]
        table(
            f"{asked} of every target node",
            ["node", "query", *(f"{s} step{'s' * (s != 1)}" for s in of_nodes)],
            [
                [name, str(size), *(percent(asked, known(row[i])) for row in of_nodes.values())]
                for i, (name, size) in enumerate(zip(result.nodes, result.query_sizes, strict=True))
            ],
        )
    if values["per_node"]:
        names = [*summary]
        each = [
            [
                row["name"],
                str(row["query"]),
                *(percent(metric, row["metric"][s]) for s in names),
                *([percent(metric, row["decided"]), row["choice"]] if decided else []),
            ]
            for row in result.per_node()
        ]
        more = ["decided", "choice"] if decided else []
        table(
            "Every target node",
            ["node", "query", *(f"{s} step{'s' * (s != '1')}" for s in names), *more],
            each,
        )
    reached = summary[str(used)]["mean"] if metric == "accuracy" else None
    balanced = "class_weights" in model.about
    if note := majority_note(majority(federation), reached, balanced=balanced):
        say(f"note     {note}")
    for count in (rule.steps,) if rule.steps in steps else steps:
        if not result.is_finite(count):
            raise DivergedError(
                f"after {count} adaptation steps of size {rule.step_size:g} the loss of a target "
                "node is no longer finite",
                "lower the inner step size or evaluate after fewer steps",
            )
    if values["out"]:
        found = {
            "target_metric": summary,
            "precise_metric": precise,
            "own_mean": result.own_mean(),
            "targets": result.per_node(),
            "metrics": result.metrics(),
            "baseline": always,
            **details,
        }
        found |= {"decided_metric": decided} if decided else {}
        found |= {} if unsure is None else {"abstaining": unsure.to_dict()}
        write_result(Path(values["out"]), found)


def _print_asked(result: Evaluation, metric: str) -> None:
    """The metric that was asked for, by steps."""
    keys = ["mean", "weighted_mean", "median", "worst_decile"]
    rows = [
        [steps, *(percent(metric, row[key]) for key in keys)]
        for steps, row in result.metrics().get(metric, {}).items()
    ]
    columns = ["steps", "mean", "by samples", "median", "worst decile"]
    table(f"{metric} of {len(result.nodes)} target nodes", columns, rows)


def _abstained(found: Abstaining) -> str:
    """What comes of leaving answers open, and what the source nodes have promised of it.

    Example:
        >>> _abstained(Abstaining(0.1, 0.85, 0.9, 0.95, (0.93, 0.96), 0.01)).partition("(")[2]
        '+5.0 ± 1.0 points; promised: answers 90.0 %, +3.0 points)'
    """
    answered = "none" if math.isnan(found.answered) else f"{100 * found.answered:.1f} %"
    promise = "nothing is promised before `fedmeta calibrate`"
    if found.promised_gain is not None:
        share, gain = 100 * (1 - found.share), 100 * found.promised_gain
        promise = f"promised: answers {share:.1f} %, {gain:+.1f} points"
    return (
        f"abstaining: answers {100 * found.coverage:.1f} % of the samples, {answered} of these "
        f"rightly ({100 * found.gained:+.1f} ± {100 * found.half_width:.1f} points; {promise})"
    )


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
    pool = read(settings, seed, encoding=model_encoding(model.about))
    return deal_out(pool, settings, seed)


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
