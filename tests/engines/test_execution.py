from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from fedmeta.config.execution import Execution
from fedmeta.core.errors import SettingError
from fedmeta.engine.machine import machine
from fedmeta.engine.resolution import chosen_path, fitting_chunk, node_bytes, resolved
from fedmeta.models.functional import functionalise
from problems import double, mlp

MIB, GIB = 2**20, 2**30


class Recurrent(nn.Module):
    """Reads the features of a sample one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.unsqueeze(-1))[0][:, -1])


def on_gpu(**settings: object) -> Execution:
    """An execution on a GPU that need not be there."""
    with mock.patch("torch.cuda.is_available", return_value=True):
        return Execution(device="cuda", **settings)


def test_settings() -> None:
    assert Execution(dtype="float64").torch_dtype == torch.float64
    assert Execution(memory=0.5).budget == 2**29
    assert Execution().budget == 4 * GIB
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
        ({"precision": "fp8"}, "precision"),
        ({"states": "cloud"}, "states"),
        ({"precision": "tf32", "dtype": "float64"}, "precision 'tf32' goes with dtype float32"),
        ({"precision": "bf16", "dtype": "float64"}, "precision 'bf16' goes with dtype float32"),
    ]:
        with pytest.raises(SettingError, match=named):
            Execution(**arguments)
    with (
        mock.patch("torch.cuda.is_available", return_value=False),
        pytest.raises(SettingError, match="sees no GPU"),
    ):
        Execution(device="cuda:1")


def test_the_default_budget_of_a_gpu_is_a_share_of_its_memory() -> None:
    has = mock.Mock(total_memory=80 * GIB)
    with (
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.get_device_properties", return_value=has),
    ):
        assert on_gpu().budget == 56 * GIB
        assert resolved(on_gpu(path="batched"), 0).memory == 56.0


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (nn.Linear(64, 10), "batched"),
        (nn.Linear(999, 500), "batched"),
        (nn.Linear(2000, 500), "loop"),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), "batched"),
        (nn.Sequential(nn.Conv2d(1, 1, 2), nn.Linear(2000, 500)), "batched"),
        (Recurrent(), "batched"),
    ],
    ids=["small", "just small", "large", "convolution", "large convolution", "recurrent"],
)
def test_fixed_rule_on_a_cpu(model: nn.Module, path: str) -> None:
    assert chosen_path(Execution(), functionalise(model)) == path


@pytest.mark.parametrize(
    ("model", "path"),
    [(nn.Conv2d(1, 2, 3), "batched"), (nn.Linear(2000, 500), "batched"), (Recurrent(), "batched")],
    ids=["convolution", "large", "recurrent"],
)
def test_fixed_rule_on_a_gpu(model: nn.Module, path: str) -> None:
    assert chosen_path(on_gpu(), functionalise(model)) == path


def test_who_computes_side_by_side() -> None:
    assert Execution(path="batched", threads=3).workers == 3
    assert Execution(path="batched").workers == torch.get_num_threads()
    assert Execution(path="loop", threads=3).workers == 1
    assert on_gpu(path="batched", threads=3).workers == 1


def test_which_states_are_streamed() -> None:
    assert [Execution(states=s).streams for s in ("device", "host", "disk")] == [False, False, True]
    assert [on_gpu(states=s).streams for s in ("device", "host", "disk")] == [False, True, True]


def test_working_memory_grows_with_samples_and_parameters() -> None:
    small, large = double(mlp(hidden=3)), double(mlp(hidden=300))
    sample = torch.zeros(1, 3, dtype=torch.float64)
    few, many = (node_bytes(small, sample, n, torch.float64) for n in (10, 20))
    # Outputs of the three layers, 3 numbers each, and 3 inputs; 24 parameters.
    assert few == (6 * 10 * 12 + 12 * 24) * 8
    assert many - few == 6 * 10 * 12 * 8
    assert node_bytes(large, sample, 10, torch.float64) > 10 * few
    assert not small.inference[0]._forward_hooks


@pytest.mark.parametrize(
    ("settings", "held", "nodes", "chunk"),
    [
        # A node takes 64 MiB, the process 512, and caches want 384 MiB at once: 6 nodes.
        ({"memory": 2.0}, 0, 100, 6),
        ({"memory": 2.0}, 0, 3, 3),
        ({"memory": 0.75}, 64 * MIB, 100, 3),
        ({"memory": 2.0, "chunk": 1}, 0, 100, 1),
        ({"memory": 2.0, "chunk": 10}, 0, 100, 10),
        # (2048 − 512) / 64 = 24 nodes fit; with 256 MiB held 20; three threads share them.
        ({"memory": 2.0, "chunk": 50}, 0, 100, 24),
        ({"memory": 2.0, "chunk": 50}, 256 * MIB, 100, 20),
        ({"memory": 2.0, "chunk": 50, "path": "batched", "threads": 3}, 256 * MIB, 100, 6),
        # Equal shares for all threads: 6 nodes for two, 10 for four, 100 in 18 chunks for three.
        ({"memory": 2.0, "path": "batched", "threads": 2}, 0, 6, 3),
        ({"memory": 2.0, "path": "batched", "threads": 4}, 0, 10, 3),
        ({"memory": 2.0, "path": "batched", "threads": 3}, 0, 100, 6),
        # 128 MiB are left for four threads: they take turns with one node each.
        ({"memory": 0.625, "path": "batched", "threads": 4}, 0, 100, 1),
    ],
)
def test_chunks_by_budget_and_caches(
    settings: dict[str, object], held: int, nodes: int, chunk: int
) -> None:
    assert fitting_chunk(Execution(**settings), 64 * MIB, held, nodes) == chunk


def test_little_work_is_not_shared_among_threads() -> None:
    two = Execution(path="batched", threads=2)
    assert fitting_chunk(two, MIB, 0, nodes=48) == 48
    assert fitting_chunk(two, MIB, 0, nodes=49) == 25


def test_nodes_larger_than_the_caches_come_one_by_one() -> None:
    assert fitting_chunk(Execution(), 400 * MIB, 0, nodes=100) == 1


def test_chunks_on_a_gpu_fill_the_budget() -> None:
    assert fitting_chunk(on_gpu(memory=2.0), 64 * MIB, 0, nodes=100) == 32
    assert fitting_chunk(on_gpu(memory=2.0), 64 * MIB, GIB, nodes=100) == 16
    assert fitting_chunk(on_gpu(memory=2.0, chunk=5), 64 * MIB, 0, nodes=100) == 5


def test_a_budget_too_small_for_one_node_says_how_much_is_needed() -> None:
    with pytest.raises(SettingError) as caught:
        fitting_chunk(Execution(memory=1.0), GIB, 2**28, nodes=10)
    assert "take 0.75 GiB and one node needs 1 GiB" in caught.value.problem
    asked = float(re.search(r"--memory ([\d.]+)", caught.value.remedy)[1])
    assert fitting_chunk(Execution(memory=asked), GIB, 2**28, nodes=10) == 1
    with pytest.raises(SettingError, match=r"take 0\.25 GiB and one node needs 1 GiB"):
        fitting_chunk(on_gpu(memory=1.0), GIB, 2**28, nodes=10)


def test_what_is_open_is_written_down() -> None:
    done = resolved(Execution(path="batched"), 0)
    assert (done.threads, done.memory, done.states) == (torch.get_num_threads(), 4.0, "device")
    assert resolved(Execution(threads=3, memory=0.5, states="disk"), 0) == Execution(
        threads=3, memory=0.5, states="disk"
    )
    assert resolved(done, 10**12) == done
    assert resolved(Execution(), 10**12).states == "device"  # a CPU's memory is the host's


def test_states_that_take_over_half_a_gpu_go_to_the_host() -> None:
    gpu = on_gpu(memory=2.0)
    with mock.patch("torch.cuda.is_available", return_value=True):
        assert resolved(gpu, GIB).states == "device"
        assert resolved(gpu, GIB + 1).states == "host"
        assert resolved(replace(gpu, states="device"), GIB + 1).states == "device"


def fails(inside: Callable[[], None], execution: Execution) -> None:
    with machine(execution):
        inside()
        raise KeyError


def test_torch_gets_its_own_settings_back() -> None:
    before = torch.get_num_threads()
    inside = []

    def look() -> None:
        inside.append(torch.get_num_threads())
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.are_deterministic_algorithms_enabled()

    with pytest.raises(KeyError):
        fails(look, Execution(threads=before + 1))
    assert inside == [before + 1]
    assert torch.get_num_threads() == before
    assert torch.backends.cudnn.allow_tf32
    with machine(Execution()):
        assert torch.get_num_threads() == before


def test_rounded_products_are_for_those_who_ask() -> None:
    with machine(Execution(precision="tf32")):
        assert torch.backends.cudnn.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("before", [False, True])
def test_order_of_sums(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # a choice of one's own is kept

    def look() -> None:
        assert torch.are_deterministic_algorithms_enabled()

    torch.use_deterministic_algorithms(before)
    try:
        with pytest.raises(KeyError):
            fails(look, Execution(deterministic=True))
        assert torch.are_deterministic_algorithms_enabled() == before
        with machine(Execution()):  # what others have asked for is not taken back
            assert torch.are_deterministic_algorithms_enabled() == before
    finally:
        torch.use_deterministic_algorithms(False)


def test_those_who_want_a_warning_only_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with machine(Execution(deterministic=True)):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
