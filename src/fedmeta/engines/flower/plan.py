"""A whole run of the platform: wait for edges, train, and leave a run folder like any other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedmeta import checkpoints
from fedmeta.data.description import describe
from fedmeta.data.federation import Federation
from fedmeta.engines.flower.courier import Courier, FleetError, FleetSettings, check_name
from fedmeta.engines.flower.parcel import Parcel
from fedmeta.engines.flower.platform import FleetEngine
from fedmeta.engines.flower.roster import Roster, first_roster, known_federation
from fedmeta.engines.flower.shards import EdgeData, read_shard
from fedmeta.errors import SettingError
from fedmeta.from_settings import kept_scaling
from fedmeta.job import Job
from fedmeta.meta_model import load_theta
from fedmeta.plain import from_plain, to_plain
from fedmeta.run_folder import RunFolder
from fedmeta.settings import Settings, Table, build_settings
from fedmeta.storage import read_json, write_json, writing
from fedmeta.training import Callback, Run, train

FOLDER = "fleet"  # of a run folder: what only a fleet has
FILE = "plan.json"
_LIFE = "life.json"
_NOT_FOR_EDGES = ("prior", "init")  # of the settings: the platform's own business
_POLL = 1.0  # seconds between two looks at who has connected


@dataclass(frozen=True)
class Plan:
    """What a platform is to do.

    Args:
        run: a name for edges to keep their memory under, letters and digits.
        table: the settings of the run, as `settings.build_settings` takes them.
        fleet: how to deal with edges.
        targets: nodes whose samples the platform has, to judge the model on; None: none.
    """

    run: str
    table: Table
    fleet: FleetSettings
    targets: EdgeData | None = None

    def save(self, folder: Path) -> None:
        """Write it into a run folder."""
        with writing(folder):
            (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        plain = {
            "run": self.run,
            "table": self.table,
            "fleet": to_plain(self.fleet),
            "targets": to_plain(self.targets),
        }
        write_json(folder / FOLDER / FILE, plain)

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """The plan in a run folder."""
        about = read_json(folder / FOLDER / FILE, "plan of the fleet")
        targets = about["targets"]
        return cls(
            about["run"],
            about["table"],
            from_plain(FleetSettings, about["fleet"], "fleet"),
            from_plain(EdgeData, targets, "targets") if targets else None,
        )


def carry_out(
    folder: Path,
    courier: Courier,
    callbacks: Sequence[Callback] = (),
    waiting: Callable[[str], None] = lambda _: None,
) -> Run:
    """Start the run that a folder plans, or go on with it where it was left.

    Args:
        folder: of the run; has a plan.
        courier: reaches the edges.
        callbacks: told of every round.
        waiting: called with a line of text while the platform waits for edges.
    """
    plan, place = Plan.load(folder), folder / FOLDER
    settings = build_settings(plan.table)
    if settings.participation.lost > 0:
        raise SettingError(
            f"participation.lost is {settings.participation.lost:g}",
            "leave it out: in a fleet uploads get lost by themselves",
        )
    if settings.participation.independent:
        raise SettingError(
            "participation.independent is asked for, but a fleet draws edges, not nodes",
            "leave it out; no amplification by sampling is claimed for a fleet",
        )
    tied = getattr(settings.algorithm, "prior", None) is not None
    if tied and settings.prior.strength == "auto":
        raise SettingError(
            'prior.strength is "auto", which takes a run of its own to find',
            "find it with fedmeta train, and give the number",
        )
    table = {key: value for key, value in plan.table.items() if key not in _NOT_FOR_EDGES}
    request = {"run": plan.run, "life": _next_life(place), "table": table}
    roster = Roster.load(place)
    if roster is None:
        roster = _gathered(plan.fleet, settings, courier, request, waiting)
        kept = kept_scaling(settings, roster.common.shape)
        roster = roster if kept is None else replace(roster, scaling=kept)
        roster.save(place)
    begun = (folder / "settings.json").exists()
    saved = checkpoints.rounds(RunFolder(folder).checkpoints) if begun else []
    now = roster.until(saved[-1] if saved else 0)
    targets = None
    if plan.targets is not None:
        seed = settings.training.seed
        targets = read_shard(plan.targets, settings.data, seed, "target", role="target")
    federation = known_federation(roster.until(0), targets)

    def engine(job: Job) -> FleetEngine:
        _describe(folder, federation)
        return FleetEngine(job, now, courier, plan.fleet, request, place, waiting)

    return train(
        federation,
        settings.model,
        settings.algorithm,
        replace(settings.training, checkpoint_every=1),
        loss=settings.loss,
        scaling=roster.scaling,
        execution=settings.execution,
        participation=settings.participation,
        augmentation=settings.augmentation,
        uplink=settings.uplink,
        initial=load_theta(settings.init) if settings.init else None,
        folder=folder,
        resume=begun,
        callbacks=callbacks,
        about_data=to_plain(settings.data),
        origin={"table": dict(plan.table)},
        engine=engine,
    )


def _describe(folder: Path, federation: Federation) -> None:
    """federation.json: the platform knows how much its source nodes have, but not of what."""
    about = describe(federation)
    for node in about["nodes"]:
        if node["role"] == "source":
            node["classes"] = {}
    write_json(folder / "federation.json", about)


def _next_life(place: Path) -> int:
    """How often the platform was started, this time included; on disk before anyone is asked."""
    file = place / _LIFE
    life = int(read_json(file, "starts of the platform")["life"]) + 1 if file.exists() else 1
    write_json(file, {"life": life})
    return life


def _gathered(
    fleet: FleetSettings,
    settings: Settings,
    courier: Courier,
    request: Mapping[str, Any],
    waiting: Callable[[str], None],
) -> Roster:
    """Wait until enough edges have introduced themselves."""
    known: dict[int, Parcel] = {}
    end, told = time.monotonic() + fleet.deadline, -1
    while len(known) < fleet.edges:
        connected = courier.connected()
        strangers = {*connected} - {*known}
        if len(known) + len(strangers) >= fleet.edges:
            question = Parcel(dict(request))
            answers = courier.ask("introduce", dict.fromkeys(strangers, question), fleet.deadline)
            for address, answer in answers.items():
                why = answer if isinstance(answer, str) else answer.facts.get("refused")
                if why is not None:
                    raise FleetError(f"an edge cannot take part: {why}", "mend it and start again")
                if isinstance(answer, Parcel):
                    check_name(answer, connected[address])
                    known[address] = answer
        elif len(known) + len(strangers) != told:
            told = len(known) + len(strangers)
            waiting(f"{told} of {fleet.edges} edges are connected")
        if len(known) < fleet.edges:
            if time.monotonic() > end:
                raise FleetError(
                    f"only {len(known) + len(strangers)} of {fleet.edges} edges connected within "
                    f"{fleet.deadline:g} s",
                    "start the others, or raise --deadline, and go on with --resume",
                )
            time.sleep(_POLL)
    return first_roster(list(known.items()), settings.data)
