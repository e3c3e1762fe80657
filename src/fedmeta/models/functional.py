"""From an `nn.Module` to a pure function of its parameters.

A node's work needs `(θ, inputs) → outputs` with θ a tree that may differ from node to node. Any
module serves, provided that one sample's output depends on that sample alone:

- **frozen parameters** (`requires_grad=False`) and buffers are constants, they are not part of θ;
- **tied parameters** appear once in θ and are put in every place they belong to;
- **dropout** draws its mask from a key, so that a loss is a function (a difference of two
  gradients sees the same mask twice) and a run can be repeated;
- **batch-coupled layers** (BatchNorm and its kin) are refused: with a dozen samples a node's
  batch statistics are noise, and they would tie the samples together.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedmeta.core import randomness
from fedmeta.core.errors import ModelError
from fedmeta.core.tree import Tree

_DROPOUT = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
_UNKEYED_DROPOUT = (nn.AlphaDropout, nn.FeatureAlphaDropout)


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of a key (a buffer, so it can be passed per call).

    Args:
        p: probability of dropping an entry (or a channel).
        whole: how many trailing axes are dropped together (0: entries, 2: image channels, …).
    """

    key: Tensor

    def __init__(self, p: float, whole: int) -> None:
        super().__init__()
        self.p, self.whole = p, whole
        self.register_buffer("key", torch.tensor(0, dtype=torch.int64), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop with probability p and scale the rest by 1/(1−p)."""
        if not self.training or self.p == 0:
            return inputs
        kept = inputs.shape[: inputs.ndim - self.whole]
        mask = randomness.uniform(self.key, kept.numel()).reshape(kept) >= self.p
        mask = mask.reshape(*kept, *[1] * self.whole)
        return inputs * mask / (1 - self.p)


@dataclass(frozen=True, eq=False)
class FunctionalModel:
    """A module taken apart: where it starts, what is constant, and how to call it.

    Args:
        theta: the trainable parameters as the module was given (the initial θ).
        constants: frozen parameters and buffers.
        training: the module in training mode, called with other parameters than its own.
        inference: the same in evaluation mode.
        dropouts: names of its keyed dropout layers.
    """

    theta: Tree
    constants: Tree
    training: nn.Module
    inference: nn.Module
    dropouts: tuple[str, ...]

    def __call__(self, theta: Tree, inputs: Tensor, key: Tensor | None = None) -> Tensor:
        """Outputs for the inputs under θ; without a key dropout is off."""
        tensors, module = {**self.constants, **theta}, self.inference
        if key is not None:
            module = self.training
            for place, name in enumerate(self.dropouts):
                tensors[f"{name}.key"] = randomness.fold(key, place)
        outputs: Tensor = functional_call(module, tensors, (inputs,))
        return outputs

    def module(self, theta: Tree) -> nn.Module:
        """A stand-alone module in evaluation mode that holds θ."""
        module, values = copy.deepcopy(self.inference), {**self.constants, **theta}
        with torch.no_grad():
            for name, place in (*module.named_parameters(), *module.named_buffers()):
                if name in values:  # the keys of dropout layers are not
                    place.copy_(values[name])
        return module

    def to(self, device: torch.device, dtype: torch.dtype) -> FunctionalModel:
        """The same on another device and in another floating-point type."""
        training, inference = (
            copy.deepcopy(module).to(device=device, dtype=dtype)
            for module in (self.training, self.inference)
        )
        theta, constants = _parts(training)
        return FunctionalModel(theta, constants, training, inference, self.dropouts)


def functionalise(model: nn.Module) -> FunctionalModel:
    """Take a module apart, or say which layer stands in the way. The module itself is not changed.

    Example:
        >>> model = functionalise(nn.Linear(2, 1))
        >>> list(model.theta), model(model.theta, torch.zeros(3, 2)).shape
        (['weight', 'bias'], torch.Size([3, 1]))

    Raises:
        ModelError: for batch-coupled layers, alpha dropout, uninitialised lazy layers, or a model
            with nothing to train.
    """
    for name, layer in model.named_modules():
        place = f"layer {name!r} ({type(layer).__name__})"
        running = getattr(layer, "track_running_stats", False)  # InstanceNorm may keep them too
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or running:
            raise ModelError(
                f"{place} normalises over the batch, which ties a node's few samples together",
                "use nn.GroupNorm or nn.LayerNorm instead",
            )
        if isinstance(layer, _UNKEYED_DROPOUT):
            raise ModelError(f"{place} is not supported", "use nn.Dropout instead")
        if any(isinstance(p, nn.UninitializedParameter) for p in layer.parameters(recurse=False)):
            raise ModelError(
                f"{place} has no shape yet", "run the model once on a sample before training"
            )
    training = copy.deepcopy(model).train()
    dropouts = _key_dropouts(training)
    inference = copy.deepcopy(training).eval()
    theta, constants = _parts(training)
    if not theta:
        raise ModelError(
            "the model has no trainable parameter", "set requires_grad on what should be learned"
        )
    return FunctionalModel(theta, constants, training, inference, tuple(dropouts))


def check_on_samples(model: FunctionalModel, inputs: Tensor, outputs: int) -> None:
    """Try the model on a few samples: does it run, fit the task, and treat samples one by one?

    Args:
        model: the model to check.
        inputs: at least two scaled samples, (n, *shape).
        outputs: how many numbers per sample the task needs.
    """
    key = randomness.key(0)
    many = inputs.repeat(16, *[1] * (inputs.ndim - 1))  # enough for rare draws to show
    try:
        with torch.no_grad():
            together = model(model.theta, inputs, None)
            once, again = (model(model.theta, many, key) for _ in range(2))
            pairs = [
                (model(model.theta, inputs, mode)[:1], model(model.theta, inputs[:1], mode))
                for mode in (None, key)  # some layers couple samples in training mode only
            ]
    except (RuntimeError, ValueError, TypeError) as error:
        raise ModelError(
            f"the model fails on samples of shape {tuple(inputs.shape[1:])}: "
            f"{str(error).splitlines()[0]}",
            "use a model that takes this shape, or reshape the data",
        ) from error
    if together.shape != (len(inputs), outputs):
        raise ModelError(
            f"the model returns {tuple(together.shape)} for {len(inputs)} samples",
            f"the task needs {outputs} outputs per sample, shape ({len(inputs)}, {outputs})",
        )
    if not torch.equal(once, again):
        raise ModelError(
            "the model gives different outputs for the same input twice",
            "draw randomness through nn.Dropout layers only (not torch.nn.functional.dropout, "
            "nor the dropout argument of recurrent or attention layers)",
        )
    tolerance = 1e-3 * float(together.abs().max()) + 1e-6
    if not all(torch.allclose(among, alone, atol=tolerance) for among, alone in pairs):
        raise ModelError(
            "the model's output for a sample changes with the other samples of its batch",
            "remove what couples them (batch statistics, attention across samples, …)",
        )


def _key_dropouts(module: nn.Module) -> list[str]:
    """Put a keyed dropout in the place of every dropout layer; returns their names."""
    names = []
    # With duplicates: one layer may stand in several places, and each place gets its own mask.
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        whole = _DROPOUT.get(type(layer))
        if whole is None or name == "":
            continue
        parent, _, child = name.rpartition(".")
        setattr(module.get_submodule(parent), child, KeyedDropout(layer.p, whole))
        names.append(name)
    return names


def _parts(module: nn.Module) -> tuple[Tree, Tree]:
    """Trainable parameters, and frozen parameters with buffers (keys of dropout left out)."""
    theta = {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}
    frozen = {n: p.detach().clone() for n, p in module.named_parameters() if not p.requires_grad}
    keys = {
        f"{name}.key" for name, layer in module.named_modules() if isinstance(layer, KeyedDropout)
    }
    buffers = {n: b.detach().clone() for n, b in module.named_buffers() if n not in keys}
    return theta, {**frozen, **buffers}
