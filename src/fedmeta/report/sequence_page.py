"""The page of a task sequence: what every method keeps of earlier tasks, with heat maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmeta.core.errors import RunFolderError
from fedmeta.core.storage import read_json
from fedmeta.report import format as fmt
from fedmeta.report.pages import render
from fedmeta.report.picture import Picture, draw
from fedmeta.report.style import colour

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 1
Found = Mapping[str, Any]
"""A mean with its interval: `mean`, `ci95`, `n`."""

_PROTOCOLS = ("class-incremental", "task-incremental")
_OF_A_PROTOCOL = ("average", "incremental", "forgetting")
_MEASURES = ("average", "forgetting", "new", "forward")


@dataclass(frozen=True)
class MethodFacts:
    """What one method reached.

    Args:
        name: of the method.
        strength: λ of its prior, if it has one.
        measures: each with its interval, by name.
        matrix: accuracy after each task (rows) on each task (columns); the first row is the start.
        gate: what the release gate says of its updates; empty where it says nothing.
        unadapted: the same measures of the model as it is, by protocol; older files have none.
    """

    name: str
    strength: float | None
    measures: Mapping[str, Found]
    matrix: Sequence[Sequence[Found]]
    gate: str = ""
    unadapted: Mapping[str, Mapping[str, Found]] = field(default_factory=dict)


@dataclass(frozen=True)
class SequenceFacts:
    """What sequence.json says."""

    title: str
    tasks: Sequence[str]
    seeds: Sequence[int]
    judged_on: str
    methods: Sequence[MethodFacts]


def read_sequence_facts(folder: Path) -> SequenceFacts:
    """What a sequence's folder says, or which file is damaged."""
    file = folder / "sequence.json"
    content = read_json(file, "sequence")
    try:
        if content["format"] != FORMAT:
            raise RunFolderError(
                f"{file} has format {content['format']!r}, this version reads {FORMAT}",
                "use the version of fedmeta that wrote it",
            )
        precise = all("precise" in each["measures"] for each in content["methods"].values())
        which = "precise" if precise else "accuracy"
        methods = [
            MethodFacts(
                name,
                each["strength"],
                each["measures"][which],
                each["matrix"][which],
                str(each.get("gate", {}).get("line", "")),
                {key: each["measures"][key] for key in _PROTOCOLS if key in each["measures"]},
            )
            for name, each in content["methods"].items()
        ]
        judged = "precise sets" if precise else "query sets"
        return SequenceFacts(content["title"], content["tasks"], content["seeds"], judged, methods)
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{file} is damaged ({error!r})", "run the sequence again") from error


def sequence_page(sequence: SequenceFacts) -> str:
    """The HTML of a sequence."""
    return render(
        "sequence.html",
        {
            "title": sequence.title,
            "headline": _headline(sequence),
            "remarks": [
                f"With {each.name} {each.measures['diverged']} of {len(sequence.seeds)} seeds "
                "diverged."
                for each in sequence.methods
                if each.measures["diverged"]
            ],
            "sequence": sequence,
            "metric": "accuracy",
            "rows": [_row(each, sequence) for each in sequence.methods],
            "unadapted": [
                {"name": f"{each.name}, {protocol}", **_estimates(measures, _OF_A_PROTOCOL)}
                for each in sequence.methods
                for protocol, measures in each.unadapted.items()
            ],
            "maps": [heat_map(each, sequence.tasks) for each in sequence.methods if each.matrix],
        },
    )


def _headline(sequence: SequenceFacts) -> str:
    """What is left of the earlier tasks under the method that keeps most."""
    judged = [m for m in sequence.methods if m.measures["forgetting"]["mean"] is not None]
    if not judged:
        return f"{fmt.counted(len(sequence.tasks), 'task')} learned"
    best = max(judged, key=lambda each: float(each.measures["average"]["mean"]))
    average = fmt.metric(best.measures["average"]["mean"], "accuracy")
    lost = 100 * best.measures["forgetting"]["mean"]
    which = "" if len(judged) == 1 else f" with {best.name}, the best of {len(judged)} methods"
    after = f"After {len(sequence.tasks)} tasks {average} on all of them"
    return f"{after}{which}; {lost:.1f} points forgotten"


def _row(method: MethodFacts, sequence: SequenceFacts) -> dict[str, str]:
    found, lost = method.measures, method.measures["diverged"]
    return {
        "name": method.name,
        "strength": fmt.NO_VALUE if method.strength is None else f"{method.strength:g}",
        **_estimates(found, _MEASURES),
        "cost": fmt.number(found["cost"]["mean"]),
        "diverged": f"{lost} of {len(sequence.seeds)}" if lost else "none",
    }


def _estimates(measures: Mapping[str, Found], names: Sequence[str]) -> dict[str, str]:
    """Means with their intervals, in words."""
    return {n: fmt.estimate(measures[n]["mean"], measures[n]["ci95"], "accuracy") for n in names}


def heat_map(method: MethodFacts, tasks: Sequence[str]) -> Picture:
    """The accuracy matrix: a row after each task, a column for each task's targets."""
    matrix = method.matrix
    together = len(matrix) == 1
    rows = ["all at once"] if together else ["before", *(f"after {name}" for name in tasks)]
    labels = [fmt.shortened(name, 16) for name in rows]
    cell = max(34, min(64, 640 // len(tasks)))

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for y, row in enumerate(matrix):
            for x, found in enumerate(row):
                share = min(1.0, max(0.0, float(found["mean"])))
                left, right, low, high = x + 0.03, x + 0.97, y + 0.05, y + 0.95
                box = [left, right, right, left], [low, low, high, high]
                axes.fill(*box, color=colour("accent"), alpha=0.04 + 0.7 * share, lw=0)
                weight = "bold" if not together and y == x + 1 else "normal"
                text = f"{100 * share:.0f}"
                axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontweight=weight)
        axes.set_xlim(0, len(tasks))
        axes.set_ylim(len(matrix), 0)
        columns = [fmt.shortened(name, 9) for name in tasks]
        axes.set_xticks([x + 0.5 for x in range(len(tasks))], columns)
        axes.set_yticks([y + 0.5 for y in range(len(matrix))], labels, color=colour("ink"))
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)

    name = "".join(each if each.isalnum() else "-" for each in method.name)
    return draw(
        paint,
        name=f"matrix-{name}",
        label=f"Heat map of the accuracy under {method.name} on {len(tasks)} tasks (columns) after "
        "each of them (rows).",
        caption=f"{method.name}: accuracy in percent on the targets of each task (columns) after "
        "each task (rows); in bold what was just learned",
        size=(7 * max(map(len, labels)) + 20 + cell * len(tasks), 30 * len(matrix) + 30),
    )
