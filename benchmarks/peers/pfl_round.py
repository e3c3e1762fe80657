"""Per-FedAvg on Apple's pfl-research: its FederatedAveraging over its simulated backend."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers import Round, Theta, library
from benchmarks.peers.meta_loss import meta_loss
from benchmarks.problems import Problem, Samples

_NEVER = 10**9


class _MetaModule(nn.Module):
    """A network whose loss on a user's data is the meta-loss: SGD on it is the local meta-step."""

    def __init__(self, network: nn.Module, step_size: float) -> None:
        super().__init__()
        self.network, self.step_size = network, step_size

    def loss(self, *user_data: Tensor) -> Tensor:
        return meta_loss(self.network, Samples(*user_data), self.step_size)

    def metrics(self, *_: Tensor) -> dict[str, Any]:
        return {"samples": library("pfl.metrics").Weighted(0, 1)}


def pfl_round(problem: Problem, device: str) -> Round:
    """Rounds of Per-FedAvg with one local step; every node is in every cohort."""
    federated_averaging = library("pfl.algorithm.federated_averaging").FederatedAveraging
    model_class = library("pfl.model.pytorch").PyTorchModel
    logging.getLogger("pfl").setLevel(logging.ERROR)

    module = _MetaModule(problem.module(device), problem.step_size)
    model = model_class(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    data = _data(problem, device)
    weighting = library("pfl.aggregate.weighting").WeightByDatapoints()
    backend = library("pfl.aggregate.simulate").SimulatedBackend(data, data, [weighting])
    hyperparameters = library("pfl.hyperparam")
    local = hyperparameters.NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=problem.meta_step_size, local_batch_size=None
    )
    algorithm, number = federated_averaging(), 0

    def one_round() -> Theta:
        nonlocal number
        number += 1
        settings = library("pfl.algorithm.base").NNAlgorithmParams(
            central_num_iterations=number,  # it has done all but the last of them
            evaluation_frequency=_NEVER,
            train_cohort_size=problem.nodes,
            val_cohort_size=None,
        )
        algorithm.run(settings, backend, model, local, send_metrics_to_platform=False)
        return {name: leaf.detach() for name, leaf in module.network.named_parameters()}

    return one_round


def _data(problem: Problem, device: str) -> Any:
    dataset = library("pfl.data.dataset").Dataset
    users = [
        dataset(list(node), user_id=str(number))
        for number, node in enumerate(problem.samples(device))
    ]
    sampler = library("pfl.data.sampling").get_user_sampler(
        "minimize_reuse", list(range(len(users)))
    )
    federated = library("pfl.data.federated_dataset").FederatedDataset
    return federated(lambda user: users[user], sampler)
