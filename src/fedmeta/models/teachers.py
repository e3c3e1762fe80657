"""Teachers: models in the cloud that are only asked, never trained.

    runs/large, model.safetensors      a meta-model of fedmeta, of any architecture
    teacher.py:load                    your own: called without arguments, it returns the teacher
    model.onnx                         a graph, opened within limits
    https://…, http://…                an endpoint, see `endpoint`

Whatever it is, it answers for a batch of raw inputs with one row per input: probabilities, or
logits if it is said to. What comes back is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from fedmeta.core.errors import ModelError, RunFolderError, SettingError
from fedmeta.core.user_code import explained, load_object, names_code
from fedmeta.data.pool import Array
from fedmeta.models.endpoint import ask_endpoint, is_endpoint
from fedmeta.models.losses import squared_error
from fedmeta.models.meta_model import MetaModel, describing_file, load_theta
from fedmeta.models.networks import ModelSettings
from fedmeta.models.onnx_teacher import onnx_teacher

Gives = Literal["probabilities", "logits"]
GIVES: tuple[Gives, ...] = get_args(Gives)
_SLACK = 1e-3  # of a sum of probabilities, which float16 and JSON round
_LEAST = 1e-8  # probability whose logarithm is taken


@dataclass(frozen=True)
class Teacher:
    """Whom to ask.

    Args:
        name: for messages.
        answer: raw inputs, (n, *shape) → one row per input and one number per class.
        gives: what these numbers are; None: `answer` returns logits that need no check.
        classes: their names, where the teacher knows them.
        batch: how many inputs it is asked about at once.
    """

    name: str
    answer: Callable[[Array], Any]
    gives: Gives = "probabilities"
    classes: tuple[str, ...] = ()
    batch: int = 256


def is_teacher(name: str) -> bool:
    """Whether a name is of a model that can only be asked: it has no parameters to be near to.

    Example:
        >>> [is_teacher(each) for each in ("teacher.py:load", "big.onnx", "runs/early")]
        [True, True, False]
    """
    return is_endpoint(name) or names_code(name) or name.lower().endswith(".onnx")


def open_teacher(
    model: str | Callable[..., Any],
    gives: Gives = "probabilities",
    timeout: float = 10.0,
    network: ModelSettings | None = None,
) -> Teacher:
    """The teacher of a name, or a callable as one.

    Args:
        model: see above; a callable or `nn.Module` takes a tensor of raw inputs, (n, *shape).
        gives: what it answers with. A meta-model and an endpoint say so themselves.
        timeout: seconds that an endpoint has for an answer.
        network: of a meta-model whose network is your own.

    Example:
        >>> import torch
        >>> always = open_teacher(lambda inputs: torch.full((len(inputs), 2), 0.5))
        >>> ask(always, np.zeros((3, 4), np.float32), ("a", "b")).exp()[0]
        tensor([0.5000, 0.5000])
    """
    if not isinstance(model, str):
        return _of_object(model, getattr(model, "__qualname__", type(model).__name__), gives)
    if is_endpoint(model):
        return Teacher(model, partial(ask_endpoint, model, timeout=timeout), batch=64)
    if names_code(model):
        load = load_object(model, "teacher")
        remedy = "name a function that takes nothing and returns the teacher"
        with explained(f"{model} does not return a teacher", remedy):
            return _of_object(load(), model, gives)
    if model.lower().endswith(".onnx"):
        answer, batch = onnx_teacher(Path(model))
        return Teacher(model, answer, gives, batch=batch or Teacher.batch)
    return _of_meta_model(stored_teacher(Path(model), network), model)


def stored_teacher(path: Path, network: ModelSettings | None = None) -> MetaModel:
    """A run, checkpoint or model file as a meta-model that says probabilities.

    Args:
        path: of the run, checkpoint or file.
        network: of the meta-model, where it is your own: no file loads code.
    """
    file = describing_file(path)
    if file is None:
        raise RunFolderError(
            f"{path} does not say which network and input scaling it is of",
            "to compare outputs, name a finished run or its model.safetensors as prior",
        )
    try:
        model = MetaModel.load(file, None, squared_error)  # its loss is not used here
    except RunFolderError:
        if network is None:
            raise
        model = MetaModel.load(file, network, squared_error)
    if model.task.kind != "classification":
        raise SettingError("a regression model predicts no probabilities", "use another prior.kind")
    return replace(model, theta=load_theta(path))


def _of_meta_model(model: MetaModel, name: str) -> Teacher:
    def answer(inputs: Array) -> Tensor:
        with torch.no_grad():
            return model.network(model.theta, model.scaled(inputs))

    return Teacher(name, answer, "logits", model.task.class_names)


def _of_object(thing: Any, name: str, gives: Gives) -> Teacher:
    if isinstance(thing, MetaModel):
        return _of_meta_model(thing, name)
    if not callable(thing):
        raise SettingError(
            f"teacher {name} is a {type(thing).__name__}",
            "give something that can be called with inputs",
        )
    if isinstance(thing, nn.Module):
        thing = thing.eval()

    def answer(inputs: Array) -> Any:
        remedy = "mend it: it is called with a tensor of inputs, (n, *shape)"
        with torch.no_grad(), explained(f"teacher {name} fails", remedy, ModelError):
            return thing(torch.from_numpy(inputs))

    return Teacher(name, answer, gives)


def ask(teacher: Teacher, inputs: Array, classes: Sequence[str]) -> Tensor:
    """What the teacher says of a batch, as logits in the order of the task's classes, checked.

    Args:
        teacher: whom.
        inputs: raw, (n, *shape).
        classes: names of the task's classes.
    """
    known = teacher.classes
    if known and (len(known) != len(classes) or set(known) != set(classes)):
        other = next((n for n in classes if n not in known), None)
        lacks = f"does not know {other!r}" if other is not None else "knows others besides"
        raise ModelError(
            f"teacher {teacher.name} has {len(known)} classes and {lacks}; the task has "
            f"{len(classes)}",
            "use a teacher of the same classes, or wrap it as teacher.py:load",
        )
    found = teacher.answer(inputs)
    gives = teacher.gives
    for name in GIVES:  # an endpoint says which it sends
        if isinstance(found, Mapping) and name in found:
            gives, found = name, found[name]
            break
    remedy = "let it return rows of numbers, one per input"
    with explained(f"teacher {teacher.name} answers no numbers", remedy, ModelError):
        values = torch.as_tensor(np.asarray(_plain(found), np.float32))
    if values.ndim != 2 or len(values) != len(inputs):
        raise ModelError(
            f"teacher {teacher.name} answers with shape {tuple(values.shape)} for {len(inputs)} "
            "inputs",
            "let it return one row per input, one number per class",
        )
    if values.shape[1] != len(classes):
        raise ModelError(
            f"teacher {teacher.name} knows {values.shape[1]} classes, the task has {len(classes)}",
            "use a teacher of the same classes, or wrap it as teacher.py:load",
        )
    if not bool(values.isfinite().all()):
        raise ModelError(
            f"teacher {teacher.name} answers with NaN or infinite numbers", "mend the teacher"
        )
    logits = values if gives == "logits" else _logarithms(values, teacher.name)
    if known and tuple(classes) != known:
        logits = logits[:, [known.index(name) for name in classes]]
    return logits


def _plain(found: Any) -> Any:
    return found.detach().cpu().float().numpy() if isinstance(found, Tensor) else found


def _logarithms(values: Tensor, name: str) -> Tensor:
    """ln of probabilities; refuses rows that are none."""
    sums = values.sum(dim=1)
    wrong = ((sums - 1).abs() > _SLACK) | (values < -_SLACK).any(dim=1)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        least = float(values[row].min())
        what = f"sum to {float(sums[row]):.4g}, not to 1"
        if least < -_SLACK:
            what = f"are below 0 ({least:.4g})"
        raise ModelError(
            f"teacher {name} answers with probabilities that {what}",
            "let it return probabilities, or say prior.answers = logits (--prior-answers logits)",
        )
    kept = values.clamp(min=_LEAST)
    return (kept / kept.sum(dim=1, keepdim=True)).log()
