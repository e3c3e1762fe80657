from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from fedmeta.core.errors import SettingError
from fedmeta.core.user_code import is_code_name, load_object

FILE = """from __future__ import annotations
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine:
    size: int = 3
"""


def test_which_names_are_code() -> None:
    assert is_code_name("my.py:make")
    assert is_code_name("package.module:make")
    assert not is_code_name("cnn")


def test_from_a_module() -> None:
    assert load_object("math:sqrt", "loss")(9) == 3


def test_dataclasses_of_a_file_with_late_annotations(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    assert load_object(f"{tmp_path}/mine.py:Mine", "algorithm")(4).size == 4


def test_a_file_hides_no_module_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("value = 4\n")
    assert load_object(f"{tmp_path}/random.py:value", "model") == 4
    assert sys.modules["random"] is random


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:make", "model file nowhere.py does not exist"),
        ("no_such_package_at_all:make", "importing model no_such_package_at_all:make failed"),
        ("math:nothing", "math has no 'nothing'"),
    ],
)
def test_what_is_missing_is_named(name: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        load_object(name, "model")


def test_an_error_in_the_users_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('on purpose')\n")
    with pytest.raises(SettingError, match=r"failed \(RuntimeError: on purpose\)"):
        load_object(f"{tmp_path}/broken.py:make", "model")
