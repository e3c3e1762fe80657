"""Checkpoints: the whole state of a run after a round, as safetensors beside JSON.

    checkpoints/round-000040/state.safetensors     θ, platform memory, node states
    checkpoints/round-000040/state.json            round, format, digest of the tensors

A checkpoint folder is renamed into place when it is complete, so the newest one is always good.
Random numbers need no saving: they are functions of the seed and the round (`randomness`).
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor

from fedmeta.algorithms.algorithm import NodeState, PlatformState
from fedmeta.core.errors import RunFolderError
from fedmeta.core.run_folder import HistoryDigest, Record
from fedmeta.core.storage import read_json, tensor_bytes, to_json, write_folder
from fedmeta.core.tree import Tree

FORMAT = 1
_NAME = re.compile(r"round-(\d{6,})")


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round."""

    round: int
    state: PlatformState
    nodes: NodeState


def save(folder: Path, checkpoint: Checkpoint, keep: int, history: str | None = None) -> Path:
    """Write a checkpoint and remove all but the newest `keep`.

    Args:
        folder: where checkpoints are.
        checkpoint: the state after a round.
        keep: how many to leave.
        history: digest of the rounds so far, see `HistoryDigest`.
    """
    content = tensor_bytes(_flatten(checkpoint))
    facts = {
        "format": FORMAT,
        "round": checkpoint.round,
        "sha256": hashlib.sha256(content).hexdigest(),
        **({} if history is None else {"history": history}),
    }
    path = folder / f"round-{checkpoint.round:06d}"
    write_folder(path, {"state.safetensors": content, "state.json": to_json(facts).encode()})
    for old in rounds(folder)[:-keep]:
        shutil.rmtree(folder / f"round-{old:06d}", ignore_errors=True)
    return path


def rounds(folder: Path) -> list[int]:
    """Rounds that have a checkpoint, ascending."""
    if not folder.is_dir():
        return []
    matches = (_NAME.fullmatch(entry.name) for entry in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def check_history(folder: Path, round_number: int, records: Sequence[Record]) -> None:
    """Refuse rounds that are not those which the checkpoint after them remembers.

    Args:
        folder: where checkpoints are.
        round_number: of the checkpoint; 0: none.
        records: of all rounds up to it.
    """
    path = folder / f"round-{round_number:06d}"
    if round_number == 0:
        return
    known = read_json(path / "state.json", "checkpoint").get("history")  # older ones have none
    if known is not None and known != HistoryDigest().of(records):
        raise RunFolderError(
            f"{folder.parent / 'metrics.jsonl'} is damaged: its rounds are not those that "
            f"checkpoint {path.name} remembers",
            "restore it from a copy",
        )


def load(folder: Path, round_number: int, like: Checkpoint) -> Checkpoint:
    """Read a checkpoint of a run whose states look like `like`.

    Raises:
        RunFolderError: if it is damaged, of another format, or of another model or algorithm.
    """
    path = folder / f"round-{round_number:06d}"
    try:
        facts = read_json(path / "state.json", "checkpoint")
    except RunFolderError as error:
        raise RunFolderError(error.problem, _older(folder, round_number)) from error
    if facts.get("format") != FORMAT:
        raise RunFolderError(
            f"checkpoint {path} has format {facts.get('format')!r}, this version reads {FORMAT}",
            "resume it with the version of fedmeta that wrote it",
        )
    try:
        content = (path / "state.safetensors").read_bytes()
    except OSError as error:
        raise RunFolderError(
            f"checkpoint {path} cannot be read ({error.strerror})", _older(folder, round_number)
        ) from error
    if hashlib.sha256(content).hexdigest() != facts.get("sha256"):
        raise RunFolderError(
            f"checkpoint {path} is truncated or damaged", _older(folder, round_number)
        )
    try:
        tensors, expected, number = load_safetensors(content), _flatten(like), int(facts["round"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"checkpoint {path} is not complete ({type(error).__name__}: {error})",
            _older(folder, round_number),
        ) from error
    for name in sorted({*tensors, *expected}):
        here, wanted = tensors.get(name), expected.get(name)
        if here is None or wanted is None or here.shape != wanted.shape:
            raise RunFolderError(
                f"checkpoint {path} is of another model, federation or algorithm: tensor {name!r} "
                f"is {_shape(here)} there and {_shape(wanted)} here",
                "resume with the settings the run was started with",
            )
    return Checkpoint(number, *_unflatten(tensors, like))


def _older(folder: Path, damaged: int) -> str:
    good = [number for number in rounds(folder) if number < damaged]
    if good:
        return f"delete that folder to resume from round {good[-1]}"
    return "delete that folder to start again from round 0"


def _shape(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else str(tuple(tensor.shape))


def _flatten(checkpoint: Checkpoint) -> Tree:
    slots = {
        "theta": checkpoint.state.theta,
        **{f"memory/{slot}": leaves for slot, leaves in checkpoint.state.memory.items()},
        **{f"nodes/{slot}": leaves for slot, leaves in checkpoint.nodes.items()},
    }
    return {
        f"{slot}/{name}": leaf for slot, leaves in slots.items() for name, leaf in leaves.items()
    }


def _unflatten(tensors: Tree, like: Checkpoint) -> tuple[PlatformState, NodeState]:
    def part(slot: str, shape: Tree) -> Tree:
        return {
            name: tensors[f"{slot}/{name}"].to(device=leaf.device, dtype=leaf.dtype)
            for name, leaf in shape.items()
        }

    memory = {slot: part(f"memory/{slot}", leaves) for slot, leaves in like.state.memory.items()}
    nodes = {slot: part(f"nodes/{slot}", leaves) for slot, leaves in like.nodes.items()}
    return PlatformState(part("theta", like.state.theta), memory), nodes
