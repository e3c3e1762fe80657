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
from fedmeta.cli.compare import compare_and_print, resume_comparison
from fedmeta.cli.console import (
    advising,
    continued_by,
    own_mean_lines,
    percent,
    print_metrics,
    print_report,
    progress_bars,
    results_folder,
    say,
    table,
)
from fedmeta.cli.importance import print_importance
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import Table, merged
from fedmeta.core.errors import RunFolderError, SettingError
from fedmeta.core.printable import printable
from fedmeta.core.run_folder import WITHDRAWN, Record, RunFolder
from fedmeta.data import Federation, load
from fedmeta.engine.ranks import Ranks, started
from fedmeta.fleet.reopen import stored_table
from fedmeta.priors.importance import importance_file
from fedmeta.studies.continuing import is_declared
from fedmeta.training.callbacks import Callback
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
_NAMES = 6  # of parameters in a line


def run(values: Values) -> None:
    """Train a meta-model on the source nodes and evaluate it on the targets."""
    full = options.settings_table(PARAMETERS, values)
    if values["resume"] and is_declared(Path(values["resume"]), "compare"):
        named = [full["algorithm"]] if "algorithm" in full else ()
        resume_comparison(values, full, named)  # of repeats that --seeds has asked for
        return
    if values["seeds"] is not None:
        _train_repeats(values, full)
        return
    if values["resume"]:
        if values["out"]:
            raise SettingError(
                "--out and --resume are both given", "a resumed run stays where it is"
            )
        opened = RunFolder.open(Path(values["resume"]))
        _refuse_other(opened, full)
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
        advice = advising(lambda: continued_by("train", folder, "settings.json"))
        with warnings.catch_warnings(), advice, bars as bar:
            warnings.showwarning = _warn
            if settings.prior.ties and settings.prior.strength == "auto":
                pilot = []
                if bar and settings.prior.known_strength is None:
                    pilot = [bar(f"{settings.algorithm.name} without the prior")]
                settings = with_strength(settings, federation, pilot)
                # A resumed run goes on with this λ.
                full = merged([full, {"prior": {"strength": settings.prior.strength}}])
            request = RunRequest(settings, federation, None, folder, {"table": full})
            first = [HeadLine(folder)] if ranks.leads else []
            callbacks = [*first, *([bar(settings.algorithm.name)] if bar else []), *trackers]
            result = train_run(request, callbacks, resume=bool(values["resume"]))
    if ranks.leads:
        print_result(result.summary)
        if settings.importance != "none":
            stored = importance_file(folder, settings.importance)
            print_importance(stored, settings.importance, result.meta_model)
        print_report(folder)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning (an h that is not convex) as one line, without a place in our code."""
    print(printable(f"warning: {message}"), file=sys.stderr)


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


def _refuse_other(folder: RunFolder, given: Table) -> None:
    """A run goes on as it was laid out; asking for something else must not pass unheard."""
    known = folder.settings().get("settings", {})
    labels = {k: v for k, v in given.get("data", {}).items() if k == "label_scaling"}
    for part, asked in (("execution", given.get("execution", {})), ("data", labels)):
        stored = known.get(part, {})
        for name, value in asked.items():
            if name in stored and stored[name] != value:
                raise RunFolderError(
                    f"run {folder.path} was started with other settings: {part}.{name} was "
                    f"{stored[name]!r} and is now {value!r}",
                    "resume it as it was started (only rounds may change)",
                )


def print_result(summary: Mapping[str, Any]) -> None:
    """Metric of the targets by number of adaptation steps.

    Args:
        summary: of the run.
    """
    metric, decided = summary["metric"], summary.get("decided_metric", {})
    measured = dict(summary["target_metric"])
    chosen = summary["settings"].get("training", {}).get("metric")
    if chosen in summary.get("metrics", {}) and chosen != metric:  # what was asked for goes first
        asked = summary["metrics"][chosen]
        keys = ("mean", "median", "worst_decile")
        lines = [
            [steps, *(percent(chosen, row[key]) for key in keys)] for steps, row in asked.items()
        ]
        title = f"{chosen} of {len(summary['targets'])} target nodes by adaptation steps"
        table(title, ["steps", "mean", "median", "worst decile"], lines)
    if decided:
        measured["decided"] = decided["target"]
    rows = [
        [steps, *(percent(metric, row[key]) for key in ("mean", "median", "worst_decile"))]
        for steps, row in measured.items()
    ]
    columns = ["steps", "mean", "median", "worst decile"]
    if precise := dict(summary["precise_metric"]):
        precise["decided"] = decided.get("precise")
        columns.append("precise")
        rows = [[*row, percent(metric, precise[row[0]]["mean"])] for row in rows]
    if rows:
        title = f"{metric} of {len(summary['targets'])} target nodes by adaptation steps"
        table(title, columns, rows)
    steps = summary["adaptation_steps"]
    for line in own_mean_lines(summary["target_metric"], summary.get("own_mean", {}), steps):
        say(line)
    measured_by = summary.get("metrics", {}), summary.get("baseline", {})
    print_metrics(*measured_by, summary.get("classes", ()), steps)  # older runs have none
    say(f"{summary['status']} after {summary['rounds']} rounds, {summary['seconds']:.1f} s")
    for note in summary.get("notes", ()):  # runs of older versions have none
        say(f"note     {note}")
    if prior := summary["settings"].get("prior"):
        say(f"prior    {prior_line(prior)}")
    uplink = summary["settings"].get("uplink", {})
    if uplink.get("promise"):
        say(f"privacy  {promise_line(uplink)}")


class HeadLine(Callback):
    """Says before the first round what of the network an adaptation moves.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = RunFolder(folder)

    def on_start(self, first_round: int, rounds: int) -> None:
        """The folder has been written by now."""
        stored = self._folder.settings()
        adapted, inner = stored.get("head"), stored["settings"]["algorithm"].get("inner")
        if adapted and inner:
            say(f"head     {head_line(adapted, inner)}")

    def on_round(self, record: Record) -> None:
        """There is nothing to add."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Nor here."""


def head_line(adapted: Mapping[str, Any], inner: Mapping[str, Any]) -> str:
    """What of a network an adaptation moves, and how far, in one line.

    Example:
        >>> adapted = {"names": ["2.weight", "2.bias"], "parameters": 650, "of": 4810, "note": ""}
        >>> head_line(adapted, {"steps": 1, "step_size": 0.3})
        '2.weight, 2.bias (650 of 4,810 parameters) adapted in one step of 0.3'
    """
    names, steps = adapted["names"], inner["steps"]
    listed = ", ".join(names[:_NAMES])
    if len(names) > _NAMES:
        listed += f" and {len(names) - _NAMES} more"
    how = f"adapted in {'one step' if steps == 1 else f'{steps} steps'} of"
    method = inner.get("method", "gradient")
    if method != "gradient":
        how = "with class means added" if method == "head+prototypes" else "made of class means"
        how += ", sharpness"
    note = f"; {adapted['note']}" if adapted["note"] else ""
    return (
        f"{listed} ({adapted['parameters']:,} of {adapted['of']:,} parameters) {how} "
        f"{inner['step_size']:g}{note}"
    )


def promise_line(uplink: Mapping[str, Any]) -> str:
    """What a run promises to its nodes, see `Uplink.promise`.

    Args:
        uplink: as in the settings of the run.
    """
    promise = uplink["promise"]
    if "why" in promise or (promise["epsilon"] is not None and "noise" not in promise):
        return f"none: {WITHDRAWN}"
    if promise["epsilon"] is None:
        return "none: contributions were clipped, but there was no noise"
    return (
        f"ε = {promise['epsilon']:.3g}, δ = {promise['delta']:g} for a whole node, over "
        f"{promise['rounds']} rounds; its noise is secret, so that no run repeats it"
    )


def prior_line(prior: Mapping[str, Any]) -> str:
    """What a run was tied to, in one line.

    Example:
        >>> prior_line({"kind": "SquaredEuclidean", "strength": 0.5, "tied": ["a"], "free": ["b"]})
        'SquaredEuclidean, λ = 0.5; tied: a; free: b'
    """
    tied, free = prior["tied"], prior["free"]
    if not tied:
        return f"{prior['kind']}, λ = {prior['strength']:.4g}; outputs alone"
    which = f"tied: {', '.join(tied)}; free: {', '.join(free)}" if free else "all tensors tied"
    return f"{prior['kind']}, λ = {prior['strength']:.4g}; {which}"


COMMAND = Command("train", PARAMETERS, run, "--data digits --penalty 0.1 --rounds 100")

if __name__ == "__main__":
    COMMAND.main()
