"""What platform and edges send each other: a few plain facts and a few named tensors."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core.errors import FedmetaError
from fedmeta.core.storage import tensor_bytes, write_bytes
from fedmeta.core.tree import Tree
from fedmeta.models.losses import Loss
from fedmeta.models.meta_model import MetaModel
from fedmeta.models.networks import ModelSettings
from fedmeta.uplink.compression import Compression

_WIRE, _METRIC = "wire/", "metric/"  # what names of tensors begin with
_MOST = 16_000_000  # characters of facts: the names of some 100,000 nodes


class MessageError(FedmetaError):
    """A message that is not what it should be."""


class Message(NamedTuple):
    """A message: facts in JSON's types, and tensors by name."""

    facts: dict[str, Any]
    tensors: dict[str, Tensor] = {}  # noqa: RUF012 - never written to

    def encoded(self) -> tuple[str, bytes]:
        """As JSON and the bytes of a safetensors file: nothing that runs when it is read."""
        return json.dumps(self.facts, allow_nan=False), tensor_bytes(self.tensors)

    @classmethod
    def decoded(cls, facts: str, tensors: bytes) -> Message:
        """The inverse of `encoded`; what is not well-formed is refused."""
        if len(facts) > _MOST:
            raise MessageError(f"a message has {len(facts)} characters of facts", "shorten it")
        try:
            plain, named = json.loads(facts, parse_constant=_no_number), load(tensors)
        # Of values: digits without end; of keys and types: dtypes that PyTorch has not.
        except (ValueError, RecursionError, SafetensorError, KeyError, TypeError) as error:
            said = f"a message is damaged ({str(error)[:200]!a})"
            raise MessageError(said, "send it again") from error
        if not isinstance(plain, dict):
            raise MessageError("a message is damaged (no facts)", "send it again")
        return cls(plain, named)

    @property
    def size(self) -> int:
        """Bytes on the wire, less what Flower and TLS put around them."""
        facts, tensors = self.encoded()
        return len(facts.encode()) + len(tensors)

    def digest(self, but: Sequence[str] = ()) -> str:
        """A fingerprint of the content, but for the facts named."""
        kept = {name: value for name, value in self.facts.items() if name not in but}
        facts, tensors = Message(kept, self.tensors).encoded()
        return hashlib.sha256(facts.encode() + b"\0" + tensors).hexdigest()


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON's")


def flatten(leaves: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """A tree as one vector, its leaves in the order of `names`.

    Example:
        >>> flatten({"b": torch.tensor([3.0]), "a": torch.ones(1, 2)}, ["a", "b"])
        tensor([1., 1., 3.])
    """
    if set(leaves) != set(names):
        odd = sorted({*leaves} ^ {*names})[0]
        raise MessageError(
            f"what nodes add up and what they are sent differ in {odd!r}",
            "let the algorithm's contribution have the names of its broadcast",
        )
    return torch.cat([torch.zeros(0), *(leaves[name].reshape(-1).cpu() for name in names)])


def unflatten(vector: Tensor, like: Tree) -> Tree:
    """The tree in a vector, with the names, shapes, types and device of `like`."""
    if vector.shape != (sum(leaf.numel() for leaf in like.values()),):
        raise MessageError(
            f"a vector has shape {tuple(vector.shape)}, which is not the model's",
            "check that platform and edge run the same version with the same settings",
        )
    parts = torch.split(vector, [leaf.numel() for leaf in like.values()])
    return {
        name: part.reshape(leaf.shape).to(leaf)
        for (name, leaf), part in zip(like.items(), parts, strict=True)
    }


def model_bytes(model: MetaModel) -> bytes:
    """The content of the file that `MetaModel.save` writes; `unpack_model` reads it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        model.save(file)
        return file.read_bytes()


def unpack_model(content: Tensor, network: ModelSettings, loss: Loss) -> MetaModel:
    """The meta-model in a tensor of bytes.

    Network and loss are those of the run: code is never loaded because a message names it.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        write_bytes(file, content.numpy().tobytes())
        return MetaModel.load(file, network, loss)


def pack_contribution(
    total: Contribution, shared: Tree, wire: Tree | None = None
) -> dict[str, Tensor]:
    """Σ contributions as tensors of a message: one vector as long as the model, and scalars.

    Args:
        total: the sum.
        shared: what it was made in answer to; has its names.
        wire: the sum as it goes over the wire, where it is compressed.
    """
    scalars = {f"{_METRIC}{name}": value for name, value in total.metrics.items()}
    if wire is None:
        update = {"update": flatten(total.update, list(shared))}
    else:
        update = {f"{_WIRE}{name}": leaf for name, leaf in wire.items()}
    return {**update, "weight": total.weight, **scalars}


def unpack_contribution(
    tensors: Mapping[str, Tensor], shared: Tree, compression: Compression = Compression()
) -> Contribution:
    """The inverse of `pack_contribution`; what cannot be read as a contribution is refused.

    Whether its numbers make sense is for the guard to judge.
    """
    first = next(iter(shared.values()))
    if compression.method == "none":
        if "update" not in tensors:
            raise MessageError("a reply lacks its sum", "check the edge's version")
        update = unflatten(tensors["update"], shared)
    else:
        wire = {
            name.removeprefix(_WIRE): leaf.to(first.device)
            for name, leaf in tensors.items()
            if name.startswith(_WIRE)
        }
        if (problem := compression.problem(wire, shared)) is not None:
            raise MessageError(f"a reply cannot be read: {problem}", "check the edge's version")
        update = compression.decoded(wire, shared)
    scalars = {
        name: leaf.to(first.device)
        for name, leaf in tensors.items()
        if name == "weight" or name.startswith(_METRIC)
    }
    for name, leaf in scalars.items():
        if leaf.shape != () or not leaf.is_floating_point():
            raise MessageError(f"{name} of a reply is no single number", "check the edge's version")
    if "weight" not in scalars:
        raise MessageError("a reply lacks its weight", "check the edge's version")
    weight = scalars.pop("weight")
    return Contribution(update, weight, {n.removeprefix(_METRIC): v for n, v in scalars.items()})
