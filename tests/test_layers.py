"""Who may import whom: lower layers never import higher ones, and a report needs no engine."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

LAYERS = (
    *("core", "data", "models", "priors", "algorithms", "uplink", "config", "engine"),
    *("evaluation", "training", "studies", "theory", "export", "fleet", "report", "ui", "cli"),
)

UNNEEDED_BY_REPORTS = (
    "fedmeta.engine",
    "fedmeta.fleet",
    "fedmeta.training.loop",
    "fedmeta.training.job",
    "fedmeta.training.train",
    "flwr",
)


@cache
def modules() -> dict[str, Path]:
    """All modules of the package by name; a package stands for its `__init__`."""
    found = {}
    for path in sorted((SOURCE / "fedmeta").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imported(module: str) -> frozenset[str]:
    """The modules that a module names in an import, wherever in its code the import stands."""
    return frozenset(_imported(module))


def _imported(module: str) -> Iterator[str]:
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            base = statement.module or ""
            if statement.level:
                above = package.split(".")[: len(package.split(".")) - statement.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in statement.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in modules() else base


def layer(module: str) -> int | None:
    """The place of a module's layer; None for the top of the package and everything outside."""
    parts = module.split(".")
    if parts[0] != "fedmeta" or len(parts) < 2:
        return None
    return LAYERS.index(parts[1]) if parts[1] in LAYERS else None


def offences() -> dict[str, set[str]]:
    """Imports of higher layers and of the top of the package, by importing module."""
    found: dict[str, set[str]] = {}
    for module in modules():
        own = layer(module)
        if own is None:
            continue
        for other in imported(module):
            theirs = layer(other)
            upwards = theirs is not None and theirs > own
            top = other == "fedmeta" and LAYERS[own] != "cli"
            if upwards or top:
                found.setdefault(module, set()).add(other)
    return found


def is_unneeded(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in UNNEEDED_BY_REPORTS)


def reached_from_report() -> dict[str, str]:
    """Everything that importing fedmeta.report.* imports, with who imports it first.

    The top of the package is left out: it is there for users, and imports training for them.
    """
    start = [name for name in modules() if name.startswith("fedmeta.report")]
    reached = dict.fromkeys(start, "")
    waiting = deque(start)
    while waiting:
        module = waiting.popleft()
        if module not in modules():
            continue
        for name in sorted(imported(module)):
            parts = name.split(".")
            # Importing a module runs the `__init__` of every package around it.
            around = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
            for each in around:
                if each != "fedmeta" and each not in reached:
                    reached[each] = module
                    waiting.append(each)
    return reached


def chain(reached: dict[str, str], module: str) -> str:
    steps = [module]
    while reached[steps[-1]]:
        steps.append(reached[steps[-1]])
    return " <- ".join(steps)


def test_every_folder_of_the_package_is_a_layer() -> None:
    folders = {name.split(".")[1] for name, path in modules().items() if name.count(".") >= 1}
    assert folders - {"__main__", "contract"} == set(LAYERS)


def test_lower_layers_never_import_higher_ones() -> None:
    lines = [
        f"{module} imports {other}"
        for module, others in sorted(offences().items())
        for other in sorted(others)
    ]
    assert not lines, "\n".join(lines)


def test_a_report_imports_neither_the_engine_nor_flower() -> None:
    reached = reached_from_report()
    chains = [chain(reached, module) for module in sorted(reached) if is_unneeded(module)]
    assert not chains, "\n".join(chains)


def test_few_names_stand_at_the_top() -> None:
    places = {each.stem for each in (SOURCE / "fedmeta").glob("*.py")}
    places |= {each.parent.name for each in (SOURCE / "fedmeta").glob("*/__init__.py")}
    assert len(places) <= 20


def test_no_file_is_long() -> None:
    files = [*SOURCE.rglob("*.py"), *(SOURCE.parent / "experiments").rglob("*.py")]
    long = {str(each): len(each.read_text("utf-8").splitlines()) for each in files}
    assert {name: count for name, count in long.items() if count > 400} == {}
