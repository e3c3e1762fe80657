"""A teacher in an .onnx file, which may come from anybody: its graph is looked at, its runs end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedmeta.core.errors import MissingExtraError, ModelError
from fedmeta.core.input_files import read_regular
from fedmeta.data.pool import Array


def onnx_teacher(path: Path) -> tuple[Callable[[Array], Array], int | None]:
    """The graph as a function of raw inputs, and the batch it wants (None: any).

    Its first input takes the samples, or the one that is called `inputs`; its first output is the
    answer. It runs on one thread of ONNX Runtime within `fedmeta-edge`'s limits of operators,
    memory and time.

    Args:
        path: of the file.
    """
    try:
        from fedmeta_edge.errors import EdgeError
        from fedmeta_edge.graph_check import check_graph
        from fedmeta_edge.guarded_session import GuardedSession
    except ImportError:
        raise MissingExtraError(
            "fedmeta-edge, which opens .onnx files from elsewhere,", "teacher"
        ) from None
    try:
        content = read_regular(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(f"{path} cannot be read ({reason})", "check the path") from None
    try:
        check_graph(content)
        session = GuardedSession(content)
        inputs = session.inputs
    except EdgeError as error:
        raise ModelError(f"{path}: {error}", "use a plain graph of a classifier") from None
    except Exception as error:  # the runtime has many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{path} cannot be opened ({reason[:200]})", "export it again") from None
    name = "inputs" if "inputs" in inputs else next(iter(inputs), "")
    wanted = inputs.get(name, ())
    if len(wanted) < 2 or not session.outputs:
        raise ModelError(f"{path} is no classifier of a batch of samples", "use another graph")
    fixed = wanted[0] if isinstance(wanted[0], int) else None

    def answer(samples: Array) -> Array:
        pairs = list(zip(samples.shape[1:], wanted[1:], strict=False))
        fits = len(wanted) == samples.ndim
        if not fits or any(isinstance(size, int) and size != own for own, size in pairs):
            shape = " × ".join(str(each) for each in wanted[1:])
            own = " × ".join(str(each) for each in samples.shape[1:])
            raise ModelError(
                f"{path} takes samples of {shape}, these have {own}",
                "wrap it as teacher.py:load, which may resize them",
            )
        count = len(samples)
        if fixed is not None and count < fixed:  # filled up, and cut off again
            samples = np.concatenate([samples, np.repeat(samples[:1], fixed - count, axis=0)])
        try:
            found = session.run(session.outputs[:1], {name: np.float32(samples)})[0]
        except EdgeError as error:
            raise ModelError(f"{path}: {error}", "check the graph") from None
        return np.asarray(found)[:count] if np.ndim(found) else np.asarray(found)

    return answer, fixed
