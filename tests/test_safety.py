"""Nothing in the package runs code that a file brings along."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[1] / "src").rglob("*.py"))
FORBIDDEN = {"pickle.load", "pickle.loads", "torch.load", "joblib.load", "marshal.loads", "eval"}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def builds_tensors_alone(call: ast.Call) -> bool:
    """Whether it is torch.load with weights_only=True: an unpickler of a fixed list of types."""
    given = {each.arg: each.value for each in call.keywords}
    only = given.get("weights_only")
    return (
        dotted(call.func) == "torch.load" and isinstance(only, ast.Constant) and only.value is True
    )


def offences(text: str) -> list[str]:
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    found = [
        dotted(call.func)
        for call in calls
        if dotted(call.func) in FORBIDDEN and not builds_tensors_alone(call)
    ]
    for call in calls:
        for keyword in call.keywords:
            value = keyword.value
            if keyword.arg == "allow_pickle" and not (
                isinstance(value, ast.Constant) and value.value is False
            ):
                found.append("allow_pickle")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_unrestricted_unpickling(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8")) == []


def test_the_check_itself_sees_offences() -> None:
    bad = "import pickle, numpy\npickle.load(f)\nnumpy.load(f, allow_pickle=True)"
    assert offences(bad) == ["pickle.load", "allow_pickle"]
    assert (
        offences("import torch\ntorch.load(f)\ntorch.load(f, weights_only=w)") == ["torch.load"] * 2
    )
    assert offences("import torch\ntorch.load(f, weights_only=True)") == []
