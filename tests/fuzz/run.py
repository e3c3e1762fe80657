"""Feed changed inputs to everything that reads files, each in a process of its own.

    PYTHONPATH=tests python -m fuzz.run FOLDER [COUNT] [SEED]

Prints one line of JSON: how many inputs were fed, how many were refused, and every failure: a
traceback, more than 60 s of CPU, more than 1 GB of memory beyond an idle process, or a program that
was started. A failing input stays in FOLDER/failed.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from fedmeta.core.errors import FedmetaError
from fedmeta.engine.compiled.compiler import library
from fedmeta_edge import EdgeError
from fuzz.corpus import BOMBS, build
from fuzz.mutators import mutate_file
from fuzz.targets import TARGETS

CPU_SECONDS, MEMORY = 60, 10**9
_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork")
_FORBIDDEN = (*_PROGRAMS, "pickle.find_class", "socket.connect")
FINE, REFUSED, BROKEN, STARTED = 0, 2, 3, 4


def main(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """All inputs in turn; bombs as they are come first."""
    for dtype in ("float32", "float64"):
        library(dtype)  # starts a compiler, which no input may
    corpus = folder / "corpus"
    if not corpus.is_dir():
        _in_child(lambda: build(corpus), folder)
    idle = _in_child(lambda: None, folder)[1]
    everything = sorted(path for kind in TARGETS for path in (corpus / kind).iterdir())
    bombs = [path for path in everything if path.name in BOMBS]
    honest = [path for path in everything if path.name not in BOMBS]
    found: Counter[str] = Counter()
    failures = []
    for number in range(count):
        luck = random.Random(f"{seed}-{number}")
        as_it_is = number < len(bombs)
        chosen = bombs[number] if as_it_is else honest[number % len(honest)]
        kind = chosen.parent.name
        place = folder / "input"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        (place / "corpus").write_text(str(corpus))
        path = place / chosen.name
        shutil.copytree(chosen, path) if chosen.is_dir() else shutil.copy(chosen, path)
        if not as_it_is:
            files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
            for file in luck.sample(files, min(len(files), luck.choice((1, 1, 2)))):
                mutate_file(file, kind, luck)
        for target in TARGETS[kind]:
            status, memory, said = _in_child(lambda t=target, p=path: t(p), folder)
            name = f"{kind} {chosen.name} {number} {target.__name__}"
            found["fed"] += 1
            found["refused"] += status == REFUSED
            if status not in (FINE, REFUSED):
                failures.append({"input": name, "why": said or f"ended by signal {-status}"})
            elif memory - idle > MEMORY:
                failures.append({"input": name, "why": f"{(memory - idle) / 1e9:.1f} GB"})
            else:
                continue
            shutil.copytree(place, folder / "failed" / name.replace(" ", "-"), dirs_exist_ok=True)
    return {"inputs": count, **found, "failures": failures}


def _in_child(work: Callable[[], None], folder: Path) -> tuple[int, int, str]:
    """Do something in a process of its own: how it ended, its peak memory, what it said."""
    note = folder / "said"
    note.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (6 * MEMORY, 6 * MEMORY))  # spare the machine
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(4 * CPU_SECONDS)  # for what waits without computing
        status, said = _tried(work)
        if said:
            note.write_text(said, errors="backslashreplace")
        os._exit(status)
    _, ended, usage = os.wait4(child, 0)
    status = os.WEXITSTATUS(ended) if os.WIFEXITED(ended) else -os.WTERMSIG(ended)
    return status, usage.ru_maxrss * 1024, note.read_text() if note.exists() else ""


def _tried(work: Callable[[], None]) -> tuple[int, str]:
    started: list[str] = []
    sys.addaudithook(lambda event, _: started.append(event) if event in _FORBIDDEN else None)
    out = io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(out):
            work()
        status, said = FINE, ""
    except (FedmetaError, EdgeError) as error:
        status, said = REFUSED, ""
        if not str(error).isprintable() or len(str(error)) > 5000:
            status, said = BROKEN, f"an unprintable message: {str(error)[:300]!r}"
    except MemoryError:
        status, said = BROKEN, "out of memory"
    except BaseException:
        status, said = BROKEN, traceback.format_exc()[-1500:]
    return (STARTED, f"it called {started[0]}") if started else (status, said)


if __name__ == "__main__":
    where, amount, start = [*sys.argv[1:], "200", "0"][:3]
    result = main(Path(where), int(amount), int(start))
    print(json.dumps(result))
    sys.exit(bool(result["failures"]))
