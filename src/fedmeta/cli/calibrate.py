"""`fedmeta calibrate`: a confidence that holds for nodes which a model was not trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.console import progress_bars, say
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged, nested, subtable
from fedmeta.core.calibration import SHARE, Calibration
from fedmeta.core.errors import SettingError
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.storage import changing
from fedmeta.fleet.plan import targets_of
from fedmeta.fleet.reopen import open_model, own_federation, stored_table
from fedmeta.studies.cross_fitting import FOLDS, cross_fitted
from fedmeta.training.train import RunRequest, with_strength

PARAMETERS = (
    Parameter("run", "Folder of a finished run.", argument=True),
    Parameter("decide", "Of nodes that decide how to adapt.", bool, default="as in training"),
    Parameter("folds", "Into how many parts the source nodes are divided.", int, default="5"),
    *options.OWN_CODE,
    *options.MACHINE,
)


def run(values: Values) -> None:
    """Count anew how sure a run's model may be, by models that have not seen the counting nodes."""
    folder = RunFolder.open(Path(values["run"]))
    if targets_of(folder.path) is not None:
        raise SettingError(
            f"the samples of the source nodes of run {folder.path} are on the edges of a fleet",
            "calibrate a run of one process",
        )
    model = open_model(folder.path, values)
    names = {"model.name": "model", "model.backbone": "backbone", "loss": "loss"}
    named = nested({at: values[name] for at, name in names.items() if values[name]})
    machinery = subtable(options.settings_table(PARAMETERS, values), "execution")
    spec = RunSpec.from_dict(stored_table(folder, merged([named, {"execution": machinery}])))
    federation = own_federation(folder)
    folds = FOLDS if values["folds"] is None else values["folds"]
    say(
        f"training {folds} models as {folder.path} was, each without one of {folds} parts of "
        f"{len(federation.sources)} source nodes"
    )
    with folder.locked(), progress_bars() as bar:
        request = RunRequest(with_strength(spec, federation), federation)
        bars = [bar("cross-fitting")] if bar else []
        found = cross_fitted(request, folds, bars, decides=values["decide"])
        with changing(folder.model):
            replace(model, calibration=found).save(folder.model)
    say(_words(found))
    say(f"written to {folder.model}")


def _words(found: Calibration) -> str:
    """What a calibration promises.

    Example:
        >>> _words(Calibration((50, 150, *[0] * 62), (20, 149, *[0] * 62), 5))
        'counted on 200 samples; abstaining below a margin of 0.10: answers 90.0 %, +5.0 points'
    """
    before, answered = found.promised()
    who = " of nodes that decide how to adapt" if found.decides else ""
    return (
        f"counted on {found.samples:,} samples{who}; abstaining below a margin of "
        f"{found.threshold():.2f}: answers {100 * (1 - SHARE):.1f} %, "
        f"{100 * (answered - before):+.1f} points"
    )


COMMAND = Command("calibrate", PARAMETERS, run, "runs/mine")

if __name__ == "__main__":
    COMMAND.main()
