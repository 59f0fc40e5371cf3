"""Watches the event loop: how long each of its turns lasts, and what a long one spends its time in.

An event loop waits in its selector and then runs everything that is due: that is one turn. While a turn lasts, all else stands still. So
the selector itself is what measures: exactly, with two readings of a clock for each turn, and with nothing while the loop waits. A thread
looks now and then whether a turn lasts long, and if so, at what the loop's thread does at that moment, as a sampling profiler would.

See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import selectors
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from diloco_operator.operator.logs import job_of

log = logging.getLogger(__name__)

NAMED = 0.1
"""Seconds. What a turn spends its time in is found out from here on."""
_LOGGED = 0.25
"""Seconds. Such a turn gets a line of the log."""
_STILL = 5.0
"""Seconds. A turn that lasts so long gets a line while it lasts: it may never end."""
_LOOK = 0.05
"""Seconds between two looks of the thread."""
_LINE_INTERVAL = 10.0
"""Seconds between two lines of the log. What happens all the time must not fill it."""
_FRAMES = 3
"""So many frames of one place are named."""
_OWN = ("diloco.", "diloco_operator.")
_LOOP = frozenset({"asyncio.base_events.BaseEventLoop._run_once", "asyncio.events.Handle._run"})
"""What runs a turn. Its callers are the same for all turns."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a thread does at one moment."""

    function: str
    """Module and qualified name of the innermost function of this program; of the innermost one at all, if it is in none."""
    frames: str
    """That function and those that called it, with line numbers, human-readable."""
    job: str
    """`namespace/name` of the job that the current task works for; "": of none."""


UNKNOWN = Place("unknown", "no look found it", "")


@dataclass(frozen=True, slots=True)
class Hold:
    """A turn that lasted long."""

    seconds: float
    place: Place
    """Where most looks found it."""
    found: int
    looks: int

    def __str__(self) -> str:
        return f"the event loop stood still for {self.seconds:.2f} s, in {self.place.frames} ({self.found} of {self.looks} looks)"


class LoopWatch:
    """Watches the event loop that `new_loop` makes.

    `on_turn(seconds)` is called at the end of each turn, `on_hold(hold)` at the end of each one of `NAMED` seconds or more, after `on_turn`
    and while `turn()` still tells how long it lasted. Both run in the loop's thread and must not raise.
    """

    def __init__(
        self,
        *,
        on_turn: Callable[[float], None] = lambda _: None,
        on_hold: Callable[[Hold], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_turn = on_turn
        self._on_hold = on_hold
        self._clock = clock
        self._began: float | None = None
        """When the current turn began; None: the loop waits."""
        self._lock = threading.Lock()
        self._looks: Counter[Place] = Counter()
        """Looks of the current turn."""
        self._told: float | None = None
        """The beginning of the last turn that the log named while it lasted."""
        self._next_line = -float("inf")
        self._unlogged = 0

    def turn(self) -> float:
        """Return seconds that the current turn has lasted so far; 0 while the loop waits. For any thread."""
        began = self._began
        return self._clock() - began if began is not None else 0.0

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """Return an event loop to watch."""
        return asyncio.SelectorEventLoop(_WatchedSelector(self.ended, self.begun))

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Look at what long turns of the running loop spend their time in. To be entered in the loop's thread."""
        end = threading.Event()
        thread = threading.Thread(
            target=self._look_often, args=(threading.get_ident(), asyncio.get_running_loop(), end), name="loop-watch", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()

    def begun(self) -> None:
        """Note that a turn begins."""
        self._began = self._clock()

    def ended(self) -> bool:
        """End the turn: the loop waits from now on. Returns whether it lasted long, so that `on_hold` was called."""
        if self._began is None:
            return False
        seconds = self.turn()
        self._on_turn(seconds)
        if long := seconds >= NAMED:
            with self._lock:
                hold = _hold(seconds, self._looks)
                self._looks = Counter()
            self._on_hold(hold)
            self._log(hold)
        self._began = None
        return long

    def look(self, place: Callable[[], Place]) -> None:
        """Note where the loop is if its turn lasts long. In any thread but the loop's."""
        began = self._began
        if began is None or self._clock() - began < NAMED:
            return
        found = place()
        with self._lock:
            if self._began != began:  # it has ended meanwhile
                return
            self._looks[found] += 1
            so_far = _hold(self.turn(), self._looks)
        if so_far.seconds >= _STILL and self._told != began:
            self._told = began
            log.warning("%s, and still does", so_far, extra={"job": so_far.place.job})

    def _look_often(self, thread: int, loop: asyncio.AbstractEventLoop, end: threading.Event) -> None:
        while not end.wait(_LOOK):
            self.look(lambda: place_of(sys._current_frames().get(thread), loop))  # noqa: SLF001 - documented, and there is no other

    def _log(self, hold: Hold) -> None:
        if hold.seconds < _LOGGED:
            return
        now = self._clock()
        if now < self._next_line:
            self._unlogged += 1
            return
        more = f"; {self._unlogged} other times were not logged" if self._unlogged else ""
        self._next_line, self._unlogged = now + _LINE_INTERVAL, 0
        log.warning("%s%s", hold, more, extra={"job": hold.place.job})


class _WatchedSelector(selectors.DefaultSelector):
    """Says when the loop begins to wait, and when it goes on."""

    def __init__(self, waits: Callable[[], bool], goes_on: Callable[[], None]) -> None:
        super().__init__()
        self._waits = waits
        self._goes_on = goes_on

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # After a long turn something may have been scheduled that the loop did not know of when it chose the time-out.
        limit = 0 if self._waits() else timeout
        try:
            return super().select(limit)
        finally:
            self._goes_on()


def _hold(seconds: float, looks: Counter[Place]) -> Hold:
    [(place, found)] = looks.most_common(1) or [(UNKNOWN, 0)]
    return Hold(seconds, place, found, looks.total())


def place_of(innermost: FrameType | None, loop: asyncio.AbstractEventLoop) -> Place:
    """Return what the thread of `loop` does, from its innermost frame. The frames of the loop itself, and what called it, are left out."""
    frames: list[FrameType] = []
    frame = innermost
    while frame is not None and _function(frame) not in _LOOP:
        frames.append(frame)
        frame = frame.f_back
    own = [each for each in frames if _module(each).startswith(_OWN)] or frames
    if not own:
        return UNKNOWN
    task = asyncio.current_task(loop)
    job = job_of(task.get_context()) if task is not None else ""
    named = [f"{_function(each)}:{each.f_lineno}" for each in own[:_FRAMES]]
    return Place(_function(own[0]), ", called by ".join(named), job)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _function(frame: FrameType) -> str:
    return f"{_module(frame)}.{frame.f_code.co_qualname}"
