r"""Other constants for the rule that finds ρ, judged on held-out source nodes, never on targets.

    python -m benchmarks.penalty_rule --data cifar100 --folder DATA --device cuda \
        --change progress=1.2 --change progress=1.2,rescue=2 --results build/penalty_rule.json

A change names options of ADMM-FedMeta, such as penalty_form=spectral, and constants of
`fedmeta.algorithms.automatic_penalty` without their underscore. Seeds begin at 100: those of the
tables are never seen. Needs the core alone.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from fedmeta.algorithms import ADMMFedMeta, automatic_penalty
from fedmeta.errors import DivergedError, FedmetaError
from fedmeta.experiments.repeats import federation, losses_of_models, seeded, short
from fedmeta.intervals import interval
from fedmeta.repeats import Repeat, train_repeats
from fedmeta.settings import Settings, build_settings
from fedmeta.storage import write_json
from fedmeta.tuning import HELD_OUT

FIRST_SEED = 100
NODES = {"fashion-mnist": 50, "cifar10": 50, "cifar100": 100}
PARTITIONS: dict[str, dict[str, Any]] = {
    "fixed-pairs": {"partition": "fixed-pairs"},
    "random-pairs": {"partition": "random-classes", "classes_per_node": 2},
}

OPTIONS = tuple(field.name for field in fields(ADMMFedMeta))


class Change(NamedTuple):
    """What a trial does otherwise: options of the algorithm, and constants of the rule."""

    options: dict[str, float | str]
    constants: dict[str, float]


def changed(text: str) -> Change:
    """What a change names; `as-it-is` is none.

    Example:
        >>> changed("averaging=0.8,rescue=2")
        Change(options={'averaging': 0.8}, constants={'_RESCUE': 2.0})
    """
    change = Change({}, {})
    for part in text.split(",") if text != "as-it-is" else ():
        name, _, value = part.partition("=")
        constant = f"_{name.upper()}"
        if name in OPTIONS:
            change.options[name] = _number(value)
        elif isinstance(getattr(automatic_penalty, constant, None), float):
            change.constants[constant] = float(value)
        else:
            raise SystemExit(
                f"{name!r} is neither an option of admm-fedmeta nor a constant of the rule: see "
                "automatic_penalty.py"
            )
    return change


def _number(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


def settings_of(
    asked: argparse.Namespace, data: str, partition: str, options: Mapping[str, Any]
) -> Settings:
    """What `fedmeta train` does without options, but for these of the algorithm."""
    return build_settings(
        {
            "data": {
                "name": data,
                "nodes": NODES[data],
                "folder": asked.folder,
                **PARTITIONS[partition],
            },
            "model": {"initialisation": asked.initialisation},
            "algorithms": {"admm-fedmeta": dict(options)},
            "training": {"rounds": asked.rounds, "evaluate_every": 0},
            "execution": {"device": asked.device, "precision": asked.precision},
        }
    )


def tried(settings: Settings, seeds: range, constants: Mapping[str, float]) -> dict[str, Any]:
    """What held-out nodes reach, and what is left of the source meta-loss, seed by seed."""
    repeats = [
        Repeat(
            seeded(settings, seed),
            federation(settings.data, seed).hold_out(HELD_OUT, seed),
        )
        for seed in seeds
    ]
    with ExitStack() as changes:
        for name, value in constants.items():
            changes.enter_context(mock.patch.object(automatic_penalty, name, value))
        outcomes = train_repeats(repeats)
    accuracies, shares, rejected = [], [], []
    for outcome, final in zip(outcomes, losses_of_models(repeats, outcomes), strict=True):
        if isinstance(outcome, DivergedError) or final is None:
            shares.append(float("inf"))
            continue
        steps = str(outcome.summary["adaptation_steps"])
        accuracies.append(100 * outcome.summary["target_metric"][steps]["mean"])
        shares.append(final / outcome.history[0]["meta_loss"])
        rejected.append(sum(each["rejected"] for each in outcome.history))
    held_out = interval(accuracies)
    return {
        "held_out": short(held_out.mean, 4),
        "ci95": short(held_out.half_width, 3),
        "loss_left": [short(share, 3) for share in shares],
        "not_halved": sum(not share < 0.5 for share in shares),
        "rejected": short(sum(rejected) / max(1, len(rejected)), 3),
    }


def trials(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row per change, data set, partition and start."""
    seeds = range(FIRST_SEED, FIRST_SEED + asked.seeds)
    begun = time.monotonic()
    for text, data, partition, start in itertools.product(
        asked.change, asked.data, asked.partition, asked.start
    ):
        if asked.seconds is not None and time.monotonic() - begun > asked.seconds:
            return
        change = changed(text)
        options = {"first_penalty": start, **change.options}
        settings = settings_of(asked, data, partition, options)
        about = {"change": text, "data": data, "partition": partition, "start": start}
        about["initialisation"] = asked.initialisation
        yield {**about, **tried(settings, seeds, change.constants)}


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--change", action="append", help="name=value,name=value")
    parser.add_argument("--data", nargs="+", choices=NODES, default=list(NODES))
    parser.add_argument(
        "--partition", nargs="+", choices=PARTITIONS, default=["fixed-pairs"], help="who holds what"
    )
    parser.add_argument("--start", nargs="+", type=float, default=[1000.0], help="ρ to begin with")
    parser.add_argument("--initialisation", default="pytorch")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--folder", help="where the data lie")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="full")
    parser.add_argument("--seconds", type=float, help="start no further trial after so long")
    parser.add_argument("--results", type=Path, help="a file for the rows")
    asked = parser.parse_args(arguments)
    asked.change = asked.change or ["as-it-is"]
    return asked


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rows as they come, and keep them."""
    asked = parsed(arguments)
    rows: list[dict[str, Any]] = []
    try:
        for row in trials(asked):
            rows.append(row)
            worst = max(row["loss_left"])
            width = "" if row["ci95"] is None else f" ± {row['ci95']:.2f}"
            print(
                f"{row['change']:32} {row['data']:14} {row['partition']:13} {row['start']:<8g} "
                f"{row['held_out']:.2f}{width} %  loss left at most {worst:.2f}, "
                f"{row['not_halved']} not halved, {row['rejected']:.1f} rejected",
                flush=True,
            )
            if asked.results is not None:
                write_json(asked.results, rows)
    except FedmetaError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
