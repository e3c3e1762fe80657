"""A whole run of the platform: wait for edges, train, and leave a run folder like any other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedmeta.algorithms import ADMMFedMeta
from fedmeta.algorithms.held_at_nodes import HeldAtNodes
from fedmeta.config.spec import RunSpec
from fedmeta.config.toml_files import Table, merged, subtable
from fedmeta.config.training import TrainingSettings
from fedmeta.core import randomness
from fedmeta.core.errors import FedmetaError, RunFolderError, SettingError
from fedmeta.core.older_settings import as_begun
from fedmeta.core.run_folder import RunFolder
from fedmeta.core.serialization import deserialize, serialize
from fedmeta.core.storage import private_folder, read_json, write_json
from fedmeta.data.federation import Federation, describe
from fedmeta.data.scaling import Scaling
from fedmeta.data.settings import DataSettings
from fedmeta.fleet import audit
from fedmeta.fleet.message import Message
from fedmeta.fleet.platform import FleetEngine
from fedmeta.fleet.queries import source_fisher, source_losses
from fedmeta.fleet.roster import Roster, first_roster, known_federation
from fedmeta.fleet.shards import EdgeData, read_shard
from fedmeta.fleet.transport import (
    EdgeLink,
    FleetError,
    FleetSettings,
    Transport,
    introduction,
)
from fedmeta.models.losses import BALANCED
from fedmeta.priors import Regularizer
from fedmeta.priors.importance import importance_file, write_importance
from fedmeta.training import checkpoints
from fedmeta.training.callbacks import Callback
from fedmeta.training.job import Job
from fedmeta.training.prior_strength import balance, tied_model
from fedmeta.training.run import Run
from fedmeta.training.run_importance import store_importance
from fedmeta.training.start import kept_scaling, looks_up
from fedmeta.training.train import RunRequest, train_run
from fedmeta.uplink.masking import FEWEST

FOLDER = "fleet"  # of a run folder: what only a fleet has
FILE = "plan.json"
_STARTS = "life.json"
_STRENGTH, _PILOT = "strength.json", "pilot"
_NOT_FOR_EDGES = ("prior", "init")  # of the settings: the platform's own business
_POLL = 1.0  # seconds between two looks at who has connected


def edges_folder(folder: Path) -> Path:
    """Where a fleet for trying has its edges: beside the run folder, which holds no samples."""
    return folder.parent / f"{folder.name}-edges"


@dataclass(frozen=True)
class Plan:
    """What a platform is to do.

    Args:
        run: a name for edges to keep their memory under, letters and digits.
        table: the settings of the run, as `settings.RunSpec.from_dict` takes them.
        fleet: how to deal with edges.
        targets: nodes whose samples the platform has, to judge the model on; None: none.
    """

    run: str
    table: Table
    fleet: FleetSettings
    targets: EdgeData | None = None

    def save(self, folder: Path) -> None:
        """Write it into a run folder."""
        private_folder(folder / FOLDER)
        write_json(folder / FOLDER / FILE, serialize(self))

    def request(self, starts: int = 0) -> dict[str, Any]:
        """What every message to an edge says of the run, and how often the platform was started."""
        table = {key: value for key, value in self.table.items() if key not in _NOT_FOR_EDGES}
        return {"run": self.run, "life": starts, "table": table}

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """The plan in a run folder."""
        about = read_json(folder / FOLDER / FILE, "plan of the fleet")
        targets = about["targets"]
        # Of a run that was begun before edges were judged unasked: it goes on as it was.
        guard = {"outliers": "keep", **about["table"].get("uplink", {}).get("guard", {})}
        before = {} if "guard" in about["fleet"] else {"guard": guard, "max_weight": 1e9}
        return cls(
            about["run"],
            about["table"],
            deserialize(FleetSettings, {**before, **about["fleet"]}, "fleet"),
            deserialize(EdgeData, targets, "targets") if targets else None,
        )


def carry_out(
    folder: Path,
    transport: Transport,
    callbacks: Sequence[Callback] = (),
    waiting: Callable[[str], None] = lambda _: None,
) -> Run:
    """Start the run that a folder plans, or go on with it where it was left; see `EdgeLink`."""
    plan, place = _as_begun(Plan.load(folder), folder), folder / FOLDER
    settings = RunSpec.from_dict(plan.table)
    check_fleet(plan.fleet, settings)
    prior: Regularizer | None = settings.algorithm.prior
    link = EdgeLink(transport, plan.fleet, plan.request(_count_start(place)), waiting)
    roster = Roster.load(place)
    audit.record(place, "started", life=link.request["life"])
    if roster is None:
        roster = _wait_for_edges(link, settings, place)
        kept = kept_scaling(settings, roster.common.shape, roster.common.task)
        if kept is None and looks_up(settings, _known(plan, roster)):
            kept = Scaling.of_tokens(None)
            kept = replace(kept, labels=roster.scaling.labels)
        roster = roster if kept is None else replace(roster, scaling=kept)
        roster.save(place)
    found: Table = {}  # settings that were left open
    if prior is not None and settings.prior.known_strength is None:
        found = {"prior": {"strength": _strength(plan, prior, roster, folder, link)}}
        settings = RunSpec.from_dict(merged([plan.table, found]))
    begun = (folder / "settings.json").exists()
    saved = checkpoints.rounds(RunFolder(folder).checkpoints) if begun else []
    now = roster.until(saved[-1] if saved else 0)
    federation = _known(plan, roster)

    def engine(job: Job) -> FleetEngine:
        _describe(folder, federation)
        return FleetEngine(job, now, link, place)

    spec = settings.replaced(checkpoint_every=1)
    origin = {"table": merged([plan.table, found])}
    asked = RunRequest(spec, federation, roster.scaling, folder, origin)
    run = train_run(asked, callbacks, resume=begun, engine=engine)
    if settings.importance == "path":
        store_importance(folder, "path", run.meta_model, federation)
    elif settings.importance == "fisher":
        facts = {"kind": "fisher", "run": run.meta_model.about["run"], "tasks": 1}
        diagonal = source_fisher(link, Roster.load(place) or now, run.meta_model)
        write_importance(importance_file(folder, "fisher"), diagonal, run.meta_model.theta, facts)
    return run


def _as_begun(plan: Plan, folder: Path) -> Plan:
    """The plan with what its run was begun with, by an older version perhaps."""
    if not (folder / "settings.json").exists():
        return plan
    algorithm = str(plan.table.get("algorithm", ADMMFedMeta.name))
    stored = RunFolder(folder).settings().get("settings") or {}
    return replace(plan, table=merged([as_begun(stored, algorithm), plan.table]))


def check_fleet(fleet: FleetSettings, settings: RunSpec) -> None:
    """Refuse what a fleet cannot do, or cannot do together."""
    share, uplink = settings.participation, settings.uplink
    if share.lost > 0:
        raise SettingError(
            f"participation.lost is {share.lost:g}",
            "leave it out: in a fleet uploads get lost by themselves",
        )
    if share.independent:
        raise SettingError(
            "participation.independent is asked for, but a fleet draws edges, not nodes",
            "leave it out; no amplification by sampling is claimed for a fleet",
        )
    if settings.loss == BALANCED:
        raise SettingError(
            f"loss {BALANCED!r} counts the classes of all source nodes, which no edge tells",
            "leave it out, or train in one process",
        )
    tied = settings.algorithm.prior is not None
    if tied and isinstance(settings.algorithm, HeldAtNodes):
        raise SettingError(
            f"{settings.algorithm.name} sends every node the earlier model, which a fleet does not",
            "use admm-fedmeta, whose prior is the platform's, or train in one process",
        )
    asks = settings.importance == "fisher" or (tied and settings.prior.known_strength is None)
    if asks and uplink.privacy.on:
        raise SettingError(
            "λ = auto and importance fisher ask nodes for sums without noise, but dp is asked for",
            "give λ as a number and use importance path, or leave dp out",
        )
    if asks and uplink.secure_aggregation:
        raise SettingError(
            "λ = auto and importance fisher ask edges for sums of their own, which no mask hides",
            "give λ as a number and use importance path, or leave secure aggregation out",
        )
    guard = fleet.edge_guard({}, uplink) if fleet.guard is None else fleet.guard
    if guard.outliers != "keep" and (uplink.secure_aggregation or uplink.privacy.dp == "central"):
        raise SettingError(
            "the guard of edges is asked for with secure aggregation or central noise, where "
            "nobody can be judged, or ε would not hold",
            "leave one of them out",
        )
    asked = len(share.counted(fleet.edges, 1, randomness.key(0)))
    if uplink.secure_aggregation and asked < FEWEST:
        raise SettingError(
            f"secure aggregation is asked for, but a round asks {asked} of {fleet.edges} edges: "
            "with so few a sum gives away what each has sent",
            f"have at least {FEWEST} edges asked, or leave it out and use dp = 'local'",
        )


def _known(plan: Plan, roster: Roster) -> Federation:
    """Who takes part, as far as the platform knows: its targets' samples are all it has.

    Of the settings it looks at data and seed alone: this is for readers of a run folder too, which
    must not run the code that its plan may name.
    """
    targets = None
    if plan.targets is not None:
        data = deserialize(DataSettings, subtable(plan.table, "data"), "data")
        training = deserialize(TrainingSettings, subtable(plan.table, "training"), "training")
        targets = read_shard(plan.targets, data, training.seed, "target", role="target")
    return known_federation(roster.until(0), targets)


def targets_of(folder: Path) -> Federation | None:
    """The nodes that a fleet's model is judged on; None: the run is none of a fleet.

    The source nodes are left out, since their samples are on their edges.
    """
    if not (folder / FOLDER / FILE).exists():
        return None
    plan, roster = Plan.load(folder), Roster.load(folder / FOLDER)
    if roster is None or plan.targets is None:
        raise RunFolderError(
            f"run {folder} is a fleet's without target nodes: its data are on its edges",
            "name data to judge it on with --data",
        )
    known = _known(plan, roster)
    return known.with_nodes(known.targets)


def _strength(
    plan: Plan, prior: Regularizer, roster: Roster, folder: Path, link: EdgeLink
) -> float:
    """λ = "auto" found (`fedmeta.training.prior_strength`): a run without it, then losses.

    That run lies in the folder `fleet/pilot`, so that it goes on after a crash like any other.
    """
    place = folder / FOLDER
    file, pilot = place / _STRENGTH, place / _PILOT
    if not file.exists():
        begun = (pilot / FOLDER / FILE).exists()
        own = {key: value for key, value in plan.table.items() if key != "prior"}
        own = merged([own, {"training": {"evaluate_every": 0}, "importance": "none"}])
        # Also where it goes on: a plan that lies there is not trusted to name code.
        Plan(f"{plan.run}pilot", own, plan.fleet).save(pilot)
        if not begun:
            roster.save(pilot / FOLDER)  # the same edges, and samples scaled as they will be
        link.waiting("λ is found by a run without the prior")
        free = carry_out(pilot, link.transport, (), link.waiting).meta_model
        edges, models = Roster.load(pilot / FOLDER), {"tied": tied_model(prior, free), "free": free}
        asking = replace(link, request=Plan.load(pilot).request())
        losses = source_losses(asking, edges or roster, models)
        rule = balance(prior, free, losses["tied"], losses["free"])
        write_json(file, rule._asdict())
        link.waiting(f"λ = {rule.strength:.4g}")
    return float(read_json(file, "λ of the prior")["strength"])


def _describe(folder: Path, federation: Federation) -> None:
    """federation.json: the platform knows how much its source nodes have, but not of what."""
    about = describe(federation)
    for node in about["nodes"]:
        if node["role"] == "source":
            node["classes"] = {}
    write_json(folder / "federation.json", about)


def _count_start(place: Path) -> int:
    """How often the platform was started, this time included; on disk before anyone is asked."""
    file = place / _STARTS
    life = read_json(file, "starts of the platform").get("life") if file.exists() else 0
    if not isinstance(life, int):
        raise RunFolderError(f"{file} is damaged (life is {life!r})", "restore the file")
    starts = life + 1
    write_json(file, {"life": starts})
    return starts


def _wait_for_edges(link: EdgeLink, settings: RunSpec, place: Path) -> Roster:
    """Wait until enough edges have introduced themselves; who cannot take part is left out."""
    known, refused, fleet = dict[int, Message](), dict[int, str](), link.settings
    end, reported = time.monotonic() + fleet.deadline, -1

    def refuse(address: int, why: str) -> None:
        who = connected[address] or str(address)
        refused[address] = f"edge {who} cannot take part: {why}"
        link.waiting(refused[address])
        audit.record(place, "refused", edge=who, why=why)

    while True:
        connected = link.transport.connected()
        strangers = {*connected} - {*known} - {*refused}
        here = len(known) + len(strangers)
        if here >= fleet.edges:
            for address, answer in sorted(link.introduced(strangers).items()):
                try:
                    known[address] = introduction(
                        answer, connected[address], settings, fleet.limits
                    )
                except FedmetaError as error:
                    if not isinstance(answer, str):  # who gave no answer is asked again
                        refuse(address, error.problem)
        elif here != reported:
            reported = here
            link.waiting(f"{reported} of {fleet.edges} edges are connected")
        if len(known) >= fleet.edges:
            roster, left_out = first_roster(list(known.items()), settings.data_settings)
            for address, why in left_out.items():
                del known[address]
                refuse(address, why)
            if len(known) >= fleet.edges:
                for member in roster.members:
                    audit.record(place, "joined", edge=member.name, nodes=len(member.nodes))
                return roster
        if time.monotonic() > end:
            why = f" ({next(iter(refused.values()))})" if refused else ""
            raise FleetError(
                f"only {here} of {fleet.edges} edges connected within {fleet.deadline:g} s{why}",
                "start the others, or raise --deadline, and go on with --resume",
            )
        time.sleep(_POLL)
