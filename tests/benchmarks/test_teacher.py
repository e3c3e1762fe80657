from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import teacher


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Noise in the place of CIFAR-10, and everything small."""
    for name, value in (("LABELLED", 3), ("UNLABELLED", 5), ("STRENGTHS", (0.0, 1.0))):
        monkeypatch.setattr(teacher, name, value)
    monkeypatch.setattr(teacher, "_EPOCHS", 1)
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "cifar10.npz",
        x=rng.integers(256, size=(900, 32, 32, 3), dtype=np.uint8),
        y=np.arange(900) % 10,
        class_names=np.array([f"class {number}" for number in range(10)]),
    )
    return tmp_path


def test_the_platform_has_no_image_of_a_node(folder: Path) -> None:
    pool, cloud = teacher.parted(str(folder))
    assert (len(cloud["x"]), len(cloud["known"])) == (50, 30)
    assert np.bincount(cloud["y"]).tolist() == [3] * 10
    images = [*pool.inputs, *cloud["x"], *cloud["known"]]
    assert len({image.tobytes() for image in images}) == len(images) == 900


@pytest.mark.slow
def test_all_trainings_are_paired_and_cost_the_edges_the_same(folder: Path) -> None:
    _, cloud = teacher.parted(str(folder))
    sure = np.full((50, 10), 0.01, np.float32)
    sure[np.arange(50), np.repeat(np.arange(10), 5)] = 0.91
    np.savez(folder / "cloud.npz", **cloud, probabilities=sure)
    line = f"run --folder {folder} --cloud {folder}/cloud.npz --out {folder}/found.json"
    small = "--seeds 2 --held-out 1 --rounds 1 --nodes 6 --precise 4"
    teacher.main([*line.split(), *small.split()])
    found = json.loads((folder / "found.json").read_text())
    assert found["teacher, own accuracy"] == 100
    assert set(found["accuracy"]) == {"default", "teacher", "start", "start and teacher"}
    assert found["minus default"]["teacher"]["n"] == 2
    assert len({json.dumps(each) for each in found["per node"].values()}) == 1
