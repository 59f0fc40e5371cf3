"""A unit of several ranks in one thread: what the syncer, each rank and each message does next is drawn at random.

Ranks do steps, messages between them keep their order on each link and take any time, values come over each rank's own stream, and a
stream that is slow loses all but the newest version of a fragment. The unit's program takes `batches` batches for each step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from diloco.learner.inbox import Finished, InboxEvent, Leased, PullWanted, Welcomed
from diloco.learner.push_header import PushCounts
from diloco.learner.timetable import timetable
from diloco.learner.unit_plan import new_unit, plan_boundary
from diloco.learner.work import LeasedWork
from diloco.ranks.arrivals import Dropped, ReceivedVersions
from diloco.ranks.orders import LAST, Action, Adopt, Begin, Cursor, Last, Order, Version
from diloco.ranks.samples import Ranges
from diloco.ranks.schedule import Schedule

BATCH = 4
"""Samples of the unit's batch."""


def tokens(rank: int, step: int) -> int:
    """What a rank trains in a step: another number each time, so that a sum tells what is in it."""
    return 1000 * rank + step


@dataclass
class SimulatedRank:
    rank: int
    cursor: Cursor = field(default_factory=Cursor)
    versions: ReceivedVersions[Version] = field(default_factory=ReceivedVersions)
    stream: deque[tuple[int, Version]] = field(default_factory=deque)
    """What the syncer has sent and this rank has not received."""
    received: dict[int, Version] = field(default_factory=dict)
    """The newest of each fragment; what a rank finishes with."""
    to_leader: deque[Callable[[], None]] = field(default_factory=deque)
    from_leader: deque[Callable[[], None]] = field(default_factory=deque)
    in_step: bool = False
    dealt: deque[Ranges] = field(default_factory=deque)
    """Batches of the unit that this rank has not taken."""
    taken: int = 0
    """Batches that it has taken for the step under way."""
    trained: list[Ranges] = field(default_factory=list)
    cut: Last | None = None
    done: list[tuple[int, Action]] = field(default_factory=list)
    """What it carried out, and after which local step."""
    waited: int = 0
    """Boundaries at which it had to wait."""

    @property
    def over(self) -> bool:
        return bool(self.done) and isinstance(self.done[-1][1], LAST)


class SimulatedUnit:
    """`ranks` ranks, which all own a part of each fragment but for those that `bare` names: (rank, fragment)."""

    def __init__(
        self, ranks: int, fragments: int, steps: int, *, ahead: int = 1, bare: frozenset[tuple[int, int]] = frozenset(), batches: int = 1
    ) -> None:
        """`steps`: outer steps of the job. `batches`: for each local step."""
        self.ranks = [SimulatedRank(rank) for rank in range(ranks)]
        self.fragments = fragments
        self.steps = steps
        self.ahead = ahead
        self.batches = batches
        self.in_hand: deque[tuple[int, int]] = deque()
        """Batches that were dealt and not trained: (generation, samples)."""
        self.owners = [[rank for rank in range(ranks) if (rank, fragment) not in bare] for fragment in range(fragments)]
        plan = partial(plan_boundary, table=timetable([8] * fragments, fragments, 1), most=1 << 20)
        self.schedule = Schedule(new_unit(fragments, steps), self.owners, range(ranks), plan)
        self.work = LeasedWork()
        self.inbox: list[InboxEvent] = [Welcomed(1, 0, steps, seed_wanted=False, asked=0)]
        self.t = 0
        self.generation = 1
        self.newest: dict[int, Version] = {}
        """What the syncer sent last of each fragment."""
        self.leased = 0
        self.counted: list[PushCounts] = []
        self.on_the_way: list[deque[int]] = []
        """In lockstep: how many messages of each queue were sent in each of the last steps."""
        for fragment in range(fragments):
            self.broadcast(fragment, 0)

    # --- the syncer -----------------------------------------------------------------------------------------------------

    def syncer_steps(self) -> None:
        """Outer step t + 1: a fragment is pulled, merged and sent."""
        self.t += 1
        fragment = self.t % self.fragments
        self.inbox.append(PullWanted(self.generation, fragment, self.t))
        self.broadcast(fragment, self.t)

    def syncer_restarts(self) -> None:
        """From a snapshot two outer steps ago: what was on its way is lost, and all parameters are sent again."""
        self.t = max(0, self.t - 2)
        self.generation += 1
        self.inbox.append(Welcomed(self.generation, self.t, self.steps, seed_wanted=False, asked=0))
        for rank in self.ranks:
            rank.stream.clear()
        for fragment in range(self.fragments):
            self.broadcast(fragment, self.t)

    def lease(self) -> None:
        self.inbox.append(Leased(self.leased, self.leased + 3 * BATCH - 1))
        self.leased += 3 * BATCH - 1

    def broadcast(self, fragment: int, t: int) -> None:
        self.newest[fragment] = version = Version(self.generation - 1, t)
        for rank in self.owners[fragment]:
            self.ranks[rank].stream.append((fragment, version))

    # --- the ranks ------------------------------------------------------------------------------------------------------

    def receive(self, rank: SimulatedRank) -> None:
        fragment, version = rank.stream.popleft()
        rank.received[fragment] = version
        self._tell(rank, fragment, rank.versions.add(fragment, version, version))
        if rank.rank == 0 and self.t == self.steps and not rank.stream:
            self.inbox.append(Finished(self.t))

    def lose_old(self, rank: SimulatedRank) -> None:
        """The stream was slow."""
        newest = dict(rank.stream)
        rank.stream = deque((fragment, version) for fragment, version in rank.stream if newest[fragment] == version)

    def moves(self, rank: SimulatedRank) -> None:
        """The rank does what it can: it ends its step, carries out what is due, and begins the next."""
        if rank.in_step:
            if rank.taken < self.batches:
                self._take_batches(rank)
                return
            rank.in_step, rank.taken = False, 0
            step = rank.cursor.step
            self._to_leader(rank, partial(self.schedule.stepped, rank.rank, tokens(rank.rank, step)))
            if rank.rank == 0:
                self.schedule.trained([self.in_hand.popleft() for _ in range(self.batches)])
        if rank.rank == 0:
            self._decide()
        while (action := rank.cursor.due()) is not None:
            rank.done.append((rank.cursor.step, action))
            if isinstance(action, Adopt):
                value, told = rank.versions.adopt(action.fragment, action.version)
                assert value == (action.version if rank.rank in self.owners[action.fragment] else None)
                self._tell(rank, action.fragment, told)
        if rank.cursor.released:
            rank.done.append((rank.cursor.step, rank.cursor.begin()))
            rank.in_step = True
            self._take_batches(rank)
        elif not rank.over and any(isinstance(action, Begin) for _, action in rank.done):
            rank.waited += 1

    def _take_batches(self, rank: SimulatedRank) -> None:
        if rank.rank == 0:
            self._decide()
        while rank.dealt and rank.taken < self.batches:
            rank.trained.append(rank.dealt.popleft())
            rank.taken += 1
        if rank.taken == self.batches:
            return
        rank.waited += 1
        if rank.cut is not None:
            rank.done.append((rank.cursor.step, rank.cut))
        elif rank.rank == 0 and self.schedule.last is not None:
            for other in self.ranks:
                self._from_leader(other.rank, partial(setattr, other, "cut", self.schedule.last))

    def _decide(self) -> None:
        leader = self.ranks[0]
        events, self.inbox = self.inbox, []
        said = self.schedule.boundary(events, leader.versions.waiting(self.schedule.ordered))
        if said.work.restart:
            self.work.forget()
        for start, end in said.work.leases:
            self.work.granted(start, end)
        self.counted += said.counted
        for drop in said.dropped:
            self._from_leader(drop.rank, partial(self._drop, drop))
        for order in [*said.orders, *self.schedule.release(leader.cursor.step - leader.in_step, self.ahead)]:
            for rank in self.ranks:
                self._from_leader(rank.rank, partial(self._put, rank, order))
        while self.schedule.last is None and len(leader.dealt) < (self.ahead + 1) * self.batches:
            if (ranges := self.work.take_ranges(BATCH)) is None:
                break
            self.in_hand.append((self.schedule.state.generation, BATCH))
            for rank in self.ranks:
                self._from_leader(rank.rank, partial(rank.dealt.append, ranges))

    def _put(self, rank: SimulatedRank, order: Order) -> None:
        rank.cursor.put(order)

    def _drop(self, drop: Dropped) -> None:
        rank = self.ranks[drop.rank]
        self._tell(rank, drop.fragment, rank.versions.drop(drop.fragment, drop.version))

    def _tell(self, rank: SimulatedRank, fragment: int, version: Version | None) -> None:
        if version is not None:
            self._to_leader(rank, partial(self.schedule.received, rank.rank, fragment, version))

    def _to_leader(self, rank: SimulatedRank, message: Callable[[], None]) -> None:
        message() if rank.rank == 0 else rank.to_leader.append(message)

    def _from_leader(self, rank: int, message: Callable[[], None]) -> None:
        message() if rank == 0 else self.ranks[rank].from_leader.append(message)

    # --- chance ---------------------------------------------------------------------------------------------------------

    def possible(self) -> list[Callable[[], None]]:
        """What may happen next. A rank that waits may always look again."""
        found: list[Callable[[], None]] = [partial(self.moves, rank) for rank in self.ranks if not rank.over]
        for rank in self.ranks:
            if rank.stream:
                found += [partial(self.receive, rank), partial(self.lose_old, rank)]
            found += [partial(_deliver, queue) for queue in (rank.to_leader, rank.from_leader) if queue]
        if self.t < self.steps:
            found.append(self.syncer_steps)
        if self.leased - BATCH * self.batches * self.ranks[0].cursor.step < 20 * BATCH:
            found.append(self.lease)
        return found

    def settle(self) -> None:
        """What is on its way arrives, and all pushes are counted."""
        for rank in self.ranks:
            while rank.to_leader:
                _deliver(rank.to_leader)
        self.counted += self.schedule.counts.ready()

    def run(self, chance: Random, most: int = 20_000, meanwhile: Callable[[int], None] = lambda done: None) -> None:
        """Wait until all ranks are over. `meanwhile` is called before each event with the number of events so far."""
        for count in range(most):
            meanwhile(count)
            if all(rank.over for rank in self.ranks):
                return
            chance.choice(self.possible())()
        raise AssertionError(f"after {most} events not all ranks are over: {[(rank.cursor.step, rank.over) for rank in self.ranks]}")


def _deliver(queue: deque[Callable[[], None]]) -> None:
    queue.popleft()()


def in_lockstep(unit: SimulatedUnit, steps: int, delay: int = 1) -> None:
    """All ranks step together, as in collectives. What one says in a step arrives `delay` steps later."""
    queues = [queue for rank in unit.ranks for queue in (rank.to_leader, rank.from_leader)]
    on_the_way = unit.on_the_way = unit.on_the_way or [deque() for _ in queues]
    for _ in range(steps):
        for queue, sent in zip(queues, on_the_way, strict=True):
            while len(sent) >= delay:
                for _ in range(sent.popleft()):
                    _deliver(queue)
        slowest = min(rank.cursor.step for rank in unit.ranks)
        for rank in [rank for rank in unit.ranks if not rank.in_step or rank.cursor.step == slowest]:
            unit.moves(rank)
        for queue, sent in zip(queues, on_the_way, strict=True):
            sent.append(len(queue) - sum(sent))
