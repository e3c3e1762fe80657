"""A model's two graphs: one adaptation step, and a prediction.

    φ = θ − a ∇L(θ, D),   a = α·f

Inputs of a step are raw samples, their labels and a mask (1 counts, 0 is padding), and, where they
shall differ from the meta-model's, θ (of the parameters that adaptation moves), α and, where they
were learned, the factors f. Outputs are φ and the model's answers under θ, so that the same graph
also predicts. k steps are k runs, each with the φ of the one before.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedmeta.core.objective import Objective, adapt
from fedmeta.core.sample_sets import Samples
from fedmeta.core.tree import Tree
from fedmeta.export.graph import Graph
from fedmeta.models.meta_model import MetaModel

THETA, FACTORS, ADAPTED = "theta/", "factors/", "adapted/"
_FIXED, _CONSTANTS, _SCALING = "fixed/", "constants/", "scaling/"
_EXAMPLES = 3  # any number of at least 2 shows the tracer that there may be several


def step_graph(model: MetaModel) -> Graph:
    """One adaptation step of a model in float32 on the CPU."""
    rule = model.adaptation
    moves = rule.moves(model.theta)
    moving = {name: leaf for name, leaf in model.theta.items() if name in moves}
    fixed = {name: leaf for name, leaf in model.theta.items() if name not in moves}

    def step(given: Tree) -> Tree:
        theta = _part(given, THETA) | _part(given, _FIXED)
        theta = {name: theta[name] for name in model.theta}  # the head is what comes last
        network = replace(model.network, constants=_part(given, _CONSTANTS))
        objective = Objective(lambda point, x, _key: network(point, x), model.loss)
        learned = _part(given, FACTORS)
        sizes = {name: given["step_size"] * learned.get(name, 1.0) for name in moving}
        one = replace(rule, step_size=1.0, steps=1, batch_size=None, factors=sizes)
        samples = Samples(_scaled(given), given["labels"], given["mask"])
        adapted = adapt(objective, one, theta, samples)
        return {
            **{ADAPTED + name: adapted[name] for name in moving},
            "logits": network(theta, samples.inputs),
        }

    labels = torch.zeros(_EXAMPLES, model.task.outputs)
    if model.task.kind == "classification":
        labels = torch.zeros(_EXAMPLES, dtype=torch.int64)
    return Graph(
        step,
        {**_inputs(model), "labels": labels, "mask": torch.ones(_EXAMPLES)},
        {
            **_named(THETA, moving),
            "step_size": torch.tensor(rule.step_size),
            **_named(FACTORS, dict(rule.factors or {})),
        },
        {**_named(_FIXED, fixed), **_context(model)},
    )


def prediction_graph(model: MetaModel) -> Graph:
    """The model's answers to raw samples, its parameters part of the graph."""

    def predict(given: Tree) -> Tree:
        network = replace(model.network, constants=_part(given, _CONSTANTS))
        return {"logits": network(_part(given, THETA), _scaled(given))}

    return Graph(
        predict, _inputs(model), constants={**_named(THETA, model.theta), **_context(model)}
    )


def _inputs(model: MetaModel) -> Tree:
    return {"inputs": torch.zeros(_EXAMPLES, *model.input_shape)}


def _context(model: MetaModel) -> Tree:
    """What is neither learned nor given: frozen parts of the network, scaling of the inputs."""
    scaling = {name: leaf.float() for name, leaf in model.scaling.tensors().items()}
    return {**_named(_CONSTANTS, model.network.constants), **_named(_SCALING, scaling)}


def _scaled(given: Tree) -> torch.Tensor:
    return (given["inputs"] - given[f"{_SCALING}mean"]) / given[f"{_SCALING}deviation"]


def _named(prefix: str, tree: Tree) -> Tree:
    return {prefix + name: leaf for name, leaf in tree.items()}


def _part(tree: Tree, prefix: str) -> Tree:
    return {
        name.removeprefix(prefix): leaf for name, leaf in tree.items() if name.startswith(prefix)
    }
