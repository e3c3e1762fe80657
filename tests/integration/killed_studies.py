"""Kill comparisons and searches at random moments, let them resume, compare with one left alone.

    PYTHONPATH=tests python tests/integration/killed_studies.py FOLDER [KILLS] [SEED]

Prints one line of JSON. Every attempt is a forked process, and the kill a real SIGKILL.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedmeta.cli import guarded
from fedmeta.cli.argparse_shell import run_argparse

SMALL = "--data sinusoid --nodes 8 --rounds 12 --seeds 2 --set model.hidden=[4] --set "
SMALL += "training.checkpoint_every=3"
STUDIES = {
    "compare": (f"compare fedavg reptile {SMALL}", "compare", "comparison.json"),
    # Trained one after the other: what was interrupted is continued from its checkpoint.
    "compare one by one": (
        f"compare fedavg reptile {SMALL} --set participation.fraction=0.7",
        "compare",
        "comparison.json",
    ),
    "seeds": (f"train --algorithm fedavg {SMALL}", "train", "comparison.json"),
    "tune": (
        f"tune --algorithm fedavg {SMALL} --grid step_size=0.01,0.1,0.3",
        "tune",
        "tuning.json",
    ),
}


def command(line: str) -> None:
    """Run a command in this process, silently; a failure is shown."""
    from fedmeta.cli import commands

    with contextlib.redirect_stdout(sys.stderr):
        if code := guarded(run_argparse, commands(), line.split()):
            raise SystemExit(code)


def forked(job: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            job()
            code = 0
        finally:
            os._exit(code)
    return child


def waited(child: int) -> bool:
    """Whether a child ended by itself; one that failed is an error."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    if os.WEXITSTATUS(status) != 0:
        raise SystemExit("a process failed; see above")
    return True


def figures(file: Path) -> Any:
    """What must not depend on kills: everything but seconds."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: timeless(v) for k, v in value.items() if k != "seconds"}
        return [timeless(each) for each in value] if isinstance(value, list) else value

    return timeless(json.loads(file.read_text()))


def main(folder: Path, kills: int, seed: int, names: list[str]) -> dict[str, Any]:
    """As many studies as kills, each killed once at a random moment and resumed to its end."""
    torch.set_num_threads(1)
    torch.func.vmap(torch.func.grad(torch.sin))(torch.zeros(2))  # load it before forking
    luck, found = random.Random(seed), {}
    for name in names:
        line, again, file = STUDIES[name]
        alone = folder / name.replace(" ", "-")
        started = time.monotonic()
        assert waited(forked(lambda alone=alone, line=line: command(f"{line} --out {alone}")))
        whole = time.monotonic() - started
        wanted, hits, equal = figures(alone / file), 0, 0
        for number in range(kills):
            place = folder / f"{alone.name}-{number}"
            child = forked(lambda place=place, line=line: command(f"{line} --out {place}"))
            time.sleep(luck.uniform(0, whole))
            os.kill(child, signal.SIGKILL)
            hits += not waited(child)
            begun = (place / "asked.json").exists()
            rest = f"{again} --resume {place}" if begun else f"{line} --out {place}"
            assert waited(forked(lambda rest=rest: command(rest)))
            equal += figures(place / file) == wanted
        found[name] = {"hits": hits, "equal": equal, "of": kills}
    return found


if __name__ == "__main__":
    where, count, start, *chosen = [*sys.argv[1:], *["4", "0"][len(sys.argv) - 2 :]]
    print(json.dumps(main(Path(where), int(count), int(start), chosen or list(STUDIES))))
