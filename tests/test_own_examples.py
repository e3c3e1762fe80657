"""The examples of one file run as they are, and adapting helps."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from fedmeta.core.user_code import load_object
from fedmeta.models.networks import ModelSettings, build

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("name", ["own_model.py", "own_data.py"])
def test_it_runs_and_learns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    before, after = (float(each) for each in re.findall(r"([\d.]+) %", capsys.readouterr().out))
    assert after >= before
    assert after > 75


def test_lora_moves_a_small_part_and_helps(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "lora_transformer.py"), run_name="__main__")
    told = capsys.readouterr().out
    sent, whole = re.findall(r"[\d,]+(?= of|  ?parameters)", told)[:2]
    assert int(sent) < int(whole.replace(",", "")) / 10
    before, after = (float(each) for each in re.findall(r"([\d.]+) %", told))
    assert after > before


def test_the_model_serves_the_command_line() -> None:
    name = f"{EXAMPLES}/own_model.py:network"
    assert callable(load_object(name, "model"))
    assert build(ModelSettings(name), (1, 8, 8), 10, seed=0).training
