r"""Other settings and constants for the default, judged on held-out source nodes, never on targets.

    python -m benchmarks.held_out_nodes --data cifar100 --folder DATA --device cuda \
        --change progress=1.2 --change progress=1.2,rescue=2 --results results/held-out/rescue.json

Of classes that no target shares with a source (`--data glyphs --partition 5-way-1-shot`), and of
nodes that data come with (`--data bands.csv --partition own-nodes`), likewise; of few samples of
each class (`--data digits --partition 1-shot`), too.

A change names options of ADMM-FedMeta, such as longest_step=0.02, other settings by their path,
such as augmentation.shift=2, and constants of `fedmeta.algorithms.step_search` without their
underscore. Seeds begin at 100: those of the tables are never seen. A held-out node has a dozen
samples to judge by, so its samples are divided into support and query set again and again, and the
mean counts. `fedmeta reproduce render` shows what lies in results/held-out. Needs the core alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from experiments.declaration import declaration
from experiments.held_out import gain
from experiments.results import machine_words
from experiments.training import execution_of, federation, final_losses, short, train_seeds
from fedmeta.algorithms import ADMMFedMeta, step_search
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import Table, merged, nested
from fedmeta.core.errors import DivergedError, FedmetaError, SettingError
from fedmeta.core.storage import write_json
from fedmeta.data.federation import Federation
from fedmeta.data.splitting import split
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.evaluation.intervals import interval
from fedmeta.studies.tune import HELD_OUT
from fedmeta.training.run import Run

FIRST_SEED = 100
DIVISIONS = 20
AXES = dict(declaration("robustness").axes)
DATA = list(AXES["data"])
PARTITIONS = list(AXES["partition"])
OUTSIDE = declaration("outside").axes  # places of that page, but for the grid of few digits
AXES["data"] = {
    **AXES["data"],
    **OUTSIDE["data"],
    "digits": {"data": {"name": "digits", "nodes": 50}},
}
_TASKS = ("1-shot", "2-shot", "5-shot", "5-way-1-shot", "5-way-5-shot", "own-nodes")
AXES["partition"] = {**AXES["partition"], **{name: OUTSIDE["task"][name] for name in _TASKS}}
OPTIONS = (
    *(field.name for field in fields(ADMMFedMeta)),
    *("first_penalty", "longest_step", "averaging"),  # of its server
)


class Change(NamedTuple):
    """What a trial does otherwise: options of the algorithm, constants of the rule, settings."""

    options: dict[str, Any]
    constants: dict[str, float]
    settings: dict[str, Any]


def changed(text: str) -> Change:
    """What a change names; `as-it-is` is none.

    Example:
        >>> changed("averaging=0.8,rescue=2")
        Change(options={'averaging': 0.8}, constants={'_RESCUE': 2.0}, settings={})
        >>> changed("augmentation.flip=true").settings
        {'augmentation.flip': True}
    """
    change = Change({}, {}, {})
    for part in text.split(",") if text != "as-it-is" else ():
        name, _, text_of_value = part.partition("=")
        value = _value(text_of_value)
        constant = f"_{name.upper()}"
        if name in OPTIONS:
            change.options[name] = value
        elif "." in name:
            change.settings[name] = value
        elif not isinstance(getattr(step_search, constant, None), float):
            raise SettingError(
                f"{name!r} is neither an option of admm-fedmeta nor a constant of the rule",
                "see step_search.py; for other settings give a path: augmentation.shift=2",
            )
        elif not isinstance(value, int | float):
            raise SettingError(f"{part!r} gives no number", f"write {name}=1.5, for instance")
        else:
            change.constants[constant] = float(value)
    return change


def _value(text: str) -> Any:
    """A number, true, false, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def settings_of(asked: argparse.Namespace, data: str, partition: str, change: Change) -> RunSpec:
    """What `fedmeta train` does without options, but for a change."""
    own: Table = {
        "data": {"folder": asked.folder},
        "algorithms": {ADMMFedMeta.name: change.options},
        "training": {"rounds": asked.rounds, "evaluate_every": 0},
        "execution": {"device": asked.device, "precision": asked.precision},
    }
    layers = [AXES["data"][data], AXES["partition"][partition]]
    return RunSpec.from_dict(merged([*layers, own, nested(change.settings)]))


def tried(settings: RunSpec, seeds: range, constants: Mapping[str, float]) -> dict[str, Any]:
    """What held-out nodes reach, and what is left of the source meta-loss, seed by seed."""
    nodes = {
        seed: federation(settings.data_settings, seed).hold_out(HELD_OUT, seed) for seed in seeds
    }
    with ExitStack() as changes:
        for name, value in constants.items():
            changes.enter_context(mock.patch.object(step_search, name, value))
        outcomes = train_seeds(settings, nodes)
    accuracies, shares, rejected = [], [], []
    finals = final_losses(settings, nodes, outcomes)
    for drawn, outcome, final in zip(nodes.values(), outcomes, finals, strict=True):
        if isinstance(outcome, DivergedError) or final is None:
            continue
        reached_here = judged(outcome, drawn)
        if reached_here is not None:
            accuracies.append(100 * reached_here)
            shares.append(final / outcome.history[0]["meta_loss"])
            rejected.append(sum(each.get("rejected", 0) for each in outcome.history))
    reached = interval(accuracies) if accuracies else None
    return {
        "held_out": short(reached.mean, 4) if reached else None,
        "ci95": short(reached.half_width, 3) if reached else None,
        "seeds": len(seeds),
        "accuracies": [short(each, 4) for each in accuracies],
        "loss_left": [short(share, 3) for share in shares],
        "not_halved": sum(share >= 0.5 for share in shares) + len(seeds) - len(shares),
        "rejected": [int(count) for count in rejected],
    }


def judged(outcome: Run, nodes: Federation) -> float | None:
    """Mean metric of the held-out nodes over many divisions of their samples; None: it diverged."""
    execution = execution_of(outcome)
    share = float(np.mean([len(node.support) / node.size for node in nodes.targets]))
    model = outcome.meta_model
    steps = model.adaptation.steps
    found = [
        evaluate_model(model, each, [steps], execution=execution)
        for each in divided_anew(nodes, share)
    ]
    means = [each.summary()[str(steps)]["mean"] for each in found]
    finite = [mean for mean in means if mean is not None]
    return None if len(finite) < len(means) else float(np.mean(finite))


def divided_anew(federation: Federation, share: float) -> Iterator[Federation]:
    """The targets alone, with other support and query sets each time."""
    owned = [np.concatenate([node.support, node.query]) for node in federation.targets]
    for draw in range(DIVISIONS):
        sets = split(owned, federation.labels, share, np.random.default_rng(draw))
        pairs = zip(federation.targets, sets, strict=True)
        yield federation.with_nodes(
            replace(node, support=support, query=query) for node, (support, query) in pairs
        )


def trials(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row per change, data set and partition, with the paired gain over the first change."""
    seeds = range(FIRST_SEED, FIRST_SEED + asked.seeds)
    changes = {text: changed(text) for text in asked.change}
    firsts: dict[tuple[str, str], list[float]] = {}  # what the first change reaches, seed by seed
    begun = time.monotonic()
    for text, data, partition in itertools.product(changes, asked.data, asked.partition):
        if asked.seconds is not None and time.monotonic() - begun > asked.seconds:
            return
        settings = settings_of(asked, data, partition, changes[text])
        about = {"change": text, "data": data, "partition": partition}
        found = tried(settings, seeds, changes[text].constants)
        first = firsts.setdefault((data, partition), found["accuracies"])
        if first is not found["accuracies"]:
            gained = gain(first, found["accuracies"], len(seeds))
            found["gain"] = gained and [short(each, 3) for each in gained]
        yield {**about, **found}


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--change", action="append", help="name=value,name=value")
    for axis, default in (("data", DATA), ("partition", PARTITIONS)):
        parser.add_argument(f"--{axis}", nargs="+", choices=list(AXES[axis]), default=default)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--folder", help="where the data lie")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="full")
    parser.add_argument("--seconds", type=float, help="start no further trial after so long")
    parser.add_argument(
        "--results", type=Path, help="a file for the rows, such as results/held-out/shifts.json"
    )
    asked = parser.parse_args(arguments)
    asked.change = asked.change or ["as-it-is"]
    return asked


def words(row: Mapping[str, Any]) -> str:
    """A row for people.

    Example:
        >>> about = {"change": "as-it-is", "data": "cifar10", "partition": "fixed-pairs"}
        >>> reached = {"held_out": 86.9, "ci95": None, "loss_left": [0.02], "not_halved": 0}
        >>> words({**about, **reached, "rejected": [1]}).split("fixed-pairs")[1].strip()
        '86.90 %, loss left at most 0.02, 0 not halved, 1 rounds rejected'
    """
    about = f"{row['change']:40} {row['data']:13} {row['partition']:12} "
    if row["held_out"] is None:
        return f"{about} all diverged"
    width = "" if row["ci95"] is None else f" ± {row['ci95']:.2f}"
    if row.get("gain") and None not in row["gain"]:
        width += " ({:+.2f} ± {:.2f})".format(*row["gain"])
    return (
        f"{about} {row['held_out']:.2f}{width} %, loss left at most {max(row['loss_left']):.2f}, "
        f"{row['not_halved']} not halved, {sum(row['rejected'])} rounds rejected"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rows as they come, and keep them."""
    asked = parsed(arguments)
    about = {"machine": machine_words(asked.device), "precision": asked.precision}
    about |= {"rounds": asked.rounds, "date": datetime.now(UTC).date().isoformat()}
    rows: list[dict[str, Any]] = []
    try:
        for row in trials(asked):
            rows.append(row)
            print(words(row), flush=True)
            if asked.results is not None:
                write_json(asked.results, {**about, "rows": rows})
    except FedmetaError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
