from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.calling import SHELLS, call, spawn, succeed
from cli.test_core_only import BARE

ONE = "reproduce dissimilarity --quick --only '*/with-prior' --threads 1"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("shell", SHELLS)
def test_cells_are_listed(shell: str) -> None:
    printed = succeed("reproduce rho --list --only '*/cifar10/*'", shell)
    assert "10 cells" in printed
    assert "rho/fixed-pairs/cifar10/rho-0.7" in printed
    assert "to run" in printed
    assert list(Path().iterdir()) == []


def test_quick_run_is_kept_summarised_and_rendered(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    printed = succeed(f"{ONE} --out mine")
    assert "1 ran  0 same  0 kept  0 failed  0 no time" in printed
    summary = json.loads(Path("mine/summary.json").read_text("utf-8"))
    assert summary["dissimilarity"]["digits"]["with-prior"]["accuracy"]["n"] == 2
    assert "with-prior" in Path("mine/results-tables.md").read_text("utf-8")
    assert Path("mine/figures/dissimilarity.svg").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"mine"}
    assert "0 ran  0 same  1 kept" in succeed(f"{ONE} --out mine")
    assert "1 ran  0 same  0 kept" in succeed(f"{ONE} --out mine --force")
    assert "0 ran  0 same  0 kept  0 failed  1 no time" in succeed(
        f"{ONE} --out other --seconds=-1"
    )


def test_quick_results_never_lie_among_the_real_ones() -> None:
    outcome = call(f"{ONE} --out results")
    assert outcome.code == 2
    assert "no place among the results" in outcome.complaint


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("table3", "did you mean 'table2' or 'table1'"),
        ("rho --only nothing", "no cell fits nothing"),
    ],
)
def test_what_is_not_there_is_named(line: str, words: str) -> None:
    outcome = call(f"reproduce {line}")
    assert outcome.code == 2
    assert words in outcome.complaint


def test_missing_data_fail_cell_by_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDMETA_DATA", raising=False)
    outcome = call("reproduce dissimilarity --out mine --data-folder nowhere")
    assert outcome.code == 2
    assert outcome.out.count("failed: the files of cifar10 were not found") == 2
    assert "2 cells could not be run" in outcome.complaint


def test_results_elsewhere_leave_the_pages_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    front = "<!-- reproduced: begin -->\nours\n<!-- reproduced: end -->"
    Path("README.md").write_text(front)
    succeed("reproduce render --out mine")
    assert Path("README.md").read_text() == front
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "mine"}
    assert Path("mine/results.md").exists()


def test_it_runs_with_the_core_alone(tmp_path: Path) -> None:
    line = ["rho", "--out", "mine", "--list", "--only", "*/cifar10/rho-7"]
    outcome = spawn(line, tmp_path, "fedmeta.cli.reproduce", BARE)
    assert outcome.code == 0, outcome.err
    assert "rho/random-pairs/cifar10/rho-7" in outcome.out
    outcome = spawn(["render", "--out", "mine"], tmp_path, "fedmeta.cli.reproduce", BARE)
    assert outcome.code == 2
    assert "pip install 'fedmeta[report]'" in outcome.complaint


@pytest.mark.slow
def test_all_of_it_in_small(tmp_path: Path) -> None:
    """Every experiment, every kind of cell: some three minutes."""
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    succeed("reproduce all --quick --threads 1 --out mine")
    pages = "".join(each.read_text("utf-8") for each in Path("mine").glob("results*.md"))
    assert pages.count("](figures/") == 9
    summary = json.loads(Path("mine/summary.json").read_text("utf-8"))
    assert len(summary["ahead"]["fixed-pairs"]["digits"]["gradients"]["fedavg"]) == 4
