"""What the connection has received, as data for the training thread, in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field

from diloco.contract import Exit
from diloco.learner.store import Ready


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The syncer accepted this session."""

    generation: int
    """Counts the Welcomes that did not resume the session: with each, leases and counters begin anew."""
    t: int
    """Outer steps taken."""
    steps: int
    """Outer steps of the whole job."""
    seed_wanted: bool
    """This learner shall send the job's first parameters."""
    asked: int
    """Samples that the connection has already asked for in this generation."""


@dataclass(frozen=True, slots=True)
class Leased:
    """Work: sequence numbers [start, end). Of the generation of the last `Welcomed`, as events keep their order."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PullWanted:
    """The syncer pulls the fragment at outer step `t`."""

    generation: int
    fragment: int
    t: int


@dataclass(frozen=True, slots=True)
class Received:
    """A complete broadcast of version `t`, decoded and laid out for the model."""

    fragment: int
    t: int
    ready: Ready = field(repr=False)


@dataclass(frozen=True, slots=True)
class Finished:
    """The job reached its last outer step; every fragment's last value came before."""

    t: int


@dataclass(frozen=True, slots=True)
class RefusedForGood:
    """The syncer will never accept this process. The connection has ended."""

    status: Exit
    message: str


InboxEvent = Welcomed | Leased | PullWanted | Received | Finished | RefusedForGood


class Inbox:
    """A queue with one reader, the training thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[InboxEvent] = deque()

    def put(self, event: InboxEvent) -> None:
        """Add an event. Never waits."""
        with self._changed:
            self._events.append(event)
            self._changed.notify()

    def drain(self) -> list[InboxEvent]:
        """All events so far. Never waits."""
        with self._changed:
            events = list(self._events)
            self._events.clear()
        return events

    def wait(self, seconds: float) -> None:
        """Wait until there is an event, at most `seconds`."""
        until = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: bool(self._events), until - time.monotonic())
