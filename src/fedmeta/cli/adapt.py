"""`fedmeta adapt`: a meta-model and a device's own samples give the device's own model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import known, percent, say, table
from fedmeta.core.errors import DataError, SettingError, require, require_choice
from fedmeta.core.metrics import METRICS, check_metric
from fedmeta.core.randomness import DataPurpose, generator
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.storage import writing
from fedmeta.data.pool import Array, Pool
from fedmeta.data.splitting import split
from fedmeta.evaluation.evaluate import scores
from fedmeta.fleet.reopen import open_model, own_federation, samples_for
from fedmeta.models.meta_model import MetaModel

Part = tuple[Array, Array]

PARAMETERS = (
    Parameter("run", "Run folder or model.safetensors.", argument=True),
    Parameter("data", "The device's samples: .csv, .parquet or .npz.", short="d", metavar="FILE"),
    Parameter("target", "Instead: a node of the run's own federation.", metavar="NODE"),
    Parameter("label", "Label column.", default="as in training, or y in .npz files"),
    Parameter("steps", "Gradient steps.", int, default="as trained"),
    Parameter(
        "support_share", "Share to adapt to (1: all); the rest measures.", float, default="0.5"
    ),
    Parameter(
        "metric",
        "Shown first: accuracy, balanced-accuracy, f1, auc; mse, mae, r2.",
        default="as in training",
    ),
    Parameter("seed", "Of the split into the two.", int, short="s"),
    Parameter("decide", "Adapt only if it helps: the samples choose how, and whether.", bool),
    Parameter("out", "Write the model adapted to all samples here.", short="o", metavar="FILE"),
    *options.OWN_CODE,
)


def run(values: Values) -> None:
    """Adapt a meta-model to a device's samples: measured on a part of them, then done with all."""
    path = Path(values["run"])
    model = open_model(path, values)
    if (values["data"] is None) == (values["target"] is None):
        raise SettingError(
            "a device's samples are needed", "give either --data FILE or --target NODE"
        )
    steps = model.adaptation.steps if values["steps"] is None else values["steps"]
    require(steps >= 0, "steps", steps, "a whole number of at least 0")
    if values["data"] is None:
        support, query = _target(path, values)
    else:
        model, support, query = _own(model, values)
    inputs, labels = support
    classes = model.task.kind == "classification"
    named = np.array(model.task.class_names)[labels] if classes else labels
    seed = values["seed"] or 0
    after = {f"after {steps} step" + "s" * (steps != 1): model.adapt(inputs, named, steps, seed)}
    if values["decide"]:
        chosen = model.adapt(inputs, named, steps, seed, decide=True)
        after[f"decided: {chosen.about['decision']['choice']}"] = chosen
    names = _metrics(model, values["metric"])
    rows = []
    for name, each in {"before": model, **after}.items():
        found = scores(each, *query) if len(query[0]) else {}
        rows.append([name, *(percent(metric, known(found.get(metric))) for metric in names)])
    title = f"measured on {len(query[0])} samples, adapted to {len(support[0])} others"
    table(title, ["model", *names], rows)
    if values["decide"]:
        say(_reasons(chosen.about["decision"]))
    if values["out"]:
        _write(model, (support, query), steps, values)


def _metrics(model: MetaModel, asked: str | None) -> list[str]:
    """Names of the metrics for a model's task, the one first that was asked for, here or of it."""
    names = [name for name, each in METRICS.items() if each.task == model.task.kind]
    if asked is not None:
        require_choice("metric", asked, METRICS)
        check_metric(asked, model.task.kind)
    first = asked or model.about.get("metric")
    return sorted(names, key=lambda name: name != first)


def _write(model: MetaModel, parts: tuple[Part, Part], steps: int, values: Values) -> None:
    """The model adapted to all samples: those that measured it have done their work."""
    (inputs, labels), (held, held_labels) = parts
    everything = np.concatenate([inputs, held]), np.concatenate([labels, held_labels])
    classes = model.task.kind == "classification"
    named = np.array(model.task.class_names)[everything[1]] if classes else everything[1]
    seed, file = values["seed"] or 0, Path(values["out"])
    adapted = model.adapt(everything[0], named, steps, seed, decide=bool(values["decide"]))
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    adapted.save(file)
    also = f", also to the {len(held)} it was measured on" if len(held) else ""
    told = ""
    if values["decide"]:
        told = f", by what all samples chose: {adapted.about['decision']['choice']}"
    say(f"model adapted to all {len(named)} samples{also}{told}, written to {file}")


def _reasons(decision: Mapping[str, Any]) -> str:
    """What leaving samples out said of the candidates.

    Example:
        >>> _reasons({"choice": "one", "losses": {"none": 2.0, "one": 0.5}, "counted": 9})
        'loss of 9 samples left out: none 2, one 0.5'
        >>> _reasons({"choice": "one", "losses": {"none": None}, "counted": 0})
        'no sample could be left out: it adapts as it was trained for, unless that harms'
    """
    if decision["counted"] == 0:
        return "no sample could be left out: it adapts as it was trained for, unless that harms"
    losses = decision["losses"].items()
    told = (f"{name} {'not finite' if loss is None else f'{loss:.3g}'}" for name, loss in losses)
    return f"loss of {decision['counted']} samples left out: {', '.join(told)}"


def _target(path: Path, values: Values) -> tuple[Part, Part]:
    federation = own_federation(RunFolder.open(path))
    node = federation.node(values["target"])
    if node.role == "source":
        say(f"warning: the model was trained on {node.name}, so these numbers flatter it")
    return (
        (federation.inputs[node.support], federation.labels[node.support]),
        (federation.inputs[node.query], federation.labels[node.query]),
    )


def _own(model: MetaModel, values: Values) -> tuple[MetaModel, Part, Part]:
    """The model with a device's own classes, its samples to adapt to, and those to measure on."""
    share = 0.5 if values["support_share"] is None else values["support_share"]
    require(0 < share <= 1, "support_share", share, "a share above 0 and at most 1")
    seed = values["seed"] or 0
    require(seed >= 0, "seed", seed, "a whole number of at least 0")
    pool = samples_for(model, values["data"], values["label"])
    for note in pool.remarks:
        say(f"note: {note}")
    model = model.for_classes(pool.class_names)
    labels = _model_labels(model, pool)
    if share == 1:
        return model, (pool.inputs, labels), (pool.inputs[:0], labels[:0])
    if len(labels) < 2:
        raise DataError(f"{pool.name} has {len(labels)} sample", "give two, or --support-share 1")
    strata = labels if model.task.kind == "classification" else np.zeros(len(labels), np.int64)
    randomness = generator(seed, DataPurpose.SPLIT)
    ((support, query),) = split([np.arange(len(labels))], strata, share, randomness)
    adapted_on = pool.inputs[support], labels[support]
    return model, adapted_on, (pool.inputs[query], labels[query])


def _model_labels(model: MetaModel, pool: Pool) -> Array:
    """The labels in the model's numbering: classes are matched by name."""
    if model.task.kind == "regression":
        return pool.labels
    known = {name: number for number, name in enumerate(model.task.class_names)}
    if unknown := [name for name in pool.class_names if name not in known]:
        raise DataError(
            f"{pool.name} has class {unknown[0]!r}, which the model does not know",
            f"its classes are {', '.join(model.task.class_names[:20])}",
        )
    return np.array([known[name] for name in pool.class_names], np.int64)[pool.labels]


COMMAND = Command("adapt", PARAMETERS, run, "runs/mine --data new.csv --out adapted.safetensors")

if __name__ == "__main__":
    COMMAND.main()
