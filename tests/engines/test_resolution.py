from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from fedmeta.algorithms import ADMMFedMeta
from fedmeta.config.execution import Execution
from fedmeta.core.errors import ModelError, SettingError
from fedmeta.core.objective import Adaptation
from fedmeta.data import Federation, fit_scaling
from fedmeta.engine import resolution
from fedmeta.engine.layout import Layout
from fedmeta.engine.resolution import lay_out
from fedmeta.models.losses import cross_entropy
from problems import classification, double, mlp

DATA = classification()
ALGORITHM = ADMMFedMeta(Adaptation(0.1))


class Recurrent(nn.Module):
    """Reads the features of a sample one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.unsqueeze(-1))[0][:, -1])


class Branching(nn.Module):
    """Looks at a value in Python, which no batching rule can."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        return out if float(self.layer.weight.detach().sum()) > -1e9 else -out


def laid_out(model: nn.Module, data: Federation = DATA, **settings: object) -> Execution:
    execution = Execution(dtype="float64", **settings)
    layout = lay_out(execution, double(model), cross_entropy, data, fit_scaling(data), ALGORITHM)
    return layout.execution


def test_budget_end_to_end() -> None:
    with pytest.raises(SettingError, match=r"does not fit one node.*memory"):
        laid_out(mlp(), path="batched", memory=0.5)
    # Beside the process 32212 bytes: less 5·2·24·8 for states and 5·11·7·8 for samples they are
    # room for 3 nodes of (6·11·12 + 12·24)·8 bytes, or for one on each of two threads.
    tight = {"path": "batched", "memory": 0.5 + 3e-5}
    assert laid_out(mlp(), threads=1, **tight).chunk == 3
    assert laid_out(mlp(), threads=2, **tight).chunk == 1
    assert laid_out(mlp(), threads=1, states="disk", **tight).chunk == 3
    # States on disk leave 1920 bytes more: with 1200 fewer in all it is still 3 nodes.
    less = {"path": "batched", "memory": 0.5 + (32212 - 1500) / 2**30, "threads": 1}
    assert laid_out(mlp(), **less).chunk == 2
    assert laid_out(mlp(), states="disk", **less).chunk == 3
    assert laid_out(mlp(), path="batched").chunk == 5


def test_auto_resolves_everything() -> None:
    done = laid_out(mlp())
    assert (done.path, done.chunk, done.threads) == ("batched", 5, torch.get_num_threads())
    assert (done.memory, done.states) == (4.0, "device")


def test_what_is_resolved_stays() -> None:
    asked = {"path": "batched", "chunk": 2, "threads": 3, "memory": 1.5, "states": "disk"}
    asked["derivatives"] = "closed-form"
    assert laid_out(mlp(), **asked) == Execution(dtype="float64", **asked)


@pytest.mark.parametrize(("faster", "chunk"), [("batched", 5), ("loop", 1)])
def test_measure_takes_the_faster_path(faster: str, chunk: int) -> None:
    counts = []

    def seconds(count: int, layout: Layout, *_: object) -> list[float]:
        """The first rounds warm up and record: they tell nothing."""
        counts.append(count)
        quick = layout.execution.path == faster
        return [9.0 if quick else 0.0] * 3 + ([3.0, 1.0] if quick else [2.0, 4.0])

    with mock.patch.object(resolution, "_seconds", side_effect=seconds):
        execution = laid_out(mlp(), path="measure")
    assert (execution.path, execution.chunk) == (faster, chunk)
    assert counts == [5, 5]  # one for each path


def test_measure_for_real() -> None:
    assert laid_out(mlp(), path="measure").path in ("batched", "loop")


def test_recurrent_models_are_batched() -> None:
    assert laid_out(Recurrent()).path == "batched"  # unrolled over their steps
    assert laid_out(mlp(), path="loop", chunk=3).chunk == 1


@pytest.mark.parametrize("path", ["auto", "measure"])
def test_what_does_not_batch_falls_to_the_loop(path: str) -> None:
    assert laid_out(Branching(), path=path).path == "loop"


def test_batched_by_force_of_what_does_not_batch() -> None:
    with pytest.raises(ModelError, match=r'cannot be batched over nodes .*use path "loop"'):
        laid_out(Branching(), path="batched")


def test_convolutions_are_batched() -> None:
    data = classification(shape=(1, 4, 4))
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    execution = laid_out(convolution, data)
    assert (execution.path, execution.chunk) == ("batched", 5)


def test_one_source_is_enough() -> None:
    data = classification(((2, 2),))
    assert laid_out(mlp(), data).chunk == 1
