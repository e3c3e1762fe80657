from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from engines.runs import CHUNKED, VALUES, dropping, everything, run
from fedmeta.algorithms import ADMMFedMeta, FedAvg
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import DataError, SettingError
from fedmeta.core.objective import Adaptation, Objective
from fedmeta.core.run_folder import RunFolder
from fedmeta.engine import recording
from fedmeta.engine.cohort import Cohort
from fedmeta.engine.layout import Layout
from fedmeta.engine.local import LocalEngine
from fedmeta.engine.machine import machine
from fedmeta.engine.mapping.cuda import CudaMapping
from fedmeta.engine.ranks import Ranks
from fedmeta.engine.round import readable
from fedmeta.engine.round_metrics import RoundMetrics
from fedmeta.models.functional import functionalise
from fedmeta.models.losses import cross_entropy
from fedmeta.models.networks import ModelSettings
from fedmeta.training.train import train
from fedmeta.uplink.participation import Participation
from problems import LAYOUTS, PLAIN, classification, double, engine_for, flat, mlp, trace

MODEL = double(mlp())
ALGORITHM = ADMMFedMeta(Adaptation(0.1), 0.5, rule="stale")
MANY = classification(((3, 2), (2, 4), (4, 1), (1, 1), (2, 2), (3, 3), (1, 4), (2, 1), (4, 4)))


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record at the first call."""
    monkeypatch.setattr(recording, "_PATIENCE", -1)


class TestRounds:
    def test_bytes_are_those_of_the_messages(self) -> None:
        result, _ = run(ADMMFedMeta(Adaptation(0.1)), MODEL, LAYOUTS["loop"], rounds=1)
        metrics = result.metrics[0]
        assert 24 * 8 < metrics["bytes_down"] < metrics["bytes_up"] < 24 * 8 + 1000
        assert metrics["counted"] == 5

    @pytest.mark.parametrize("layout", ["batched-3", "loop"])
    def test_a_round_in_which_every_upload_is_lost(self, layout: str) -> None:
        lost = Participation(0.2, lost=0.9)
        result, _ = run(ALGORITHM, MODEL, LAYOUTS[layout], rounds=8, participation=lost)
        empty = [t for t, counted in enumerate(result.counted) if not counted]
        full = [t for t, counted in enumerate(result.counted) if counted]
        assert empty
        assert full, "some round must have a node, or nothing was shown"
        for t in empty:
            before = flat(MODEL.theta) if t == 0 else result.theta[t - 1]
            assert torch.allclose(result.theta[t], before, rtol=0, atol=1e-15)
            assert result.metrics[t]["counted"] == 0
            assert "meta_loss" not in result.metrics[t]
            assert result.metrics[t].finite
        assert all("meta_loss" in result.metrics[t] for t in full)

    def test_who_is_not_counted_keeps_the_state(self) -> None:
        engine = engine_for(ALGORITHM, VALUES, MODEL, CHUNKED, Participation(0.4))
        state, nodes = engine.start(MODEL.theta)
        before = {n: leaf.clone() for n, leaf in nodes["dual"].items()}
        engine.round(state, nodes, 1)
        counted = Participation(0.4).counted(5, 1, engine._draws).tolist()
        assert len(counted) == 2
        moved = [
            any(not torch.equal(leaf[i], before[n][i]) for n, leaf in nodes["dual"].items())
            for i in range(5)
        ]
        assert [i for i in range(5) if moved[i]] == counted

    @pytest.mark.parametrize("layout", ["batched-3", "loop"])
    def test_batches_and_masks_are_drawn_anew_in_every_round(self, layout: str) -> None:
        for model, inner in (
            (MODEL, Adaptation(0.1, batch_size=1)),
            (double(dropping()), Adaptation(0.1)),
        ):
            engine = engine_for(ADMMFedMeta(inner), VALUES, model, LAYOUTS[layout])
            ends = [
                flat(engine.round(*engine.start(model.theta), number).state.theta)
                for number in (1, 2, 1)
            ]
            assert torch.equal(ends[0], ends[2])
            assert not torch.equal(ends[0], ends[1])

    def test_losses_are_weighted_and_residuals_rooted(self) -> None:
        sums = {"a_loss": 3.0, "primal_squared": 9.0, "b": 5.0}
        tensors = {name: torch.tensor(value) for name, value in sums.items()}
        values = readable(tensors, torch.tensor(0.5))
        assert {name: float(value) for name, value in values.items()} == {
            "a_loss": 6.0,
            "primal_residual": 3.0,
            "b": 5.0,
        }

    def test_states_are_no_tensors_of_the_caller(self) -> None:
        """A checkpoint is read into them."""
        model = double(mlp())
        state, _ = engine_for(ALGORITHM, VALUES, model, CHUNKED).start(model.theta)
        for leaves in (state.theta, *state.memory.values()):
            for name, leaf in leaves.items():
                assert leaf.data_ptr() != model.theta[name].data_ptr()

    def test_resuming_does_not_write_to_the_initial_model(self, tmp_path: Path) -> None:
        initial = {n: leaf.float() for n, leaf in MODEL.theta.items()}
        before = flat(initial)
        settings = TrainingSettings(rounds=2, checkpoint_every=1)
        for resume in (False, True):
            train(
                VALUES,
                mlp().float(),
                ALGORITHM,
                settings,
                start=initial,
                folder=tmp_path / "run",
                resume=resume,
            )
            assert torch.equal(flat(initial), before)

    def test_the_initial_model_is_not_written_to(self) -> None:
        model = double(mlp())
        before = flat(model.theta)
        result, _ = run(ALGORITHM, model)
        assert torch.equal(flat(model.theta), before)
        assert not torch.equal(result.theta[-1], before)


class TestReading:
    def test_is_a_mapping_that_leaves_the_last_value_out(self) -> None:
        values = torch.tensor([1.5, 2.5, 0.0])
        reading = RoundMetrics(["a", "b"], values, {"counted": 3}, None)
        assert isinstance(reading, Mapping)
        assert dict(reading) == {"counted": 3, "a": 1.5, "b": 2.5}
        assert {**reading} == dict(reading)
        assert len(reading) == 3
        assert reading["b"] == 2.5
        assert reading.finite
        with pytest.raises(KeyError):
            reading["c"]

    def test_is_read_at_the_first_look(self) -> None:
        waits = []

        class Arrival:
            def synchronize(self) -> None:
                waits.append("waited")
                values.copy_(torch.tensor([7.0, 0.0]))

        values = torch.zeros(2)
        reading = RoundMetrics(["a"], values, {}, Arrival())
        assert waits == []
        assert reading["a"] == 7.0
        assert reading.finite
        assert waits == ["waited"]

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_knows_what_is_not_finite(self, bad: float) -> None:
        fine = RoundMetrics(["a"], torch.tensor([1.0, 0.0]), {}, None)
        metric = RoundMetrics(["a"], torch.tensor([bad, 0.0]), {}, None)
        theta = RoundMetrics(["a"], torch.tensor([1.0, bad]), {}, None)
        assert (fine.finite, metric.finite, theta.finite) == (True, False, False)
        assert dict(theta) == {"a": 1.0}

    def test_of_one_of_several(self) -> None:
        values = torch.tensor([[1.0, 0.0], [2.0, float("nan")]])
        readings = RoundMetrics(["a"], values, {"counted": 5}, None)
        assert [dict(readings.of(i)) for i in (0, 1)] == [
            {"counted": 5, "a": 1.0},
            {"counted": 5, "a": 2.0},
        ]
        assert [readings.of(i).finite for i in (0, 1)] == [True, False]

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
    def test_parameters_that_are_not_finite_show(self, bad: float) -> None:
        @dataclass(frozen=True)
        class Broken(FedAvg):
            def platform_step(self, state: Any, total: Any, fleet: Any) -> Any:
                state, metrics = super().platform_step(state, total, fleet)
                bias = state.theta["0.bias"] + torch.tensor([0, bad, 0])
                return replace(state, theta={**state.theta, "0.bias": bias}), metrics

        first = run(Broken(), MODEL, rounds=1)[0].metrics[0]
        assert not first.finite
        assert all(abs(value) < 1e9 for value in first.values()), "no number of the round shows it"

    def test_numbers_that_are_not_finite_show(self) -> None:
        @dataclass(frozen=True)
        class Broken(FedAvg):
            def node_step(self, *arguments: Any) -> Any:
                contribution, node = super().node_step(*arguments)
                loss = contribution.metrics["local_loss"] * float("inf")
                return contribution._replace(metrics={"local_loss": loss}), node

        assert not run(Broken(), MODEL, rounds=1)[0].metrics[0].finite


class TestThreads:
    @pytest.mark.parametrize("patience", [-1, 0, float("inf")], ids=["first", "second", "never"])
    def test_any_number_gives_the_same_bits(
        self, patience: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(recording, "_PATIENCE", patience)
        model, algorithm = (
            double(dropping()),
            replace(ALGORITHM, inner=Adaptation(0.1, 1, "all", 2)),
        )
        results = []
        for threads in (1, 2, 3):
            execution = replace(CHUNKED, chunk=3, threads=threads)
            result, engine = run(algorithm, model, execution, MANY, 4)
            assert bool(engine._sum._recorded) == (patience < 1)
            assert engine.mapping.pool is not None
            results.append(everything(result))
        assert results[0] == results[1] == results[2]

    @pytest.mark.usefixtures("early")
    def test_recordings_run_side_by_side(self) -> None:
        execution, data = replace(CHUNKED, chunk=1, threads=2), classification(((2, 2),) * 4)
        engine = engine_for(FedAvg(), data, MODEL, execution)
        state, nodes = engine.start(MODEL.theta)
        engine.round(state, nodes, 1)
        (ready,) = engine._sum._recorded.values()
        meeting = threading.Barrier(2, timeout=20)

        def met(*arguments: Any) -> Any:
            meeting.wait()  # would break if one waited for the other to end
            return ready.call(*arguments)

        for key in engine._sum._recorded:
            engine._sum._recorded[key] = replace(ready, call=met)
        engine.round(state, nodes, 2)

    def test_plain_calls_run_alone_and_on_one_core(self) -> None:
        engine = engine_for(FedAvg(), MANY, MODEL, replace(CHUNKED, chunk=1, threads=3))
        running, most, cores, where = [0], [0], set(), set()
        function = engine._sum._function

        def watched(*arguments: Any) -> Any:
            running[0] += 1
            most[0] = max(most[0], running[0])
            cores.add(torch.get_num_threads())
            where.add(threading.current_thread() is threading.main_thread())
            result = function(*arguments)
            running[0] -= 1
            return result

        engine._sum._function = watched
        engine.round(*engine.start(MODEL.theta), 1)
        assert most == [1]
        assert cores == {1}
        assert where == {False}

    @pytest.mark.parametrize(("most", "threads"), [(2**17, 1), (1, 3)])
    def test_the_platforms_step_of_a_small_model_has_one_thread(
        self, most: int, threads: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("fedmeta.engine.machine._SMALL", most)
        execution = replace(CHUNKED, threads=3)
        engine, seen = engine_for(FedAvg(), MANY, MODEL, execution), []
        function = engine._platform._function

        def watched(*arguments: Any) -> Any:
            seen.append(torch.get_num_threads())
            return function(*arguments)

        engine._platform._function = watched
        with machine(execution):
            engine.round(*engine.start(MODEL.theta), 1)
            assert torch.get_num_threads() == 3
        assert seen == [threads]

    @pytest.mark.usefixtures("early")
    @pytest.mark.parametrize("fails", [False, True])
    def test_nothing_runs_beside_a_plain_call_or_after_the_round(self, fails: bool) -> None:
        """Chunks of one node: the third is called plainly among recordings, and may fail."""
        data = classification(((2, 2),) * 6)
        engine = engine_for(FedAvg(), data, MODEL, replace(CHUNKED, chunk=1, threads=2))
        state, nodes = engine.start(MODEL.theta)
        engine.round(state, nodes, 1)
        ready, running, beside = engine._sum.ready, set(), []

        def mixed(*inputs: Any) -> Any:
            how, place = ready(*inputs), int(inputs[3].position)

            def call(*arguments: Any) -> Any:
                running.add(place)
                if fails and place == 2:
                    time.sleep(0.02)
                    running.discard(place)
                    raise ValueError("in a worker")
                time.sleep(0.1)
                if place == 2:
                    beside.append(running - {2})
                result = how.call(*arguments)
                running.discard(place)
                return result

            return replace(how, call=call, concurrent=fails or place != 2)

        engine._sum.ready = mixed
        if fails:
            with pytest.raises(ValueError, match="in a worker"):
                engine.round(state, nodes, 2)
        else:
            engine.round(state, nodes, 2)
            assert beside == [set()]
        assert not running

    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.parametrize("patience", [-1, float("inf")], ids=["recorded", "plain"])
    def test_an_error_surfaces_and_its_chunk_stays_as_it_was(
        self, threads: int, patience: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(recording, "_PATIENCE", patience)
        engine = engine_for(ALGORITHM, MANY, MODEL, replace(CHUNKED, threads=threads))
        expected = everything(trace(engine, MODEL, 3))
        state, nodes = engine.start(MODEL.theta)
        before = {n: leaf.clone() for n, leaf in nodes["dual"].items()}
        ready = engine._sum.ready

        def failing(*given: Any) -> Any:
            how = ready(*given)

            def call(*arguments: Any) -> Any:
                if 4 in arguments[3].position:
                    raise ValueError("in a worker")
                return how.call(*arguments)

            return replace(how, call=call)

        with monkeypatch.context() as patch:
            patch.setattr(engine._sum, "ready", failing)
            with pytest.raises(ValueError, match="in a worker"):
                engine.round(state, nodes, 1)
        for name, leaf in nodes["dual"].items():
            assert torch.equal(leaf[4:], before[name][4:]), "neither that chunk nor a later one"
        assert not torch.equal(nodes["dual"]["0.weight"][:4], before["0.weight"][:4])
        assert everything(trace(engine, MODEL, 3)) == expected


def out_of_memory(kind: str) -> Exception:
    if kind == "torch":
        return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    if kind == "python":
        return MemoryError()
    return RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")


def crowded(engine: LocalEngine, most: int, error: Exception, when: int = 1) -> list[int]:
    """Let chunks of more than `most` nodes fail from a round on; returns the sizes that came."""
    sizes: list[int] = []
    function = engine._sum._function

    def call(*given: Any) -> Any:
        _, _, _, standing, moment, _ = given
        sizes.append(len(standing.weight))
        if sizes[-1] > most and moment >= when:
            raise error
        return function(*given)

    engine._sum._function = call
    return sizes


class TestOutOfMemory:
    @pytest.mark.parametrize("kind", ["torch", "python", "cpu"])
    @pytest.mark.parametrize(("threads", "most"), [(1, 2), (2, 2), (2, 1)])
    def test_chunks_shrink_and_nobody_is_counted_twice(
        self, kind: str, threads: int, most: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        execution = replace(CHUNKED, chunk=4, threads=threads)
        expected, _ = run(ALGORITHM, MODEL, execution, MANY, 4)
        engine = engine_for(ALGORITHM, MANY, MODEL, execution)
        sizes = crowded(engine, most, out_of_memory(kind), when=2)
        with caplog.at_level(logging.WARNING, "fedmeta"):
            got = trace(engine, MODEL, 4)
        assert engine.chunk == most
        assert sizes[:3] == [4, 4, 1]
        last = {2: [2, 2, 2, 2, 1], 1: [1] * 9}[most]
        assert sizes[-len(last) :] == last, "every node once"
        for mine, theirs in zip(got.theta, expected.theta, strict=True):
            assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)
        for slot, leaves in got.nodes.items():
            for name, leaf in leaves.items():
                assert torch.allclose(leaf, expected.nodes[slot][name], rtol=0, atol=1e-12)
        for mine, theirs in zip(got.metrics, expected.metrics, strict=True):
            assert dict(mine) == pytest.approx(dict(theirs), abs=1e-12)
        notes = engine.notes()
        assert len(notes) == {2: 1, 1: 2}[most]
        assert f"from here on {most} nodes are computed at once" in notes[-1]
        assert engine.notes() == []
        assert [record.getMessage() for record in caplog.records] == notes

    def test_in_the_middle_of_a_round(self) -> None:
        """Chunks before the one that failed stay counted, and are not computed again."""
        expected, _ = run(ALGORITHM, MODEL, replace(CHUNKED, chunk=4), MANY, 1)
        engine = engine_for(ALGORITHM, MANY, MODEL, replace(CHUNKED, chunk=4))
        function, seen = engine._sum._function, []

        def call(*given: Any) -> Any:
            places = given[3].position.tolist()
            if len(places) > 2 and places[0] == 4:
                raise out_of_memory("torch")
            seen.append(places)
            return function(*given)

        engine._sum._function = call
        got = trace(engine, MODEL, 1)
        assert seen == [[0, 1, 2, 3], [4, 5], [6, 7], [8]]
        assert torch.allclose(got.theta[0], expected.theta[0], rtol=0, atol=1e-12)

    def test_what_was_computed_at_once_is_halved(self) -> None:
        """Also where fewer nodes were counted, or a rank has fewer, than a chunk may take."""
        engine = engine_for(ALGORITHM, MANY, MODEL, replace(CHUNKED, chunk=100))
        sizes = crowded(engine, 5, out_of_memory("torch"))
        trace(engine, MODEL, 1)
        assert sizes == [9, 5, 4]
        assert len(engine.notes()) == 1

    def test_recordings_are_dropped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recording, "_PATIENCE", 0)
        execution = replace(CHUNKED, chunk=4)
        expected, _ = run(FedAvg(), MODEL, execution, MANY, 4)
        engine = engine_for(FedAvg(), MANY, MODEL, execution)
        state, nodes = engine.start(MODEL.theta)
        for number in (1, 2):
            state, nodes, _ = engine.round(state, nodes, number)
        recorded = dict(engine._sum._recorded)
        assert recorded

        def full(*arguments: Any) -> Any:
            raise out_of_memory("cpu")

        for key, ready in recorded.items():
            engine._sum._recorded[key] = replace(ready, call=full)
        for number in (3, 4):
            state, nodes, _ = engine.round(state, nodes, number)
        assert engine.chunk == 2
        assert engine._sum._recorded
        assert all(ready.call is not full for ready in engine._sum._recorded.values())
        assert torch.allclose(flat(state.theta), expected.theta[-1], rtol=0, atol=1e-12)

    @pytest.mark.parametrize("path", ["batched", "loop"])
    def test_when_not_even_one_node_fits(self, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*arguments: Any) -> Any:
            raise out_of_memory("torch")

        monkeypatch.setattr(ADMMFedMeta, "node_step", full)
        chunk = 4 if path == "batched" else 1
        engine = engine_for(ALGORITHM, VALUES, MODEL, replace(CHUNKED, path=path, chunk=chunk))
        with pytest.raises(SettingError, match=r"not even one node fits the memory of cpu \(CUDA"):
            engine.round(*engine.start(MODEL.theta), 1)

    @pytest.mark.parametrize("path", ["batched", "loop"])
    def test_other_errors_are_not_swallowed(
        self, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def wrong(*arguments: Any) -> Any:
            raise RuntimeError("shapes do not match")

        monkeypatch.setattr(ADMMFedMeta, "node_step", wrong)
        chunk = 4 if path == "batched" else 1
        engine = engine_for(ALGORITHM, VALUES, MODEL, replace(CHUNKED, path=path, chunk=chunk))
        with pytest.raises(RuntimeError, match="shapes do not match"):
            engine.round(*engine.start(MODEL.theta), 1)
        assert engine.chunk == chunk
        assert engine.notes() == []

    @pytest.mark.parametrize(
        "every",
        [
            1,
            0,
        ],
    )
    def test_the_note_is_in_the_record_and_in_the_log(
        self,
        every: int,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        engines: list[LocalEngine] = []
        begin = LocalEngine.start

        def start(engine: LocalEngine, theta: Any) -> Any:
            if engine.fleet.nodes == len(MANY.sources):  # not that of a trial
                crowded(engine, 2, out_of_memory("cpu"), when=3)
                engines.append(engine)
            return begin(engine, theta)

        monkeypatch.setattr(LocalEngine, "start", start)
        settings = TrainingSettings(rounds=4, evaluate_every=every)
        execution = Execution(path="batched", chunk=4, threads=1)
        with caplog.at_level(logging.WARNING, "fedmeta"):
            run = train(
                MANY,
                ModelSettings("mlp", hidden=(3,)),
                ALGORITHM,
                settings,
                execution=execution,
                folder=tmp_path / "run",
            )
        assert engines[-1].chunk == 2
        assert ["note" in record for record in run.history] == [False, False, True, False]
        assert "memory ran out" in run.history[2]["note"]
        assert RunFolder.open(tmp_path / "run").history()[2]["note"] == run.history[2]["note"]
        assert "memory ran out" in caplog.text


class TestPrecision:
    settings = TrainingSettings(rounds=25, evaluate_every=0)

    def trained(self, **settings: Any) -> Any:
        execution = Execution(threads=1, **settings)
        model = ModelSettings("mlp", hidden=(4,))
        algorithm = ADMMFedMeta(Adaptation(0.2), 0.3)
        return train(VALUES, model, algorithm, self.settings, execution=execution)

    @pytest.mark.parametrize("path", ["batched", "loop"])
    def test_half_precision_trains(self, path: str) -> None:
        half, full = (self.trained(path=path, precision=p) for p in ("bf16", "full"))
        losses = [record["meta_loss"] for record in half.history]
        assert losses[-1] < 0.8 * losses[0]
        assert all(leaf.dtype == torch.float32 for leaf in half.meta_model.theta.values())
        assert losses[0] == pytest.approx(full.history[0]["meta_loss"], rel=0.02)
        assert losses[-1] != full.history[-1]["meta_loss"]

    def test_a_cpu_rounds_no_factors(self) -> None:
        rounded, full = (self.trained(path="batched", precision=p) for p in ("tf32", "full"))
        assert torch.equal(flat(rounded.meta_model.theta), flat(full.meta_model.theta))

    def test_a_fixed_order_of_sums_for_the_run_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        seen = []
        step = ADMMFedMeta.platform_step

        def watched(*arguments: Any) -> Any:
            seen.append(torch.are_deterministic_algorithms_enabled())
            return step(*arguments)

        monkeypatch.setattr(ADMMFedMeta, "platform_step", watched)
        ordered = self.trained(path="batched", deterministic=True)
        assert all(seen)
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.equal(
            flat(ordered.meta_model.theta), flat(self.trained(path="batched").meta_model.theta)
        )
        assert not seen[-1]

    def test_single_against_double_precision_after_a_round(self) -> None:
        single = functionalise(mlp().float())
        for path, chunk in (("batched", 3), ("batched", 100), ("loop", 1)):
            ends = []
            for model, dtype in ((single, "float32"), (MODEL, "float64")):
                execution = Execution(dtype=dtype, path=path, chunk=chunk, threads=1)
                ends.append(run(ALGORITHM, model, execution, rounds=1)[0].theta[0].double())
            assert (ends[0] - ends[1]).norm() <= 1e-4 * ends[1].norm()


class TestSeveralCohorts:
    def engine(self, *cohorts: Cohort, **settings: Any) -> LocalEngine:
        execution = replace(CHUNKED, **settings)
        layout = Layout(execution, Objective(MODEL, cross_entropy))
        return LocalEngine(ALGORITHM, cohorts, layout)

    def test_each_is_as_if_it_were_alone(self) -> None:
        other = ((1, 2), (6, 1), (2, 2), (3, 7), (1, 1))  # of other sizes: padded to one shape
        cohorts = [
            Cohort(classification(seed=1), PLAIN, 1),
            Cohort(classification(other, seed=2), PLAIN, 2),
        ]
        engine = self.engine(*cohorts)
        theta = {n: torch.stack([leaf, 2 * leaf]) for n, leaf in MODEL.theta.items()}
        state, nodes = engine.start(theta)
        for number in (1, 2, 3):
            state, nodes, metrics = engine.round(state, nodes, number)
        for place, cohort in enumerate(cohorts):
            alone = engine_for(ALGORITHM, cohort.federation, MODEL, CHUNKED, seed=cohort.seed)
            own, mine = alone.start({n: leaf[place] for n, leaf in theta.items()})
            for number in (1, 2, 3):
                own, mine, numbers = alone.round(own, mine, number)
            for name, leaf in own.theta.items():
                assert torch.allclose(state.theta[name][place], leaf, rtol=0, atol=1e-12)
                together = nodes["dual"][name][place]
                assert torch.allclose(together, mine["dual"][name], rtol=0, atol=1e-12)
            assert dict(metrics.of(place)) == pytest.approx(dict(numbers), abs=1e-12)

    def test_different_numbers_of_nodes(self) -> None:
        with pytest.raises(DataError, match="different numbers of source nodes"):
            self.engine(Cohort(VALUES, PLAIN, 0), Cohort(MANY, PLAIN, 0))

    def test_not_in_the_loop(self) -> None:
        with pytest.raises(SettingError, match="one by one"):
            self.engine(Cohort(VALUES, PLAIN, 0), path="loop", chunk=1)


@pytest.fixture
def streams() -> Iterator[None]:
    """Streams of a GPU that are not there: everything happens at once."""
    with mock.patch("torch.cuda.current_stream"):
        yield


def as_on_a_gpu(engine: LocalEngine) -> LocalEngine:
    """The same engine, which takes the ways of a GPU."""
    engine.table.copies, engine._can_be_one_piece = mock.Mock(), engine._ranks.size == 1
    engine._on_gpu, engine.mapping = True, CudaMapping(engine._sum)
    return engine


@pytest.mark.usefixtures("streams")
class TestWaysOfAGPU:
    def rank(self, ranks: Ranks, some: Participation) -> LocalEngine:
        execution = replace(CHUNKED, chunk=100)
        layout = Layout(execution, Objective(MODEL, cross_entropy))
        return LocalEngine(ALGORITHM, Cohort(VALUES, PLAIN, 0), layout, some, ranks)

    @pytest.mark.parametrize("chunk", [2, 100])
    @pytest.mark.parametrize("some", [Participation(), Participation(0.6)])
    def test_in_one_piece_or_with_chunks_fetched_ahead(
        self, chunk: int, some: Participation
    ) -> None:
        execution = replace(CHUNKED, chunk=chunk)
        wanted, _ = run(ALGORITHM, MODEL, execution, rounds=4, participation=some)
        engine = engine_for(ALGORITHM, VALUES, MODEL, execution, some)
        got = trace(as_on_a_gpu(engine), MODEL, 4)
        assert everything(got) == everything(wanted)

    def test_without_room_for_the_whole(self) -> None:
        wanted, _ = run(ALGORITHM, MODEL, replace(CHUNKED, chunk=5), rounds=3)
        engine = as_on_a_gpu(engine_for(ALGORITHM, VALUES, MODEL, replace(CHUNKED, chunk=5)))
        with mock.patch.object(engine, "_whole", side_effect=out_of_memory("torch")) as whole:
            whole.forget = mock.Mock()
            got = trace(engine, MODEL, 3)
        assert whole.call_count == 1
        assert engine.chunk == 3
        assert len(engine.notes()) == 1
        for mine, theirs in zip(got.theta, wanted.theta, strict=True):
            assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)

    def test_a_rank_takes_the_counted_of_its_own(self) -> None:
        some = Participation(0.6)  # three of five; the first rank has three
        here, there = Ranks(0, 2), Ranks(0, 2)
        ends = []
        with mock.patch.object(Ranks, "sum", side_effect=lambda total: total):
            for engine in (as_on_a_gpu(self.rank(here, some)), self.rank(there, some)):
                state, nodes = engine.start(MODEL.theta)
                sets = [some.counted(5, t, engine._draws).tolist() for t in range(1, 20)]
                number = next(t for t, who in enumerate(sets, 1) if who != [0, 1, 2])
                result = engine.round(state, nodes, number)
                ends.append((flat(result.state.theta), flat(result.nodes["dual"])))
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(*ends, strict=True))
