"""`fedmeta train`: learn a meta-model on the source nodes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values
from fedmeta.cli.compare import compare_and_print
from fedmeta.cli.console import percent, print_report, progress_bars, results_folder, say, table
from fedmeta.cli.importance import print_importance
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import Table, merged
from fedmeta.core.errors import RunFolderError, SettingError
from fedmeta.core.run_folder import WITHDRAWN, RunFolder
from fedmeta.data import Federation, load
from fedmeta.engine.ranks import Ranks, started
from fedmeta.fleet.reopen import stored_table
from fedmeta.priors.importance import importance_file
from fedmeta.training.tracking import tracker
from fedmeta.training.train import RunRequest, train_run, with_strength

PARAMETERS = (
    *options.CONFIG,
    options.SEED,
    options.SEEDS,
    options.OUT,
    Parameter("resume", "Continue the run in this folder.", metavar="RUN"),
    Parameter("track", "Log to tensorboard or mlflow too (may be given twice).", many=True),
    *options.DATA,
    *options.METHOD,
    *options.ALGORITHM,
    *options.PRIOR,
    options.IMPORTANCE,
    *options.PARTICIPATION,
    *options.UPLINK,
    *options.MACHINE,
)


def run(values: Values) -> None:
    """Train a meta-model on the source nodes and evaluate it on the targets."""
    full = options.settings_table(PARAMETERS, values)
    if values["seeds"] is not None:
        _train_repeats(values, full)
        return
    if values["resume"]:
        if values["out"]:
            raise SettingError(
                "--out and --resume are both given", "a resumed run stays where it is"
            )
        opened = RunFolder.open(Path(values["resume"]))
        _refuse_other_machine(opened, full.get("execution", {}))
        full = stored_table(opened, full)
    settings = RunSpec.from_dict(full)
    with started(settings.execution.device) as ranks:
        if values["out"] and ranks.leads:
            RunFolder(Path(values["out"])).check_free()  # before data are read: it may take long
        federation = load(settings.data_settings, settings.training.seed)
        name = f"{settings.algorithm.name}-{Path(settings.data_settings.name).stem}"
        folder = results_folder(values["resume"] or values["out"], name)
        trackers = [tracker(name, folder) for name in values["track"] or ()]
        if ranks.leads:
            _announce(settings, federation, ranks)
        bars = progress_bars() if ranks.leads else nullcontext()
        with warnings.catch_warnings(), bars as bar:
            warnings.showwarning = _warn
            if settings.prior.ties and settings.prior.strength == "auto":
                pilot = [bar(f"{settings.algorithm.name} without the prior")] if bar else []
                settings = with_strength(settings, federation, pilot)
                # A resumed run goes on with this λ.
                full = merged([full, {"prior": {"strength": settings.prior.strength}}])
            request = RunRequest(settings, federation, None, folder, {"table": full})
            callbacks = [*([bar(settings.algorithm.name)] if bar else []), *trackers]
            result = train_run(request, callbacks, resume=bool(values["resume"]))
    if ranks.leads:
        print_result(result.summary)
        if settings.importance != "none":
            stored = importance_file(folder, settings.importance)
            print_importance(stored, settings.importance, result.meta_model)
        print_report(folder)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning (an h that is not convex) as one line, without a place in our code."""
    print(f"warning: {message}", file=sys.stderr)


def _announce(settings: RunSpec, federation: Federation, ranks: Ranks) -> None:
    shared = "" if ranks.size == 1 else f", {ranks.size} processes"
    say(
        f"{federation.name}: {len(federation.sources)} source and {len(federation.targets)} target "
        f"nodes; {settings.algorithm.name}, {settings.training.rounds} rounds, seed "
        f"{settings.training.seed}{shared}"
    )
    for note in federation.notes:
        say(f"  {note}")


def _train_repeats(values: Values, full: Table) -> None:
    """Several seeds, trained together where that can be: a comparison of one algorithm."""
    for other in ("resume", "seed", "track"):
        if values[other] is not None:
            raise SettingError(
                f"--seeds and --{other} are both given",
                "leave one out: repeats have seeds of their own and no past, and are not tracked",
            )
    if full.get("importance", "none") != "none":
        raise SettingError("--seeds and --importance are both given", "train one run at a time")
    name = str(full.get("algorithm", "admm-fedmeta"))
    compare_and_print(values, full, [name], "rounds", name)


def _refuse_other_machine(folder: RunFolder, given: Table) -> None:
    """A run goes on as it was laid out; asking for something else must not pass unheard."""
    stored = folder.settings().get("settings", {}).get("execution", {})
    for name, value in given.items():
        if name in stored and stored[name] != value:
            raise RunFolderError(
                f"run {folder.path} was started with other settings: execution.{name} was "
                f"{stored[name]!r} and is now {value!r}",
                "resume it as it was started (only rounds may change)",
            )


def print_result(summary: Mapping[str, Any]) -> None:
    """Metric of the targets by number of adaptation steps.

    Args:
        summary: of the run.
    """
    metric = summary["metric"]
    rows = [
        [steps, *(percent(metric, row[key]) for key in ("mean", "median", "worst_decile"))]
        for steps, row in summary["target_metric"].items()
    ]
    columns = ["steps", "mean", "median", "worst decile"]
    if precise := summary["precise_metric"]:
        columns.append("precise")
        rows = [[*row, percent(metric, precise[row[0]]["mean"])] for row in rows]
    if rows:
        title = f"{metric} of {len(summary['targets'])} target nodes by adaptation steps"
        table(title, columns, rows)
    say(f"{summary['status']} after {summary['rounds']} rounds, {summary['seconds']:.1f} s")
    if prior := summary["settings"].get("prior"):
        say(f"prior    {prior_line(prior)}")
    uplink = summary["settings"].get("uplink", {})
    if uplink.get("promise"):
        say(f"privacy  {promise_line(uplink)}")


def promise_line(uplink: Mapping[str, Any]) -> str:
    """What a run promises to its nodes, see `Uplink.promise`.

    Args:
        uplink: as in the settings of the run.
    """
    promise = uplink["promise"]
    if uplink["privacy"]["dp"] == "local":  # whatever an older version has promised
        return f"none: {WITHDRAWN}"
    if promise["epsilon"] is None:
        return "none: contributions were clipped, but there was no noise"
    return (
        f"ε = {promise['epsilon']:.3g}, δ = {promise['delta']:g} for a whole node, over "
        f"{promise['rounds']} rounds"
    )


def prior_line(prior: Mapping[str, Any]) -> str:
    """What a run was tied to, in one line.

    Example:
        >>> prior_line({"kind": "SquaredEuclidean", "strength": 0.5, "tied": ["a"], "free": ["b"]})
        'SquaredEuclidean, λ = 0.5; tied: a; free: b'
    """
    tied, free = prior["tied"], prior["free"]
    which = f"tied: {', '.join(tied)}; free: {', '.join(free)}" if free else "all tensors tied"
    return f"{prior['kind']}, λ = {prior['strength']:.4g}; {which}"


COMMAND = Command("train", PARAMETERS, run, "--data digits --penalty 0.1 --rounds 100")

if __name__ == "__main__":
    COMMAND.main()
