"""The compiled nodes' half against the same in PyTorch, and where it is taken."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engines.test_chain import CLASSES, NETWORKS, SCOPES, fitting
from fedmeta.algorithms import ADMMFedMeta, Algorithm, FedMeta, PerFedAvg
from fedmeta.algorithms.algorithm import linear_step_of
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import FedmetaError, ModelError, SettingError
from fedmeta.core.objective import Adaptation, Objective
from fedmeta.data import Federation
from fedmeta.engine.chain.recognise import chain_of
from fedmeta.engine.cohort import Cohort
from fedmeta.engine.compiled import compiler
from fedmeta.engine.compiled.kernel import Kernel
from fedmeta.engine.compiled.nodes_half import CompiledHalf
from fedmeta.engine.layout import Layout, predictor
from fedmeta.engine.local import LocalEngine
from fedmeta.models.functional import functionalise
from fedmeta.models.losses import Balanced, Loss, cross_entropy, squared_error
from fedmeta.training.train import train
from fedmeta.uplink.guard import Guard
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.uplink import Uplink
from problems import PLAIN, Trace, classification, flat, paper_admm, regression

needs_compiler = pytest.mark.skipif(compiler.library("float64") is None, reason="no C compiler")
SIZES = ((4, 3), (2, 6), (5, 1), (3, 3), (1, 4), (20, 18), (2, 2))
DATA = classification(SIZES, shape=(2, 3), classes=CLASSES)
ADMM = paper_admm(Adaptation(0.3), 0.4)


def engine(
    algorithm: Algorithm,
    model: nn.Module,
    derivatives: str = "compiled",
    data: Federation = DATA,
    loss: Loss = cross_entropy,
    frozen: str = "",
    participation: Participation = Participation(),
    uplink: Uplink = Uplink(),
    **execution: object,
) -> tuple[LocalEngine, dict[str, Tensor]]:
    """An engine that is laid out as told, and θ¹."""
    chosen = Execution(**{"dtype": "float64", "path": "batched", "chunk": 3, **execution})
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.partition(".")[0] != frozen)
    functional = functionalise(model).to(torch.device("cpu"), chosen.torch_dtype)
    if isinstance(loss, Balanced):
        loss = loss.on(torch.device("cpu"), chosen.torch_dtype)
    chain = None if derivatives == "autograd" else chain_of(functional, loss)
    objective = Objective(predictor(functional, chosen), loss, draws=False, closed_form=chain)
    layout = Layout(replace(chosen, derivatives=derivatives), objective)
    made = LocalEngine(algorithm, Cohort(data, PLAIN, 0), layout, participation, uplink=uplink)
    assert isinstance(made._sum, CompiledHalf) == (derivatives == "compiled" and uplink == Uplink())
    return made, functional.theta


def after(algorithm: Algorithm, make: Callable[[], nn.Module], **options: object) -> Trace:
    """Three rounds."""
    torch.manual_seed(0)
    made, theta = engine(algorithm, make(), **options)
    state, nodes = made.start(theta)
    found = Trace([], [], [], state, nodes, [])
    for number in (1, 2, 3):
        found.state, found.nodes, metrics = made.round(found.state, found.nodes, number)
        found.theta.append(flat(found.state.theta))
        found.metrics.append(dict(metrics))
    return found


def assert_close(a: Trace, b: Trace, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    for mine, theirs in zip(a.theta, b.theta, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol)
    assert list(a.nodes) == list(b.nodes)
    for slot, leaves in a.nodes.items():
        torch.testing.assert_close(flat(leaves), flat(b.nodes[slot]), rtol=rtol, atol=atol)
    for mine, theirs in zip(a.metrics, b.metrics, strict=True):
        assert mine == pytest.approx(theirs, rel=max(rtol, 1e-10), abs=100 * atol)


def both(algorithm: Algorithm, make: Callable[[], nn.Module], **options: object) -> None:
    assert_close(
        after(algorithm, make, **options),
        after(algorithm, make, derivatives="closed-form", **options),
    )


@needs_compiler
class TestSameNumbers:
    @pytest.mark.parametrize("curvature", ["exact", "none"])
    @pytest.mark.parametrize(("network", "scope"), fitting())
    def test_networks_and_scopes(self, network: str, scope: str, curvature: str) -> None:
        both(
            paper_admm(Adaptation(0.3, scope=SCOPES[scope]), 0.4, curvature=curvature),
            NETWORKS[network],
        )

    @pytest.mark.parametrize("network", ["elu", "tanh", "without-bias"])
    def test_against_autograd(self, network: str) -> None:
        compiled = after(ADMM, NETWORKS[network])
        assert_close(compiled, after(ADMM, NETWORKS[network], derivatives="autograd"))

    @pytest.mark.parametrize("frozen", ["1", "3", "5"])
    def test_frozen_layers(self, frozen: str) -> None:
        both(ADMM, NETWORKS["elu"], frozen=frozen)

    def test_values(self) -> None:
        def make() -> nn.Module:
            return nn.Sequential(nn.Linear(2, 5), nn.Sigmoid(), nn.Linear(5, 1))

        both(ADMM, make, data=regression(), loss=squared_error)

    def test_weighted_classes(self) -> None:
        both(ADMM, NETWORKS["relu"], loss=Balanced.of([3, 2, 6, 1]))

    @pytest.mark.parametrize(
        "algorithm",
        [
            replace(ADMM, local_step_size=0.5),
            replace(ADMM, local_step_size=0.1, penalty_unit="weight"),
            replace(ADMM, dual_deviation=0.1),
            ADMMFedMeta(Adaptation(0.3, scope="head")),
            ADMMFedMeta(Adaptation(0.3), resplit="random"),
            PerFedAvg(Adaptation(0.3)),
            PerFedAvg(Adaptation(0.3), resplit="classes"),
            FedMeta(Adaptation(0.3)),
        ],
        ids=repr,
    )
    def test_algorithms(self, algorithm: Algorithm) -> None:
        both(algorithm, NETWORKS["tanh"])

    @pytest.mark.parametrize("shares", [{"fraction": 0.5}, {"lost": 0.4}])
    def test_some_of_the_nodes(self, shares: dict[str, float]) -> None:
        both(ADMM, NETWORKS["elu"], participation=Participation(**shares))

    @pytest.mark.parametrize("widths", [(1, 1, 2), (17, 33, 15), (16, 64, 16), (130, 20, 70, 3)])
    def test_widths_that_fill_no_vector_or_several(self, widths: tuple[int, ...]) -> None:
        data = classification(SIZES, shape=(widths[0],), classes=widths[-1])

        def make() -> nn.Module:
            layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
            return nn.Sequential(*(each for one in layers for each in (one, nn.ELU())))[:-1]

        both(ADMM, make, data=data)

    def test_float32(self) -> None:
        for network in ("elu", "tanh", "leaky"):
            found = [
                after(ADMM, NETWORKS[network], derivatives=how, dtype="float32")
                for how in ("compiled", "closed-form")
            ]
            assert_close(*found, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("size", [1e-3, 3.0, 300.0])
    def test_activations_far_from_zero_and_close_to_it(self, size: float) -> None:
        def large(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
            def made() -> nn.Module:
                model = make()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter *= size
                return model

            return made

        for network in ("elu", "tanh"):
            one = replace(ADMM, inner=Adaptation(1e-3, scope="head"))
            both(one, large(NETWORKS[network]))

    def test_a_network_that_diverged_is_noticed(self) -> None:
        def infinite() -> nn.Module:
            model = NETWORKS["elu"]()
            with torch.no_grad():
                next(model.parameters()).fill_(float("inf"))
            return model

        made, theta = engine(ADMM, infinite())
        assert not made.round(*made.start(theta), 1).metrics.finite

    def test_a_label_that_is_no_class(self) -> None:
        made, theta = engine(ADMM, NETWORKS["elu"]())
        state, nodes = made.start(theta)
        made.table._store._all.query.labels[2, 0] = CLASSES
        with pytest.raises(IndexError, match="a label is no class"):
            made.round(state, nodes, 1)


@needs_compiler
class TestSameBits:
    @pytest.mark.parametrize(
        "algorithm", [ADMM, ADMMFedMeta(Adaptation(0.3))], ids=["fixed", "divided-anew"]
    )
    def test_any_number_of_threads(self, algorithm: Algorithm) -> None:
        found = []
        for threads in (1, 2, 3):
            one = after(algorithm, NETWORKS["elu"], threads=threads, chunk=2)
            found.append([theta.tolist() for theta in one.theta])
        assert found[0] == found[1] == found[2]

    def test_samples_that_stay_and_samples_that_are_packed_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stays = after(ADMM, NETWORKS["elu"])
        monkeypatch.setattr("fedmeta.engine.node_table.fits_resident", lambda *_: False)
        packed = after(ADMM, NETWORKS["elu"])
        assert [t.tolist() for t in stays.theta] == [t.tolist() for t in packed.theta]
        assert torch.equal(flat(stays.nodes["dual"]), flat(packed.nodes["dual"]))

    def test_a_run_that_goes_on(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.ELU(), nn.Linear(5, 3))
        whole = trained(tmp_path / "whole", model, 4)
        trained(tmp_path / "parts", model, 2)
        parts = trained(tmp_path / "parts", model, 4, resume=True)
        assert torch.equal(whole, parts)

    def test_repeats_side_by_side_are_runs_of_their_own(self) -> None:
        torch.manual_seed(0)
        chosen = Execution(dtype="float64", path="batched", chunk=3, derivatives="compiled")
        model = functionalise(NETWORKS["elu"]().double())
        chain = chain_of(model, cross_entropy)
        for algorithm in (ADMM, ADMMFedMeta(Adaptation(0.3))):
            layout = Layout(
                chosen,
                Objective(predictor(model, chosen), cross_entropy, draws=False, closed_form=chain),
            )
            cohorts = [Cohort(DATA, PLAIN, seed) for seed in (0, 1)]
            side = LocalEngine(algorithm, cohorts, layout)
            assert isinstance(side._sum, CompiledHalf)
            start = {name: torch.stack([leaf, 2 * leaf]) for name, leaf in model.theta.items()}
            state, nodes = side.start(start)
            for number in (1, 2):
                state, nodes, _ = side.round(state, nodes, number)
            for repeat, cohort in enumerate(cohorts):
                alone = LocalEngine(algorithm, cohort, layout)
                mine, own = alone.start({n: leaf[repeat] for n, leaf in start.items()})
                for number in (1, 2):
                    mine, own, _ = alone.round(mine, own, number)
                for name, leaf in mine.theta.items():
                    torch.testing.assert_close(state.theta[name][repeat], leaf, rtol=1e-12, atol=0)


def trained(folder: Path, model: nn.Module, rounds: int, **options: object) -> Tensor:
    """θ of a run of the default algorithm on a small federation."""
    settings = TrainingSettings(rounds=rounds, checkpoint_every=1)
    algorithm = paper_admm(Adaptation(0.1), 0.5)
    done = train(classification(), model, algorithm, settings, folder=folder, **options)
    stored = (folder / "settings.json").read_text()
    assert '"derivatives": "compiled"' in stored
    return flat(done.meta_model.theta)


class TestWhereItIsTaken:
    def test_a_node_step_of_ones_own(self) -> None:
        class Own(PerFedAvg):
            def node_step(self, *arguments: object) -> object:
                return super().node_step(*arguments)

        one = torch.ones(1)
        assert linear_step_of(PerFedAvg(), one, one) is not None
        assert linear_step_of(Own(), one, one) is None

    @pytest.mark.parametrize(
        "algorithm",
        [
            PerFedAvg(local_steps=2),
            replace(ADMM, local_steps=2),
            replace(ADMM, rule="stale"),
        ],
        ids=repr,
    )
    def test_several_gradients_are_none(self, algorithm: Algorithm) -> None:
        one = torch.ones(1)
        assert linear_step_of(algorithm, one, one) is None

    @needs_compiler
    def test_who_is_judged_is_looked_at(self) -> None:
        after(ADMM, NETWORKS["elu"], uplink=Uplink(Guard("reject")))  # asserts in `engine`


@pytest.fixture
def anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing is compiled yet; where it would be kept."""
    monkeypatch.setenv("FEDMETA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    tmp_path.chmod(0o700)
    compiler.found.cache_clear()
    yield tmp_path / "cache" / "compiled"
    compiler.found.cache_clear()


def executable(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


class TestCompiler:
    @needs_compiler
    def test_it_is_compiled_once(self, anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert compiler.library("float32") is not None
        (kept,) = anew.iterdir()
        assert stat.S_IMODE(anew.stat().st_mode) == 0o700
        first = kept.stat().st_mtime_ns
        compiler.found.cache_clear()
        monkeypatch.setattr(compiler, "_compiled", lambda *_: pytest.fail("again"))
        assert compiler.library("float32") is not None
        assert kept.stat().st_mtime_ns == first

    @needs_compiler
    def test_a_file_that_others_can_write_is_not_run(self, anew: Path) -> None:
        compiler.library("float32")
        (kept,) = anew.iterdir()
        kept.write_bytes(b"not ours")
        kept.chmod(0o722)
        compiler.found.cache_clear()
        assert compiler.library("float32") is not None
        assert kept.read_bytes() != b"not ours", "compiled again"

    @needs_compiler
    def test_a_damaged_file_is_compiled_again(self, anew: Path) -> None:
        compiler.library("float32")
        (kept,) = anew.iterdir()
        kept.unlink()
        kept.write_bytes(b"half a fi")
        kept.chmod(0o700)
        compiler.found.cache_clear()
        assert compiler.library("float32") is not None

    @needs_compiler
    @pytest.mark.parametrize("reason", ["off", "others", "a-file"])
    def test_without_a_folder_nothing_is_kept(
        self, anew: Path, reason: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if reason == "off":
            monkeypatch.setenv("FEDMETA_CACHE", "off")
        elif reason == "others":  # who may rename what is above may put another folder there
            anew.parent.mkdir()
            anew.parent.chmod(0o777)
        else:
            anew.parent.write_text("no folder")
        assert compiler.library("float32") is not None
        assert not anew.exists() or not list(anew.iterdir())

    @pytest.mark.parametrize("script", [None, "exit 1", '[ "$1" = --version ] || exit 1'])
    def test_without_a_compiler_pytorch_computes(
        self, anew: Path, script: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        empty = tmp_path / "bin"
        empty.mkdir()
        if script is not None:
            monkeypatch.setenv("CC", str(executable(empty / "broken", script)))
        monkeypatch.setenv("PATH", f"{empty}" if script is None else os.environ["PATH"])
        assert compiler.library("float64") is None
        folder, algorithm = tmp_path / "run", paper_admm(Adaptation(0.1))
        model = nn.Sequential(nn.Linear(3, 5), nn.ELU(), nn.Linear(5, 3))
        train(classification(), model, algorithm, rounds=2, folder=folder)
        assert '"derivatives": "closed-form"' in (folder / "settings.json").read_text()
        assert not anew.exists() or not list(anew.iterdir())

    @needs_compiler
    def test_a_run_that_began_with_one_says_that_there_is_none(
        self, anew: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = nn.Sequential(nn.Linear(3, 5), nn.ELU(), nn.Linear(5, 3))
        trained(tmp_path / "run", model, 2)
        compiler.found.cache_clear()
        monkeypatch.setattr(compiler, "_compiler", lambda: None)
        with pytest.raises(SettingError, match=r"no C compiler .*install one") as told:
            trained(tmp_path / "run", model, 4, resume=True)
        assert isinstance(told.value, FedmetaError)
        assert "\n" not in str(told.value)

    def test_importing_compiles_nothing(self, tmp_path: Path) -> None:
        asked = tmp_path / "asked"
        told = executable(tmp_path / "cc", f"touch {asked}")
        environment = {**os.environ, "CC": str(told)}
        command = [sys.executable, "-c", "import fedmeta, fedmeta.engine.local"]
        subprocess.run(command, env=environment, check=True, timeout=300)
        assert not asked.exists()


@needs_compiler
def test_code_that_computes_something_else_is_refused_before_round_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = Kernel.__call__

    def wrong(self: Kernel, *given: Any) -> Any:
        sums, scalars = call(self, *given)
        return {"": 1.01 * sums[""]}, scalars

    monkeypatch.setattr(Kernel, "__call__", wrong)
    network = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    settings = TrainingSettings(rounds=1, evaluate_every=0)
    with pytest.raises(ModelError, match="not compute what PyTorch does"):
        train(DATA, network, ADMM, settings)
    train(DATA, network, ADMM, settings, execution=Execution(derivatives="closed-form"))
