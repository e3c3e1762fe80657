"""`fedmeta diagnose`: a run held against the convergence theory of ADMM-FedMeta."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values, given
from fedmeta.cli.console import progress_bars, say, table
from fedmeta.config.execution import Execution
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import nested
from fedmeta.core.errors import MissingExtraError, SettingError
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.serialization import deserialize
from fedmeta.core.storage import seal_again, write_json
from fedmeta.fleet.reopen import own_federation, stored_part, stored_table
from fedmeta.report import format as fmt
from fedmeta.report.diagnosis_page import against, constant_rows, headline, write_diagnosis
from fedmeta.theory import Diagnosis, DiagnosisSettings, diagnose_run
from fedmeta.training.ending import identify
from fedmeta.training.job import Job, prepare
from fedmeta.training.resume import check_same_run, stored_run
from fedmeta.training.teaching import taught
from fedmeta.training.train import with_strength

_ROWS = 8  # rounds in the printed table; all are in the file

PARAMETERS = (
    Parameter("run", "Folder of a run of admm-fedmeta.", argument=True),
    Parameter("every", "Look at every n-th round.", int, default="1; in long runs 200 looks"),
    Parameter("points", "Models before the last to estimate constants at.", int, default="1"),
    Parameter("nodes", "Sources to find constants of, at most.", int, default="50"),
    Parameter("target", "Target to judge adaptation at.", default="the worst"),
    Parameter("seed", "Of the searches for constants.", int, short="s", default="0"),
    Parameter("device", "cpu or cuda.", default="as in training"),
    Parameter("memory", "Memory budget in GiB.", float, default="as in training"),
    *options.OWN_CODE,
)


def run(values: Values) -> None:
    """Hold a run against the convergence theory: constants, penalties, bounds, verdicts."""
    folder = RunFolder.open(Path(values["run"]))
    plain = DiagnosisSettings()
    chosen = given(values, "every", "points", "nodes", "target")
    search = replace(plain.search, seed=values["seed"] or 0)
    settings = replace(plain, search=search, **chosen)
    job = _reopened(folder, values)
    history = folder.history()
    with progress_bars() as bars:
        bar = bars("replay")
        bar.on_start(1, len(history))
        search_bar = bars("constants")

        def on_part(done: int, parts: int) -> None:
            if done == 1:
                search_bar.on_start(1, parts)
            search_bar.on_round({"round": done})

        diagnosis = diagnose_run(job, history, settings, bar.on_round, on_part)
    found = diagnosis.as_json()
    title = f"{job.algorithm.name} on {job.federation.name}"
    _print(diagnosis, found, title)
    write_json(folder.path / "diagnosis.json", found)
    seal_again(folder.path / "diagnosis.json")
    say(f"numbers  {folder.path / 'diagnosis.json'}")
    page = folder.path / "diagnosis.html"
    try:
        write_diagnosis(page, found, title)
        say(f"page     {page}")
    except MissingExtraError as error:
        say(f"page     not written: {error}")


def _reopened(folder: RunFolder, values: Values) -> Job:
    """The job of a run as it was started: same data, settings, layout and initial weights."""
    code = {
        "model.name": values["model"],
        "model.backbone": values["backbone"],
        "loss": values["loss"],
    }
    named = nested({setting: name for setting, name in code.items() if name})
    stored = stored_run(folder)
    settings = RunSpec.from_dict(stored_table(folder, named))
    if settings.algorithm.name != "admm-fedmeta":  # before data are read: it may take long
        raise SettingError(
            f"run {folder.path} is one of {settings.algorithm.name}, and the theory is about "
            "admm-fedmeta",
            "diagnose a run of admm-fedmeta",
        )
    federation = own_federation(folder, sources=True)
    machinery = {**stored_part(folder, "execution"), **given(values, "device", "memory")}
    execution = deserialize(Execution, machinery, "execution")
    settings = with_strength(replace(settings, execution=execution), federation)
    job = prepare(settings, federation, traced="head" in stored)
    identity = identify(job, None, stored)
    job = taught(job, folder.path)
    # Where it is computed now may differ: what that changes, the replay tells.
    laid_out = {"execution": stored["settings"]["execution"]}
    check_same_run(folder, stored, {**identity, "settings": {**identity["settings"], **laid_out}})
    return job


def _print(diagnosis: Diagnosis, found: dict[str, Any], title: str) -> None:
    say(title)
    for line in found["plain"]:
        say(f"  {line}")
    say(f"theory: {headline(found)}")
    for note in found["notes"]:
        say(f"  {note}")
    along = found["along"]
    stride = max(1, -(-len(along) // _ROWS))
    shown = [*along[:-1:stride], along[-1]]
    names = {"F(θ)": "objective", "‖∇F(θ)‖": "gradient_norm", "𝓛": "lagrangian"}
    names |= {"primal": "primal", "dual": "dual"}
    rows = [[str(r["round"]), *(fmt.number(r[key], 4) for key in names.values())] for r in shown]
    table("Along the run, exact", ["round", *names], rows)
    rose, looked = diagnosis.rises()
    if looked:
        say(f"𝓛 rose in {rose} of {looked} rounds")
    if found["slope"] is not None:
        say(f"log-log slope of the smallest ‖∇F‖² so far: {fmt.number(found['slope'])}")
    kind = "in closed form" if found["closed_form"] else "estimated: lower bounds"
    columns = ["", "median", "largest", "at", f"target {(found['target'] or {}).get('name', '–')}"]
    table(f"Constants of {len(found['nodes'])} sources, {kind}", columns, constant_rows(found))
    if found["bounds"]:
        rows = [
            [b["name"], _form(b), *(fmt.number(b[side]) for side in ("left", "right"))]
            for b in found["bounds"]
        ]
        table("Bounds", ["bound", "form", "measured", "at most"], rows)
    rows = [
        [
            v["name"],
            _form(v),
            v["status"],
            fmt.number(v["slack"]),
            "" if v["where"] is None else found["nodes"][v["where"]]["name"],
        ]
        for v in found["verdicts"]
    ]
    table("Verdicts", ["inequality", "form", "verdict", "slack", "tightest at"], rows)
    for line in against(found):
        say(f"not covered by the theorem: {line}")


def _form(each: dict[str, Any]) -> str:
    return "printed" if each["printed"] else "derived"


COMMAND = Command("diagnose", PARAMETERS, run, "runs/mine")

if __name__ == "__main__":
    COMMAND.main()
