"""TensorBoard and MLflow are told what the run folder says. With the real libraries."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedmeta
from cli.calling import call, succeed
from fedmeta.core.errors import MissingExtraError
from fedmeta.core.run_folder import RunFolder
from fedmeta.training.tracking import MLflow, TensorBoard, numbers, tracker

TRAIN = "train --data sinusoid --nodes 6 --model linear"


class Interrupted(fedmeta.Callback):
    """Stops a run as a person would."""

    def on_round(self, record: Mapping[str, Any]) -> None:
        if record["round"] == 5:
            raise KeyboardInterrupt


def train(folder: Path, *callbacks: fedmeta.Callback, resume: bool = False) -> fedmeta.Run:
    federation = fedmeta.load(fedmeta.DataSettings("sinusoid", nodes=6), seed=0)
    training = fedmeta.TrainingSettings(rounds=6, evaluate_every=2, checkpoint_every=4)
    model, algorithm = fedmeta.ModelSettings("linear"), fedmeta.FedAvg()
    return fedmeta.train(
        federation, model, algorithm, training, folder=folder, callbacks=callbacks, resume=resume
    )


def interrupted_and_resumed(folder: Path, kind: type[TensorBoard] | type[MLflow]) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(folder, kind(folder), Interrupted())
    train(folder, kind(folder), resume=True)


def expected(folder: Path) -> dict[str, dict[int, float]]:
    """The curves that metrics.jsonl holds, by name and round."""
    curves: dict[str, dict[int, float]] = {}
    for record in RunFolder(folder).history():
        for name, value in numbers(record):
            curves.setdefault(name, {})[record["round"]] = value
    assert set(curves["local_loss"]) == {1, 2, 3, 4, 5, 6}
    assert set(curves["target/1"]) == {2, 4, 6}
    return curves


@pytest.mark.filterwarnings("default")  # not all of theirs is ours to mend
def test_tensorboard_shows_every_round_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "run"
    interrupted_and_resumed(folder, TensorBoard)
    seen = EventAccumulator(str(folder / "tensorboard")).Reload()
    curves = expected(folder)
    assert set(seen.Tags()["scalars"]) == set(curves)
    for name, curve in curves.items():
        points = {event.step: event.value for event in seen.Scalars(name)}
        if name != "seconds":  # a file that was not closed in time may hold less of a killed run
            assert points == pytest.approx(curve, rel=1e-6), name
    assert seen.Tags()["tensors"] == ["settings/text_summary"]


@pytest.mark.filterwarnings("default")
def test_mlflow_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "run"
    interrupted_and_resumed(folder, MLflow)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fedmeta")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.data.tags["fedmeta.status"]) == ("FINISHED", "finished")
    assert run.data.tags["fedmeta.id"] == RunFolder(folder).settings()["id"]
    assert run.data.params["algorithm.name"] == "fedavg"
    assert run.data.params["training.rounds"] == "6"
    for name, curve in expected(folder).items():
        history = client.get_metric_history(run.info.run_id, name)
        if name != "seconds":  # round 5 was computed twice, with the same bits
            assert {point.step: point.value for point in history} == pytest.approx(curve), name
    final = RunFolder(folder).summary()["target_metric"]["1"]["mean"]
    assert run.data.metrics["final/1"] == pytest.approx(final)


@pytest.mark.filterwarnings("default")
def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    succeed(f"{TRAIN} --rounds 2 --track tensorboard --track mlflow --out {tmp_path}/run")
    assert list((tmp_path / "run/tensorboard").glob("events.*"))
    assert (tmp_path / "mlflow.db").is_file()


def test_a_tracker_that_does_not_exist(tmp_path: Path) -> None:
    outcome = call(f"{TRAIN} --rounds 1 --track tensorbord --out {tmp_path}/run")
    assert outcome.code == 2
    assert "did you mean 'tensorboard'?" in outcome.complaint
    assert not (tmp_path / "run").exists()


def test_repeats_are_not_tracked(tmp_path: Path) -> None:
    outcome = call(f"{TRAIN} --rounds 1 --seeds 2 --track mlflow --out {tmp_path}/run")
    assert outcome.code == 2
    assert "--seeds and --track are both given" in outcome.complaint


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_missing_extra_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("torch.utils.tensorboard.writer", "mlflow.tracking", "mlflow"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'fedmeta\[{name}\]'"):
        tracker(name, tmp_path)
