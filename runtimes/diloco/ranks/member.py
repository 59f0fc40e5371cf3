"""What every rank of a unit does in the job, leader or follower: it carries out the unit's orders on what it owns.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.codec import Coding
from diloco.learner.inbox import InboxEvent, Received, RefusedForGood, Welcomed
from diloco.learner.leave import leave
from diloco.learner.member import Member, MemberParts
from diloco.learner.push_header import PushCounts, push_header
from diloco.learner.store import Float32Array, Ready, Staged
from diloco.learner.unit_plan import Adoption, UnitPlan
from diloco.protocol.diloco_pb2 import Chunk
from diloco.ranks.arrivals import ReceivedVersions
from diloco.ranks.channel import SideChannel
from diloco.ranks.orders import LAST, Action, Adopt, Begin, Cursor, Drain, Finish, Last, Quit, ReadOut, Release, Seed, TakeState, Version
from diloco.ranks.samples import DataRank, Ranges, numbers_of_rank
from diloco.ranks.state_of_rank import StateOfRank


class _Arrived(NamedTuple):
    """A received fragment that waits for its adoption."""

    ready: Ready
    tokens: int
    """As in `Received`."""


class RankMember[Channel: SideChannel[Any]](Member):
    ends_between_steps = False  # all ranks end at the same local step, which the leader may have set ahead

    def __init__(self, parts: MemberParts, data: DataRank, channel: Channel, state: StateOfRank | None) -> None:
        """`state`: this rank's inner state. None if its unit neither gives nor takes any."""
        super().__init__(parts)
        self._data = data
        self._channel = channel
        self._state = state
        self._cursor = Cursor()
        self._received: ReceivedVersions[_Arrived] = ReceivedVersions()
        self._read_outs = ReadOuts(self._coding)
        self._to_seed: tuple[int, list[Float32Array]] | None = None
        """(the syncer's epoch that the seed is for, its values)"""
        self._dealt: deque[Ranges] = deque()
        """Batches of the unit that this rank has not taken."""
        self._taken = 0
        """Batches that this rank has taken, counted from the beginning."""
        self._cut: Last | None = None
        """The unit's last order, if it shall be carried out even within a step, once this rank has no batch left."""
        self._generation = 0
        """The generation of this rank's own stream."""
        self._epoch = -1
        """The syncer's epoch in the last Welcome."""
        self._release = Release(0, parts.training.steps)
        """The release of the last step."""
        self._in_step = False
        self._batch_size = 0
        self._told_to_drain = False
        self._for_peers: list[InboxEvent] = []
        self._adopted: list[Adoption] = []
        self._seeded = False
        """With the two above: what has come and was done since the last call of `_since_last`."""
        self._end: Last | None = None
        """The last order, once it is carried out."""

    # --- what it knows ------------------------------------------------------------------------------------------------

    @property
    def t(self) -> int:
        return self._end.t if isinstance(self._end, Finish) else self._release.t

    @property
    def steps(self) -> int:
        return self._release.steps

    @property
    def step_count(self) -> int:
        return self._cursor.step - self._in_step

    @property
    def may_step(self) -> bool:
        return self._in_step

    @property
    def done(self) -> bool:
        return isinstance(self._end, Finish)

    @property
    def draining(self) -> bool:
        return isinstance(self._end, Drain)

    # --- what it does -------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        changed = self._channel.changed
        with changed:
            changed.wait_for(lambda: self._channel.has_mail or len(self._inbox) or (self._state and self._state.has_news), seconds)

    def boundary(self, *, in_step: bool = False) -> None:
        # The collective of an adoption waits for the slowest rank. So due orders come first, and what wakes other threads or is for later
        # steps follows. But new orders are sent before they are carried out, because this rank may then wait in a collective.
        self._hear()
        if self._told_to_drain:
            self._tell_drain()
        try:
            self._go_on()
            self._decide()
            self._send()
            self._go_on()
        finally:
            self._send()

    def _go_on(self) -> None:
        """Carry out what is due, and begin the next step if it is released."""
        while self._end is None and not self._in_step:
            if (action := self._cursor.due()) is not None:
                self._carry_out(action)
            elif self._cursor.released:
                self._release, self._in_step = self._cursor.begin(), True
            else:
                break

    def take(self, count: int) -> NDArray[np.int64] | None:
        self._batch_size = count
        if not self._dealt:
            if self._cut is not None and self._end is None:
                self._carry_out(self._cut)
            return None
        numbers = numbers_of_rank(self._dealt[0], self._data)
        if len(numbers) != count:
            raise ValueError(
                f"this rank asks for a batch of {count} samples, and its leader has dealt out {len(numbers)} to each: all ranks of a unit "
                "must give batches() the same batch_size"
            )
        self._dealt.popleft()
        self._taken += 1
        return numbers

    def reads(self, data: str) -> None:
        super().reads(data)
        self._tell_data(data)

    def ask_for_work(self, batch_size: int, batches: int | None, ahead: int) -> None:
        """Leave it to the leader, which asks for all ranks."""

    def stepped(self, tokens: int, loss: float | None, step_seconds: float, batches: int | None) -> None:
        if self._end is not None:
            return  # the program has gone on with batches that it fetched before the end
        self._in_step = False
        self._step_seconds = step_seconds
        self._tell_step(tokens, math.nan if loss is None else loss, batches)

    def drain(self) -> None:
        self._told_to_drain = True

    def abandon(self, error: BaseException | None) -> None:
        super().abandon(error)
        if error is None:
            self._channel.left()
        else:
            self._channel.failed(error)

    def _close_state(self) -> None:
        super()._close_state()
        if self._state is not None:
            self._state.close()

    # --- what a leader and a follower do differently ------------------------------------------------------------------

    def _decide(self) -> None:
        """In the leader: give orders. Called at each boundary."""

    def _hear_syncer(self, event: InboxEvent) -> None:
        """In the leader: take an event from the syncer."""

    @abstractmethod
    def _hear_ranks(self) -> None:
        """Take the messages of the other ranks."""

    @abstractmethod
    def _hear_refusal(self, event: RefusedForGood) -> None:
        """Note that the syncer refuses this rank for good."""

    @abstractmethod
    def _tell(self, fragment: int, version: Version) -> None:
        """Tell the leader that this rank has the version."""

    @abstractmethod
    def _tell_step(self, tokens: int, loss: float, batches: int | None) -> None:
        """Tell the leader that this rank has done a local step, which settles `batches`. None: the program feeds itself."""

    @abstractmethod
    def _tell_data(self, data: str) -> None:
        """Tell the leader what the sequence numbers of the next batches stand for. In the leader, raises LoopError if ranks differ."""

    @abstractmethod
    def _tell_drain(self) -> None:
        """Tell the leader that this rank was told to drain. May be called more than once."""

    # --- what all do --------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Take all events and messages since the last boundary."""
        for event in self._inbox.drain():
            match event:
                case Received(fragment, t, ready, epoch, tokens):
                    self._tell_news(fragment, self._received.add(fragment, Version(epoch, t), _Arrived(ready, tokens)))
                case RefusedForGood():
                    self._hear_refusal(event)
                case Welcomed(generation=generation, epoch=epoch):
                    self._generation, self._epoch = generation, epoch
                    self._for_peers.append(event)
                    self._send_seed()
                    self._hear_syncer(event)
                case _:
                    self._hear_syncer(event)
        self._hear_ranks()

    def _drop(self, fragment: int, version: Version) -> None:
        self._tell_news(fragment, self._received.drop(fragment, version))

    def _tell_news(self, fragment: int, version: Version | None) -> None:
        if version is not None:
            self._tell(fragment, version)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Adopt(fragment, version):
                arrived, next_version = self._received.adopt(fragment, version)
                if arrived is None:
                    raise RuntimeError(f"the leader orders to adopt {version} of fragment {fragment}, of which this rank has not told it")
                self._adopt(fragment, arrived.ready, version.t, arrived.tokens, self._cursor.step)
                self._tell_news(fragment, next_version)
                self._for_peers.append(Received(fragment, version.t, Ready((), ()), version.epoch))
                self._adopted.append(Adoption(fragment, version.t))
                if self._state is not None:
                    self._state.adopted(fragment)
            case ReadOut():
                if self._model.portions[action.fragment].size:
                    self._read_outs.put(action, self._model.stage(action.fragment))
            case Seed(epoch):
                self._to_seed = epoch, self._first_values()
                self._seeded = True
                self._send_seed()
            case TakeState(copy, fragments):
                self._take_state(copy, fragments)
            case Finish():
                self._model.finish()
            case Quit(status, message):
                self.link.close(None)
                self._channel.left()
                raise leave(status, message)
            case Begin() | Release() | Drain():
                pass
            case _:
                assert_never(action)
        if isinstance(action, LAST):
            self._end = action
            if not isinstance(action, Drain):
                self._read_outs.release()

    def _since_last(self) -> tuple[list[InboxEvent], UnitPlan]:
        """Return the events that came and the plan that was carried out since the last call, for the exchange with peers."""
        events, self._for_peers = self._for_peers, []
        plan = UnitPlan(self.step_count, adoptions=tuple(self._adopted), seed=self._seeded)
        self._adopted, self._seeded = [], False
        return events, plan

    def _take_state(self, copy: int, fragments: Sequence[int]) -> None:
        model = self._model
        if self._state is None:
            raise RuntimeError("the ranks of this unit differ: the leader orders to take a state, and this rank has none")
        for fragment, values in self._state.parameters(copy, fragments):
            model.adopt(fragment, model.store.prepare(model.names[fragment], values))
        self._state.finish()
        model.overwritten()

    def _send(self) -> None:
        """Hand over to other threads what must be sent."""
        for header, staged in self._read_outs.take(self._epoch):
            self.link.push(self._generation, header, staged)
        self._channel.send()

    def _send_seed(self) -> None:
        """Send the kept seed, once this rank's own stream is welcomed: the leader's order may come before that."""
        if self._to_seed is not None and self._to_seed[0] == self._epoch:
            self.link.seed(self._generation, self._to_seed[1])
            self._to_seed = None


# --- What a rank has read out of its model for exchanges, until the counters are known with which it is sent ----------
class ReadOuts:
    """At most one read of each fragment."""

    def __init__(self, coding: Coding) -> None:
        self._coding = coding
        self._reads: dict[int, tuple[ReadOut, Staged]] = {}
        self._counted: dict[int, PushCounts] = {}
        """By fragment. They may be known before this rank comes to the boundary at which it reads out."""

    def __bool__(self) -> bool:
        """Something waits."""
        return bool(self._reads)

    def put(self, read: ReadOut, staged: Staged) -> None:
        """Keep a read in place of an older one of the fragment."""
        if (former := self._reads.pop(read.fragment, None)) is not None:
            former[1].release()
        self._reads[read.fragment] = read, staged

    def count(self, counted: PushCounts) -> None:
        """Note that the counters of a push are known."""
        self._counted[counted.fragment] = counted

    def take(self, epoch: int) -> list[tuple[Chunk, Staged]]:
        """Return (header, values) of each push that can be sent now, each once. Reads for another incarnation than `epoch`, to which this
        rank's stream is connected, are released."""
        pushes: list[tuple[Chunk, Staged]] = []
        for fragment, (read, staged) in list(self._reads.items()):
            counted = self._counted.get(fragment)
            if counted is None or read.t != counted.t:
                continue
            del self._reads[fragment], self._counted[fragment]
            if read.epoch == epoch:
                pushes.append((push_header(counted, self._coding), staged))
            else:
                staged.release()
        return pushes

    def release(self) -> None:
        """Release everything. Nothing more is sent."""
        for _, staged in self._reads.values():
            staged.release()
        self._reads.clear()
