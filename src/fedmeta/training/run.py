"""What training leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmeta.core.errors import DivergedError, SettingError
from fedmeta.core.notebook import as_frame, facts_table
from fedmeta.core.run_folder import Record, RunFolder
from fedmeta.evaluation.result import Evaluation, shown
from fedmeta.models.losses import Loss
from fedmeta.models.meta_model import MetaModel
from fedmeta.models.networks import ModelSettings
from fedmeta.training.run_plot import plot_history

if TYPE_CHECKING:
    from torch import nn


class History(list[Record]):
    """What was logged of every round, in order; also as a table.

    Example:
        >>> History([{"round": 1, "meta_loss": 2.0}, {"round": 2, "target": {"1": 0.5}}]).to_table()
        {'round': [1, 2], 'meta_loss': [2.0, None], 'target.1': [None, 0.5]}
    """

    def __repr__(self) -> str:
        """A line, however many rounds there are."""
        return f"History of {len(self)} rounds: {', '.join(self.to_table())}"

    def to_table(self) -> dict[str, list[Any]]:
        """One list per number, as long as there are rounds; None where a round has none."""
        rows = [_flat(record) for record in self]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def to_frame(self) -> Any:
        """The same as a pandas DataFrame."""
        return as_frame(self.to_table())


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": each for key, each in value.items()}
        else:
            flat[name] = value
    return flat


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """What training leaves.

    Args:
        meta_model: ready to adapt and predict.
        summary: as in summary.json.
        history: as in metrics.jsonl.
        evaluation: the targets after the last round; None if the federation has none, or if the run
            was loaded.
        folder: the run folder, if one was asked for.
    """

    meta_model: MetaModel
    summary: Mapping[str, Any]
    history: History
    evaluation: Evaluation | None
    folder: Path | None

    @classmethod
    def load(
        cls,
        folder: Path | str,
        network: nn.Module | ModelSettings | None = None,
        loss: Loss | None = None,
    ) -> Run:
        """A run that has ended, from its folder.

        Args:
            folder: of the run.
            network: named again where it is code of your own.
            loss: likewise.

        Raises:
            RunFolderError: it has not ended, or a file of it is damaged.
        """
        opened = RunFolder.open(Path(folder))
        model = MetaModel.load(opened.path, network, *([] if loss is None else [loss]))
        return cls(model, opened.summary(), History(opened.history()), None, opened.path)

    def metric(self, steps: int = 1) -> float:
        """Mean over the target nodes of the metric (`summary["metric"]`) after so many steps."""
        measured = self.summary["target_metric"]
        if str(steps) not in measured:
            known = ", ".join(measured) or "none: the federation has no targets"
            raise SettingError(
                f"the targets were not measured after {steps} steps",
                f"measured after: {known}; or ask for it in evaluation_steps",
            )
        return float(measured[str(steps)]["mean"])

    def accuracy(self, steps: int = 1) -> float:
        """Mean accuracy of the target nodes after so many steps of adaptation."""
        if self.summary["metric"] != "accuracy":
            raise SettingError(
                f"the metric of this run is {self.summary['metric']}", "use metric()"
            )
        return self.metric(steps)

    def plot(self, axes: Any = None) -> Any:
        """Draw how the targets fared while it trained, or the loss where there are none.

        Args:
            axes: of matplotlib, to draw into; None makes new ones.

        Returns:
            The axes.
        """
        return plot_history(self.history, str(self.summary["metric"]), axes)

    def __repr__(self) -> str:
        """A line: what was trained, how it ended, what the targets reach."""
        about = self.summary
        result = f", {about['metric']} {self._result}" if self._result else ""
        ended = f"{about['status']} after {_counted(about['rounds'], 'round')}"
        return f"Run({about['algorithm']}, {ended}{result})"

    def _repr_html_(self) -> str:
        """The same for a notebook, with the targets by number of steps."""
        about, metric = self.summary, str(self.summary["metric"])
        facts = {
            "data": str(about["settings"]["data"]["name"]),
            "ended": f"{about['status']} after {_counted(about['rounds'], 'round')}, "
            f"{about['seconds']:.3g} s, seed {about['seed']}",
            **{
                f"{metric} after {_counted(int(steps), 'step')}": _statistics(metric, row)
                for steps, row in about["target_metric"].items()
            },
            "model": repr(self.meta_model),
            **({} if self.folder is None else {"folder": str(self.folder)}),
        }
        return facts_table(f"Run of {about['algorithm']}", facts)

    @property
    def _result(self) -> str:
        steps = self.summary["adaptation_steps"]
        mean = self.summary["target_metric"].get(str(steps), {}).get("mean")
        if mean is None:
            return ""
        return f"{shown(self.summary['metric'], mean)} after {_counted(steps, 'step')}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _statistics(metric: str, row: Mapping[str, Any]) -> str:
    keys = [name for name in ("mean", "median", "worst_decile") if name in row]
    return ", ".join(f"{name.replace('_', ' ')} {shown(metric, row[name])}" for name in keys)


Outcome = Run | DivergedError
"""What a run ends with."""


def runs_of(outcomes: Sequence[Outcome]) -> list[Run]:
    """Those that did not diverge."""
    return [each for each in outcomes if isinstance(each, Run)]
