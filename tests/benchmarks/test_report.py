from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.plots import draw
from benchmarks.report import BEGIN, END, PAGE, between_markers, section
from benchmarks.results import Entry
from benchmarks.scaling_nodes import NODES
from benchmarks.targets import outcomes

CPU, GPU = "CPU Some Processor, 2 cores, torch 2.13.0", "GPU NVIDIA H200, torch 2.11.0"
LOOPS = {"plain loop": 12.0, "higher": 11.0, "torchopt": 13.0}
ENTRIES = [
    Entry("rounds", CPU, "fashion-mnist", 40, "float32", 10.0, LOOPS, 2.5),
    Entry("rounds", CPU, "cifar-10", 40, "bf16", 5.0, {**LOOPS, "plain loop, autocast": 6.0}),
    Entry("rounds", CPU, "mlp-64-64-10", 1000, "float32", 10.0, {"plain loop": 250.0}),
    Entry("rounds", GPU, "cifar-10", 40, "float32", 4.0, {}, 1.0),
    Entry("curvature", CPU, "cifar-10", 40, "float32", 10.0, {"finite-difference": 8.0}),
    Entry("scaling_parameters", CPU, "mlp-64-13-10", 2, "float32", 1, {"explicit Hessian": 9.0}),
    Entry("scaling_parameters", CPU, "mlp-64-133-10", 2, "float32", 10.0),
    *(Entry("scaling_nodes", CPU, "mlp-64-64-10", n, "float32", n / 100) for n in NODES),
]


def test_targets_are_judged_by_what_was_measured() -> None:
    found = {(o.machine[:3], o.target.text): (o.figure, o.reached) for o in outcomes(ENTRIES)}
    assert found == {
        ("CPU", "Fashion-MNIST net: 1.4 times as fast as the best loop"): (1.1, False),
        # The loops in float32 count, not the one under autocast.
        ("CPU", "CIFAR-10 net in bf16: 1.6 times as fast as the best float32 loop"): (2.2, True),
        ("CPU", "Digits net, 1,000 nodes: 20 times as fast as the plain loop"): (25.0, True),
        ("CPU", "Exact curvature: at most 1.05 times the time of differences"): (1.25, False),
        ("CPU", "100 to 10,000 nodes: time per node the same within 10 %"): (1.0, True),
        ("GPU", "CIFAR-10 net, 40 nodes: a round in at most 5 ms"): (4.0, True),
    }


def test_growth_beyond_linear_misses_its_target() -> None:
    slow = [replace(e, median_ms=e.median_ms * (1 + e.nodes / 50_000)) for e in ENTRIES]
    growth = next(o for o in outcomes(slow) if "time per node" in o.target.text)
    assert growth.figure == pytest.approx(1.2 / 1.002)
    assert not growth.reached


def test_section_has_a_table_per_machine() -> None:
    text = section(ENTRIES, ["rounds.svg"])
    assert f"### {CPU}\n" in text
    assert f"### {GPU}\n" in text
    assert "![rounds](rounds.svg)" in text
    row = "plain loop 12 (1.2×); higher 11 (1.1×); torchopt 13 (1.3×) | 2.5 | 25 % |"
    assert f"| rounds | fashion-mnist | 40 | float32 | 10 | {row}" in text


def test_only_what_stands_between_the_markers_changes() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert between_markers(page, "new\n") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    again = between_markers(between_markers(page, "old"), "new")
    assert again == between_markers(page, "new")


def test_page_has_the_markers() -> None:
    assert "new" in between_markers(PAGE.read_text(encoding="utf-8"), "new")
    with pytest.raises(ValueError, match="no line"):
        between_markers("a page without", "new")


def test_plots_are_drawn_and_repeat_to_the_byte(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = draw(ENTRIES, tmp_path)
    assert names == ["rounds.svg", "scaling_nodes.svg", "scaling_parameters.svg"]
    first = [(tmp_path / name).read_bytes() for name in names]
    draw(ENTRIES, tmp_path)
    assert first == [(tmp_path / name).read_bytes() for name in names]
    assert b"<svg" in first[0]


def test_plots_without_figures_are_left_out(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert draw(ENTRIES[:1], tmp_path) == ["rounds.svg"]
