"""What users and authors may import, and that examples and documentation import nothing else."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import fedmeta
from fedmeta import contract, theory

ROOT = Path(__file__).parents[1]
PUBLIC = {"fedmeta": fedmeta, "fedmeta.contract": contract, "fedmeta.theory": theory}
PYTHON = re.compile(r"^```python[^\n]*\n(.*?)^```", re.M | re.S)
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def imported(text: str) -> set[tuple[str, str]]:
    """(module, name) of all that code takes from fedmeta, attributes of the package included."""
    found: set[tuple[str, str]] = set()
    called: dict[str, str] = {}
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedmeta":
            found |= {(str(node.module), each.name) for each in node.names}
        elif isinstance(node, ast.Import):
            for each in node.names:
                if each.name.split(".")[0] == "fedmeta":
                    called[each.asname or each.name] = each.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found |= {(called[name], node.attr) for name in (node.value.id,) if name in called}
    return found


def private(text: str) -> list[str]:
    return [
        f"{module}.{name}"
        for module, name in sorted(imported(text))
        if module not in PUBLIC or name not in PUBLIC[module].__all__
        if f"{module}.{name}" not in PUBLIC
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples(path: Path) -> None:
    assert private(path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages(path: Path) -> None:
    for block in PYTHON.findall(path.read_text("utf-8")):
        assert private(block) == []


def test_the_check_itself_sees_offences() -> None:
    assert private("from fedmeta.core import tree\nimport fedmeta as fm\nfm.core.tree") == [
        "fedmeta.core",
        "fedmeta.core.tree",
    ]
    assert private("from fedmeta import train\nfrom fedmeta.contract import Algorithm") == []


@pytest.mark.parametrize("name", PUBLIC)
def test_names_are_there_and_sorted_into_one_place(name: str) -> None:
    module = importlib.import_module(name)
    assert all(hasattr(module, each) for each in module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)
    others = set().union(*(PUBLIC[each].__all__ for each in PUBLIC if each != name))
    assert not set(module.__all__) & others


def test_what_users_need_is_public() -> None:
    needed = {"Uplink", "Privacy", "Guard", "compare", "tune", "sequence", "write_report"}
    assert needed | {"RunSpec", "Simulation", "Run", "train", "StopTraining"} <= {*fedmeta.__all__}


def test_short_lines_for_large_things() -> None:
    federation = fedmeta.load(fedmeta.DataSettings("sinusoid", nodes=12), seed=0)
    run = fedmeta.train(federation, fedmeta.ModelSettings("mlp"), rounds=2)
    for thing in (federation, federation.nodes[0], run, run.meta_model, run.history):
        assert len(repr(thing)) < 200
        assert "\n" not in repr(thing)
