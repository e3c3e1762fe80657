"""`fedmeta data`: what a federation looks like before anything is trained on it.

And `fedmeta data get NAME`, which brings a public data set here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values, under
from fedmeta.cli.console import say, write_result
from fedmeta.cli.data_get import get
from fedmeta.config.spec import RunSpec
from fedmeta.data import describe, load

PARAMETERS = (
    Parameter(
        "get",
        "'get NAME' fetches fashion-mnist, cifar10, cifar100 or huggingface:OWNER/NAME instead.",
        argument=True,
        many=True,
        metavar="[get NAME]",
    ),
    *options.CONFIG,
    options.SEED,
    Parameter(
        "out",
        "Write the description to this JSON file, or what was got from the hub to this .npz.",
        short="o",
        metavar="FILE",
    ),
    *options.DATA,
    *under(
        "Getting data",
        Parameter("split", "Part of a data set of the hub.", default="train"),
        Parameter(
            "partitioner",
            "A partitioner of flwr-datasets for it, as NAME:OPTION=VALUE,…",
            metavar="NAME:OPTIONS",
        ),
    ),
)
_SHADES = " ░▒▓█"
_MOST_NODES, _MOST_CLASSES = 60, 40


def run(values: Values) -> None:
    """Describe a federation: nodes, sizes, classes per node as a picture. Or get public data."""
    if values["get"]:
        get(values)
        return
    settings = RunSpec.from_dict(options.settings_table(PARAMETERS, values))
    about = describe(load(settings.data_settings, settings.training.seed))
    counts = about["counts"]
    say(f"{about['name']}: {about['task']['kind']}, samples of shape {tuple(about['input_shape'])}")
    say(
        f"{counts['nodes']} nodes: {counts['sources']} sources, {counts['targets']} targets; "
        f"{counts['samples']} samples"
    )
    sizes = sorted(node["support"] + node["query"] for node in about["nodes"])
    say(f"samples per node: {sizes[0]} to {sizes[-1]}, median {sizes[len(sizes) // 2]}")
    for note in about["notes"]:
        say(f"note: {note}")
    if names := about["task"]["class_names"]:
        say()
        say(picture(about["nodes"], names))
    if values["out"]:
        write_result(Path(values["out"]), about)


def picture(nodes: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> str:
    """Classes per node in shades: a row per node, a column per class, targets marked.

    Example:
        >>> nodes = [{"name": "a", "role": "target", "classes": {"cat": 4}}]
        >>> print(picture(nodes, ["cat", "dog"]))
           a ● █·  4
               01
        0 cat  1 dog  ● target
    """
    shown = classes[:_MOST_CLASSES]
    most = max((n for node in nodes for n in node["classes"].values()), default=1)
    width = max(4, *(len(node["name"]) for node in nodes))
    lines = []
    for node in nodes[:_MOST_NODES]:
        counts = [node["classes"].get(name, 0) for name in shown]
        shades = "".join(_SHADES[-(-4 * n // most)] if n else "·" for n in counts)
        mark = "●" if node["role"] == "target" else " "
        lines.append(f"{node['name']:>{width}} {mark} {shades}  {sum(node['classes'].values())}")
    if len(nodes) > _MOST_NODES:
        lines.append(f"{'…':>{width}}   and {len(nodes) - _MOST_NODES} more nodes")
    digits = "".join(str(place % 10) for place in range(len(shown)))
    lines.append(" " * (width + 3) + digits)
    named = [f"{place} {name}" for place, name in enumerate(shown[:20]) if name != str(place)]
    more = [f"… {len(classes)} classes"] if len(classes) > 20 else []
    return "\n".join([*lines, "  ".join([*named, *more, "● target"])])


COMMAND = Command("data", PARAMETERS, run, "--data digits --partition dirichlet --nodes 30")

if __name__ == "__main__":
    COMMAND.main()
