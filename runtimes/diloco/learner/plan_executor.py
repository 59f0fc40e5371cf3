"""Carries out what a unit plan says: on the model, on the leased work, and towards the syncer. It decides nothing.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence

from diloco.algorithm.codec import Coding
from diloco.algorithm.fragments import Fragment
from diloco.learner.final_values import changed
from diloco.learner.inbox import InboxEvent, Received
from diloco.learner.store import ParameterStore, Ready
from diloco.learner.syncer_link import SyncerLink
from diloco.learner.unit_plan import Adoption, Read, ReadAhead, UnitPlan, UnitState
from diloco.learner.work import LeasedWork
from diloco.protocol.diloco_pb2 import Chunk, Progress

_log = logging.getLogger(__name__)


class PlanExecutor:
    """Every method is called on the training thread between two steps."""

    def __init__(
        self,
        unit: str,
        store: ParameterStore,
        fragments: Sequence[Fragment],
        coding: Coding,
        work: LeasedWork,
        link: SyncerLink,
        on_adopt: Callable[[Sequence[str]], None] | None,
    ) -> None:
        """Carry out plans on `store`; `on_adopt` is called with the names of the tensors that were overwritten just now."""
        self._unit = unit
        self._store = store
        self._fragments = fragments
        self._names = [[tensor.name for tensor in fragment.tensors] for fragment in fragments]
        self._coding = coding
        self._work = work
        self._link = link
        self._on_adopt = on_adopt
        self._arrived: dict[int, Received] = {}
        """The newest version of each fragment that waits for its adoption."""

    def warm_up(self) -> None:
        """Do now what would make the first boundaries slow."""
        self._store.warm_up(self._names)

    def take(self, events: Sequence[InboxEvent]) -> None:
        """Keep the arrays among the events from which the next plan is made."""
        for event in events:
            if isinstance(event, Received):
                self._arrived[event.fragment] = event

    def carry_out(self, plan: UnitPlan, state: UnitState) -> None:
        """Carry out a plan; `state`: once that is done. What the plan says of a refusal is left to the caller."""
        self._work.follow(plan.work)
        for read in plan.reads:
            self._read(read, state)
        for adoption in plan.adoptions:
            self._adopt(adoption)
        if plan.ahead is not None:
            self._read_ahead(plan.ahead, state)
        if plan.seed:
            self._seed(state.generation)
        if plan.finish:
            self.finish()
        if plan.repeat_progress:
            self._link.progress(state.generation, progress_of(state))

    def _read(self, read: Read, state: UnitState) -> None:
        self._link.push(state.generation, self._header(read, state), self._store.stage(self._names[read.fragment]))

    def _read_ahead(self, ahead: Sequence[ReadAhead], state: UnitState) -> None:
        # What is not needed any more goes first, and each new one takes the place of the old one at once: at no moment is there more in
        # memory than the plan allows and one fragment, and at no moment nothing to answer with.
        self._link.keep_only([one.read.fragment for one in ahead])
        for one in ahead:
            header = self._header(one.read, state)
            header.base = one.version
            self._link.keep(state.generation, header, self._store.stage(self._names[one.read.fragment]))

    def _header(self, read: Read, state: UnitState) -> Chunk:
        return Chunk(
            kind=Chunk.PUSH,
            fragment=read.fragment,
            t=read.t,
            coding=int(self._coding),  # type: ignore[arg-type]
            steps=read.steps,
            tokens=read.tokens,
            samples_done=state.samples_done,
            tokens_done=state.tokens_done,
            steps_done=state.steps_done,
        )

    def _adopt(self, adoption: Adoption) -> None:
        self._apply(self._arrived.pop(adoption.fragment).ready)

    def _apply(self, ready: Ready) -> None:
        self._store.apply(ready)
        if self._on_adopt is not None:
            self._on_adopt(ready.names)

    def finish(self) -> None:
        """Take the final parameters, also again. The last broadcasts came before: all learners end with the same values, without what they
        trained since."""
        self._arrived.clear()
        self._store.reclaim()
        self.take_received()

    def take_received(self) -> None:
        """Put the last received values back in the place of what else is in the model."""
        for names, value in zip(self._names, self._link.received() or (), strict=True):
            self._apply(self._store.prepare(names, value))

    def overwritten(self) -> None:
        """All parameters may have changed otherwise than by a plan."""
        if self._on_adopt is not None:
            for names in self._names:
                self._on_adopt(names)

    def changed(self) -> list[str]:
        """Return the tensors of which the model does not hold the final values. What the program has lent to a step is not looked at."""
        if self._store.lent:
            return []
        return [
            name
            for fragment, final in zip(self._fragments, self._link.received() or (), strict=True)
            for name in changed(self._store, self._names[fragment.index], _named(fragment), final)
        ]

    def _seed(self, generation: int) -> None:
        """Send the job's first parameters: the last ones from the syncer, or else the model's own."""
        values = self._link.received()
        if values is None:
            _log.info("unit %s seeds the job", self._unit)
            values = []
            for names in self._names:
                staged = self._store.stage(names)
                values.append(staged.wait().copy())
                staged.release()
        self._link.seed(generation, values)


def _named(fragment: Fragment) -> Iterator[tuple[str, slice]]:
    return ((tensor.name, where) for tensor, where in fragment.slices())


def progress_of(state: UnitState, step_seconds: float = math.nan, loss: float = math.nan) -> Progress:
    """Return how far the unit is; with the figures of its last step, if this is new."""
    return Progress(
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
