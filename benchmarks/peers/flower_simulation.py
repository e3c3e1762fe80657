"""Per-FedAvg on Flower's simulation runtime: its FedAvg strategy, clients in ray's processes."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Any

import torch

from benchmarks.peers import Missing, Round, Theta, library
from benchmarks.peers.meta_loss import meta_loss
from benchmarks.problems import Problem

_PATIENCE = 300  # seconds to wait for a round; the first one starts ray


@contextmanager
def flower_simulation(problem: Problem, device: str) -> Iterator[Round]:
    """Rounds of Per-FedAvg with one local step, while the simulation runs in a thread."""
    if device != "cpu":
        raise Missing("Flower's simulation is compared on the CPU only")
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    simulation = library("flwr.simulation")
    library("ray")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    asked: Queue[bool] = Queue()
    answered: Queue[Theta] = Queue()
    # One client per core at a time: as many at once as the machine can hold. Flower would give
    # each client two cores, of which such small work uses one.
    backend = {
        "init_args": {"logging_level": logging.ERROR, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    thread = threading.Thread(
        target=simulation.run_simulation,
        args=(_server(problem, asked, answered), _client(problem), problem.nodes),
        kwargs={"backend_config": backend},
        daemon=True,
    )
    thread.start()

    def one_round() -> Theta:
        asked.put(True)
        return answered.get(timeout=_PATIENCE)

    try:
        yield one_round
    finally:
        asked.put(False)
        thread.join(_PATIENCE)


def _client(problem: Problem) -> Any:
    """A client: one local meta-step on the model that arrives."""
    flwr, app = library("flwr.app"), library("flwr.clientapp").ClientApp()
    samples = problem.samples("cpu")

    def train(message: Any, context: Any) -> Any:
        torch.set_num_threads(1)
        model = problem.module("cpu")
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        parameters = list(model.parameters())
        node = samples[int(context.node_config["partition-id"])]
        gradient = torch.autograd.grad(meta_loss(model, node, problem.step_size), parameters)
        with torch.no_grad():
            for leaf, slope in zip(parameters, gradient, strict=True):
                leaf.sub_(slope, alpha=problem.meta_step_size)
        content = flwr.RecordDict(
            {
                "arrays": flwr.ArrayRecord(model.state_dict()),
                "metrics": flwr.MetricRecord({"num-examples": len(node.support_labels)}),
            }
        )
        return flwr.Message(content=content, reply_to=message)

    app.train()(train)
    return app


def _server(problem: Problem, asked: Queue[bool], answered: Queue[Theta]) -> Any:
    """The server: a round of its FedAvg strategy whenever asked for one."""
    flwr, serverapp = library("flwr.app"), library("flwr.serverapp")
    app = serverapp.ServerApp()

    def main(grid: Any, _: Any) -> None:
        strategy = serverapp.strategy.FedAvg(
            fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=problem.nodes
        )
        arrays, number = flwr.ArrayRecord(problem.module("cpu").state_dict()), 0
        while asked.get():
            number += 1
            messages = strategy.configure_train(number, arrays, flwr.ConfigRecord(), grid)
            replies = grid.send_and_receive(messages)
            arrays, _ = strategy.aggregate_train(number, replies)
            answered.put(dict(arrays.to_torch_state_dict()))

    app.main()(main)
    return app
