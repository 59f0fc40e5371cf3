"""Gives each event of the learners' streams to the part of the syncer that it concerns. A message can harm its sender only.

Only the engine's task uses it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from diloco.protocol.diloco_pb2 import Alive, Refused, ToLearner, Work
from diloco.protocol.framing import Transfer
from diloco.syncer.ending import JobEnding
from diloco.syncer.job.answers import Answers
from diloco.syncer.job.membership import Membership
from diloco.syncer.job.parts import JobParts
from diloco.syncer.job.ranks import not_of_rank
from diloco.syncer.job.recoveries import Recoveries
from diloco.syncer.job.shutdown_grace import ShutdownGrace
from diloco.syncer.job.work import Lease
from diloco.syncer.reporting.history import History
from diloco.syncer.reporting.unit_stats import MOST_PAUSE_TEXT
from diloco.syncer.streams.learner_stream import (
    WITHOUT_SLOT,
    AliveReceived,
    ByeReceived,
    EvaluationReceived,
    HelloReceived,
    LearnerStream,
    PortionReceived,
    ProgressReported,
    ProtocolViolation,
    PushDecoded,
    PushOffered,
    SeedReceived,
    StreamEvent,
    StreamLost,
    WorkRequested,
    message_name,
)
from diloco.syncer.streams.sessions import Rejected, UnitSession
from diloco.wording import one_line

_log = logging.getLogger(__name__)


class LearnerEvents:
    """Takes the events of streams. `now` is in seconds on the engine's clock."""

    def __init__(
        self,
        job: JobParts,
        membership: Membership,
        answers: Answers,
        recoveries: Recoveries,
        ending: JobEnding,
        history: History,
        shutdown_grace: ShutdownGrace,
        on_seeded: Callable[[], None],
    ) -> None:
        """`on_seeded` is called once a learner's seed has given the job its first parameters."""
        self._job = job
        self._membership = membership
        self._answers = answers
        self._recoveries = recoveries
        self._ending = ending
        self._history = history
        self._shutdown_grace = shutdown_grace
        self._on_seeded = on_seeded

    async def take(self, event: StreamEvent, now: float) -> None:
        """Handle the event of a stream. If that raises, the unit is refused, and only its accepted contributions stay."""
        stream = event.stream
        try:
            await self._handle_of_stream(stream, event, now)
        except Exception as error:  # noqa: BLE001 - a defect that one message has shown; `fail` logs it
            self._membership.fail(stream, message_name(event), error, now)
        # Even after an error: a stream whose slots do not come back is never read again.
        self._answers.release(event)
        if not isinstance(event, WITHOUT_SLOT):
            stream.slots.release()

    async def _handle_of_stream(self, stream: LearnerStream, event: StreamEvent, now: float) -> None:
        if isinstance(event, HelloReceived):
            self._membership.join(stream, event.hello, event.owned, now)
            # A stream that is still joining waits until its fence is written, and `admit` decides. If it went on before that and the syncer
            # crashed, an older attempt could come back beside it.
            if stream.joining is None:
                stream.join_decided.set()
            if stream.rank:
                self._take_up_progress(stream.leader, now)
        elif isinstance(event, StreamLost):
            self._membership.stream_lost(stream, event.why, now)
        elif stream.session is not None:
            rejected = not_of_rank(stream, stream.session, event) or await self._handle(stream, stream.session, event, now)
            if rejected is not None:
                self._membership.refuse(stream, rejected, now)
        elif isinstance(event, ProtocolViolation):
            self._membership.refuse_stream(stream, Rejected(Refused.PROTOCOL, event.why), now)

    async def _handle(self, stream: LearnerStream, session: UnitSession, event: StreamEvent, now: float) -> Rejected | None:
        """Handle the event of a joined learner. Returns why the learner must be refused, or None."""
        match event:
            case ProgressReported():
                return self._progress_reported(stream, session, now)
            case SeedReceived():
                return await self._seed_received(stream, session, event.transfer, now)
            case PushOffered() | PortionReceived() | PushDecoded():
                return self._answers.take(session, event, now)
            case WorkRequested():
                # Leases are kept until they are committed. A learner that asks and never trains would take all memory.
                if why := self._job.work.too_many(session):
                    return Rejected(Refused.PROTOCOL, why)
                if why := self._job.work.other_data(session, event.data):
                    return Rejected(Refused.LAYOUT, why)
                self._send_leases(stream, session, list(self._job.work.lease(session, event.samples)))
            case EvaluationReceived():
                core = self._job.exchanges.core
                if core is not None and self._history.evaluated(core, session.unit, event.evaluation):
                    self._job.changes.notify()
            case AliveReceived():
                self._alive(session, event.alive, now)
                if self._recoveries.heard(stream, session, event.alive, now):
                    self._job.changes.notify()
            case ByeReceived():
                self._membership.bye(stream, session, event.bye, now)
            case ProtocolViolation():
                return Rejected(Refused.PROTOCOL, event.why)
        return None

    def _send_leases(self, stream: LearnerStream, session: UnitSession, leases: Sequence[Lease]) -> None:
        """Send leases once the tape has them: a restarted syncer must know every lease that a learner has."""

        def send() -> None:
            if stream.session is session:
                for lease, start, end in leases:
                    stream.outgoing.urgent(ToLearner(work=Work(lease=lease, start=start, end=end)))

        self._job.tape.after_notes(send)

    def _take_up_progress(self, leader: LearnerStream, now: float) -> None:
        """Count what the leader has reported, once all ranks are there."""
        if leader.session is not None and (rejected := self._progress_reported(leader, leader.session, now)):
            self._membership.refuse(leader, rejected, now)

    def _progress_reported(self, stream: LearnerStream, session: UnitSession, now: float) -> Rejected | None:
        if not stream.complete:
            return None  # `stream.progress` keeps the newest report until all ranks have joined; before that the unit is not pulled
        progress, stream.progress = stream.progress, None
        if progress is None:
            return None
        if rejected := self._job.exchanges.progress(session, progress, now):
            return rejected
        stats = self._job.unit_stats.of(session.unit)
        stats.own_data, stats.seen = progress.own_data, progress.t
        if stats.progressed(progress.local_step, progress.step_seconds, progress.loss, progress.tokens_done, now):
            self._job.changes.notify()
        return None

    def _alive(self, session: UnitSession, alive: Alive, now: float) -> None:
        if alive.finish and self._job.exchanges.seeded and self._shutdown_grace.finished_at is None:
            self._ending.finish(session.unit, alive.finish, self._job.exchanges.t)
        self._job.exchanges.alive(session.unit, now)
        stats = self._job.unit_stats.of(session.unit)
        if alive.holds_parameters and not stats.holds_parameters:
            stats.holds_parameters = True
            self._job.changes.notify()
        # A learner has written this text, and it goes into logs and status: it gets one line and a bound.
        pause = one_line(alive.pause, MOST_PAUSE_TEXT)
        if stats.alive(alive.local_step, pause, alive.pause_left, now):
            self._job.exchanges.paused(session.unit, stats.paused_until or now, now)
            _log.info("unit %s %s", session.unit, f"pauses for at most {alive.pause_left:.0f} s: {pause}" if pause else "goes on")
            self._job.changes.notify()

    async def _seed_received(self, stream: LearnerStream, session: UnitSession, transfer: Transfer, now: float) -> Rejected | None:
        seeded = await self._job.exchanges.seed(stream, session, transfer, now)
        if isinstance(seeded, Rejected):
            return seeded
        if seeded and self._job.exchanges.core is not None:
            self._job.tape.note("seed", unit=session.unit)
            self._on_seeded()
            self._job.changes.notify()
        return None
