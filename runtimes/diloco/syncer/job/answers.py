"""Answers to pulls on their way from a stream's reader into the merge.

Of a unit of one process: the reader offers its answer, decodes it if it is admitted, and only then reads on. Of a unit of several ranks:
the portions are put aside until all are there, and a task of its own decodes them, so that the answer counts even if a rank's stream is
lost meanwhile.

See docs/decisions/0159-ranks-on-the-wire.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from diloco.algorithm.effects import Refusal
from diloco.algorithm.shard import Decoded
from diloco.protocol.framing import Transfer
from diloco.syncer.job.exchange import Exchanges
from diloco.syncer.job.membership import Membership
from diloco.syncer.streams.gathering import WholeAnswer
from diloco.syncer.streams.peer import AnswerDecoded, Peer, Peers, PortionReceived, PushDecoded, PushOffered, StreamEvent
from diloco.syncer.streams.sessions import Rejected, UnitSession

_log = logging.getLogger(__name__)


class Answers:
    """Of all units of one job. Except `push`, only the engine's task uses it."""

    def __init__(self, exchanges: Exchanges, membership: Membership, peers: Peers, submit: Callable[[StreamEvent], None]) -> None:
        """`submit` queues an event for the engine's task."""
        self._exchanges = exchanges
        self._membership = membership
        self._peers = peers
        self._submit = submit

    async def push(self, peer: Peer, transfer: Transfer) -> None:
        """Take a complete PUSH. Called by the stream's reader, which reads on afterwards: so one answer of a stream at a time is decoded,
        only one that was asked for, and what follows it on the stream stays behind it."""
        if peer.portions is not None:
            received = PortionReceived(peer, transfer, asyncio.get_running_loop().create_future())
            self._submit(received)
            await received.taken
            return
        offered = PushOffered(peer, transfer.header, asyncio.get_running_loop().create_future())
        self._submit(offered)
        offer = await offered.admitted
        session = peer.session
        if offer is None or session is None:
            return
        decoded: Decoded | Refusal | None = None
        try:
            decoded = await self._exchanges.decode(session, offer, transfer.payload)
        finally:
            self._submit(PushDecoded(peer, offer, decoded))

    def take(self, session: UnitSession, event: PushOffered | PortionReceived | PushDecoded, now: float) -> Rejected | None:
        """Handle the event of a joined learner. Not None: the learner must be refused."""
        match event:
            case PushOffered():
                offer = self._exchanges.offered(session, event.header, now)
                if isinstance(offer, Rejected):
                    return offer
                _settle(event.admitted, offer)
            case PortionReceived():
                outcome = self._exchanges.portion_received(event.peer, session, event.transfer, now)
                if isinstance(outcome, WholeAnswer):
                    self._exchanges.decode_answer(session, outcome, event.taken)
                    return None
                _settle(event.taken, None)
                return outcome
            case PushDecoded():
                return self._exchanges.decoded(session, event.offer, event.decoded, now)
        return None

    def decoded(self, event: AnswerDecoded, now: float) -> None:
        """Let a whole answer into the merge."""
        peer = next((peer for peer, joined in self._peers.joined() if joined.holder == event.session.holder), None)
        try:
            rejected = self._exchanges.decoded(event.session, event.offer, event.decoded.result(), now)
            if rejected is not None and peer is not None:
                self._membership.refuse(peer, rejected, now)
        except Exception as error:  # noqa: BLE001 - a defect that one answer has shown; it is logged
            # No exchange waits for a unit that has left, or is refused now.
            if peer is None:
                _log.exception("an answer of unit %s, which has left, could not be handled", event.session.unit)
            else:
                self._membership.fail(peer, "a push", error, now)
        _settle(event.taken, None)

    def release(self, event: StreamEvent) -> None:
        """Let the reader go on that waits for an event which was not taken: its learner has not joined, or not any more."""
        if isinstance(event, PushOffered):
            _settle(event.admitted, None)
        elif isinstance(event, PortionReceived) and event.peer.session is None:  # not joined, or refused for it
            _settle(event.taken, None)


def _settle[T](future: asyncio.Future[T], result: T) -> None:
    """Unless it is done: cancelled, as the stream has ended meanwhile."""
    if not future.done():
        future.set_result(result)
