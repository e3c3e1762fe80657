"""What the platform does: ask edges, add up their sums, take its step; and go on when some fail."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution, Fleet, NodeState, PlatformState
from fedmeta.core import randomness
from fedmeta.core.errors import FedmetaError
from fedmeta.core.randomness import Purpose
from fedmeta.core.secret_random import SecretRandom
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.engine.cohort import weighed
from fedmeta.engine.machine import few_threads
from fedmeta.engine.round import RoundResult, platform_half
from fedmeta.engine.round_metrics import RoundMetrics
from fedmeta.fleet import audit
from fedmeta.fleet.edge_table import EdgeStatus, read_edges, write_edges
from fedmeta.fleet.message import Message, MessageError, flatten, unpack_contribution
from fedmeta.fleet.message_schema import SECURE, Tensors, check_round_reply
from fedmeta.fleet.reply_form import reply_form
from fedmeta.fleet.roster import Member, Roster
from fedmeta.fleet.secure_rounds import Prepared, SecureSums, accused_by, read_masked
from fedmeta.fleet.transport import EdgeLink, FleetError, introduction, told
from fedmeta.training.ending import diverged
from fedmeta.training.job import Job
from fedmeta.uplink.guard import Reply, Verdict, judge
from fedmeta.uplink.masking import FEWEST
from fedmeta.uplink.robust_sum import stacked
from fedmeta.uplink.whole_numbers import Content

_ATTEMPTS = 3  # rounds below quorum in a row that stop the run
_QUARANTINED = "quarantined"


class Answer(NamedTuple):
    """What an edge added to a round, and the bytes it was sent and sent itself."""

    total: Contribution
    down: int
    up: int


class FleetEngine:
    """Runs rounds over edges; `training.train` takes it as it takes the local engine.

    Its node states are, for every edge, the last round that was counted: edges keep the rest
    (`edge_state`). `train` must save a checkpoint after every round, before the next one is asked
    for: edges drop what a checkpoint does not know of.

    Args:
        job: what is trained.
        roster: the edges, as of the newest checkpoint.
        link: reaches them.
        folder: where roster and table of edges are kept.
    """

    def __init__(self, job: Job, roster: Roster, link: EdgeLink, folder: Path) -> None:
        self._job, self._roster, self._link, self._folder = job, roster, link, folder
        self._notes: list[str] = []
        self._refused: set[int] = set()
        self._guard = link.settings.edge_guard(link.request["table"], job.uplink)
        self._form: Tensors = {}
        before = {
            row.name: row if row.state.startswith(_QUARANTINED) else replace(row, state="waiting")
            for row in read_edges(folder)
        }
        self._status = {
            m.name: before.get(m.name, EdgeStatus(m.name, len(m.nodes))) for m in roster.members
        }
        self._draws = randomness.fold(randomness.key(job.training.seed), Purpose.EDGES)
        self._secret = SecretRandom()
        self._sums = SecureSums(link, self._add_traffic)
        self._fresh = True  # nothing was asked since the platform was started
        self._resumed = link.request["life"] > 1
        self._weigh()

    def _weigh(self) -> None:
        """Weights and penalties of all nodes of the roster."""
        execution = self._job.layout.execution
        nodes = [node for member in self._roster.members for node in member.nodes]
        sizes = [support + query for _, support, query in nodes]
        everyone = self._roster.everyone(self._link.settings.max_weight)
        each = [everyone[member.name] for member in self._roster.members for _ in member.nodes]
        weights, penalties = weighed(
            self._job.algorithm,
            [name for name, _, _ in nodes],
            sizes,
            execution.torch_dtype,
            torch.tensor(each),
        )
        self._weights = weights.to(execution.torch_device)
        self._penalties = penalties.to(execution.torch_device)
        self.fleet = Fleet(self._penalties.sum(), len(nodes))

    def start(self, theta: Tree) -> tuple[PlatformState, NodeState]:
        """The platform's state before the first round, and that no edge was counted yet."""
        state = self._job.algorithm.init(theta, self.fleet)
        state = PlatformState(*map_leaves(torch.clone, (state.theta, dict(state.memory))))
        counted = {m.name: torch.zeros((), dtype=torch.int64) for m in self._roster.members}
        return state, {"counted": counted}

    def round(self, state: PlatformState, nodes: NodeState, number: int) -> RoundResult:
        """One round: asked, and asked again while too few answer.

        Raises:
            FleetError: after three rounds in a row below quorum.
            DivergedError: when no edge has finite numbers any more.
        """
        counted = dict(nodes["counted"])
        if self._fresh and self._resumed:
            self._link.returned({member.address for member in self._roster.members})
        self._form = self._form or reply_form(self._job)
        state = self._admit(state, counted, number)
        shared = self._job.algorithm.broadcast(state)
        for attempt in range(_ATTEMPTS):
            asked = self._asked(number, attempt)
            least = math.ceil(self._link.settings.quorum * len(asked))
            if self._job.uplink.secure_aggregation:
                least = max(least, FEWEST)
            answers = self._answers(asked, shared, counted, number, attempt, least)
            if len(answers) >= least:
                audit.record(self._folder, "counted", round=number, edges=list(answers))
                break
            if asked and all("is not finite" in self._status[m.name].state for m in asked):
                raise diverged(number, self._job.algorithm, None)
            self._note(
                f"round {number}: {len(answers)} of {len(asked)} edges answered, {least} are "
                "needed: it is repeated"
            )
        else:
            self._publish()
            silent = next(self._status[m.name] for m in asked if m.name not in answers)
            raise FleetError(
                f"round {number} had too few edges {_ATTEMPTS} times in a row "
                f"({len(answers)} of {len(asked)} answered, {least} are needed; "
                f"{silent.name}: {silent.state.removeprefix('not counted: ')})",
                "bring edges back and go on with --resume, or lower --quorum",
            )
        total, rows = self._added_up(answers)
        total = self._job.uplink.released(  # under central privacy with noise
            total,
            self._weights.max(),
            self._job.spec.participation.fraction * self.fleet.penalty,
            self._secret,
        )
        for name in answers:
            counted[name] = torch.full((), number, dtype=torch.int64)
            self._status[name].rounds += 1
        weight = self._weights[rows].sum(-1)
        with few_threads(state.theta):
            after, metrics = platform_half(self._job.algorithm, state, total, self.fleet, weight)
        self._publish()
        values = torch.stack(list(metrics.values()), dim=-1).cpu()
        known = {
            "counted": len(rows),
            "edges": len(answers),
            "bytes_down": sum(each.down for each in answers.values()) / len(rows),
            "bytes_up": sum(each.up for each in answers.values()) / len(rows),
        }
        reading = RoundMetrics(list(metrics)[:-1], values, known, None)
        return RoundResult(after, {"counted": counted}, reading)

    def notes(self) -> list[str]:
        """What happened since the last look that people should know of."""
        notes, self._notes = self._notes, []
        return notes

    def _note(self, line: str) -> None:
        self._notes.append(line)
        self._link.waiting(line)

    def _admit(self, state: PlatformState, counted: Tree, number: int) -> PlatformState:
        """Take in edges that are new, or back under another address, at a round's beginning."""
        known = {member.address for member in self._roster.members}
        connected = self._link.transport.connected()
        strangers = {*connected} - known - self._refused
        if not strangers:
            return state
        before, members, settings = self._roster, len(self._roster.members), self._link.settings
        for address, answer in sorted(self._link.introduced(strangers).items()):
            try:
                said = introduction(answer, connected[address], self._job.spec, settings.limits)
                name = str(said.facts["name"])
                # Keys prove addresses: who comes from another one is not who it says it is.
                if settings.authenticated and self._roster.named(name) is not None:
                    raise FleetError(
                        f"an edge with another key calls itself {name}",
                        "give every edge its own name",
                    )
                self._roster = self._roster.with_member(said, address, number)
            except FedmetaError as error:
                who = connected[address] or str(address)
                if not isinstance(answer, str):  # who gave no answer may be asked again
                    self._refused.add(address)
                audit.record(self._folder, "refused", edge=who, round=number, why=error.problem)
                self._note(f"edge {who} was not let in: {error.problem}")
        for member in self._roster.members[members:]:
            counted[member.name] = torch.zeros((), dtype=torch.int64)
            self._status[member.name] = EdgeStatus(member.name, len(member.nodes))
            self._note(f"edge {member.name} joined in round {number}: {len(member.nodes)} nodes")
            audit.record(self._folder, "joined", edge=member.name, round=number)
        if self._roster is before:
            return state
        self._roster.save(self._folder)
        if len(self._roster.members) == members:
            return state
        old = self.fleet
        self._weigh()
        new = self._penalties[old.nodes :]
        return self._job.algorithm.with_newcomers(
            state, self._job.model.theta, Fleet(new.sum(), len(new))
        )

    def _asked(self, number: int, attempt: int) -> list[Member]:
        """Who is asked in a round: a seeded share of the edges that are not quarantined."""
        draws = self._draws if attempt == 0 else randomness.fold(self._draws, attempt)
        share = replace(self._job.spec.participation, lost=0.0)
        strikes = self._link.settings.strikes
        members = [
            member
            for member in self._roster.members
            if self._status[member.name].strikes(number) < strikes
        ]
        if not members:
            raise FleetError(
                f"all edges are quarantined, after {strikes} rounds each with messages that "
                "cannot be",
                "check their versions; go on with --resume and a larger --strikes",
            )
        places = share.counted(len(members), number, draws)
        return [members[place] for place in places.tolist()]

    def _answers(
        self,
        asked: Sequence[Member],
        shared: Tree,
        counted: Tree,
        number: int,
        attempt: int,
        least: int,
    ) -> dict[str, Answer]:
        """What the edges that answered well have answered, by name."""
        end = time.monotonic() + self._link.settings.deadline
        # After a start everyone gets the time to come back; later a round waits for a quorum alone.
        enough = len(asked) if self._fresh else least
        here = self._link.connected([m.address for m in asked], enough, end)
        self._fresh = False
        vector = flatten(shared, list(shared))
        parties = [member for member in asked if member.address in here]
        before = {name: (row.bytes_down, row.bytes_up) for name, row in self._status.items()}
        prepared = None
        if self._job.uplink.secure_aggregation:
            prepared = self._sums.prepared(self._sums.parties(parties, number), end)
            names = prepared.offers if prepared else ()
            parties = [member for member in parties if member.name in names]
        messages = {m.address: self._message(m, vector, counted, number, prepared) for m in parties}
        replies = self._link.ask("round", messages, end)
        accused = {m.name: accused_by(replies.get(m.address)) for m in parties}
        self._sums.accuse({name: them for name, them in accused.items() if them}, number)
        read: dict[str, Contribution] = {}
        exact = self._job.uplink.summed(shared)
        for member in asked:
            name, status = member.name, self._status[member.name]
            silent = "no answer in time" if member.address in messages else "not asked"
            silent = silent if member.address in here else "not connected"
            if member.address in messages:
                status.bytes_down += messages[member.address].size
            known = {"run": self._link.request["run"], "round": number, "name": name}
            try:  # what it adds to the sum; whether it may is the guard's to say
                reply = told(replies.get(member.address, silent))
                read[name] = self._read(reply, known, exact)
            except FedmetaError as error:
                failed = isinstance(error, MessageError)
                self._not_counted(name, number, error.problem, failed=failed)
                continue
            status.seen(reply.size, float(reply.facts["seconds"]))
            for line in reply.facts["notes"]:
                self._note(f"edge {name}: {line}")
        verdict = self._judged(read, exact, prepared, number, end)
        for name, reason in verdict.refused.items():
            self._not_counted(name, number, reason, failed=name in verdict.impossible)
        for name, scale in verdict.clipped.items():
            self._note(f"round {number}: edge {name} was clipped to {scale:.3g} of its norm")
        answers = {}
        for name, one in verdict.accepted.items():
            (down, up), status = before[name], self._status[name]
            answers[name] = Answer(one, status.bytes_down - down, status.bytes_up - up)
        return answers

    def _read(self, reply: Message, asked: Mapping[str, object], shared: Tree) -> Contribution:
        """What a reply adds to the sum, if it has the form of one."""
        if not self._job.uplink.secure_aggregation:
            check_round_reply(reply, asked, self._form)
            return unpack_contribution(reply.tensors, shared, self._job.uplink.compression)
        masked = {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in reply.tensors.items()}
        check_round_reply(reply, asked, masked, SECURE)
        contribution = read_masked(reply, shared)
        if {f"metric/{name}" for name in contribution.metrics} != {
            name for name in self._form if name.startswith("metric/")
        }:
            raise MessageError("its metrics are not those of the algorithm", "check its version")
        return contribution

    def _judged(
        self,
        read: Mapping[str, Contribution],
        shared: Tree,
        prepared: Prepared | None,
        number: int,
        end: float,
    ) -> Verdict:
        """Who is counted; where sums are masked, they are opened first."""
        rows = self._roster.rows()
        known = {  # what they have sent beside what the platform itself knows of their shares
            name: Reply(
                read[name],
                share=float(self._weights[rows[name]].sum()),
                weight=float(self._penalties[rows[name]].sum()),
            )
            for name in rows
            if name in read
        }
        if prepared is None:
            before = [row.name for row in self._status.values() if row.opposite]
            verdict = judge(self._guard, known, shared, self._job.uplink.robust, before)
            for name, opposite in verdict.opposite.items():
                # A round that a crash has undone ends in the same verdict when it is asked again.
                self._status[name].opposite = opposite
            return verdict
        addresses = {member.name: member.address for member in self._roster.members}
        content = Content(shared, (), self._job.uplink.unit)
        return self._sums.opened(prepared, addresses, known, content, number, end)

    def _add_traffic(self, name: str, down: int, up: int) -> None:
        self._status[name].bytes_down += down
        self._status[name].bytes_up += up

    def _not_counted(self, name: str, number: int, reason: str, *, failed: bool) -> None:
        """Leave an edge out of a round; `failed`: it sent what cannot be."""
        status = self._status[name]
        status.state = f"not counted: {reason}"
        self._note(f"round {number}: edge {name} was not counted: {reason}")
        audit.record(self._folder, "not counted", edge=name, round=number, why=reason)
        if failed:
            status.fail(number)
        if failed and status.strikes(number + 1) >= self._link.settings.strikes:
            status.state = f"{_QUARANTINED}: {reason}"
            self._note(f"edge {name} is quarantined: it failed in {len(status.failed)} rounds")
            audit.record(self._folder, "quarantined", edge=name, round=number, why=reason)

    def _message(
        self,
        member: Member,
        vector: Tensor,
        counted: Tree,
        number: int,
        prepared: Prepared | None,
    ) -> Message:
        """What an edge is sent in a round."""
        last = int(counted[member.name])
        masks = prepared.facts(member.name) if prepared else {}
        facts, tensors = {"round": number, "counted": last, **masks}, {"shared": vector}
        if last == 0 and number > 1:  # what its nodes start from was sent to others long ago
            theta = self._job.model.theta
            tensors["start"] = flatten(theta, list(theta))
        most = self._link.settings.max_weight
        return self._roster.message(member, self._link.request, facts, tensors, most)

    def _added_up(self, answers: Mapping[str, Answer]) -> tuple[Contribution, Tensor]:
        """Σ of the edges' sums in the order of the roster, and the places of their nodes."""
        rows = {name: each for name, each in self._roster.rows().items() if name in answers}
        parts = [answers[name].total for name in rows]
        robust = self._job.uplink.robust
        if robust.number_by_number:
            shares = torch.stack([self._weights[each].sum() for each in rows.values()])
            total = robust.added(stacked(parts), shares)
        else:
            total = reduce(lambda one, other: map_leaves(torch.add, one, other), parts)
        places = torch.cat([torch.arange(each.start, each.stop) for each in rows.values()])
        return total, places.to(self._weights.device)

    def _publish(self) -> None:
        write_edges(self._folder, [self._status[member.name] for member in self._roster.members])
