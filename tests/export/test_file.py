"""What travels inside an .onnx file, and models that have none."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from cli.calling import call, succeed
from export.exporting import meta_model
from fedmeta import Adaptation, ModelSettings
from fedmeta.core.errors import MissingExtraError, ModelError
from fedmeta.export import export_onnx


class Sorting(nn.Module):
    """A layer whose gradient has no translation: an operation that only PyTorch knows."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvalsh(inputs[:, :, None] * inputs[:, None, :])


def test_facts_and_checksum(tmp_path: Path) -> None:
    model = meta_model(ModelSettings("linear"), (4,), 3, Adaptation(0.1, steps=2, batch_size=5))
    path = tmp_path / "model.onnx"
    export_onnx(model, path, adaptable=True)
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    entries = {entry.key: entry.value for entry in proto.metadata_props}
    facts = json.loads(entries["fedmeta"])
    assert facts["classes"] == ["class 0", "class 1", "class 2"]
    assert facts["run"] == "a run"
    assert facts["adaptation"] == {"steps": 2, "step_size": 0.1, "batch_size": 5}
    assert facts["input_shape"] == [4]
    content = path.read_bytes()
    assert content[-64:].decode() == entries["fedmeta.sha256"]
    end = content.rindex(b"r", 0, content.rindex(b"fedmeta.sha256"))
    assert hashlib.sha256(content[:end]).hexdigest() == entries["fedmeta.sha256"]
    # Scaling is part of the graph, and nothing tells where it was made.
    constants = {each.name: each for each in proto.graph.initializer}
    mean = onnx.numpy_helper.to_array(constants["scaling/mean"])
    assert np.allclose(mean, model.scaling.mean)
    assert b".py" not in content


def test_the_layer_in_the_way_is_named(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(4, 3), Sorting(), nn.Linear(3, 3))
    model = meta_model(network, (4,), 3, Adaptation(0.1))
    with pytest.raises(ModelError, match=r"layer '1' \(Sorting\) cannot be exported to ONNX"):
        export_onnx(model, tmp_path / "model.onnx", adaptable=True)
    assert not list(tmp_path.iterdir())


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = meta_model(ModelSettings("linear"), (4,), 3, Adaptation(0.1))
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"fedmeta\[onnx\]"):
        export_onnx(model, tmp_path / "model.onnx", adaptable=False)


def write_table(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        f"{rng.normal() + i % 3:.4f},{rng.normal() - i % 3:.4f},{'abc'[i % 3]},device-{i // 12}"
        for i in range(72)
    ]
    (folder / "data.csv").write_text("\n".join(["width,height,label,device", *rows]) + "\n")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path)
    succeed("train --data data.csv --node device --model linear --rounds 2 --out run")
    for flags, words in [
        ("--adaptable", "the meta-model written to out/m.onnx"),
        ("--adapted data.csv --steps 2", "the adapted model written to out/m.onnx"),
    ]:
        assert words in succeed(f"export run {flags} --out out/m.onnx", "plain")
    before = (tmp_path / "out/m.onnx").read_bytes()
    for line, words in [
        ("export run", "name it: --out FILE.onnx"),
        ("export run --format tflite -o out/m.onnx", "onnx"),
        ("export run --label y -o out/m.onnx", "--adapted DATA"),
        ("export run --adapted none.csv -o out/m.onnx", "check the path"),
        ("export run --adapted data.csv --steps -1 -o out/m.onnx", "at least 0"),
        ("export nowhere -o out/m.onnx", "nowhere"),
    ]:
        outcome = call(line)
        assert outcome.code == 2
        assert words in outcome.complaint
    assert (tmp_path / "out/m.onnx").read_bytes() == before
