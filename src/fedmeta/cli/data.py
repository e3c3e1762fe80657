"""`fedmeta data`: a table's check-up, and what a federation looks like before training.

And `fedmeta data get NAME`, which brings a public data set here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values, under
from fedmeta.cli.console import say, table, write_result
from fedmeta.cli.data_get import get
from fedmeta.config.spec import RunSpec
from fedmeta.core.errors import SettingError
from fedmeta.data import describe, load
from fedmeta.data.checkup import Checkup, check_up
from fedmeta.data.readers.table import is_table

PARAMETERS = (
    Parameter(
        "get",
        "A file, as --data; or 'get NAME', which fetches fashion-mnist, cifar10, cifar100 or "
        "huggingface:OWNER/NAME.",
        argument=True,
        many=True,
        metavar="[FILE | get NAME]",
    ),
    *options.CONFIG,
    options.SEED,
    Parameter(
        "out",
        "Write the description to this JSON file, or what was got from the hub to this .npz.",
        short="o",
        metavar="FILE",
    ),
    Parameter("html", "Write the check-up of a table as a page.", metavar="FILE.html"),
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
_MOST_NODES, _MOST_CLASSES, _MOST_COLUMNS = 60, 40, 40


def run(values: Values) -> None:
    """Check a table up and describe its federation: columns, nodes, classes. Or get public data."""
    named = list(values["get"] or ())
    if len(named) == 1 and named != ["get"] and values["data"] is None:
        values = {**values, "data": values["get"][0], "get": None}
    if values["get"]:
        get(values)
        return
    settings = RunSpec.from_dict(options.settings_table(PARAMETERS, values))
    data, seed, found = settings.data_settings, settings.training.seed, None
    path = Path(data.name).expanduser()
    if is_table(path) and path.is_file():
        found = check_up(data, seed)
        print_checkup(found)
        if values["html"]:
            from fedmeta.report.checkup_page import write_checkup

            write_checkup(Path(values["html"]), found)
            say(f"page written to {values['html']}")
        if found.problem is not None:
            raise found.problem
    elif values["html"]:
        raise SettingError("--html is for tables", "name a .csv or .parquet file")
    federation = (found and found.federation) or load(data, seed)
    about = describe(federation)
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
        checked = {} if found is None else {"checkup": found.facts()}
        write_result(Path(values["out"]), {**about, **checked})


def print_checkup(found: Checkup) -> None:
    """Columns, and what to change."""
    columns = ["column", "holds", "used as", "values", "different", "missing", "remark"]
    rows = [
        [c.name or "(no name)", c.kind, c.role, c.values, str(c.different), str(c.gaps), c.remark]
        for c in found.columns[:_MOST_COLUMNS]
    ]
    size = f"{found.file}: {found.rows} rows, {len(found.columns)} columns{found.written}"
    table(size, columns, rows)
    if len(found.columns) > _MOST_COLUMNS:
        say(f"… and {len(found.columns) - _MOST_COLUMNS} more columns (all: --html or --out)")
    if found.classes:
        total, shown = sum(found.classes.values()), list(found.classes.items())[:10]
        told = ", ".join(f"{name} {count} ({count / total:.0%})" for name, count in shown)
        say(f"classes: {told}{', …' if len(found.classes) > 10 else ''}")
    for line in found.change[found.problem is not None :]:  # that one ends the command
        say(f"change:  {line}")
    say()


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


COMMAND = Command("data", PARAMETERS, run, "machines.csv --node machine --html machines.html")

if __name__ == "__main__":
    COMMAND.main()
