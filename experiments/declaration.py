"""From a declared experiment to its cells.

An experiment file has `title`, `repeats`, `settings` that all its cells share, axes of its own
(`[axes.NAME]`, in place of the common one of that name), perhaps `gradient` (see `Cell`), and
blocks of cells:

    [[cells]]
    key = "{data}/{algorithm}/{variant}"     one cell per combination of the axes it names
    algorithm = ["fedavg"]                   some choices of an axis only
    settings = { … }                         on top of the choices
    tuned = true                             a tuning cell first; or the key of one: of the
                                             algorithm or, for two tasks, of λ
    tuned_after = "{data}/{algorithm}"       that tuning cell first: all but the first setting of
                                             the grid stays as that one found it
    grid = { step_size = [0.01, 0.03] }      values to try there, in place of the common ones and
                                             of what lies beyond them
    beyond = { step_size = [0.1] }           values beyond that grid
    repeats = 5                              seeds of its cells, in place of the experiment's
    tuning_repeats = 2                       of that search, in place of the common number
    equal = "{data}/admm-fedmeta/default"    as many rounds as cost that cell's gradients
    tasks = { … }                            two tasks in a row, see `Tasks`
    final_loss = true                        keep the source meta-loss of the final model

Settings are merged in the order: experiment, axes as the key names them, block.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from string import Formatter
from typing import Any

from experiments.cell import Cell, Key, Tasks
from fedmeta.config.toml_files import Table, merged
from fedmeta.core.errors import SettingError, nearest

TUNING = "tuning"
"""The folder of the results of tuning cells."""

Axes = Mapping[str, Mapping[str, Table]]
Grid = Mapping[str, Sequence[Any]]
_SEARCH = ("tuned", "tuned_after", "grid", "beyond", "tuning_repeats")
_OF_A_BLOCK = ("key", "settings", "repeats", *_SEARCH, "equal", "tasks", "final_loss")
_WHOLE = ("algorithm", "rival")  # axes of which the small version takes all


@dataclass(frozen=True)
class Declaration:
    """An experiment file, the common one beneath it.

    Args:
        name: of the experiment.
        content: its file.
        common: the file that all share.
        quick: take the small version.
    """

    name: str
    content: Table
    common: Table
    quick: bool = False

    @property
    def title(self) -> str:
        """What it shows."""
        return str(self.content["title"])

    @property
    def axes(self) -> Axes:
        """The choices of every axis; an axis of the experiment's own replaces the common one."""
        return {**self.common["axes"], **self.content.get("axes", {})}

    @property
    def repeats(self) -> int:
        """Seeds per cell."""
        return int((self.common["quick"] if self.quick else self.content)["repeats"])

    def choices(self, axis: str, only: Sequence[str] | None) -> list[str]:
        """The names to run over; of the small version the first and the last.

        Args:
            axis: its name.
            only: those that a block wants; None: all.
        """
        if axis not in self.axes:
            raise SettingError(f"{self.name}.toml has no axis {axis!r}", nearest(axis, self.axes))
        known = self.axes[axis]
        for name in only or ():
            if name not in known:
                raise SettingError(f"axis {axis!r} has no {name!r}", nearest(name, known))
        names = [name for name in known if only is None or name in only]
        if not self.quick or axis in _WHOLE:
            return names
        return names[:1] if axis == "data" else list(dict.fromkeys((names[0], names[-1])))


def declaration(name: str, *, quick: bool = False) -> Declaration:
    """The declaration of an experiment.

    Example:
        >>> declaration("table1").title
        'Table 1: accuracy of target nodes after adaptation'
    """
    return Declaration(name, _read(name), _read("common"), quick)


def declared_cells(declared: Declaration) -> list[Cell]:
    """The cells of all blocks, the tuning cells that others rest on before them."""
    made: dict[Key, Cell] = {}
    for block in declared.content["cells"]:
        for each, after in _expanded(declared, block):
            if each.key in made:
                if declared.quick:  # all data sets are one there
                    continue
                raise SettingError(f"{declared.name}.toml declares {each.path} twice", "rename one")
            if each.tuned is not None and each.tuned not in made:
                made[each.tuned] = _tuning_cell(declared, each, after, block)
            made[each.key] = each
    return [_with_equal(each, made) for each in made.values()]


def _read(name: str) -> Table:
    return tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def _expanded(declared: Declaration, block: Table) -> Iterator[tuple[Cell, Key | None]]:
    """One cell per combination of the axes that the key names, and what it is tuned after."""
    names = _fields(block["key"])
    for name in block:
        if name not in (*names, *_OF_A_BLOCK):
            raise SettingError(f"{declared.name}.toml has a block with {name!r}", "mend it")
    if "grid" in block and block.get("tuned") is not True:
        raise SettingError(f"{declared.name}.toml has a grid for no search", "say tuned = true")
    choices = [declared.choices(name, block.get(name)) for name in names]
    small = declared.common["quick"] if declared.quick else {}
    for picks in itertools.product(*choices):
        chosen = dict(zip(names, picks, strict=True))
        layers = [declared.axes[name][pick] for name, pick in chosen.items()]
        shared, own = declared.content.get("settings", {}), block.get("settings", {})
        settings = merged([shared, *layers, own, small.get("settings", {})])
        if declared.quick and "data" in chosen:
            chosen["data"] = small["settings"]["data"]["name"]
        tuned, after, equal = (block.get(name) for name in ("tuned", "tuned_after", "equal"))
        if tuned is not None:
            tuned = _key(TUNING, block["key"] if tuned is True else tuned, chosen)
        cell = Cell(
            _key(declared.name, block["key"], chosen),
            _named(settings),
            declared.repeats if declared.quick else int(block.get("repeats", declared.repeats)),
            tuned=tuned,
            equal=None if equal is None else _key(declared.name, equal, chosen),
            tasks=Tasks(**block["tasks"]) if "tasks" in block else None,
            final_loss=block.get("final_loss", False),
            gradient=declared.content.get("gradient", False),
        )
        yield cell, None if after is None else _key(TUNING, after, chosen)


def _fields(template: str) -> list[str]:
    return [name for _, name, _, _ in Formatter().parse(template) if name]


def _key(experiment: str, template: str, chosen: Mapping[str, str]) -> Key:
    return (experiment, *template.format_map(chosen).split("/"))


def _named(settings: Table) -> Table:
    """The table with the algorithm's name in place of "{algorithm}".

    Example:
        >>> _named({"algorithm": "fedavg", "algorithms": {"{algorithm}": {"local_steps": 5}}})
        {'algorithm': 'fedavg', 'algorithms': {'fedavg': {'local_steps': 5}}}
    """
    own = dict(settings.get("algorithms", {}))
    if "{algorithm}" not in own:
        return settings
    named = {settings["algorithm"]: own.pop("{algorithm}")}
    return {**settings, "algorithms": merged([own, named])}


def _tuning_cell(declared: Declaration, of: Cell, after: Key | None, block: Table) -> Cell:
    """The search that finds a point for a cell, on its own settings.

    It tries the block's own grid and nothing beyond it, or the common one: after another search of
    that its first setting alone. The small version tries two values of the first setting and one of
    each other.

    How often and how precisely targets are looked at is none of its business, so that experiments
    that differ in this share it.
    """
    assert of.tuned is not None
    blind = {"training": {"evaluate_every": 0}, "data": {"precise": 0}}
    often = block.get("tuning_repeats", declared.common["tuning"]["repeats"])
    repeats = declared.repeats if declared.quick else int(often)
    settings = merged([of.settings, blind])
    what = "prior" if of.tasks else of.settings["algorithm"]
    own: Grid | None = block.get("grid")
    grid: Grid = own or declared.common["grids"][what]
    if own is None and after is not None:
        grid = dict([next(iter(grid.items()))])
    known: Grid = {} if own is not None else declared.common["beyond"].get(what, {})
    further: Grid = {} if declared.quick else block.get("beyond", known)
    beyond = {name: values for name, values in further.items() if name in grid}
    if declared.quick:
        grid = {key: each[: 1 + (i == 0)] for i, (key, each) in enumerate(grid.items())}
    return Cell(of.tuned, settings, repeats, tuned=after, grid=grid, beyond=beyond, tasks=of.tasks)


def _with_equal(cell: Cell, made: Mapping[Key, Cell]) -> Cell:
    if cell.equal is None:
        return cell
    if cell.equal not in made:
        raise SettingError(f"{cell.path} is to cost as much as {cell.equal}", "declare that too")
    return replace(cell, equal_settings=made[cell.equal].settings)
