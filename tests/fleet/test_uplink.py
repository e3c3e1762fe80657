"""The way to the sum, in a whole local run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedmeta.algorithms import ADMMFedMeta, FedAvg
from fedmeta.cli.train import promise_line
from fedmeta.config.execution import Execution
from fedmeta.config.training import TrainingSettings
from fedmeta.core.errors import RunFolderError, SettingError
from fedmeta.core.objective import Adaptation
from fedmeta.core.run_folder import RunFolder
from fedmeta.data import DataSettings, Federation, load
from fedmeta.data.scaling import fit_scaling
from fedmeta.models.networks import ModelSettings
from fedmeta.training.run import Run
from fedmeta.training.train import train
from fedmeta.uplink.compression import Compression
from fedmeta.uplink.guard import Guard
from fedmeta.uplink.participation import Participation
from fedmeta.uplink.privacy import Privacy
from fedmeta.uplink.uplink import Uplink, refusals, with_secrets
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


def run(federation: Federation, uplink: Uplink, rounds: int = 3, **more: Any) -> Run:
    settings = {"execution": Execution(threads=1, path="batched"), **more}
    training = TrainingSettings(rounds=rounds, evaluate_every=0, checkpoint_every=1)
    return train(federation, ModelSettings("mlp"), FIXED, training, uplink=uplink, **settings)


def theta(run: Run) -> torch.Tensor:
    return torch.cat([leaf.reshape(-1) for leaf in run.meta_model.theta.values()])


@pytest.mark.parametrize("name", WAYS)
def test_chunks_do_not_matter_but_for_the_guard(federation: Federation, name: str) -> None:
    if WAYS[name].guard.outliers != "keep":
        pytest.skip("nodes are judged among those that are computed together")
    whole = run(federation, WAYS[name])
    parts = run(federation, WAYS[name], execution=Execution(threads=1, path="batched", chunk=3))
    assert torch.allclose(theta(whole), theta(parts), rtol=1e-4, atol=1e-6)
    if name != "8-bit":  # where a node that is computed otherwise may round otherwise
        single = run(federation, WAYS[name], execution=Execution(threads=1, path="loop"))
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


def test_secrets_change_the_noise_and_nothing_else(federation: Federation) -> None:
    def after(secret: bool, uplink: Uplink) -> torch.Tensor:
        execution = Execution(threads=1, path="batched")
        training = TrainingSettings(rounds=1)
        job = job_of(
            federation, ModelSettings("mlp"), FIXED, training, uplink=uplink, execution=execution
        )
        engine = job.engine()
        state, nodes = engine.start(job.model.theta)
        nodes = with_secrets(nodes) if secret else nodes
        return torch.cat(
            [x.reshape(-1) for x in engine.round(state, nodes, 1).state.theta.values()]
        )

    noisy, clipped = WAYS["local"], Uplink(privacy=Privacy("local", noise=0.0))
    assert torch.equal(after(False, noisy), after(False, noisy))
    assert not torch.equal(after(True, noisy), after(False, noisy))
    assert not torch.equal(after(True, noisy), after(True, noisy))
    assert torch.equal(after(True, clipped), after(False, clipped))


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
        "rounds": 3,
        "chance": 0.5,
    }
    assert about["privacy"]["noise"] > 0
    assert "meta_loss" not in found.history[-1]


def test_nothing_is_promised_where_the_platform_could_undo_the_noise(
    federation: Federation, tmp_path: Path
) -> None:
    noisy, folder = Uplink(privacy=Privacy("local", noise=6.4)), tmp_path / "run"
    about = run(federation, noisy, folder=folder).summary["settings"]["uplink"]
    assert about["promise"]["epsilon"] is None
    assert "invert" in promise_line(about)
    # Nor by a run of an older version, which has promised it.
    file = folder / "settings.json"
    file.write_text(
        file.read_text().replace(
            '"epsilon": null,\n        "why"', '"epsilon": 8.0,\n        "why"'
        )
    )
    assert '"epsilon": 8.0' in file.read_text()
    assert RunFolder.open(folder).settings()["settings"]["uplink"]["promise"]["epsilon"] is None
    older = {**about, "promise": {"epsilon": 8.0, "delta": 1e-5, "rounds": 3}}
    assert "8" not in promise_line(older)


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
