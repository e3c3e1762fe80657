"""Per-FedAvg on Google's FedJAX: its federated averaging, compiled by JAX, on the same device."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.peers import Missing, Round, Theta, library
from benchmarks.peers.jax_network import jax_network
from benchmarks.problems import SUPPORT, Problem


def fedjax_round(problem: Problem, device: str) -> Round:
    """Rounds of Per-FedAvg with one local step."""
    fedjax, jax = library("fedjax"), library("jax")
    if jax.default_backend() != ("gpu" if device.startswith("cuda") else "cpu"):
        raise Missing(f"JAX computes on the {jax.default_backend()} here")
    predict = jax_network(problem.module("cpu"))

    def loss(theta: Any, inputs: Any, labels: Any) -> Any:
        scores = jax.nn.log_softmax(predict(theta, inputs))
        return -jax.numpy.take_along_axis(scores, labels[:, None], axis=1).mean()

    def meta_loss(theta: Any, batch: Any) -> Any:
        slope = jax.grad(loss)(theta, batch["support_inputs"], batch["support_labels"])
        adapted = jax.tree_util.tree_map(lambda a, b: a - problem.step_size * b, theta, slope)
        return loss(adapted, batch["query_inputs"], batch["query_labels"])

    # A client's example is a pair of a support and a query sample, so that one batch is all of it.
    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=SUPPORT, num_epochs=1)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        lambda theta, batch, _: jax.grad(meta_loss)(theta, batch),
        fedjax.optimizers.sgd(problem.meta_step_size),
        fedjax.optimizers.sgd(1.0),
        batches,
    )
    keys = jax.random.split(jax.random.PRNGKey(0), problem.nodes)
    clients = [
        (number, fedjax.ClientDataset({n: t.numpy() for n, t in node._asdict().items()}), key)
        for number, (node, key) in enumerate(zip(problem.samples("cpu"), keys, strict=True))
    ]
    start = {n: leaf.detach().numpy() for n, leaf in problem.module("cpu").named_parameters()}
    state = algorithm.init(jax.tree_util.tree_map(jax.numpy.asarray, start))

    def one_round() -> Theta:
        nonlocal state
        state, _ = algorithm.apply(state, clients)
        return {name: torch.tensor(leaf.__array__()) for name, leaf in state.params.items()}

    return one_round
