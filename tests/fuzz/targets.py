"""What is done with an input of each kind: as a command, the page or a device would."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import fedmeta_edge
from fedmeta.cli import commands
from fedmeta.cli.argparse_shell import run_argparse
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import read_toml, with_preset
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.user_code import refuse_code
from fedmeta.data import load
from fedmeta.data.encoding import model_encoding
from fedmeta.data.loading import read_own
from fedmeta.data.named_inputs import InputParts
from fedmeta.data.readers.cifar import read_cifar
from fedmeta.data.readers.fashion_mnist import read_idx
from fedmeta.data.readers.npz import arrays_without_pickles
from fedmeta.data.readers.table import TableSettings
from fedmeta.data.sentences import SentenceEncoder
from fedmeta.data.text import text_encoding
from fedmeta.fleet.audit import read_audit
from fedmeta.fleet.message import Message
from fedmeta.fleet.message_schema import check_round_reply
from fedmeta.fleet.plan import Plan, carry_out
from fedmeta.fleet.reopen import own_federation, stored_table
from fedmeta.models import endpoint
from fedmeta.models.meta_model import MetaModel, load_theta
from fedmeta.models.teachers import Teacher, ask, open_teacher
from fedmeta.report import report_page
from fedmeta.report.reading import read_run
from fedmeta.training.job import prepare
from fedmeta.ui.run_view import run_content
from fedmeta.ui.runs import RunIndex
from fedmeta.ui.uploads import read_upload
from fedmeta_edge.cli import run as edge_command
from fleet.transports import InProcessTransport


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


def _named(path: Path) -> None:
    pool = read_own(str(path), "classification", node="node", features=("x1", "words"))
    assert pool.parts is not None
    given = arrays_without_pickles(path, ["x1", "words", "words_lengths"])
    longer = [replace(part, sequence=part.name == "words") for part in pool.parts.parts]
    InputParts(tuple(longer)).rows(given)


def _texts(path: Path) -> None:
    corpus = _corpus(path)
    own = str(path), "classification", "label", "who", None
    read_own(*own, table=TableSettings(text="body", text_length=4, vocabulary=50))
    words = str(corpus / "tokenizer/words-of.json")
    read_own(*own, table=TableSettings(text="body", tokenizer=words))


def _tokenizer(path: Path) -> None:
    encoding = text_encoding("body", str(path), None, 4, 50)
    encoding.inputs(["a good one", "", "\x1b\u202e", "o" * 10_000])


def _encoder(path: Path) -> None:
    SentenceEncoder(path).embeddings(["a good one", ""])


def _reply(path: Path) -> None:
    reply = endpoint._read("http://here", path.read_bytes())
    ask(Teacher("http://here", lambda _: reply), np.zeros((4, 2), np.float32), ("a", "b", "c"))


def _teacher(path: Path) -> None:
    ask(open_teacher(str(path)), np.zeros((4, 2), np.float32), ("a", "b", "c"))


def _message(path: Path) -> None:
    message = Message.decoded(
        (path / "facts.json").read_text(errors="replace"),  # protobuf lets through Unicode alone
        (path / "tensors.bin").read_bytes(),
    )
    form = {name: ((9,) if "wire" in name else (), torch.float32) for name in _LEAVES}
    check_round_reply(message, {"run": "run1", "round": 3, "name": "edge-1"}, form)


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
        values = model.task.kind == "regression"
        labels = np.zeros((2, model.task.outputs)) if values else list(model.task.class_names[:2])
        model.adapt(np.zeros(shape, np.float32), labels)
        model.predict(np.zeros(shape, np.float32))


def _commands(path: Path) -> None:
    """One of the commands that open a run, by what is in it."""
    out, texts = path.parent / "out", _corpus(path) / "texts/plain.csv"
    lines = (
        f"predict {path} --data {texts} --out {out}.csv",
        f"gate {path} --against {path}",
        f"calibrate {path} --folds 2",
        f"adapt {path} --data {texts} --out {out}.safetensors",
        f"report {path}",
        f"diagnose {path}",
        f"train --resume {path} --rounds 3",
        f"export {path} --out {out}.onnx --adaptable",
    )
    chosen = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    run_argparse(commands(), lines[chosen % len(lines)].split())


def _asked(path: Path) -> None:
    model = MetaModel.load(path)
    encoding = model_encoding(model.about)
    if model.network.calling is not None:
        model.predict([np.array([1, 2]), np.array([3])])
    elif encoding is not None and encoding.text is not None:
        model.predict(encoding.text.inputs(["a good one", "o" * 1000]))


def _study(path: Path) -> None:
    tuned = (path / "tuning.json").exists()
    if not tuned:
        report_page(path)
    run_argparse(commands(), ["tune" if tuned else "compare", "--resume", str(path)])


def _fleet(path: Path) -> None:
    run = path / "run"
    plan = Plan.load(run)
    refuse_code(plan.table, {}, run)
    run_content(read_run(run))
    read_audit(run / "fleet")
    own_federation(RunFolder.open(run))
    homes = {100 + place: home for place, home in enumerate(sorted(path.glob("edge-*")))}
    carry_out(run, InProcessTransport(homes))


def _folder_of_a_device(path: Path) -> None:
    samples = str(_corpus(path) / "csv/plain.csv")
    edge_command(["status", str(path)])
    for command in ("watch", "predict", "learn"):
        edge_command([command, str(path), "--data", samples])


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


_LEAVES = ("wire/update", "weight", "metric/meta_loss")

TARGETS: dict[str, list[Callable[[Path], None]]] = {
    "npz": [_samples, _classes, _device_samples],
    "named": [_named],
    "csv": [_classes, _upload, _device_samples],
    "texts": [_texts],
    "tokenizer": [_tokenizer],
    "encoder": [_encoder],
    "parquet": [_classes, _upload],
    "images": [_classes, _upload],
    "cifar": [_cifar],
    "idx": [_idx],
    "toml": [_settings],
    "reply": [_reply],
    "message": [_message],
    "run": [_run, _reopen, _model, _asked, _commands],
    "study": [_study],
    "fleet": [_fleet],
    "onnx": [_device, _teacher],
    "weights": [_weights],
    "device": [_folder_of_a_device],
}

torch.set_num_threads(1)
