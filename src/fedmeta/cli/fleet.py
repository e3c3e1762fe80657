"""`fedmeta fleet`: a whole fleet on this machine, for trying: a platform and its edges."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedmeta.cli import setting_options as options
from fedmeta.cli.command import Command, Parameter, Values, given, under
from fedmeta.cli.console import print_report, progress_bars, results_folder, say, table
from fedmeta.cli.train import PARAMETERS as TRAIN
from fedmeta.cli.train import HeadLine, print_result
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import merged
from fedmeta.core.errors import RunFolderError, SettingError
from fedmeta.core.run_folder import RunFolder, difference
from fedmeta.core.serialization import deserialize
from fedmeta.data import load

if TYPE_CHECKING:
    from fedmeta.fleet.transport import FleetSettings

FLEET = under(
    "Fleet",
    Parameter("edges", "How many edges to wait for before the first round.", int, default="2"),
    Parameter("quorum", "Share of the edges asked that must answer.", float, default="0.5"),
    Parameter("deadline", "Longest wait for a round's answers, in seconds.", float, default="300"),
    Parameter("strikes", "Rounds with impossible messages that quarantine an edge.", int),
    Parameter("max_samples", "Most samples that a node may claim.", int, default="100000"),
    Parameter("max_edge_samples", "Most samples that an edge may claim.", int),
    Parameter("max_weight", "What an edge counts for at most, in medians.", float, default="4"),
    Parameter("insecure", "Neither encrypt nor authenticate: on trusted networks only.", bool),
    Parameter("port", "Where the platform listens.", int),
    options.option("uplink.secure_aggregation", "Let the platform see the sum of all edges alone."),
)
_LEFT_OUT = ("seeds", "lost", "track")
_LIMITS = ("strikes", "max_samples", "max_edge_samples", "max_weight")
PARAMETERS = (*FLEET, *(each for each in TRAIN if each.name not in _LEFT_OUT))


def run(values: Values) -> None:
    """Try a whole fleet on this machine: a platform and edges as processes, over Flower."""
    from fedmeta.fleet.local_fleet import run_trial
    from fedmeta.fleet.plan import edges_folder

    folder = _planned(values)
    place = edges_folder(folder)
    certs = None if values["insecure"] else place / "certs"
    with progress_bars() as bar:
        run_trial(folder, place, certs, values["port"], [HeadLine(folder), bar(folder.name)])
    print_outcome(folder)


def print_outcome(folder: Path) -> None:
    """The same tables as after `fedmeta train`, and one of the edges."""
    print_result(RunFolder.open(folder).summary())
    print_edges(folder)
    print_report(folder)


def print_edges(folder: Path) -> None:
    """The edges as the platform last saw them."""
    from fedmeta.fleet.edge_table import read_edges
    from fedmeta.fleet.plan import FOLDER

    rows = [
        [
            row.name,
            str(row.nodes),
            row.state,
            row.last_seen or "never",
            str(row.rounds),
            f"{row.bytes_down / 1e6:.3f}",
            f"{row.bytes_up / 1e6:.3f}",
            f"{row.seconds:.2f}",
        ]
        for row in read_edges(folder / FOLDER)
    ]
    columns = ["edge", "nodes", "state", "last seen", "rounds", "MB down", "MB up", "s/round"]
    table("edges", columns, rows)


def fleet_settings(values: Values, before: FleetSettings | None = None) -> FleetSettings:
    """What the flags of `FLEET` say; what they do not is as before, or the default."""
    from fedmeta.fleet.transport import FleetSettings

    fields = {
        **asdict(before or FleetSettings()),
        **given(values, "edges", "quorum", "deadline", *_LIMITS),
        "authenticated": not values["insecure"],
    }
    return deserialize(FleetSettings, fields, "fleet")


def _planned(values: Values) -> Path:
    """The folder of a new run with its edges' shards, or of one that goes on."""
    if values["resume"]:
        return resumed(PARAMETERS, values)
    from fedmeta.fleet.local_fleet import make_keys, new_plan, write_shards
    from fedmeta.fleet.plan import check_fleet, edges_folder

    full = options.settings_table(PARAMETERS, values)
    settings = RunSpec.from_dict(full)
    federation = load(settings.data_settings, settings.training.seed)
    name = f"fleet-{settings.algorithm.name}-{Path(settings.data_settings.name).stem}"
    folder = results_folder(values["out"], name)
    fleet = fleet_settings(values)
    check_fleet(fleet, settings)
    count, place = fleet.edges, edges_folder(folder)
    if place.exists():
        raise RunFolderError(f"{place} is there already", "choose another --out, or delete it")
    RunFolder(folder).check_free()
    targets = write_shards(place, federation, count)
    if not values["insecure"]:
        make_keys(place / "certs", count)
    new_plan(folder, full, fleet, targets)
    say(
        f"{federation.name}: {len(federation.sources)} source nodes on {count} edges, "
        f"{len(federation.targets)} target nodes; {settings.algorithm.name}, "
        f"{settings.training.rounds} rounds, seed {settings.training.seed}"
    )
    say_of_prior(settings, folder)
    return folder


def say_of_prior(settings: RunSpec, folder: Path) -> None:
    """Why it takes long before the first round, if it does."""
    if settings.prior.ties and settings.prior.known_strength is None:
        say(f"λ is found first, by a run without the prior, in {folder}/fleet/pilot")


def resumed(parameters: tuple[Parameter, ...], values: Values) -> Path:
    """The folder of a run that goes on as it was planned, perhaps for more rounds."""
    from fedmeta.fleet.app_bundle import shipped
    from fedmeta.fleet.local_fleet import resume_plan

    folder = Path(values["resume"])
    if values["out"]:
        raise SettingError("--out and --resume are both given", "a resumed run stays where it is")
    typed = options.settings_table(parameters, values)
    plan, asked = resume_plan(folder, typed), shipped(typed)
    rounds = asked.get("training", {}).get("rounds")
    now = {} if rounds is None else {"training": {"rounds": rounds}}
    if (other := difference(merged([plan.table, now]), merged([plan.table, asked]))) is not None:
        raise RunFolderError(
            f"run {folder} was started with other settings: {other}",
            "resume it as it was started (only rounds, quorum, deadline and limits may change)",
        )
    fleet = fleet_settings(values, plan.fleet)
    replace(plan, table=merged([plan.table, now]), fleet=fleet).save(folder)
    return folder


COMMAND = Command("fleet", PARAMETERS, run, "--data digits --edges 2 --rounds 5")

if __name__ == "__main__":
    COMMAND.main()
