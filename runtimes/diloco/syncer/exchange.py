"""The core at work: what learners send is passed to it, and its orders are carried out on the shard and on the peers.

Answers to pulls are decoded and merges are computed in threads if the fragment is large. Both change nothing; what they give is put in
place by the engine's task, which alone uses the other methods.

See docs/decisions/0072-threads-and-event-loops.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Buffer, Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.codec import Coding, payload_bytes
from diloco.algorithm.core import Core
from diloco.algorithm.events import Close, Distrusted, Marks, Metadata, Offer, Order, Pull, Push, Reason, Refusal, Skipped
from diloco.algorithm.fragments import Fragment
from diloco.algorithm.layout import Layout
from diloco.algorithm.shard import Decoded, Update
from diloco.contract import Training
from diloco.protocol.diloco_pb2 import Chunk, Progress, Refused
from diloco.protocol.framing import FramingError, Transfer
from diloco.syncer.arithmetic import Arithmetic
from diloco.syncer.outgoing import Version
from diloco.syncer.peer import MergeComputed, Peer, Peers
from diloco.syncer.seeding import Seeding
from diloco.syncer.sessions import Rejected, UnitSession
from diloco.syncer.unit_stats import UnitStatsTable
from diloco.syncer.work import Work

_log = logging.getLogger(__name__)

INLINE_ELEMENTS = 1 << 18
"""Fragments up to this many values (1 MiB) are merged and decoded in the event loop: a thread would cost more."""

SKIPS_SAID_AGAIN_AFTER = 100
"""Of the exchanges that merge nothing, one within so many outer steps is logged, with the number of those before it: a job whose learners
do not answer skips every outer step."""

type Submit = Callable[[MergeComputed], None]


class Exchanges:
    """The core of one job, and the parameters on their way. `now` is in seconds on one clock."""

    def __init__(self, training: Training, core: Core | None, peers: Peers, work: Work, unit_stats: UnitStatsTable, submit: Submit) -> None:
        """`core`: of the restored state; None: the job has no parameters yet. `submit` queues an event for the engine's task."""
        self.core = core
        """None: no learner has said yet what the model looks like."""
        self.seeding = Seeding()
        self._training = training
        self._peers = peers
        self._work = work
        self._unit_stats = unit_stats
        self._submit = submit
        self._arithmetic = Arithmetic()
        self._merges: set[asyncio.Task[Update | None]] = set()
        self._skips_said_at: int | None = None
        self._skips_unsaid = 0

    @property
    def seeded(self) -> bool:
        """Whether the job has parameters."""
        return self.core is not None and self.core.seeded

    @property
    def finished(self) -> bool:
        """Step T is reached and every exchange is merged."""
        return self.core is not None and self.core.done

    @property
    def t(self) -> int:
        """Outer steps taken."""
        return self.core.t if self.core is not None else 0

    @property
    def fragments(self) -> Sequence[Fragment]:
        """Of the model; none before its layout is known."""
        return self.core.fragments if self.core is not None else ()

    def close(self) -> None:
        """No arithmetic begins any more."""
        self._arithmetic.close()

    # --- members ------------------------------------------------------------------------------------------------------

    def open(self, layout: Layout) -> Layout:
        """The layout of the job; if there is none yet, `layout` is. Raises LayoutError if it cannot be."""
        if self.core is None:
            self.core = Core(layout, self._training)
        return self.core.layout

    def join(self, peer: Peer, session: UnitSession, held: dict[int, int], now: float) -> None:
        """The learner takes part in a job that has parameters. It is sent every fragment whose current version it does not hold.

        `held`: per fragment the version that it holds.
        """
        core = self._core()
        for fragment in core.fragments:
            p = fragment.index
            if held.get(p) == core.version(p):
                peer.outgoing.holds(p, core.version(p))
            else:
                peer.outgoing.broadcast(_whole(core, p))
        core.join(session.unit, now)

    def leave(self, unit: str, now: float) -> None:
        """The unit is not waited for any more."""
        if self.core is not None:
            self.core.leave(unit, now)

    # --- what learners send -------------------------------------------------------------------------------------------

    def expected_bytes(self, peer: Peer, chunk: Chunk) -> int:
        """Bytes of the payload that a joined learner's chunk begins. Raises FramingError for a chunk that this learner may not send.

        A seed is a whole model in memory: only the one learner that was asked for it may send it.
        """
        if chunk.fragment >= len(self.fragments):
            raise FramingError(f"there is no fragment {chunk.fragment} in this job")
        size = self.fragments[chunk.fragment].size
        if chunk.kind == Chunk.SEED and self.seeding.stream != peer.stream:
            raise FramingError("this learner sends a seed, and was not asked for one")
        if chunk.kind == Chunk.SEED and chunk.coding == Chunk.FLOAT32:
            return payload_bytes(Coding.FLOAT32, size)
        if chunk.kind == Chunk.PUSH and chunk.coding in Coding:
            return payload_bytes(Coding(chunk.coding), size)
        raise FramingError(f"a learner cannot send {Chunk.Kind.Name(chunk.kind)} coded as {Chunk.Coding.Name(chunk.coding)}")

    def memory(self, size: int) -> NDArray[np.uint8]:
        """So many bytes for a payload."""
        return self._core().shard.memory.take(size)

    def progress(self, session: UnitSession, progress: Progress, now: float) -> Rejected | None:
        """A learner has taken a local step. Not None: it must be refused."""
        metadata = Metadata(progress.local_step, tuple(progress.steps), tuple(progress.tokens), progress.step_seconds, progress.loss)
        try:
            self._core().progress(session.unit, metadata, now)
        except ValueError as error:
            return Rejected(Refused.PROTOCOL, str(error))
        return None

    def offered(self, session: UnitSession, header: Chunk, now: float) -> Offer | Rejected | None:
        """Judge a complete answer to a pull before it is decoded. None: it is not to be decoded, and was counted."""
        if why := self._work.contradiction(session, header):
            return Rejected(Refused.PROTOCOL, why)
        marks = Marks(session.holder, header.samples_done, header.tokens_done, header.steps_done)
        offer = Offer(header.fragment, header.t, Coding(header.coding), header.base, header.steps, header.tokens, marks)
        refusal = self._core().coordinator.admit(session.unit, offer, now)
        return offer if refusal is None else self._refused(session, refusal)

    async def decode(self, session: UnitSession, offer: Offer, payload: Buffer) -> Decoded | Refusal:
        """Decode an answer that was admitted, for any task. Changes nothing."""
        core = self._core()
        return await self._run(core, offer.fragment, lambda: core.decode(session.unit, Push(offer, payload)))

    def decoded(self, session: UnitSession, offer: Offer, decoded: Decoded | Refusal | None, now: float) -> Rejected | None:
        """Let a decoded answer into the merge. Not None: the learner must be refused; a single answer is refused here, and counted."""
        core = self._core()
        if not isinstance(decoded, Decoded):
            core.coordinator.rejected(session.unit, offer, now)
            return self._refused(session, decoded) if decoded is not None else None
        if refusal := core.contributed(session.unit, offer, decoded, now):
            return self._refused(session, refusal)
        self._work.offered(offer)
        self._unit_stats.of(session.unit).contributed(now)
        return None

    def _refused(self, session: UnitSession, refusal: Refusal) -> Rejected | None:
        if refusal.reason is Reason.NON_FINITE:
            return Rejected(Refused.NONFINITE, refusal.message)
        self._unit_stats.of(session.unit).refuse(refusal.reason.value)
        _log.info("%s", refusal.message)
        return None

    async def seed(self, peer: Peer, session: UnitSession, transfer: Transfer, now: float) -> bool | Rejected:
        """Take a fragment of the seed. True: the job has parameters now, and every joined learner takes part."""
        core = self._core()
        values = self.seeding.take(peer.stream, core.fragments, transfer.header.fragment, transfer.payload)
        if values is None:
            return False
        refusal = await self._run(core, None, lambda: core.seed(values))
        if refusal is not None:
            return Rejected(Refused.NONFINITE if refusal.reason is Reason.NON_FINITE else Refused.PROTOCOL, refusal.message)
        _log.info("unit %s has seeded the job", session.unit)
        self.seeding.stop()
        for other, joined in self._peers.joined():
            self.seeding.holds_own(joined.holder)
            self.join(other, joined, dict.fromkeys(range(len(core.fragments)), 0) if other is peer else {}, now)
        return True

    # --- what the core decides ----------------------------------------------------------------------------------------

    def advance(self, now: float) -> list[Order]:
        """Let the core decide and carry its orders out. Returns them: snapshots, distrusted units and the end are the caller's."""
        core = self.core
        carried_out: list[Order] = []
        while core is not None and (orders := core.coordinator.advance(now)):
            for order in orders:
                self._carry_out(core, order, now)
            carried_out += orders
        return carried_out

    def merged(self, event: MergeComputed, now: float) -> None:
        """Put a merge in place that was computed in a thread."""
        self._install(self._core(), event.close, event.computed.result(), now)

    def wake_at(self, now: float) -> float | None:
        """When to call `advance` if no event comes before; None: only an event changes anything."""
        return self.core.wake_at(now) if self.core is not None else None

    def _carry_out(self, core: Core, order: Order, now: float) -> None:
        match order:
            case Pull():
                for peer, session in self._peers.joined():
                    if session.unit in order.units:
                        peer.outgoing.pull(order.fragment, order.t, self._training.overlap_steps)
            case Close() if core.fragments[order.fragment].size <= INLINE_ELEMENTS:
                self._install(core, order, core.shard.compute(order), now)
            case Close():
                merge = asyncio.create_task(self._arithmetic.merge(lambda: core.shard.compute(order)), name=f"merge-{order.t}")
                self._merges.add(merge)  # an event loop holds its tasks weakly
                merge.add_done_callback(self._merges.discard)
                merge.add_done_callback(lambda computed: self._submit(MergeComputed(order, computed)))
            case Distrusted():
                core.discard(order)
            case Skipped():
                self._skipped(order)

    def _install(self, core: Core, close: Close, update: Update | None, now: float) -> None:
        """The merge takes its place in one go, between two snapshots: shard, coordinator, ledger, peers."""
        outcome = core.installed(close, update, now)
        if isinstance(outcome, Skipped):
            self._skipped(outcome)
            return
        assert update is not None
        self._work.closed(outcome.fragment, outcome.t, {marks.session for marks in outcome.marks.values()})
        _log.debug("outer step %d merged fragment %d of %s", outcome.t, outcome.fragment, ", ".join(outcome.units))
        version = Version(update.fragment, update.t, update.base, core.coding, update.payload, core.shard.whole(update.fragment))
        for peer, _ in self._peers.joined():
            peer.outgoing.broadcast(version)

    def _skipped(self, skipped: Skipped) -> None:
        self._work.closed(skipped.fragment, skipped.t, ())
        if self._skips_said_at is not None and skipped.t < self._skips_said_at + SKIPS_SAID_AGAIN_AFTER:
            self._skips_unsaid += 1
            return
        before = f"; since outer step {self._skips_said_at} so did {self._skips_unsaid} others" if self._skips_unsaid else ""
        _log.info("outer step %d leaves fragment %d unchanged: %s%s", skipped.t, skipped.fragment, skipped.message, before)
        self._skips_said_at, self._skips_unsaid = skipped.t, 0

    def _core(self) -> Core:
        assert self.core is not None  # the first learner's layout makes it, and it stays while a learner is joined
        return self.core

    async def _run[T](self, core: Core, p: int | None, work: Callable[[], T]) -> T:
        """Run `work`, in a thread if fragment p (None: the largest one) is large."""
        largest = max(fragment.size for fragment in core.fragments) if p is None else core.fragments[p].size
        return work() if largest <= INLINE_ELEMENTS else await self._arithmetic.decode(work)


def _whole(core: Core, p: int) -> Version:
    """The current version of fragment p in FLOAT32."""
    return Version(p, core.version(p), -1, Coding.FLOAT32, b"", core.shard.whole(p))
