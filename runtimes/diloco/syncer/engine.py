"""The owner of the syncer's state: one task that takes the learners' events one by one, passes them to the pure core, and carries out the
core's actions. Only this task uses core, ledger, session registry and unit statistics, so the order of the queue is the order of changes.

Decoding and merging of a large fragment run in a thread. The event loop serves the streams meanwhile; events wait their turn.

See docs/decisions/0072-threads-and-event-loops.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import math
import time
from collections.abc import Callable

from diloco.algorithm.codec import Coding, encode, payload_bytes
from diloco.algorithm.core import Core
from diloco.algorithm.events import Action, Broadcast, Finish, Merged, Metadata, Pull, Push, Reason, Skipped, Snapshot
from diloco.algorithm.layout import Layout, LayoutError, TensorSpec
from diloco.contract import Result
from diloco.data.ledger import LedgerError
from diloco.protocol.diloco_pb2 import Chunk, Done, FragmentNames, Refused, Report, ToLearner, Welcome, Work
from diloco.protocol.framing import FramingError, Transfer
from diloco.protocol.refusal import name_of, reason_of
from diloco.syncer.changes import Changes
from diloco.syncer.config import SyncerConfig
from diloco.syncer.event_writer import EventWriter
from diloco.syncer.fences import save_fences
from diloco.syncer.outgoing import Version
from diloco.syncer.peer import (
    ByeReceived,
    EvaluationReceived,
    HelloReceived,
    Peer,
    ProgressReported,
    ProtocolViolation,
    StreamEvent,
    StreamLost,
    TransferReceived,
    UncommittedLeases,
    WorkRequested,
)
from diloco.syncer.reports import Facts, held_out_loss, ledger_text, make_report, make_result
from diloco.syncer.restore import RestoredState, snapshot_data
from diloco.syncer.scalars import HELD_OUT_LOSS, step_scalars
from diloco.syncer.seeding import seed_values
from diloco.syncer.sessions import Accepted, JoinRequest, Rejected, SessionRegistry, UnitSession
from diloco.syncer.snapshot_writer import SnapshotData, SnapshotWriter
from diloco.syncer.unit_stats import Phase

_log = logging.getLogger(__name__)

INLINE_ELEMENTS = 1 << 18
"""Fragments up to this many values (1 MiB) are merged and decoded in the event loop: a thread would cost more."""
MOST_SAMPLES = 1 << 24
"""Upper bound of the samples that one request for work leases."""


_FINAL_COPIES = 5
"""Further attempts to copy the final snapshot to `checkpoint.uri`. After them the job is complete without the copy, and its result says
so: the snapshot on the volume is what counts."""


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
        events: EventWriter,
        changes: Changes,
        incarnation: bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`incarnation`: random, names this process and its restored state."""
        self._config = config
        self._training = config.job.training
        self._core = state.core
        self._ledger = state.ledger
        self._unit_stats = state.unit_stats
        self._evaluations = state.evaluations
        self._losses = state.losses
        self._message = state.message
        self._snapshots = snapshots
        self._event_writer = events
        self._changes = changes
        self._incarnation = incarnation
        self._clock = clock
        self._sessions = SessionRegistry(config.job.uid, state.fences, config.timeouts.reconnect_window)
        self._uncommitted: dict[str, UncommittedLeases] = {}
        self._peers: dict[int, Peer] = {}
        self._streams = 0
        self._seeder: int | None = None
        self._asked_to_seed: set[str] = set()
        """Holders that were asked for the seed and whose seed was not taken: their version 0 is their own, not the job's."""
        self._events: asyncio.Queue[StreamEvent | None] = asyncio.Queue()
        self._at_work = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._evaluated_anew = False
        self._began_finished = state.core is not None and state.core.t == self._training.steps
        self._finished_at: float | None = None
        self._complete = False

    # --- called by the streams ----------------------------------------------------------------------------------------

    def connect(self) -> Peer:
        """Register a new stream."""
        self._streams += 1
        peer = Peer(self._streams)
        if self._stopping.is_set():
            peer.retry_reason = "the syncer is shutting down"
            peer.outgoing.close(at_once=True)
        self._peers[peer.stream] = peer
        return peer

    def submit(self, event: StreamEvent) -> None:
        """Queue `event`."""
        self._events.put_nowait(event)

    def expected_bytes(self, chunk: Chunk) -> int:
        """Bytes of the payload that a joined learner's chunk begins. Raises FramingError for a chunk that a learner may not send."""
        core = self._core
        if core is None or chunk.fragment >= len(core.fragments):
            raise FramingError(f"there is no fragment {chunk.fragment} in this job")
        if chunk.kind == Chunk.SEED and chunk.coding == Chunk.FLOAT32:
            return payload_bytes(Coding.FLOAT32, core.fragments[chunk.fragment].size)
        if chunk.kind == Chunk.PUSH and chunk.coding in Coding:
            return payload_bytes(Coding(chunk.coding), core.fragments[chunk.fragment].size)
        raise FramingError(f"a learner cannot send {Chunk.Kind.Name(chunk.kind)} coded as {Chunk.Coding.Name(chunk.coding)}")

    async def report(self) -> Report:
        """The present state of the job."""
        async with self._at_work:
            return make_report(self._facts(), self._core, self._ledger, self._unit_stats, self._clock())

    def result(self) -> Result:
        """The result of a complete job."""
        assert self._core is not None
        return make_result(self._facts(), self._core, self._ledger, self._unit_stats)

    def ledger(self) -> str:
        """Which samples were trained, human-readable."""
        return ledger_text(self._ledger)

    def _facts(self) -> Facts:
        newest = self._snapshots.newest
        return Facts(
            incarnation=self._incarnation,
            steps=self._training.steps,
            snapshot_t=self._snapshots.snapshot_t,
            snapshot=str(newest.path.relative_to(self._config.state_dir)) if newest is not None else "",
            snapshot_copied=newest is not None and newest.copied,
            snapshot_error=self._snapshots.error,
            message="; ".join(text for text in (self._message, self._event_writer.error) if text),
            complete=self._complete,
            draining=self._stopping.is_set(),
            evaluations=self._evaluations,
            losses=self._losses,
        )

    def stop(self) -> None:
        """Request the end, as SIGTERM does: close the streams and write a snapshot."""
        self._stopping.set()
        self._events.put_nowait(None)
        self._changes.notify()

    # --- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> RunOutcome:
        """Run until the job is complete or `stop` is called, and close the streams.

        After COMPLETE the final snapshot is durable. After DRAINED the newest snapshot that the volume could take is.
        """
        async with self._at_work:
            await self._advance()
        while not self._stopping.is_set() and not self._over():
            try:
                event = await asyncio.wait_for(self._events.get(), self._timeout())
            except TimeoutError:
                event = None
            async with self._at_work:
                if event is not None:
                    await self._take(event)
                self._expire()
                await self._advance()
        self._disconnect()
        return await self._conclude()

    def _over(self) -> bool:
        until = self._farewell_until()
        return until is not None and self._clock() >= until

    def _farewell_until(self) -> float | None:
        """When to end after the last step: once no learner is connected that still may evaluate and say Bye."""
        if self._finished_at is None:
            return None
        if any(peer.session is not None for peer in self._peers.values()):
            return self._finished_at + self._config.timeouts.farewell
        away = self._sessions.wake_at() is not None
        return self._finished_at + (self._config.timeouts.linger if away or self._began_finished else 0.0)

    def _timeout(self) -> float | None:
        now = self._clock()
        wakes = [self._sessions.wake_at(), self._farewell_until(), self._core.wake_at(now) if self._core else None]
        soonest = min((at for at in wakes if at is not None), default=None)
        return None if soonest is None else max(0.0, soonest - now)

    def _disconnect(self) -> None:
        for peer in self._peers.values():
            if self._stopping.is_set():
                peer.retry_reason = "the syncer is shutting down"
            peer.outgoing.close(at_once=self._stopping.is_set())

    async def _conclude(self) -> RunOutcome:
        """Write the last snapshot. A finished job is complete only when its final snapshot is durable."""
        await self._snapshots.idle()
        core = self._core
        if core is None or not core.seeded:
            return RunOutcome.DRAINED
        self._record_held_out_loss(core)
        durable = self._snapshots.snapshot_t == core.t and self._finished_at is not None and not self._evaluated_anew
        while not durable:
            durable = await self._snapshots.save(self._snapshot_data(core))
            if durable or self._stopping.is_set():
                break
            _log.error("the final snapshot is written again in %.0f s", self._config.timeouts.final_retry)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._config.timeouts.final_retry)
        if self._finished_at is None or not durable:
            return RunOutcome.DRAINED
        for _ in range(_FINAL_COPIES):  # the last snapshot has no next one that would bring its copy
            if self._stopping.is_set() or await self._snapshots.copy():
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._config.timeouts.final_retry)
        self._complete = True
        self._changes.notify()
        return RunOutcome.COMPLETE

    def _snapshot_data(self, core: Core) -> SnapshotData:
        return snapshot_data(core, self._ledger, self._unit_stats, self._config.job, self._sessions.fences, self._evaluations, self._losses)

    # --- events -------------------------------------------------------------------------------------------------------

    async def _take(self, event: StreamEvent) -> None:
        peer = event.peer
        now = self._clock()
        if isinstance(event, HelloReceived):
            await self._join(peer, event, now)
            peer.join_decided.set()
        elif isinstance(event, StreamLost):
            self._stream_lost(peer, event.why, now)
        elif peer.session is not None:
            await self._handle(peer, peer.session, event, now)
        if not isinstance(event, (ProgressReported, StreamLost)):
            peer.slots.release()

    async def _handle(self, peer: Peer, session: UnitSession, event: StreamEvent, now: float) -> None:
        match event:
            case ProgressReported():
                self._progress_reported(peer, session, now)
            case TransferReceived() if event.transfer.header.kind == Chunk.SEED:
                await self._seeded(peer, session, event.transfer, now)
            case TransferReceived():
                await self._push_received(peer, session, event.transfer, now)
            case WorkRequested():
                self._lease(peer, session, event.samples)
            case EvaluationReceived():
                self._evaluation_received(session, event)
            case ByeReceived():
                self._bye_received(peer, session, now)
            case ProtocolViolation():
                self._refuse(peer, Refused.PROTOCOL, event.why, now)

    async def _join(self, peer: Peer, event: HelloReceived, now: float) -> None:
        hello = event.hello
        request = JoinRequest(hello.job_uid, hello.unit, hello.attempt, hello.session)
        rejected = self._sessions.reject(request)
        if rejected is None and (wrong := self._wrong_layout(event)):
            rejected = Rejected(Refused.LAYOUT, wrong)
        if rejected is not None:
            self._refuse_join(peer, request, rejected, now)
            return
        accepted = self._sessions.join(request, peer.stream)
        assert isinstance(accepted, Accepted)
        if accepted.fenced:
            await self._save_fences()
        if accepted.displaced is not None:
            self._displace(accepted, now)
        resumed = accepted.known and hello.incarnation == self._incarnation
        if accepted.known and not resumed:
            self._restart_session(hello.unit)
        elif accepted.released is not None:
            self._uncommitted.pop(accepted.released, None)
        session = self._sessions.session(hello.unit)
        assert session is not None
        assert self._core is not None
        peer.session = session
        self._ledger.begin(session.unit, session.attempt, session.holder)
        self._unit_stats.of(session.unit).joined(session.attempt, now)
        self._changes.notify()
        _log.info("unit %s joins as attempt %d (%s)%s", session.unit, session.attempt, hello.framework, ", resumed" if resumed else "")
        if self._core.seeded:
            peer.outgoing.urgent(self._welcome(self._core, resumed=resumed, seed_wanted=False))
            own_seed = session.holder in self._asked_to_seed
            self._asked_to_seed.discard(session.holder)
            known = dict(enumerate(hello.versions)) if resumed and not own_seed else {}
            self._send_parameters(peer, self._core, known)
            self._core.join(session.unit, now)
            if self._finished_at is not None:
                peer.outgoing.post(ToLearner(done=Done(t=self._core.t)))
        else:
            if self._seeder is None:
                self._seeder = peer.stream
                self._asked_to_seed.add(session.holder)
            peer.outgoing.urgent(self._welcome(self._core, resumed=resumed, seed_wanted=self._seeder == peer.stream))
        if resumed:
            for lease, start, end in self._uncommitted.get(session.holder, UncommittedLeases()).after(hello.samples_leased):
                peer.outgoing.urgent(ToLearner(work=Work(lease=lease, start=start, end=end)))

    def _wrong_layout(self, event: HelloReceived) -> str:
        """What is wrong with the layout in a Hello; empty: nothing. Without a state, the first learner's layout is the job's."""
        try:
            layout = Layout(TensorSpec(x.name, tuple(x.shape), x.embedding) for x in event.hello.tensors)
            if layout.fingerprint != event.hello.fingerprint:
                return "the fingerprint is not that of the tensors: learner and syncer are of different versions"
            if self._core is None:
                self._core = Core(layout, self._training)
        except LayoutError as error:
            return str(error)
        if not (difference := layout.difference(self._core.layout)):
            return ""
        shown = "; ".join(difference[:10]) + (f"; and {len(difference) - 10} more" if len(difference) > 10 else "")
        return f"the parameters of unit {event.hello.unit} are not those of this job: {shown}"

    def _refuse_join(self, peer: Peer, request: JoinRequest, rejected: Rejected, now: float) -> None:
        if rejected.code != Refused.WRONG_JOB and request.unit:
            stats = self._unit_stats.of(request.unit)
            stats.refuse(reason_of(rejected.code))
            if rejected.code == Refused.LAYOUT and request.attempt >= stats.attempt:
                stats.attempt = request.attempt
                stats.lost(now, rejected.message, Phase.REFUSED)
        _log.warning("refused (%s): %s", name_of(rejected.code), rejected.message)
        peer.outgoing.close(ToLearner(refused=Refused(code=rejected.code, message=rejected.message)))
        self._changes.notify()

    def _displace(self, accepted: Accepted, now: float) -> None:
        assert accepted.displaced is not None
        former = self._peers.get(accepted.displaced)
        if self._core is not None:
            self._core.leave(accepted.session.unit, now)
        if self._seeder == accepted.displaced:
            self._seeder = None
        if former is None:
            return
        former.session = None
        if accepted.known:
            former.retry_reason = "the same session has opened another stream"
            former.outgoing.close(at_once=True)
            return
        self._unit_stats.of(accepted.session.unit).refuse(reason_of(Refused.FENCED))
        message = f"attempt {accepted.session.attempt} of unit {accepted.session.unit} has joined: older attempts are fenced"
        former.outgoing.close(ToLearner(refused=Refused(code=Refused.FENCED, message=message)), at_once=True)

    def _restart_session(self, unit: str) -> None:
        restarted = self._sessions.restart(unit)
        assert restarted is not None
        self._uncommitted.pop(restarted[0], None)

    async def _save_fences(self) -> None:
        try:
            await asyncio.to_thread(save_fences, self._config.state_dir, self._config.job.uid, self._sessions.fences)
        except OSError as error:
            # Not the learner's fault: training goes on, and the next snapshot holds the fences as well.
            _log.error("the fences could not be written to %s: %s", self._config.state_dir, error.strerror or error)

    def _progress_reported(self, peer: Peer, session: UnitSession, now: float) -> None:
        progress, peer.progress = peer.progress, None
        if progress is None or self._core is None:
            return
        metadata = Metadata(progress.local_step, tuple(progress.steps), tuple(progress.tokens), progress.step_seconds)
        try:
            self._core.progress(session.unit, metadata, now)
        except ValueError as error:
            self._refuse(peer, Refused.PROTOCOL, str(error), now)
            return
        stats = self._unit_stats.of(session.unit)
        if stats.progressed(progress.local_step, progress.step_seconds, progress.loss, progress.tokens_done, now):
            self._changes.notify()

    async def _push_received(self, peer: Peer, session: UnitSession, transfer: Transfer, now: float) -> None:
        header, core = transfer.header, self._core
        assert core is not None
        push = Push(header.fragment, header.t, Coding(header.coding), header.base, transfer.payload, header.steps, header.tokens)
        refusal = await self._work(core, header.fragment, lambda: core.push(session.unit, push, now))
        stats = self._unit_stats.of(session.unit)
        if refusal is not None:
            if refusal.reason is Reason.NON_FINITE:
                self._refuse(peer, Refused.NONFINITE, refusal.message, now)
            else:
                stats.refuse(refusal.reason.value)
                _log.info("%s", refusal.message)
            return
        stats.contributed(now)
        try:
            self._ledger.commit(session.unit, session.attempt, header.samples_done, header.tokens_done, header.steps_done)
        except LedgerError as error:
            self._refuse(peer, Refused.PROTOCOL, str(error), now)
            return
        self._uncommitted.get(session.holder, UncommittedLeases()).committed(header.samples_done)

    def _lease(self, peer: Peer, session: UnitSession, samples: int) -> None:
        left = min(samples, MOST_SAMPLES)
        uncommitted = self._uncommitted.setdefault(session.holder, UncommittedLeases())
        while left > 0:
            lease = self._ledger.lease(session.unit, session.attempt, session.holder, left)
            uncommitted.add(lease.id, lease.start, lease.end)
            peer.outgoing.urgent(ToLearner(work=Work(lease=lease.id, start=lease.start, end=lease.end)))
            left -= lease.end - lease.start

    def _evaluation_received(self, session: UnitSession, event: EvaluationReceived) -> None:
        loss, tokens = event.evaluation.held_out_loss, event.evaluation.tokens
        if self._finished_at is None or not math.isfinite(loss) or not tokens:
            _log.warning("unit %s reports a held-out loss of %s over %d tokens: not used", session.unit, loss, tokens)
            return
        self._evaluations[session.unit] = (loss, tokens)
        if self._core is not None and (mean := held_out_loss(self._evaluations)) is not None:
            self._losses.held_out.add(self._core.t, mean)
        self._evaluated_anew = True
        self._changes.notify()

    # --- leaving ------------------------------------------------------------------------------------------------------

    def _bye_received(self, peer: Peer, session: UnitSession, now: float) -> None:
        stats = self._unit_stats.of(session.unit)
        if self._finished_at is not None:
            stats.finished(now)
        else:
            stats.lost(now, "drained")
        _log.info("unit %s leaves after Bye", session.unit)
        self._end_session(peer, session, now)
        peer.outgoing.close()

    def _refuse(self, peer: Peer, code: Refused.Code, message: str, now: float) -> None:
        """Refuse a joined learner: end its session and its stream."""
        session = peer.session
        assert session is not None
        stats = self._unit_stats.of(session.unit)
        stats.refuse(reason_of(code))
        _log.warning("unit %s is refused (%s): %s", session.unit, name_of(code), message)
        stats.lost(now, message, Phase.REFUSED)
        self._end_session(peer, session, now)
        peer.outgoing.close(ToLearner(refused=Refused(code=code, message=message)), at_once=True)

    def _stream_lost(self, peer: Peer, why: str, now: float) -> None:
        self._peers.pop(peer.stream, None)
        peer.outgoing.close(at_once=True)
        session, peer.session = peer.session, None
        if session is None or not self._sessions.stream_lost(session.unit, peer.stream, now):
            return
        _log.warning("lost unit %s: %s", session.unit, why)
        self._unit_stats.of(session.unit).lost(now, f"connection lost: {why}")
        if self._core is not None:
            self._core.leave(session.unit, now)
        self._changes.notify()
        self._find_seeder(peer.stream)

    def _end_session(self, peer: Peer, session: UnitSession, now: float) -> None:
        """End the session and release its work."""
        peer.session = None
        self._sessions.leave(session.unit, peer.stream)
        self._ledger.release(session.unit, session.attempt)
        self._uncommitted.pop(session.holder, None)
        if self._core is not None:
            self._core.leave(session.unit, now)
        self._changes.notify()
        self._find_seeder(peer.stream)

    def _expire(self) -> None:
        for session in self._sessions.expire(self._clock()):
            back = self._ledger.release(session.unit, session.attempt)
            self._uncommitted.pop(session.holder, None)
            _log.info("unit %s did not reconnect in time; %d samples are free again", session.unit, sum(end - start for start, end in back))
            self._changes.notify()

    # --- seed ----------------------------------------------------------------------------------------------------------

    def _find_seeder(self, gone: int) -> None:
        """If the seeder is gone, ask another joined learner for the seed; without one, forget the model's layout."""
        if self._core is None or self._core.seeded:
            return
        if self._seeder == gone:
            self._seeder = None
        if self._seeder is not None:
            return
        for stream, peer in sorted(self._peers.items()):
            if peer.session is not None:
                self._seeder = stream
                self._asked_to_seed.add(peer.session.holder)
                peer.outgoing.urgent(self._welcome(self._core, resumed=True, seed_wanted=True))
                return
        self._core = None

    async def _seeded(self, peer: Peer, session: UnitSession, transfer: Transfer, now: float) -> None:
        core = self._core
        assert core is not None
        if core.seeded or self._seeder != peer.stream:
            _log.info("unit %s sends a seed that is not needed any more", session.unit)
            return
        peer.seed[transfer.header.fragment] = transfer.payload
        if len(peer.seed) < len(core.fragments):
            return
        values = seed_values(core.fragments, peer.seed)
        peer.seed = {}
        refusal = await self._work(core, None, lambda: core.seed(values))
        if refusal is not None:
            code = Refused.NONFINITE if refusal.reason is Reason.NON_FINITE else Refused.PROTOCOL
            self._refuse(peer, code, refusal.message, now)
            return
        _log.info("unit %s has seeded the job", session.unit)
        self._seeder = None
        self._snapshots.offer(self._snapshot_data(core))
        for other in self._peers.values():
            if other.session is None:
                continue
            self._asked_to_seed.discard(other.session.holder)
            self._send_parameters(other, core, dict.fromkeys(range(len(core.fragments)), 0) if other is peer else {})
            core.join(other.session.unit, now)
        self._changes.notify()

    # --- sending ------------------------------------------------------------------------------------------------------

    def _welcome(self, core: Core, *, resumed: bool, seed_wanted: bool) -> ToLearner:
        fragments = [FragmentNames(names=[tensor.name for tensor in fragment.tensors]) for fragment in core.fragments]
        return ToLearner(
            welcome=Welcome(
                incarnation=self._incarnation,
                t=core.t,
                steps=self._training.steps,
                seed_wanted=seed_wanted,
                fragments=fragments,
                resumed=resumed,
            )
        )

    def _send_parameters(self, peer: Peer, core: Core, held: dict[int, int]) -> None:
        """Send every fragment whose current version the learner does not hold. `held`: per fragment the version that it holds."""
        for fragment in core.fragments:
            p = fragment.index
            if held.get(p) == core.version(p):
                peer.outgoing.holds(p, core.version(p))
            else:
                peer.outgoing.broadcast(_whole(core, p))

    async def _advance(self) -> None:
        core = self._core
        if core is None or not core.seeded:
            return
        now = self._clock()
        before = core.t
        actions = await self._work(core, None, lambda: core.advance(now))
        if core.t > before:
            self._record_step(core, now)  # before the actions: a snapshot of this step holds its loss
        for action in actions:
            self._carry_out(core, action)

    def _record_step(self, core: Core, now: float) -> None:
        loss = self._unit_stats.loss()
        if loss is not None:
            self._losses.training.add(core.t, loss)
        if self._event_writer.due(core.t):
            self._event_writer.offer(core.t, step_scalars(core, self._ledger, self._unit_stats, loss, now))

    def _record_held_out_loss(self, core: Core) -> None:
        """Once, after all evaluations: a reader shows every value of a step."""
        held_out = self._losses.held_out.points
        if not self._evaluated_anew or not held_out:
            return
        scalars = {HELD_OUT_LOSS: held_out[-1].loss}
        if self._began_finished:  # the event file of this process replaces the last step of the one before
            last = self._losses.training.points[-1:]
            scalars |= step_scalars(core, self._ledger, self._unit_stats, last[0].loss if last else None, self._clock())
        self._event_writer.offer(core.t, scalars)

    def _carry_out(self, core: Core, action: Action) -> None:
        match action:
            case Pull():
                for peer in self._peers.values():
                    if peer.session is not None and peer.session.unit in action.units:
                        peer.outgoing.pull(action.fragment, action.t)
            case Broadcast():
                whole = _whole(core, action.fragment)
                version = Version(action.fragment, action.t, action.base, action.coding, action.payload, whole.full)
                for peer in self._peers.values():
                    if peer.session is not None:
                        peer.outgoing.broadcast(version)
            case Merged():
                _log.debug("outer step %d merged fragment %d of %s", action.t, action.fragment, ", ".join(action.units))
            case Skipped():
                _log.info("outer step %d leaves fragment %d unchanged: %s", action.t, action.fragment, action.message)
            case Snapshot():
                self._snapshots.offer(self._snapshot_data(core))
            case Finish():
                self._finish(core)

    def _finish(self, core: Core) -> None:
        _log.info("outer step %d of %d is reached", core.t, self._training.steps)
        self._finished_at = self._clock()
        if not self._began_finished:
            self._snapshots.offer(self._snapshot_data(core))
        for peer in self._peers.values():
            if peer.session is not None:
                peer.outgoing.post(ToLearner(done=Done(t=core.t)))
        self._changes.notify()

    async def _work[T](self, core: Core, p: int | None, work: Callable[[], T]) -> T:
        """Run `work` of the core, in a thread if fragment p (None: the largest one) is large."""
        largest = max(fragment.size for fragment in core.fragments) if p is None else core.fragments[p].size
        return work() if largest <= INLINE_ELEMENTS else await asyncio.to_thread(work)


def _whole(core: Core, p: int) -> Version:
    """The current version of fragment p in FLOAT32."""
    value = core.value(p)
    return Version(p, core.version(p), -1, Coding.FLOAT32, b"", lambda: encode(Coding.FLOAT32, value))
