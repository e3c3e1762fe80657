"""Models, nodes and samples that are being looked at: opened once, kept in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmeta.core.errors import DataError
from fedmeta.core.run_folder import RunFolder
from fedmeta.data.encoding import model_encoding
from fedmeta.data.federation import Federation, Positions
from fedmeta.evaluation.evaluate import metric_name
from fedmeta.fleet.message import model_bytes
from fedmeta.fleet.reopen import open_model, own_federation, stored_part
from fedmeta.models.meta_model import MetaModel
from fedmeta.report import format as fmt
from fedmeta.ui import uploads
from fedmeta.ui.adaptation import Labelled, adapt_stepwise, curve_inputs
from fedmeta.ui.cache import Cache
from fedmeta.ui.drawable import drawable
from fedmeta.ui.uploads import OwnSamples

# Samples that are drawn; all of them are adapted to and measured on.
MOST_SUPPORT, MOST_QUERY = 48, 120


class OpenModels:
    """Where a model meets samples, those of its own targets or those of the user."""

    def __init__(self) -> None:
        self._models: Cache[MetaModel] = Cache(most=8)
        self._federations: Cache[Federation] = Cache(most=2)
        self._own: Cache[OwnSamples] = Cache(most=8)
        self._adapted: Cache[tuple[str, MetaModel]] = Cache(most=16)

    def model(self, folder: Path) -> MetaModel:
        """The meta-model of a run."""
        file = folder / "model.safetensors"
        stamp = file.stat().st_mtime_ns if file.is_file() else 0
        return self._models.get_or_create((folder, stamp), lambda: open_model(folder))

    def federation(self, folder: Path) -> Federation:
        """The nodes of a run, from its data."""
        run = RunFolder.open(folder)
        stamp = (folder / "settings.json").stat().st_mtime_ns
        return self._federations.get_or_create((folder, stamp), lambda: own_federation(run))

    def target(self, folder: Path, name: str | None) -> dict[str, Any]:
        """A target and its samples, for the page; without a name the first target."""
        model, federation = self.model(folder), self.federation(folder)
        targets = federation.targets or federation.nodes
        node = targets[0] if name is None else federation.node(name)
        support = evenly_chosen(node.support, MOST_SUPPORT)
        together = np.concatenate([support, evenly_chosen(node.query, MOST_QUERY)])
        inputs, labels = federation.inputs[together], federation.labels[together]
        return {
            **_about(model),
            "node": node.name,
            "role": node.role,
            "nodes": [each.name for each in targets],
            "support": len(node.support),
            "support_shown": len(support),
            "query": len(node.query),
            "drawing": drawable(inputs, federation.features),
            "labels": labels.reshape(len(labels), -1)[:, 0].tolist(),
            "positions": curve_inputs(model, inputs)[:, 0].tolist(),
        }

    def adapt_node(self, folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Adapt to the support set of a target; asked are its `node` and `steps`."""
        model, federation = self.model(folder), self.federation(folder)
        node = federation.node(str(asked.get("node")))
        support, query = (
            Labelled(federation.inputs[part], federation.labels[part])
            for part in (node.support, node.query)
        )
        shown = federation.inputs[evenly_chosen(node.query, MOST_QUERY)]
        steps, adapted = adapt_stepwise(model, support, query, shown, _steps(asked))
        token = self._adapted.keep((f"{folder.name}-{node.name}", adapted))
        return {"steps": [vars(step) for step in steps], "model": token}

    def add_file(
        self, folder: Path, token: str | None, name: str, content: bytes, *, invert: bool
    ) -> dict[str, Any]:
        """Add a file of the user's (see `read_upload`) to the set of a token; None starts one."""
        model = self.model(folder)
        label = str(stored_part(RunFolder.open(folder), "data").get("label") or "label")
        before = uploads.no_samples(model) if token is None else self._recall(folder, token)
        own = before + uploads.read_upload(model, name, content, label, invert=invert)
        token = self._own.keep(own, token)
        features = model.about.get("features") or ()
        return {
            "set": token,
            "drawing": drawable(own.inputs, features),
            "names": own.names,
            "labels": own.labels,
            "uses": own.uses,
            "notes": own.notes,
        }

    def adapt_own(self, folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Adapt to samples that were brought; asked are `set`, `labels`, `uses` and `steps`."""
        model, own = self.model(folder), self._recall(folder, asked.get("set"))
        support, tested, shown = uploads.split_uploads(
            model, own, asked.get("labels") or [], asked.get("uses") or []
        )
        steps, adapted = adapt_stepwise(model, support, tested, shown, _steps(asked))
        token = self._adapted.keep((f"{folder.name}-own", adapted))
        along = curve_inputs(model, np.concatenate([support.inputs, shown]))
        return {
            "steps": [vars(step) for step in steps],
            "model": token,
            "positions": along[:, 0].tolist(),
        }

    def about(self, folder: Path) -> dict[str, Any]:
        """What the page has to know of a model that samples are brought to."""
        model = self.model(folder)
        return {
            **_about(model),
            "images": len(model.input_shape) == 3 and model.input_shape[0] in (1, 3),
            "numbers": math.prod(model.input_shape),
        }

    def download(self, token: str) -> tuple[str, bytes]:
        """Name and content of the file of an adapted model."""
        name, model = self._adapted.get(token, "that adapted model")
        return name, model_bytes(model)

    def _recall(self, folder: Path, token: object) -> OwnSamples:
        own = self._own.get(token, "that set of samples")
        if own.inputs.shape[1:] != self.model(folder).input_shape:
            raise DataError("these samples are for another model", "bring them to this one")
        return own


def evenly_chosen(positions: Positions, most: int) -> Positions:
    """At most so many, evenly among all: samples often lie class by class.

    Example:
        >>> evenly_chosen(np.arange(10), 4).tolist()
        [0, 2, 5, 7]
    """
    if len(positions) <= most:
        return positions
    return positions[np.arange(most) * len(positions) // most]


def _steps(asked: Mapping[str, Any]) -> int:
    steps = asked.get("steps")
    return steps if isinstance(steps, int) else -1


def _about(model: MetaModel) -> dict[str, Any]:
    encoding = model_encoding(model.about)
    label = None if encoding is None else encoding.label
    return {
        "kind": model.task.kind,
        "classes": list(model.task.class_names),
        "metric": metric_name(model.task),
        "unit": fmt.unit(metric_name(model.task), label),
        "label": label or "label",
        "columns": [] if encoding is None else list(encoding.names),
        "trained_steps": model.adaptation.steps,
        "shape": list(model.input_shape),
    }
