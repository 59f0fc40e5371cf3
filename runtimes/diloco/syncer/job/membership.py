"""Who takes part. Streams join, resume, are refused or displaced, leave, and expire. The first learner of a new job is asked for its seed.

Only the engine's task uses it. See docs/decisions/0003-sessions-and-work.md.
"""

from __future__ import annotations

import logging

from diloco.algorithm.effects import ContributionRejected
from diloco.algorithm.layout import LayoutError
from diloco.algorithm.pieces import PieceError
from diloco.protocol.diloco_pb2 import Bye, Done, Hello, Refused, ToLearner, Work
from diloco.protocol.piece_maps import Owned
from diloco.protocol.refusal import name_of, reason_of
from diloco.syncer.config import SyncerConfig
from diloco.syncer.fences import FenceWriter
from diloco.syncer.job.hello_check import MOST_TEXT, HelloCheck
from diloco.syncer.job.join_brake import JoinBrake
from diloco.syncer.job.parts import JobParts
from diloco.syncer.job.ranks import Ranks
from diloco.syncer.job.recoveries import Recoveries
from diloco.syncer.job.starting import ModelStart
from diloco.syncer.job.welcomes import Welcomes
from diloco.syncer.reporting.unit_stats import Phase
from diloco.syncer.streams.learner_stream import Joining, LearnerStream
from diloco.syncer.streams.sessions import Accepted, JoinRequest, Rejected, UnitSession
from diloco.wording import one_line, plural

_log = logging.getLogger(__name__)

LEFT_EARLY = "left its training loop before the job was done"
"""The message of a unit whose program did that."""


class Membership:
    """The open sessions of one job, and what their start and end mean for exchanges and work. `now` is in seconds on one clock."""

    def __init__(
        self,
        config: SyncerConfig,
        job: JobParts,
        fences: FenceWriter,
        recoveries: Recoveries,
        starting: ModelStart | None = None,
    ) -> None:
        """`fences` must cause a call of `admit` whenever it has written."""
        self._config = config
        self._job = job
        self._fences = fences
        self._recoveries = recoveries
        self._starting = starting
        self._found_state = job.exchanges.seeded
        self._found = self._trained_before = job.exchanges.t
        """Outer step of the state that this process has found, and the newest one that a learner of an earlier state holds."""
        self._hello = HelloCheck(job, config.job.training.fragments, starting)
        self._welcomes = Welcomes(config.job.training.steps, job.exchanges, job.incarnation)
        self._brake = JoinBrake()
        self._ranks = Ranks(job, self._welcomes, self._brake)

    @property
    def remark(self) -> str:
        """How far the restart went back, judged by what learners hold. Empty if it did not."""
        steps = self._trained_before - self._found
        if not steps:
            return ""
        return (
            f"the restart went back {plural(steps, 'outer step')}, from {self._trained_before} to {self._found}, the newest on the volume; "
            "what was merged between them is trained again"
        )

    # --- joining ------------------------------------------------------------------------------------------------------

    def join(self, stream: LearnerStream, hello: Hello, owned: Owned | PieceError | LayoutError, now: float) -> None:
        """Answer a Hello: welcome the learner, refuse it, or let it wait until its fence is durable. `owned` is from `read_owned`."""
        request = JoinRequest(hello.job_uid, hello.unit, hello.attempt, hello.session)
        if wrong := self._hello.oversized(hello):
            self._refuse_join(stream, request, Rejected(Refused.PROTOCOL, wrong), now)
            return
        if hello.rank:
            self._join_rank(stream, hello, request, now)
            return
        rejected = self._job.sessions.reject(request)
        if rejected is None and not isinstance(owned, tuple):
            rejected = Rejected(Refused.LAYOUT, str(owned))
        elif rejected is None and (wrong := self._hello.wrong_layout(hello)):
            rejected = Rejected(Refused.LAYOUT, wrong)
        if rejected is not None:
            self._refuse_join(stream, request, rejected, now)
            return
        # Before the session is touched: a stream that must come back later shall not displace the present one.
        lacks = self._job.exchanges.lacks(self._job.exchanges.held(hello.versions) if self._hello.resumes(hello) else {})
        if why := self._brake.reason(hello.unit, lacks, now):
            self._job.sessions.expect(hello.unit, now)
            stream.retry(why)
            return
        accepted = self._job.sessions.join(request, stream.number)
        assert isinstance(accepted, Accepted)
        if accepted.displaced is not None:
            self._displace(accepted, now)
        resumed = accepted.known and self._hello.goes_on(hello)
        if self._found_state and hello.incarnation not in (b"", self._job.incarnation):
            held = min(max(hello.versions, default=0), self._config.job.training.steps)
            self._trained_before = max(self._trained_before, held)
        if accepted.known and not resumed:
            self._restart_session(hello.unit)
        elif accepted.released is not None:
            self._job.work.end(accepted.released)
        session = self._job.sessions.session(hello.unit)
        assert session is not None
        assert isinstance(owned, tuple)
        stream.owned = owned
        self._ranks.give_portions(stream)
        stream.joining = Joining(session, hello, resumed)
        if accepted.fenced:
            # It joins once this is durable. If it joined before and the syncer died, an older attempt could come back beside it.
            self._fences.write(self._job.sessions.fences)
        self.admit(now)

    def admit(self, now: float) -> None:
        """Begin the sessions of all streams whose fences are durable by now."""
        for stream, joining in self._job.streams.joining():
            if self._fences.settled(joining.session.unit, joining.session.attempt):
                stream.joining = None
                try:
                    self._begin_session(stream, joining, now)
                except Exception as error:  # noqa: BLE001 - a defect that one Hello has shown; `fail` logs it
                    self.fail(stream, "Hello", error, now)
                stream.join_decided.set()

    def _join_rank(self, stream: LearnerStream, hello: Hello, request: JoinRequest, now: float) -> None:
        """Answer the Hello of a follower: it takes part in the session of its leader."""
        if rejected := self._ranks.join(stream, hello, request, now):
            self._refuse_join(stream, request, rejected, now)
            return
        session = stream.session
        if session is None or not stream.complete:
            return
        _log.info("all %d ranks of unit %s have joined", len(stream.leader.owned), session.unit)
        stats = self._job.unit_stats.of(session.unit)
        if stats.phase is Phase.DISCONNECTED:
            stats.joined(session.attempt, now)
        self._job.changes.notify()
        self._find_seeder()

    def _begin_session(self, stream: LearnerStream, joining: Joining, now: float) -> None:
        session, hello = joining.session, joining.hello
        stream.session = session
        stream.inner_state, stream.locality, stream.cluster = hello.inner_state, hello.locality, hello.cluster
        addresses = hello.rank_addresses if hello.ranks else [hello.peer_address]
        stream.addresses = tuple(addresses) if all(addresses) and len(addresses) == max(1, hello.ranks) else ()
        self._job.work.begin(session)
        self._job.unit_stats.of(session.unit).joined(session.attempt, now)
        self._job.changes.notify()
        resumed = ", resumed" if joining.resumed else ""
        _log.info("unit %s joins as attempt %d (%s)%s", session.unit, session.attempt, one_line(hello.framework, MOST_TEXT), resumed)
        self._welcome_learner(stream, session, hello, now, resumed=joining.resumed)
        self._recoveries.joined(stream, session)

    def _welcome_learner(self, stream: LearnerStream, session: UnitSession, hello: Hello, now: float, *, resumed: bool) -> None:
        """Send Welcome, parameters and leases to a learner that has joined."""
        exchanges = self._job.exchanges
        if exchanges.seeded:
            stream.outgoing.urgent(self._welcomes.message(stream, resumed=resumed, seed_wanted=False))
            held = exchanges.held(hello.versions) if resumed else {}
            self._brake.sent(session.unit, exchanges.lacks(held, stream.portions), now)
            exchanges.join(stream, session, held, now)
            if exchanges.finished:
                stream.outgoing.post(ToLearner(done=Done(t=exchanges.t)))
        else:
            if exchanges.seeding.stream is None and stream.complete:
                self._ask_for_seed(stream)
            stream.outgoing.urgent(self._welcomes.message(stream, resumed=resumed, seed_wanted=exchanges.seeding.stream == stream.number))
        if resumed:
            for lease, start, end in self._job.work.unreceived(session, hello.samples_leased):
                stream.outgoing.urgent(ToLearner(work=Work(lease=lease, start=start, end=end)))

    def _ask_for_seed(self, stream: LearnerStream) -> None:
        if self._starting is not None:
            self._starting.begin(self._job.exchanges.opened())
            return
        self._job.exchanges.seeding.ask(stream.number)
        for rank_stream in stream.unit_streams:
            rank_stream.seed_asked = True

    def _refuse_join(self, stream: LearnerStream, request: JoinRequest, rejected: Rejected, now: float) -> None:
        # A pod of another job says nothing about this job's units.
        if rejected.code != Refused.WRONG_JOB and request.unit:
            stats = self._job.unit_stats.of(request.unit)
            stats.refuse(reason_of(rejected.code), rejected.message)
            # An older attempt may still try to join. It must not hide the state of the newest one.
            if rejected.code == Refused.LAYOUT and request.attempt >= stats.attempt:
                if request.attempt > stats.attempt:  # one that tries again and again is not heard from anew each time
                    stats.attempt, stats.heard_at = request.attempt, now
                stats.lost(now, rejected.message, Phase.REFUSED)
        _log.warning("refused (%s): %s", name_of(rejected.code), rejected.message)
        stream.refuse(rejected)
        self._job.changes.notify()

    def _displace(self, accepted: Accepted, now: float) -> None:
        assert accepted.displaced is not None
        former = self._job.streams.get(accepted.displaced)
        # From here on no exchange waits for what the old stream still sends.
        self._job.exchanges.leave(accepted.session.unit, now)
        if self._job.exchanges.seeding.stream == accepted.displaced:
            self._job.exchanges.seeding.stop()
        if former is None:
            return
        former.session = former.joining = None
        streams = [former, *self._ranks.release(former)]
        if accepted.known:
            for stream in streams:
                stream.retry("the same session has opened another stream")
            return
        message = f"attempt {accepted.session.attempt} of unit {accepted.session.unit} has joined: older attempts are fenced"
        self._job.unit_stats.of(accepted.session.unit).refuse(reason_of(Refused.FENCED), message)
        for stream in streams:
            stream.refuse(Rejected(Refused.FENCED, message))

    def _restart_session(self, unit: str) -> None:
        restarted = self._job.sessions.restart(unit)
        assert restarted is not None
        self._job.work.end(restarted[0])

    # --- leaving ------------------------------------------------------------------------------------------------------

    def bye(self, stream: LearnerStream, session: UnitSession, bye: Bye, now: float) -> None:
        """End the session of a learner that says Bye, and close its stream."""
        stats = self._job.unit_stats.of(session.unit)
        if self._job.exchanges.finished:
            stats.finished(now)
        else:
            stats.lost(now, LEFT_EARLY if bye.left else "drained")
            stats.left = bye.left
        _log.info("unit %s leaves after Bye%s", session.unit, f": {LEFT_EARLY}" if bye.left and not self._job.exchanges.finished else "")
        self._end_session(stream, session, now)
        stream.outgoing.close()
        for follower in self._ranks.release(stream):
            follower.outgoing.close(at_once=True)

    def refuse(self, stream: LearnerStream, rejected: Rejected, now: float) -> None:
        """Refuse a joined learner for what it or one of its ranks did: end its session and all its streams."""
        stream = stream.leader
        session = stream.session
        assert session is not None
        stats = self._job.unit_stats.of(session.unit)
        stats.refuse(reason_of(rejected.code), rejected.message)
        _log.warning("unit %s is refused (%s): %s", session.unit, name_of(rejected.code), rejected.message)
        stats.lost(now, rejected.message, Phase.REFUSED)
        self._end_session(stream, session, now)
        for rank_stream in (stream, *self._ranks.release(stream)):
            rank_stream.refuse(rejected)

    def fail(self, stream: LearnerStream, what: str, error: Exception, now: float) -> None:
        """Refuse the unit of a stream whose message, named `what`, could not be handled. A stream that has not joined ends alone."""
        why = f"the syncer could not handle {what}: {type(error).__name__}: {error}"
        _log.error("stream %d: %s", stream.number, why, exc_info=error)
        rejected = Rejected(Refused.PROTOCOL, why)
        if stream.leader.session is not None:
            self.refuse(stream, rejected, now)
        else:
            self.refuse_stream(stream, rejected, now)
        stream.join_decided.set()

    def refuse_stream(self, stream: LearnerStream, rejected: Rejected, now: float) -> None:
        """Refuse a stream that has not joined, or is still joining, and end its session."""
        stream.joining = None
        session = self._job.sessions.of_stream(stream.number)
        if session is not None:
            self._end_session(stream, session, now)
        else:
            self._find_seeder(stream.number)  # its Hello may have given the job a layout
        stream.refuse(rejected)

    def reject_contribution(self, order: ContributionRejected, now: float) -> None:
        """Act on a contribution that the guards have refused: its learner takes the job's parameters anew, or is quarantined."""
        stats = self._job.unit_stats.of(order.unit)
        stats.refuse(order.refusal.reason.value, order.refusal.message)
        self._job.work.note("refuse", unit=order.unit, reason=order.refusal.reason.value, message=order.refusal.message)
        _log.warning("%s", order.refusal.message)
        self._job.changes.notify()
        session = self._job.sessions.session(order.unit)
        if session is None or session.holder != order.session:
            return  # another process acts for the unit now
        stream = self._job.streams.of_session(session)
        if order.quarantined:
            message = (
                f"attempt {session.attempt} of unit {session.unit} is quarantined: its contributions were refused again and again, "
                f"although it took the job's parameters each time. The last one: {order.refusal.message}"
            )
            self._job.sessions.quarantine(session.unit, session.attempt, message)
            if stream is not None:
                self.refuse(stream, Rejected(Refused.QUARANTINED, message), now)
                return
        stats.lost(now, order.refusal.message)
        self._job.sessions.expect(session.unit, now)
        if stream is None:  # its connection is lost; without a session it is not resumed
            self._job.sessions.end(session.unit)
            self._job.work.end(session.holder)
            return
        self._end_session(stream, session, now)
        for rank_stream in (stream, *self._ranks.release(stream)):
            rank_stream.retry(f"{order.refusal.message}; join again, and take the job's parameters")

    def stream_lost(self, stream: LearnerStream, why: str, now: float) -> None:
        """Note that the stream is over. Without a Bye its session stays open for the reconnect window. A leader's followers end with it."""
        self._job.streams.remove(stream)
        stream.outgoing.close(at_once=True)
        if stream.rank:
            self._rank_lost(stream, why, now)
            return
        for follower in self._ranks.release(stream):
            follower.retry("the stream of the unit's leader, rank 0, has ended")
        session = stream.session or (stream.joining.session if stream.joining is not None else None)
        stream.session = stream.joining = None
        if session is None or not self._job.sessions.stream_lost(session.unit, stream.number, now):
            return
        _log.warning("lost unit %s: %s", session.unit, why)
        self._job.unit_stats.of(session.unit).lost(now, f"connection lost: {why}")
        self._job.exchanges.leave(session.unit, now)
        self._job.changes.notify()
        self._find_seeder(stream.number)

    def _rank_lost(self, stream: LearnerStream, why: str, now: float) -> None:
        """Keep the unit a member, but pull nothing until the rank is back. Once the job is over, a rank may go before its leader."""
        session = self._ranks.lost(stream)
        if session is None:
            return
        if self._job.exchanges.finished:
            _log.info("rank %d of unit %s has ended its stream", stream.rank, session.unit)
            return
        _log.warning("lost rank %d of unit %s: %s", stream.rank, session.unit, why)
        self._job.unit_stats.of(session.unit).lost(now, f"connection of rank {stream.rank} lost: {why}")
        self._job.changes.notify()
        self._find_seeder(stream.leader.number)

    def expire(self, now: float) -> None:
        """End the sessions whose reconnect window is over."""
        for session in self._job.sessions.expire(now):
            freed = self._job.work.end(session.holder)
            self._recoveries.ended(session.unit)
            _log.info("unit %s did not reconnect in time; %d samples are free again", session.unit, freed)
            self._job.changes.notify()

    def _end_session(self, stream: LearnerStream, session: UnitSession, now: float) -> None:
        stream.session = None
        self._job.sessions.leave(session.unit, stream.number)
        self._recoveries.ended(session.unit)
        self._job.work.end(session.holder)
        self._job.exchanges.leave(session.unit, now)
        self._job.changes.notify()
        self._find_seeder(stream.number)

    def _find_seeder(self, gone: int | None = None) -> None:
        """Ask a joined learner for the seed if none is asked, or the asked one is gone. If no learner is left, forget the model's layout.

        `gone` is the stream that has ended, or None.
        """
        exchanges = self._job.exchanges
        if exchanges.core is None or exchanges.seeded:
            return
        if exchanges.seeding.stream == gone:
            exchanges.seeding.stop()
        if exchanges.seeding.stream is not None:
            return
        for stream, _ in self._job.streams.joined():
            if stream.complete:
                self._ask_for_seed(stream)
                if self._starting is None:
                    for rank_stream in stream.unit_streams:
                        rank_stream.outgoing.urgent(self._welcomes.message(rank_stream, resumed=True, seed_wanted=True))
                return
        if not self._job.streams.joined() and not self._job.streams.joining():
            exchanges.core = None
