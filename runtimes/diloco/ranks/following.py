"""A follower: a rank that is not the leader.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from diloco.learner.inbox import RefusedForGood
from diloco.learner.incarnations import Incarnations
from diloco.learner.leave import leave
from diloco.learner.member import MemberParts
from diloco.ranks import messages, ranks_pb2
from diloco.ranks.channel import COUNTERS_TIMEOUT
from diloco.ranks.follower import Follower
from diloco.ranks.member import RankMember
from diloco.ranks.orders import LAST, Version
from diloco.ranks.ranks_pb2 import ToLeader
from diloco.ranks.samples import DataRank
from diloco.ranks.state_of_rank import StateOfRank
from diloco.wording import plural


class FollowerMember(RankMember[Follower]):
    def __init__(
        self, parts: MemberParts, data: DataRank, channel: Follower, incarnations: Incarnations, state: StateOfRank | None
    ) -> None:
        """`incarnations`: the syncer's incarnations that this rank's own stream has met. `state`: None if the unit exchanges no state."""
        super().__init__(parts, data, channel, state)
        self._incarnations = incarnations
        self._leader_took = 0
        """Batches that the leader has taken, as far as this rank knows."""
        self._wanted = 0
        """Batches that this rank has asked the leader for, counted from the beginning."""

    @property
    def who(self) -> str:
        me = self._channel.me
        return (
            f"{me.name(me.rank)} ({plural(self._taken, 'batch', 'batches')} taken so far, rank 0: {self._leader_took}; all ranks settle "
            "the same number in each step)"
        )

    @property
    def why_none(self) -> str:
        return f"(rank {self._channel.me.rank}) waits for its leader to deal out samples"

    def begin(self) -> None:
        if self._state is not None:
            self._state.warm_up()
        super().begin()

    def boundary(self, *, in_step: bool = False) -> None:
        super().boundary(in_step=in_step)
        events, plan = self._since_last()
        if self._state is not None:
            readable = not (in_step or self._model.store.lent)
            self._state.follow(events, plan, self._step_seconds, readable=readable)
            self._state.at_boundary(self.step_count, self._step_seconds, readable=readable)

    def take(self, count: int) -> NDArray[np.int64] | None:
        numbers = super().take(count)
        if numbers is None and self._end is None and self._wanted <= self._taken:
            self._wanted = self._taken + 1
            self._channel.say(ToLeader(wants=ranks_pb2.Wants(batches=self._wanted)))
            self._channel.send()
        return numbers

    def close(self) -> None:
        self._close_state()
        if self.draining:
            until = time.monotonic() + COUNTERS_TIMEOUT
            while self._read_outs and (left := until - time.monotonic()) > 0:
                self.wait(left)
                self._hear()
                self._send()
            self.link.flush()
            self._channel.left()
            self.link.wait_for_end()  # the leader's Bye ends it
            return
        self._channel.left(early=not self.done)
        self.link.close(None)

    def _hear_refusal(self, event: RefusedForGood) -> None:
        self.link.close(None)
        self._channel.failed(event.message)
        raise leave(event.status, event.message)

    def _hear_ranks(self) -> None:
        fragments, number = len(self._model.names), self._incarnations.number
        for _, message in self._channel.heard():
            match message.WhichOneof("message"):
                case "order":
                    self._cursor.put(messages.order_from_wire(message.order, number, fragments))
                case "cut":
                    action = messages.order_from_wire(message.cut, number, fragments).action
                    if not isinstance(action, LAST):
                        raise messages.MessageError(f"the leader cuts a step with {action}")
                    self._cut = action
                case "deal":
                    self._dealt.append(messages.deal_from_wire(message.deal))
                    self._leader_took = message.deal.taken
                case "drop":
                    fragment = messages.checked(message.drop.fragment, fragments)
                    self._drop(fragment, messages.version_from_wire(message.drop.version, number))
                case "state" if self._state is not None:
                    self._state.order(message.state)
                case "counted":
                    self._read_outs.count(messages.counted_from_wire(message.counted, fragments))

    def _tell(self, fragment: int, version: Version) -> None:
        wire = messages.version_to_wire(version, self._incarnations.name)
        self._channel.say(ToLeader(version_received=ranks_pb2.VersionReceived(fragment=fragment, version=wire)))

    def _tell_step(self, tokens: int, loss: float, batches: int | None) -> None:
        self._channel.say(ToLeader(stepped=ranks_pb2.Stepped(tokens=tokens, loss=loss, settled=batches)))

    def _tell_data(self, data: str) -> None:
        self._channel.say(ToLeader(reads=ranks_pb2.Reads(data=data)))
        self._channel.send()

    def _tell_drain(self) -> None:
        self._channel.say(ToLeader(draining=ranks_pb2.Draining()))
        self._told_to_drain = False
