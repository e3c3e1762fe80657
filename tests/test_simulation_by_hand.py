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
