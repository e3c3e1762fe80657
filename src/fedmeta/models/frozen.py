"""Frozen parts of a module: what is not trained stays as it was given, normalisation included.

A part is frozen if it has parameters or buffers and trains none of its parameters. A frozen part in
evaluation mode stays in it while the rest is trained: its dropout is off, and its BatchNorm
divides by the deviations that it came with, so that samples do not see each other.
"""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from fedmeta.core.errors import ModelError

Module = TypeVar("Module", bound=nn.Module)


def freeze_norms(model: Module) -> Module:
    """Freeze every normalisation over the batch, in place: constant scales, running statistics.

    For networks that come with BatchNorm: on a node with a dozen samples its batch statistics
    would be noise. The rest of the network stays trainable.

    Example:
        >>> model = freeze_norms(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
        >>> model[1].training, [p.requires_grad for p in model.parameters()]
        (False, [True, True, False, False])
    """
    for layer in model.modules():
        if couples_samples(layer):
            layer.eval().requires_grad_(False)
    return model


def couples_samples(layer: nn.Module) -> bool:
    """Whether a layer, in training mode at least, normalises over the batch or keeps statistics."""
    tracks = bool(getattr(layer, "track_running_stats", False))  # InstanceNorm may keep them too
    return isinstance(layer, nn.modules.batchnorm._BatchNorm) or tracks


def kept_in_evaluation(model: nn.Module) -> frozenset[str]:
    """Names of the modules that stay in evaluation mode while the model is trained.

    Example:
        >>> body, head = nn.Sequential(nn.Linear(2, 3), nn.Dropout()), nn.Linear(3, 2)
        >>> sorted(kept_in_evaluation(nn.Sequential(body.eval().requires_grad_(False), head)))
        ['0', '0.0', '0.1']
    """
    found: set[str] = set()
    for name, part in model.named_modules(remove_duplicate=False):
        owned = [*part.parameters()]
        if (owned or [*part.buffers()]) and not any(each.requires_grad for each in owned):
            prefix = f"{name}." if name else ""
            inside = part.named_modules(remove_duplicate=False)
            found |= {
                f"{prefix}{inner}".removesuffix(".") for inner, each in inside if not each.training
            }
    return frozenset(found)


def check_norms(model: nn.Module) -> None:
    """Refuse layers that tie the samples of a batch together.

    Raises:
        ModelError: naming the layer and what to do.
    """
    stays = kept_in_evaluation(model)
    for name, layer in model.named_modules():
        if not couples_samples(layer):
            continue
        place = f"layer {name!r} ({type(layer).__name__})"
        if getattr(layer, "running_mean", None) is None:  # it has batch statistics alone
            raise ModelError(
                f"{place} normalises over the batch, which ties a node's few samples together",
                "use nn.GroupNorm or nn.LayerNorm instead",
            )
        if name not in stays:
            raise ModelError(
                f"{place} normalises over the batch, which ties a node's few samples together",
                "use nn.GroupNorm or nn.LayerNorm instead or, for a network that comes with it, "
                "fedmeta.freeze_norms(model)",
            )
