"""What the connection has received, as events for the training thread, in order.

See docs/decisions/0150-transfers.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from diloco.contract import Exit
from diloco.learner.store import Ready


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The syncer has accepted this session."""

    generation: int
    """Counts the Welcomes that did not resume the session. With each of them leases and counters begin anew."""
    t: int
    """Outer steps taken."""
    steps: int
    """Outer steps of the whole job."""
    seed_wanted: bool
    """This learner shall send the job's first parameters."""
    asked: int
    """Samples that the connection has already asked for in this generation."""
    epoch: int = 0
    """Number of the syncer's incarnation (`Incarnations`). A syncer that starts from an older snapshot counts some outer steps again."""


@dataclass(frozen=True, slots=True)
class Leased:
    """A lease of the sequence numbers [start, end). It belongs to the generation of the last `Welcomed` before it."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PullWanted:
    """The syncer pulls the fragment at outer step `t`."""

    generation: int
    fragment: int
    t: int
    answered: bool = False
    """The connection has answered it with what was staged ahead."""


@dataclass(frozen=True, slots=True)
class Received:
    """A complete broadcast of version `t`, decoded and laid out for the model."""

    fragment: int
    t: int
    ready: Ready = field(repr=False)
    epoch: int = 0
    """As in `Welcomed`."""
    tokens: int = 0
    """The whole job's committed tokens when this version was made."""


@dataclass(frozen=True, slots=True)
class RestWanted:
    """The unit shall take no further step, until another `RestWanted` or a `Welcomed`."""

    quorum: int
    """Learners that the outer clock waits for. 0 if the unit shall train again."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The job has reached its last outer step. Every fragment's last value came before."""

    t: int


@dataclass(frozen=True, slots=True)
class RefusedForGood:
    """The syncer will never accept this process, or the process cannot exchange with it. The connection has ended."""

    status: Exit
    message: str


InboxEvent = Welcomed | Leased | PullWanted | Received | RestWanted | Finished | RefusedForGood


class Inbox:
    """A queue with one reader, the training thread. Events keep their order, but an event that a later one makes useless is dropped. So a
    program that has paused finds at most one value and one pull for each fragment, and writes each parameter once."""

    def __init__(self, overlap_steps: int, changed: threading.Condition | None = None) -> None:
        """
        Args:
            overlap_steps: tau. A pull of outer step t is useless once step t + tau + 1 is taken
            changed: notified of each event, for a reader that also waits for other things
        """
        self._overlap_steps = overlap_steps
        self._changed = changed or threading.Condition()
        self._events: list[InboxEvent] = []
        self._generation = 0
        """The generation of the last `Welcomed`."""

    def put(self, event: InboxEvent) -> None:
        """Add an event. Never waits."""
        with self._changed:
            if isinstance(event, Welcomed):
                self._add_welcomed(event)
            else:
                self._drop_useless(event)
                self._events.append(event)
            self._changed.notify()

    def drain(self) -> list[InboxEvent]:
        """Return all events so far. Never waits."""
        with self._changed:
            events, self._events = self._events, []
        return events

    def __len__(self) -> int:
        with self._changed:
            return len(self._events)

    def wait(self, seconds: float) -> None:
        """Wait until there is an event, at most `seconds`."""
        until = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: bool(self._events), until - time.monotonic())

    def _drop_useless(self, event: InboxEvent) -> None:
        match event:
            case Received(fragment=fragment, t=t):
                self._drop(lambda old: isinstance(old, Received) and old.fragment == fragment)
                self._drop_pulls(fragment, t)
            case PullWanted(fragment=fragment, t=t):
                self._drop_pulls(fragment, t)
            case RestWanted():
                self._drop(lambda old: isinstance(old, RestWanted))
            case Finished():
                self._drop(lambda old: isinstance(old, (Finished, PullWanted)))

    def _drop_pulls(self, fragment: int, t: int) -> None:
        """Drop the pulls whose exchange is over now that a pull or value of `fragment` has come with outer step `t`."""
        self._drop(
            lambda old: isinstance(old, PullWanted) and ((old.fragment == fragment and old.t <= t) or old.t + self._overlap_steps < t)
        )

    def _add_welcomed(self, event: Welcomed) -> None:
        """Add a Welcome. Earlier pulls and rests are dropped, because they ended with the stream before. If the session does not resume,
        earlier leases are dropped, too.

        If it resumes a session that the reader has not seen yet, the new event replaces the earlier Welcome in its place, so that the
        leases between the two still follow it.
        """
        self._drop(lambda old: isinstance(old, PullWanted | RestWanted))
        if event.generation != self._generation:
            self._generation = event.generation
            self._drop(lambda old: isinstance(old, (Welcomed, Leased)))
        unseen = next((i for i, old in enumerate(self._events) if isinstance(old, Welcomed)), None)
        if unseen is None:
            self._events.append(event)
        else:
            self._events[unseen] = event

    def _drop(self, useless: Callable[[InboxEvent], bool]) -> None:
        self._events = [old for old in self._events if not useless(old)]
