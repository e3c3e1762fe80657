"""How fast a large table becomes a federation, against pyarrow.csv and NumPy grouping alone.

A .csv file of 1,000,000 rows and 20 columns from 10,000 devices is read, checked and dealt out to
nodes by `fedmeta.load`, and read by `pyarrow.csv` and grouped by device with NumPy: float32 inputs,
class numbers, and for every device where its rows are. Each in a process of its own, in turns.
On a busy machine the seconds of all cores together say more than those of the clock.

    python -m benchmarks.table_reading --rows 1000000 --repeats 3
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

FEATURES, DEVICES = 18, 10_000


def write_table(path: Path, rows: int) -> None:
    """A table of numbers, a device and a label, the rows of devices mixed."""
    import pyarrow as pa
    import pyarrow.csv

    rng = np.random.default_rng(0)
    columns = {f"f{i}": rng.normal(size=rows).round(6) for i in range(FEATURES)}
    device = rng.integers(DEVICES, size=rows)
    label = rng.integers(3, size=rows)
    names = np.array([f"device-{number:05}" for number in range(DEVICES)])
    table = {**columns, "device": names[device], "label": np.array(["low", "mid", "top"])[label]}
    pa.csv.write_csv(pa.table(table), path, pa.csv.WriteOptions(quoting_style="none"))


def baseline(path: Path) -> object:
    """Pyarrow reads, texts as places in a list of them; NumPy groups."""
    import pyarrow.csv

    options = pyarrow.csv.ConvertOptions(auto_dict_encode=True, auto_dict_max_cardinality=10**6)
    table = pyarrow.csv.read_csv(path, convert_options=options).unify_dictionaries()
    names = [f"f{i}" for i in range(FEATURES)]
    inputs = np.stack([table.column(name).to_numpy().astype(np.float32) for name in names], axis=1)
    labels, owner = (
        np.concatenate([chunk.indices.to_numpy() for chunk in table.column(name).chunks])
        for name in ("label", "device")
    )
    rows = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])
    return inputs, labels, rows


def ours(path: Path) -> object:
    """Read, checked, dealt out: sources, targets, support and query."""
    from fedmeta.data import DataSettings, load

    return load(DataSettings(str(path), node="device"), seed=0)


def measured(work: Callable[[Path], object], path: Path) -> dict[str, float]:
    """Seconds by the clock and of all cores, and bytes of memory beyond what imports take."""
    import pyarrow.csv  # noqa: F401

    import fedmeta.data  # noqa: F401

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, computed = time.perf_counter(), time.process_time()
    kept = work(path)
    seconds, computed = time.perf_counter() - start, time.process_time() - computed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del kept
    return {"seconds": seconds, "of cores": computed, "bytes": 1024.0 * (peak - before)}


def main() -> None:
    """Both in turns, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    works: dict[str, Callable[[Path], object]] = {"pyarrow and NumPy": baseline, "fedmeta": ours}
    if given.one:
        print(json.dumps(measured(works[given.one[0]], Path(given.one[1]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        write_table(path, given.rows)
        size = path.stat().st_size
        print(f"{given.rows} rows, {FEATURES + 2} columns, {size / 1e6:.0f} MB")
        best: dict[str, dict[str, float]] = {}
        for _ in range(given.repeats):
            for name in works:
                own = ["-m", "benchmarks.table_reading", "--one", name, str(path)]
                command = [sys.executable, *own]
                told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                found = json.loads(told)
                known = best.setdefault(name, found)
                best[name] = {key: min(known[key], found[key]) for key in found}
        for name, found in best.items():
            memory = found["bytes"] / size
            times = f"{found['seconds']:.2f} s, {found['of cores']:.2f} s of all cores"
            print(f"{name}: {times}, {memory:.2f} times the file in memory")
        wall, cores = (
            best["fedmeta"][each] / best["pyarrow and NumPy"][each]
            for each in ("seconds", "of cores")
        )
        print(f"ratio {wall:.2f}, of all cores {cores:.2f} (at most 1.5 is wanted)")


if __name__ == "__main__":
    main()
