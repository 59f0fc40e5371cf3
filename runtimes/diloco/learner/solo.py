"""A unit of one process: its leases, its counters, and its boundaries, which it decides for itself.

What happens between two steps is decided by `unit_plan`, purely, and carried out here.

See docs/decisions/0151-step-boundary.md. See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.codec import coding_for
from diloco.algorithm.fragments import Fragment
from diloco.algorithm.pieces import portion
from diloco.contract import Training
from diloco.learner.exchanged_model import ExchangedModel
from diloco.learner.inbox import Inbox, Received
from diloco.learner.leave import leave
from diloco.learner.peers import Model, NoPeers, Peers
from diloco.learner.progress import JobProgress
from diloco.learner.push_header import PushCounts, push_header
from diloco.learner.store import ParameterStore, Ready
from diloco.learner.syncer_link import SyncerLink
from diloco.learner.timetable import timetable
from diloco.learner.unit_plan import Read, ReadAhead, UnitPlan, UnitState, most_at_once, new_unit, plan_boundary
from diloco.learner.work import AHEAD_BATCHES, LeasedWork
from diloco.protocol.diloco_pb2 import Bye, Chunk, Progress

_log = logging.getLogger(__name__)


class SoloMember:
    """See `Member`."""

    def __init__(
        self,
        unit: str,
        training: Training,
        store: ParameterStore,
        fragments: Sequence[Fragment],
        inbox: Inbox,
        link: SyncerLink,
        on_adopt: Callable[[Sequence[str]], None] | None = None,
        peers: Peers | None = None,
    ) -> None:
        """Begin with `on_adopt`: called with the names of the tensors that were overwritten just now."""
        self._unit = unit
        self._table = timetable([fragment.size for fragment in fragments], training.sync_interval, training.overlap_steps)
        self._progress = JobProgress(self._table, training.tokens)
        owned = store.owned()
        self._model = ExchangedModel(store, [portion(fragment, owned) for fragment in fragments], link.received, on_adopt)
        self._coding = coding_for(training.compression)
        self._arrived: dict[int, Ready] = {}
        """The newest version of each fragment that waits for its adoption."""
        self._inbox = inbox
        self._link = link
        self._work = LeasedWork()
        self._state = new_unit(len(fragments), training.steps)
        self._peers = peers or NoPeers()
        fragment_of = {tensor.name: fragment.index for fragment in fragments for tensor in fragment.tensors}
        self._peers.connect(Model(fragment_of, self._model.take_received, self._model.overwritten), link.heartbeat.tell)
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
        self._model.warm_up()

    def wait(self, seconds: float) -> None:
        waits_for = self._peers if self._peers.awaited and not self._state.missing else self._inbox
        waits_for.wait(seconds)

    def boundary(self, *, in_step: bool = False) -> None:
        events = self._inbox.drain()
        self._arrived |= {event.fragment: event.ready for event in events if isinstance(event, Received)}
        generation = self._state.generation
        readable = not (in_step or self._model.store.lent)
        plan, self._state = plan_boundary(self._state, events, self._table, most_at_once(self._step_seconds), readable=readable)
        if generation not in (0, self._state.generation):
            _log.warning("the syncer continues from outer step %d without this unit's latest work; this unit takes its parameters", self.t)
        self._carry_out(plan)
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
        self._state = self._state.count(tokens, batches)
        self._report(step_seconds, math.nan if loss is None else loss)
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
        self._model.finish()

    def changed(self) -> list[str]:
        return self._model.changed()

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

    # --- carrying out a plan ------------------------------------------------------------------------------------------

    def _carry_out(self, plan: UnitPlan) -> None:
        """Carry out a plan, after which the unit is in its new state. What it says of a refusal is left to the caller."""
        self._work.follow(plan.work)
        for read in plan.reads:
            self._link.push(self._state.generation, self._header(read), self._model.stage(read.fragment))
        for adoption in plan.adoptions:
            self._model.adopt(adoption.fragment, self._arrived.pop(adoption.fragment))
            self._progress.adopted(plan.step, adoption.version, adoption.tokens)
        if plan.ahead is not None:
            self._read_ahead(plan.ahead)
        if plan.seed:
            self._seed()
        if plan.finish:
            self._arrived.clear()
            self._model.finish()
        if plan.repeat_progress:
            self._report()

    def _read_ahead(self, ahead: Sequence[ReadAhead]) -> None:
        # What is not needed any more goes first, and each new one takes the place of the old one at once: at no moment is there more in
        # memory than the plan allows and one fragment, and at no moment nothing to answer with.
        self._link.keep_only([one.read.fragment for one in ahead])
        for one in ahead:
            header = self._header(one.read)
            header.base = one.version
            self._link.keep(self._state.generation, header, self._model.stage(one.read.fragment))

    def _header(self, read: Read) -> Chunk:
        done = self._state
        counts = PushCounts(read.fragment, read.t, read.steps, read.tokens, done.samples_done, done.tokens_done, done.steps_done)
        return push_header(counts, self._coding)

    def _seed(self) -> None:
        """Send the job's first parameters: the last ones from the syncer, or else the model's own."""
        values = self._link.received()
        if values is None:
            _log.info("unit %s seeds the job", self._unit)
            values = self._model.values()
        self._link.seed(self._state.generation, values)

    def _report(self, step_seconds: float = math.nan, loss: float = math.nan) -> None:
        """Say how far the unit is; with the figures of its last step, if this is new."""
        state = self._state
        progress = Progress(
            local_step=state.step,
            steps=state.fragment_steps,
            tokens=state.fragment_tokens,
            step_seconds=step_seconds,
            loss=loss,
            samples_done=state.samples_done,
            tokens_done=state.tokens_done,
            t=state.t,
            own_data=state.feeds_itself,
        )
        self._link.progress(state.generation, progress)
