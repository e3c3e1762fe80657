"""Where training starts: the network at θ¹, and how the samples it sees are scaled."""

from __future__ import annotations

from dataclasses import replace

from fedmeta.config.spec import RunSpec
from fedmeta.data.federation import Federation, Task
from fedmeta.data.scaling import (
    Scaling,
    check_tokens,
    fit_scaling,
    label_sums,
    token_scaling,
)
from fedmeta.data.settings import LabelScaling
from fedmeta.data.text import TextEncoding
from fedmeta.models.functional import FunctionalModel, functionalise, initialised
from fedmeta.models.meta_model import check_same_tensors, load_scaling, load_theta
from fedmeta.models.networks import ModelSettings, build
from fedmeta.models.teachers import is_teacher


def network_of(spec: RunSpec, federation: Federation) -> FunctionalModel:
    """The network as a function of its parameters, where training starts."""
    model, outputs, parts = spec.model, federation.task.outputs, federation.parts
    shape = tuple(federation.inputs.shape[1:])
    if isinstance(model, ModelSettings):
        model = build(model, shape, outputs, spec.training.seed, parts=parts)
    network = functionalise(initialised(model, shape), parts)
    network = network.to(spec.execution.torch_device, spec.execution.torch_dtype)
    start = load_theta(spec.start) if isinstance(spec.start, str) else spec.start
    if start is None:
        return network
    check_same_tensors(network.theta, start, "the initial model")
    like = network.theta
    return replace(network, theta={name: start[name].to(leaf) for name, leaf in like.items()})


def texts_of(spec: RunSpec, federation: Federation) -> TextEncoding | None:
    """How texts became the samples, if they did; over a fleet the settings alone know."""
    if federation.encoding is not None:
        return federation.encoding.text
    return None if spec.data is None else spec.data.table.texts


def kept_scaling(spec: RunSpec, shape: tuple[int, ...], task: Task) -> Scaling | None:
    """That of the model which the run is tied to or starts from, if it has one for such samples.

    Its weights are made for inputs and labels as they were scaled there, or not scaled.
    """
    tied = spec.prior.model if spec.prior.ties else None
    for path in (None if tied and is_teacher(tied) else tied, spec.start):
        kept = load_scaling(path) if isinstance(path, str) else None
        if kept is not None and _fits(kept, shape, task):
            return kept
    return None


def scaling_of(spec: RunSpec, federation: Federation) -> Scaling:
    """The scaling that is kept, or a new one; whole numbers that a network embeds are tokens."""
    kept = kept_scaling(spec, federation.inputs.shape[1:], federation.task)
    if kept is not None:
        return kept
    data, model = spec.data, spec.model
    labels: LabelScaling = "standard" if data is None else data.label_scaling
    if isinstance(model, ModelSettings) and model.backbone is not None:
        return fit_scaling(federation, "none", labels=labels)
    texts = texts_of(spec, federation)
    if texts is not None and texts.tokens:
        return Scaling.of_tokens(label_sums(federation, labels))
    own = not isinstance(model, ModelSettings) or model.own_code is not None
    own = (own or bool(model.vocabulary)) and federation.parts is None
    if own and network_of(spec, federation).vocabulary:
        tokens = token_scaling(federation, labels)
        if tokens is not None:
            return tokens
    if data is None:
        return fit_scaling(federation)
    how = data.scaling_kind, data.scaling_from, data.scaling_floor, data.label_scaling
    return fit_scaling(federation, *how)


def looks_up(spec: RunSpec, common: Federation) -> bool:
    """Whether samples that the platform of a fleet does not see are tokens to its model.

    Args:
        spec: of the run.
        common: nodes without samples, as the platform knows them.
    """
    texts = texts_of(spec, common)
    if texts is not None:
        return texts.tokens
    model = spec.model
    own = not isinstance(model, ModelSettings) or model.own_code is not None
    own = own or bool(model.vocabulary)
    own = own and spec.data_settings.scaling != "none"  # as they are, whatever the model does
    return own and bool(network_of(spec, common).vocabulary)


def check_known(network: FunctionalModel, federation: Federation, scaling: Scaling) -> None:
    """Refuse tokens that the network has no row for, before one of them is met in some round."""
    if scaling.tokens:
        check_tokens(federation.inputs, network.embeddings)
    elif federation.parts is not None and network.embeddings:
        tokens = federation.inputs[:, federation.parts.of_kind("tokens")]
        check_tokens(tokens, network.embeddings)


def _fits(scaling: Scaling, shape: tuple[int, ...], task: Task) -> bool:
    labels = scaling.labels
    values = labels is None or (task.kind, labels.mean.shape) == ("regression", (task.outputs,))
    return values and _broadcasts(scaling.mean.shape, shape)


def _broadcasts(small: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a scaling of one shape can be applied to samples of another."""
    pairs = zip(reversed(small), reversed(shape), strict=False)
    return len(small) <= len(shape) and all(a in (1, b) for a, b in pairs)
