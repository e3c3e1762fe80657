"""Plain JAX as an expert would write it: `vmap` over nodes, derivatives by `grad`, one `jit`."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.peers import Missing, Round, Theta, library
from benchmarks.peers.jax_network import jax_network
from benchmarks.problems import Problem


def jax_round(problem: Problem, device: str) -> Round:
    """Rounds of ADMM-FedMeta; θ and the duals stay on the device, and their memory is reused."""
    jax = library("jax")
    if jax.default_backend() != ("gpu" if device.startswith("cuda") else "cpu"):
        raise Missing(f"JAX computes on the {jax.default_backend()} here")
    predict, numpy = jax_network(problem.module("cpu")), jax.numpy
    tree_map = jax.tree_util.tree_map

    def loss(theta: Any, inputs: Any, labels: Any) -> Any:
        scores = jax.nn.log_softmax(predict(theta, inputs))
        return -numpy.take_along_axis(scores, labels[:, None], axis=1).mean()

    def meta_loss(theta: Any, node: Any) -> Any:
        support_inputs, support_labels, query_inputs, query_labels = node
        slope = jax.grad(loss)(theta, support_inputs, support_labels)
        adapted = tree_map(lambda a, b: a - problem.step_size * b, theta, slope)
        return loss(adapted, query_inputs, query_labels)

    weight = 1 / problem.nodes

    def step(theta: Any, duals: Any, nodes: Any) -> Any:
        slopes = jax.vmap(jax.grad(meta_loss), in_axes=(None, 0))(theta, nodes)
        updated = tree_map(lambda slope: -weight * slope, slopes)
        change = tree_map(lambda y, before: (2 * y - before).sum(0), updated, duals)
        return tree_map(lambda a, v: a + v / problem.penalty, theta, change), updated

    compiled = jax.jit(step, donate_argnums=(0, 1))
    parts = zip(*problem.samples("cpu"), strict=True)
    nodes = tuple(numpy.asarray(torch.stack(part).numpy()) for part in parts)
    start = problem.module("cpu").named_parameters()
    theta = {name: numpy.array(leaf.detach().numpy()) for name, leaf in start}
    duals = tree_map(lambda leaf: numpy.zeros((problem.nodes, *leaf.shape), leaf.dtype), theta)

    def one_round() -> Theta:
        nonlocal theta, duals
        theta, duals = jax.block_until_ready(compiled(theta, duals, nodes))
        return {name: torch.tensor(leaf.__array__()) for name, leaf in theta.items()}

    return one_round
