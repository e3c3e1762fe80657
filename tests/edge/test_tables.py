"""A table with categories, gaps and booleans on a device: encoded as in training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedmeta
import fedmeta_edge
from fedmeta_edge.samples import read_samples

ROWS = [
    f"{['idle', 'run'][i % 2]},{'' if i == 7 else i % 5},{['True', 'false'][i % 3 == 0]},{i // 10},"
    f"{'worn' if i % 4 else 'ok'}"
    for i in range(80)
]


def test_a_device_encodes_a_table_as_training_did(tmp_path: Path) -> None:
    table, file = tmp_path / "t.csv", tmp_path / "m.onnx"
    table.write_text("mode,heat,on,device,state\n" + "\n".join(ROWS) + "\n")
    settings = fedmeta.DataSettings(str(table), label="state", node="device", missing="mean")
    federation = fedmeta.load(settings, 0)
    model = fedmeta.train(federation, fedmeta.ModelSettings("linear"), rounds=1).meta_model
    fedmeta.export_onnx(model, file, adaptable=False)
    device = fedmeta_edge.load(file)
    samples = read_samples(table, device)
    assert samples.inputs == pytest.approx(federation.inputs, rel=1e-6)
    assert samples.labels is not None
    assert samples.labels.tolist() == federation.labels.tolist()
    answers = fedmeta_edge.predict(device, samples.inputs)
    assert answers == pytest.approx(model.predict(federation.inputs).numpy(), abs=1e-5)
    assert np.isfinite(answers).all()
