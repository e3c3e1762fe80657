"""The motion network on a Cortex-M: what the linker says it takes, and how many instructions."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.microcontroller import KEPT, KINDS, cross_compiler, linked, measured
from export.c_device import (
    FAST,
    Script,
    built,
    defines,
    moving,
    needs_board,
    needs_cross_compiler,
    needs_gcc,
)
from export.exporting import meta_model, samples
from export.test_c_hostile import COUNTED, ranges
from fedmeta import Adaptation, MetaModel, ModelSettings
from fedmeta.export.c import export_c
from fedmeta.export.c.costs import Costs

INPUTS = 6 * 128
LIBRARY = 1200
"""Bytes that the C library takes where mathematics may set errno, and of alignment."""


def motion(rule: Adaptation | None = None) -> MetaModel:
    """The network of examples/motion: six channels of 128 numbers, six activities."""
    return meta_model(ModelSettings("cnn"), (6, 128), 6, rule or Adaptation(0.3, scope="head"))


@needs_cross_compiler
@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m33"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_arithmetic_is_the_linkers(core: str, kind: str, tmp_path: Path) -> None:
    model, costs = exported(kind, tmp_path)
    found = linked(tmp_path, core, defines(tmp_path, model))
    own = found.ram - 4 * (INPUTS + 6)  # the program's own sample and answer
    static = costs.ram - costs.stack
    assert 0 <= own - static <= LIBRARY
    assert costs.constants <= found.flash <= costs.flash
    assert "malloc" not in found.chart
    assert "_sbrk" not in found.chart
    if kind in ("float32", "int8"):
        assert costs.ram <= 64 << 10
        assert costs.flash <= 256 << 10
        assert found.ram + costs.stack <= 64 << 10  # of the whole program


def exported(kind: str, folder: Path) -> tuple[MetaModel, Costs]:
    """The motion network as C, with a calibration as trained models have one."""
    rule = Adaptation(0.01) if kind == "all layers" else None
    model = replace(motion(rule), calibration=COUNTED)
    kept, bits = KEPT if kind == "decides" else 0, ranges(model) if kind == "int8" else None
    return model, export_c(model, folder, samples=kept, int8=bits)


@needs_board
@pytest.mark.parametrize("kind", KINDS)
def test_stack_and_instructions_of_an_emulated_board(kind: str, tmp_path: Path) -> None:
    model, costs = exported(kind, tmp_path)
    found = measured(tmp_path, defines(tmp_path, model))
    names = {"predict", "sample", "step"} | ({"decide"} if kind == "decides" else set())
    assert {*found} == names
    assert 0 < max(stack for _, stack in found.values()) <= costs.stack
    assert costs.predict < found["predict"][0] < 40 * costs.predict
    assert costs.predict < found["sample"][0] < 40 * (costs.sample + costs.step)


@needs_cross_compiler
def test_the_stack_is_what_was_said(tmp_path: Path) -> None:
    for kept in (0, 20):
        model = meta_model(ModelSettings("mlp"), (8,), 30, Adaptation(0.3, scope="head"))
        costs = export_c(model, tmp_path, samples=kept)
        line = [*cross_compiler("cortex-m4"), "-Os", "-fno-inline", "-fstack-usage", "-c"]
        subprocess.run([*line, "model.c", "-o", "model.o"], cwd=tmp_path, check=True)
        frames = [int(row.split("\t")[1]) for row in (tmp_path / "model.su").read_text().split("\n")
                  if row]  # fmt: skip
        # The decision, what it calls, and a few small functions of ours and of the library.
        assert sum(sorted(frames)[-2:]) + 300 <= costs.stack


@needs_gcc
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="there is no valgrind")
def test_instructions_are_a_few_for_every_product(tmp_path: Path) -> None:
    model = motion()
    costs = export_c(model, tmp_path)
    (x,), (label,) = samples(model, 1)
    counts = []
    for number in (0, 1):
        for adapts in (False, True):
            script = Script(model, len(moving(model)))
            script.reset()
            for _ in range(number):
                if adapts:
                    script.add(x, label)
                    script.step()
                else:
                    script.predict(x)
            counts.append(_instructions(script, model, tmp_path))
    predict, step = counts[2] - counts[0], counts[3] - counts[1]
    assert costs.predict < predict < 20 * costs.predict
    assert predict < step < 20 * (costs.sample + costs.step)


def _instructions(script: Script, model: MetaModel, folder: Path) -> int:
    program = built(folder, model, FAST)
    counting = ["valgrind", "--tool=callgrind", "--callgrind-out-file=counted"]
    script.run([*counting, *program], folder)
    total = re.search(r"^(?:summary|totals): (\d+)", (folder / "counted").read_text(), re.M)
    assert total is not None
    return int(total[1])


def test_costs_add_up() -> None:
    costs = Costs({"activations": 100, "sums": 20}, 512, 1000, 4096, 7, 8, 9)
    assert costs.ram == 100 + 20 + 512 + 8
    assert costs.flash == 5096
    assert "7 per prediction, 8 per sample of a step, 9 per step" in costs.lines[2]
