"""From an `nn.Module` to a pure function of its parameters.

A node's work needs `(θ, inputs) → outputs` with θ a tree that may differ from node to node. Any
module serves, provided that one sample's output depends on that sample alone:

- **frozen parameters** (`requires_grad=False`) and buffers are constants, they are not part of θ;
- **tied parameters** appear once in θ and are put in every place they belong to;
- **dropout** draws its mask from a key, so that a loss is a function (a difference of two
  gradients sees the same mask twice) and a run can be repeated;
- **batch-coupled layers** (BatchNorm and its kin) are refused where they are trained: with a dozen
  samples a node's batch statistics are noise, and they would tie the samples together. Frozen and
  in evaluation mode they are constants like everything else there (`frozen`);
- **outputs** may come in a tuple, of which the first tensor counts, or as the `logits` of a mapping
  or an object.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import remove_weight_norm
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.weight_norm import WeightNorm

from fedmeta.core import randomness
from fedmeta.core.errors import ModelError
from fedmeta.core.tree import Tree
from fedmeta.data.named_inputs import InputParts
from fedmeta.models.calling import Calling, calling_of
from fedmeta.models.frozen import check_norms, kept_in_evaluation
from fedmeta.models.keyed_dropout import KeyedCalls, KeyedDropout, key_layers
from fedmeta.models.lookups import plain_lookups

_UNKEYED_DROPOUT = (nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True, eq=False)
class FunctionalModel:
    """A module taken apart: where it starts, what is constant, and how to call it.

    Args:
        theta: the trainable parameters as the module was given (the initial θ).
        constants: frozen parameters and buffers.
        training: the module in training mode, called with other parameters than its own.
        inference: the same in evaluation mode.
        dropouts: names of its keyed dropout layers; empty for one that was cut off.
        ties: further places of parameters that stand in several, by the name that θ has for them.
        keyed_calls: whether it draws masks elsewhere too (`KeyedCalls`); `check_on_samples` tells.
        calling: how it is called with several inputs; None: with the samples as they are.
    """

    theta: Tree
    constants: Tree
    training: nn.Module
    inference: nn.Module
    dropouts: tuple[str, ...]
    ties: Mapping[str, str] = field(default_factory=dict)
    keyed_calls: bool = False
    calling: Calling | None = None

    @property
    def draws(self) -> bool:
        """Whether a pass in training mode needs a key."""
        return any(self.dropouts) or self.keyed_calls

    def __call__(self, theta: Tree, inputs: Tensor, key: Tensor | None = None) -> Tensor:
        """Outputs for the inputs under θ; without a key dropout is off."""
        tensors = {**self.constants, **theta}
        tensors |= {place: tensors[name] for place, name in self.ties.items()}
        if key is None:
            return self._called(self.inference, tensors, inputs)
        for place, name in enumerate(self.dropouts):
            if name:
                tensors[f"{name}.key"] = randomness.fold(key, place)
        calls = KeyedCalls(key, first=len(self.dropouts)) if self.keyed_calls else nullcontext()
        with calls:
            return self._called(self.training, tensors, inputs)

    def _called(self, module: nn.Module, tensors: Tree, inputs: Tensor) -> Tensor:
        given: tuple[tuple[Any, ...], dict[str, Tensor]] = (inputs,), {}
        if self.calling is not None:
            given = self.calling.arguments(inputs)
        # Left to tie weights itself, torch puts back the wrong ones where a layer is used twice.
        return output_of(functional_call(module, tensors, *given, tie_weights=False))

    @property
    def embeddings(self) -> tuple[int, ...]:
        """How many tokens each of its embeddings knows, the smallest first."""
        kinds = nn.Embedding | nn.EmbeddingBag
        every = (each for each in self.inference.modules() if isinstance(each, kinds))
        return tuple(sorted(each.num_embeddings for each in every))

    @property
    def vocabulary(self) -> int:
        """How many tokens its smallest embedding knows; 0 where it has none."""
        return min(self.embeddings, default=0)

    def module(self, theta: Tree) -> nn.Module:
        """A stand-alone module in evaluation mode that holds θ."""
        module, values = copy.deepcopy(self.inference), {**self.constants, **theta}
        with torch.no_grad():
            for name, place in (*module.named_parameters(), *module.named_buffers()):
                if name in values:  # the keys of dropout layers are not
                    place.copy_(values[name])
        return module

    def with_constants(self, constants: Tree) -> FunctionalModel:
        """The same with other frozen parameters and buffers, also in its modules."""
        training, inference = copy.deepcopy((self.training, self.inference))
        with torch.no_grad():
            for module in (training, inference):
                for name, place in (*module.named_parameters(), *module.named_buffers()):
                    if name in constants:
                        place.copy_(constants[name])
        return replace(self, constants=_parts(training)[1], training=training, inference=inference)

    def to(self, device: torch.device, dtype: torch.dtype) -> FunctionalModel:
        """The same on another device and in another floating-point type."""
        leaves = [*self.theta.values(), *self.constants.values()]
        floats = [each for each in leaves if each.is_floating_point()]
        if all(each.device == device for each in leaves) and all(e.dtype == dtype for e in floats):
            return self
        training, inference = (
            copy.deepcopy(module).to(device=device, dtype=dtype)
            for module in (self.training, self.inference)
        )
        theta, constants = _parts(training)
        return replace(
            self, theta=theta, constants=constants, training=training, inference=inference
        )


def functionalise(model: nn.Module, parts: InputParts | None = None) -> FunctionalModel:
    """Take a module apart, or say which layer stands in the way. The module itself is not changed.

    Args:
        model: the module.
        parts: what a sample consists of, where it has several inputs; None: it is one tensor.

    Example:
        >>> model = functionalise(nn.Linear(2, 1))
        >>> list(model.theta), model(model.theta, torch.zeros(3, 2)).shape
        (['weight', 'bias'], torch.Size([3, 1]))

    Raises:
        ModelError: for batch-coupled layers, alpha dropout, uninitialised lazy layers, or a model
            with nothing to train.
    """
    model = _with_todays_weight_norm(_unwrapped(model))
    check_norms(model)
    for name, layer in model.named_modules():
        place = f"layer {name!r} ({type(layer).__name__})"
        if isinstance(layer, torch.jit.ScriptModule):
            raise ModelError(
                f"{place if name else 'the model'} is a ScriptModule with weights of its own",
                "give the nn.Module that it was scripted from",
            )
        if isinstance(layer, _UNKEYED_DROPOUT):
            raise ModelError(f"{place} is not supported", "use nn.Dropout instead")
        for own, tensor in layer.named_parameters(recurse=False):
            if isinstance(tensor, nn.UninitializedParameter):
                raise ModelError(
                    f"{place} has no shape yet", "run the model once on a sample before training"
                )
            if tensor.is_complex():
                raise ModelError(
                    f"{own!r} of {place} is complex",
                    "keep its real and imaginary part as a real parameter and join them in "
                    "forward with torch.view_as_complex",
                )
    stays, training = kept_in_evaluation(model), copy.deepcopy(model).train()
    plain_lookups(training)
    _spread(training)
    dropouts = key_layers(training)
    for name, layer in training.named_modules(remove_duplicate=False):
        if name in stays:
            layer.training = False
    inference = copy.deepcopy(training).eval()
    theta, constants = _parts(training)
    if not theta:
        raise ModelError(
            "the model has no trainable parameter", "set requires_grad on what should be learned"
        )
    calling = None if parts is None else calling_of(model, parts)
    own = tuple(dropouts), _ties(training)
    return FunctionalModel(theta, constants, training, inference, *own, calling=calling)


def initialised(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The module, whose lazy layers have got their shapes from a blank sample.

    Example:
        >>> initialised(nn.LazyLinear(2), (3,)).weight.shape
        torch.Size([2, 3])
    """
    lazy = [each for each in model.parameters() if isinstance(each, nn.UninitializedParameter)]
    if lazy:
        training = model.training
        with torch.no_grad(), suppress(Exception):  # what is amiss shows on samples
            model.eval()(torch.zeros(1, *shape, dtype=lazy[0].dtype))
        model.train(training)
    return model


def _spread(model: nn.Module) -> None:
    """Give every number of a tensor a place of its own, in place: expanded ones share theirs."""
    for tensor in (*model.parameters(), *model.buffers()):
        if 0 in tensor.stride():
            tensor.data = tensor.data.contiguous()


def _unwrapped(model: nn.Module) -> nn.Module:
    """What is inside of `torch.compile` and `nn.DataParallel`: nodes are computed our own way."""
    while True:
        inside = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.DataParallel):
            inside = model.module
        if not isinstance(inside, nn.Module):
            return model
        model = inside


def _with_todays_weight_norm(model: nn.Module) -> nn.Module:
    """A copy with parametrisations in the place of older hooks, which keep a weight in the layer.

    Such a weight belongs to the last pass, so that neither copies nor several nodes can be had.
    """
    hooks = [
        (name, hook)
        for name, layer in model.named_modules()
        for hook in layer._forward_pre_hooks.values()
        if isinstance(hook, WeightNorm)
    ]
    for name, hook in hooks:  # of the last pass, and no leaf: it cannot be copied
        layer = model.get_submodule(name)
        setattr(layer, hook.name, getattr(layer, hook.name).detach())
    if hooks:
        model = copy.deepcopy(model)
    for name, hook in hooks:
        layer = model.get_submodule(name)
        trained = layer.get_parameter(f"{hook.name}_v").requires_grad
        remove_weight_norm(layer, hook.name)
        parametrized = weight_norm(layer, hook.name, hook.dim)
        parametrized.parametrizations.requires_grad_(trained)
    return model


def output_of(found: object) -> Tensor:
    """What a module returns, as one tensor.

    Example:
        >>> output_of({"logits": torch.ones(2), "loss": None}), output_of((torch.zeros(1), 3))
        (tensor([1., 1.]), tensor([0.]))
    """
    if isinstance(found, Tensor):
        return found
    named = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", None)
    several = found if isinstance(found, tuple | list) else ()
    for each in (named, *several):
        if isinstance(each, Tensor):
            return each
    raise ModelError(
        f"the model returns {type(found).__name__}, which has no tensor to take for its output",
        "return a tensor, a tuple that begins with it, or something with `logits`",
    )


class Checked(NamedTuple):
    """A model that was tried on samples.

    Args:
        model: the same, which knows whether it draws masks by calls.
        outputs: how many numbers it returns per sample.
    """

    model: FunctionalModel
    outputs: int


def check_on_samples(
    model: FunctionalModel, inputs: Tensor, outputs: int, more: bool = False
) -> Checked:
    """Try the model on a few samples: does it run, fit the task, and treat samples one by one?

    Args:
        model: the model to check.
        inputs: at least two scaled samples, (n, *shape).
        outputs: how many numbers per sample the task needs.
        more: whether it may return more of them, as for classes that no sample is of.
    """
    key, before = randomness.key(0), {n: leaf.clone() for n, leaf in model.constants.items()}
    many = inputs.repeat(16, *[1] * (inputs.ndim - 1))  # enough for rare draws to show
    try:
        with torch.no_grad():
            model = replace(model, keyed_calls=_draws_by_calls(model, inputs, key))
            together = model(model.theta, inputs, None)
            once, again = (
                torch.cat([model(model.theta, many, mode) for mode in (None, key)])
                for _ in range(2)
            )
            pairs = [
                (model(model.theta, inputs, mode)[:1], model(model.theta, inputs[:1], mode))
                for mode in (None, key)  # some layers couple samples in training mode only
            ]
    except ModelError:
        raise
    except Exception as error:  # whatever somebody's forward raises
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        asks = isinstance(error, TypeError) and "missing" in first
        raise ModelError(
            f"the model fails on samples of shape {tuple(inputs.shape[1:])}: {first}",
            "give that argument a default, or samples with inputs of those names"
            if asks
            else "use a model that takes this shape, or reshape the data",
        ) from error
    if written := [n for n, leaf in model.constants.items() if not _same(before[n], leaf)]:
        raise ModelError(
            f"the model writes into its buffer {written[0]!r} as it runs",
            "compute it in forward and return nothing of it: a node's pass must leave no trace",
        )
    enough = together.shape[-1:] == (outputs,) or (more and together.shape[-1] > outputs)
    if together.ndim != 2 or len(together) != len(inputs) or not enough:
        raise ModelError(
            f"the model returns {tuple(together.shape)} for {len(inputs)} samples",
            f"the task needs {outputs} outputs per sample, shape ({len(inputs)}, {outputs})",
        )
    if not torch.equal(once, again):
        raise ModelError(
            "the model gives different outputs for the same input twice",
            "draw randomness as dropout only (nn.Dropout, torch.nn.functional.dropout, the dropout "
            "of recurrent and attention layers)",
        )
    tolerance = 1e-3 * float(together.abs().max()) + 1e-6
    if not all(torch.allclose(among, alone, atol=tolerance) for among, alone in pairs):
        raise ModelError(
            "the model's output for a sample changes with the other samples of its batch",
            "remove what couples them (batch statistics, attention across samples, …)",
        )
    return Checked(model, together.shape[1])


def _draws_by_calls(model: FunctionalModel, inputs: Tensor, key: Tensor) -> bool:
    """Whether the model draws masks beside those of its dropout layers."""
    calls = KeyedCalls(key, first=0)
    with calls:
        model(model.theta, inputs, key)
    return calls.count > 0


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def _ties(module: nn.Module) -> dict[str, str]:
    """Places that share a parameter or buffer with one before, unless the layer is the same."""
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for path, layer in module.named_modules():  # every layer once
        own = (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
        for name, tensor in own:
            place = f"{path}.{name}" if path else name
            known = first.setdefault(id(tensor), place)
            if known != place:
                found[place] = known
    return found


def _parts(module: nn.Module) -> tuple[Tree, Tree]:
    """Trainable parameters, and frozen parameters with buffers (keys of dropout left out)."""
    theta = {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}
    frozen = {n: p.detach().clone() for n, p in module.named_parameters() if not p.requires_grad}
    keys = {
        f"{name}.key" for name, layer in module.named_modules() if isinstance(layer, KeyedDropout)
    }
    buffers = {n: b.detach().clone() for n, b in module.named_buffers() if n not in keys}
    return theta, {**frozen, **buffers}
