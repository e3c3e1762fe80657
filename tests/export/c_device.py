"""A model as a C program, on this machine or on an emulated microcontroller."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.microcontroller import BOARD, STRICT, cross_compiler
from fedmeta import MetaModel

Array = npt.NDArray[Any]

CODE = Path(__file__).parent / "c"
CHECKED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FAST = ["-O2"]
CHOICES = ("none", "prototypes", "one", "several")

BOARDS = {  # of QEMU: where the code lies, where the data
    "cortex-m4": ("mps2-an386", "0x00000000", "0x20000000"),
    "cortex-m33": ("mps2-an505", "0x10000000", "0x38000000"),
}
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
needs_cross_compiler = pytest.mark.skipif(
    shutil.which("arm-none-eabi-gcc") is None, reason="there is no arm-none-eabi-gcc"
)
needs_board = pytest.mark.skipif(
    shutil.which("arm-none-eabi-gcc") is None or shutil.which("qemu-system-arm") is None,
    reason="there is no arm-none-eabi-gcc, or no qemu-system-arm",
)


def built(folder: Path, model: MetaModel, flags: list[str], main: str = "harness.c") -> list[str]:
    """The command that runs the model of a folder, compiled here."""
    program = folder / "program"
    files = [str(CODE / main), str(folder / "model.c")]
    _compile(["gcc", *STRICT, *flags, *defines(folder, model), f"-I{folder}", *files], program)
    return [str(program)]


def cross_built(folder: Path, model: MetaModel, core: str) -> list[str]:
    """The command that runs it on an emulated board."""
    board, code, data = BOARDS[core]
    program = folder / f"{core}.elf"
    places = f"-Wl,--defsym=CODE={code},--defsym=DATA={data}"
    files = [str(BOARD / "startup.c"), str(CODE / "harness.c"), str(folder / "model.c")]
    script = ["--specs=rdimon.specs", "-nostartfiles", "-T", str(BOARD / "board.ld"), places]
    line = [*cross_compiler(core), "-O2", *script, *defines(folder, model), f"-I{folder}", *files]
    _compile(line, program)
    host = ["-nographic", "-semihosting-config", "enable=on,target=native"]
    return ["qemu-system-arm", "-M", board, *host, "-kernel", str(program)]


def defines(folder: Path, model: MetaModel) -> list[str]:
    """What the harness must know of a model."""
    header = (folder / "model.h").read_text("utf-8")
    kind = ["-DVALUES"] if model.task.kind == "regression" else []
    return [*kind, *(["-DDECIDES"] if "fm_decide" in header else [])]


def _compile(line: list[str], program: Path) -> None:
    done = subprocess.run([*line, "-lm", "-o", str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@dataclass
class Script:
    """Commands for a device, and its answers once they are run.

    Args:
        model: whose device it is.
        parameters: how many numbers move.
    """

    model: MetaModel
    parameters: int
    _commands: list[bytes] = field(default_factory=list)
    _readers: list[Callable[[Array], tuple[Any, int]]] = field(default_factory=list)

    def predict(self, inputs: Array) -> None:
        """Answers: (status, outputs)."""
        outputs = self.model.task.outputs
        self._command(1, inputs)
        self._readers.append(lambda w: ((_int(w), w[1 : 1 + outputs].copy()), 1 + outputs))

    def begin(self) -> None:
        """No answer."""
        self._command(2)

    def add(self, inputs: Array, label: Any) -> None:
        """Answers: status."""
        kind = np.float32 if self.model.task.kind == "regression" else np.int32
        self._command(3, inputs, np.asarray(label, kind))
        self._status()

    def step(self) -> None:
        """Answers: status."""
        self._command(4)
        self._status()

    def reset(self) -> None:
        """No answer."""
        self._command(5)

    def save(self) -> None:
        """Answers: the numbers that move."""
        self._command(6)
        count = self.parameters
        self._readers.append(lambda w: (w[:count].copy(), count))

    def load(self, parameters: Array) -> None:
        """Answers: status."""
        self._command(7, parameters)
        self._status()

    def decide(self) -> None:
        """Answers: (status, choice, counted, losses)."""
        self._command(8)
        self._readers.append(
            lambda w: ((_int(w), CHOICES[_int(w[1:])], _int(w[2:]), w[3:7].copy()), 7)
        )

    def confidence(self, outputs: Array) -> None:
        """Answers: (confidence, abstains)."""
        self._command(9, outputs)
        self._readers.append(lambda w: ((float(w[0]), _int(w[1:])), 2))

    def intact(self) -> None:
        """Answers: whether."""
        self._command(10)
        self._status()

    def run(self, program: list[str], folder: Path) -> list[Any]:
        """The answers to all commands."""
        (folder / "commands").write_bytes(b"".join([*self._commands, struct.pack("<i", 0)]))
        done = subprocess.run(
            program, cwd=folder, capture_output=True, text=True, timeout=300, input=""
        )
        assert done.returncode == 0, (done.returncode, done.stderr)
        words = np.frombuffer((folder / "results").read_bytes(), np.float32)
        answers = []
        for read in self._readers:
            answer, used = read(words)
            answers.append(answer)
            words = words[used:]
        assert len(words) == 0
        return answers

    def _command(self, number: int, *arrays: Array) -> None:
        self._commands.append(struct.pack("<i", number))
        for each in arrays:
            plain = each if np.asarray(each).dtype == np.int32 else np.asarray(each, np.float32)
            self._commands.append(np.ascontiguousarray(plain).tobytes())

    def _status(self) -> None:
        self._readers.append(lambda w: (_int(w), 1))


def _int(words: Array) -> int:
    return int(words[:1].view(np.int32)[0])


def moving(model: MetaModel, theta: dict[str, Any] | None = None) -> Array:
    """The numbers that adaptation moves, as C has them."""
    theta = dict(model.theta) if theta is None else theta
    moves = model.adaptation.moves(model.theta)
    return np.concatenate([theta[n].numpy().ravel() for n in model.theta if n in moves])


def apart(found: Array, wanted: Array) -> float:
    """How far numbers are apart, as a share of the largest."""
    return float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30))
