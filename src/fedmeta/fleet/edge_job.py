"""What an edge has to compute, prepared from the platform's message, its data and its machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core.errors import DataError
from fedmeta.core.serialization import deserialize
from fedmeta.data.federation import Federation, Task
from fedmeta.data.scaling import Scaling, token_scaling
from fedmeta.fleet.message import Message, MessageError
from fedmeta.fleet.shards import EdgeData, read_shard, with_classes
from fedmeta.training.job import Job, prepare

_MATTERS = ("table", "data", "task", "few_classes")  # facts that decide about a job


class KeptJob:
    """The job of the newest message, for as long as messages, settings and files say the same.

    Reading samples, looking at the network and trying out how to compute it takes longer than a
    round of a small model. One process keeps one job: memory is that of a single round.
    """

    def __init__(self) -> None:
        self._said: tuple[Any, ...] | None = None
        self._job: Job | None = None

    def prepared(
        self, name: str, data: EdgeData, execution: Mapping[str, Any], request: Message
    ) -> Job:
        """The job that a message asks of an edge.

        Args:
            name: of the edge.
            data: its samples.
            execution: settings of its machine that override the run's.
            request: the message.
        """
        facts = {fact: request.facts[fact] for fact in _MATTERS}
        content = Message(facts, Scaling.from_tensors(request.tensors).tensors()).digest()
        said = (name, data, dict(execution), content, _state_of(Path(data.path)))
        if self._job is None or self._said != said:
            self._said = self._job = None  # never two in memory
            self._job = _prepared(name, data, execution, request)
            self._said = said
        return self._job


def data_digest(federation: Federation) -> str:
    """A fingerprint of who the nodes are and how much each has."""
    sizes = ((node.name, len(node.support), len(node.query)) for node in federation.nodes)
    return hashlib.sha256(repr(list(sizes)).encode()).hexdigest()[:16]


def _state_of(path: Path) -> list[tuple[str, int, int, int]]:
    """What changes when a file is written, or any in a folder."""
    inside = (Path(folder, file) for folder, _, files in os.walk(path) for file in files)
    found = []
    for each in (path, *sorted(inside)):
        with suppress(OSError):  # whoever reads it says what is wrong
            about = each.stat()
            found.append((str(each), about.st_ino, about.st_size, about.st_mtime_ns))
    return found


def _prepared(name: str, data: EdgeData, execution: Mapping[str, Any], request: Message) -> Job:
    facts = request.facts
    settings = RunSpec.from_dict(merged([facts["table"], {"execution": dict(execution)}]))
    federation = read_shard(data, settings.data_settings, settings.training.seed, name)
    if data_digest(federation) != facts["data"]:
        raise DataError(
            f"the data of edge {name} are no longer those it joined with",
            "put them back, or start the edge in a new folder under another name",
        )
    federation = with_classes(federation, deserialize(Task, facts["task"], "task"))
    federation = replace(federation, few_classes=facts["few_classes"])
    scaling = Scaling.from_tensors(request.tensors)
    if scaling.tokens and token_scaling(federation) is None:
        raise DataError(
            f"the samples of edge {name} are tokens to the model, but have fractions or are "
            "negative",
            "give whole numbers from 0 on",
        )
    labels = [] if scaling.labels is None else [(scaling.labels, federation.labels.shape[1:])]
    for part, shape in ((scaling, federation.inputs.shape[1:]), *labels):
        for each in (part.mean.shape, part.deviation.shape):
            if len(each) > len(shape) or any(
                here not in (1, there) for here, there in zip(each[::-1], shape[::-1], strict=False)
            ):
                raise MessageError(
                    f"the platform sends a scaling of shape {each} for samples of {shape}",
                    "check that platform and edge run the same version",
                )
    return prepare(settings, federation, scaling=scaling)
