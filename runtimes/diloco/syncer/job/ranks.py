"""The followers of units of several processes. Their streams begin and end beside that of their leader, rank 0.

The leader joins and leaves for the unit. While a rank is missing, the unit stays a member, but it is not pulled and is waited for no longer
than any silent unit.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from diloco.algorithm.pieces import Portion, portion
from diloco.protocol.diloco_pb2 import Hello, Refused, ToLearner
from diloco.syncer.job.join_brake import JoinBrake
from diloco.syncer.job.parts import JobParts
from diloco.syncer.job.welcomes import Welcomes
from diloco.syncer.streams.peer import Peer, PortionReceived, ProtocolViolation, SeedReceived, StreamEvent
from diloco.syncer.streams.sessions import JoinRequest, Rejected, UnitSession


class Ranks:
    """The ranks of all units of one job. `now` is in seconds on one clock."""

    def __init__(self, job: JobParts, welcomes: Welcomes, brake: JoinBrake) -> None:
        self._job = job
        self._welcomes = welcomes
        self._brake = brake

    def give_portions(self, peer: Peer) -> None:
        """From now on send the stream only what its rank owns, and take only that from it. In a unit of one process it owns everything."""
        if peer.leader.owned:
            peer.outgoing.portions = self._portions(peer.leader, peer.rank)

    def join(self, peer: Peer, hello: Hello, request: JoinRequest, now: float) -> Rejected | None:
        """Let a rank take part in the session of its leader. Returns why the rank is refused, or None.

        If the peer has no session afterwards, its stream is closed and the rank must try again.
        """
        of_leader = self._job.sessions.of_rank(request)
        if isinstance(of_leader, Rejected):
            return of_leader
        leader = self._job.peers.get(of_leader.stream) if of_leader is not None and of_leader.stream is not None else None
        if leader is None or leader.session is None:
            peer.retry_reason = f"rank {hello.rank} of unit {hello.unit} waits for its leader, rank 0, to join"
            peer.outgoing.close()
            return None
        if rejected := _wrong_rank(leader, hello):
            return rejected
        session = leader.session
        resumed = session.ranks.get(hello.rank) == hello.process and hello.incarnation == self._job.incarnation
        held = dict(enumerate(hello.versions)) if resumed else {}
        portions = self._portions(leader, hello.rank)
        if why := self._brake.reason(hello.unit, self._job.exchanges.lacks(held, portions), now):
            peer.retry_reason = why
            peer.outgoing.close(at_once=True)
            return None
        if (former := leader.ranks.get(hello.rank)) is not None:
            self._end_one(former, "the same process has opened another stream")
        session.ranks[hello.rank] = hello.process
        leader.ranks[hello.rank] = peer
        peer.leader, peer.rank, peer.process, peer.session = leader, hello.rank, hello.process, session
        peer.outgoing.portions = portions
        peer.outgoing.urgent(self._welcomes.message(peer, resumed=resumed, seed_wanted=False))
        if self._job.exchanges.seeded:
            held = {} if self._job.exchanges.seeding.forget_own(session.holder, peer.rank) else held
            self._brake.sent(session.unit, self._job.exchanges.lacks(held, portions), now)
            self._job.exchanges.join(peer, session, held, now)
        return None

    def lost(self, peer: Peer) -> UnitSession | None:
        """Note that the rank's stream is over. Returns the session that goes on without it. None if this stream had left it before."""
        session, peer.session = peer.session, None
        if session is None:
            return None
        del peer.leader.ranks[peer.rank]
        peer.leader.gathering.forget(peer.rank)
        return session

    def end(self, leader: Peer, *, retry: str = "", last: ToLearner | None = None) -> None:
        """End the streams of the leader's followers. `retry` says why the followers must open new ones."""
        for peer in list(leader.ranks.values()):
            self._end_one(peer, retry, last)

    def _portions(self, leader: Peer, rank: int) -> list[Portion]:
        return [portion(fragment, leader.owned[rank]) for fragment in self._job.exchanges.fragments]

    def _end_one(self, peer: Peer, retry: str, last: ToLearner | None = None) -> None:
        self.lost(peer)
        peer.retry_reason = retry
        peer.outgoing.close(last, at_once=True)


def not_of_rank(peer: Peer, session: UnitSession, event: StreamEvent) -> Rejected | None:
    """Return why a follower is refused that sends what only its leader may send. None if the event is allowed."""
    if not peer.rank or isinstance(event, SeedReceived | PortionReceived | ProtocolViolation):
        return None
    what = type(event).__name__.removesuffix("Reported").removesuffix("Requested").removesuffix("Received")
    return Rejected(Refused.PROTOCOL, f"rank {peer.rank} of unit {session.unit} sends {what}, which is for its leader, rank 0, to say")


def _wrong_rank(leader: Peer, hello: Hello) -> Rejected | None:
    """Return why the process cannot be a rank of the leader's unit. None if it can."""
    who = f"rank {hello.rank} of unit {hello.unit}"
    ranks = len(leader.owned)
    former = leader.ranks.get(hello.rank)
    if not ranks:
        return Rejected(Refused.PROTOCOL, f"{who} cannot join: to its leader, rank 0, the unit is one process")
    if hello.ranks != ranks or hello.rank >= ranks:
        return Rejected(Refused.PROTOCOL, f"{who} cannot join as one of {hello.ranks} ranks: to its leader, rank 0, they are {ranks}")
    if not hello.process:
        return Rejected(Refused.PROTOCOL, f"{who} cannot join: its Hello must name its process")
    if former is not None and former.process != hello.process:
        return Rejected(Refused.DUPLICATE_IDENTITY, f"another process is connected as {who}; each process needs a rank of its own")
    return None
