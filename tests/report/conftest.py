"""Run and comparison folders, written by hand so that every state can be had."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedmeta.report import write_report

Parts = dict[str, Any]


def federation(
    sources: int = 6, targets: int = 3, classes: int = 4, kind: str = "classification"
) -> Parts:
    names = [f"class {c}" for c in range(classes)] if kind == "classification" else []

    def node(i: int) -> Parts:
        own = {names[(i + k) % classes]: 3 + i % 5 for k in range(2)} if names else {}
        role = "source" if i < sources else "target"
        return {"name": f"node-{i:03}", "role": role, "support": 5, "query": 6, "classes": own}

    return {
        "name": "toy",
        "task": {"kind": kind, "outputs": classes if names else 1, "class_names": names},
        "input_shape": [8],
        "counts": {},
        "notes": ["2 of 9 nodes were redrawn"],
        "nodes": [node(i) for i in range(sources + targets)],
    }


def settings(rounds: int = 4) -> Parts:
    return {
        "format": 1,
        "id": "abc",
        "created": "2026-01-02T03:04:05+00:00",
        "versions": {"fedmeta": "0.1.0", "torch": "2.11"},
        "seed": 7,
        "federation": "0123456789abcdef0123",
        "settings": {
            "data": {"name": "toy"},
            "model": {"name": "mlp", "hidden": [64]},
            "algorithm": {
                "name": "admm-fedmeta",
                "inner": {"step_size": 0.01, "steps": 1},
                "penalty": 0.3,
            },
            "training": {"rounds": rounds, "patience": None},
            "loss": "auto",
            "execution": {"device": "cpu"},
            "participation": {"fraction": 1.0, "lost": 0.0},
        },
    }


def history(rounds: int = 4, *, evaluated: bool = True) -> list[Parts]:
    records = []
    for number in range(1, rounds + 1):
        record: Parts = {
            "round": number,
            "meta_loss": 2 / number,
            "primal_residual": 0.1 / number,
            "dual_residual": 1 / number,
            "gradient_norm": 1 / number,
            "counted": 6,
            "bytes_up": 1000,
            "bytes_down": 900,
            "seconds": 0.01,
        }
        if evaluated:
            record["target"] = {"0": 0.5, "1": 0.6 + 0.01 * number, "5": 0.7}
        records.append(record)
    return records


def summary(
    before: float = 0.5, after: float = 0.7, targets: int = 3, status: str = "finished"
) -> Parts:
    values = {"0": before, "1": after}
    row = ("mean", "weighted_mean", "median", "worst_decile", "mean_loss")
    return {
        "status": status,
        "adaptation_steps": 1,
        "target_metric": {s: dict.fromkeys(row, v) for s, v in values.items()} if targets else {},
        "targets": [
            {"name": f"node-{6 + i:03}", "query": 6, "metric": values} for i in range(targets)
        ],
        "parameters": 100,
        "gradient_evaluations": 8.0,
        "ended": "2026-01-02T03:05:05+00:00",
    }


def write_run(
    folder: Path,
    *,
    nodes: Parts | None = None,
    stored: Parts | None = None,
    records: list[Parts] | None = None,
    result: Parts | None = None,
) -> Path:
    """A run folder; without a result it has not ended."""
    folder.mkdir(parents=True)
    (folder / "federation.json").write_text(json.dumps(nodes or federation()))
    (folder / "settings.json").write_text(json.dumps(stored or settings()))
    lines = history() if records is None else records
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if result is not None:
        (folder / "summary.json").write_text(json.dumps(result))
    return folder


def write_comparison(folder: Path, seeds: int, **changes: Any) -> Path:
    """A comparison of two algorithms and its run folders."""
    rows = []
    for label, base in (("admm-fedmeta", 0.8), ("fedavg", 0.7)):
        runs = [f"runs/{label}-seed{seed}" for seed in range(seeds)]
        for run in runs:
            write_run(folder / run, result=summary())
        rows.append(
            {
                "label": label,
                "algorithm": label,
                "rounds": 4,
                "adaptation_steps": 1,
                "values": [base + 0.01 * seed for seed in range(seeds)],
                "before": [base - 0.1] * seeds,
                "mean": base,
                "ci95": 0.02 if seeds > 1 else None,
                "before_mean": base - 0.1,
                "n": seeds,
                "diverged": 0,
                "gradient_evaluations": 8.0,
                "bytes_per_node": 7600,
                "seconds": 0.04,
                "runs": runs,
            }
        )
    paired = {"against": "fedavg", "mean": 0.1, "ci95": 0.03 if seeds > 1 else None}
    stored: Mapping[str, Any] = {
        "format": 1,
        "metric": "accuracy",
        "equal": "rounds",
        "data": {"name": "toy"},
        "seeds": list(range(seeds)),
        "rows": rows,
        "paired": [paired],
        **changes,
    }
    (folder / "comparison.json").write_text(json.dumps(stored))
    return folder


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., str]:
    """The page of a run folder with the parts given."""

    def make(**parts: Any) -> str:
        return write_report(write_run(tmp_path / "run", **parts)).read_text(encoding="utf-8")

    return make
