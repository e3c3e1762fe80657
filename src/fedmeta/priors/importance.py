"""How much each parameter matters to the tasks so far: the diagonal A of `SquaredMahalanobis`.

Two estimates, both without raw data at the platform: the Fisher diagonal, a sum over nodes like
any other contribution, and the work done along the path of training, which the platform knows by
itself. Estimates of several tasks add up.

A run keeps them in files, made once and checked when they are used:

    importance-fisher.safetensors    mean squared gradients of single samples on the source nodes
    importance-path.safetensors      work along the path of training

Such a file says which model it belongs to, tensor by tensor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedmeta.core import randomness, tree
from fedmeta.core.errors import DataError, RunFolderError, require_positive
from fedmeta.core.objective import Objective, adapt
from fedmeta.core.plain_values import parse_json
from fedmeta.core.sample_sets import Samples
from fedmeta.core.storage import read_tensors, seal_again, write_tensors
from fedmeta.core.tree import Tree
from fedmeta.data.federation import Federation
from fedmeta.data.packing import unpacked
from fedmeta.models.meta_model import MetaModel

FORMAT = 1
UNIT = 1.0
"""λ = "auto" of a normalised Fisher diagonal, per task that it speaks for."""


def fisher_contribution(objective: Objective, theta: Tree, samples: Samples) -> tuple[Tree, Tensor]:
    """What a node sends for the Fisher diagonal: Σ_n (∂ℓ_n/∂θ)² and the number of its samples.

    The gradients are those of single samples, with their own labels (the "empirical" Fisher, no
    squares of batch gradients), and without dropout. Sums of several nodes add; where the mask is
    0 there is no sample. It runs under `torch.func.vmap` over nodes.

    Args:
        objective: model and loss.
        theta: where to take it: the meta-model, or a model adapted from it.
        samples: the node's own.

    Example:
        >>> objective = Objective(lambda t, x, key: x * t["a"], lambda o, y: (o - y).square() / 2)
        >>> x, y, mask = torch.tensor([[1.0, 2.0, 9.0], [0.0, 1.0, 9.0], [1.0, 1.0, 0.0]])
        >>> fisher_contribution(objective, {"a": torch.tensor(1.0)}, Samples(x, y, mask))
        ({'a': tensor(5.)}, tensor(2.))

    Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, PNAS 2017.
    """

    def of_one(inputs: Tensor, labels: Tensor) -> Tree:
        single = Samples(inputs[None], labels[None], torch.ones_like(samples.mask[:1]))
        return objective.gradient(theta, single)[0]

    gradients = torch.func.vmap(of_one)(samples.inputs, samples.labels)
    total = tree.map_leaves(lambda g: torch.tensordot(samples.mask, g.square(), 1), gradients)
    return total, samples.mask.sum()


def fisher(total: Tree, count: Tensor | float) -> Tree:
    """The Fisher diagonal: the mean of the squared gradients of all samples.

    EWC's penalty (λ/2) Σ F(θ − θ_p)² is `SquaredMahalanobis` with A = ½F.

    Args:
        total: the sum over nodes of the trees of `fisher_contribution`.
        count: the sum over nodes of their counts.

    Example:
        >>> importance = tree.scale(0.5, fisher({"a": torch.tensor(5.0)}, 2.0))
        >>> importance
        {'a': tensor(1.2500)}
    """
    if not float(count) > 0:
        raise DataError("the Fisher diagonal has no samples", "let at least one node contribute")
    return tree.scale(1 / count, total)


def federated_fisher(
    model: MetaModel, federation: Federation, device: str | torch.device = "cpu"
) -> Tree:
    """The Fisher diagonal of a meta-model on its source nodes, from one sum per node.

    F = Σ_i Σ_n (∂ℓ_n(φ_i)/∂φ)² / Σ_i |D^q_i|, over the query samples n of every source i, at its
    own adapted model φ_i = θ − α∇L_i(θ, Dˢ_i): the curvature of the loss that the meta-model was
    trained for, to first order in the adaptation. A node sends its sum and its count.

    Args:
        model: the meta-model.
        federation: its source nodes are asked.
        device: where to compute.

    Example:
        >>> import fedmeta
        >>> data = fedmeta.load(fedmeta.DataSettings("sinusoid", nodes=10), seed=0)
        >>> training = fedmeta.TrainingSettings(rounds=1)
        >>> run = fedmeta.train(data, fedmeta.ModelSettings("mlp"), fedmeta.ADMMFedMeta(), training)
        >>> importance = federated_fisher(run.meta_model, data)
        >>> list(importance) == list(run.meta_model.theta)
        True
    """
    total, count = fisher_sums(model, federation, device)
    return {name: leaf.cpu() for name, leaf in fisher(total, count).items()}


def fisher_sums(
    model: MetaModel, federation: Federation, device: str | torch.device = "cpu"
) -> tuple[Tree, Tensor]:
    """Numerator and denominator of `federated_fisher`: all that an edge tells of its nodes."""
    if federation.task != model.task or federation.inputs.shape[1:] != model.input_shape:
        raise DataError(
            f"{federation.name} has other classes or shapes than the model was trained on",
            "estimate the importance on data like its own",
        )
    dtype = next(iter(model.theta.values())).dtype
    place = torch.device(device)
    network = model.network.to(place, dtype)
    theta = {name: leaf.to(place) for name, leaf in model.theta.items()}
    rule = model.adaptation.fitted(theta)
    objective = Objective(lambda t, x, _key: network(t, x, None), model.loss)
    total, count = tree.zeros_like(theta), torch.zeros((), dtype=dtype, device=place)
    for node in federation.sources:
        mine = tree.map_leaves(
            lambda leaf: leaf.to(place), unpacked(federation, node, model.scaling, dtype)
        )
        phi = adapt(objective, rule, theta, mine.support, randomness.key(0))
        squares, number = fisher_contribution(objective, phi, mine.query)
        total, count = tree.add(total, squares), count + number
    return total, count


class TrainingPath(NamedTuple):
    """What the platform keeps of a training: two trees, whatever its length.

    Args:
        work: ω = −Σ_t g_t ⊙ Δθ_t, each parameter's share in the fall of the loss.
        moved: Σ_t Δθ_t.
    """

    work: Tree
    moved: Tree


def path_start(theta: Tree) -> TrainingPath:
    """The path before the first round."""
    return TrainingPath(tree.zeros_like(theta), tree.zeros_like(theta))


def path_step(path: TrainingPath, gradient: Tree, movement: Tree) -> TrainingPath:
    """The path one round further.

    Args:
        path: so far.
        gradient: of the meta-loss where the round began; ADMM's platform has it as −Σy_i.
        movement: Δθ, what the round changed.

    Example:
        >>> gradient, movement = {"a": torch.tensor([2.0])}, {"a": torch.tensor([-0.5])}
        >>> path_step(path_start(gradient), gradient, movement).work
        {'a': tensor([1.])}
    """
    work = {name: leaf - gradient[name] * movement[name] for name, leaf in path.work.items()}
    return TrainingPath(work, tree.add(path.moved, movement))


def path_importance(path: TrainingPath, damping: float = 0.1) -> Tree:
    """Ω = max(ω, 0) / (moved² + ξ): what a parameter contributed, per square of how far it went.

    Args:
        path: of the whole training, from `path_start` by a `path_step` per round.
        damping: ξ > 0, which keeps parameters that did not move from being divided by 0.

    Example:
        >>> path = TrainingPath({"a": torch.tensor([1.0, -1.0])}, {"a": torch.tensor([-0.5, 0.0])})
        >>> path_importance(path, damping=0.25)
        {'a': tensor([2., 0.])}

    Zenke, Poole, Ganguli, Continual learning through synaptic intelligence, ICML 2017.
    """
    require_positive("damping", damping)
    return {
        name: leaf.clamp(min=0) / (path.moved[name].square() + damping)
        for name, leaf in path.work.items()
    }


def normalised(importance: Tree) -> Tree:
    """F̂ = F / mean(F): only how parameters differ is left, so that λ means the same across models.

    A Fisher diagonal is the smaller the better a model fits its samples. Of one that is 0, or too
    small for its numbers, nothing can be told, and every parameter matters alike.

    Example:
        >>> normalised({"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([2.0])})
        {'a': tensor([0.5000, 1.5000]), 'b': tensor([1.])}
    """
    entries = sum(leaf.numel() for leaf in importance.values())
    mean = torch.stack([leaf.sum() for leaf in importance.values()]).sum() / entries
    if not float(mean) > torch.finfo(mean.dtype).tiny:
        return {name: torch.ones_like(leaf) for name, leaf in importance.items()}
    return tree.scale(1 / mean, importance)


def importance_file(run: Path, kind: str) -> Path:
    """Where a run keeps its importance of a kind ("fisher" or "path")."""
    return run / f"importance-{kind}.safetensors"


def write_importance(path: Path, importance: Tree, theta: Tree, facts: Mapping[str, Any]) -> None:
    """Store an importance with what identifies the model it belongs to.

    Args:
        path: the file.
        importance: F or Ω, with the names and shapes of θ.
        theta: the model.
        facts: plain facts to store beside it: `kind` and whatever people may want to know.
    """
    known = {**facts, "format": FORMAT, "tensors": _digests(theta)}
    write_tensors(path, importance, {"importance": json.dumps(known)})
    seal_again(path)


def read_importance(path: Path, theta: Tree, kind: str) -> Tree:
    """The importance in a file, or an error if it is of another model or another kind.

    Args:
        path: the file.
        theta: θ_p, whole or in part.
        kind: "fisher" or "path".
    """
    importance, metadata = read_tensors(path, "importance")
    try:
        facts = parse_json(metadata["importance"])
        known, number, stored = facts["tensors"], facts["format"], facts["kind"]
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{path} is a safetensors file but no importance", "make one by fedmeta importance RUN"
        ) from error
    if number != FORMAT:
        raise RunFolderError(
            f"{path} has format {number!r}, this version reads {FORMAT}",
            "make it again by fedmeta importance RUN",
        )
    if stored != kind:
        raise RunFolderError(
            f"{path} holds importance of the kind {stored!r}, not {kind!r}",
            f'set prior.kind to "{stored}", or name another file',
        )
    for name, digest in _digests(theta).items():
        if known.get(name) != digest:
            found = "has other values there" if name in known else "is absent there"
            raise RunFolderError(
                f"{path} is the importance of another model: tensor {name!r} {found}",
                "make it for the prior model by fedmeta importance RUN",
            )
    return {name: importance[name] for name in theta}


def add_up(parts: Sequence[Tree]) -> Tree:
    """The importance of several tasks together: their sum, tensor by tensor."""
    total = parts[0]
    for each in parts[1:]:
        for name, leaf in total.items():
            if name not in each or each[name].shape != leaf.shape:
                raise RunFolderError(
                    f"importance to be added is of another model: tensor {name!r} differs",
                    "add importance of the same network",
                )
        total = tree.add(total, each)
    return total


def _digests(theta: Tree) -> dict[str, str]:
    """A fingerprint of every tensor: shape and float32 values, wherever it lies."""
    digests = {}
    for name, leaf in theta.items():
        plain = leaf.detach().to("cpu", torch.float32).contiguous()
        content = f"{tuple(plain.shape)}".encode() + plain.numpy().tobytes()
        digests[name] = hashlib.sha256(content).hexdigest()
    return digests
