"""The one round loop: of a run, or of several that are trained all at once.

A repeat is one more axis to map over: ten repeats of forty nodes fill a GPU as four hundred nodes
do. Every run ends as it would have alone, up to the order of sums.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from fedmeta.algorithms.algorithm import Fleet, NodeState, PlatformState
from fedmeta.core.errors import SettingError
from fedmeta.core.run_folder import HistoryDigest, Record, RunFolder
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.engine.local import LocalEngine
from fedmeta.engine.ranks import Ranks
from fedmeta.engine.round import RoundResult
from fedmeta.evaluation.evaluate import evaluate
from fedmeta.evaluation.result import Evaluation
from fedmeta.evaluation.targets import TargetStore
from fedmeta.training import checkpoints
from fedmeta.training.callbacks import Callbacks
from fedmeta.training.checkpoints import Checkpoint
from fedmeta.training.ending import conclude, diverged, end, identify
from fedmeta.training.job import Job
from fedmeta.training.resume import restored
from fedmeta.training.run import History, Outcome


class Engine(Protocol):
    """What runs the rounds of jobs: `LocalEngine`, or a fleet of edges."""

    @property
    def fleet(self) -> Fleet:
        """All source nodes."""
        ...

    def start(self, theta: Tree) -> tuple[PlatformState, NodeState]:
        """The states before the first round."""
        ...

    def round(self, state: PlatformState, nodes: NodeState, number: int) -> RoundResult:
        """One round; `nodes` is updated in place."""
        ...

    def notes(self) -> list[str]:
        """What happened since the last look that people should know of."""
        ...


@dataclass(eq=False)
class _Progress:
    """One run on its way.

    Args:
        job: what is trained.
        identity: what the run is known by.
        folder: where it is kept, if it is.
        history: what was logged of its rounds.
        evaluations: of its targets, by round.
        diverged: its numbers are no longer finite; its history ends before that.
    """

    job: Job
    identity: dict[str, Any]
    folder: RunFolder | None
    history: History = field(default_factory=History)
    evaluations: dict[int, Evaluation | None] = field(default_factory=dict)
    diverged: bool = False


@dataclass(eq=False)
class RoundLoop:
    """Jobs that are trained side by side, or a single one.

    Args:
        jobs: alike but for federation, seed, start and θ_p.
        identities: what the runs are known by.
        folders: where they are kept; None: nowhere.
        engine: with the repeats' axis where there are several jobs.
        callbacks: told of every round, with the numbers of the first run.
        ranks: processes that share the nodes of a single job.
        saves: write checkpoints; for a single job.
        stops: further numbers of rounds, below the jobs' own, after which outcomes are wanted.
    """

    jobs: Sequence[Job]
    identities: Sequence[dict[str, Any]]
    folders: Sequence[RunFolder | None]
    engine: Engine
    callbacks: Callbacks
    ranks: Ranks = Ranks()
    saves: bool = False
    stops: Sequence[int] = ()

    def __post_init__(self) -> None:
        pairs = zip(self.jobs, self.identities, self.folders, strict=True)
        self._runs = [_Progress(*each) for each in pairs]
        self._training = self.jobs[0].training
        self._notes: dict[int, list[str]] = {}
        self._digest = HistoryDigest()
        self._clock = time.perf_counter()
        self._several = len(self.jobs) > 1
        self._store: TargetStore | None = None
        if self._training.watches_sources and not isinstance(self.engine, LocalEngine):
            raise SettingError(
                "a metric of the source nodes is to stop the run, but their samples are on edges",
                "leave metric or patience out",
            )
        if all(job.federation.targets for job in self.jobs):
            rounds = range(1, self._training.rounds + 1)
            again = self._several and sum(map(self._evaluates, rounds)) > 1
            targets, execution = [job.targets for job in self.jobs], self.jobs[0].layout.execution
            self._store = TargetStore(targets, execution, resident=again)

    def run(self, resume: bool = False) -> dict[int, list[Outcome]]:
        """All rounds, or until all runs have diverged; outcomes by number of rounds."""
        training, status = self._training, "finished"
        state, nodes = self.engine.start(_joined([job.model.theta for job in self.jobs]))
        states, done = {0: state}, 0
        if resume:
            done, state = self._resumed(state, nodes)
        self.callbacks.on_start(done + 1, training.rounds)
        self._clock = time.perf_counter()
        pending: tuple[int, RoundResult] | None = None
        for number in range(done + 1, training.rounds + 1):
            if pending is None and self._ends_early():
                status = "stopped early"
                break
            result = self.engine.round(state, nodes, number)
            self._notes[number] = self.engine.notes()
            if pending is not None:  # the device is busy with the next round meanwhile
                self._settle(*pending)
            state, nodes, pending = result.state, result.nodes, (number, result)
            # A callback that stops the run is heard one round later, where rounds overlap.
            stopped = self.callbacks.stopped and self.ranks.size == 1
            if stopped or self._waits_for(number):
                self._settle(*pending)
                pending = None
            if number in self.stops:
                states[number] = state
            if all(run.diverged for run in self._runs):
                break
        if pending is not None:
            self._settle(*pending)
        lost = all(run.diverged for run in self._runs)
        shorter = {
            stop: self._outcomes(stop, states.get(stop, state))
            for stop in self.stops
            if lost or stop in states
        }
        return {**shorter, training.rounds: self._ended(state, status)}

    def _evaluates(self, number: int) -> bool:
        return self._training.evaluates(number) or number in self.stops

    def _waits_for(self, number: int) -> bool:
        """Whether a round must be over before the next may start."""
        if self._several:
            return self._evaluates(number)
        return self._training.waits_for(number)

    def _ends_early(self) -> bool:
        stopped = self.callbacks.stopped or self._training.stops(self._runs[0].history)
        return bool(self.ranks.from_leader(stopped))

    def _resumed(self, state: PlatformState, nodes: NodeState) -> tuple[int, PlatformState]:
        """Where a single run goes on."""
        (run,) = self._runs
        done, state = restored(run.job, run.folder, state, nodes, self.ranks)
        if run.folder is not None:
            checkpoints.check_history(run.folder.checkpoints, done, run.folder.until(done))
            run.history = History(run.folder.rewind(done))
            if done < self._training.rounds:
                run.folder.reopen(run.identity)
        run.history = History(self.ranks.from_leader(run.history))  # all stop in the same round
        return done, state

    def _settle(self, number: int, result: RoundResult) -> None:
        """Log a round, whose numbers have arrived by now or are waited for."""
        for place, run in enumerate(self._runs):
            run.diverged = run.diverged or not self._metrics(result, place).finite
        if all(run.diverged for run in self._runs):
            return
        last = number == self._training.rounds or number in self.stops
        found = self._evaluated(result.state, last) if self._evaluates(number) else None
        now = time.perf_counter()
        seconds, self._clock = (now - self._clock) / len(self._runs), now
        first, failure = True, None
        for place, run in enumerate(self._runs):
            if run.diverged:
                continue
            record: Record = {"round": number, **self._metrics(result, place)}
            if found is not None:
                run.evaluations[number] = found[place]
            if self._training.evaluates(number):
                record |= _means(run.evaluations[number])
                if self._training.watches_sources:
                    reached = run.job.source_metric(self._state_of(result.state, place))
                    record["sources"] = {self._training.metric: reached}
            if self._notes[number] and not self._several:
                record["note"] = "; ".join(self._notes[number])
            record["seconds"] = seconds
            if first:
                first = False
                try:
                    record |= self.callbacks.on_round(record, self._state_of(result.state, place))
                except BaseException as error:  # the round is kept whatever a callback does
                    failure = error
            run.history.append(record)
            if run.folder is not None and not self._several:
                run.folder.append(record)
        if self.saves and self._training.saves(number):
            self._save(number, result)
        if failure is not None:
            raise failure

    def _metrics(self, result: RoundResult, place: int) -> Any:
        return result.metrics.of(place) if self._several else result.metrics

    def _state_of(self, state: PlatformState, place: int) -> PlatformState:
        """Of one of the runs."""
        if not self._several:
            return state
        theta, memory = map_leaves(lambda leaf: leaf[place], (state.theta, dict(state.memory)))
        return PlatformState(theta, memory)

    def _evaluated(self, state: PlatformState, last: bool) -> Sequence[Evaluation | None]:
        """The targets of every run, all at once; one by one where some have none.

        Args:
            state: of all runs.
            last: whether it may be the final evaluation, which has all metrics.
        """
        states = [self._state_of(state, place) for place in range(len(self.jobs))]
        pairs = list(zip(self.jobs, states, strict=True))
        if self._store is None:
            return [job.evaluate(mine) for job, mine in pairs]
        layout = self.jobs[0].layout
        if self._several and isinstance(self.engine, LocalEngine):  # memory may have run out since
            layout = replace(layout, execution=replace(layout.execution, chunk=self.engine.chunk))
        models = [job.for_targets(mine) for job, mine in pairs]
        steps, decides = self.jobs[0].measured_after(states[0]), self._training.decide
        scored, own = (models[0][1].steps, self.jobs[0].metrics) if last else (None, ())
        return evaluate(layout, models, steps, self._store, decides=decides, scored=scored, own=own)

    def _save(self, number: int, result: RoundResult) -> None:
        everyone = self.ranks.gathered(result.nodes, self.engine.fleet.nodes)
        folder = self._runs[0].folder
        if folder is not None and everyone is not None:
            point = Checkpoint(number, result.state, everyone)
            known = self._digest.of(self._runs[0].history)
            checkpoints.save(folder.checkpoints, point, self._training.keep_checkpoints, known)

    def _outcomes(self, stop: int, state: PlatformState) -> list[Outcome]:
        """What the runs would have ended with after fewer rounds."""
        outcomes = []
        for place, run in enumerate(self._runs):
            job = run.job.lasting(stop)
            history = History()
            for record in run.history[:stop]:
                number, own = record["round"], dict(record)
                for name in ("target", "precise", "decided"):
                    own.pop(name, None)
                if job.training.evaluates(number):
                    own |= _means(run.evaluations[number])
                history.append(own)
            identity = {**run.identity, **identify(job, run.identity["origin"])}
            early = _Progress(job, identity, None, history, run.evaluations)
            early.diverged = run.diverged and len(history) < stop
            outcomes.append(self._outcome(early, self._state_of(state, place), "finished")[0])
        return outcomes

    def _ended(self, state: PlatformState, status: str) -> list[Outcome]:
        """What the runs end with; their folders are complete then, and callbacks know."""
        ends = [
            self._outcome(run, self._state_of(state, place), status)
            for place, run in enumerate(self._runs)
        ]
        rounds = max(len(run.history) for run in self._runs)
        several = {"status": status, "rounds": rounds}
        self.callbacks.on_end(several if self._several else ends[0][1])
        return [outcome for outcome, _ in ends]

    def _outcome(
        self, run: _Progress, state: PlatformState, status: str
    ) -> tuple[Outcome, dict[str, Any]]:
        """How a run ended, and its summary."""
        history, stop = run.history, run.job.training.rounds
        if self._several:
            notes = [each for at, some in self._notes.items() if at <= stop for each in some]
            if history and notes:
                history[-1]["note"] = "; ".join(notes)
            if run.folder is not None:
                for record in history:
                    run.folder.append(record)
        about = run.job, run.identity, run.folder, history, state
        if run.diverged:
            error = diverged(len(history) + 1, run.job.algorithm, run.folder)
            return error, end(*about, None, "diverged")
        last = run.evaluations.get(stop) if status == "finished" else None
        here = isinstance(self.engine, LocalEngine)  # and not on the edges of a fleet
        return conclude(*about, last, status, calibrates=here)


def _joined(thetas: Sequence[Tree]) -> Tree:
    if len(thetas) == 1:
        return thetas[0]
    joined: Tree = map_leaves(lambda *leaves: torch.stack(leaves), *thetas)
    return joined


def _means(evaluation: Evaluation | None) -> Record:
    return {} if evaluation is None else dict(evaluation.means())
