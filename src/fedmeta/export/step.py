"""A model's two graphs: one adaptation step, and a prediction.

    φ = θ − a (∇L(θ, D) + λ(θ − θ⁰)),   a = α·f

Inputs and labels are scaled within the graph, and answers are in the labels' own unit. Inputs of a
step are raw samples, their labels and a mask (1 counts, 0 is padding), and, where they
shall differ from the meta-model's, θ (of the parameters that adaptation moves), α and, where they
were learned, the factors f. Outputs are φ, the model's answers under θ, so that the same graph
also predicts, and the loss of every sample under θ. k steps are k runs, each with the φ of the one
before. A pull λ is to θ⁰, the exported model's own parameters, which are part of the graph.

Where the head can be one of class means (`fedmeta.core.prototypes`), that head of the given samples
is an output too, so that a device has all candidates of `fedmeta.core.decision`. Of a model that
adapts by class means φ has that head itself, and α is its sharpness; a further run changes nothing,
since means are added to the head of θ⁰ if to any.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedmeta.core.decision import candidate_rules, possible_candidates
from fedmeta.core.objective import Objective, adapt
from fedmeta.core.prototypes import Head, linear_head, with_prototypes
from fedmeta.core.sample_sets import Samples
from fedmeta.core.tree import Tree
from fedmeta.export.graph import Graph
from fedmeta.models.meta_model import MetaModel

THETA, FACTORS, ADAPTED, MEANS = "theta/", "factors/", "adapted/", "prototypes/"
FIXED, _ANCHOR, CONSTANTS, _SCALING = "fixed/", "anchor/", "constants/", "scaling/"
_EXAMPLES = 3  # any number of at least 2 shows the tracer that there may be several


def step_graph(model: MetaModel) -> Graph:
    """One adaptation step of a model in float32 on the CPU."""
    rule = model.adaptation
    moves = rule.moves(model.theta)
    moving = {name: leaf for name, leaf in model.theta.items() if name in moves}
    fixed = {name: leaf for name, leaf in model.theta.items() if name not in moves}
    # Tensors of their own: the tracer takes one tensor under two names for one input.
    anchored = rule.pull > 0 or rule.keeps_head
    anchor = {name: leaf.clone() for name, leaf in moving.items()} if anchored else {}
    head = prototype_head(model)
    by_means, rules = rule.by_means, candidate_rules(rule)

    def step(given: Tree) -> Tree:
        theta = part(given, THETA) | part(given, FIXED)
        theta = {name: theta[name] for name in model.theta}  # the head is what comes last
        network = replace(model.network, constants=part(given, CONSTANTS))
        objective = Objective(lambda point, x, _key: network(point, x), model.loss)
        learned = part(given, FACTORS)
        samples = Samples(scaled(given), _scaled_labels(given), given["mask"])
        # Of a model that adapts by class means α is their sharpness.
        sharpness = given["step_size"] if by_means else rules["prototypes"].step_size
        means: Tree = {}
        if head is not None:
            start = theta | part(given, _ANCHOR) if rule.keeps_head else theta
            means = with_prototypes(
                objective.predict, start, head, samples, sharpness, kept=rule.keeps_head
            )
        if by_means:
            taken = given["step_size"] > 0  # a step of size 0 is how a device asks for θ
            adapted = {name: torch.where(taken, means[name], theta[name]) for name in moving}
            further: Tree = {}
        else:
            sizes = {name: given["step_size"] * learned.get(name, 1.0) for name in moving}
            one = replace(rule, step_size=1.0, steps=1, batch_size=None, factors=sizes)
            adapted = adapt(objective, one, theta, samples, anchor=part(given, _ANCHOR) or None)
            further = {MEANS + name: means[name] for name in head or ()}
        outputs = network(theta, samples.inputs)
        return {
            **{ADAPTED + name: adapted[name] for name in moving},
            **further,
            "logits": _in_label_unit(given, outputs),
            "losses": model.loss(outputs, samples.labels),
        }

    return Graph(
        step,
        {**raw_inputs(model), "labels": _labels(model), "mask": torch.ones(_EXAMPLES)},
        {
            **_named(THETA, moving),
            "step_size": torch.tensor(rule.step_size),
            **_named(FACTORS, dict(rule.factors or {})),
        },
        {**_named(FIXED, fixed), **_named(_ANCHOR, anchor), **context(model)},
    )


def prototype_head(model: MetaModel) -> Head | None:
    """The head that may be one of class means; None where it may not, or is not adapted."""

    def predict(theta: Tree, inputs: torch.Tensor, _key: torch.Tensor | None) -> torch.Tensor:
        return model.network(theta, inputs)

    rule, few = model.adaptation, torch.ones(_EXAMPLES, *model.input_shape)
    few = few.long() if model.scaling.tokens else few
    if model.network.calling is not None:
        parts = model.network.calling.parts
        few = torch.from_numpy(parts.invented(_EXAMPLES, 1, np.random.default_rng(0)))
    if "prototypes" not in possible_candidates(predict, rule, model.theta, few, _labels(model)):
        return None
    head = linear_head(model.theta, candidate_rules(rule)["prototypes"].moves(model.theta))
    return head if {*head} <= rule.moves(model.theta) else None


def prediction_graph(model: MetaModel) -> Graph:
    """The model's answers to raw samples, its parameters part of the graph."""

    def predict(given: Tree) -> Tree:
        network = replace(model.network, constants=part(given, CONSTANTS))
        outputs = network(part(given, THETA), scaled(given))
        return {"logits": _in_label_unit(given, outputs)}

    return Graph(
        predict, raw_inputs(model), constants={**_named(THETA, model.theta), **context(model)}
    )


def _labels(model: MetaModel) -> torch.Tensor:
    if model.task.kind == "classification":
        return torch.zeros(_EXAMPLES, dtype=torch.int64)
    return torch.zeros(_EXAMPLES, model.task.outputs)


def raw_inputs(model: MetaModel) -> Tree:
    """Examples of raw samples."""
    return {"inputs": torch.zeros(_EXAMPLES, *model.input_shape)}


def context(model: MetaModel, constants: Tree | None = None) -> Tree:
    """What is neither learned nor given: frozen parts of the network, or others, and scaling."""
    constants = model.network.constants if constants is None else constants
    scaling = {name: leaf.float() for name, leaf in model.scaling.tensors().items()}
    return {**_named(CONSTANTS, constants), **_named(_SCALING, scaling)}


def scaled(given: Tree) -> torch.Tensor:
    """Raw samples as the network wants them."""
    if f"{_SCALING}tokens" in given:
        return given["inputs"].long()
    return (given["inputs"] - given[f"{_SCALING}mean"]) / given[f"{_SCALING}deviation"]


def _scaled_labels(given: Tree) -> torch.Tensor:
    labels = given["labels"]
    if f"{_SCALING}label_mean" not in given:
        return labels
    return (labels - given[f"{_SCALING}label_mean"]) / given[f"{_SCALING}label_deviation"]


def _in_label_unit(given: Tree, outputs: torch.Tensor) -> torch.Tensor:
    if f"{_SCALING}label_mean" not in given:
        return outputs
    return given[f"{_SCALING}label_mean"] + given[f"{_SCALING}label_deviation"] * outputs


def _named(prefix: str, tree: Tree) -> Tree:
    return {prefix + name: leaf for name, leaf in tree.items()}


def part(tree: Tree, prefix: str) -> Tree:
    """The tensors whose names begin so, without that."""
    return {
        name.removeprefix(prefix): leaf for name, leaf in tree.items() if name.startswith(prefix)
    }
