"""How the leader of a unit decides a few steps ahead what all ranks do. Pure.

The leader plans as a unit of one process does (`unit_plan`), but always for the boundary after the last step that it has released. So a
follower has an order before it comes to the order's boundary, and waits only if it has overtaken the leader.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from diloco.learner.inbox import Finished, InboxEvent, PullWanted, Received, Welcomed
from diloco.learner.push_header import PushCounts
from diloco.learner.store import Ready
from diloco.learner.unit_plan import UnitPlan, UnitState, WorkChange
from diloco.ranks.arrivals import Arrivals, Dropped
from diloco.ranks.counts import Counts
from diloco.ranks.orders import Action, Adopt, Begin, Drain, Finish, Last, Order, Quit, ReadOut, Release, Seed, Version

type Plan = Callable[[UnitState, Sequence[InboxEvent]], tuple[UnitPlan, UnitState]]
"""`unit_plan.plan_boundary` of this model."""

LATENCY = 0.05
"""How long an order may take to reach a rank, seconds. The network takes a millisecond, a busy process the rest."""
MOST_AHEAD = 8


def ahead(step_seconds: float) -> int:
    """Return how many steps the leader releases beyond its next one: as many as pass while an order is under way, and at least one.

    `step_seconds`: how long a step takes, 0 if unknown.
    """
    return min(MOST_AHEAD, max(1, math.ceil(LATENCY / step_seconds))) if step_seconds > 0 else 1


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from a boundary of the leader."""

    orders: tuple[Order, ...]
    """For all ranks, with the leader."""
    dropped: tuple[Dropped, ...]
    counted: tuple[PushCounts, ...]
    work: WorkChange
    """For the leader's leases."""
    repeat_progress: bool
    """As in `UnitPlan`."""


class Schedule:
    """The orders of one unit."""

    def __init__(self, state: UnitState, owners: Sequence[Collection[int]], counting: Sequence[int], plan: Plan) -> None:
        """
        Args:
            owners: for each fragment the ranks that own a part of it
            counting: the ranks whose tokens count, one of all that train the same samples
        """
        self._state = state
        self._plan = plan
        self._arrivals = Arrivals(owners)
        self._counts = Counts(len(counting), len(owners))
        self._counting = {rank: index for index, rank in enumerate(counting)}
        self._ripe: dict[int, Version] = {}
        """Versions that all owners have and the plan has not adopted yet."""
        self.ordered: dict[int, Version] = {}
        """The version of each fragment whose adoption was ordered last."""
        self._pulls: dict[int, PullWanted] = {}
        """Pulls that wait until the unit has adopted a version that came before them."""
        self._finished: Finished | None = None
        self._drain = False
        self._begun = False
        self._epoch = 0
        self.last: Last | None = None
        """The last order, once it is given. After it no steps are released, and no samples are dealt."""

    @property
    def state(self) -> UnitState:
        """The state that the unit will have after all orders and released steps, except for its tokens."""
        return self._state

    @property
    def counts(self) -> Counts:
        return self._counts

    def received(self, rank: int, fragment: int, version: Version) -> None:
        """Note that a rank, which may be the leader, has received its part of this version."""
        self._arrivals.received(rank, fragment, version)

    def stepped(self, rank: int, tokens: int, loss: float = math.nan) -> None:
        """Note that a rank, which may be the leader, has done its next local step. `loss`: mean over its tokens, NaN if unknown."""
        if rank in self._counting:
            self._counts.stepped(self._counting[rank], tokens, loss)

    def trained(self, samples: Sequence[tuple[int, int]]) -> None:
        """Note what the unit has trained in its next local step: (generation in which it was dealt, samples) of each batch."""
        self._counts.trained(sum(count for generation, count in samples if generation == self._state.generation))

    def drain(self) -> None:
        """Note that a rank was told to drain. All ranks drain after the last released step."""
        self._drain = True

    def boundary(self, events: Sequence[InboxEvent], waiting: Collection[int]) -> Decision:
        """Decide at a boundary of the leader.

        Args:
            events: what came from the syncer. A `Received` in it is ignored: a value counts once all owners have it (`received`)
            waiting: fragments with a value that the leader has received and not been ordered to adopt (`ReceivedVersions.waiting(ordered)`)
        """
        ripe, dropped = self._arrivals.settle()
        self._ripe |= dict(ripe)
        heard: list[InboxEvent] = [Received(fragment, version.t, Ready((), ())) for fragment, version in ripe]
        heard += self._without_those_that_wait(events, waiting)
        if self._finished is not None and not waiting:
            heard.append(self._finished)
        if self.last is None:
            actions, plan = self._decide(heard)
        else:
            actions, plan = [], UnitPlan(self._state.step)
        orders = tuple(Order(self._state.step, action) for action in actions)
        return Decision(orders, tuple(dropped), tuple(self._counts.ready()), plan.work, plan.repeat_progress)

    def release(self, step: int, ahead: int, most: int | None = None) -> list[Order]:
        """Release the leader's next step and `ahead` more. None while the unit rests.

        Args:
            step: local steps that the leader has done
            ahead: steps beyond the next one
            most: local steps that there is work for, counted from the beginning. None: no limit
        """
        orders: list[Order] = []
        until = step + 1 + ahead if most is None else min(most, step + 1 + ahead)
        while self._begun and self.last is None and not self._state.quorum and self._state.step < until:
            orders.append(Order(self._state.step, Release(self._state.t, self._state.steps)))
            self._state = self._state.count(0, 0)
        return orders

    def _without_those_that_wait(self, events: Sequence[InboxEvent], waiting: Collection[int]) -> list[InboxEvent]:
        """Return the events for the plan. A pull waits until the unit has adopted the versions that came before it, and `Finished` until it
        has adopted all."""
        heard: list[InboxEvent] = []
        for event in events:
            match event:
                case Received():
                    pass
                case Finished():
                    self._finished = event
                case PullWanted():
                    self._pulls[event.fragment] = event
                case Welcomed():
                    self._pulls.clear()
                    heard.append(event)
                case _:
                    heard.append(event)
        free = self._pulls.keys() - set(waiting) - self._ripe.keys()
        return heard + [self._pulls.pop(fragment) for fragment in sorted(free)]

    def _decide(self, heard: Sequence[InboxEvent]) -> tuple[list[Action], UnitPlan]:
        before = self._state
        plan, state = self._plan(before, heard)
        self._epoch = max([self._epoch, *(event.epoch for event in heard if isinstance(event, Welcomed))])
        if state.generation != before.generation:
            self._counts.began(plan.step)
            for fragment in range(len(state.fragment_steps)):
                self._counts.adopted(fragment, plan.step)
        actions: list[Action] = []
        for read in plan.reads:
            self._counts.read(read.fragment, read.t, plan.step)
            actions.append(ReadOut(read.fragment, read.t, self._epoch))
        for adoption in plan.adoptions:
            self._counts.adopted(adoption.fragment, plan.step)
            version = self.ordered[adoption.fragment] = self._ripe.pop(adoption.fragment)
            actions.append(Adopt(adoption.fragment, version))
        if plan.seed:
            actions.append(Seed(self._epoch))
        if not self._begun and not state.missing:
            self._begun = True
            actions.append(Begin())
        if plan.refused is not None:
            self.last = Quit(plan.refused.status, plan.refused.message)
        elif plan.finish:
            self.last = Finish(state.t)
        elif self._drain:
            self.last = Drain()
        if self.last is not None:
            actions.append(self.last)
        self._state = state
        return actions, plan
