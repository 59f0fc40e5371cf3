"""The owner of the syncer's state: one task that takes the learners' events one by one, gives each to the part that it concerns, and lets
the core decide. Only this task changes membership, work, exchanges and statistics, so the order of the queue is the order of changes.

It does no arithmetic on large fragments: a stream's reader has its pushes decoded, and merges are computed, in threads that change nothing.

See docs/decisions/0148-driver-and-threads.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import secrets
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.core import Core
from diloco.algorithm.effects import ContributionRejected, Finish, Snapshot
from diloco.contract import LearnerStates, Result
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Chunk, Done, Entry, FromLearner, Marker, PartState, Report, ToLearner
from diloco.protocol.framing import Transfer
from diloco.snapshots.writer import SnapshotData, SnapshotWriter
from diloco.start.source import Source, StartError
from diloco.syncer.config import SyncerConfig
from diloco.syncer.ending import JobEnding, is_over
from diloco.syncer.fences import FenceWriter
from diloco.syncer.job.answers import Answers
from diloco.syncer.job.awake import TICK
from diloco.syncer.job.donors import Donors
from diloco.syncer.job.exchange import Exchanges
from diloco.syncer.job.learner_events import LearnerEvents
from diloco.syncer.job.membership import Membership
from diloco.syncer.job.parts import JobParts
from diloco.syncer.job.payloads import Payloads
from diloco.syncer.job.recoveries import Recoveries
from diloco.syncer.job.restore import RestoredState, StateBesideCore, snapshot_data
from diloco.syncer.job.shutdown_grace import ShutdownGrace
from diloco.syncer.job.snapshot_schedule import SnapshotSchedule
from diloco.syncer.job.starting import ModelStart, StartRead
from diloco.syncer.reporting.cluster_links import ClusterLinks
from diloco.syncer.reporting.event_writer import EventWriter
from diloco.syncer.reporting.history import History
from diloco.syncer.reporting.outer_remark import outer_remark
from diloco.syncer.reporting.part_states import PartStates
from diloco.syncer.reporting.recent import RecentEntries
from diloco.syncer.reporting.reports import Facts, ledger_text, make_report, make_result
from diloco.syncer.streams.changes import Changes
from diloco.syncer.streams.learner_stream import (
    AnswerDecoded,
    FencesWritten,
    LearnerStream,
    LearnerStreams,
    MergeComputed,
    MergeDurable,
    StreamEvent,
)
from diloco.syncer.streams.sessions import SessionRegistry
from diloco.tape.writer import Position, TapeWriter

_log = logging.getLogger(__name__)

_FINAL_COPIES = 5
"""Further attempts to copy the final snapshot to `checkpoint.uri`. After them the job is complete without the copy, and its result says
so: the snapshot on the volume is what counts."""


type _Event = StreamEvent | FencesWritten | MergeComputed | MergeDurable | AnswerDecoded | StartRead


class RunOutcome(enum.Enum):
    """Why the engine stopped."""

    COMPLETE = enum.auto()
    DRAINED = enum.auto()


class Engine:
    """Runs one job to its last step. Times are in seconds on `clock`."""

    def __init__(
        self,
        config: SyncerConfig,
        state: RestoredState,
        snapshots: SnapshotWriter,
        tape: TapeWriter,
        events: EventWriter,
        changes: Changes,
        process: bytes,
        clock: Callable[[], float] = time.monotonic,
        start: Source | None = None,
    ) -> None:
        """`tape`: of this state. `process`: random, names this process. It names the state as well, unless that is the one of the process
        before. `start`: the model that a job without parameters begins with; None: that of its first learner."""
        training = config.job.training
        self._config = config
        self._message = state.message
        self._same_job = state.same_job
        self._snapshots = snapshots
        self._process = process
        self._clock = clock
        streams = LearnerStreams()
        self.work = state.work
        self.work.note = tape.note
        self.work.settle(all_sessions=state.tape.incarnation is None)
        self._events: asyncio.Queue[_Event | None] = asyncio.Queue()
        self._starting = None if start is None or state.core is not None else ModelStart(start, self._events.put_nowait)
        self.recent = RecentEntries()
        """What happened lately."""
        self._links = ClusterLinks()
        self._part_states = PartStates()
        self.exchanges = Exchanges(
            training,
            state.core,
            streams,
            self.work,
            state.unit_stats,
            self.recent,
            tape,
            self._events.put_nowait,
            state.tokens,
            state.checksums,
        )
        state.unit_stats.take_attempts(state.fences, clock())  # some may have joined after the snapshot
        sessions = SessionRegistry(config.job.uid, state.fences, config.timeouts.reconnect_window, state.sessions, clock())
        self._job = job = JobParts(
            streams, sessions, self.exchanges, self.work, state.unit_stats, tape, changes, incarnation=state.tape.incarnation or process
        )
        self._fences = FenceWriter(config.state_dir, config.job.uid, state.fences, lambda: self._events.put_nowait(FencesWritten()))
        continued_at = None if state.core is None else clock()
        donors = Donors(training.sync_interval, lambda: secrets.token_bytes(16), continued_at)
        self._former = state.former
        self._recoveries = Recoveries(donors, job, self._former, self._sessions_may_return)
        self._stores = training.checkpoint.learners is LearnerStates.ALWAYS
        self._membership = Membership(config, job, self._fences, self._recoveries, self._starting)
        self._answers = Answers(job, self._membership, self._events.put_nowait)
        self._payloads = Payloads(training, self.exchanges)
        self._ending = JobEnding(config.state_dir, config.job.uid, training, state.ending, self._wake)
        self._history = History(state.losses, state.evaluations, state.work.ledger, state.unit_stats, events)
        self._stopping = asyncio.Event()
        found_over = state.core is not None and is_over(training, state.ending, state.core.t, state.work.ledger.tokens)
        self.shutdown_grace = ShutdownGrace(
            config.timeouts, streams, sessions, state.unit_stats, continued_at=continued_at, began_finished=found_over
        )
        self._schedule = SnapshotSchedule(
            snapshots,
            tape,
            self._snapshot_data,
            state.core,
            due=state.core is not None and state.tape.incarnation is None,  # the tape does not follow on what was found
            then=self._wake,
            durable=self._snapshot_durable,
        )
        self._complete = False
        self._learner_events = LearnerEvents(
            job,
            self._membership,
            self._answers,
            self._recoveries,
            self._ending,
            self._history,
            self.shutdown_grace,
            on_seeded=self._schedule.request,
        )

    # --- called by the streams ----------------------------------------------------------------------------------------

    def connect(self) -> LearnerStream:
        """Register a new stream."""
        stream = self._job.streams.open()
        # The server takes streams while the last snapshot is written, and nothing reads their Hello any more.
        if self._stopping.is_set():
            stream.retry("the syncer is shutting down")
        return stream

    def submit(self, event: StreamEvent) -> None:
        """Queue `event`."""
        self._events.put_nowait(event)

    def expected_bytes(self, stream: LearnerStream, chunk: Chunk) -> int:
        """Return bytes of the payload that a joined learner's chunk begins. Raises FramingError for a chunk that this learner may not
        send."""
        return self._payloads.expected(stream, chunk)

    def memory(self, size: int) -> NDArray[np.uint8]:
        """Give so many bytes for a payload whose first chunk `expected_bytes` has admitted."""
        return self._payloads.memory(size)

    async def push(self, stream: LearnerStream, transfer: Transfer) -> None:
        """Take a complete PUSH. Called by the stream's reader, see `Answers.push`."""
        await self._answers.push(stream, transfer)

    def received(self, stream: LearnerStream, message: FromLearner | DataChunk) -> None:
        """Note what a joined learner has sent just now, for reports."""
        if stream.session is None:
            return
        if isinstance(message, DataChunk):
            self._job.unit_stats.of(stream.session.unit).received_bytes += len(message.data)
            self._links.received(stream.leader.cluster, len(message.data), self._clock())
        elif message.HasField("progress"):
            self.recent.stepped(stream.session, message.progress, self._clock())

    def sent(self, stream: LearnerStream, chunk: DataChunk) -> None:
        """Note what a learner was sent, for reports."""
        if stream.session is not None:
            self._job.unit_stats.of(stream.session.unit).sent_bytes += len(chunk.data)

    def acknowledged(self, stream: LearnerStream, count: int) -> None:
        """Note that so many bytes of chunks have arrived at a learner."""
        if stream.session is None:
            return
        self._links.sent(stream.leader.cluster, count, self._clock())
        if count:
            stream.acknowledged_at = self._clock()

    def told(self, part: str, state: PartState) -> None:
        """Take what the operator of a part says about it."""
        self._part_states.tell(part, state, self._clock())

    def report(self) -> Report:
        """Return the present state of the job."""
        return make_report(self._facts(), self.exchanges.core, self.work.ledger, self._job.unit_stats, self._clock())

    def entries(self, after: int) -> tuple[list[Entry], bool]:
        """Return what happened lately behind the entry of that number, as much as one report takes, and whether there is more."""
        found = self.recent.after(after)
        return found, (found[-1].number if found else after) < self.recent.last

    def result(self) -> Result:
        """Return the result of a complete job."""
        assert self.exchanges.core is not None
        return make_result(self._facts(), self.exchanges.core, self.work.ledger, self._job.unit_stats)

    def ledger(self) -> str:
        """Return which samples were trained, human-readable."""
        return ledger_text(self.work.ledger)

    def _facts(self) -> Facts:
        newest, core = self._snapshots.newest, self.exchanges.core
        training = self._config.job.training
        outer = outer_remark(training.outer_optimizer, core.layout.size) if core is not None else ""
        return Facts(
            incarnation=self._process,
            steps=training.steps,
            snapshot_t=self._snapshots.snapshot_t,
            snapshot=str(newest.path.relative_to(self._config.state_dir)) if newest is not None else "",
            snapshot_copied=newest is not None and newest.copied,
            snapshot_error=self._snapshots.error or self._job.tape.error or self._recoveries.not_stored,
            message="; ".join(text for text in (self._message, self._membership.remark, self._history.error, outer) if text),
            complete=self._complete,
            draining=self._stopping.is_set(),
            evaluations=self._history.evaluations,
            losses=self._history.losses,
            token_budget=training.tokens or 0,
            ending=self._ending.ending,
            cosine=self.exchanges.cosine.value,
            links=self._links.rates(self._clock()),
            parts=self._part_states.reports(self._clock()),
            round_trips=self._round_trips(),
        )

    def _round_trips(self) -> dict[str, float]:
        """For each connected unit the shortest round trip of its ranks, seconds. Without units whose round trip is not known."""
        shortest: dict[str, float] = {}
        for stream, session in self._job.streams.joined_ranks():
            if measured := stream.outgoing.round_trip:
                shortest[session.unit] = min(measured, shortest.get(session.unit, measured))
        return shortest

    def stop(self) -> None:
        """Request the end, as SIGTERM does: close the streams and write a snapshot."""
        self._stopping.set()
        self._wake()
        self._job.changes.notify()

    def close(self) -> None:
        """Let go of the threads, once `run` and all streams have ended."""
        self.exchanges.close()
        self._job.streams.close()

    def _wake(self) -> None:
        self._events.put_nowait(None)

    # --- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> RunOutcome:
        """Run until the job is complete or `stop` is called, and close the streams.

        After COMPLETE the final snapshot is durable. After DRAINED the newest snapshot that the volume could take is. What the event of a
        stream raises ends that stream only, see `_take`; what the engine itself raises ends it, once a snapshot is written.
        Raises StartError if the job cannot begin with the model that it shall.
        """
        try:
            await self._serve()
        except StartError:
            await self._end_after_error()
            raise
        except Exception:
            _log.exception("the engine cannot go on; it writes a snapshot and ends")
            await self._end_after_error()
            raise
        self._disconnect()
        await self._fences.idle()
        await self._ending.idle()
        await self._take_durable_merges()
        try:
            return await self._conclude()
        finally:
            await self._schedule.close_tape()

    async def _serve(self) -> None:
        """Serve until the job is complete or `stop` is called."""
        self._advance()
        while not self._stopping.is_set() and not self._over():
            event = await self._next_event()
            # Before anything is judged by its deadline: of a process that was stopped, all are over while the messages still wait.
            self.exchanges.awake.look(self._clock())
            if isinstance(event, MergeComputed):
                self.exchanges.merged(event, self._clock())
            elif isinstance(event, MergeDurable):
                self.exchanges.durable(event, self._clock())
            elif isinstance(event, AnswerDecoded):
                self._answers.decoded(event, self._clock())
            elif isinstance(event, FencesWritten):
                self._membership.admit(self._clock())
            elif isinstance(event, StartRead):
                self._start_read(event)
            elif event is not None:
                await self._learner_events.take(event, self._clock())
            event = None  # its arrays may be free now, and the next one may be long in coming
            self._membership.expire(self._clock())
            self._advance()
            self._recoveries.look(self._clock())

    async def _next_event(self) -> _Event | None:
        """Wait for an event, but not beyond what is due by the clock; None: that comes first."""
        if self._events.empty():
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self._events.get(), self._timeout())
            return None
        await asyncio.sleep(0)  # however many wait: streams are read and written between two of them
        return self._events.get_nowait()

    def _start_read(self, read: StartRead) -> None:
        """Let the job begin with the model that was read. Raises StartError."""
        core, starting = self.exchanges.core, self._starting
        assert starting is not None
        norms = starting.norms(read, core)
        if norms is None or core is None:
            return
        self.exchanges.started(norms, self._clock())
        self._message = starting.remark(core.layout)
        _log.info("the job %s", self._message)
        self._job.tape.note("seed", unit="", model=starting.name)
        self._schedule.request()
        self._job.changes.notify()

    async def _take_durable_merges(self) -> None:
        """Take the merges that are durable; the last snapshot holds all that the tape does."""
        await self._job.tape.idle()
        while not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, MergeDurable):
                self.exchanges.durable(event, self._clock())

    async def _end_after_error(self) -> None:
        """Close the streams and write down what is merged: a learner holds it, and the next process goes on from it."""
        self._stopping.set()
        self._disconnect()
        await self._fences.idle()
        await self._ending.idle()
        await self._snapshots.idle()
        core = self.exchanges.core
        if core is not None and core.seeded and self._snapshots.snapshot_t != core.t:
            await self._schedule.save(core)
        await self._schedule.close_tape()

    def _over(self) -> bool:
        until = self.shutdown_grace.until
        return until is not None and self._clock() >= until

    def _timeout(self) -> float:
        now = self._clock()
        wakes = [self._job.sessions.wake_at(), self.shutdown_grace.until, self.exchanges.wake_at(now)]
        return max(0.0, min([now + TICK, *(at for at in wakes if at is not None)]) - now)

    def _disconnect(self) -> None:
        for stream in self._job.streams:
            if self._stopping.is_set():
                stream.retry("the syncer is shutting down")
            else:
                stream.outgoing.close()

    async def _conclude(self) -> RunOutcome:
        """Write the last snapshot. A finished job is complete only when its final snapshot is durable."""
        await self._snapshots.idle()
        core = self.exchanges.core
        if core is None or not core.seeded:
            return RunOutcome.DRAINED
        self._history.end(core, self._clock(), began_finished=self.shutdown_grace.began_finished)
        # An evaluation that came after that snapshot is in no other: without one more, a restart would not know it.
        durable = self._snapshots.snapshot_t == core.t and self.shutdown_grace.finished_at is not None and not self._history.evaluated_anew
        while not durable:
            durable = await self._schedule.save(core)
            if durable or self._stopping.is_set():
                break
            _log.error("the final snapshot is written again in %.0f s", self._config.timeouts.final_retry)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._config.timeouts.final_retry)
        if self.shutdown_grace.finished_at is None or not durable:
            return RunOutcome.DRAINED
        for _ in range(_FINAL_COPIES):  # the last snapshot has no next one that would bring its copy
            if self._stopping.is_set() or await self._snapshots.copy():
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._config.timeouts.final_retry)
        self._complete = True
        self._job.changes.notify()
        return RunOutcome.COMPLETE

    def _snapshot_data(self, core: Core, position: Position) -> SnapshotData:
        history, sessions = self._history, self._job.sessions
        beside = StateBesideCore(
            work=self.work,
            sessions=sessions.stored,
            tokens=self.exchanges.tokens,
            checksums=self.exchanges.checksums,
            unit_stats=self._job.unit_stats,
            fences=sessions.fences,
            evaluations=history.evaluations,
            losses=history.losses,
            former=self._former,
        )
        return snapshot_data(core, beside, self._config.job, position)

    def _sessions_may_return(self) -> bool:
        """Return whether units may come back with what they have trained: those of a session without a stream, or, where sessions of the
        process before do not go on, any of this job."""
        goes_on = self._process != self._job.incarnation
        return self._job.sessions.wake_at() is not None if goes_on else self._same_job

    def _snapshot_durable(self, t: int) -> None:
        """Let learners store their state. The first snapshot is of no training."""
        if self._stores and t and not self.exchanges.finished:
            for stream, _ in self._job.streams.joined():
                if stream.inner_state:
                    stream.outgoing.post(ToLearner(marker=Marker(t=t)))

    # --- what the core decides ----------------------------------------------------------------------------------------

    def _advance(self) -> None:
        now = self._clock()
        before = self.exchanges.t
        self._end_early(now)
        effects = self.exchanges.advance(now)
        if self._ending.ending is None and self._end_early(now):  # what was merged now has reached the budget
            effects += self.exchanges.advance(now)
        core = self.exchanges.core
        if core is None:
            return
        if core.t > before:
            self._history.step(core, now)  # before the snapshot: one of this step holds its loss
        for effect in effects:
            match effect:
                case Snapshot():
                    self._schedule.request()
                case ContributionRejected():
                    self._membership.reject_contribution(effect, now)
                case Finish():
                    self._finish(core)
        self._schedule.write(core)

    def _end_early(self, now: float) -> bool:
        t = self._ending.end_at(self.exchanges.t, self.work.ledger.tokens)
        if t is not None:
            self.exchanges.end(t, now)
        return t is not None

    def _finish(self, core: Core) -> None:
        _log.info("outer step %d of %d is reached", core.t, self._config.job.training.steps)
        self.shutdown_grace.finished_at = self._clock()
        if self.shutdown_grace.began_finished:
            self._schedule.settle()
        else:
            self._schedule.request()
        for stream, _ in self._job.streams.joined():
            stream.outgoing.post(ToLearner(done=Done(t=core.t)))
        self._job.changes.notify()
