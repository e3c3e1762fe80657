"""The motion example: who holds what, what is chosen, and the page from its results."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared/data/hapt_windows.npz"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "examples/motion"))
    return {name: importlib.import_module(name) for name in ("people", "methods", "run", "page")}


@pytest.mark.skipif(not DATA.exists(), reason=f"there is no {DATA.name}")
def test_people(example: dict[str, ModuleType]) -> None:
    federation = example["people"].load_people(DATA, seed=3)
    assert [node.name for node in federation.targets] == [f"person-{n}" for n in range(26, 31)]
    assert len(federation.sources) == 25
    assert {len(node.support) for node in federation.nodes} == {10}
    assert {len(node.query) for node in federation.sources} == {40}
    with np.load(DATA) as file:
        recording, person = file["experiment"], file["subject"]
    for node in federation.nodes:
        assert not {*recording[node.support]} & {*recording[node.query]}
        assert {f"person-{each}" for each in person[node.support]} == {node.name}
        assert len({*federation.labels[node.support].tolist()}) == 6
    again = example["people"].load_people(DATA, seed=3)
    assert np.array_equal(again.nodes[7].query, federation.nodes[7].query)


def made_up(example: dict[str, ModuleType]) -> dict[str, object]:
    values = {
        "admm-fedmeta": {"before": [0.90, 0.91, 0.92], "after": [0.95, 0.96, 0.97]},
        "fedavg": {"before": [0.90, 0.91, 0.92], "after": [0.96, 0.95, 0.97]},
        "scratch": {"before": [0.1, 0.2, 0.3], "after": [0.70, 0.71, 0.72]},
    }
    return {"values": values, "ahead_of": example["run"].ahead(values)}


def test_the_page_tells_what_was_not_reached(
    example: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, result = example["page"], made_up(example)
    text = page.section(result)
    assert "| ADMM-FedMeta | 91.00 ± 2.48 % | 96.00 ± 2.48 % |" in text
    assert "| itself before adapting | +5.00 ± 0.00 | ahead |" in text
    assert "| fedavg with the same adaptation | +0.00 ± 2.48 | **not reached** |" in text
    monkeypatch.setattr(page, "FIGURE", tmp_path / "accuracy.svg")
    page.draw(result)
    first = (tmp_path / "accuracy.svg").read_bytes()
    page.draw(result)
    assert (tmp_path / "accuracy.svg").read_bytes() == first


def test_the_best_trial_is_chosen(example: dict[str, ModuleType]) -> None:
    trials = [
        {"method": "fedavg", "settings": {"η": 0.1, "α": 3.0}, "accuracy": 0.9},
        {"method": "fedavg", "settings": {"η": 0.3, "α": 1.0}, "accuracy": 0.8},
        {"method": "scratch", "settings": {"η": 0.03}, "accuracy": 0.5},
    ]
    chosen = example["run"].chosen(trials)
    assert (chosen["fedavg"].step_size, chosen["fedavg"].inner.step_size) == (0.1, 3.0)
    assert chosen["fedavg"].inner.scope == "head"
    assert chosen["scratch"].step_size == 0.03


def test_the_page_on_disk_is_that_of_the_results(example: dict[str, ModuleType]) -> None:
    shown = (ROOT / "examples/motion/README.md").read_text(encoding="utf-8")
    file = ROOT / "results/motion.json"
    if file.exists():
        from fedmeta.core.storage import read_json

        assert example["page"].section(read_json(file, "results")) in shown
    else:
        assert "Not run yet." in shown
