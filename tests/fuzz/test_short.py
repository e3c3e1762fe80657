"""Changed inputs of every kind: refused in one line or read, within memory and time.

The long run is `make fuzz`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmeta.core.plain_values import parse_json
from fedmeta.core.printable import printable

for each in ("onnx", "tokenizers", "flwr"):
    pytest.importorskip(each, reason=f"{each} is not installed")
TESTS = Path(__file__).parents[1]
BOMBS, CHANGED = 28, 70


def test_a_few_inputs_of_every_kind(tmp_path: Path) -> None:
    known = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.run", tmp_path, str(BOMBS + CHANGED), "0"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": known},
    )
    assert done.stdout, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["failures"] == []
    assert 0 < result["refused"] < result["fed"], "some must be read, or nothing was shown"


@given(st.text())
def test_nothing_steers_a_terminal(text: str) -> None:
    shown = printable(text)
    assert all(letter.isprintable() or letter in "\n\t" or ord(letter) > 159 for letter in shown)
    assert "\x1b" not in shown
    shown.encode()


@given(st.recursive(st.none() | st.integers(-(2**63), 2**63) | st.text(), st.lists, max_leaves=20))
def test_honest_json_is_read(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize("text", ["[" * 5000 + "]" * 5000, "[" * 70 + "]" * 70, "9" * 400, "{"])
def test_hostile_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)
