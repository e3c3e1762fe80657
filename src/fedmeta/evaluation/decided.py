"""What a node reaches that decides by its own samples how it adapts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedmeta.core.decision import candidate_rules, decide, possible_candidates
from fedmeta.core.objective import Adaptation, Objective, adapt
from fedmeta.core.sample_sets import Samples
from fedmeta.core.tree import Tree, map_leaves

Measures = list[dict[str, Tensor]]
"""Of one model: metric and loss, for every set of samples that it is judged on."""


def measured_candidates(
    objective: Objective, rule: Adaptation, theta: Tree, support: Samples
) -> tuple[str, ...]:
    """The candidates that a model can take, found before all nodes are computed.

    Args:
        objective: model and loss, in the form that nodes are computed in.
        rule: what the model was trained for.
        theta: the model.
        support: of one node, with a node axis of length 1.
    """

    def alone(point: Tree, inputs: Tensor, key: Tensor | None) -> Tensor:
        mapped = torch.func.vmap(lambda some: objective.predict(point, some, key))
        outputs: Tensor = mapped(inputs.unsqueeze(0))[0]
        return outputs

    inputs, labels = support.inputs[0][:4], support.labels[0][:4]
    return possible_candidates(alone, rule, theta, inputs, labels)


def chosen_measures(
    objective: Objective,
    rule: Adaptation,
    theta: Tree,
    support: Samples,
    key: Tensor | None,
    among: Sequence[str],
    judge: Callable[[Tree], Measures],
) -> Measures:
    """The measures of the candidate that a node chooses, and under "choice" its place.

    Args:
        objective: model and loss.
        rule: what the model was trained for.
        theta: the model.
        support: the node's labelled samples.
        key: of mini-batches, where the adaptation draws any.
        among: names of candidates.
        judge: measures a model of the node's.
    """
    choice = decide(objective, rule, theta, support, key, among).choice
    candidates = [
        judge(adapt(objective, each, theta, support, key))
        for each in candidate_rules(rule, among).values()
    ]

    def pick(*each: Tensor) -> Tensor:
        return torch.stack(each).index_select(0, choice.reshape(1))[0]

    chosen: Measures = map_leaves(pick, *candidates)
    return [{**each, "choice": choice} for each in chosen]
