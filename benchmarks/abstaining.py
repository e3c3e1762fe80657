r"""What leaving the least sure tenth of the answers open gains, against what was promised.

    python -m benchmarks.abstaining --folder DATA --models build/abstaining \
        --results results/abstaining.json

As in `benchmarks.decision` the default is trained at every place without a fifth of its source
nodes; these adapt to a part of their samples and answer the rest, divided again and again. Targets
are never looked at. The promise is that of the calibration of the other source nodes: counted under
the model that was trained on them ("seen"), and by cross-fitting, each under a model that was not
(`fedmeta calibrate`). It is kept where what is gained less what was promised cannot be told from
0: the 95 % interval over seeds, which differ in nodes, training and calibration, holds it. Rows of
places that are not asked for stay.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.decision import (
    DIVISIONS,
    EXECUTION,
    FIRST_SEED,
    IMAGES,
    NAMES,
    divided_anew,
    rows_of,
    settings_of,
    trained,
    write_rows,
)
from experiments.results import machine_words
from experiments.training import federation, seeded, short
from fedmeta.config.spec import RunSpec
from fedmeta.core.calibration import SHARE
from fedmeta.data.federation import Federation
from fedmeta.evaluation.calibrating import abstaining
from fedmeta.evaluation.intervals import interval
from fedmeta.models.meta_model import MetaModel
from fedmeta.studies.cross_fitting import FOLDS, cross_fitted
from fedmeta.studies.tune import HELD_OUT
from fedmeta.training.train import RunRequest

WAYS = ("seen", "cross-fitted")
PLACES = [place for place in NAMES if place not in IMAGES]


def cross_calibrated(
    settings: RunSpec, nodes: Federation, model: MetaModel, seed: int, file: Path
) -> MetaModel:
    """The model with counts of nodes under models that have not seen them, kept in a file."""
    if not file.exists():
        request = RunRequest(seeded(settings, seed), nodes)
        replace(model, calibration=cross_fitted(request, FOLDS)).save(file)
    return MetaModel.load(file)


def judged(model: MetaModel, nodes: Federation) -> dict[str, float]:
    """What abstaining comes to on held-out nodes, means over their divisions, in points."""
    assert model.calibration is not None
    whole, answered = model.calibration.promised(SHARE)
    rows = []
    for each in divided_anew(nodes):
        found = abstaining(model, each, EXECUTION)
        assert found is not None
        rows.append([found.coverage, found.gained, answered - whole, found.accuracy])
    means = 100 * np.mean(rows, axis=0)
    return dict(zip(("answered", "gained", "promised", "accuracy"), means.tolist(), strict=True))


def way_row(seeds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """What the seeds of a place say of one way to count."""
    means = {
        name: short(float(np.mean([row[name] for row in seeds])), 4)
        for name in ("answered", "gained", "promised")
    }
    least = interval([row["answered"] - 100 * (1 - SHARE) for row in seeds])
    over = interval([row["gained"] - row["promised"] for row in seeds])
    return {
        **means,
        "over_share": [short(part, 3) for part in least],
        "over_promise": [short(part, 3) for part in over],
        "kept": over[1] is not None and abs(over[0]) <= over[1],
    }


def words(row: Mapping[str, Any]) -> str:
    """A row for people."""
    text = f"{row['place']:28} {row['accuracy']:6.2f} %"
    for way in WAYS:
        each = row[way]
        text += f"; {way}: answers {each['answered']:.1f} %, gains {each['gained']:.2f}, promised "
        text += f"{each['promised']:.2f} ({{:+.2f}} ± {{:.2f}})".format(*each["over_promise"])
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row per place as it comes, and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--place", nargs="+", choices=list(NAMES), default=list(PLACES))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--folder", help="where the data lie")
    parser.add_argument("--models", type=Path, required=True, help="where models are kept")
    parser.add_argument("--results", type=Path, help="a file for the rows")
    asked = parser.parse_args(arguments)
    about = {"machine": machine_words("cpu"), "rounds": asked.rounds, "divisions": DIVISIONS}
    about |= {"folds": FOLDS}
    rows = rows_of(asked.results, about)
    for place in asked.place:
        settings = settings_of(asked, place)
        nodes = {
            seed: federation(settings.data_settings, seed).hold_out(HELD_OUT, seed)
            for seed in range(FIRST_SEED, FIRST_SEED + asked.seeds)
        }
        if any(each.task.kind != "classification" for each in nodes.values()):
            continue  # values have no margins
        seen = trained(settings, nodes, asked.models / place)
        found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for seed, model in seen.items():
            file = asked.models / place / f"{seed}-{FOLDS}-folds.safetensors"
            crossed = cross_calibrated(settings, nodes[seed], model, seed, file)
            for way, each in zip(WAYS, (model, crossed), strict=True):
                found[way].append(judged(each, nodes[seed]))
        if not seen:
            continue
        accuracy = short(float(np.mean([row["accuracy"] for row in found["seen"]])), 4)
        ways = {way: way_row(each) for way, each in found.items()}
        rows[place] = {"place": place, "seeds": len(seen), "accuracy": accuracy, **ways}
        print(words(rows[place]), flush=True)
        write_rows(asked.results, about, rows)
    for way in WAYS if rows else ():
        kept = sum(row[way]["kept"] for row in rows.values())
        print(f"{way}: the promise is kept at {kept} of {len(rows)} places")


if __name__ == "__main__":
    main()
