"""The core at work: what learners send is passed to it, and its orders are carried out on the shard and on the peers.

Answers to pulls are decoded and merges are computed in threads if the fragment is large. Both change nothing; what they give is put in
place by the engine's task, which alone uses the other methods.

See docs/decisions/0072-threads-and-event-loops.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Buffer, Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.codec import Coding, payload_bytes
from diloco.algorithm.coordinator import refuse
from diloco.algorithm.core import Core
from diloco.algorithm.effects import Broadcast, Close, Effect, Merged, Pull, Reason, Refusal, Refused, Rest, Skipped
from diloco.algorithm.events import EndsAt, Joined, Left, Lives, Marks, Metadata, Offer, Offered, Paused, Reported, Seeded, Tick, Unusable
from diloco.algorithm.fragments import Fragment
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Portion
from diloco.algorithm.shard import Decoded, Update
from diloco.contract import Training
from diloco.protocol.diloco_pb2 import Chunk, Progress, ToLearner
from diloco.protocol.diloco_pb2 import Refused as Code
from diloco.protocol.diloco_pb2 import Rest as RestMessage
from diloco.protocol.framing import OPEN_TRANSFERS, FramingError, Transfer
from diloco.syncer.job.arithmetic import Arithmetic
from diloco.syncer.job.awake import AwakeClock
from diloco.syncer.job.seeding import Seeding
from diloco.syncer.job.work import Work
from diloco.syncer.reporting.recent import RecentEntries
from diloco.syncer.reporting.unit_stats import UnitStatsTable
from diloco.syncer.streams.gathering import WholeAnswer
from diloco.syncer.streams.outgoing import Version
from diloco.syncer.streams.peer import AnswerDecoded, CongestedError, MergeComputed, Peer, Peers
from diloco.syncer.streams.sessions import Rejected, UnitSession
from diloco.wording import plural

_log = logging.getLogger(__name__)

INLINE_ELEMENTS = 1 << 18
"""Fragments up to this many values (1 MiB) are merged and decoded in the event loop: a thread would cost more."""

SKIPS_SAID_AGAIN_AFTER = 100
"""Of the exchanges that merge nothing, one within so many outer steps is logged, with the number of those before it: a job whose learners
do not answer skips every outer step."""

type Submit = Callable[[MergeComputed | AnswerDecoded], None]


class Exchanges:
    """The core of one job, and the parameters on their way. `now` is in seconds on one clock."""

    def __init__(
        self,
        training: Training,
        core: Core | None,
        peers: Peers,
        work: Work,
        unit_stats: UnitStatsTable,
        recent: RecentEntries,
        submit: Submit,
    ) -> None:
        """`core`: of the restored state; None: the job has no parameters yet. `submit` queues an event for the engine's task."""
        self.core = core
        """None: no learner has said yet what the model looks like."""
        self.seeding = Seeding()
        self.awake = AwakeClock()
        """The core's clock."""
        self._training = training
        self._peers = peers
        self._work = work
        self._unit_stats = unit_stats
        self._recent = recent
        self._submit = submit
        self._arithmetic = Arithmetic()
        self._tasks: set[asyncio.Task[Update | None] | asyncio.Task[Decoded | Refusal]] = set()
        self._skips_said_at: int | None = None
        self._skips_unsaid = 0
        self._tokens = [work.ledger.tokens] * training.fragments
        """Per fragment the tokens that were committed when its version was made, or when this process began: the same for all ranks that
        adopt it."""

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

    def end(self, t: int, now: float) -> None:
        """The job ends at outer step t, see `EndsAt`."""
        if self.core is not None:
            self.core.take(EndsAt(self._at(now), t))

    def lacks(self, held: Mapping[int, int], portions: Sequence[Portion] | None = None) -> float:
        """What a stream that holds these versions is sent whole when it joins, of these portions or (None) of all: in parts of the model.
        Nothing if the job has no parameters yet."""
        if self.core is None or not self.core.seeded:
            return 0.0
        sizes = [each.size for each in (self.fragments if portions is None else portions)]
        lacked = sum(size for p, size in enumerate(sizes) if held.get(p) != self.core.version(p))
        return lacked / sum(fragment.size for fragment in self.fragments)

    def join(self, peer: Peer, session: UnitSession, held: dict[int, int], now: float) -> None:
        """The stream's learner takes part in a job that has parameters. It is sent every fragment whose current version it does not hold.

        `held`: per fragment the version that it holds.
        """
        core = self._core()
        for fragment in core.fragments:
            p = fragment.index
            if held.get(p) == core.version(p):
                peer.outgoing.holds(p, core.version(p))
            else:
                peer.outgoing.broadcast(self._whole(core, p), self._work.merged_at(session, p))
        if peer.leader is peer:
            core.take(Joined(self._at(now), session.unit))

    def leave(self, unit: str, now: float) -> None:
        """The unit is not waited for any more."""
        if self.core is not None:
            self.core.take(Left(self._at(now), unit))

    # --- what learners send -------------------------------------------------------------------------------------------

    def expected_bytes(self, peer: Peer, chunk: Chunk) -> int:
        """Bytes of the payload that a joined learner's chunk begins. Raises FramingError for a chunk that this learner may not send.

        A seed is a whole model in memory: only the one learner that was asked for it may send it.
        """
        if chunk.fragment >= len(self.fragments):
            raise FramingError(f"there is no fragment {chunk.fragment} in this job")
        size = self.fragments[chunk.fragment].size if peer.portions is None else peer.portions[chunk.fragment].size
        # Another unit may be asked by now because one of this unit's ranks was lost, which the others do not know yet.
        asked = self.seeding.stream == peer.leader.stream or (peer.portions is not None and peer.seed_asked)
        if chunk.kind == Chunk.SEED and not asked:
            raise FramingError("this learner sends a seed, and was not asked for one")
        if chunk.kind == Chunk.SEED and chunk.coding == Chunk.FLOAT32:
            return payload_bytes(Coding.FLOAT32, size)
        if chunk.kind == Chunk.PUSH and chunk.coding in Coding:
            expected = payload_bytes(Coding(chunk.coding), size)
            self._check_congestion(peer, expected)
            return expected
        raise FramingError(f"a learner cannot send {Chunk.Kind.Name(chunk.kind)} coded as {Chunk.Coding.Name(chunk.coding)}")

    def memory(self, size: int) -> NDArray[np.uint8]:
        """So many bytes for a payload."""
        return self._core().shard.memory.take(size)

    def progress(self, session: UnitSession, progress: Progress, now: float) -> Rejected | None:
        """A learner has taken a local step. Not None: it must be refused."""
        metadata = Metadata(progress.local_step, tuple(progress.steps), tuple(progress.tokens), progress.step_seconds)
        try:
            self._core().take(Reported(self._at(now), session.unit, metadata))
        except ValueError as error:
            return Rejected(Code.PROTOCOL, str(error))
        return None

    def paused(self, unit: str, until: float, now: float) -> None:
        """The unit's program takes no steps until then, on purpose; a time that is past: it goes on."""
        if self.core is not None:
            self.core.take(Paused(self._at(now), unit, self._at(until)))

    def alive(self, unit: str, now: float) -> None:
        """The unit's process is alive, whatever its program does."""
        if self.core is not None:
            self.core.take(Lives(self._at(now), unit))

    def offered(self, session: UnitSession, header: Chunk, now: float) -> Offer | Rejected | None:
        """Judge a complete answer to a pull before it is decoded. None: it is not to be decoded, and was counted."""
        offer = self._offer(session, header)
        if isinstance(offer, Rejected):
            return offer
        return self._admit(session, offer, now)

    def portion_received(self, peer: Peer, session: UnitSession, transfer: Transfer, now: float) -> WholeAnswer | Rejected | None:
        """Put one rank's portion of an answer aside. The answer if it is whole now: it is admitted, and is to be decoded. None: it is not
        whole yet, or was refused and counted."""
        assert peer.portions is not None
        portion = peer.portions[transfer.header.fragment]
        if not portion.size:
            return None
        offer = self._offer(session, transfer.header)
        if isinstance(offer, Rejected):
            return offer
        coordinator, gathering, unit = self._core().coordinator, peer.leader.gathering, session.unit
        if why := gathering.disagreement(peer.rank, offer):
            return Rejected(Code.PROTOCOL, f"unit {unit}: {why}")
        if gathering.has(peer.rank, offer):
            return self._refuse(session, refuse(Reason.DUPLICATE, unit, offer, f"rank {peer.rank} has sent its portion before"))
        if not coordinator.awaits(unit, offer):
            if gathering.refused_before(peer.rank, offer):
                return None
            refused = self._admit(session, offer, now)
            assert not isinstance(refused, Offer), "the coordinator does not await it"
            return refused
        whole = gathering.add(peer.rank, offer, portion, transfer.payload)
        if whole is not None:
            self._admit(session, offer, now)
        return whole

    def decode_answer(self, session: UnitSession, whole: WholeAnswer, taken: asyncio.Future[None]) -> None:
        """Decode a whole answer in a task of its own, so that it counts even if a rank's stream is lost meanwhile."""
        core, offer = self._core(), whole.offer
        work = self._run(core, offer.fragment, lambda: core.decode_portions(session.unit, offer, whole.parts))
        task = asyncio.create_task(work, name=f"decode-{session.unit}-{offer.t}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda decoded: self._submit(AnswerDecoded(session, offer, decoded, taken)))

    async def decode(self, session: UnitSession, offer: Offer, payload: Buffer) -> Decoded | Refusal:
        """Decode an answer that was admitted, for any task. Changes nothing."""
        core = self._core()
        return await self._run(core, offer.fragment, lambda: core.decode(session.unit, offer, payload))

    def decoded(self, session: UnitSession, offer: Offer, decoded: Decoded | Refusal | None, now: float) -> Rejected | None:
        """Let a decoded answer into the merge. Not None: the learner must be refused; a single answer is refused here, and counted."""
        core = self._core()
        if not isinstance(decoded, Decoded):
            core.take(Unusable(self._at(now), session.unit, offer))
            return self._refuse(session, decoded) if decoded is not None else None
        # Again: another answer of the unit may have been accepted since this one was admitted.
        if why := self._work.contradiction_of(offer):
            core.take(Unusable(self._at(now), session.unit, offer))
            return Rejected(Code.PROTOCOL, why)
        tokens = self._work.countable_tokens(offer)
        for effect in core.use(session.unit, offer, decoded, self._at(now), tokens):
            assert isinstance(effect, Refused), "nothing else follows from an answer that can be used"
            return self._refuse(session, effect.refusal)
        self._work.offered(offer)
        self._unit_stats.of(session.unit).contributed(now)
        return None

    def _offer(self, session: UnitSession, header: Chunk) -> Offer | Rejected:
        if why := self._work.contradiction(session, header):
            return Rejected(Code.PROTOCOL, why)
        marks = Marks(session.holder, header.samples_done, header.tokens_done, header.steps_done)
        return Offer(header.fragment, header.t, Coding(header.coding), header.base, header.steps, header.tokens, marks)

    def _check_congestion(self, peer: Peer, size: int) -> None:
        """A unit of several ranks holds no more memory for pushes under way than one process could. Raises CongestedError."""
        if peer.portions is None:
            return
        under_way = sum(each.assembler.reserved for each in peer.unit_streams if each.assembler is not None)
        transfers = max(OPEN_TRANSFERS, self._training.overlap_steps + 1)
        most = transfers * payload_bytes(Coding.FLOAT32, max(fragment.size for fragment in self.fragments))
        if under_way + size > most:
            raise CongestedError(
                f"the ranks of the unit have pushes of {under_way + size} bytes under way; {most} are the most, "
                f"{plural(transfers, 'fragment')} as large as the largest"
            )

    def _admit(self, session: UnitSession, offer: Offer, now: float) -> Offer | Rejected | None:
        """Let the core judge an answer before it is decoded. None: it is not to be decoded, and was counted."""
        (effect,) = self._core().take(Offered(self._at(now), session.unit, offer))
        return self._refuse(session, effect.refusal) if isinstance(effect, Refused) else offer

    def _refuse(self, session: UnitSession, refusal: Refusal) -> Rejected | None:
        if refusal.reason is Reason.NON_FINITE:
            return Rejected(Code.NONFINITE, refusal.message)
        self._unit_stats.of(session.unit).refuse(refusal.reason.value)
        _log.info("%s", refusal.message)
        return None

    async def seed(self, peer: Peer, session: UnitSession, transfer: Transfer, now: float) -> bool | Rejected:
        """Take a fragment of the seed. True: the job has parameters now, and every joined learner takes part."""
        core = self._core()
        if self.seeding.stream != peer.leader.stream:
            return False  # another learner is asked meanwhile
        p = transfer.header.fragment
        seed = self.seeding.take(core.fragments, p, peer.rank, None if peer.portions is None else peer.portions[p], transfer.payload)
        if seed is None:
            return False
        norms = await self._run(core, None, lambda: core.seed(seed()))
        if isinstance(norms, Refusal):
            return Rejected(Code.NONFINITE if norms.reason is Reason.NON_FINITE else Code.PROTOCOL, norms.message)
        core.take(Seeded(self._at(now), norms))
        _log.info("unit %s has seeded the job", session.unit)
        self.seeding.stop()
        for other, joined in self._peers.streams():
            self.seeding.holds_own(joined.holder, other.rank)
            seeder = other.leader is peer.leader
            self.join(other, joined, dict.fromkeys(range(len(core.fragments)), 0) if seeder else {}, now)
        return True

    # --- what the core decides ----------------------------------------------------------------------------------------

    def advance(self, now: float) -> list[Effect]:
        """Let the core decide and carry its effects out. Returns them: snapshots, distrusted units and the end are the caller's."""
        core = self.core
        carried_out: list[Effect] = []
        while core is not None and (effects := core.take(Tick(self._at(now)))):
            for effect in effects:
                self._carry_out(core, effect, now)
            if rests := {effect.unit: effect.rests for effect in effects if isinstance(effect, Rest)}:
                self._tell_rests(rests, now)
            carried_out += effects
        return carried_out

    def merged(self, event: MergeComputed, now: float) -> None:
        """Put a merge in place that was computed in a thread."""
        self._install(self._core(), event.close, event.computed.result(), now)

    def wake_at(self, now: float) -> float | None:
        """When to call `advance` if no event comes before; None: only an event changes anything."""
        at = self.core.wake_at(self._at(now)) if self.core is not None else None
        return None if at is None else self.awake.back(at)

    def _carry_out(self, core: Core, effect: Effect, now: float) -> None:
        if isinstance(effect, Close | Skipped):
            for peer, _ in self._peers.joined():
                peer.gathering.closed(effect.fragment, effect.t)
        match effect:
            case Pull():
                asked = set(effect.units)
                for peer, session in self._peers.joined():
                    if session.unit in asked:
                        peer.outgoing.pull(effect.fragment, effect.t, self._training.overlap_steps)
            case Close() if core.fragments[effect.fragment].size <= INLINE_ELEMENTS:
                self._install(core, effect, core.compute(effect), now)
            case Close():
                merge = asyncio.create_task(self._arithmetic.merge(lambda: core.compute(effect)), name=f"merge-{effect.t}")
                self._tasks.add(merge)  # an event loop holds its tasks weakly
                merge.add_done_callback(self._tasks.discard)
                merge.add_done_callback(lambda computed: self._submit(MergeComputed(effect, computed)))
            case Merged():
                self._merged(effect, now)
            case Broadcast():
                self._broadcast(core, effect)
            case Skipped():
                self._skipped(effect, now)

    def _tell_rests(self, rests: dict[str, bool], now: float) -> None:
        """Tell the units whether they rest from now on."""
        for unit, rest in rests.items():
            self._unit_stats.of(unit).resting_since = now if rest else None
        for peer, session in self._peers.joined():
            if (told := rests.get(session.unit)) is not None:
                peer.outgoing.urgent(ToLearner(rest=RestMessage(quorum=self._training.quorum if told else 0)))

    def _install(self, core: Core, close: Close, update: Update | None, now: float) -> None:
        """The merge takes its place in one go, between two snapshots: shard, coordinator, ledger, peers."""
        for effect in core.computed(close, update, self._at(now)):
            self._carry_out(core, effect, now)

    def _merged(self, merged: Merged, now: float) -> None:
        self._work.closed(merged.fragment, merged.t, {marks.session for marks in merged.marks.values()})
        _log.debug("outer step %d merged fragment %d of %s", merged.t, merged.fragment, ", ".join(merged.units))
        self._recent.merged(merged.t, merged.fragment, merged.units, self._unit_stats.loss(), now)

    def _broadcast(self, core: Core, new: Broadcast) -> None:
        self._tokens[new.fragment] = tokens = self._work.ledger.tokens
        version = Version(new.fragment, new.t, new.base, new.coding, new.payload, core.shard.whole(new.fragment), tokens)
        for peer, session in self._peers.streams():
            peer.outgoing.broadcast(version, self._work.merged_at(session, new.fragment))

    def _skipped(self, skipped: Skipped, now: float) -> None:
        self._recent.merged(skipped.t, skipped.fragment, (), self._unit_stats.loss(), now)
        self._work.closed(skipped.fragment, skipped.t, ())
        if self._skips_said_at is not None and skipped.t < self._skips_said_at + SKIPS_SAID_AGAIN_AFTER:
            self._skips_unsaid += 1
            return
        before = f"; since outer step {self._skips_said_at} so did {self._skips_unsaid} others" if self._skips_unsaid else ""
        _log.info("outer step %d leaves fragment %d unchanged: %s%s", skipped.t, skipped.fragment, skipped.message, before)
        self._skips_said_at, self._skips_unsaid = skipped.t, 0

    def _whole(self, core: Core, p: int) -> Version:
        """The current version of fragment p in FLOAT32."""
        return Version(p, core.version(p), -1, Coding.FLOAT32, b"", core.shard.whole(p), self._tokens[p])

    def _at(self, now: float) -> float:
        """The core's time."""
        return self.awake.of(now)

    def _core(self) -> Core:
        assert self.core is not None  # the first learner's layout makes it, and it stays while a learner is joined
        return self.core

    async def _run[T](self, core: Core, p: int | None, work: Callable[[], T]) -> T:
        """Run `work`, in a thread if fragment p (None: the largest one) is large."""
        largest = max(fragment.size for fragment in core.fragments) if p is None else core.fragments[p].size
        return work() if largest <= INLINE_ELEMENTS else await self._arithmetic.decode(work)
