"""Runs told to TensorBoard or MLflow, for those who keep their experiments there.

Both are callbacks for `fedmeta.train`. What they are told is what metrics.jsonl and settings.json
of the run folder say; nothing is computed for them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedmeta.core.errors import MissingExtraError, SettingError, nearest
from fedmeta.core.run_folder import Record, RunFolder
from fedmeta.core.storage import to_json
from fedmeta.training.callbacks import Callback

_LONGEST_PARAMETER = 500  # characters, what every version of MLflow takes


class TensorBoard(Callback):
    """Writes the numbers of every round to an event file in the run's folder `tensorboard`.

    Args:
        folder: the run folder, the same as `train` gets.

    Raises:
        MissingExtraError: where tensorboard is not installed.
    """

    def __init__(self, folder: Path | str) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise MissingExtraError("tensorboard", "tensorboard") from None
        self._writer_class, self._writer = SummaryWriter, None  # type: Any, Any
        self._folder = RunFolder(Path(folder))

    def on_start(self, first_round: int, rounds: int) -> None:
        """Open the file; rounds that a resumed run computes again replace the earlier ones."""
        place = str(self._folder.path / "tensorboard")
        self._writer = self._writer_class(place, purge_step=first_round, flush_secs=10)
        stored = self._folder.settings()
        self._writer.add_text("settings", f"```json\n{to_json(stored['settings'])}```", 0)

    def on_round(self, record: Record) -> None:
        """Add a point to every curve."""
        for name, value in numbers(record):
            self._writer.add_scalar(name, value, record["round"])

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Close the file."""
        self._writer.close()


class MLflow(Callback):
    """Logs settings and the numbers of every round to MLflow.

    They go where $MLFLOW_TRACKING_URI says, else to the SQLite file `mlflow.db` beside the run
    folder. The MLflow run carries the id of our run as a tag; by it a resumed run finds it again.

    Args:
        folder: the run folder, the same as `train` gets.
        experiment: the MLflow experiment; it is made if it does not exist.

    Raises:
        MissingExtraError: where mlflow is not installed.
    """

    def __init__(self, folder: Path | str, experiment: str = "fedmeta") -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when it is imported
        try:
            import sqlalchemy  # noqa: F401 - the small mlflow does without until a file is opened
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise MissingExtraError("mlflow", "mlflow") from None
        self._client_class, self._experiment = MlflowClient, experiment
        self._folder = RunFolder(Path(folder))
        self._client: Any = None
        self._run = ""

    def on_start(self, first_round: int, rounds: int) -> None:
        """Open the MLflow run of this run, or make it."""
        here = self._folder.path.absolute()
        store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{here.parent / 'mlflow.db'}"
        self._client = self._client_class(tracking_uri=store)
        stored = self._folder.settings()
        experiment = self._experiment_id(here.parent / "mlflow-artifacts")
        found = self._client.search_runs([experiment], f"tags.`fedmeta.id` = '{stored['id']}'")
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {"fedmeta.id": stored["id"], "fedmeta.version": stored["versions"]["fedmeta"]}
        made = self._client.create_run(experiment, tags=tags, run_name=here.name)
        self._run = made.info.run_id
        for name, value in leaves(stored["settings"], "."):
            self._client.log_param(self._run, name, str(value)[:_LONGEST_PARAMETER])

    def _experiment_id(self, artifacts: Path) -> str:
        known = self._client.get_experiment_by_name(self._experiment)
        if known is not None:
            return str(known.experiment_id)
        return str(self._client.create_experiment(self._experiment, artifacts.as_uri()))

    def on_round(self, record: Record) -> None:
        """Add a point to every curve."""
        from mlflow.entities import Metric

        now, step = int(1000 * time.time()), record["round"]
        points = [Metric(name, value, now, step) for name, value in numbers(record)]
        self._client.log_batch(self._run, metrics=points)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Log how the targets fare, and how the run ended."""
        for steps, row in summary["target_metric"].items():
            self._client.log_metric(self._run, f"final/{steps}", row["mean"])
        failed = summary["status"] == "diverged"
        self._client.set_tag(self._run, "fedmeta.status", summary["status"])
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


TRACKERS: Mapping[str, Callable[[Path], Callback]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def tracker(name: str, folder: Path) -> Callback:
    """The tracker of that name for the run in a folder."""
    if name not in TRACKERS:
        raise SettingError(f"track is {name!r}", nearest(name, TRACKERS))
    return TRACKERS[name](folder)


def numbers(record: Record) -> Iterator[tuple[str, float]]:
    """The numbers of a round by name; the round's own number is left out.

    Example:
        >>> list(numbers({"round": 3, "meta_loss": 0.5, "note": "…", "target": {"1": 0.75}}))
        [('meta_loss', 0.5), ('target/1', 0.75)]
    """
    for name, value in leaves(record, "/"):
        if name != "round" and isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)


def leaves(table: Mapping[str, Any], between: str, above: str = "") -> Iterator[tuple[str, Any]]:
    """What stands in nested tables, each under the joined names of where it stands."""
    for key, value in table.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from leaves(value, between, name + between)
        else:
            yield name, value
