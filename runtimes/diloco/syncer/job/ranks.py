"""The followers of units of several processes. Their streams begin and end beside that of their leader, rank 0.

The leader joins and leaves for the unit. While a rank is missing, the unit stays a member, but it is not pulled and is waited for no longer
than any silent unit.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from diloco.algorithm.pieces import Portion, portion
from diloco.protocol.diloco_pb2 import Hello, Refused
from diloco.syncer.job.join_brake import JoinBrake
from diloco.syncer.job.parts import JobParts
from diloco.syncer.job.welcomes import Welcomes
from diloco.syncer.streams.learner_stream import LearnerStream, PortionReceived, ProtocolViolation, SeedReceived, StreamEvent, message_name
from diloco.syncer.streams.sessions import JoinRequest, Rejected, UnitSession


class Ranks:
    """The ranks of all units of one job. `now` is in seconds on one clock."""

    def __init__(self, job: JobParts, welcomes: Welcomes, brake: JoinBrake) -> None:
        self._job = job
        self._welcomes = welcomes
        self._brake = brake

    def give_portions(self, stream: LearnerStream) -> None:
        """From now on send the stream only what its rank owns, and take only that from it. In a unit of one process it owns everything."""
        if stream.leader.owned:
            stream.outgoing.portions = self._portions(stream.leader, stream.rank)

    def join(self, stream: LearnerStream, hello: Hello, request: JoinRequest, now: float) -> Rejected | None:
        """Let a rank take part in the session of its leader. Returns why the rank is refused, or None.

        If the stream has no session afterwards, it is closed and the rank must try again.
        """
        of_leader = self._job.sessions.of_rank(request)
        if isinstance(of_leader, Rejected):
            return of_leader
        leader = self._job.streams.get(of_leader.stream) if of_leader is not None and of_leader.stream is not None else None
        if leader is None or leader.session is None:
            stream.retry(f"rank {hello.rank} of unit {hello.unit} waits for its leader, rank 0, to join")
            return None
        if rejected := _wrong_rank(leader, hello):
            return rejected
        session = leader.session
        known = session.ranks.get(hello.rank) == hello.process and hello.incarnation == self._job.incarnation
        resumed = known and self._job.exchanges.made(hello.versions, hello.checksums)
        held = self._job.exchanges.held(hello.versions) if resumed else {}
        portions = self._portions(leader, hello.rank)
        if why := self._brake.reason(hello.unit, self._job.exchanges.lacks(held, portions), now):
            stream.retry(why)
            return None
        if (former := leader.ranks.get(hello.rank)) is not None:
            self.lost(former)
            former.retry("the same process has opened another stream")
        session.ranks[hello.rank] = hello.process
        leader.ranks[hello.rank] = stream
        stream.leader, stream.rank, stream.process, stream.session = leader, hello.rank, hello.process, session
        stream.outgoing.portions = portions
        stream.outgoing.urgent(self._welcomes.message(stream, resumed=resumed, seed_wanted=False))
        if self._job.exchanges.seeded:
            self._brake.sent(session.unit, self._job.exchanges.lacks(held, portions), now)
            self._job.exchanges.join(stream, session, held, now)
        return None

    def lost(self, stream: LearnerStream) -> UnitSession | None:
        """Note that the rank's stream is over. Returns the session that goes on without it. None if this stream had left it before."""
        session, stream.session = stream.session, None
        if session is None:
            return None
        del stream.leader.ranks[stream.rank]
        stream.leader.gathering.forget(stream.rank)
        return session

    def release(self, leader: LearnerStream) -> list[LearnerStream]:
        """Let the leader's followers leave its session. Returns their streams, which the caller must end."""
        followers = list(leader.ranks.values())
        for stream in followers:
            self.lost(stream)
        return followers

    def _portions(self, leader: LearnerStream, rank: int) -> list[Portion]:
        return [portion(fragment, leader.owned[rank]) for fragment in self._job.exchanges.fragments]


def not_of_rank(stream: LearnerStream, session: UnitSession, event: StreamEvent) -> Rejected | None:
    """Return why a follower is refused that sends what only its leader may send. None if the event is allowed."""
    if not stream.rank or isinstance(event, SeedReceived | PortionReceived | ProtocolViolation):
        return None
    name = message_name(event)
    return Rejected(Refused.PROTOCOL, f"rank {stream.rank} of unit {session.unit} sends {name}, which is for its leader, rank 0, to say")


def _wrong_rank(leader: LearnerStream, hello: Hello) -> Rejected | None:
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
