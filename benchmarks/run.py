"""All benchmarks, or some: `PYTHONPATH=src python3 benchmarks/run.py --device cuda`."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import curvature, engines, repeats, rounds, scaling_nodes, scaling_parameters
from benchmarks.bench import Bench
from benchmarks.machine import description
from benchmarks.report import table
from benchmarks.results import RESULTS, Entry, save

BENCHMARKS: dict[str, Callable[[Bench], Iterator[Entry]]] = {
    "rounds": rounds.measure,
    "curvature": curvature.measure,
    "repeats": repeats.measure,
    "scaling_nodes": scaling_nodes.measure,
    "scaling_parameters": scaling_parameters.measure,
    "engines": engines.measure,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, and add the figures to results.json as they come."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here: use --device cpu")
    out: Path | None = options.out or (None if options.quick else RESULTS)
    if options.threads:
        torch.set_num_threads(options.threads)
    # Peers warn of what newer versions of their dependencies will take from them.
    warnings.simplefilter("ignore")
    bench = Bench(options.device, options.quick, partial(print, flush=True))
    bench.say(description(bench.device))
    begin, entries = time.perf_counter(), []
    for name in options.only or BENCHMARKS:
        for entry in BENCHMARKS[name](bench):
            entries.append(entry)
            if out is not None:  # at once: a run may be cut short
                save(out, [entry])
    bench.say(f"\n{table(entries)}\n")
    bench.say(f"{len(entries)} figures in {time.perf_counter() - begin:.0f} s")
    if out is not None:
        bench.say(f"results  {out}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure how fast a round is.")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, help="some benchmarks, not all")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="default: cpu")
    parser.add_argument("--threads", type=int, help="CPU threads; default: torch's choice")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that all runs; stores nothing"
    )
    parser.add_argument("--out", type=Path, help="results file (default: benchmarks/results.json)")
    return parser


if __name__ == "__main__":
    main()
