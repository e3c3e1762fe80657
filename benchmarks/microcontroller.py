r"""What the motion network takes on a Cortex-M4: memory, stack, flash and instructions.

    python -m benchmarks.microcontroller --results results/microcontroller.json

The network of examples/motion (six channels of 128 numbers, six activities) is trained for a round
on random windows, since sizes and counts do not depend on its numbers, and exported in four ways.
RAM and flash are the sections that the linker gives a program which calls all of the model and
holds one window. Instructions and stack are measured on QEMU's mps2-an386 board by
`board/measure.c`, compiled alike. Needs Debian's gcc-arm-none-eabi, libnewlib-arm-none-eabi and
qemu-system-arm.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import fedmeta
from fedmeta.algorithms import ADMMFedMeta
from fedmeta.core.storage import write_json
from fedmeta.data.federation import Federation
from fedmeta.export.c import export_c, source_ranges
from fedmeta.models.meta_model import MetaModel

BOARD = Path(__file__).parent / "board"
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-Wshadow"]
UNITS = {"cortex-m4": "fpv4-sp-d16", "cortex-m33": "fpv5-sp-d16"}
SHAPE, CLASSES = (6, 128), 6
KINDS = ("float32", "int8", "decides", "all layers")
KEPT = 10


def cross_compiler(core: str) -> list[str]:
    """The compiler for a core, with its flags."""
    floats = ["-mfloat-abi=hard", f"-mfpu={UNITS[core]}"]
    return ["arm-none-eabi-gcc", *STRICT, f"-mcpu={core}", "-mthumb", *floats]


@dataclass(frozen=True)
class Sizes:
    """What the linker says of the smallest program that calls all of a model.

    Args:
        ram: bytes of .data and .bss: the model's buffers, the program's own window and answer, and
            what the C library has. The stack is not among them.
        flash: bytes of code and constants.
        chart: the linker's map.
    """

    ram: int
    flash: int
    chart: str


def linked(folder: Path, core: str = "cortex-m4", defines: Sequence[str] = ()) -> Sizes:
    """Link the exported model of a folder, without an operating system or a heap."""
    program, chart = folder / "bare.elf", folder / "bare.map"
    places = ["-Wl,--defsym=CODE=0,--defsym=DATA=0x20000000,--gc-sections,-e,main"]
    line = [*cross_compiler(core), "-Os", "-ffunction-sections", "-fdata-sections"]
    line += ["--specs=nosys.specs", "-nostartfiles", "-T", str(BOARD / "board.ld"), *places]
    line += [f"-Wl,-Map={chart}", f"-I{folder}", *defines, str(BOARD / "bare.c")]
    _run([*line, str(folder / "model.c"), "-lm", "-o", str(program)])
    shown = _run(["arm-none-eabi-size", "-A", str(program)])
    sizes = {name: int(size) for name, size in re.findall(r"^(\.\S+)\s+(\d+)", shown, re.M)}
    ram = sizes.get(".bss", 0) + sizes.get(".data", 0)
    flash = sizes[".text"] + sizes.get(".exidx", 0) + sizes.get(".data", 0)
    return Sizes(ram, flash, chart.read_text("utf-8"))


def measured(folder: Path, defines: Sequence[str] = ()) -> dict[str, tuple[int, int]]:
    """Instructions and bytes of stack of every function, on an emulated Cortex-M4, built by -Os."""
    program = folder / "measure.elf"
    places = "-Wl,--defsym=CODE=0,--defsym=DATA=0x20000000"
    line = [*cross_compiler("cortex-m4"), "-Os", "--specs=rdimon.specs", "-nostartfiles"]
    line += ["-T", str(BOARD / "board.ld"), places, f"-I{folder}", *defines]
    files = [BOARD / "startup.c", BOARD / "measure.c", folder / "model.c"]
    _run([*line, *map(str, files), "-lm", "-o", str(program)])
    host = ["-nographic", "-semihosting-config", "enable=on,target=native"]
    line = ["qemu-system-arm", "-M", "mps2-an386", "-icount", "shift=0", *host]
    rows = [row.split() for row in _run([*line, "-kernel", str(program)]).splitlines()]
    return {name: (int(instructions), int(stack)) for name, instructions, stack in rows}


def motion(scope: str = "head") -> tuple[MetaModel, Federation]:
    """The network of examples/motion after a round on random windows, and the nodes of it."""
    rng = np.random.default_rng(0)
    clients = {
        f"person-{number}": (
            rng.normal(size=(24, *SHAPE)).astype(np.float32),
            np.arange(24) % CLASSES,
        )
        for number in range(5)
    }
    nodes = fedmeta.federate(clients)
    rule = ADMMFedMeta().inner
    algorithm = ADMMFedMeta(inner=replace(rule, scope=scope))
    return fedmeta.train(nodes, fedmeta.ModelSettings("cnn"), algorithm, rounds=1).meta_model, nodes


def kind_row(kind: str) -> dict[str, Any]:
    """What one way of exporting takes."""
    model, nodes = motion("all" if kind == "all layers" else "head")
    ranges = source_ranges(model, nodes) if kind == "int8" else None
    defines = ["-DDECIDES"] if kind == "decides" else []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        costs = export_c(model, folder, samples=KEPT if defines else 0, int8=ranges)
        sizes, found = linked(folder, defines=defines), measured(folder, defines)
    stack = max(bytes_ for _, bytes_ in found.values())
    return {
        "kind": kind,
        "told": {"ram": costs.ram, "flash": costs.flash, "stack": costs.stack},
        "sections": sizes.ram,
        "stack": stack,
        "ram": sizes.ram + stack,
        "flash": sizes.flash,
        "malloc": bool(re.search(r"malloc|_sbrk", sizes.chart)),
        "multiply-adds": {"predict": costs.predict, "sample": costs.sample, "step": costs.step},
        "instructions": {name: instructions for name, (instructions, _) in found.items()},
    }


def _run(line: Sequence[str]) -> str:
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise RuntimeError(f"{line[0]}: {done.stdout}{done.stderr}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> None:
    """Export, link, emulate; print a row for every way, and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--results", type=Path, help="a file for the rows")
    asked = parser.parse_args(arguments)
    rows = []
    for kind in asked.kind:
        rows.append(kind_row(kind))
        each = rows[-1]
        print(
            f"{kind:10} RAM {each['ram']:,} ({each['sections']:,} + {each['stack']:,} stack), "
            f"flash {each['flash']:,}; instructions {each['instructions']}",
            flush=True,
        )
    if asked.results is not None:
        compiler = _run(["arm-none-eabi-gcc", "--version"]).splitlines()[0]
        emulator = _run(["qemu-system-arm", "--version"]).splitlines()[0]
        about = {"core": "cortex-m4", "compiler": compiler, "emulator": emulator, "flags": "-Os"}
        write_json(asked.results, {**about, "samples kept": KEPT, "rows": rows})


if __name__ == "__main__":
    main()
