from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engines.runs import VALUES, convolutional, dropping, everything, run
from fedmeta.algorithms import ALGORITHMS, Algorithm, FedAvg
from fedmeta.core.objective import Adaptation
from fedmeta.data import Federation
from fedmeta.engine import recording
from fedmeta.engine.recording import Recorder
from fedmeta.priors import SquaredEuclidean
from fedmeta.uplink.participation import Participation
from problems import classification, double, mlp, paper_admm

EVEN = classification(((3, 3),) * 4)  # chunks of one shape: one recording
PICTURES = classification(((3, 3),) * 4, shape=(1, 5, 5))
INNER = Adaptation(0.1)


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record at the first call."""
    monkeypatch.setattr(recording, "_PATIENCE", -1)


class Counting:
    """A function that counts how often Python went through it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.function(*arguments)


def both_ways(
    monkeypatch: pytest.MonkeyPatch,
    algorithm: Algorithm,
    module: nn.Module,
    data: Federation,
    rounds: int,
    **options: Any,
) -> None:
    """A recorded engine and one that never records must agree in every bit."""
    results = []
    for patience in (-1, float("inf")):
        monkeypatch.setattr(recording, "_PATIENCE", patience)
        result, engine = run(algorithm, double(module), data=data, rounds=rounds, **options)
        sums, steps = engine._sum._recorded, engine._platform._recorded
        assert all(ready.concurrent for ready in sums.values())
        assert bool(sums) == bool(steps) == (patience < 0)
        results.append(everything(result))
    assert results[0] == results[1]
    theta = results[0]["theta"]
    assert (theta[-1] != theta[0]) == (algorithm.name != "local-only")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_gives_the_bits_of_plain_calls(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_ways(monkeypatch, ALGORITHMS[name](), mlp(), EVEN, rounds=3)


@dataclass(frozen=True)
class Case:
    algorithm: Algorithm
    module: nn.Module
    data: Federation = EVEN
    participation: Participation = Participation()


PRIOR = SquaredEuclidean(0.2, {n: 0.3 * p for n, p in double(mlp()).theta.items()})
CASES = {
    "convolution": Case(paper_admm(INNER), convolutional(), PICTURES),
    "dropout, batches, K=2": Case(
        paper_admm(Adaptation(0.1, batch_size=2), local_steps=2, local_step_size=0.5), dropping()
    ),
    "differences": Case(paper_admm(INNER, curvature="finite-difference"), mlp()),
    "prior": Case(paper_admm(INNER, prior=PRIOR), mlp()),
    "proximal prior": Case(paper_admm(INNER, platform="proximal", prior=PRIOR), mlp()),
    "stale, half": Case(
        paper_admm(INNER, rule="stale"), mlp(), participation=Participation(0.5, lost=0.1)
    ),
    "FedAvg, dropout, batches": Case(FedAvg(0.1, local_steps=2, batch_size=3), dropping()),
}


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_step_gives_the_bits_of_plain_calls(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    both_ways(
        monkeypatch,
        case.algorithm,
        case.module,
        case.data,
        rounds=4,
        participation=case.participation,
    )


def test_a_layout_in_memory_that_is_guessed_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a depthwise convolution: a view of it failed in the first recorded round."""
    module = nn.Sequential(
        nn.Conv2d(3, 16, 1),
        nn.ELU(),
        nn.Conv2d(16, 16, 3, groups=16),
        nn.ELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )
    pictures = classification(((15, 15),) * 2, shape=(3, 16, 16), classes=4)
    both_ways(monkeypatch, paper_admm(INNER), module, pictures, rounds=3)


@pytest.mark.usefixtures("early")
def test_a_platform_with_a_prior_is_recorded() -> None:
    _, engine = run(paper_admm(INNER, prior=PRIOR), double(mlp()), data=EVEN, rounds=1)
    assert all(ready.concurrent for ready in engine._platform._recorded.values())


def test_rounds_and_keys_are_no_part_of_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """δ_t falls with the round, and batches and masks are drawn anew in each."""
    algorithm = paper_admm(Adaptation(0.1, batch_size=2), curvature="finite-difference")
    both_ways(monkeypatch, algorithm, dropping(), EVEN, rounds=20)


def test_recorded_in_the_middle_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for patience in (0, float("inf")):
        monkeypatch.setattr(recording, "_PATIENCE", patience)
        result, engine = run(paper_admm(INNER), double(mlp()), data=EVEN, rounds=4)
        assert len(engine._sum._recorded) == (patience == 0)
        results.append(everything(result))
    assert results[0] == results[1]


def test_short_runs_are_never_recorded() -> None:
    _, engine = run(FedAvg(), double(mlp()), data=VALUES, rounds=3)
    assert not engine._sum._recorded
    assert not engine._platform._recorded


def test_patience_is_counted_in_seconds_of_plain_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(recording.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(recording, "_PATIENCE", 2.5)
    function = Counting(lambda x: x + 1)
    recorder, x = Recorder(function), torch.ones(2)
    for _ in range(3):  # a second each by that clock
        assert not recorder.ready(x).concurrent
        recorder(x)
    assert function.calls == 3
    assert recorder.ready(x).concurrent
    assert function.calls == 4  # traced
    assert torch.equal(recorder(x), torch.full((2,), 2.0))
    assert function.calls == 4


def test_forgetting_counts_anew() -> None:
    recorder = Recorder(lambda x: x + 1)
    recorder(torch.ones(2))
    assert recorder._calls
    assert recorder._seconds
    recorder.forget()
    assert not any((recorder._calls, recorder._seconds))


@pytest.mark.usefixtures("early")
class TestRecorder:
    def test_replays_without_the_function(self) -> None:
        function = Counting(lambda x, y: {"sum": x + y["y"], "twice": (2 * x,)})
        recorder = Recorder(function)
        for number in range(5):
            x, y = torch.full((2,), float(number)), torch.ones(2)
            result = recorder(x, {"y": y})
            assert torch.equal(result["sum"], x + 1)
            assert torch.equal(result["twice"][0], 2 * x)
        assert function.calls == 1

    def test_other_shapes_types_strides_and_structures_are_other_recordings(self) -> None:
        function = Counting(lambda x: [leaf + 1 for leaf in x.values()])
        recorder = Recorder(function)
        square = torch.arange(4.0).reshape(2, 2)
        others = [
            {"a": square},
            {"a": square.reshape(4)},
            {"a": square.double()},
            {"a": square.T},
            {"b": square},
            {"a": square, "b": square.clone()},
            {"b": square, "a": square.clone()},
        ]
        for number, each in enumerate(others):
            recorder.forget()
            for before in others[:number][-3:]:
                recorder(before)
            made = function.calls
            for _ in range(2):
                results = recorder(each)
                for result, leaf in zip(results, each.values(), strict=True):
                    assert torch.equal(result, leaf + 1)
                    assert result.dtype == leaf.dtype
            assert function.calls == made + 1, each

    @pytest.mark.parametrize(
        "look",
        [
            lambda x: x * x.sum().item(),
            lambda x: x if x.sum() > 3 else -x,
            lambda x: x * float(x[0]),
        ],
        ids=["item", "if", "float"],
    )
    def test_what_looks_at_values_sees_the_values_of_the_call(
        self, look: Callable[[Tensor], Tensor]
    ) -> None:
        recorder = Recorder(look)
        for values in ([1.0, 1.0], [4.0, -2.0], [5.0, 7.0]):
            x = torch.tensor(values)
            assert torch.equal(recorder(x), look(x))

    def test_what_branches_on_values_is_simply_called(self) -> None:
        function = Counting(lambda x: x if x.sum() > 3 else -x)
        recorder = Recorder(function)
        for number, values in enumerate(([1.0, 1.0], [4.0, -2.0], [5.0, 7.0]), 2):
            x = torch.tensor(values)
            assert not recorder.ready(x).concurrent
            assert torch.equal(recorder(x), x if sum(values) > 3 else -x)
            assert function.calls == number  # and once in vain, to record it

    @pytest.mark.parametrize(
        "look",
        [
            lambda x: x * x.tolist()[0],
            lambda x: x * float(x.numpy()[0]),
            lambda x: x[x > 0].sum() / x[x > 0].shape[0],
        ],
        ids=["list", "numpy", "shape"],
    )
    def test_no_value_gets_into_a_recording(self, look: Callable[[Tensor], Tensor]) -> None:
        recorder = Recorder(look)
        for values in ([1.0, 1.0], [4.0, -2.0], [5.0, 7.0]):
            x = torch.tensor(values)
            assert torch.equal(recorder(x), look(x))

    def test_the_same_tensor_twice_is_no_part_of_a_recording(self) -> None:
        recorder, x = Recorder(torch.sub), torch.ones(2)
        assert torch.equal(recorder(x, x), torch.zeros(2))
        assert torch.equal(recorder(x, torch.zeros(2)), torch.ones(2))

    def test_running_out_of_memory_is_no_looking_at_values(self) -> None:
        def full(x: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("full")

        recorder = Recorder(full)
        with pytest.raises(torch.OutOfMemoryError):
            recorder(torch.ones(1))
        assert not recorder._recorded

    def test_forgetting(self) -> None:
        function = Counting(lambda x: 2 * x)
        recorder = Recorder(function)
        recorder(torch.ones(2))
        recorder.forget()
        assert not any((recorder._recorded, recorder._calls, recorder._seconds))
        assert torch.equal(recorder(torch.ones(2)), torch.full((2,), 2.0))
        assert function.calls == 2

    def test_few_are_kept_and_the_others_are_called(self) -> None:
        function = Counting(lambda x: 2 * x)
        recorder = Recorder(function)
        for _ in range(2):
            for size in range(1, recording._RECORDINGS + 3):
                assert torch.equal(recorder(torch.ones(size)), torch.full((size,), 2.0))
        assert len(recorder._recorded) == recording._RECORDINGS
        assert function.calls == recording._RECORDINGS + 2 * 2

    def test_results_are_not_overwritten_and_arguments_not_kept(self) -> None:
        recorder = Recorder(lambda x: (x + 1, x))
        first = recorder(torch.zeros(2))
        second = recorder(torch.ones(2))
        assert torch.equal(first[0], torch.ones(2))
        assert torch.equal(first[1], torch.zeros(2))
        assert torch.equal(second[1], torch.ones(2))

    def test_in_several_threads_at_once(self) -> None:
        def function(x: Tensor) -> Tensor:
            return torch.func.vmap(torch.func.grad(lambda v: (v.sin() ** 3).sum()))(x)

        recorder = Recorder(function)
        inputs = [torch.randn(50, 20) for _ in range(40)]
        ready = recorder.ready(inputs[0])
        assert ready.concurrent
        with ThreadPoolExecutor(3) as pool:
            results = list(pool.map(ready.call, inputs))
        assert all(torch.equal(r, function(x)) for r, x in zip(results, inputs, strict=True))

    def test_nothing_is_differentiated_through(self) -> None:
        recorder = Recorder(lambda x: 2 * x)
        assert not recorder(torch.ones(2, requires_grad=True)).requires_grad
