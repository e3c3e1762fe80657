"""Tables and plots from results.json for the two pages that show them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.plots import draw
from benchmarks.results import RESULTS, Entry, load
from benchmarks.targets import outcomes
from fedmeta.core.errors import MissingExtraError
from fedmeta.core.storage import write_bytes

PAGE = Path(__file__).with_name("README.md")
FRONT = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def main() -> None:
    """Read the results, draw the plots, and put the tables into both pages."""
    entries = load(RESULTS)
    if not entries:
        sys.exit("there are no results yet: run benchmarks/run.py first")
    try:
        pictures = draw(entries, PAGE.parent)
    except MissingExtraError:
        print("no plots: matplotlib is not installed here")
        pictures = [path.name for path in sorted(PAGE.parent.glob("*.svg"))]
    for path, text in ((PAGE, section(entries, pictures)), (FRONT, target_table(entries))):
        write_bytes(path, between_markers(path.read_text(encoding="utf-8"), text).encode())
    print(target_table(entries))
    print(f"page     {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")


def between_markers(page: str, text: str) -> str:
    """The page with the text in place of what stands between the two markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no line {BEGIN} or no line {END} after it")
    return f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}"


def section(entries: Sequence[Entry], pictures: Sequence[str]) -> str:
    """Targets, plots, and a table per machine, in Markdown."""
    parts = ["### Targets", target_table(entries)]
    parts += [f"![{Path(name).stem.replace('_', ' ')}]({name})" for name in pictures]
    for machine in sorted({entry.machine for entry in entries}):
        mine = [entry for entry in entries if entry.machine == machine]
        parts += [f"### {machine}", table(mine)]
    return "\n\n".join(parts)


def target_table(entries: Sequence[Entry]) -> str:
    """What was asked for and what was measured."""
    rows = [
        [
            outcome.target.text,
            outcome.machine,
            f"{short(outcome.figure)} {outcome.target.unit}",
            "yes" if outcome.reached else "**no**",
        ]
        for outcome in outcomes(entries)
    ]
    return _markdown(["target", "machine", "measured", "reached"], rows)


def short(value: float) -> str:
    """Three digits, or all of those before the point.

    Example:
        >>> short(4.9864), short(3831.2)
        ('4.99', '3,831')
    """
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def table(entries: Sequence[Entry]) -> str:
    """One line per figure."""
    rows = [
        [
            entry.name,
            entry.network,
            f"{entry.nodes:,}",
            entry.dtype,
            short(entry.median_ms),
            "; ".join(
                f"{p} {short(ms)} ({short(entry.ratio(p))}×)" for p, ms in entry.peer_ms.items()
            ),
            "" if entry.limit_ms is None else short(entry.limit_ms),
            "" if entry.limit_ms is None else f"{100 * entry.limit_ms / entry.median_ms:.2g} %",
        ]
        for entry in entries
    ]
    heads = ["benchmark", "network", "nodes", "dtype", "ours, ms", "others, ms (times ours)"]
    return _markdown([*heads, "limit, ms", "share"], rows)


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
