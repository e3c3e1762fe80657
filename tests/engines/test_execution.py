from __future__ import annotations

import re
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from fedmeta.algorithms import ADMMFedMeta
from fedmeta.data import Federation, fit_scaling
from fedmeta.engines import local
from fedmeta.engines.execution import (
    Execution,
    chosen_path,
    fitting_chunk,
    machine,
    node_bytes,
    with_threads,
)
from fedmeta.engines.local import Layout, NodeStore, lay_out
from fedmeta.errors import ModelError, SettingError
from fedmeta.functional import functionalise
from fedmeta.losses import cross_entropy
from fedmeta.objective import Adaptation
from problems import LAYOUTS, PLAIN, classification, double, flat, mlp

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


def laid_out(model: nn.Module, execution: Execution, data: Federation = DATA) -> Layout:
    return lay_out(execution, double(model), cross_entropy, data, fit_scaling(data), ALGORITHM)


def test_settings() -> None:
    assert Execution(dtype="float64").torch_dtype == torch.float64
    assert Execution(memory=0.5).budget == 2**29
    assert Execution().torch_device == torch.device("cpu")
    for arguments, named in [
        ({"dtype": "float16"}, "dtype"),
        ({"path": "vmap"}, "path"),
        ({"memory": 0}, "memory"),
        ({"chunk": 0}, "chunk"),
        ({"threads": 0}, "threads"),
        ({"threads": 100_000}, "threads"),
        ({"device": "cuda:one"}, "device"),
        ({"device": "tpu"}, "device"),
    ]:
        with pytest.raises(SettingError, match=named):
            Execution(**arguments)
    with (
        mock.patch("torch.cuda.is_available", return_value=False),
        pytest.raises(SettingError, match="sees no GPU"),
    ):
        Execution(device="cuda:1")


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (nn.Linear(64, 10), "batched"),
        (nn.Linear(2000, 500), "loop"),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), "loop"),
        (Recurrent(), "loop"),
    ],
    ids=["small", "large", "convolution", "recurrent"],
)
def test_fixed_rule_on_a_cpu(model: nn.Module, path: str) -> None:
    assert chosen_path(Execution(), functionalise(model)) == path


def test_fixed_rule_on_a_gpu() -> None:
    with mock.patch("torch.cuda.is_available", return_value=True):
        gpu = Execution(device="cuda")
    assert chosen_path(gpu, functionalise(nn.Conv2d(1, 2, 3))) == "batched"
    assert chosen_path(gpu, functionalise(Recurrent())) == "loop"


def test_working_memory_grows_with_samples_and_parameters() -> None:
    small, large = double(mlp(hidden=3)), double(mlp(hidden=300))
    sample = torch.zeros(1, 3, dtype=torch.float64)
    few, many = (node_bytes(small, sample, n, torch.float64) for n in (10, 20))
    # Outputs of the three layers, 3 numbers each, and 3 inputs; 24 parameters.
    assert few == (6 * 10 * 12 + 12 * 24) * 8
    assert many - few == 6 * 10 * 12 * 8
    assert node_bytes(large, sample, 10, torch.float64) > 10 * few
    assert not small.inference[0]._forward_hooks


def test_chunks_by_the_budget() -> None:
    execution = Execution(memory=1.0)
    assert fitting_chunk(execution, 2**28, 2**29, nodes=100) == 2
    assert fitting_chunk(execution, 2**28, 0, nodes=3) == 3
    assert fitting_chunk(replace(execution, chunk=1), 2**28, 0, nodes=3) == 1
    assert fitting_chunk(replace(execution, chunk=50), 2**28, 2**29, nodes=100) == 2


def test_a_budget_too_small_for_one_node_says_how_much_is_needed() -> None:
    with pytest.raises(SettingError) as caught:
        fitting_chunk(Execution(memory=1.0), 2**30, 2**29, nodes=10)
    assert "take 0.5 GiB and one node needs 1 GiB" in caught.value.problem
    asked = float(re.search(r"--memory ([\d.]+)", caught.value.remedy)[1])
    assert fitting_chunk(Execution(memory=asked), 2**30, 2**29, nodes=10) == 1


def test_budget_end_to_end() -> None:
    with pytest.raises(SettingError, match=r"does not fit one node.*--memory"):
        laid_out(mlp(), Execution(dtype="float64", path="batched", memory=1e-6))
    tight = laid_out(mlp(), Execution(dtype="float64", path="batched", memory=3e-5))
    assert tight.execution.chunk is not None
    assert 1 <= tight.execution.chunk < 5
    roomy = laid_out(mlp(), Execution(dtype="float64", path="batched"))
    assert roomy.execution.chunk == 5


def test_auto_resolves_everything() -> None:
    execution = laid_out(mlp(), Execution(dtype="float64")).execution
    assert (execution.path, execution.chunk, execution.threads) == (
        "batched",
        5,
        torch.get_num_threads(),
    )


@pytest.mark.parametrize(("faster", "chunk"), [("batched", 5), ("loop", 1)])
def test_measure_takes_the_faster_path(faster: str, chunk: int) -> None:
    def seconds(layout: Layout, *_: object) -> float:
        return 1.0 if layout.execution.path == faster else 2.0

    with mock.patch.object(local, "_seconds_per_round", side_effect=seconds) as timed:
        execution = laid_out(mlp(), Execution(dtype="float64", path="measure")).execution
    assert (execution.path, execution.chunk) == (faster, chunk)
    assert timed.call_count == 3  # does it batch at all, and one for each path


def test_measure_for_real() -> None:
    execution = laid_out(mlp(), Execution(dtype="float64", path="measure")).execution
    assert execution.path in ("batched", "loop")


def test_recurrent_models_run_in_the_loop() -> None:
    layout = laid_out(Recurrent(), Execution(dtype="float64"))
    assert layout.execution.path == "loop"
    assert layout.execution.chunk == 1


@pytest.mark.parametrize("path", ["auto", "measure"])
def test_what_does_not_batch_falls_to_the_loop(path: str) -> None:
    layout = laid_out(Branching(), Execution(dtype="float64", path=path))
    assert layout.execution.path == "loop"


def test_batched_by_force_of_what_does_not_batch() -> None:
    with pytest.raises(ModelError, match=r'cannot be batched over nodes .*use path "loop"'):
        laid_out(Branching(), Execution(dtype="float64", path="batched"))


def test_convolutions_take_forward_mode_when_batched() -> None:
    data = classification(shape=(1, 4, 4))
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    batched = laid_out(convolution, Execution(dtype="float64", path="batched"), data)
    assert batched.objective.forward_mode
    assert not laid_out(convolution, Execution(dtype="float64"), data).objective.forward_mode


def test_torch_gets_its_own_settings_back() -> None:
    before = torch.get_num_threads()
    inside = []

    def fail() -> None:
        with machine(Execution(threads=before + 1)):
            inside.append(torch.get_num_threads())
            assert not torch.backends.cudnn.allow_tf32
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside == [before + 1]
    assert torch.get_num_threads() == before
    assert torch.backends.cudnn.allow_tf32
    with machine(Execution()):
        assert torch.get_num_threads() == before
    assert with_threads(Execution()).threads == before
    assert with_threads(Execution(threads=3)).threads == 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_map_keeps_nodes_in_order(layout: str) -> None:
    """Also when samples are packed chunk by chunk instead of staying in memory."""
    execution = LAYOUTS[layout]
    laid = Layout(execution, local.Objective(double(mlp()), cross_entropy))
    expected = [
        DATA.inputs[node.support].sum() + 100 * number for number, node in enumerate(DATA.sources)
    ]
    for resident in (True, False):
        store = NodeStore(DATA, DATA.sources, PLAIN, execution, resident)
        offsets = 100 * torch.arange(5, dtype=torch.float64)
        sums = laid.map(
            lambda data, offset: (data.support.inputs * data.support.mask[:, None]).sum() + offset,
            store,
            offsets,
        )
        assert sums.tolist() == pytest.approx(expected)


def test_resident_or_not_is_the_same() -> None:
    model = double(mlp())
    ends = []
    for fits in (True, False):
        with mock.patch.object(local, "_fits_resident", return_value=fits):
            layout = Layout(LAYOUTS["batched-3"], local.Objective(model, cross_entropy))
            engine = local.LocalEngine(
                ALGORITHM, DATA, PLAIN, layout, local.Participation(0.6), seed=0
            )
            state, nodes = engine.start(model.theta)
            for number in (1, 2, 3):
                state, nodes, _ = engine.round(state, nodes, number)
            ends.append(flat(state.theta))
    assert torch.equal(*ends)


def test_bytes_are_those_of_the_messages() -> None:
    model = double(mlp())
    layout = Layout(LAYOUTS["loop"], local.Objective(model, cross_entropy))
    engine = local.LocalEngine(ALGORITHM, DATA, PLAIN, layout, local.Participation(), seed=0)
    metrics = engine.round(*engine.start(model.theta), 1).metrics
    assert 24 * 8 < metrics["bytes_down"] < metrics["bytes_up"] < 24 * 8 + 1000
    assert metrics["counted"] == 5
