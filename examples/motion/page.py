"""The table and the figure of README.md, from results/motion.json.

python examples/motion/page.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from run import ROOT

from fedmeta.intervals import interval
from fedmeta.storage import read_json, write_bytes

PAGE = Path(__file__).with_name("README.md")
FIGURE = Path(__file__).with_name("accuracy.svg")
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
TITLES = {
    "admm-fedmeta": "ADMM-FedMeta",
    "fedavg": "FedAvg, the same adaptation",
    "scratch": "from scratch",
}


def main() -> None:
    result = read_json(ROOT / "results/motion.json", "results; run.py makes them")
    draw(result)
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    write_bytes(PAGE, f"{before}{BEGIN}\n\n{section(result)}\n\n{END}{after}".encode())
    print(section(result))


def section(result: dict[str, Any]) -> str:
    """The tables in Markdown."""
    rows = ["| | before | after adapting |", "| --- | --- | --- |"]
    for name, values in result["values"].items():
        cells = [shown(values[when]) for when in ("before", "after")]
        rows.append(f"| {TITLES[name]} | {' | '.join(cells)} |")
    rows += ["", "| adapted ADMM-FedMeta minus … | points | |", "| --- | --- | --- |"]
    for name, each in result["ahead_of"].items():
        width = each["ci95"] or 0.0
        verdict = "ahead" if each["mean"] > width else "**not reached**"
        rows.append(f"| {name} | {100 * each['mean']:+.2f} ± {100 * width:.2f} | {verdict} |")
    return "\n".join([*rows, "", f"![accuracy of the five people]({FIGURE.name})"])


def shown(values: list[float]) -> str:
    """Mean and 95 % interval in percent."""
    found = interval(values)
    return f"{100 * found.mean:.2f} ± {100 * (found.half_width or 0):.2f} %"


def draw(result: dict[str, Any]) -> None:
    """Every seed as a dot, before and after."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"svg.hashsalt": "fedmeta", "font.size": 10}
    with mpl.rc_context(style):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.subplots()
        for place, values in enumerate(result["values"].values()):
            for side, when, colour in ((-0.15, "before", "#b9bec6"), (0.15, "after", "#0a66a8")):
                heights = [100 * value for value in values[when]]
                label = f"{when} adapting" if place == 0 else None
                axes.plot([place + side] * len(heights), heights, "o", color=colour, label=label)
        axes.set_xticks(range(len(result["values"])), [TITLES[name] for name in result["values"]])
        axes.set_ylabel("accuracy of five new people, %")
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(FIGURE, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
