"""Comparisons and searches that are killed and resumed end with the same figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.calling import call, succeed

SCRIPT = Path(__file__).with_name("killed_studies.py")


def check(folder: Path, kills: int, *names: str) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, folder, str(kills), "1", *names], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for name, result in json.loads(done.stdout.splitlines()[-1]).items():
        assert result["equal"] == kills, (name, result)
        assert result["hits"] > 0, "a kill must hit a living process, or nothing was shown"


def test_killed_three_times(tmp_path: Path) -> None:
    check(tmp_path, 3, "compare one by one", "tune")


@pytest.mark.slow
def test_killed_twenty_times(tmp_path: Path) -> None:
    check(tmp_path, int(os.environ.get("FEDMETA_KILLS", "20")))


def test_what_is_asked_for_again_must_be_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = "--data sinusoid --nodes 6 --rounds 2 --seeds 2 --model linear"
    succeed(f"train --algorithm fedavg {small} --out a")
    assert "mse of the target nodes" in succeed("train --resume a")
    assert (
        "table.training.rounds was 2 and is now 3"
        in call("compare --resume a --rounds 3").complaint
    )
    assert "another command" in call("tune --resume a").complaint
    assert (
        "holds runs already: continue it with --resume"
        in call(f"compare fedavg {small} --out a").complaint
    )
    asked = json.loads((tmp_path / "a/asked.json").read_text())
    (tmp_path / "a/manifest.json").unlink()
    (tmp_path / "evil.py").write_text("raise SystemExit('this code was run')")
    (tmp_path / "a/asked.json").write_text(json.dumps({**asked, "algorithms": ["evil.py:Own"]}))
    refused = call("compare --resume a").complaint
    assert "which is not run unless you say so" in refused


@pytest.mark.parametrize(
    "study", ["tune --algorithm fedavg --grid step_size=0.01,0.1", "compare fedavg admm-fedmeta"]
)
def test_a_damaged_summary_is_named(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = "--data sinusoid --nodes 6 --rounds 1 --seeds 1 --model linear --out a"
    succeed(f"{study} {small}")
    written = min((tmp_path / "a").glob("*/*/summary.json"))
    for manifest in (tmp_path / "a").rglob("manifest.json"):
        manifest.unlink()
    summary = json.loads(written.read_text())
    summary.pop("adaptation_steps")
    written.write_text(json.dumps(summary))
    told = call(f"{study.split()[0]} --resume a").complaint
    assert "summary.json is damaged (it has no 'adaptation_steps')" in told
