"""How fast `fedmeta ui` shows a folder of many runs, and a run among them.

    python -m benchmarks.ui            # 200 runs
    python -m benchmarks.ui --runs 1000

A server of its own is asked over HTTP, as a browser would: the first view of the list, when nothing
has been read yet, the views after it, and the page of one run. The goal for the first is a second.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from statistics import median

from fedmeta.config.spec import RunSpec
from fedmeta.data import load
from fedmeta.training.train import RunRequest, train_run
from fedmeta.ui.app import server

GOAL = 1.0  # seconds


def make_runs(root: Path, count: int) -> None:
    """A folder of runs: one is trained, the others are copies of it."""
    table = {"training": {"rounds": 100}}
    settings = RunSpec.from_dict(table)
    first = root / "run-0000"
    federation = load(settings.data_settings, 0)
    train_run(RunRequest(settings, federation, None, first, {"table": table}))
    for number in range(1, count):
        shutil.copytree(first, root / f"run-{number:04}", ignore=shutil.ignore_patterns("check*"))


def seconds_of(address: str) -> float:
    """How long a request takes until its last byte."""
    start = time.perf_counter()
    with urllib.request.urlopen(address) as answer:
        answer.read()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=200, help="how many runs the folder holds")
    count = parser.parse_args().runs
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        make_runs(Path(folder), count)
        running = server(Path(folder))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        seconds_of(f"{address}/static/ui.css")  # the server is up
        first = seconds_of(f"{address}/")
        again = median(seconds_of(f"{address}/") for _ in range(10))
        one = median(seconds_of(f"{address}/run/run-0000") for _ in range(5))
        running.should_exit = True
        thread.join()
    print(f"first view of {count} runs  {1000 * first:6.0f} ms  (goal: {1000 * GOAL:.0f} ms)")
    print(f"views after it          {1000 * again:6.0f} ms")
    print(f"page of one run         {1000 * one:6.0f} ms")


if __name__ == "__main__":
    main()
