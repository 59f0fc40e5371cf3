"""The owner of the syncer's state: one task that takes the learners' events one by one, gives each to the part that it concerns, and lets
the core decide. Only this task changes membership, work, exchanges and statistics, so the order of the queue is the order of changes.

It does no arithmetic on large fragments: a stream's reader has its pushes decoded, and merges are computed, in threads that change nothing.

See docs/decisions/0072-threads-and-event-loops.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import secrets
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.core import Core
from diloco.algorithm.effects import Distrusted, Finish, Snapshot
from diloco.contract import Result
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Alive, Chunk, Done, Entry, FromLearner, Refused, Report, ToLearner
from diloco.protocol.diloco_pb2 import Work as WorkMessage
from diloco.protocol.framing import Transfer
from diloco.syncer.config import SyncerConfig
from diloco.syncer.job.answers import Answers
from diloco.syncer.job.awake import TICK
from diloco.syncer.job.donors import Donors
from diloco.syncer.job.exchange import Exchanges
from diloco.syncer.job.farewell import Farewell
from diloco.syncer.job.membership import Membership
from diloco.syncer.job.payloads import Payloads
from diloco.syncer.job.ranks import not_of_rank
from diloco.syncer.job.recoveries import Recoveries
from diloco.syncer.job.restore import RestoredState, snapshot_data
from diloco.syncer.job.work import Lease
from diloco.syncer.reporting.event_writer import EventWriter
from diloco.syncer.reporting.history import History
from diloco.syncer.reporting.recent import RecentEntries
from diloco.syncer.reporting.reports import Facts, ledger_text, make_report, make_result
from diloco.syncer.reporting.unit_stats import MOST_PAUSE_TEXT
from diloco.syncer.snapshots.ending import JobEnding, is_over
from diloco.syncer.snapshots.fences import FenceWriter
from diloco.syncer.snapshots.tape_writer import Position, TapeWriter
from diloco.syncer.snapshots.writer import DurableSnapshot, SnapshotData, SnapshotWriter
from diloco.syncer.streams.changes import Changes
from diloco.syncer.streams.peer import (
    WITHOUT_SLOT,
    AliveReceived,
    AnswerDecoded,
    ByeReceived,
    EvaluationReceived,
    FencesWritten,
    HelloReceived,
    MergeComputed,
    MergeDurable,
    Peer,
    Peers,
    PortionReceived,
    ProgressReported,
    ProtocolViolation,
    PushDecoded,
    PushOffered,
    SeedReceived,
    StreamEvent,
    StreamLost,
    WorkRequested,
)
from diloco.syncer.streams.sessions import Rejected, SessionRegistry, UnitSession
from diloco.wording import one_line

_log = logging.getLogger(__name__)

_FINAL_COPIES = 5
"""Further attempts to copy the final snapshot to `checkpoint.uri`. After them the job is complete without the copy, and its result says
so: the snapshot on the volume is what counts."""


LEAST_VALUES = 64 << 20
"""Bytes of values that the tape of a small model may hold."""
ARRAYS_OF_SNAPSHOT = 2
"""A snapshot holds value and momentum, and remainders with int4."""


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
    ) -> None:
        """`tape`: of this state. `process`: random, names this process. It names the state as well, unless that is the one of the process
        before."""
        training = config.job.training
        self._config = config
        self._unit_stats = state.unit_stats
        self._message = state.message
        self._snapshots = snapshots
        self._tape = tape
        self._changes = changes
        self._process = process
        incarnation = state.tape.incarnation or process
        self._clock = clock
        self._peers = Peers()
        self._sessions = SessionRegistry(config.job.uid, state.fences, config.timeouts.reconnect_window, state.sessions, clock())
        self.work = state.work
        self.work.note = tape.note
        self._events: asyncio.Queue[StreamEvent | FencesWritten | MergeComputed | MergeDurable | AnswerDecoded | None] = asyncio.Queue()
        self.recent = RecentEntries()
        """What happened lately."""
        self.exchanges = Exchanges(
            training, state.core, self._peers, self.work, state.unit_stats, self.recent, tape, self._events.put_nowait, state.tokens
        )
        self._fences = FenceWriter(config.state_dir, config.job.uid, state.fences, lambda: self._events.put_nowait(FencesWritten()))
        continued_at = None if state.core is None else clock()
        donors = Donors(training.sync_interval, lambda: secrets.token_bytes(16), continued_at)
        self._recoveries = Recoveries(donors, self._peers, self.exchanges, state.unit_stats)
        self._membership = Membership(
            config,
            self._sessions,
            self._peers,
            self.exchanges,
            self.work,
            state.unit_stats,
            changes,
            incarnation,
            self._fences,
            self._recoveries,
        )
        self._answers = Answers(self.exchanges, self._membership, self._peers, self.work, state.unit_stats, self._events.put_nowait)
        self._payloads = Payloads(training, self.exchanges)
        self._ending = JobEnding(config.state_dir, config.job.uid, training, state.ending, self._wake)
        self._history = History(state.losses, state.evaluations, state.work.ledger, state.unit_stats, events)
        self._retiring: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        found_over = state.core is not None and is_over(training, state.ending, state.core.t, state.work.ledger.tokens)
        self.farewell = Farewell(
            config.timeouts, self._peers, self._sessions, state.unit_stats, continued_at=continued_at, began_finished=found_over
        )
        self._snapshot_due = state.core is not None and state.tape.incarnation is None
        """At once, if the tape does not follow on what was found."""
        self._most_values = _most_values(state.core)
        self._tape_was_lost = False
        self._complete = False

    # --- called by the streams ----------------------------------------------------------------------------------------

    def connect(self) -> Peer:
        """Register a new stream."""
        peer = self._peers.open()
        if self._stopping.is_set():
            peer.retry_reason = "the syncer is shutting down"
            peer.outgoing.close(at_once=True)
        return peer

    def submit(self, event: StreamEvent) -> None:
        """Queue `event`."""
        self._events.put_nowait(event)

    def expected_bytes(self, peer: Peer, chunk: Chunk) -> int:
        """Return bytes of the payload that a joined learner's chunk begins. Raises FramingError for a chunk that this learner may not
        send."""
        return self._payloads.expected(peer, chunk)

    def memory(self, size: int) -> NDArray[np.uint8]:
        """Give so many bytes for a payload whose first chunk `expected_bytes` has admitted."""
        return self._payloads.memory(size)

    async def push(self, peer: Peer, transfer: Transfer) -> None:
        """Take a complete PUSH. Called by the stream's reader, see `Answers.push`."""
        await self._answers.push(peer, transfer)

    def received(self, peer: Peer, message: FromLearner | DataChunk) -> None:
        """Note what a joined learner has sent just now, for reports."""
        if peer.session is None:
            return
        if isinstance(message, DataChunk):
            self._unit_stats.of(peer.session.unit).received_bytes += len(message.data)
        elif message.HasField("progress"):
            self.recent.stepped(peer.session, message.progress, self._clock())

    def sent(self, peer: Peer, chunk: DataChunk) -> None:
        """Note what a learner was sent, for reports."""
        if peer.session is not None:
            self._unit_stats.of(peer.session.unit).sent_bytes += len(chunk.data)

    def report(self) -> Report:
        """Return the present state of the job."""
        return make_report(self._facts(), self.exchanges.core, self.work.ledger, self._unit_stats, self._clock())

    def entries(self, after: int) -> tuple[list[Entry], bool]:
        """Return what happened lately behind the entry of that number, as much as one report takes, and whether there is more."""
        found = self.recent.after(after)
        return found, (found[-1].number if found else after) < self.recent.last

    def result(self) -> Result:
        """Return the result of a complete job."""
        assert self.exchanges.core is not None
        return make_result(self._facts(), self.exchanges.core, self.work.ledger, self._unit_stats)

    def ledger(self) -> str:
        """Return which samples were trained, human-readable."""
        return ledger_text(self.work.ledger)

    def _facts(self) -> Facts:
        newest = self._snapshots.newest
        return Facts(
            incarnation=self._process,
            steps=self._config.job.training.steps,
            snapshot_t=self._snapshots.snapshot_t,
            snapshot=str(newest.path.relative_to(self._config.state_dir)) if newest is not None else "",
            snapshot_copied=newest is not None and newest.copied,
            snapshot_error=self._snapshots.error or self._tape.error,
            message="; ".join(text for text in (self._message, self._history.error) if text),
            complete=self._complete,
            draining=self._stopping.is_set(),
            evaluations=self._history.evaluations,
            losses=self._history.losses,
            token_budget=self._config.job.training.tokens or 0,
            ending=self._ending.ending,
            cosine=self.exchanges.cosine.value,
        )

    def stop(self) -> None:
        """Request the end, as SIGTERM does: close the streams and write a snapshot."""
        self._stopping.set()
        self._wake()
        self._changes.notify()

    def close(self) -> None:
        """Let go of the threads, once `run` and all streams have ended."""
        self.exchanges.close()

    def _wake(self) -> None:
        self._events.put_nowait(None)

    # --- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> RunOutcome:
        """Run until the job is complete or `stop` is called, and close the streams.

        After COMPLETE the final snapshot is durable. After DRAINED the newest snapshot that the volume could take is. What the event of a
        stream raises ends that stream only, see `_take`; what the engine itself raises ends it, once a snapshot is written.
        """
        try:
            await self._serve()
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
            await self._close_tape()

    async def _serve(self) -> None:
        """Serve until the job is complete or `stop` is called."""
        self._advance()
        while not self._stopping.is_set() and not self._over():
            try:
                event = await asyncio.wait_for(self._events.get(), self._timeout())
            except TimeoutError:
                event = None
            self.exchanges.awake.look(self._clock())
            if isinstance(event, MergeComputed):
                self.exchanges.merged(event, self._clock())
            elif isinstance(event, MergeDurable):
                self.exchanges.durable(event, self._clock())
            elif isinstance(event, AnswerDecoded):
                self._answers.decoded(event, self._clock())
            elif isinstance(event, FencesWritten):
                self._membership.admit(self._clock())
            elif event is not None:
                await self._take(event)
            event = None  # its arrays may be free now, and the next one may be long in coming
            self._membership.expire(self._clock())
            self._advance()
            self._recoveries.look(self._clock())

    async def _take_durable_merges(self) -> None:
        """Take the merges that are durable; the last snapshot holds all that the tape does."""
        await self._tape.idle()
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
            await self._save(core)
        await self._close_tape()

    def _over(self) -> bool:
        until = self.farewell.until
        return until is not None and self._clock() >= until

    def _timeout(self) -> float:
        now = self._clock()
        wakes = [self._sessions.wake_at(), self.farewell.until, self.exchanges.wake_at(now)]
        return max(0.0, min([now + TICK, *(at for at in wakes if at is not None)]) - now)

    def _disconnect(self) -> None:
        for peer in self._peers:
            if self._stopping.is_set():
                peer.retry_reason = "the syncer is shutting down"
            peer.outgoing.close(at_once=self._stopping.is_set())

    async def _conclude(self) -> RunOutcome:
        """Write the last snapshot. A finished job is complete only when its final snapshot is durable."""
        await self._snapshots.idle()
        core = self.exchanges.core
        if core is None or not core.seeded:
            return RunOutcome.DRAINED
        self._history.end(core, self._clock(), began_finished=self.farewell.began_finished)
        durable = self._snapshots.snapshot_t == core.t and self.farewell.finished_at is not None and not self._history.evaluated_anew
        while not durable:
            durable = await self._save(core)
            if durable or self._stopping.is_set():
                break
            _log.error("the final snapshot is written again in %.0f s", self._config.timeouts.final_retry)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._config.timeouts.final_retry)
        if self.farewell.finished_at is None or not durable:
            return RunOutcome.DRAINED
        for _ in range(_FINAL_COPIES):  # the last snapshot has no next one that would bring its copy
            if self._stopping.is_set() or await self._snapshots.copy():
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._config.timeouts.final_retry)
        self._complete = True
        self._changes.notify()
        return RunOutcome.COMPLETE

    async def _save(self, core: Core) -> bool:
        """Write a snapshot now. True: it is durable."""
        position = self._tape.begin_snapshot()
        durable = await self._snapshots.save(self._snapshot_data(core, position))
        await self._tape.snapshot_ended(position, durable=durable)
        return durable

    def _snapshot_data(self, core: Core, position: Position) -> SnapshotData:
        history, sessions = self._history, self._sessions
        return snapshot_data(
            core,
            self.work,
            self._unit_stats,
            self._config.job,
            sessions.stored,
            sessions.fences,
            history.evaluations,
            history.losses,
            self.exchanges.tokens,
            position,
        )

    # --- events -------------------------------------------------------------------------------------------------------

    async def _take(self, event: StreamEvent) -> None:
        """Handle the event of a stream. What it raises refuses its unit, of which nothing stays but contributions that were accepted: one
        message can harm its sender only."""
        peer = event.peer
        now = self._clock()
        try:
            await self._handle_of_stream(peer, event, now)
        except Exception as error:  # noqa: BLE001 - a defect that one message has shown; `fail` logs it
            self._membership.fail(peer, _name(event), error, now)
        self._answers.release(event)
        if not isinstance(event, WITHOUT_SLOT):
            peer.slots.release()

    async def _handle_of_stream(self, peer: Peer, event: StreamEvent, now: float) -> None:
        if isinstance(event, HelloReceived):
            self._membership.join(peer, event.hello, event.owned, now)
            if peer.joining is None:
                peer.join_decided.set()
            if peer.rank:
                self._take_up_progress(peer.leader, now)
        elif isinstance(event, StreamLost):
            self._membership.stream_lost(peer, event.why, now)
        elif peer.session is not None:
            rejected = not_of_rank(peer, peer.session, event) or await self._handle(peer, peer.session, event, now)
            if rejected is not None:
                self._membership.refuse(peer, rejected, now)
        elif isinstance(event, ProtocolViolation):
            self._membership.refuse_stream(peer, Rejected(Refused.PROTOCOL, event.why), now)

    async def _handle(self, peer: Peer, session: UnitSession, event: StreamEvent, now: float) -> Rejected | None:
        """Handle the event of a joined learner. Not None: the learner must be refused."""
        match event:
            case ProgressReported():
                return self._progress_reported(peer, session, now)
            case SeedReceived():
                return await self._seed_received(peer, session, event.transfer, now)
            case PushOffered() | PortionReceived() | PushDecoded():
                return self._answers.take(session, event, now)
            case WorkRequested():
                if why := self.work.too_many(session):
                    return Rejected(Refused.PROTOCOL, why)
                self._send_leases(peer, session, list(self.work.lease(session, event.samples)))
            case EvaluationReceived():
                self._evaluation_received(session, event)
            case AliveReceived():
                self._alive(session, event.alive, now)
                if self._recoveries.heard(peer, session, event.alive, now):
                    self._changes.notify()
            case ByeReceived():
                self._membership.bye(peer, session, event.bye, now)
            case ProtocolViolation():
                return Rejected(Refused.PROTOCOL, event.why)
        return None

    def _send_leases(self, peer: Peer, session: UnitSession, leases: Sequence[Lease]) -> None:
        """Once they are written: the next process must know of each that a learner has."""

        def send() -> None:
            if peer.session is session:
                for lease, start, end in leases:
                    peer.outgoing.urgent(ToLearner(work=WorkMessage(lease=lease, start=start, end=end)))

        self._tape.after_notes(send)

    def _take_up_progress(self, leader: Peer, now: float) -> None:
        """Count what the leader has reported, once all ranks are there."""
        if leader.session is not None and (rejected := self._progress_reported(leader, leader.session, now)):
            self._membership.refuse(leader, rejected, now)

    def _progress_reported(self, peer: Peer, session: UnitSession, now: float) -> Rejected | None:
        if not peer.complete:
            return None  # the newest report waits for all ranks: without them the unit is not asked and not waited for
        progress, peer.progress = peer.progress, None
        if progress is None:
            return None
        if rejected := self.exchanges.progress(session, progress, now):
            return rejected
        stats = self._unit_stats.of(session.unit)
        stats.own_data, stats.seen = progress.own_data, progress.t
        if stats.progressed(progress.local_step, progress.step_seconds, progress.loss, progress.tokens_done, now):
            self._changes.notify()
        return None

    def _alive(self, session: UnitSession, alive: Alive, now: float) -> None:
        if alive.finish and self.exchanges.seeded and self.farewell.finished_at is None:
            self._ending.finish(session.unit, alive.finish, self.exchanges.t)
        self.exchanges.alive(session.unit, now)
        stats = self._unit_stats.of(session.unit)
        if alive.holds_parameters and not stats.holds_parameters:
            stats.holds_parameters = True
            self._changes.notify()
        pause = one_line(alive.pause, MOST_PAUSE_TEXT)
        if stats.alive(alive.local_step, pause, alive.pause_left, now):
            self.exchanges.paused(session.unit, stats.paused_until or now, now)
            _log.info("unit %s %s", session.unit, f"pauses for at most {alive.pause_left:.0f} s: {pause}" if pause else "goes on")
            self._changes.notify()

    async def _seed_received(self, peer: Peer, session: UnitSession, transfer: Transfer, now: float) -> Rejected | None:
        seeded = await self.exchanges.seed(peer, session, transfer, now)
        if isinstance(seeded, Rejected):
            return seeded
        if seeded and self.exchanges.core is not None:
            self._tape.note("seed", unit=session.unit)
            self._snapshot_due = True
            self._changes.notify()
        return None

    def _evaluation_received(self, session: UnitSession, event: EvaluationReceived) -> None:
        core = self.exchanges.core
        evaluation = event.evaluation
        if core is not None and self._history.evaluated(core, session.unit, evaluation):
            self._changes.notify()

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
                    self._snapshot_due = True
                case Distrusted():
                    self._membership.distrust(effect, now)
                case Finish():
                    self._finish(core)
        self._write_snapshot(core)

    def _end_early(self, now: float) -> bool:
        t = self._ending.end_at(self.exchanges.t, self.work.ledger.tokens)
        if t is not None:
            self.exchanges.end(t, now)
        return t is not None

    def _write_snapshot(self, core: Core) -> None:
        """Begin the snapshot that is due. While one is being written, wait, and then take the state of that moment: a state that waits for
        the writer would hold a second model in memory."""
        if self._tape.lost and not self._tape_was_lost:
            self._snapshot_due = True  # merges are written again after it
        self._tape_was_lost = self._tape.lost
        if core.seeded and self._tape.bytes > self._most_values:
            self._snapshot_due = True  # the volume holds no more than that besides snapshots
        if self._snapshot_due and not self._snapshots.busy:
            self._snapshot_due = False
            self._most_values = _most_values(core)
            position, before = self._tape.begin_snapshot(), self._snapshots.newest
            self._snapshots.begin(self._snapshot_data(core, position), lambda: self._snapshot_written(position, before))

    async def _close_tape(self) -> None:
        """Close the tape once nothing of it is being retired any more."""
        await asyncio.gather(*self._retiring)
        await self._tape.close()

    def _snapshot_written(self, position: Position, before: DurableSnapshot | None) -> None:
        """Note that the attempt to write one is over. `before`: the newest one until then."""
        ended = asyncio.create_task(self._tape.snapshot_ended(position, durable=self._snapshots.newest is not before), name="tape-retire")
        self._retiring.add(ended)  # an event loop holds its tasks weakly
        ended.add_done_callback(self._retiring.discard)
        self._wake()

    def _finish(self, core: Core) -> None:
        _log.info("outer step %d of %d is reached", core.t, self._config.job.training.steps)
        self.farewell.finished_at = self._clock()
        self._snapshot_due = not self.farewell.began_finished
        for peer, _ in self._peers.joined():
            peer.outgoing.post(ToLearner(done=Done(t=core.t)))
        self._changes.notify()


def _most_values(core: Core | None) -> int:
    """Bytes of values that the tape may hold before a snapshot takes their place: as much as that has."""
    size = sum(fragment.size for fragment in core.fragments) if core is not None else 0
    return max(LEAST_VALUES, ARRAYS_OF_SNAPSHOT * 4 * size)


def _name(event: StreamEvent) -> str:
    """Return what the event brings, in the words of the wire."""
    return type(event).__name__.removesuffix("Received").removesuffix("Reported").removesuffix("Requested")
