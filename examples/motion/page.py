"""The table and the figure of README.md, from results/motion.json.

python examples/motion/page.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from run import ROOT

from fedmeta import interval

PAGE = Path(__file__).with_name("README.md")
FIGURE = Path(__file__).with_name("accuracy.svg")
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
TITLES = {
    "admm-fedmeta": "ADMM-FedMeta",
    "fedavg": "FedAvg, the same adaptation",
    "scratch": "from scratch",
}


def main() -> None:
    result = json.loads((ROOT / "results/motion.json").read_text("utf-8"))  # run.py makes them
    draw(result)
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{section(result)}\n\n{END}{after}", "utf-8")
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
    """Every seed as a line from before to after; trained models once more, seen from near."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    values = result["values"]
    trained = {name: each for name, each in values.items() if name != "scratch"}
    style: dict[Any, Any] = {"svg.hashsalt": "fedmeta", "font.size": 10}
    with mpl.rc_context(style):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        for axes, shown in zip(figure.subplots(1, 2), (values, trained), strict=True):
            for place, each in enumerate(shown.values()):
                for pair in zip(each["before"], each["after"], strict=True):
                    heights = [100 * value for value in pair]
                    axes.plot([place - 0.2, place + 0.2], heights, color="#dfe2e7", zorder=1)
                    axes.scatter(place - 0.2, heights[0], color="#9aa1ab", zorder=2)
                    axes.scatter(place + 0.2, heights[1], color="#0a66a8", zorder=2)
            axes.set_xticks(
                range(len(shown)), [TITLES[name].replace(", ", ",\n") for name in shown]
            )
            axes.set_xlim(-0.5, len(shown) - 0.5)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_ylabel("accuracy of five new people, %")
        figure.suptitle("Ten seeds: before adapting (grey) and after (blue)", fontsize=10)
        figure.savefig(FIGURE, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
