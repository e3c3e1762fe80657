r"""What deciding how to adapt is worth on held-out source nodes, never on targets.

    python -m benchmarks.decision --folder DATA --models build/decision \
        --results results/decision.json

Seeds begin at 100: those of the tables are never seen. The default is trained at every place
without a fifth of its source nodes; these adapt to a part of their samples and are judged on the
rest, divided again and again. Compared are, seed by seed: nodes that always adapt as the model was
trained for (one step), and nodes that decide (`fedmeta.core.decision`), by their mean and by their
worst decile. Of values an error counts in percent of that of each node's own mean. The places are
those of the results page; a training takes minutes at those with images (table 1), which therefore
have fewer seeds: `--image-seeds`. Models are kept, so that another rule is judged without training,
and so are the rows of places that are not asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from experiments.declaration import declaration
from experiments.outside import PLACES
from experiments.results import machine_words
from experiments.training import federation, short, train_seeds
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core.storage import read_json, write_json
from fedmeta.data.federation import Federation
from fedmeta.data.splitting import split
from fedmeta.evaluation.evaluate import evaluate_model
from fedmeta.evaluation.intervals import interval
from fedmeta.evaluation.result import Evaluation, statistics
from fedmeta.models.meta_model import MetaModel
from fedmeta.studies.tune import HELD_OUT
from fedmeta.training.run import Run

FIRST_SEED = 100
DIVISIONS = 10
EXECUTION = Execution(path="batched", chunk=16)
OUTSIDE, TABLE1 = declaration("outside").axes, declaration("table1").axes
IMAGES = {
    f"{data}/{partition}": (data, partition)
    for partition in TABLE1["partition"]
    for data in TABLE1["data"]
}
NAMES = {"/".join(place): place for place in PLACES} | IMAGES


def settings_of(asked: argparse.Namespace, place: str) -> RunSpec:
    """What `fedmeta train` does without options."""
    data, task = NAMES[place]
    both = (
        (TABLE1["data"][data], TABLE1["partition"][task])
        if place in IMAGES
        else (OUTSIDE["data"][data], OUTSIDE["task"][task])
    )
    own = {
        "data": {"folder": asked.folder},
        "training": {"rounds": asked.rounds, "evaluate_every": 0},
    }
    return RunSpec.from_dict(merged([*both, own]))


def trained(
    settings: RunSpec, nodes: Mapping[int, Federation], folder: Path
) -> dict[int, MetaModel]:
    """The models of every seed, those that are there already read."""
    missing = {s: each for s, each in nodes.items() if not (folder / f"{s}.safetensors").exists()}
    for seed, outcome in zip(missing, train_seeds(settings, missing), strict=True):
        if isinstance(outcome, Run):
            folder.mkdir(parents=True, exist_ok=True)
            outcome.meta_model.save(folder / f"{seed}.safetensors")
    files = {seed: folder / f"{seed}.safetensors" for seed in nodes}
    return {seed: MetaModel.load(file) for seed, file in files.items() if file.exists()}


def divided_anew(nodes: Federation) -> Iterator[Federation]:
    """The targets alone, with other support and query sets each time."""
    owned = [np.concatenate([node.support, node.query]) for node in nodes.targets]
    share = float(np.mean([len(node.support) / node.size for node in nodes.targets]))
    classes = nodes.labels.dtype.kind in "iu"
    strata = nodes.labels if classes else np.zeros(len(nodes.labels), np.int64)
    for draw in range(DIVISIONS):
        sets = split(owned, strata, share, np.random.default_rng(draw))
        yield nodes.with_nodes(
            replace(node, support=support, query=query)
            for node, (support, query) in zip(nodes.targets, sets, strict=True)
        )


def judged(model: MetaModel, nodes: Federation) -> dict[str, Any]:
    """One step and deciding on the same divisions: means over them."""
    rows, chosen = [], dict[str, int]()
    for each in divided_anew(nodes):
        found = evaluate_model(
            model, each, [model.adaptation.steps], execution=EXECUTION, decides=True
        )
        for name in found.choices:
            chosen[name] = chosen.get(name, 0) + 1
        rows.append(_compared(found, model.adaptation.steps))
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    return {**means, "choices": chosen}


def _compared(found: Evaluation, steps: int) -> dict[str, float]:
    """Mean and worst decile of both, in points; higher is better."""
    assert found.decided is not None
    both = {"one": found.values[steps], "decided": found.decided}
    row: dict[str, float] = {}
    for name, values in both.items():
        figures = statistics(values, found.query_sizes, found.metric)
        unit = 100.0 if found.metric == "accuracy" else -100 / float(np.mean(found.own_means))
        row |= {name: unit * figures["mean"], f"{name}_worst": unit * figures["worst_decile"]}
    return row


def place_row(place: str, seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the seeds of a place say together: means, and paired differences with their interval."""

    def each(name: str) -> list[float]:
        return [row[name] for row in seeds]

    def difference(one: str, other: str) -> list[float | None]:
        pairs = zip(each(one), each(other), strict=True)
        return [short(part, 3) for part in interval([a - b for a, b in pairs])]

    names = [name for name in seeds[0] if name != "choices"]
    totals = dict[str, int]()
    for row in seeds:
        for name, count in row["choices"].items():
            totals[name] = totals.get(name, 0) + count
    return {
        "place": place,
        "seeds": len(seeds),
        **{name: short(float(np.mean(each(name))), 4) for name in names},
        "gain": difference("decided", "one"),
        "gain_worst": difference("decided_worst", "one_worst"),
        "choices": totals,
    }


def rows_of(file: Path | None, about: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of a results file by their place, none if there is no file."""
    if file is None or not file.exists():
        return {}
    known = read_json(file, "results")
    if other := [name for name, value in about.items() if known[name] != value]:
        raise SystemExit(f"{file} was made with other {', '.join(other)}: name another file")
    return {row["place"]: row for row in known["rows"]}


def write_rows(
    file: Path | None, about: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write a results file, places in their order."""
    if file is not None:
        today = datetime.now(UTC).date().isoformat()
        ordered = [rows[place] for place in NAMES if place in rows]
        write_json(file, {**about, "date": today, "rows": ordered})


def words(row: Mapping[str, Any]) -> str:
    """A row for people."""
    mean, worst = (
        f"{mean:+.2f}" + ("" if half is None else f" ± {half:.2f}")
        for mean, half in (row["gain"], row["gain_worst"])
    )
    text = f"{row['place']:28} one {row['one']:7.2f} decided {mean}, worst decile {worst}"
    return f"{text}; {row['choices']}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row per place as it comes, and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--place", nargs="+", choices=list(NAMES), default=list(NAMES))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--image-seeds", type=int, default=2, help="at places with images")
    parser.add_argument("--folder", help="where the data lie")
    parser.add_argument("--models", type=Path, required=True, help="where models are kept")
    parser.add_argument("--results", type=Path, help="a file for the rows")
    asked = parser.parse_args(arguments)
    about = {"machine": machine_words("cpu"), "rounds": asked.rounds, "divisions": DIVISIONS}
    rows = rows_of(asked.results, about)
    for place in asked.place:
        settings = settings_of(asked, place)
        seeds = asked.image_seeds if place in IMAGES else asked.seeds
        nodes = {
            seed: federation(settings.data_settings, seed).hold_out(HELD_OUT, seed)
            for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        }
        models = trained(settings, nodes, asked.models / place)
        if not models:
            continue
        rows[place] = place_row(place, [judged(model, nodes[s]) for s, model in models.items()])
        print(words(rows[place]), flush=True)
        write_rows(asked.results, about, rows)
    if rows:
        gains = [
            float(np.mean([row[name][0] for row in rows.values()]))
            for name in ("gain", "gain_worst")
        ]
        print("{} places: decided {:+.2f}, worst decile {:+.2f}".format(len(rows), *gains))


if __name__ == "__main__":
    main()
