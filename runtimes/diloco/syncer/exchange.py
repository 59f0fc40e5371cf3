"""The core at work: what learners send is passed to it, and its actions are carried out on the peers.

Decoding and merging of a large fragment run in a thread. The event loop serves the streams meanwhile; events wait their turn. Only the
engine's task uses it. See docs/decisions/0072-threads-and-event-loops.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from diloco.algorithm.codec import Coding, encode, payload_bytes
from diloco.algorithm.core import Core
from diloco.algorithm.events import Action, Broadcast, Marks, Merged, Metadata, Offer, Pull, Push, Reason, Skipped
from diloco.algorithm.fragments import Fragment
from diloco.algorithm.layout import Layout
from diloco.contract import Training
from diloco.data.ledger import LedgerError
from diloco.protocol.diloco_pb2 import Chunk, Progress, Refused
from diloco.protocol.framing import FramingError, Transfer
from diloco.syncer.outgoing import Version
from diloco.syncer.peer import Peer, Peers
from diloco.syncer.seeding import Seeding
from diloco.syncer.sessions import Rejected, UnitSession
from diloco.syncer.unit_stats import UnitStatsTable
from diloco.syncer.work import Work

_log = logging.getLogger(__name__)

INLINE_ELEMENTS = 1 << 18
"""Fragments up to this many values (1 MiB) are merged and decoded in the event loop: a thread would cost more."""


class Exchanges:
    """The core of one job, and the parameters on their way. `now` is in seconds on one clock."""

    def __init__(self, training: Training, core: Core | None, peers: Peers, work: Work, unit_stats: UnitStatsTable) -> None:
        """`core`: of the restored state; None: the job has no parameters yet."""
        self.core = core
        """None: no learner has said yet what the model looks like."""
        self.seeding = Seeding()
        self._training = training
        self._peers = peers
        self._work = work
        self._unit_stats = unit_stats

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

    def expected_bytes(self, chunk: Chunk) -> int:
        """Bytes of the payload that a joined learner's chunk begins. Raises FramingError for a chunk that a learner may not send."""
        if chunk.fragment >= len(self.fragments):
            raise FramingError(f"there is no fragment {chunk.fragment} in this job")
        size = self.fragments[chunk.fragment].size
        if chunk.kind == Chunk.SEED and chunk.coding == Chunk.FLOAT32:
            return payload_bytes(Coding.FLOAT32, size)
        if chunk.kind == Chunk.PUSH and chunk.coding in Coding:
            return payload_bytes(Coding(chunk.coding), size)
        raise FramingError(f"a learner cannot send {Chunk.Kind.Name(chunk.kind)} coded as {Chunk.Coding.Name(chunk.coding)}")

    def progress(self, session: UnitSession, progress: Progress, now: float) -> Rejected | None:
        """A learner has taken a local step. Not None: it must be refused."""
        metadata = Metadata(progress.local_step, tuple(progress.steps), tuple(progress.tokens), progress.step_seconds)
        try:
            self._core().progress(session.unit, metadata, now)
        except ValueError as error:
            return Rejected(Refused.PROTOCOL, str(error))
        return None

    async def push(self, session: UnitSession, transfer: Transfer, now: float) -> Rejected | None:
        """Take a learner's answer to a pull. Not None: the learner must be refused; a single contribution is refused here, and counted."""
        header, core = transfer.header, self._core()
        marks = Marks(session.holder, header.samples_done, header.tokens_done, header.steps_done)
        offer = Offer(header.fragment, header.t, Coding(header.coding), header.base, header.steps, header.tokens, marks)
        push = Push(offer, transfer.payload)
        refusal = await self._run(core, header.fragment, lambda: core.push(session.unit, push, now))
        stats = self._unit_stats.of(session.unit)
        if refusal is not None:
            if refusal.reason is Reason.NON_FINITE:
                return Rejected(Refused.NONFINITE, refusal.message)
            stats.refuse(refusal.reason.value)
            _log.info("%s", refusal.message)
            return None
        stats.contributed(now)
        try:
            self._work.commit(session, header)
        except LedgerError as error:
            return Rejected(Refused.PROTOCOL, str(error))
        return None

    async def seed(self, peer: Peer, session: UnitSession, transfer: Transfer, now: float) -> bool | Rejected:
        """Take a fragment of the seed. True: the job has parameters now, and every joined learner takes part."""
        core = self._core()
        if core.seeded or self.seeding.stream != peer.stream:
            _log.info("unit %s sends a seed that is not needed any more", session.unit)
            return False
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

    async def advance(self, now: float) -> list[Action]:
        """Let the core decide and carry its actions out. Returns them: snapshots and the end are the caller's."""
        core = self.core
        if core is None or not core.seeded:
            return []
        actions = await self._run(core, None, lambda: core.advance(now))
        for action in actions:
            self._carry_out(core, action)
        return actions

    def wake_at(self, now: float) -> float | None:
        """When to call `advance` if no event comes before; None: only an event changes anything."""
        return self.core.wake_at(now) if self.core is not None else None

    def _carry_out(self, core: Core, action: Action) -> None:
        match action:
            case Pull():
                for peer, session in self._peers.joined():
                    if session.unit in action.units:
                        peer.outgoing.pull(action.fragment, action.t)
            case Broadcast():
                whole = _whole(core, action.fragment)
                version = Version(action.fragment, action.t, action.base, action.coding, action.payload, whole.full)
                for peer, _ in self._peers.joined():
                    peer.outgoing.broadcast(version)
            case Merged():
                _log.debug("outer step %d merged fragment %d of %s", action.t, action.fragment, ", ".join(action.units))
            case Skipped():
                _log.info("outer step %d leaves fragment %d unchanged: %s", action.t, action.fragment, action.message)

    def _core(self) -> Core:
        assert self.core is not None  # the first learner's layout makes it, and it stays while a learner is joined
        return self.core

    async def _run[T](self, core: Core, p: int | None, work: Callable[[], T]) -> T:
        """Run `work` of the core, in a thread if fragment p (None: the largest one) is large."""
        largest = max(fragment.size for fragment in core.fragments) if p is None else core.fragments[p].size
        return work() if largest <= INLINE_ELEMENTS else await asyncio.to_thread(work)


def _whole(core: Core, p: int) -> Version:
    """The current version of fragment p in FLOAT32."""
    value = core.value(p)
    return Version(p, core.version(p), -1, Coding.FLOAT32, b"", lambda: encode(Coding.FLOAT32, value))
