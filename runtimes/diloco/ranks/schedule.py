"""How the leader of a unit decides a few steps ahead what all ranks do. Pure.

The leader plans, as a unit of one process does (`unit_plan`), but for the boundary after the last step that it has released, and releases
the steps up to there. So a follower has an order before it comes to its boundary, and waits only when it has overtaken the leader.

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
"""What an order may take to reach a rank, seconds: the network takes a millisecond, a busy process the rest."""
MOST_AHEAD = 8


def ahead(step_seconds: float) -> int:
    """Return steps that the leader releases beyond its next: as many as an order needs, one at least. `step_seconds`: of one step, 0:
    unknown."""
    return min(MOST_AHEAD, max(1, math.ceil(LATENCY / step_seconds))) if step_seconds > 0 else 1


@dataclass(frozen=True, slots=True)
class Said:
    """What the leader says to the others after a boundary."""

    orders: tuple[Order, ...]
    """For all ranks, itself included."""
    dropped: tuple[Dropped, ...]
    counted: tuple[PushCounts, ...]
    work: WorkChange
    """For the leader's own leases."""
    repeat_progress: bool
    """Say again how far the unit is: it rests, and the syncer is to know that it is there."""


class Schedule:
    """The orders of one unit."""

    def __init__(self, state: UnitState, owners: Sequence[Collection[int]], counting: Sequence[int], plan: Plan) -> None:
        """Begin with `state`: of a new unit. `owners`: for each fragment the ranks that own a part of it. `counting`: the ranks whose
        tokens count: of those that train the same samples only one."""
        self._state = state
        self._plan = plan
        self._arrivals = Arrivals(owners)
        self._counts = Counts(len(counting), len(owners))
        self._counting = {rank: index for index, rank in enumerate(counting)}
        self._ripe: dict[int, Version] = {}
        """What all ranks have, and the plan has not adopted yet."""
        self.ordered: dict[int, Version] = {}
        """The version of each fragment whose adoption was ordered last."""
        self._pulls: dict[int, PullWanted] = {}
        """What the syncer wants of fragments that the unit adopts first."""
        self._finished: Finished | None = None
        self._drain = False
        self._begun = False
        self._epoch = 0
        self.last: Last | None = None
        """The last order, once it is given: no step is released any more, and no samples are dealt."""

    @property
    def state(self) -> UnitState:
        """Return the state of the unit when all that was ordered is done, but for its tokens."""
        return self._state

    @property
    def counts(self) -> Counts:
        """The tokens that the ranks said."""
        return self._counts

    def told(self, rank: int, fragment: int, version: Version) -> None:
        """Note that a rank, the leader included, has received its part of this version."""
        self._arrivals.told(rank, fragment, version)

    def stepped(self, rank: int, tokens: int, loss: float = math.nan) -> None:
        """Note that a rank, the leader included, has done its next local step. `loss`: the mean over its tokens, NaN if it is not known."""
        if rank in self._counting:
            self._counts.stepped(self._counting[rank], tokens, loss)

    def trained(self, samples: Sequence[tuple[int, int]]) -> None:
        """Note that the unit has trained so many samples in its next local step: of each batch (generation in which it was dealt,
        samples)."""
        self._counts.trained(sum(count for generation, count in samples if generation == self._state.generation))

    def drain(self) -> None:
        """Note that a rank was told to drain: all drain after the last step that is released."""
        self._drain = True

    def boundary(self, events: Sequence[InboxEvent], waiting: Collection[int]) -> Said:
        """Decide at a boundary of the leader. `events`: what the syncer said to the leader; received values count once `told`. `waiting`:
        fragments of which the leader has received a value whose adoption is not ordered yet (`ReceivedVersions.waiting(ordered)`)."""
        ripe, dropped = self._arrivals.settle()
        self._ripe |= dict(ripe)
        heard: list[InboxEvent] = [Received(fragment, version.t, Ready((), ())) for fragment, version in ripe]
        heard += self._without_those_that_wait(events, waiting)
        if self._finished is not None and not waiting:
            heard.append(self._finished)
        actions, plan = ([], UnitPlan(self._state.step)) if self.last is not None else self._decide(heard)
        orders = tuple(Order(self._state.step, action) for action in actions)
        return Said(orders, tuple(dropped), tuple(self._counts.ready()), plan.work, plan.repeat_progress)

    def release(self, step: int, ahead: int, most: int | None = None) -> list[Order]:
        """Release steps while the leader has done `step` local steps: its next one and `ahead` more; none while the unit rests. `most`: so
        many steps in all, as there is no work for more."""
        orders: list[Order] = []
        until = step + 1 + ahead if most is None else min(most, step + 1 + ahead)
        while self._begun and self.last is None and not self._state.quorum and self._state.step < until:
            orders.append(Order(self._state.step, Release(self._state.t, self._state.steps)))
            self._state = self._state.count(0, 0)
        return orders

    def _without_those_that_wait(self, events: Sequence[InboxEvent], waiting: Collection[int]) -> list[InboxEvent]:
        """Return what the plan gets now. A fragment is read out after the adoption of what came before the pull, and the job is finished
        after all adoptions."""
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
