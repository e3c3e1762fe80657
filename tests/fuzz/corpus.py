"""Honest inputs of every kind, small, for mutators to start from, and bombs made by hand."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from onnx import TensorProto, helper
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram, WordLevel
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import Whitespace

import fedmeta
import fedmeta_edge
from fedmeta.cli import commands
from fedmeta.cli.argparse_shell import run_argparse
from fedmeta.export.checksum import with_checksum
from fedmeta.fleet.message import Message
from fedmeta.fleet.plan import carry_out
from fedmeta.training.train import RunRequest, train_run
from fleet.transports import InProcessTransport, fleet_of

BOMBS = {
    *("bomb.npz", "promise.npz", "twice.csv", "rows.parquet", "texts.parquet", "wide.parquet"),
    *(
        "bomb-folder",
        "eps-folder",
        "memo",
        "call",
        "nested",
        "keys",
        "digits",
        "bomb.gz",
        "many.toml",
    ),
    *("large.toml", "deep.toml", "digits.toml", "expand.onnx", "loop.onnx"),
    *("outside.onnx", "grows.json", "huge-id.json", "words.json", "long", "hub", "filled"),
}
"""What is fed as it is, once."""
RNG = np.random.default_rng(0)


def build(folder: Path) -> None:
    """Write FOLDER/KIND/NAME for every kind of input; a kind's inputs may be files or folders."""
    files = (_npz, _named, _csv, _texts, _parquet, _images, _cifar, _idx, _toml, _onnx, _weights)
    for kind in (*files, _tokenizer, _encoder, _reply, _message, _run, _study, _fleet, _device):
        place = folder / kind.__name__.strip("_")
        place.mkdir(parents=True)
        kind(place)


def _npz(place: Path) -> None:
    x, y = RNG.normal(size=(12, 2)), np.arange(12) % 3
    np.savez(place / "plain.npz", x=x, y=y, node=np.arange(12) // 4)
    np.savez_compressed(place / "packed.npz", x=x.astype(np.float32), y=np.array(list("abc") * 4))
    images = RNG.integers(0, 255, (6, 5, 5, 3), dtype=np.uint8)
    np.savez(place / "images.npz", x=images, y=y[:6], class_names=np.array(["a", "b", "c"]))
    _zip_bomb(place / "bomb.npz", (40 * 2**24,), 40 * 2**24)
    _zip_bomb(place / "promise.npz", (2**40,), 4096)


def _zip_bomb(path: Path, shape: tuple[int, ...], size: int) -> None:
    """An array of zeros: a header that promises the shape, and so many bytes, packed well."""
    header = io.BytesIO()
    facts = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, facts)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            for _ in range(size // 2**24):
                member.write(bytes(2**24))
        archive.writestr("y.npy", header.getvalue())


def _named(place: Path) -> None:
    """Several inputs by name, one of them a sequence that is filled up."""
    words, lengths = RNG.integers(1, 9, (12, 5)), RNG.integers(1, 6, 12)
    arrays = {"x1": RNG.normal(size=(12, 3)), "words": words, "words_lengths": lengths}
    np.savez(place / "plain.npz", **arrays, y=np.arange(12) % 3, node=np.arange(12) // 4)


def _texts(place: Path) -> None:
    rows = [
        f'{"ab"[i % 2]},"{"good" if i % 3 else "bad"}, {"very " * (i % 4)}one",{i % 4}'
        for i in range(24)
    ]
    (place / "plain.csv").write_text("\n".join(["label,body,who", *rows]) + "\n")


def _tokenizer(place: Path) -> None:
    known = {"good": 0, "bad": 1, "[UNK]": 2, "one": 3}
    words = Tokenizer(WordLevel(known, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.normalizer = Replace("v", "w")
    pieces = {"a": 0, "b": 1, "ab": 2, "o": 3}
    made = {
        "words-of": words,
        "pieces": Tokenizer(BPE(pieces, [("a", "b")], unk_token="a")),
        "chances": Tokenizer(Unigram([("a", -1.0), ("b", -2.0), ("o", -3.0)], unk_id=0)),
    }
    for name, each in made.items():
        (place / f"{name}.json").write_text(each.to_str())
    plain = json.loads(words.to_str())
    grows = {"type": "Replace", "pattern": {"String": "o"}, "content": "o" * 2**20}
    (place / "grows.json").write_text(json.dumps(plain | {"normalizer": grows}))
    plain["model"]["vocab"]["good"] = 2**32 - 1
    (place / "huge-id.json").write_text(json.dumps(plain))
    long = {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##"}
    long |= {"max_input_chars_per_word": 10**9, "vocab": {"a": 0, "##a": 1}}
    (place / "words.json").write_text(json.dumps(plain | {"model": long}))


def _encoder(place: Path) -> None:
    """The smallest BERT there is: two numbers per token, one layer."""
    folder = place / "plain"
    folder.mkdir()
    facts = {"model_type": "bert", "hidden_act": "gelu", "num_attention_heads": 1}
    facts |= {"num_hidden_layers": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": 8}
    (folder / "config.json").write_text(json.dumps(facts))
    words = Tokenizer(WordLevel({"good": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    (folder / "tokenizer.json").write_text(words.to_str())
    layer, shapes = "encoder.layer.0", {"embeddings.word_embeddings.weight": (2, 2)}
    shapes |= {"embeddings.position_embeddings.weight": (8, 2)}
    shapes |= {"embeddings.token_type_embeddings.weight": (2, 2)}
    dense = (
        *(f"attention.self.{it}" for it in ("query", "key", "value")),
        "attention.output.dense",
    )
    for name in (*dense, "intermediate.dense", "output.dense"):
        shapes |= {f"{layer}.{name}.weight": (2, 2), f"{layer}.{name}.bias": (2,)}
    for name in ("embeddings", f"{layer}.attention.output", f"{layer}.output"):
        shapes |= {f"{name}.LayerNorm.{part}": (2,) for part in ("weight", "bias")}
    tensors = {name: torch.ones(shape) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")


def _reply(place: Path) -> None:
    """What an endpoint answers."""
    rows = [[0.2, 0.3, 0.5]] * 4
    (place / "probabilities.json").write_text(json.dumps({"probabilities": rows}))
    (place / "logits.json").write_text(json.dumps({"logits": rows}))


def _csv(place: Path) -> None:
    rows = [f"{a:.3f},{b:.3f},{'abc'[i % 3]}" for i, (a, b) in enumerate(RNG.normal(size=(9, 2)))]
    (place / "plain.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    (place / "texts.csv").write_text('a,label\n1,"x, y"\n2,z\n1e300,\x1b[31mred\n')
    (place / "twice.csv").write_text(",".join(["a"] * 30000) + "\n1\n")
    (place / "deep.csv").write_text("a,label\n" + '"' * 20001 + "\n")


def _parquet(place: Path) -> None:
    table = pa.table({"a": RNG.normal(size=9), "b": np.arange(9), "label": ["a", "b", "c"] * 3})
    pq.write_table(table, place / "plain.parquet")
    many = pa.table({"a": np.zeros(2**25, np.int8), "label": np.zeros(2**25, np.int8)})
    pq.write_table(many, place / "rows.parquet")
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(60_000, np.int8)), ["x" * 200_000])
    pq.write_table(
        pa.table({"a": np.zeros(60_000), "label": long}),
        place / "texts.parquet",
        use_dictionary=True,
        store_schema=False,
    )
    wide = pa.table({f"c{number}": [1.0] for number in range(12_000)})
    pq.write_table(wide, place / "wide.parquet")
    nested = pa.table({"a": [[1, 2], [3]], "label": [{"x": 1}, {"x": 2}]})
    pq.write_table(nested, place / "nested.parquet")


def _images(place: Path) -> None:
    for name, mode in (("png", "RGB"), ("jpg", "L"), ("bmp", "RGB"), ("gif", "P"), ("tiff", "L")):
        for kind in ("cat", "dog"):
            file = place / f"{name}-folder" / kind / f"1.{name}"
            file.parent.mkdir(parents=True)
            Image.new(mode, (9, 8)).save(file)
    for name, content in (
        ("eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"),
        ("bomb", _png_bomb(40_000)),
    ):
        for kind in ("cat", "dog"):
            file = place / f"{name}-folder" / kind / "1.png"
            file.parent.mkdir(parents=True)
            file.write_bytes(content)


def _png_bomb(side: int) -> bytes:
    """A whole PNG header for an image that is never there."""
    import struct
    import zlib

    def chunk(name: bytes, content: bytes) -> bytes:
        crc = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", crc)

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(2**20))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _cifar(place: Path) -> None:
    for protocol in (2, 4):
        folder = place / f"protocol-{protocol}" / "cifar-10-batches-py"
        folder.mkdir(parents=True)
        batches = {f"data_batch_{i}" for i in range(1, 6)} | {"test_batch"}
        for name in sorted(batches):
            data = RNG.integers(0, 255, (2, 3072), dtype=np.uint8)
            batch: dict[Any, Any] = {b"data": data, b"labels": [1, 2]}
            (folder / name).write_bytes(pickle.dumps(batch, protocol))
        names = {b"label_names": [b"%d" % i for i in range(10)]}
        (folder / "batches.meta").write_bytes(pickle.dumps(names, protocol))
    for name, content in (
        ("memo", b"\x80\x02N" + b"r\xff\xff\xff\x1f" + b"."),  # a memo of half a billion places
        ("call", b"cos\nsystem\n(S'true'\ntR."),
        ("nested", b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."),
        ("keys", b"\x80\x02}(" + b"N" + b"\x86q\x00h\x00h\x00" * 60 + b"K\x01u."),
        ("digits", b"(I" + b"9" * 100_000 + b"\nd."),
    ):
        folder = place / name / "cifar-10-batches-py"
        folder.mkdir(parents=True)
        for part in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"]:
            (folder / part).write_bytes(content)


def _idx(place: Path) -> None:
    head = b"\x00\x00\x08\x03" + np.array([2, 3, 3], ">u4").tobytes()
    (place / "plain.gz").write_bytes(gzip.compress(head + bytes(18)))
    (place / "bomb.gz").write_bytes(gzip.compress(head + bytes(2**28)))


_SETTINGS = """
loss = "auto"
algorithm = "admm-fedmeta"
start = ""
[data]
name = "sinusoid"
nodes = 6
samples = [6, 9]
target_share = 0.3
support_share = 0.5
min_samples = 2
precise = 0
[model]
name = "mlp"
hidden = [4]
[training]
rounds = 2
seed = 0
evaluate_every = 1
checkpoint_every = 1
evaluation_steps = [0, 1]
[algorithms.admm-fedmeta]
penalty = 0.3
local_steps = 1
[algorithms.admm-fedmeta.inner]
steps = 1
step_size = 0.1
[execution]
device = "cpu"
threads = 1
[participation]
fraction = 1.0
lost = 0.0
[augmentation]
shift = 0
[uplink.guard]
""".replace('start = ""\n', "")


def _toml(place: Path) -> None:
    (place / "plain.toml").write_text(_SETTINGS)
    (place / "short.toml").write_text('preset = "paper"\n[data]\nname = "sinusoid"\nnodes = 6\n')
    (place / "many.toml").write_text(_SETTINGS.replace("nodes = 6", "nodes = 1000000000"))
    (place / "large.toml").write_text(_SETTINGS.replace("hidden = [4]", "hidden = [2000000000]"))
    (place / "deep.toml").write_text("a = " + "[" * 5000 + "]" * 5000)
    (place / "digits.toml").write_text(_SETTINGS.replace("penalty = 0.3", f"penalty = {9**420}"))


def graph(nodes: list[Any], *initial: Any, adaptable: bool = True) -> onnx.ModelProto:
    """A model as edges have it: two features, three classes."""
    inputs = [helper.make_tensor_value_info("inputs", TensorProto.FLOAT, ["n", 2])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])]
    weight = helper.make_tensor("theta/weight", TensorProto.FLOAT, [2, 3], [0.1] * 6)
    size = helper.make_tensor("step_size", TensorProto.FLOAT, [], [0.1])
    if adaptable:
        inputs += [
            helper.make_tensor_value_info("labels", TensorProto.INT64, ["n"]),
            helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("theta/weight", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("step_size", TensorProto.FLOAT, []),
        ]
        outputs.append(helper.make_tensor_value_info("adapted/weight", TensorProto.FLOAT, [2, 3]))
    made = helper.make_graph(nodes, "model", inputs, outputs, [weight, size, *initial])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


FACTS = {
    "kind": "adaptable",
    "task": "classification",
    "outputs": 3,
    "classes": ["a", "b", "c"],
    "input_shape": [2],
    "features": [],
    "adaptation": {"steps": 1, "step_size": 0.1, "batch_size": None},
    "run": None,
    "label_unit": None,
}
_PREDICTS = helper.make_node("MatMul", ["inputs", "theta/weight"], ["logits"])
_ADAPTS = helper.make_node("Sub", ["theta/weight", "step_size"], ["adapted/weight"])


def _onnx(place: Path) -> None:
    (place / "plain.onnx").write_bytes(with_checksum(graph([_PREDICTS, _ADAPTS]), FACTS))
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [60_000, 60_000])
    expand = helper.make_node("Expand", ["step_size", "shape"], ["large"])
    summed = helper.make_node("ReduceSum", ["large"], ["sum"], keepdims=0)
    adapts = helper.make_node("Sub", ["theta/weight", "sum"], ["adapted/weight"])
    bomb = graph([_PREDICTS, expand, summed, adapts], shape)
    (place / "expand.onnx").write_bytes(with_checksum(bomb, FACTS))
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("again", TensorProto.BOOL, [])],
    )
    true = helper.make_tensor("true", TensorProto.BOOL, [], [True])
    loop = helper.make_node("Loop", ["", "true"], [], body=body)
    (place / "loop.onnx").write_bytes(with_checksum(graph([_PREDICTS, _ADAPTS, loop], true), FACTS))
    outside = graph([_PREDICTS, _ADAPTS])
    tensor = outside.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/hostname")
    (place / "outside.onnx").write_bytes(with_checksum(outside, FACTS))


def _weights(place: Path) -> None:
    about = np.array(json.dumps({"model": "?", "steps": 1, "run": None}))
    np.savez(place / "plain.npz", **{"theta/weight": np.zeros((2, 3), np.float32), "about": about})


_TABLE = {
    "data": {"name": "sinusoid", "nodes": 6, "samples": [6, 9]},
    "model": {"hidden": [4]},
    "training": {"rounds": 2, "checkpoint_every": 1},
}


def _run(place: Path) -> None:
    """Runs of a round or two, without the manifests that would notice every change."""
    corpus = place.parent.resolve()
    texts = {"name": str(corpus / "texts/plain.csv"), "text": "body", "label": "label"}
    texts |= {"node": "who", "text_length": 4, "min_samples": 2, "target_share": 0.3}
    tables = {
        "plain": _TABLE,
        "words": _TABLE | {"data": texts | {"vocabulary": 50}},
        "tokens": _TABLE | {"data": texts | {"tokenizer": str(corpus / "tokenizer/words-of.json")}},
        "vectors": _TABLE | {"data": texts | {"embedding": str(corpus / "encoder/plain")}},
    }
    for name, table in tables.items():
        spec = fedmeta.RunSpec.from_dict(table)
        federation = fedmeta.load(spec.data_settings, spec.training.seed)
        train_run(RunRequest(spec, federation, None, place / name, {"table": table}))
        (place / name / "manifest.json").unlink()
    sequences = [RNG.integers(1, 9, size=1 + number % 5) for number in range(24)]
    federation = fedmeta.federate(sequences, np.arange(24) % 3, np.arange(24) // 4)
    network = fedmeta.ModelSettings("gru", hidden=(4,), vocabulary=9)
    fedmeta.train(federation, model=network, rounds=1, folder=place / "sequences")
    (place / "sequences/manifest.json").unlink()
    for name, change in (("long", _longer), ("hub", _of_a_hub), ("filled", _filled)):
        shutil.copytree(place / ("sequences" if name == "filled" else "words"), place / name)
        _changed(place / name / "model.safetensors", change)


def _changed(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A model's file that says something else of itself."""
    with safe_open(file, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        facts = json.loads(opened.metadata()["fedmeta"])
    facts.pop("sha256")
    change(facts)
    save_file(tensors, file, {"fedmeta": json.dumps(facts)})


def _longer(facts: dict[str, Any]) -> None:
    facts["input_shape"] = [10**9]
    facts["encoding"]["text"]["length"] = 10**9


def _of_a_hub(facts: dict[str, Any]) -> None:
    facts["network"] = {"name": "auto", "backbone": "transformers:somebody/something"}


def _filled(facts: dict[str, Any]) -> None:
    facts["inputs"][0]["shape"], facts["input_shape"] = [10**9], [10**9 + 1]


def _study(place: Path) -> None:
    small = "--data sinusoid --nodes 6 --rounds 1 --seeds 1 --set model.hidden=[4]"
    for line in (
        f"compare fedavg reptile {small} --out {place / 'compared'}",
        f"tune --algorithm fedavg {small} --grid step_size=0.01,0.1 --out {place / 'tuned'}",
    ):
        run_argparse(commands(), line.split())
    for manifest in place.rglob("manifest.json"):
        manifest.unlink()


def _fleet(place: Path) -> None:
    table = _TABLE | {"training": {"rounds": 1, "evaluate_every": 0}}
    _, homes = fleet_of(place / "made", table, edges=2)
    carry_out(place / "made/run", InProcessTransport(homes))
    (place / "made/run/manifest.json").unlink()


def _message(place: Path) -> None:
    """A reply to a round as it crosses the wire: facts, and tensors."""
    tensors = {
        "wire/update": torch.zeros(9),
        "weight": torch.ones(()),
        "metric/meta_loss": torch.ones(()),
    }
    facts = {"run": "run1", "round": 3, "name": "edge-1", "seconds": 0.5, "notes": ["it is warm"]}
    text, content = Message(facts, tensors).encoded()
    folder = place / "reply"
    folder.mkdir()
    (folder / "facts.json").write_text(text)
    (folder / "tensors.bin").write_bytes(content)


def _device(place: Path) -> None:
    """A device's folder: its model, what it has learned, and what it watches."""
    model = place.parent / "onnx/plain.onnx"
    device = fedmeta_edge.begin(place / "plain", model)
    samples = fedmeta_edge.read_samples(place.parent / "csv/plain.csv", device.model)
    fedmeta_edge.watch(fedmeta_edge.learn(device, samples)[0], samples)
