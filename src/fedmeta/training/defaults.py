"""What a spec leaves open, decided from the data and the network, never from targets.

Where nobody has asked for anything else:

- images are augmented as `Augmentation.resolved` says (but not in front of a frozen body, which
  would be computed in every round: see `job.prepare`);
- the head on a frozen backbone is one of class means where classes are told apart: on CIFAR-10 that
  is ahead of a gradient step on held-out source nodes (docs/results-outside.md);
- a prototype head adapts by prototypes, and so does any linear head where class numbers are local
  to a node: what it has learned of class 3 elsewhere says nothing, and a gradient step would have
  to undo it with the few samples at hand;
- where devices hold few of the classes (in the mean at least two and at most half of them), class
  means are added to the trained head: held-out source nodes are ahead with that at all such places
  (docs/explanation/penalty.md). A run that says how a gradient step is differentiated keeps it, and
  so does one that names another head for a frozen backbone;
- tokens of texts are read by a recurrent network that knows as many as their encoding;
- images whose class numbers are local to a node, as in episodes, get the network that few-shot
  learning knows, conv4;
- values are predicted by two hidden layers, and a layer may move five times as far in a round as
  where classes are told apart: a wave, say, needs features that a network does not start with;
- the inner step α of the head is matched to the features that it multiplies. With h the head's
  input (and 1 for its bias), a step on squared errors overshoots beyond α = 1/(1 + ‖h‖²): values
  take a quarter of that, a step of normalised least mean squares that a device with inputs
  twice as large survives. A step on the cross-entropy moves
  outputs by at most α(1 + ‖h‖²): classes take 0.3, which serves three data sets, within the bounds
  2 and 400 for that product.

E‖h‖² is taken at θ¹ on standard normal samples, what scaled inputs are like, or on tokens drawn at
random. So it takes no data,
and all machines of a fleet and all repeats find the same.

Nagumo, Noda, A learning method for system identification, IEEE Trans. Automatic Control, 1967.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from fedmeta.algorithms.platform_optimizer import AUTOMATIC
from fedmeta.config.spec import RunSpec
from fedmeta.core.decision import possible_candidates
from fedmeta.core.objective import HEAD_AND_MEANS, PROTOTYPES, RECOMMENDED
from fedmeta.data.federation import Federation, Task
from fedmeta.models.functional import FunctionalModel, functionalise
from fedmeta.models.head import Head, feature_size
from fedmeta.models.networks import ModelSettings, build
from fedmeta.training.start import texts_of

_FOR_VALUES = 0.25  # α (1 + E‖h‖²) where values are predicted
_LONGEST_FOR_VALUES = 0.05  # step of the platform
_BOUNDS = 2.0, 400.0  # of the same where classes are
_SAMPLES = 64
_FEW = 4


def with_defaults(spec: RunSpec, federation: Federation) -> RunSpec:
    """The spec with its augmentation, network, hidden layers and longest step decided.

    Args:
        spec: what was asked for.
        federation: has the shape of samples and the kind of task.
    """
    shape = tuple(federation.inputs.shape[1:])
    spec = replace(spec, augmentation=spec.augmentation.resolved(shape))
    values, model = federation.task.kind == "regression", spec.model
    texts = texts_of(spec, federation)
    if texts is not None and texts.tokens and isinstance(model, ModelSettings):
        name = "gru" if model.name == "auto" else model.name
        vocabulary = model.vocabulary or texts.vocabulary
        spec = replace(spec, model=replace(model, name=name, vocabulary=vocabulary))
    elif federation.task.local_labels and isinstance(model, ModelSettings) and model.name == "auto":
        image = len(shape) == 3 and min(shape[1:]) >= 16
        spec = replace(spec, model=replace(model, name="conv4") if image else model)
    if isinstance(spec.model, ModelSettings) and spec.model.hidden == "auto":
        hidden = (64, 64) if values else (64,)
        spec = replace(spec, model=replace(spec.model, hidden=hidden))
    algorithm: Any = spec.algorithm
    model, prototype = spec.model, False
    if isinstance(model, ModelSettings) and model.backbone is not None:
        if model.head == "auto":
            spec = replace(spec, model=replace(model, head="mlp" if values else "prototype"))
        prototype = spec.model.head == "prototype"
    if prototype and getattr(algorithm, "inner", None) is RECOMMENDED:
        spec = replace(spec, algorithm=replace(algorithm, inner=PROTOTYPES))
    if values and getattr(algorithm, "server", None) is AUTOMATIC:
        longer = replace(AUTOMATIC, longest_step=_LONGEST_FOR_VALUES)
        spec = replace(spec, algorithm=replace(algorithm, server=longer))
    return spec


def with_inner_step(
    spec: RunSpec,
    network: FunctionalModel,
    head: Head | None,
    federation: Federation,
    tokens: bool = False,
    few_classes: bool = False,
) -> RunSpec:
    """The spec with an adaptation of its head that fits, where nobody has asked for one.

    Args:
        spec: with its other defaults decided.
        network: at θ¹.
        head: what adaptation moves; None: not the head.
        federation: has the shape of samples and the kind of task.
        tokens: whether samples are whole numbers that the network looks up.
        few_classes: whether devices hold few of them, see `few_of_classes`.
    """
    if spec.algorithm.inner is not RECOMMENDED or head is None:
        return spec
    shape = tuple(federation.inputs.shape[1:])
    if isinstance(spec.model, ModelSettings) and spec.model.backbone is not None:
        # What its body gives is standardised, so samples are drawn in its place.
        first = build(spec.model, shape, federation.task.outputs, seed=0).get_submodule("head")
        network, names = functionalise(first), [n.removeprefix("head.") for n in head.names]
        network = network.to(spec.execution.torch_device, spec.execution.torch_dtype)
        head, shape = replace(head, names=tuple(names)), (_width(first),)
    elif isinstance(spec.model, ModelSettings):
        # Repeats differ in their first weights: all of them go by those of one.
        parts = federation.parts
        model = build(spec.model, shape, federation.task.outputs, seed=0, parts=parts)
        network = functionalise(model, parts)
        network = network.to(spec.execution.torch_device, spec.execution.torch_dtype)
    some, generator = next(iter(network.theta.values())), torch.Generator().manual_seed(0)
    if network.calling is not None:
        rows = network.calling.parts.invented(
            _SAMPLES, network.vocabulary, np.random.default_rng(0)
        )
        like = torch.from_numpy(rows).to(some.dtype)
    elif tokens:
        like = torch.randint(network.vocabulary, (_SAMPLES, *shape), generator=generator)
    else:
        like = torch.randn(_SAMPLES, *shape, generator=generator).to(some.dtype)
    like = like.to(some.device)
    algorithm: Any = spec.algorithm
    gradient = getattr(algorithm, "curvature", "exact") != "exact"  # it is said of a gradient step
    named_head = isinstance(spec.model, ModelSettings) and spec.model.backbone is not None
    few = HEAD_AND_MEANS if few_classes and not named_head else None
    means = PROTOTYPES if federation.task.local_labels else few
    if means is not None and not gradient and _takes_class_means(network, head, like):
        return replace(spec, algorithm=replace(algorithm, inner=means))
    step = matched_step(feature_size(network, head, like), federation.task)
    if step == RECOMMENDED.step_size:
        return spec
    inner = replace(RECOMMENDED, step_size=step)
    return replace(spec, algorithm=replace(algorithm, inner=inner))


def _takes_class_means(network: FunctionalModel, head: Head, like: torch.Tensor) -> bool:
    """Whether a network ends with one linear layer, so that class means can stand in its place."""
    rule, few = replace(RECOMMENDED, head=head.names), like[:_FEW]
    classes = torch.zeros(len(few), dtype=torch.int64, device=few.device)
    return "prototypes" in possible_candidates(network, rule, network.theta, few, classes)


def _width(head: nn.Module) -> int:
    """How many features a head takes."""
    return next(int(leaf.shape[1]) for leaf in head.parameters() if leaf.ndim == 2)


def matched_step(size: float | None, task: Task) -> float:
    """α for features of a size, with two digits.

    Args:
        size: E‖h‖²; None where the head is no linear layer: as if it were 16, as in a layer of 64.
        task: classes or values.

    Example:
        >>> classes, values = Task("classification", 10), Task("regression", 1)
        >>> matched_step(100.0, classes), matched_step(3999.0, classes), matched_step(4.0, values)
        (0.3, 0.1, 0.05)
    """
    size = 16.0 if size is None else size
    if task.kind == "regression":
        return _two_digits(_FOR_VALUES / (1 + size))
    lowest, highest = (bound / (1 + size) for bound in _BOUNDS)
    return _two_digits(min(max(RECOMMENDED.step_size, lowest), highest))


def _two_digits(value: float) -> float:
    # Last bits may differ from machine to machine; what is agreed on must not.
    return float(f"{value:.2g}")
