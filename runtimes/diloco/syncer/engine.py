"""The syncer's owner of state: one task that takes the learners' events one by one, puts them into the pure core, and carries out what
comes out. Nothing else touches core, ledger, roster and accounts, so their order is the order of the queue.

Merging or decoding a large fragment runs in a thread while the loop goes on reading and writing streams; events wait their turn.
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
from diloco.syncer.accounts import Phase
from diloco.syncer.changes import Changes
from diloco.syncer.config import Config
from diloco.syncer.fences import save_fences
from diloco.syncer.keeper import Keeper, Picture
from diloco.syncer.outgoing import Version
from diloco.syncer.peer import Broken, Delivered, Evaluated, Event, Garbled, Granted, Greeting, Parted, Peer, Stepped, Wanted
from diloco.syncer.reports import Facts, ledger_words, make_report, make_result
from diloco.syncer.restore import State, picture
from diloco.syncer.roster import Claim, Denied, Roster, Seat, Seated
from diloco.syncer.seeding import seed_values

_log = logging.getLogger(__name__)

INLINE_ELEMENTS = 1 << 18
"""Fragments up to this many values (1 MiB) are worked on in the loop: a thread costs more than they do."""
MOST_SAMPLES = 1 << 24
"""Samples that one request for work may lease."""


class Outcome(enum.Enum):
    """Why the engine stopped."""

    COMPLETE = enum.auto()
    DRAINED = enum.auto()


class Engine:
    """Runs one job to its last step."""

    def __init__(
        self, config: Config, state: State, keeper: Keeper, changes: Changes, epoch: bytes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`epoch` is random: it names this life of the syncer."""
        self._config = config
        self._training = config.job.training
        self._core = state.core
        self._ledger = state.ledger
        self._accounts = state.accounts
        self._evaluations = state.evaluations
        self._message = state.message
        self._keeper = keeper
        self._changes = changes
        self._epoch = epoch
        self._clock = clock
        self._roster = Roster(config.job.uid, state.fences, config.timeouts.reconnect_window)
        self._granted: dict[str, Granted] = {}
        self._peers: dict[int, Peer] = {}
        self._streams = 0
        self._seeder: int | None = None
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._at_work = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._evaluated_anew = False
        self._began_finished = state.core is not None and state.core.t == self._training.steps
        self._finished_at: float | None = None
        self._complete = False

    # --- called by the streams ----------------------------------------------------------------------------------------

    def connect(self) -> Peer:
        """A stream has been opened."""
        self._streams += 1
        peer = Peer(self._streams)
        if self._stopping.is_set():
            peer.retry = "the syncer is shutting down"
            peer.outgoing.close(at_once=True)
        self._peers[peer.stream] = peer
        return peer

    def submit(self, event: Event) -> None:
        """Let the engine take `event` in its turn."""
        self._events.put_nowait(event)

    def expected_bytes(self, chunk: Chunk) -> int:
        """How long the payload that a chunk of a greeted learner opens must be. Raises FramingError."""
        core = self._core
        if core is None or chunk.fragment >= len(core.fragments):
            raise FramingError(f"there is no fragment {chunk.fragment} in this job")
        if chunk.kind == Chunk.SEED and chunk.coding == Chunk.FLOAT32:
            return payload_bytes(Coding.FLOAT32, core.fragments[chunk.fragment].size)
        if chunk.kind == Chunk.PUSH and chunk.coding in Coding:
            return payload_bytes(Coding(chunk.coding), core.fragments[chunk.fragment].size)
        raise FramingError(f"a learner cannot send {Chunk.Kind.Name(chunk.kind)} coded as {Chunk.Coding.Name(chunk.coding)}")

    async def report(self) -> Report:
        """How the job stands now."""
        async with self._at_work:
            return make_report(self._facts(), self._core, self._ledger, self._accounts, self._clock())

    def result(self) -> Result:
        """The job's account, once it is complete."""
        assert self._core is not None
        return make_result(self._facts(), self._core, self._ledger, self._accounts)

    def ledger(self) -> str:
        """What was trained how often, for people."""
        return ledger_words(self._ledger)

    def _facts(self) -> Facts:
        return Facts(
            epoch=self._epoch,
            steps=self._training.steps,
            snapshot_t=self._keeper.snapshot_t,
            snapshot_error=self._keeper.error,
            message=self._message,
            complete=self._complete,
            draining=self._stopping.is_set(),
            evaluations=self._evaluations,
        )

    def stop(self) -> None:
        """SIGTERM: leave soon, with the state durable."""
        self._stopping.set()
        self._events.put_nowait(None)
        self._changes.notify()

    # --- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """Until the job is complete, or `stop`. The streams are closed, and what there is to keep is durable, when this returns
        COMPLETE; after DRAINED it is as durable as the volume allows."""
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
        """When to leave after the last step: as soon as nobody is left to say goodbye to."""
        if self._finished_at is None:
            return None
        if any(peer.seat is not None for peer in self._peers.values()):
            return self._finished_at + self._config.timeouts.farewell
        away = self._roster.wake_at() is not None
        return self._finished_at + (self._config.timeouts.linger if away or self._began_finished else 0.0)

    def _timeout(self) -> float | None:
        now = self._clock()
        wakes = [self._roster.wake_at(), self._farewell_until(), self._core.wake_at(now) if self._core else None]
        soonest = min((at for at in wakes if at is not None), default=None)
        return None if soonest is None else max(0.0, soonest - now)

    def _disconnect(self) -> None:
        for peer in self._peers.values():
            if self._stopping.is_set():
                peer.retry = "the syncer is shutting down"
            peer.outgoing.close(at_once=self._stopping.is_set())

    async def _conclude(self) -> Outcome:
        """Make the end durable. A finished job is not complete before its final snapshot is."""
        await self._keeper.idle()
        core = self._core
        if core is None or not core.seeded:
            return Outcome.DRAINED
        durable = self._keeper.snapshot_t == core.t and self._finished_at is not None and not self._evaluated_anew
        while not durable:
            durable = await self._keeper.save(self._picture(core))
            if durable or self._stopping.is_set():
                break
            _log.error("trying again to write the final snapshot in %.0f s", self._config.timeouts.final_retry)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._config.timeouts.final_retry)
        if self._finished_at is None or not durable:
            return Outcome.DRAINED
        self._complete = True
        self._changes.notify()
        return Outcome.COMPLETE

    def _picture(self, core: Core) -> Picture:
        return picture(core, self._ledger, self._accounts, self._config.job, self._roster.fences, self._evaluations)

    # --- events -------------------------------------------------------------------------------------------------------

    async def _take(self, event: Event) -> None:
        peer = event.peer
        now = self._clock()
        if isinstance(event, Greeting):
            await self._greet(peer, event, now)
            peer.greeted.set()
        elif isinstance(event, Broken):
            self._broken(peer, event.why, now)
        elif peer.seat is not None:
            await self._hear(peer, peer.seat, event, now)
        if not isinstance(event, (Stepped, Broken)):
            peer.slots.release()

    async def _hear(self, peer: Peer, seat: Seat, event: Event, now: float) -> None:
        match event:
            case Stepped():
                self._stepped(peer, seat, now)
            case Delivered() if event.transfer.header.kind == Chunk.SEED:
                await self._seeded(peer, seat, event.transfer, now)
            case Delivered():
                await self._pushed(peer, seat, event.transfer, now)
            case Wanted():
                self._lease(peer, seat, event.samples)
            case Evaluated():
                self._evaluated(seat, event)
            case Parted():
                self._parted(peer, seat, now)
            case Garbled():
                self._refuse(peer, Refused.PROTOCOL, event.why, now)

    async def _greet(self, peer: Peer, event: Greeting, now: float) -> None:
        hello = event.hello
        claim = Claim(hello.job_uid, hello.unit, hello.attempt, hello.session)
        denied = self._roster.deny(claim)
        if denied is None and (wrong := self._wrong_layout(event)):
            denied = Denied(Refused.LAYOUT, wrong)
        if denied is not None:
            self._turn_away(peer, claim, denied, now)
            return
        seated = self._roster.join(claim, peer.stream)
        assert isinstance(seated, Seated)
        if seated.fenced:
            await self._keep_fences()
        if seated.displaced is not None:
            self._displace(seated, now)
        resumed = seated.known and hello.epoch == self._epoch
        if seated.known and not resumed:
            self._renew(hello.unit)
        elif seated.released is not None:
            self._granted.pop(seated.released, None)
        seat = self._roster.seat(hello.unit)
        assert seat is not None
        assert self._core is not None
        peer.seat = seat
        self._ledger.begin(seat.unit, seat.attempt, seat.holder)
        self._accounts.of(seat.unit).joined(seat.attempt, now)
        self._changes.notify()
        _log.info("unit %s joins as attempt %d (%s)%s", seat.unit, seat.attempt, hello.framework, ", where it stopped" if resumed else "")
        if self._core.seeded:
            peer.outgoing.urgent(self._welcome(self._core, resumed=resumed, seed_wanted=False))
            known = dict(enumerate(hello.versions)) if resumed else {}
            self._hand_out(peer, self._core, known)
            self._core.join(seat.unit, now)
            if self._finished_at is not None:
                peer.outgoing.post(ToLearner(done=Done(t=self._core.t)))
        else:
            if self._seeder is None:
                self._seeder = peer.stream
            peer.outgoing.urgent(self._welcome(self._core, resumed=resumed, seed_wanted=self._seeder == peer.stream))
        if resumed:
            for lease, start, end in self._granted.get(seat.holder, Granted()).after(hello.samples_leased):
                peer.outgoing.urgent(ToLearner(work=Work(lease=lease, start=start, end=end)))

    def _wrong_layout(self, event: Greeting) -> str:
        """What is wrong with the layout in a Hello; empty: nothing. The first learner's layout is the job's until there is a state."""
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

    def _turn_away(self, peer: Peer, claim: Claim, denied: Denied, now: float) -> None:
        if denied.code != Refused.WRONG_JOB and claim.unit:
            account = self._accounts.of(claim.unit)
            account.refuse(reason_of(denied.code))
            if denied.code == Refused.LAYOUT and claim.attempt >= account.attempt:
                account.attempt = claim.attempt
                account.lost(now, denied.message, Phase.REFUSED)
        _log.warning("refused (%s): %s", name_of(denied.code), denied.message)
        peer.outgoing.close(ToLearner(refused=Refused(code=denied.code, message=denied.message)))
        self._changes.notify()

    def _displace(self, seated: Seated, now: float) -> None:
        assert seated.displaced is not None
        former = self._peers.get(seated.displaced)
        if self._core is not None:
            self._core.leave(seated.seat.unit, now)
        if self._seeder == seated.displaced:
            self._seeder = None
        if former is None:
            return
        former.seat = None
        if seated.known:
            former.retry = "the same session has opened another stream"
            former.outgoing.close(at_once=True)
            return
        self._accounts.of(seated.seat.unit).refuse(reason_of(Refused.FENCED))
        message = f"attempt {seated.seat.attempt} of unit {seated.seat.unit} has joined: older attempts are fenced"
        former.outgoing.close(ToLearner(refused=Refused(code=Refused.FENCED, message=message)), at_once=True)

    def _renew(self, unit: str) -> None:
        renewed = self._roster.renew(unit)
        assert renewed is not None
        self._granted.pop(renewed[0], None)

    async def _keep_fences(self) -> None:
        try:
            await asyncio.to_thread(save_fences, self._config.state_dir, self._config.job.uid, self._roster.fences)
        except OSError as error:
            # The learner is not to blame, and training goes on; the snapshot holds the fences as well.
            _log.error("the fences could not be written to %s: %s", self._config.state_dir, error.strerror or error)

    def _stepped(self, peer: Peer, seat: Seat, now: float) -> None:
        progress, peer.progress = peer.progress, None
        if progress is None or self._core is None:
            return
        metadata = Metadata(progress.local_step, tuple(progress.steps), tuple(progress.tokens), progress.step_seconds)
        try:
            self._core.progress(seat.unit, metadata, now)
        except ValueError as error:
            self._refuse(peer, Refused.PROTOCOL, str(error), now)
            return
        account = self._accounts.of(seat.unit)
        if account.stepped(progress.local_step, progress.step_seconds, progress.loss, progress.tokens_done, now):
            self._changes.notify()

    async def _pushed(self, peer: Peer, seat: Seat, transfer: Transfer, now: float) -> None:
        header, core = transfer.header, self._core
        assert core is not None
        push = Push(header.fragment, header.t, Coding(header.coding), header.base, transfer.payload, header.steps, header.tokens)
        refusal = await self._work(core, header.fragment, lambda: core.push(seat.unit, push, now))
        account = self._accounts.of(seat.unit)
        if refusal is not None:
            if refusal.reason is Reason.NON_FINITE:
                self._refuse(peer, Refused.NONFINITE, refusal.message, now)
            else:
                account.refuse(refusal.reason.value)
                _log.info("%s", refusal.message)
            return
        account.contributed(now)
        try:
            self._ledger.commit(seat.unit, seat.attempt, header.samples_done, header.tokens_done, header.steps_done)
        except LedgerError as error:
            self._refuse(peer, Refused.PROTOCOL, str(error), now)
            return
        self._granted.get(seat.holder, Granted()).committed(header.samples_done)

    def _lease(self, peer: Peer, seat: Seat, samples: int) -> None:
        left = min(samples, MOST_SAMPLES)
        granted = self._granted.setdefault(seat.holder, Granted())
        while left > 0:
            lease = self._ledger.lease(seat.unit, seat.attempt, seat.holder, left)
            granted.add(lease.id, lease.start, lease.end)
            peer.outgoing.urgent(ToLearner(work=Work(lease=lease.id, start=lease.start, end=lease.end)))
            left -= lease.end - lease.start

    def _evaluated(self, seat: Seat, event: Evaluated) -> None:
        loss, tokens = event.evaluation.held_out_loss, event.evaluation.tokens
        if self._finished_at is None or not math.isfinite(loss) or not tokens:
            _log.warning("unit %s reports a held-out loss of %s over %d tokens: not used", seat.unit, loss, tokens)
            return
        self._evaluations[seat.unit] = (loss, tokens)
        self._evaluated_anew = True
        self._changes.notify()

    # --- leaving ------------------------------------------------------------------------------------------------------

    def _parted(self, peer: Peer, seat: Seat, now: float) -> None:
        account = self._accounts.of(seat.unit)
        if self._finished_at is not None:
            account.finished(now)
        else:
            account.lost(now, "drained")
        _log.info("unit %s leaves after Bye", seat.unit)
        self._vacate(peer, seat, now)
        peer.outgoing.close()

    def _refuse(self, peer: Peer, code: Refused.Code, message: str, now: float) -> None:
        """End a seated learner's stream for good."""
        seat = peer.seat
        assert seat is not None
        account = self._accounts.of(seat.unit)
        account.refuse(reason_of(code))
        _log.warning("unit %s is refused (%s): %s", seat.unit, name_of(code), message)
        account.lost(now, message, Phase.REFUSED)
        self._vacate(peer, seat, now)
        peer.outgoing.close(ToLearner(refused=Refused(code=code, message=message)), at_once=True)

    def _broken(self, peer: Peer, why: str, now: float) -> None:
        self._peers.pop(peer.stream, None)
        peer.outgoing.close(at_once=True)
        seat, peer.seat = peer.seat, None
        if seat is None or not self._roster.break_off(seat.unit, peer.stream, now):
            return
        _log.warning("lost unit %s: %s", seat.unit, why)
        self._accounts.of(seat.unit).lost(now, f"connection lost: {why}")
        if self._core is not None:
            self._core.leave(seat.unit, now)
        self._changes.notify()
        self._find_seeder(peer.stream)

    def _vacate(self, peer: Peer, seat: Seat, now: float) -> None:
        """The session is over: its work goes back."""
        peer.seat = None
        self._roster.leave(seat.unit, peer.stream)
        self._ledger.release(seat.unit, seat.attempt)
        self._granted.pop(seat.holder, None)
        if self._core is not None:
            self._core.leave(seat.unit, now)
        self._changes.notify()
        self._find_seeder(peer.stream)

    def _expire(self) -> None:
        for seat in self._roster.expire(self._clock()):
            back = self._ledger.release(seat.unit, seat.attempt)
            self._granted.pop(seat.holder, None)
            _log.info("unit %s did not come back in time; %d samples go back", seat.unit, sum(end - start for start, end in back))
            self._changes.notify()

    # --- the job's first parameters -----------------------------------------------------------------------------------

    def _find_seeder(self, gone: int) -> None:
        """If the seeder is gone, ask another learner; without any, forget what is known of the model."""
        if self._core is None or self._core.seeded:
            return
        if self._seeder == gone:
            self._seeder = None
        if self._seeder is not None:
            return
        for stream, peer in sorted(self._peers.items()):
            if peer.seat is not None:
                self._seeder = stream
                peer.outgoing.urgent(self._welcome(self._core, resumed=True, seed_wanted=True))
                return
        self._core = None

    async def _seeded(self, peer: Peer, seat: Seat, transfer: Transfer, now: float) -> None:
        core = self._core
        assert core is not None
        if core.seeded or self._seeder != peer.stream:
            _log.info("unit %s sends a seed that nobody waits for any more", seat.unit)
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
        _log.info("unit %s has given the job its first parameters", seat.unit)
        self._seeder = None
        self._keeper.offer(self._picture(core))
        for other in self._peers.values():
            if other.seat is None:
                continue
            self._hand_out(other, core, dict.fromkeys(range(len(core.fragments)), 0) if other is peer else {})
            core.join(other.seat.unit, now)
        self._changes.notify()

    # --- sending ------------------------------------------------------------------------------------------------------

    def _welcome(self, core: Core, *, resumed: bool, seed_wanted: bool) -> ToLearner:
        fragments = [FragmentNames(names=[tensor.name for tensor in fragment.tensors]) for fragment in core.fragments]
        return ToLearner(
            welcome=Welcome(
                epoch=self._epoch,
                t=core.t,
                steps=self._training.steps,
                seed_wanted=seed_wanted,
                fragments=fragments,
                resumed=resumed,
            )
        )

    def _hand_out(self, peer: Peer, core: Core, held: dict[int, int]) -> None:
        """Send every fragment that the learner does not hold already."""
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
        for action in await self._work(core, None, lambda: core.advance(now)):
            self._carry_out(core, action)

    def _carry_out(self, core: Core, action: Action) -> None:
        match action:
            case Pull():
                for peer in self._peers.values():
                    if peer.seat is not None and peer.seat.unit in action.units:
                        peer.outgoing.pull(action.fragment, action.t)
            case Broadcast():
                whole = _whole(core, action.fragment)
                version = Version(action.fragment, action.t, action.base, action.coding, action.payload, whole.full)
                for peer in self._peers.values():
                    if peer.seat is not None:
                        peer.outgoing.broadcast(version)
            case Merged():
                _log.debug("outer step %d merged fragment %d of %s", action.t, action.fragment, ", ".join(action.units))
            case Skipped():
                _log.info("outer step %d left fragment %d as it was: %s", action.t, action.fragment, action.message)
            case Snapshot():
                self._keeper.offer(self._picture(core))
            case Finish():
                self._finish(core)

    def _finish(self, core: Core) -> None:
        _log.info("outer step %d of %d is reached", core.t, self._training.steps)
        self._finished_at = self._clock()
        if not self._began_finished:
            self._keeper.offer(self._picture(core))
        for peer in self._peers.values():
            if peer.seat is not None:
                peer.outgoing.post(ToLearner(done=Done(t=core.t)))
        self._changes.notify()

    async def _work[T](self, core: Core, p: int | None, work: Callable[[], T]) -> T:
        """Run a piece of the core's arithmetic, in a thread if fragment p (None: the largest) is large."""
        largest = max(fragment.size for fragment in core.fragments) if p is None else core.fragments[p].size
        return work() if largest <= INLINE_ELEMENTS else await asyncio.to_thread(work)


def _whole(core: Core, p: int) -> Version:
    """The current version of fragment p in FLOAT32."""
    value = core.value(p)
    return Version(p, core.version(p), -1, Coding.FLOAT32, b"", lambda: encode(Coding.FLOAT32, value))
