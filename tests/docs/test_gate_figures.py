"""What the page says of the gate's errors is what the benchmark counted."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[2]


def test_how_often_the_gate_errs() -> None:
    page = " ".join((ROOT / "docs/how-to/keep-earlier-tasks.md").read_text("utf-8").split())
    found = {
        name: json.loads((ROOT / f"results/gate/{name}.json").read_text("utf-8"))
        for name in ("fashion", "cifar10")
    }
    for each in found.values():
        for name, blocked in each["blocked"].items():
            assert blocked == sum(row[name]["blocked"] for row in each["rows"])
        assert each["seeds"] == len(each["rows"]) == 20
    easy, hard = (each["blocked"] for each in found.values())
    assert f"{easy['planted']} of 20 regressions were blocked and {easy['harmless']} of 20" in page
    assert f"on CIFAR-10, {hard['planted']} and {hard['harmless']} of 20" in page
    wide = mean(row["planted"]["±"] for row in found["cifar10"]["rows"])
    assert f"to ± {wide:.1f} points" in page
