"""Which units store their state when, and which get it back. Only the engine's task uses it, but for what is said.

A snapshot that is durable is followed by a marker to each learner. A unit for which there is no donor gets what it has stored itself.

See docs/decisions/0266-stored-states.md.
"""

from __future__ import annotations

from collections.abc import Callable

from diloco.algorithm.layout import Layout
from diloco.contract import LearnerStates, Training
from diloco.protocol.diloco_pb2 import Marker, StateBegin, ToLearner
from diloco.snapshots.remote_states import RemoteStates
from diloco.snapshots.state_copies import StateCopies
from diloco.snapshots.unit_state_file import StoredState
from diloco.snapshots.unit_states import UnitStates
from diloco.syncer.job.donors import Taking
from diloco.syncer.job.exchange import Exchanges
from diloco.syncer.streams.peer import Peers
from diloco.wording import one_line

_MOST_WHY = 300
"""Characters of an error."""


class StoredStates:
    """The stored states of one job."""

    def __init__(
        self,
        files: UnitStates,
        training: Training,
        exchanges: Exchanges,
        peers: Peers,
        changed: Callable[[], None],
        remote: RemoteStates | None = None,
    ) -> None:
        """`files` are loaded. `changed` is called when `error` has changed. `remote`: where copies go; None: there are none."""
        self.files = files
        self._copies = StateCopies(remote, files, changed)
        self._wanted = training.checkpoint.learners is LearnerStates.ALWAYS
        self._exchanges = exchanges
        self._peers = peers
        self._changed = changed
        self._not_stored = ""
        """Why the newest state could not be written; empty: it was."""

    @property
    def error(self) -> str:
        """Why the newest states could not be written or copied; empty: they were."""
        return self._not_stored or self._copies.error

    @property
    def layout(self) -> Layout | None:
        """The layout of the job's model; None: it has none yet."""
        core = self._exchanges.core
        return None if core is None else core.layout

    @property
    def fragments(self) -> int:
        """Into how many fragments the model is cut."""
        core = self._exchanges.core
        return 0 if core is None else len(core.fragments)

    def snapshot_written(self, t: int) -> None:
        """Send the marker of a durable snapshot of outer step `t`. The first one is of no training."""
        self._copies.begin()  # what a process before this could not copy, and what goes as it is too old
        if not self._wanted or t == 0 or self._exchanges.finished:
            return
        for peer, _ in self._peers.joined():
            if peer.inner_state:
                peer.outgoing.post(ToLearner(marker=Marker(t=t)))

    def why_not(self, begin: StateBegin) -> str:
        """Return why this state is not stored; "": it is to be."""
        if not self._wanted:
            return "this job stores no states of learners (spec.training.checkpoint.learners)"
        if self.layout is None or begin.fingerprint != self.layout.fingerprint:
            return "the state is of another model"
        if not 0 < begin.t <= self._exchanges.t:
            return f"no marker of outer step {begin.t} was sent"
        return self.why_not_of(begin.unit, begin.attempt, begin.inner_state)

    def why_not_of(self, unit: str, attempt: int, kind: str) -> str:
        """Return why this attempt of a unit, with this kind of state, neither stores nor takes any; "": it may."""
        for peer, session in self._peers.joined():
            if (session.unit, session.attempt) == (unit, attempt):
                return "" if peer.inner_state == kind else f"unit {unit} has joined with the state of {peer.inner_state or 'nothing'}"
        return f"attempt {attempt} of unit {unit} has not joined"

    def stored(self) -> None:
        """Note that a state is durable."""
        self._copies.begin()
        self._said("")

    def not_stored(self, unit: str, why: str) -> None:
        """Note that the volume does not take a state."""
        self._said(one_line(f"the state of unit {unit} could not be stored: {why}", _MOST_WHY))

    def _said(self, error: str) -> None:
        if error != self._not_stored:
            self._not_stored = error
            self._changed()

    def of(self, taking: Taking, why: str) -> tuple[StoredState | None, str]:
        """Return what a unit without a donor takes, and why it takes nothing. `why`: there is no donor."""
        state = self.files.of(taking.unit)
        if state is None or taking.unit in taking.failed:
            return None, why
        if state.kind != taking.kind:
            return None, f"{why}; what the unit has stored at outer step {state.t} is the state of {state.kind}"
        if self.layout is None or state.fingerprint != self.layout.fingerprint:
            return None, f"{why}; what the unit has stored at outer step {state.t} is of another model"
        return state, ""
