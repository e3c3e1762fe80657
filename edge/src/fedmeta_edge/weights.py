"""Adapted weights in an .npz file, which says what model they are of."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np

from fedmeta_edge.adaptation import Adapted
from fedmeta_edge.arrays import read_arrays
from fedmeta_edge.errors import EdgeError
from fedmeta_edge.model import Model, Weights

_ABOUT, _THETA = "about", "theta/"


def write_weights(path: Path | str, model: Model, adapted: Adapted) -> None:
    """Write adapted weights; the file is there whole or not at all.

    Args:
        path: of the .npz file.
        model: what was adapted.
        adapted: from `adapt`.
    """
    file = Path(path)
    about = json.dumps({"model": model.checksum, "steps": adapted.steps, "run": model.run})
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{**adapted.weights, _ABOUT: np.array(about)})
    write_whole(file, buffer.getvalue())


def write_whole(file: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise EdgeError(
            f"cannot write {file} ({error.strerror})", "check the folder and the free space"
        ) from error


def read_weights(path: Path | str, model: Model) -> Weights:
    """Adapted weights of this very model.

    Args:
        path: what `write_weights` wrote.
        model: refuses the weights of another one.
    """
    file = Path(path)
    if not file.is_file():
        raise EdgeError(f"there is no file {file}", "check the path")
    wanted = {
        name: shape for name, shape in model.session.inputs.items() if name.startswith(_THETA)
    }
    try:
        weights = read_arrays(file, {_ABOUT, *wanted})
        of = json.loads(str(weights.pop(_ABOUT)))["model"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise EdgeError(
            f"{file} holds no adapted weights", "use what fedmeta-edge adapt wrote"
        ) from error
    if of != model.checksum:
        raise EdgeError(
            f"{file} has weights of another model ({str(of)[:8]}…, not {model.checksum[:8]}…)",
            "adapt this model, or use the one they are of",
        )
    for name, value in weights.items():
        if value.shape != wanted[name] or value.dtype != np.float32:
            raise EdgeError(f"{file} has weights of another shape or type", "adapt the model again")
    return weights
