"""A graph run within limits: of memory, and of time.

A small graph can ask for any memory and any time. The runtime gives no more than $FEDMETA_EDGE_GB
(1 GB), and a run that takes longer than $FEDMETA_EDGE_SECONDS (30 s) is ended.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import onnxruntime

from fedmeta_edge.errors import EdgeError

_LOOK = 0.5  # seconds between two looks at the clock


class GuardedSession:
    """A session of ONNX Runtime whose runs end.

    Args:
        content: of the model file.
    """

    def __init__(self, content: bytes) -> None:
        _limit_memory()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what goes wrong is told by an error
        options.add_session_config_entry("session.use_env_allocators", "1")
        self._session = onnxruntime.InferenceSession(
            content,
            options,
            ["CPUExecutionProvider"],
            disabled_optimizers=["ConstantFolding"],  # it would allocate beyond the limit
        )
        self._options = onnxruntime.RunOptions()
        self._options.log_severity_level = 4
        self._started: float | None = None
        self._watched = False

    @property
    def metadata(self) -> dict[str, str]:
        """Texts that travel in the file."""
        return dict(self._session.get_modelmeta().custom_metadata_map)

    @property
    def inputs(self) -> dict[str, tuple[Any, ...]]:
        """Shapes of the inputs by name; numbers, or texts where any will do."""
        given = [*self._session.get_inputs(), *self._session.get_overridable_initializers()]
        return {each.name: tuple(each.shape) for each in given}

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return [each.name for each in self._session.get_outputs()]

    def run(self, names: Sequence[str], given: Mapping[str, Any]) -> list[Any]:
        """The outputs of these names.

        Raises:
            EdgeError: it cannot be run, or not within the limits.
        """
        if not self._watched:
            self._watched = True
            watch = threading.Thread(target=_watch, args=(weakref.ref(self),), daemon=True)
            watch.start()
        self._options.terminate = False
        self._started = time.monotonic()
        try:
            return list(self._session.run(list(names), dict(given), self._options))
        except Exception as error:  # the runtime has many kinds
            if self._options.terminate:
                raise EdgeError(
                    f"a run of the model took longer than {_limit('FEDMETA_EDGE_SECONDS', 30):g} s",
                    "use fewer samples, or set FEDMETA_EDGE_SECONDS if you trust the file",
                ) from None
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            if "Available memory" in str(error) or "allocate" in str(error).lower():
                raise EdgeError(
                    f"the model needs more than {_limit('FEDMETA_EDGE_GB', 1):g} GB of memory",
                    "use fewer samples, or set FEDMETA_EDGE_GB if you trust the file",
                ) from None
            raise EdgeError(
                f"the model cannot be run ({reason[:200]})", "check the samples, or export it again"
            ) from None
        finally:
            self._started = None

    def end_if_late(self, longest: float) -> None:
        """End a run that has taken too long."""
        if self._started is not None and time.monotonic() - self._started > longest:
            self._options.terminate = True


def _watch(session: weakref.ref[GuardedSession]) -> None:
    longest = _limit("FEDMETA_EDGE_SECONDS", 30)
    while (found := session()) is not None:
        found.end_if_late(longest)
        del found
        time.sleep(_LOOK)


@cache
def _limit_memory() -> None:
    """Once for the process: the runtime allows no second time."""
    info = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    most = int(_limit("FEDMETA_EDGE_GB", 1) * 1e9)
    as_asked = 1  # grow by what is needed, not by doubling
    limits = onnxruntime.OrtArenaCfg({"max_mem": most, "arena_extend_strategy": as_asked})
    onnxruntime.create_and_register_allocator(info, limits)


def _limit(name: str, usual: float) -> float:
    try:
        found = float(os.environ.get(name, usual))
    except ValueError:
        found = 0.0
    if not 0 < found < 2**30:
        raise EdgeError(f"{name} is {os.environ.get(name)!r}", "give a number greater than 0")
    return found
