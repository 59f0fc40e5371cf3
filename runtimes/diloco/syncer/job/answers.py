"""Answers to pulls on their way from a stream's reader into the merge.

In a unit of one process, the reader offers its answer, decodes it if it is admitted, and only then reads on. In a unit of several ranks,
the portions are put aside until all have come. Then a task of its own decodes them, so the answer counts even if a rank's stream is lost
meanwhile.

See docs/decisions/0159-ranks-of-a-unit.md. See docs/decisions/0148-driver-and-threads.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from diloco.algorithm.codec import Coding
from diloco.algorithm.coordinator import refuse
from diloco.algorithm.effects import Reason, Refusal, Refused
from diloco.algorithm.events import Marks, Offer, Offered, Unusable
from diloco.algorithm.shard import CheckedPush
from diloco.protocol.diloco_pb2 import Chunk
from diloco.protocol.diloco_pb2 import Refused as Code
from diloco.protocol.framing import Transfer
from diloco.syncer.job.membership import Membership
from diloco.syncer.job.parts import JobParts
from diloco.syncer.streams.gathering import WholeAnswer
from diloco.syncer.streams.learner_stream import AnswerDecoded, LearnerStream, PortionReceived, PushDecoded, PushOffered, StreamEvent
from diloco.syncer.streams.sessions import Rejected, UnitSession

_log = logging.getLogger(__name__)


class Answers:
    """The answers of all units of one job. Except `push`, only the engine's task uses it. `now` is in seconds on one clock."""

    def __init__(
        self,
        job: JobParts,
        membership: Membership,
        submit: Callable[[StreamEvent | AnswerDecoded], None],
    ) -> None:
        """`submit` queues an event for the engine's task."""
        self._job = job
        self._membership = membership
        self._submit = submit
        self._decoding: set[asyncio.Task[CheckedPush | Refusal]] = set()

    # --- in the stream's reader ---------------------------------------------------------------------------------------

    async def push(self, stream: LearnerStream, transfer: Transfer) -> None:
        """Take a complete PUSH. The stream's reader calls this and reads on afterwards.

        So one answer of a stream is decoded at a time, only if it was asked for, and messages keep their order.
        """
        if stream.portions is not None:
            received = PortionReceived(stream, transfer, asyncio.get_running_loop().create_future())
            self._submit(received)
            await received.taken
            return
        small = self._job.exchanges.is_small(transfer.header.fragment)
        admitted = asyncio.get_running_loop().create_future()
        offered = PushOffered(stream, transfer.header, admitted, transfer.payload if small else None)
        self._submit(offered)
        offer = await offered.admitted
        session = stream.session
        if offer is None or session is None:
            return
        decoded: CheckedPush | Refusal | None = None
        try:
            core = self._job.exchanges.opened()
            decoded = await self._job.exchanges.run(offer.fragment, lambda: core.decode(session.unit, offer, transfer.payload))
        finally:
            self._submit(PushDecoded(stream, offer, decoded))

    # --- in the engine's task -----------------------------------------------------------------------------------------

    def take(self, session: UnitSession, event: PushOffered | PortionReceived | PushDecoded, now: float) -> Rejected | None:
        """Handle the event of a joined learner. Returns why the learner must be refused, or None."""
        match event:
            case PushOffered():
                offer = self._offer(session, event.header)
                admitted = offer if isinstance(offer, Rejected) else self._admit(session, offer, now)
                if isinstance(admitted, Rejected):
                    return admitted
                if admitted is not None and event.payload is not None:
                    return self._decoded(session, admitted, self._decode_now(session, admitted, event.payload, now), now)
                _settle(event.admitted, admitted)
            case PortionReceived():
                outcome = self._portion_received(event.stream, session, event.transfer, now)
                if isinstance(outcome, WholeAnswer):
                    self._decode(session, outcome, event.taken)
                    return None
                _settle(event.taken, None)
                return outcome
            case PushDecoded():
                return self._decoded(session, event.offer, event.decoded, now)
        return None

    def decoded(self, event: AnswerDecoded, now: float) -> None:
        """Let a whole answer into the merge."""
        stream = self._job.streams.of_session(event.session)
        try:
            rejected = self._decoded(event.session, event.offer, event.decoded.result(), now)
            if rejected is not None and stream is not None:
                self._membership.refuse(stream, rejected, now)
        except Exception as error:  # noqa: BLE001 - a defect that one answer has shown; it is logged
            # The exchange need not be told: it waits for no unit that has left or is refused.
            if stream is None:
                _log.exception("an answer of unit %s, which has left, could not be handled", event.session.unit)
            else:
                self._membership.fail(stream, "a push", error, now)
        _settle(event.taken, None)

    def release(self, event: StreamEvent) -> None:
        """Let a reader go on whose event was not taken, because its learner has not joined or has left."""
        if isinstance(event, PushOffered):
            _settle(event.admitted, None)
        elif isinstance(event, PortionReceived) and event.stream.session is None:  # not joined, or refused for it
            _settle(event.taken, None)

    def _portion_received(
        self, stream: LearnerStream, session: UnitSession, transfer: Transfer, now: float
    ) -> WholeAnswer | Rejected | None:
        """Put one rank's portion of an answer aside.

        Returns the answer if it is whole now: it is admitted, and must be decoded. None if it is not whole yet, or was refused and counted.
        """
        assert stream.portions is not None
        portion = stream.portions[transfer.header.fragment]
        if not portion.size:
            return None
        offer = self._offer(session, transfer.header)
        if isinstance(offer, Rejected):
            return offer
        coordinator, gathering, unit = self._job.exchanges.opened().coordinator, stream.leader.gathering, session.unit
        if why := gathering.disagreement(stream.rank, offer):
            return Rejected(Code.PROTOCOL, f"unit {unit}: {why}")
        if gathering.has(stream.rank, offer):
            return self._refuse(session, refuse(Reason.DUPLICATE, unit, offer, f"rank {stream.rank} has sent its portion before"))
        if not coordinator.awaits(unit, offer):
            if gathering.refused_before(stream.rank, offer):
                return None
            refused = self._admit(session, offer, now)
            assert not isinstance(refused, Offer), "the coordinator does not await it"
            return refused
        whole = gathering.add(stream.rank, offer, portion, transfer.payload)
        if whole is not None:
            self._admit(session, offer, now)
        return whole

    def _decode_now(self, session: UnitSession, offer: Offer, payload: memoryview, now: float) -> CheckedPush | Refusal:
        core = self._job.exchanges.opened()
        try:
            return core.decode(session.unit, offer, payload)
        except Exception:
            core.take(Unusable(self._job.exchanges.at(now), session.unit, offer))  # or its exchange would wait for the answer
            raise

    def _decode(self, session: UnitSession, whole: WholeAnswer, taken: asyncio.Future[None]) -> None:
        core, offer = self._job.exchanges.opened(), whole.offer
        work = self._job.exchanges.run(offer.fragment, lambda: core.decode_portions(session.unit, offer, whole.parts))
        task = asyncio.create_task(work, name=f"decode-{session.unit}-{offer.t}")
        self._decoding.add(task)  # an event loop holds its tasks weakly
        task.add_done_callback(self._decoding.discard)
        task.add_done_callback(lambda decoded: self._submit(AnswerDecoded(session, offer, decoded, taken)))

    def _decoded(self, session: UnitSession, offer: Offer, decoded: CheckedPush | Refusal | None, now: float) -> Rejected | None:
        """Let a decoded answer into the merge, or refuse it here and count that.

        Returns why the learner itself must be refused, or None.
        """
        core = self._job.exchanges.opened()
        if not isinstance(decoded, CheckedPush):
            core.take(Unusable(self._job.exchanges.at(now), session.unit, offer))
            return self._refuse(session, decoded) if decoded is not None else None
        # Checked again: another answer of the unit may have been accepted since this one was admitted.
        if why := self._job.work.contradiction_of(offer):
            core.take(Unusable(self._job.exchanges.at(now), session.unit, offer))
            return Rejected(Code.PROTOCOL, why)
        tokens = self._job.work.countable_tokens(session.unit, offer)
        for effect in core.use(session.unit, offer, decoded, self._job.exchanges.at(now), tokens):
            assert isinstance(effect, Refused), "nothing else follows from an answer that can be used"
            return self._refuse(session, effect.refusal)
        self._job.work.offered(offer)
        self._job.unit_stats.of(session.unit).contributed(now)
        return None

    def _offer(self, session: UnitSession, header: Chunk) -> Offer | Rejected:
        if why := self._job.work.contradiction(session, header):
            return Rejected(Code.PROTOCOL, why)
        seen = self._job.unit_stats.of(session.unit).seen
        marks = Marks(session.holder, header.samples_done, header.tokens_done, header.steps_done, seen)
        return Offer(header.fragment, header.t, Coding(header.coding), header.base, header.steps, header.tokens, marks)

    def _admit(self, session: UnitSession, offer: Offer, now: float) -> Offer | Rejected | None:
        """Let the core judge an answer before it is decoded. None if it must not be decoded; that was counted."""
        (effect,) = self._job.exchanges.opened().take(Offered(self._job.exchanges.at(now), session.unit, offer))
        return self._refuse(session, effect.refusal) if isinstance(effect, Refused) else offer

    def _refuse(self, session: UnitSession, refusal: Refusal) -> Rejected | None:
        if refusal.reason is Reason.NON_FINITE:
            return Rejected(Code.NONFINITE, refusal.message)
        self._job.unit_stats.of(session.unit).refuse(refusal.reason.value, refusal.message)
        self._job.work.note("refuse", unit=session.unit, reason=refusal.reason.value, message=refusal.message)
        _log.info("%s", refusal.message)
        return None


def _settle[T](future: asyncio.Future[T], result: T) -> None:
    """Set the result, unless it is set already, or the future is cancelled because its stream has ended."""
    if not future.done():
        future.set_result(result)
