"""What is done with an input of each kind: as a command, the page or a device would."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import fedmeta_edge
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import read_toml, with_preset
from fedmeta.core.run_folder import RunFolder
from fedmeta.data import load
from fedmeta.data.loading import read_own
from fedmeta.data.readers.cifar import read_cifar
from fedmeta.data.readers.fashion_mnist import read_idx
from fedmeta.fleet.reopen import own_federation, stored_table
from fedmeta.models.meta_model import MetaModel, load_theta
from fedmeta.report.reading import read_run
from fedmeta.training.job import prepare
from fedmeta.ui.run_view import run_content
from fedmeta.ui.runs import RunIndex
from fedmeta.ui.uploads import read_upload
from fedmeta_edge.cli import run as edge_command


def _samples(path: Path) -> None:
    read_own(str(path), "regression", node="node" if path.suffix == ".npz" else None)


def _classes(path: Path) -> None:
    read_own(str(path), "classification")


def _cifar(path: Path) -> None:
    read_cifar("cifar10", str(path))


def _idx(path: Path) -> None:
    read_idx(path)


def _settings(path: Path) -> None:
    spec = RunSpec.from_dict(with_preset(read_toml(path)))
    if spec.data_settings.name == "sinusoid":  # others are files of this machine
        federation = load(spec.data_settings, spec.training.seed)
        prepare(replace(spec, execution=replace(spec.execution, device="cpu")), federation)


def _run(path: Path) -> None:
    RunIndex(path.parent).rows()
    run_content(read_run(path))


def _reopen(path: Path) -> None:
    folder = RunFolder.open(path)
    RunSpec.from_dict(stored_table(folder, {}))
    own_federation(folder)


def _model(path: Path) -> None:
    load_theta(path)
    model = MetaModel.load(path)
    if sum(model.input_shape) < 10_000:
        shape = (2, *model.input_shape)
        model.adapt(np.zeros(shape, np.float32), np.zeros((2, model.task.outputs)))
        model.predict(np.zeros(shape, np.float32))


def _upload(path: Path) -> None:
    model = _images_model() if path.is_dir() else _table_model()
    files = sorted(path.rglob("*.*")) if path.is_dir() else [path]
    for file in files[:1]:
        read_upload(model, file.name, file.read_bytes(), "label", invert=False)


def _device(path: Path) -> None:
    model = fedmeta_edge.load(path)
    inputs = np.zeros((4, *model.input_shape), np.float32)
    fedmeta_edge.predict(model, inputs)
    if model.adaptable:
        labels = np.zeros(4, np.int64) if model.classes else np.zeros((4, model.outputs))
        fedmeta_edge.adapt(model, inputs, labels)
    edge_command(["info", str(path)])


def _weights(path: Path) -> None:
    model = fedmeta_edge.load(_corpus(path) / "onnx/plain.onnx")
    fedmeta_edge.predict(model, np.zeros((4, 2), np.float32), _own(path, model))


def _own(path: Path, model: fedmeta_edge.Model) -> dict[str, np.ndarray]:
    """The weights in a file, of this very model: whoever makes a file knows its checksum."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            held = {name: arrays[name] for name in arrays.files}
        about = json.loads(str(held["about"])) | {"model": model.checksum}
        np.savez(path, **{**held, "about": np.array(json.dumps(about))})
    except Exception:  # then it is damaged, and refused as it is
        pass
    return fedmeta_edge.read_weights(path, model)


def _device_samples(path: Path) -> None:
    model = fedmeta_edge.load(_corpus(path) / "onnx/plain.onnx")
    fedmeta_edge.read_samples(path, model)


def _corpus(path: Path) -> Path:
    """Where the honest inputs are: a file beside the changed input says it."""
    return Path((path.parent / "corpus").read_text())


def _table_model() -> MetaModel:
    return _meta_model((2,))


def _images_model() -> MetaModel:
    return _meta_model((1, 8, 8))


def _meta_model(shape: tuple[int, ...]) -> MetaModel:
    from fedmeta import Adaptation, ModelSettings, Scaling
    from fedmeta.data.federation import Task
    from fedmeta.models.functional import functionalise
    from fedmeta.models.losses import cross_entropy
    from fedmeta.models.networks import build

    network = functionalise(build(ModelSettings("linear"), shape, 3, seed=0))
    task = Task("classification", 3, ("a", "b", "c"))
    scaling = Scaling(np.zeros(shape), np.ones(shape))
    rule, about = Adaptation(0.1), {"loss": "cross-entropy"}
    return MetaModel(network, network.theta, scaling, task, cross_entropy, rule, shape, about)


TARGETS: dict[str, list[Callable[[Path], None]]] = {
    "npz": [_samples, _classes, _device_samples],
    "csv": [_classes, _upload, _device_samples],
    "parquet": [_classes, _upload],
    "images": [_classes, _upload],
    "cifar": [_cifar],
    "idx": [_idx],
    "toml": [_settings],
    "run": [_run, _reopen, _model],
    "onnx": [_device],
    "weights": [_weights],
}

torch.set_num_threads(1)
