"""`fedmeta --help` and `--version`: what they list, and that torch is not loaded for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedmeta.cli import commands, overview

PROGRAM = """
import sys
sys.argv = ["fedmeta", *sys.argv[1:]]
from fedmeta.cli import main
try:
    main()
except SystemExit as end:
    print("code", end.code, sorted({"torch", "numpy", "safetensors"} & set(sys.modules)))
"""


def test_it_lists_what_the_commands_say_of_themselves() -> None:
    listed = [(each.name, each.help) for each in overview()]
    assert listed == [(each.name, each.help) for each in commands()]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["--version"]])
def test_torch_is_not_loaded(arguments: list[str]) -> None:
    call = [sys.executable, "-c", PROGRAM, *arguments]
    printed = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "code 0 []"
    assert ("torch 2." if "--version" in arguments else "reproduce") in printed


def test_the_package_is_loaded_piece_by_piece() -> None:
    program = """
import sys, fedmeta
assert "torch" not in sys.modules
assert fedmeta.FedmetaError.__name__ in dir(fedmeta)
assert fedmeta.priors.__name__ == "fedmeta.priors" and "torch" in sys.modules
from fedmeta import *
assert all(callable(getattr(fedmeta, name)) for name in fedmeta.__all__)
try:
    fedmeta.nothing
except AttributeError as error:
    print(error)
"""
    call = [sys.executable, "-c", program]
    printed = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    assert printed == "module 'fedmeta' has no attribute 'nothing'\n"
