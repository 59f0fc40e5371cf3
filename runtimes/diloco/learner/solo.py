"""A unit of one process: its leases, its counters, and its boundaries.

`unit_plan` decides what happens between two steps, purely, and this module carries it out.

See docs/decisions/0151-step-boundary.md. See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from diloco.learner.inbox import Received
from diloco.learner.leave import leave
from diloco.learner.member import Member, MemberParts
from diloco.learner.push_header import PushCounts, push_header
from diloco.learner.store import Ready
from diloco.learner.unit_plan import Read, ReadAhead, UnitPlan, UnitState, most_at_once, new_unit, plan_boundary
from diloco.learner.work import AHEAD_BATCHES, LeasedWork
from diloco.protocol.diloco_pb2 import Bye, Chunk


class SoloMember(Member):
    who = "the program"

    def __init__(self, parts: MemberParts) -> None:
        super().__init__(parts)
        self._arrived: dict[int, Ready] = {}
        """The newest version of each fragment that waits for its adoption."""
        self._work = LeasedWork()
        self.state: UnitState = new_unit(len(self._model.names), parts.training.steps)
        self._batch_seconds = 0.0
        self._draining = False
        self._connect_peers(self._model.take_received, self._model.overwritten)

    # --- what it knows ------------------------------------------------------------------------------------------------

    @property
    def t(self) -> int:
        return self.state.t

    @property
    def steps(self) -> int:
        return self.state.steps

    @property
    def step_count(self) -> int:
        return self.state.step

    @property
    def may_step(self) -> bool:
        return not (self.state.missing or self.state.quorum or self._peers.awaited)

    @property
    def done(self) -> bool:
        return self.state.done

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def why_none(self) -> str:
        return self._work.why_none

    # --- what it does -------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        waits_for = self._peers if self._peers.awaited and not self.state.missing else self._inbox
        waits_for.wait(seconds)

    def boundary(self, *, in_step: bool = False) -> None:
        events = self._inbox.drain()
        self._arrived |= {event.fragment: event.ready for event in events if isinstance(event, Received)}
        generation = self.state.generation
        readable = not (in_step or self._model.store.lent)
        plan, self.state = plan_boundary(self.state, events, self._table, most_at_once(self._step_seconds), readable=readable)
        self._warn_of_restart(generation, self.state.generation)
        self._carry_out(plan)
        self._peers.boundary(events, plan, self.state, self._step_seconds, readable=readable)
        if plan.refused is not None:
            self.abandon(None)
            raise leave(plan.refused.status, plan.refused.message)

    def take(self, count: int) -> NDArray[np.int64] | None:
        numbers = self._work.take(count)
        if numbers is not None:
            self.state = self.state.take_batch(count)
        return numbers

    def ask_for_work(self, batch_size: int, batches: int | None, ahead: int) -> None:
        self.link.set_initial_request((batches or AHEAD_BATCHES) * batch_size)
        asked = self._work.asked
        samples = self._work.wanted(batch_size, self._batch_seconds, batches)
        if samples and not self.link.want(self.state.generation, samples):
            self._work.asked = asked

    def stepped(self, tokens: int, loss: float | None, step_seconds: float, batches: int | None) -> None:
        self._step_seconds = step_seconds
        self._batch_seconds = step_seconds / max(1, batches or 1)
        self.state = self.state.count(tokens, batches)
        self._report(self.state, step_seconds, math.nan if loss is None else loss)
        self._peers.stepped()

    def drain(self) -> None:
        self._draining = True

    def close(self) -> None:
        left = not (self.done or self.draining)
        self._close_state()
        done = self.state.samples_done, self.state.tokens_done
        self.link.close(Bye(drained=not self.done, left=left, samples_done=done[0], tokens_done=done[1]))

    # --- carrying out a plan ------------------------------------------------------------------------------------------

    def _carry_out(self, plan: UnitPlan) -> None:
        """Carry out a plan, except its refusal, which the caller handles."""
        self._work.follow(plan.work)
        for read in plan.reads:
            self.link.push(self.state.generation, self._header(read), self._model.stage(read.fragment))
        for adoption in plan.adoptions:
            self._adopt(adoption.fragment, self._arrived.pop(adoption.fragment), adoption.version, adoption.tokens, plan.step)
        if plan.ahead is not None:
            self._read_ahead(plan.ahead)
        if plan.seed:  # with the last parameters from the syncer, if it had any
            self.link.seed(self.state.generation, self.link.received() or self._first_values())
        if plan.finish:
            self._arrived.clear()
            self._model.finish()
        if plan.repeat_progress:
            self._report(self.state)

    def _read_ahead(self, ahead: Sequence[ReadAhead]) -> None:
        # Unneeded answers are released first, and each new one replaces its old one at once. So memory never holds more than the plan
        # allows and one fragment, and there is always something to answer with.
        self.link.keep_only([answer.read.fragment for answer in ahead])
        for answer in ahead:
            header = self._header(answer.read)
            header.base = answer.version
            self.link.keep(self.state.generation, header, self._model.stage(answer.read.fragment))

    def _header(self, read: Read) -> Chunk:
        state = self.state
        counts = PushCounts(read.fragment, read.t, read.steps, read.tokens, state.samples_done, state.tokens_done, state.steps_done)
        return push_header(counts, self._coding)
