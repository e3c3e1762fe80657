"""A device's folder: its meta-model, its adapted head, and what it watches.

`state.json` names the other two and is replaced last, so that a device which loses its power has
the state of before or of after. A meta-model has a folder of its own, since it may be of several
files. No sample is kept.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from fedmeta_edge.calibration import margins
from fedmeta_edge.decision import Decision, adapt_if_it_helps
from fedmeta_edge.errors import EdgeError
from fedmeta_edge.model import Model, Weights, load
from fedmeta_edge.samples import Samples
from fedmeta_edge.signature import beside
from fedmeta_edge.watching import Watch
from fedmeta_edge.weights import read_weights, write_weights, write_whole

STATE = "state.json"
_MODEL = "model.onnx"
_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Device:
    """What lies in the folder, opened.

    Args:
        folder: of the device.
        model: its meta-model.
        head: the adapted weights; None where no adaptation helped.
        head_file: where these lie.
        choice: how it adapted.
        watch: what it noticed since.
    """

    folder: Path
    model: Model
    head: Weights | None
    head_file: str | None
    choice: str | None
    watch: Watch

    @property
    def weights(self) -> Weights | None:
        """What answers: the adapted head, or None for the meta-model."""
        return self.head if self.watch.adapted else None

    def report(self) -> dict[str, object]:
        """The scalars that a device may tell others."""
        return {"choice": self.choice, **self.watch.report()}


def begin(folder: Path | str, model: Path | str, signed_by: Path | str | None = None) -> Device:
    """A device with a meta-model; what its folder had before stays until it has learned.

    Args:
        folder: of the device; made where it is missing.
        model: what `fedmeta export --adaptable` wrote; copied, with its signature.
        signed_by: as of `load`.
    """
    place, opened, file = Path(folder), load(model, signed_by), Path(model)
    opened.check_adaptable()
    copy = place / _model_name(opened)
    try:
        copy.mkdir(parents=True, exist_ok=True)
        contents = {_MODEL: file.read_bytes()}
        if opened.body is not None:
            contents[opened.body.file] = file.with_name(opened.body.file).read_bytes()
        if (signature := beside(file)).is_file():
            contents[beside(copy / _MODEL).name] = signature.read_bytes()
    except OSError as error:
        raise EdgeError(f"cannot use {place} ({error.strerror})", "name another folder") from error
    for name, content in contents.items():
        write_whole(copy / name, content)
    return Device(place, opened, None, None, None, Watch())


def reopen(folder: Path | str, signed_by: Path | str | None = None) -> Device:
    """A device as it was left.

    Args:
        folder: in which it has learned.
        signed_by: as of `load`.
    """
    place = Path(folder)
    if not (place / STATE).is_file():
        raise EdgeError(
            f"{place} is no device's folder", "make one: fedmeta-edge learn FOLDER --model FILE"
        )
    try:
        state = json.loads((place / STATE).read_text(encoding="utf-8"))
        if state["format"] != _FORMAT:
            raise EdgeError(
                f"{place / STATE} has format {state['format']!r}, this version reads {_FORMAT}",
                "update fedmeta-edge",
            )
        copy = _inside(place, state["model"])
        model = load(copy / _MODEL if copy.is_dir() else copy, signed_by)  # older: a file
        head = state["head"]
        weights = None if head is None else read_weights(_inside(place, head), model)
        noticed, choice = Watch.read(state["watch"]), state["choice"]
        if (noticed.adapted and weights is None) or not isinstance(choice, str | None):
            raise ValueError("what answers makes no sense")
        return Device(place, model, weights, head, choice, noticed)
    except (OSError, KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise EdgeError(
            f"{place / STATE} is damaged ({type(error).__name__}: {error})",
            "begin anew: fedmeta-edge learn FOLDER --model FILE --data FILE",
        ) from error


def learn(device: Device, samples: Samples, seed: int = 0) -> tuple[Device, Decision]:
    """Adapt the meta-model to labelled samples if it helps; what was noticed begins anew.

    Args:
        device: from `begin` or `reopen`.
        samples: with labels.
        seed: of mini-batches, where the model adapts with any.
    """
    assert samples.labels is not None
    adapted, decision = adapt_if_it_helps(device.model, samples.inputs, samples.labels, seed=seed)
    after = replace(device, head=None, head_file=None, choice=decision.choice, watch=Watch())
    if decision.choice != "none":
        number = 1 + max((_number(each) for each in _heads(device.folder)), default=0)
        name = f"head-{number}.npz"
        write_weights(device.folder / name, device.model, adapted)
        after = replace(after, head=adapted.weights, head_file=name, watch=Watch(adapted=True))
    for left in (*device.folder.glob(".*.tmp"), *device.folder.glob("model-*/.*.tmp")):
        left.unlink(missing_ok=True)  # by a process that was ended
    _save(after)
    return after, decision


def watch(device: Device, samples: Samples) -> Device:
    """Notice what new samples say: confidence, and of labelled ones which model does better.

    Args:
        device: from `reopen`.
        samples: of which a device may know the labels or not.
    """
    model, noticed = device.model, device.watch
    if samples.labels is not None and device.head is not None:
        own = model.step(samples.inputs[:1], samples.labels[:1], np.ones(1), step_size=0.0)
        before, after = (
            model.losses(samples.inputs, samples.labels, each) for each in (own, device.head)
        )
        noticed = noticed.judged(before - after)
    if model.calibration is not None:
        logits = model.logits(samples.inputs, device.weights)
        noticed = noticed.seen(model.calibration.confidence(margins(logits)))
    found = replace(device, watch=noticed)
    _save(found)
    return found


def _save(device: Device) -> None:
    model = _model_name(device.model)
    if not (device.folder / model).is_dir():
        model += ".onnx"  # of an older version
    state = {
        "format": _FORMAT,
        "model": model,
        "head": device.head_file,
        "choice": device.choice,
        "watch": asdict(device.watch),
    }
    write_whole(device.folder / STATE, json.dumps(state).encode())
    for file in _heads(device.folder):
        if file.name != device.head_file:
            file.unlink(missing_ok=True)
    for copy in device.folder.glob("model-*"):
        if copy.name not in (model, beside(device.folder / model).name):
            _remove(copy)


def _remove(copy: Path) -> None:
    if copy.is_dir():
        shutil.rmtree(copy, ignore_errors=True)
    else:
        copy.unlink(missing_ok=True)


def _model_name(model: Model) -> str:
    return f"model-{model.checksum[:12]}"


def _heads(folder: Path) -> list[Path]:
    return [each for each in folder.glob("head-*.npz") if each.stem[5:].isdigit()]


def _number(head: Path) -> int:
    return int(head.stem[5:])


def _inside(folder: Path, name: object) -> Path:
    """A file of the folder itself, whatever a state says."""
    return folder / Path(str(name)).name
