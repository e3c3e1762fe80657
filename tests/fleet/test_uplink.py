"""The way to the sum, in a whole local run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmeta.algorithms import ADMMFedMeta, FedAvg
from fedmeta.cli.train import promise_line
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core import secret_random
from fedmeta.core.errors import RunFolderError, SettingError
from fedmeta.core.objective import Adaptation
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.secret_random import SecretRandom
from fedmeta.data import DataSettings, Federation, load
from fedmeta.data.scaling import fit_scaling
from fedmeta.engine.local import LocalEngine
from fedmeta.engine.ranks import Ranks
from fedmeta.models.networks import ModelSettings
from fedmeta.training.run import Run
from fedmeta.training.train import train
from fedmeta.uplink.compression import Compression
from fedmeta.uplink.guard import Guard
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.privacy import NOISE, Privacy
from fedmeta.uplink.uplink import Uplink, refusals
from problems import job_of

FIXED = ADMMFedMeta(Adaptation(step_size=0.01), penalty=30.0, penalty_unit="weight")
WAYS = {
    "guard": Uplink(Guard("clip", 1.5)),
    "local": Uplink(privacy=Privacy("local", noise=0.1)),
    "central": Uplink(privacy=Privacy("central", noise=0.1)),
    "8-bit": Uplink(compression=Compression("8-bit")),
    "all": Uplink(Guard("reject"), Privacy("local", noise=0.1), Compression("top-k", 0.3)),
}


@pytest.fixture(scope="module")
def federation() -> Federation:
    return load(DataSettings("sinusoid", nodes=10), seed=0)


def clipped(privacy: Privacy) -> Privacy:
    return replace(privacy, noise=0.0)


def run(federation: Federation, uplink: Uplink, rounds: int = 3, **more: Any) -> Run:
    settings = {"execution": Execution(threads=1, path="batched"), **more}
    training = TrainingSettings(rounds=rounds, evaluate_every=0, checkpoint_every=1)
    return train(federation, ModelSettings("mlp"), FIXED, training, uplink=uplink, **settings)


def theta(run: Run) -> torch.Tensor:
    return torch.cat([leaf.reshape(-1) for leaf in run.meta_model.theta.values()])


@pytest.mark.parametrize("name", WAYS)
def test_chunks_do_not_matter_but_for_the_guard(
    federation: Federation, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if WAYS[name].guard.outliers != "keep":
        pytest.skip("nodes are judged among those that are computed together")
    if WAYS[name].privacy.on and WAYS[name].privacy.noise:  # noise is another every time
        monkeypatch.setitem(WAYS, name, replace(WAYS[name], privacy=clipped(WAYS[name].privacy)))
    # In double precision: a last bit of float32 may decide which way 8 bits round.
    batched = Execution(threads=1, path="batched", dtype="float64")
    whole = run(federation, WAYS[name], execution=batched)
    parts = run(federation, WAYS[name], execution=replace(batched, chunk=3))
    assert torch.allclose(theta(whole), theta(parts), rtol=1e-4, atol=1e-6)
    if name != "8-bit":  # where a node that is computed otherwise may round otherwise
        single = run(federation, WAYS[name], execution=replace(batched, path="loop"))
        assert torch.allclose(theta(whole), theta(single), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", WAYS)
def test_a_run_that_was_stopped_goes_on_as_it_would_have(
    federation: Federation, name: str, tmp_path: Path
) -> None:
    if WAYS[name].privacy.on:
        run(federation, WAYS[name], 2, folder=tmp_path / "run")
        with pytest.raises(RunFolderError, match=r"uplink\.promise"):  # ε was for so many rounds
            run(federation, WAYS[name], 4, folder=tmp_path / "run", resume=True)
        return
    whole = run(federation, WAYS[name], 4)
    run(federation, WAYS[name], 2, folder=tmp_path / "run")
    resumed = run(federation, WAYS[name], 4, folder=tmp_path / "run", resume=True)
    assert torch.equal(theta(whole), theta(resumed))


def test_compression_is_seen_in_the_bytes(federation: Federation) -> None:
    whole = run(federation, Uplink()).history[-1]["bytes_up"]
    short = run(federation, WAYS["8-bit"]).history[-1]["bytes_up"]
    assert short < 0.8 * whole  # a small model: names and sizes are most of what is left


def test_a_node_with_bad_numbers_is_refused_and_named(federation: Federation) -> None:
    inputs = federation.inputs.copy()
    bad = federation.sources[3]
    inputs[bad.support] = 1e30  # finite, but not for long
    spoiled = Federation(inputs, federation.labels, federation.task, federation.nodes)
    uplink = Uplink(Guard("reject", 1e6))  # other nodes differ by less
    job = job_of(
        spoiled,
        ModelSettings("mlp"),
        FIXED,
        TrainingSettings(rounds=2),
        scaling=fit_scaling(federation),
        uplink=uplink,
        execution=Execution(threads=1, path="batched"),
    )
    engine = job.engine()
    state, nodes = engine.start(job.model.theta)
    before = {name: leaf[3].clone() for name, leaf in nodes["dual"].items()}
    for number in (1, 2):
        result = engine.round(state, nodes, number)
        state = result.state
        assert result.metrics.finite
        assert dict(result.metrics)["refused"] == 1
    names = [node.name for node in spoiled.sources]
    assert refusals(nodes, names) == {bad.name: 2}
    for name, leaf in nodes["dual"].items():  # as if its uploads had been lost
        assert torch.equal(leaf[3], before[name])
        assert not torch.equal(leaf[2], torch.zeros_like(leaf[2]))


@pytest.mark.parametrize("dp", ["local", "central"])
def test_noise_depends_on_the_secret_and_on_nothing_else(federation: Federation, dp: str) -> None:
    def after(key: bytes | None, noise: float = 0.1) -> torch.Tensor:
        uplink = Uplink(privacy=Privacy(dp, noise=noise))  # type: ignore[arg-type]
        execution = Execution(threads=1, path="batched")
        training = TrainingSettings(rounds=1)
        job = job_of(
            federation, ModelSettings("mlp"), FIXED, training, uplink=uplink, execution=execution
        )
        parts = job.algorithm, job.cohort, job.layout, job.spec.participation, Ranks(), job.uplink
        engine = LocalEngine(*parts, secret=SecretRandom(key))
        state, nodes = engine.start(job.model.theta)
        return torch.cat(
            [x.reshape(-1) for x in engine.round(state, nodes, 1).state.theta.values()]
        )

    key = bytes(32)
    assert torch.equal(after(key), after(key))
    assert not torch.equal(after(key), after(bytes([1] * 32)))
    assert not torch.equal(after(None), after(None))
    assert torch.equal(after(None, 0.0), after(key, 0.0))


@pytest.mark.parametrize("name", ["local", "central"])
def test_a_private_run_differs_from_its_repeat_and_keeps_no_key(
    federation: Federation, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = run(federation, WAYS[name])
    key = bytes(range(100, 132))
    monkeypatch.setattr(secret_random, "fresh_key", lambda: key)
    whole = run(federation, WAYS[name], folder=tmp_path / "run")
    assert not torch.equal(theta(whole), theta(other))
    assert torch.equal(theta(whole), theta(run(federation, WAYS[name])))  # it is the key's noise
    files = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 4
    assert not any(form in file for file in files for form in (key, key.hex().encode()))


def test_the_promise_stands_in_the_record_of_the_run(federation: Federation) -> None:
    pytest.importorskip("dp_accounting")
    drawn = Participation(fraction=0.5, independent=True)
    found = run(federation, Uplink(privacy=Privacy("central", 4.0)), participation=drawn)
    about = found.summary["settings"]["uplink"]
    assert about["promise"]["epsilon"] == pytest.approx(4.0, rel=0.01)
    assert about["promise"] | {"epsilon": 0} == {
        "unit": "node",
        "epsilon": 0,
        "delta": 1e-5,
        "noise": NOISE,
        "rounds": 3,
        "chance": 0.5,
    }
    assert about["privacy"]["noise"] > 0
    assert "meta_loss" not in found.history[-1]


def test_a_run_with_the_noise_of_older_versions_promises_nothing(
    federation: Federation, tmp_path: Path
) -> None:
    pytest.importorskip("dp_accounting")
    noisy, folder = Uplink(privacy=Privacy("local", epsilon=8.0)), tmp_path / "run"
    about = run(federation, noisy, folder=folder).summary["settings"]["uplink"]
    assert about["promise"]["epsilon"] == pytest.approx(8.0, rel=0.01)
    assert about["privacy"]["noise"] > 0
    assert "ε = 8" in promise_line(about)
    assert "no run repeats it" in promise_line(about)
    # One from before does not say how its noise was drawn.
    file = folder / "settings.json"
    kept = [line for line in file.read_text().splitlines() if NOISE not in line]
    file.write_text("\n".join(kept))
    (folder / "manifest.json").unlink()  # nor had it one
    found = RunFolder.open(folder).settings()["settings"]["uplink"]
    assert found["promise"]["epsilon"] is None
    assert "inverted" in promise_line(found)
    older = {**about, "promise": {"epsilon": 8.0, "delta": 1e-5, "rounds": 3}}
    assert "ε = 8" not in promise_line(older)


def test_other_algorithms_go_the_same_way(federation: Federation) -> None:
    training = TrainingSettings(rounds=2)
    found = train(federation, ModelSettings("mlp"), FedAvg(), training, uplink=WAYS["all"])
    assert found.summary["status"] == "finished"


@pytest.mark.parametrize(
    ("uplink", "problem"),
    [
        ({"guard": Guard("reject"), "privacy": Privacy("central", 1.0)}, "move the median"),
        ({"privacy": Privacy("central", 1.0), "compression": Compression("8-bit")}, "residual"),
    ],
)
def test_what_cannot_be_had_together(uplink: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        Uplink(**uplink)


def test_what_an_algorithm_or_a_path_cannot_have(federation: Federation) -> None:
    training = TrainingSettings(rounds=1)
    with pytest.raises(SettingError, match="give a penalty as a number"):
        train(federation, ModelSettings("mlp"), ADMMFedMeta(), training, uplink=WAYS["local"])
    careless = Uplink(privacy=Privacy("local", noise=1.0, delta=0.5))
    with pytest.raises(SettingError, match="give a δ far below"):
        train(federation, ModelSettings("mlp"), FIXED, training, uplink=careless)
    loop = Execution(path="loop")
    with pytest.raises(SettingError, match="one by one"):
        train(
            federation,
            ModelSettings("mlp"),
            FIXED,
            training,
            uplink=WAYS["guard"],
            execution=loop,
        )
