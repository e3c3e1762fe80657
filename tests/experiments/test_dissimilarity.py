from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.dissimilarity import dissimilarities
from fedmeta import DataSettings, FedAvg, ModelSettings, TrainingSettings, load, train
from fedmeta.config.execution import Execution


@pytest.mark.parametrize("path", ["batched", "loop"])
def test_it_is_the_distance_of_gradients(path: str) -> None:
    federation = load(DataSettings("sinusoid", nodes=6, samples=(8, 12)), seed=0)
    run = train(federation, ModelSettings("linear"), FedAvg(), TrainingSettings(rounds=1))
    model = run.meta_model
    execution = Execution(path=path, chunk=2 if path == "batched" else 1)  # type: ignore[arg-type]

    def gradient(positions: np.ndarray) -> torch.Tensor:
        x = model.scaling.apply(federation.inputs[positions], torch.float32)
        y = model.scaling.scaled_labels(federation.labels[positions], torch.float32)
        theta = {name: leaf.clone().requires_grad_() for name, leaf in model.theta.items()}
        loss = model.loss(model.network(theta, x, None), y).mean()
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(theta.values()))])

    of = {n.name: gradient(np.r_[n.support, n.query]) for n in federation.nodes}
    total = sum(node.size for node in federation.sources)
    mean = sum(node.size / total * of[node.name] for node in federation.sources)
    expected = [float((of[node.name] - mean).norm()) for node in federation.targets]
    assert dissimilarities(model, federation, execution) == pytest.approx(expected, rel=1e-4)
