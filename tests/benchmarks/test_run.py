from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import machine, run
from benchmarks.results import load

ROOT = Path(run.__file__).resolve().parents[1]


def test_quick_run_of_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.json"
    run.main(["--quick", "--only", "scaling_nodes", "scaling_parameters", "--out", str(out)])
    entries = load(out)
    assert [(entry.name, entry.nodes) for entry in entries] == [
        ("scaling_nodes", 2),
        ("scaling_nodes", 4),
        ("scaling_parameters", 2),
        ("scaling_parameters", 2),
    ]
    assert all(entry.machine == machine.description("cpu") for entry in entries)
    assert all("explicit Hessian" in entry.peer_ms for entry in entries[2:])
    printed = capsys.readouterr().out
    assert "4 figures in" in printed
    assert "| scaling_nodes | mlp-64-64-10 | 2 | float32 |" in printed


def test_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["--only", "nonsense"])
    assert "invalid choice: 'nonsense'" in capsys.readouterr().err


def test_missing_gpu_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        run.main(["--device", "cuda"])
    assert "torch sees no GPU here: use --device cpu" in capsys.readouterr().err


@pytest.mark.slow
def test_quick_run_of_all_as_the_page_says(tmp_path: Path) -> None:
    before = (ROOT / "benchmarks" / "results.json").exists()
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--quick", "--threads", "1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    for name in run.BENCHMARKS:
        assert f"| {name} |" in ran.stdout
    assert (ROOT / "benchmarks" / "results.json").exists() == before, "quick runs store nothing"
