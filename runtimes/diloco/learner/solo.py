"""A unit of one process: its leases, its counters, and its boundaries, which it decides for itself.

What happens between two steps is decided by `unit_plan`, purely, and carried out by `plan_executor`.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.codec import coding_for
from diloco.algorithm.fragments import Fragment
from diloco.learner.config import LearnerConfig
from diloco.learner.inbox import Inbox
from diloco.learner.leave import leave
from diloco.learner.peers import Model, NoPeers, Peers
from diloco.learner.plan_executor import PlanExecutor, progress_of
from diloco.learner.progress import JobProgress
from diloco.learner.store import ParameterStore
from diloco.learner.syncer_link import SyncerLink
from diloco.learner.timetable import timetable
from diloco.learner.unit_plan import UnitState, most_at_once, new_unit, plan_boundary
from diloco.learner.work import AHEAD_BATCHES, LeasedWork
from diloco.protocol.diloco_pb2 import Bye

_log = logging.getLogger(__name__)


class SoloMember:
    """See `Member`."""

    def __init__(
        self,
        store: ParameterStore,
        fragments: Sequence[Fragment],
        config: LearnerConfig,
        inbox: Inbox,
        link: SyncerLink,
        on_adopt: Callable[[Sequence[str]], None] | None = None,
        peers: Peers | None = None,
    ) -> None:
        training = config.job.training
        self._table = timetable([fragment.size for fragment in fragments], training.sync_interval, training.overlap_steps)
        self._progress = JobProgress(self._table, training.tokens)
        self._store = store
        self._inbox = inbox
        self._link = link
        self._work = LeasedWork()
        self._state = new_unit(len(fragments), training.steps)
        self._executor = PlanExecutor(config.unit, store, fragments, coding_for(training.compression), self._work, link, on_adopt)
        self._peers = peers or NoPeers()
        fragment_of = {tensor.name: fragment.index for fragment in fragments for tensor in fragment.tensors}
        self._peers.connect(Model(fragment_of, self._executor.take_received, self._executor.overwritten), link.heartbeat.tell)
        self._step_seconds = 0.0
        self._batch_seconds = 0.0
        self._draining = False

    # --- what it knows ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> UnitState:
        """Its counters."""
        return self._state

    @property
    def link(self) -> SyncerLink:
        return self._link

    @property
    def t(self) -> int:
        return self._state.t

    @property
    def steps(self) -> int:
        return self._state.steps

    @property
    def progress(self) -> float:
        return 1.0 if self.done else self._progress.share(self.step_count, self.steps)

    @property
    def step_count(self) -> int:
        return self._state.step

    @property
    def may_step(self) -> bool:
        return not (self._state.missing or self._state.quorum or self._peers.awaited)

    @property
    def done(self) -> bool:
        return self._state.done

    @property
    def draining(self) -> bool:
        return self._draining

    # --- what it does -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._link.start()

    def begin(self) -> None:
        self._peers.holds_parameters()
        self._link.heartbeat.holds_parameters()
        self._executor.warm_up()

    def wait(self, seconds: float) -> None:
        waits_for = self._peers if self._peers.awaited and not self._state.missing else self._inbox
        waits_for.wait(seconds)

    def boundary(self, *, in_step: bool = False) -> None:
        events = self._inbox.drain()
        self._executor.take(events)
        generation = self._state.generation
        readable = not (in_step or self._store.lent)
        plan, self._state = plan_boundary(self._state, events, self._table, most_at_once(self._step_seconds), readable=readable)
        if generation not in (0, self._state.generation):
            _log.warning("the syncer continues from outer step %d without this unit's latest work; this unit takes its parameters", self.t)
        self._executor.carry_out(plan, self._state)
        for adoption in plan.adoptions:
            self._progress.adopted(plan.step, adoption.version, adoption.tokens)
        self._peers.boundary(events, plan, self._state, self._step_seconds, readable=readable)
        if plan.refused is not None:
            self.abandon(None)
            raise leave(plan.refused.status, plan.refused.message)

    def take(self, count: int) -> NDArray[np.int64] | None:
        numbers = self._work.take(count)
        if numbers is not None:
            self._state = self._state.take_batch(count)
        return numbers

    @property
    def who(self) -> str:
        return "the program"

    @property
    def why_none(self) -> str:
        return self._work.why_none

    def stepped(self, tokens: int, loss: float | None, step_seconds: float, batches: int | None) -> None:
        self._step_seconds = step_seconds
        self._batch_seconds = step_seconds / max(1, batches or 1)
        state = self._state = self._state.count(tokens, batches)
        self._link.progress(state.generation, progress_of(state, step_seconds, math.nan if loss is None else loss))
        self._peers.stepped()

    @property
    def ends_between_steps(self) -> bool:
        return True

    def ask_for_work(self, batch_size: int, batches: int | None, ahead: int) -> None:
        self._link.set_initial_request((batches or AHEAD_BATCHES) * batch_size)
        asked = self._work.asked
        samples = self._work.wanted(batch_size, self._batch_seconds, batches)
        if samples and not self._link.want(self._state.generation, samples):
            self._work.asked = asked

    def restore(self) -> None:
        self._executor.finish()

    def changed(self) -> list[str]:
        return self._executor.changed()

    def drain(self) -> None:
        self._draining = True

    def close(self) -> None:
        left = not (self.done or self.draining)
        done = self._state.samples_done, self._state.tokens_done
        self._peers.close()
        self._link.close(Bye(drained=not self.done, left=left, samples_done=done[0], tokens_done=done[1]))

    def abandon(self, error: BaseException | None) -> None:
        self._peers.close()
        self._link.close(None)
