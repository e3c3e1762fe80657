"""Accuracy of a target against how unlike the sources it is: Theorem 2's ψ at one point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from experiments.cell import Key
from experiments.experiment import Experiment, Found, Summary
from experiments.figures import legend, panels
from experiments.names import named
from experiments.statistics import accuracy, entry, rounded
from experiments.tables import leaves, markdown, shown, words
from fedmeta.config.execution import Execution
from fedmeta.core.objective import Objective
from fedmeta.core.sample_sets import NodeData, union
from fedmeta.core.tree import Tree
from fedmeta.data import Federation, Node
from fedmeta.engine.layout import Layout, predictor
from fedmeta.engine.machine import machine
from fedmeta.engine.samples import NodeStore
from fedmeta.models.meta_model import MetaModel
from fedmeta.report.style import SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def dissimilarities(model: MetaModel, federation: Federation, execution: Execution) -> list[float]:
    """For every target m: ‖∇L_m(θ) − Σw_i∇L_i(θ)‖, on all samples that the nodes hold.

    The theorem has the supremum over θ of each source's distance; this is the distance to their
    mean at the θ that was trained.

    Args:
        model: θ and its scaling.
        federation: sources and targets.
        execution: with its path and chunk size resolved.
    """
    network = model.network.to(execution.torch_device, execution.torch_dtype)
    theta = {name: leaf.to(network.theta[name]) for name, leaf in model.theta.items()}
    objective = Objective(predictor(network, execution), model.loss)

    def gradient(data: NodeData) -> Tree:
        return objective.gradient(theta, union(data))[0]

    def gradients(nodes: Sequence[Node]) -> Tree:
        chunk = min(execution.chunk or 1, len(nodes))
        layout = Layout(replace(execution, chunk=chunk), objective)
        store = NodeStore(federation, nodes, model.scaling, execution, resident=False)
        found: Tree = layout.map(gradient, store)
        return found

    sizes = torch.tensor([node.size for node in federation.sources], dtype=torch.float64)
    with machine(execution):
        sources, targets = gradients(federation.sources), gradients(federation.targets)
    squares = torch.zeros(len(federation.targets), dtype=torch.float64)
    for name, leaf in sources.items():
        weights = (sizes / sizes.sum()).to(leaf)
        apart = targets[name] - torch.tensordot(weights, leaf, dims=1)
        squares += apart.flatten(1).square().sum(dim=1).double().cpu()
    return [float(each) for each in squares.sqrt()]


def summarised(found: Found) -> Iterable[tuple[Key, Any]]:
    """Every target, and how accuracy goes with dissimilarity."""
    for key, result in found.items():
        points = [pair for each in result["repeats"] for pair in each.get("targets", [])]
        yield (
            key,
            {
                "targets": [[float(f"{a:.4g}"), rounded(100 * b)] for a, b in points],
                "correlation": entry(result["repeats"], _correlation),
                "accuracy": accuracy(result["repeats"], "precise"),
            },
        )


def _correlation(repeat: dict[str, Any]) -> float | None:
    """Of dissimilarity and accuracy among the targets of one repeat; None if either is constant."""
    values = np.array(repeat.get("targets", []), dtype=float).reshape(-1, 2)
    varied = len(values) > 2 and bool((values.std(axis=0) > 0).all())
    return float(np.corrcoef(values.T)[0, 1]) if varied else None


def table(summary: Summary) -> str:
    """How accuracy goes with dissimilarity."""
    rows = [
        [*map(named, key), shown(found["accuracy"]), shown(found["correlation"])]
        for key, found in leaves(summary["dissimilarity"], "targets")
    ]
    heads = ["data", "prior", "accuracy, %", "its correlation with dissimilarity"]
    return markdown(heads, rows)


def plot(figure: Figure, summary: Summary) -> None:
    """A dot per target and repeat."""
    (axes,) = panels(figure, 1, 1, (6.4, 4.0))
    for found in summary["dissimilarity"].values():
        for tint, (name, row) in zip(SERIES, found.items(), strict=False):
            if not row["targets"]:
                continue
            label = f"{name.replace('-', ' ')} (correlation {words(row['correlation'])})"
            axes.plot(*zip(*row["targets"], strict=True), "o", color=tint, alpha=0.6, label=label)
    axes.set_xlabel("dissimilarity ‖∇L_m(θ) − Σw_i∇L_i(θ)‖ of the target")
    axes.set_ylabel("its accuracy, %")
    legend(figure, [axes])


EXPERIMENT = Experiment(summarised, table, plot)
