"""Rounds by hand come to what `train` comes to; callbacks see, add and stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedmeta
from fedmeta.core.errors import SettingError
from fedmeta.core.run_folder import RunFolder

NETWORK = fedmeta.ModelSettings("mlp", hidden=(6,))


@pytest.fixture(scope="module")
def federation() -> fedmeta.Federation:
    return fedmeta.load(fedmeta.DataSettings("sinusoid", nodes=10), seed=0)


def test_rounds_by_hand(federation: fedmeta.Federation) -> None:
    sim = fedmeta.Simulation(federation, NETWORK, seed=3)
    state = sim.start()
    for _ in range(4):
        state, metrics = sim.round(state)
    run = fedmeta.train(federation, NETWORK, rounds=4, seed=3)
    mine, theirs = sim.meta_model(state).theta, run.meta_model.theta
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert metrics["meta_loss"] == run.history[-1]["meta_loss"]
    found = sim.evaluate(state)
    assert found is not None
    assert found.summary()["1"]["mean"] == run.metric(1)
    assert repr(state) == "SimulationState(after 4 rounds)"


def test_a_plain_function_is_a_callback(federation: fedmeta.Federation) -> None:
    seen: list[int] = []
    run = fedmeta.train(
        federation, NETWORK, rounds=3, callbacks=[lambda record: seen.append(record["round"])]
    )
    assert seen == [1, 2, 3] == run.history.to_table()["round"]


def test_callbacks_see_the_state_and_add_numbers(
    federation: fedmeta.Federation, tmp_path: Path
) -> None:
    def norm(record: dict[str, Any], state: Any) -> dict[str, float]:
        return {"norm": float(sum(leaf.square().sum() for leaf in state.theta.values()))}

    run = fedmeta.train(federation, NETWORK, rounds=3, callbacks=[norm], folder=tmp_path / "run")
    stored = RunFolder.open(tmp_path / "run").history()
    assert [each["norm"] for each in stored] == [each["norm"] for each in run.history]
    assert all(each["norm"] > 0 for each in run.history)
    with pytest.raises(SettingError, match="'counted', which is in the record"):
        fedmeta.train(federation, NETWORK, rounds=1, callbacks=[lambda _record: {"counted": 1.0}])


def test_a_callback_stops_a_run(federation: fedmeta.Federation, tmp_path: Path) -> None:
    class Enough:
        def on_round(self, record: dict[str, Any]) -> None:
            if record["round"] == 2:
                raise fedmeta.StopTraining

    training = fedmeta.TrainingSettings(rounds=9, checkpoint_every=1)
    run = fedmeta.train(
        federation, NETWORK, training=training, callbacks=[Enough()], folder=tmp_path / "run"
    )
    assert run.summary["status"] == "stopped early"
    assert len(run.history) == 2
    assert fedmeta.Run.load(tmp_path / "run").metric(1) == run.metric(1)


def test_a_loaded_run(federation: fedmeta.Federation, tmp_path: Path) -> None:
    run = fedmeta.train(federation, NETWORK, rounds=2, folder=tmp_path / "run")
    again = fedmeta.Run.load(tmp_path / "run")
    assert again.history == run.history
    assert again.history.to_table() == run.history.to_table()
    assert again.metric(5) == run.metric(5)
    with pytest.raises(SettingError, match="not measured after 7 steps"):
        again.metric(7)
    with pytest.raises(SettingError, match="the metric of this run is mse"):
        again.accuracy()
    theta = again.meta_model.theta
    assert all(torch.equal(theta[name], leaf) for name, leaf in run.meta_model.theta.items())


def test_a_name_is_no_algorithm(federation: fedmeta.Federation) -> None:
    with pytest.raises(SettingError, match=r"algorithm is 'fedavg': give an object"):
        fedmeta.train(federation, NETWORK, "fedavg")  # type: ignore[arg-type]


def test_a_stop_is_heard_where_rounds_overlap(federation: fedmeta.Federation) -> None:
    def enough(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise fedmeta.StopTraining

    run = fedmeta.train(federation, NETWORK, rounds=40, callbacks=[enough])
    assert run.summary["status"] == "stopped early"
    assert len(run.history) == 4


def test_a_round_is_kept_whatever_a_callback_does(
    federation: fedmeta.Federation, tmp_path: Path
) -> None:
    def broken(record: dict[str, Any]) -> None:
        raise RuntimeError("of my own")

    training = fedmeta.TrainingSettings(rounds=3, checkpoint_every=1)
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError, match="of my own"):
        fedmeta.train(federation, NETWORK, training=training, callbacks=[broken], folder=folder)
    assert [each["round"] for each in RunFolder.open(folder).history()] == [1]
    resumed = fedmeta.train(federation, NETWORK, training=training, folder=folder, resume=True)
    assert len(resumed.history) == 3


def test_runs_that_differ_are_trained_as_they_are(federation: fedmeta.Federation) -> None:
    """What is trained together shares a layout: runs that need another one are trained apart."""
    spec = fedmeta.RunSpec(fedmeta.DataSettings("sinusoid", nodes=10), NETWORK).replaced(rounds=2)
    other = fedmeta.RunSpec(
        spec.data, fedmeta.ModelSettings("mlp", hidden=(9,)), uplink=spec.uplink
    ).replaced(rounds=2)
    apart = fedmeta.RunSpec(
        spec.data, NETWORK, participation=fedmeta.Participation(fraction=0.5)
    ).replaced(rounds=2)
    for second in (other, apart):
        runs = fedmeta.train_many([spec, second])
        alone = fedmeta.train_spec(second).meta_model.theta
        assert isinstance(runs[1], fedmeta.Run)
        mine = runs[1].meta_model.theta
        assert all(torch.equal(mine[name], leaf) for name, leaf in alone.items())


def test_a_prior_of_ones_own_is_not_lost_in_a_table(federation: fedmeta.Federation) -> None:
    theta = fedmeta.train(federation, NETWORK, rounds=0).meta_model.theta
    tied = fedmeta.ADMMFedMeta(prior=fedmeta.SquaredEuclidean(0.5, theta))
    table = fedmeta.RunSpec(algorithm=tied).to_dict()
    assert "SquaredEuclidean" in table["prior"]["own"]
    with pytest.raises(SettingError, match="prior has no setting 'own'"):
        fedmeta.RunSpec.from_dict(table)
