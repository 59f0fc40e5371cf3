"""How the ranks of a unit join a job together. They meet, and then each opens its own stream to the syncer.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence

from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece, Portion, portion
from diloco.environment import ContractError
from diloco.learner.config import LearnerConfig
from diloco.learner.inbox import Inbox
from diloco.learner.incarnations import Incarnations
from diloco.learner.member import make_parts
from diloco.learner.peers import Peers
from diloco.learner.program import Program
from diloco.protocol.diloco_pb2 import Hello
from diloco.protocol.piece_maps import piece_maps
from diloco.ranks.channel import RankIdentity
from diloco.ranks.follower import Follower
from diloco.ranks.following import FollowerMember
from diloco.ranks.leader import Leader
from diloco.ranks.leading import LeaderMember
from diloco.ranks.meeting import counting
from diloco.ranks.messages import pieces_to_wire
from diloco.ranks.ranks_pb2 import FromLeader, RankHello, StateOrder, StateSaid, ToLeader
from diloco.ranks.samples import DataRank
from diloco.ranks.state_of_rank import StateOfRank
from diloco.ranks.state_of_unit import StateOfUnit
from diloco.ranks.world import World
from diloco.recovery.peers import PeersOfUnit
from diloco.recovery.process_state import ProcessState

_log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"


def join_ranks(config: LearnerConfig, program: Program, hello: Hello, world: World) -> LeaderMember | FollowerMember:
    """Meet the other ranks, which all call this, and make this rank's member. `hello`: what a unit of one process would send.

    Raises Leave if the ranks do not agree or one does not come, ContractError for a leader address that cannot be used.
    """
    data = world.data or DataRank(world.rank, world.ranks)
    me = RankIdentity(config.job.uid, config.unit, config.attempt, world.rank, world.ranks)
    incarnations = Incarnations()
    layout, fragments, inner = program.layout, program.fragments, program.inner
    pieces = program.store.owned()
    process = ProcessState(config, layout, fragments, inner, pieces, incarnations, rank=me.rank, alone=False) if inner else None
    rank_hello = RankHello(
        job_uid=me.job_uid,
        unit=me.unit,
        attempt=me.attempt,
        rank=me.rank,
        ranks=me.ranks,
        framework=hello.framework,
        fingerprint=layout.fingerprint,
        owned=pieces_to_wire(pieces),
        dtypes=program.store.dtypes(),
        data_rank=data.index,
        data_ranks=data.of,
        inner_state=inner.kind if inner is not None else "",
        held=pieces_to_wire(inner.held()) if inner is not None else None,
        peer_address=process.address if process is not None else "",
    )
    channel = _channel(config, layout, hello.session, me, world)
    welcome = channel.meet(rank_hello)
    inbox = Inbox(config.job.training.overlap_steps, channel.changed)
    owned = channel.take_owned() if isinstance(channel, Leader) else ()
    portions = [portion(fragment, pieces) for fragment in fragments]
    state = _state_of_unit(channel, process, portions, owned) if isinstance(channel, Leader) and process is not None else None
    peers = Peers() if state is None or process is None else PeersOfUnit(config, layout, process, state)
    own = _hello_of(hello, layout, channel, welcome.session, owned, peers)
    own.locality, own.cluster = config.locality, config.cluster
    parts = make_parts(config, own, program, inbox, incarnations, peers)
    if isinstance(channel, Follower):
        of_rank = _state_of_rank(channel, process, portions) if process is not None else None
        return FollowerMember(parts, data, channel, incarnations, of_rank)
    return LeaderMember(parts, data, channel, incarnations, counting(channel.data_ranks), state)


def _state_of_rank(channel: Follower, process: ProcessState, portions: Sequence[Portion]) -> StateOfRank:
    def say(said: StateSaid) -> None:
        channel.say(ToLeader(state=said))
        channel.send()

    def wake() -> None:
        with channel.changed:
            channel.changed.notify_all()

    return StateOfRank(process, portions, say, wake)


def _state_of_unit(
    channel: Leader, process: ProcessState, portions: Sequence[Portion], owned: Sequence[Sequence[Piece]]
) -> StateOfUnit | None:
    """Return the state of all ranks. None if its ranks have different kinds of state."""
    if len(kinds := sorted(set(channel.inner_states))) > 1:
        named = "; ".join(kind or "none" for kind in kinds)
        _log.warning("unit %s neither gives, stores nor takes state: its ranks have different ones: %s", channel.me.unit, named)
        process.close()
        return None

    def say(rank: int, order: StateOrder) -> None:
        channel.say(FromLeader(state=order), rank)
        channel.send()

    state = StateOfUnit(process, portions, say, owned, channel.take_held())
    channel.state_said = state.said
    return state


def _channel(config: LearnerConfig, layout: Layout, session: bytes, me: RankIdentity, world: World) -> Leader | Follower:
    """Return this rank's end of the side channel.

    A unit of one host needs no leader address: the leader takes a free port, and the framework's collective tells the others which.
    """
    address = config.leader_address
    if address:
        host, _, port = address.rpartition(":")
        listens_at = config.pod_ip or "0.0.0.0"  # noqa: S104 - mutual TLS
    else:
        host, port = _LOOPBACK, "0"
        listens_at = host
    if not host or not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise ContractError(f"the leader's address must be host:port, not {address!r}")
    leader: Leader | None = None
    if me.rank == 0:
        leader = Leader(me, config.tls, listens_at, int(port), layout=layout, session=session)
    if not address:
        port = world.gather(str(leader.port if leader is not None else 0).encode())[0].decode()
    return leader or Follower(me, config.tls, host, int(port))


def _hello_of(
    hello: Hello,
    layout: Layout,
    channel: Leader | Follower,
    session: bytes,
    owned: Sequence[Sequence[Piece]],
    peers: Peers,
) -> Hello:
    me = channel.me
    if isinstance(channel, Leader):
        own = Hello(ranks=me.ranks, owned=piece_maps(layout, owned))
        own.rank_addresses.extend(channel.peer_addresses if peers.kind else ())
        own.inner_state = peers.kind
        own.MergeFrom(hello)
    else:
        own = Hello(job_uid=hello.job_uid, unit=hello.unit, attempt=hello.attempt, framework=hello.framework)
        own.rank, own.ranks, own.process = me.rank, me.ranks, secrets.token_bytes(16)
    own.session = session
    return own
