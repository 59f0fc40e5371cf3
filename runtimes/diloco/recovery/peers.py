"""What a unit exchanges with its peers: this connects its member, its connection and its state.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import functools
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from diloco.algorithm.layout import Layout
from diloco.contract import LearnerStates
from diloco.learner.config import LearnerConfig
from diloco.learner.inbox import InboxEvent
from diloco.learner.peers import Model, Peers
from diloco.learner.process_start import seconds_since_start
from diloco.learner.unit_plan import UnitPlan, UnitState
from diloco.protocol.diloco_pb2 import Donor, Give, Marker, Recovery
from diloco.recovery.copying import StoredSteps
from diloco.recovery.process_copy import SILENCE_SECONDS
from diloco.recovery.process_state import ProcessState
from diloco.recovery.storing import Storer
from diloco.recovery.taking import Taker
from diloco.recovery.whole_state import WholeState
from diloco.snapshots.stored_state import folder_of


class PeersOfUnit(Peers):
    """The `Peers` of a unit of one process, or of the leader of a unit of several ranks."""

    def __init__(self, config: LearnerConfig, layout: Layout, process: ProcessState, state: WholeState) -> None:
        self._config = config
        self._layout = layout
        self._process = process
        self._state = state
        self._storer = Storer(config, layout, state, secrets.token_hex(4))
        self._not_stored = ""
        """The storer's error that the syncer was told last."""
        self._tell: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._news = False
        """Something came since the last `wait`."""
        self._named: deque[Donor] = deque(maxlen=1)
        self._taker: Taker | None = None
        self._stored_steps: StoredSteps | None = None
        """None if this unit stores nothing."""
        self._joined_at = time.monotonic()
        self._start_seconds = seconds_since_start()
        self._first_step_from: float | None = None

    @property
    def address(self) -> str:
        return self._process.address

    @property
    def kind(self) -> str:
        return self._state.kind

    # --- called by the connection's thread ----------------------------------------------------------------------------

    def hear(self, message: Donor | Give | Marker) -> None:
        match message:
            case Donor():
                self._named.append(message)
                self._notify()
            case Give():
                self._state.allow(message)
            case Marker():
                self._storer.marker(message)

    def message(self) -> Recovery | None:
        taker = self._taker
        if taker is None or not taker.begun:
            return None
        message = Recovery(not_stored=self._not_stored)
        message.MergeFrom(taker.message)
        return message

    # --- called by the training thread --------------------------------------------------------------------------------

    def connect(self, model: Model, tell: Callable[[], None]) -> None:
        self._tell = tell
        stores = self._config.job.training.checkpoint.learners is LearnerStates.ALWAYS
        if stores:
            folder = functools.partial(folder_of, self._config.job, self._config.unit)
            self._stored_steps = StoredSteps(folder, self._config.unit, self._state.kind, self._layout, self._notify)
        self._taker = Taker(self._state, model, self._notify, tell, self._joined_at, unit=self._config.unit, stores=stores)

    @property
    def awaited(self) -> bool:
        return self._taker is not None and not self._taker.over

    def wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._news, seconds)
            self._news = False

    def boundary(self, events: Sequence[InboxEvent], plan: UnitPlan, state: UnitState, step_seconds: float, *, readable: bool) -> None:
        restarted = self._process.boundary(events, plan)
        readable = readable and not self._state.lent
        if self.awaited:
            self._take(plan, state, restarted=restarted)
            return
        state_donor = self._process.state_donor
        state_donor.at_boundary(self._process.adopted, step_seconds, readable=readable)
        if readable and not state_donor.busy and not state.done:
            self._storer.at_boundary(state.step, step_seconds)
        if self._storer.error != self._not_stored:
            self._not_stored = self._storer.error
            self._tell()

    def _take(self, plan: UnitPlan, state: UnitState, *, restarted: bool) -> None:
        taker = self._taker
        assert taker is not None
        if state.done or plan.refused is not None:
            taker.cancel()
        elif not taker.begun:
            if not state.missing and state.generation:
                steps = self._stored_steps.found if self._stored_steps is not None else 0
                # The object store has not answered. After SILENCE_SECONDS the unit begins as if nothing were stored.
                if steps is None and time.monotonic() - self._joined_at < SILENCE_SECONDS:
                    return
                why = "this unit seeded the job" if plan.seed else "the job has just begun"
                wanted = not plan.seed and state.t > 0
                taker.begin(time.monotonic() - self._joined_at, self._start_seconds, wanted=wanted, why=why, stored_steps=steps or 0)
        else:
            if self._named:
                taker.named(self._named.popleft())
            taker.boundary(self._process.adopted, restarted=restarted)

    def holds_parameters(self) -> None:
        self._process.warm_up()
        self._first_step_from = time.monotonic()

    def stepped(self) -> None:
        if self._first_step_from is not None and self._taker is not None:
            self._taker.stepped(time.monotonic() - self._first_step_from)
            self._first_step_from = None

    def close(self) -> None:
        if self._taker is not None:
            self._taker.cancel()
        self._storer.close()
        self._process.close()

    def _notify(self) -> None:
        with self._changed:
            self._news = True
            self._changed.notify()
