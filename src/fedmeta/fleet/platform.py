"""What the platform does: ask edges, add up their sums, take its step; and go on when some fail."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution, Fleet, NodeState, PlatformState
from fedmeta.core import randomness
from fedmeta.core.errors import FedmetaError
from fedmeta.core.randomness import Purpose
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.engine.cohort import weighed
from fedmeta.engine.round import RoundResult, platform_half
from fedmeta.engine.round_metrics import RoundMetrics
from fedmeta.fleet.edge_table import EdgeStatus, read_edges, write_edges
from fedmeta.fleet.message import Message, flatten, unpack_contribution
from fedmeta.fleet.roster import Member, Roster
from fedmeta.fleet.secure_rounds import mask_facts, read_masked, unmask_sum
from fedmeta.fleet.transport import EdgeLink, FleetError, check_name, checked_reply
from fedmeta.training.ending import diverged
from fedmeta.training.job import Job
from fedmeta.uplink.guard import Reply, Verdict, judge
from fedmeta.uplink.masking import FEWEST

_ATTEMPTS = 3  # rounds below quorum in a row that stop the run


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
        before = {row.name: replace(row, state="waiting") for row in read_edges(folder)}
        self._status = {
            m.name: before.get(m.name, EdgeStatus(m.name, len(m.nodes))) for m in roster.members
        }
        self._draws = randomness.fold(randomness.key(job.training.seed), Purpose.EDGES)
        # Noise that protects nodes must not be known from the seed, nor drawn twice.
        self._secret = torch.tensor(secrets.randbits(63), dtype=torch.int64)
        self._fresh = True  # nothing was asked since the platform was started
        self._weigh()

    def _weigh(self) -> None:
        """Weights and penalties of all nodes of the roster."""
        execution = self._job.layout.execution
        nodes = [node for member in self._roster.members for node in member.nodes]
        sizes = [support + query for _, support, query in nodes]
        weights, penalties = weighed(
            self._job.algorithm, [name for name, _, _ in nodes], sizes, execution.torch_dtype
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
        state = self._admit(state, counted, number)
        shared = self._job.algorithm.broadcast(state)
        for attempt in range(_ATTEMPTS):
            asked = self._asked(number, attempt)
            least = math.ceil(self._link.settings.quorum * len(asked))
            if self._job.uplink.secure_aggregation:
                least = max(least, FEWEST)
            answers = self._answers(asked, shared, counted, number, attempt, least)
            if len(answers) >= least:
                break
            if all("is not finite" in self._status[m.name].state for m in asked):
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
            randomness.fold(self._secret, number).to(self._weights.device),
        )
        for name in answers:
            counted[name] = torch.full((), number, dtype=torch.int64)
            self._status[name].rounds += 1
        weight = self._weights[rows].sum(-1)
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
        before, members = self._roster, len(self._roster.members)
        for address, answer in sorted(self._link.introduced(strangers).items()):
            try:
                if isinstance(answer, str) or "refused" in answer.facts:
                    why = answer if isinstance(answer, str) else answer.facts["refused"]
                    self._note(f"an edge could not introduce itself: {why}")
                    continue
                check_name(answer, connected[address])
                name = str(answer.facts["name"])
                # Keys prove addresses: who comes from another one is not who it says it is.
                if self._link.settings.authenticated and self._roster.named(name) is not None:
                    raise FleetError(
                        f"an edge with another key calls itself {name}",
                        "give every edge its own name",
                    )
                self._roster = self._roster.with_member(answer, address, number)
            except FedmetaError as error:
                self._refused.add(address)
                self._note(f"an edge was not let in: {error}")
        for member in self._roster.members[members:]:
            counted[member.name] = torch.zeros((), dtype=torch.int64)
            self._status[member.name] = EdgeStatus(member.name, len(member.nodes))
            self._note(f"edge {member.name} joined in round {number}: {len(member.nodes)} nodes")
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
        """Who is asked in a round: a seeded share of the edges."""
        draws = self._draws if attempt == 0 else randomness.fold(self._draws, attempt)
        share = replace(self._job.spec.participation, lost=0.0)
        places = share.counted(len(self._roster.members), number, draws)
        return [self._roster.members[place] for place in places.tolist()]

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
        masks = {}
        if self._job.uplink.secure_aggregation:
            masks = mask_facts(parties, self._link.request["life"], attempt)
        messages = {m.address: self._message(m, vector, counted, number, masks) for m in parties}
        replies = self._link.ask("round", messages, end)
        read: dict[str, Contribution] = {}
        before = {name: (row.bytes_down, row.bytes_up) for name, row in self._status.items()}
        for member in asked:
            name, status = member.name, self._status[member.name]
            silent = "no answer in time" if member.address in messages else "not connected"
            if member.address in messages:
                status.bytes_down += messages[member.address].size
            known = {"run": self._link.request["run"], "round": number, "name": name}
            try:  # what it adds to the sum; whether it may is the guard's to say
                reply = checked_reply(replies.get(member.address, silent), known)
                if self._job.uplink.secure_aggregation:
                    read[name] = read_masked(reply, shared)
                else:
                    compression = self._job.uplink.compression
                    read[name] = unpack_contribution(reply.tensors, shared, compression)
            except FedmetaError as error:
                self._not_counted(name, number, error.problem)
                continue
            status.seen(reply.size, float(reply.facts["seconds"]))
            for line in reply.facts["notes"]:
                self._note(f"edge {name}: {line}")
        verdict = self._judged(read, shared, {"round": number, **masks}, end)
        for name, reason in verdict.refused.items():
            self._not_counted(name, number, reason)
        for name, scale in verdict.clipped.items():
            self._note(f"round {number}: edge {name} was clipped to {scale:.3g} of its norm")
        answers = {}
        for name, one in verdict.accepted.items():
            (down, up), status = before[name], self._status[name]
            answers[name] = Answer(one, status.bytes_down - down, status.bytes_up - up)
        return answers

    def _judged(
        self,
        read: Mapping[str, Contribution],
        shared: Tree,
        asked: Mapping[str, Any],
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
        if not self._job.uplink.secure_aggregation:
            return judge(self._job.uplink.guard, known, shared)
        addresses = {member.name: member.address for member in self._roster.members}
        opened = unmask_sum(self._link, addresses, known, asked, shared, end)
        for name, size in opened.down.items():
            self._status[name].bytes_down += size
        for name, size in opened.up.items():
            self._status[name].bytes_up += size
        return opened.verdict

    def _not_counted(self, name: str, number: int, reason: str) -> None:
        self._status[name].state = f"not counted: {reason}"
        self._note(f"round {number}: edge {name} was not counted: {reason}")

    def _message(
        self,
        member: Member,
        vector: Tensor,
        counted: Tree,
        number: int,
        masks: Mapping[str, Any],
    ) -> Message:
        """What an edge is sent in a round."""
        last = int(counted[member.name])
        facts, tensors = {"round": number, "counted": last, **masks}, {"shared": vector}
        if last == 0 and number > 1:  # what its nodes start from was sent to others long ago
            theta = self._job.model.theta
            tensors["start"] = flatten(theta, list(theta))
        return self._roster.message(member, self._link.request, facts, tensors)

    def _added_up(self, answers: Mapping[str, Answer]) -> tuple[Contribution, Tensor]:
        """Σ of the edges' sums in the order of the roster, and the places of their nodes."""
        rows = {name: each for name, each in self._roster.rows().items() if name in answers}
        parts = [answers[name].total for name in rows]
        total = reduce(lambda one, other: map_leaves(torch.add, one, other), parts)
        places = torch.cat([torch.arange(each.start, each.stop) for each in rows.values()])
        return total, places.to(self._weights.device)

    def _publish(self) -> None:
        write_edges(self._folder, [self._status[member.name] for member in self._roster.members])
