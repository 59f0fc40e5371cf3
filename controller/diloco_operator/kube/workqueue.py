"""The queue between watches and passes: every key at most once in it, and never with two workers at once.

`KeyQueue` is the rule, without clock and without waiting; `WorkQueue` lets workers wait for it. The semantics are those of
Kubernetes' controllers: a key added while it is being processed is processed once more afterwards, a delayed key keeps its
earliest time, and failures back off for each key alone.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import Protocol

from diloco.protocol.backoff import ExponentialBackoff


class KeyQueue[K: Hashable]:
    """Which key is next. Pure: `now` is an argument, in seconds of any clock that does not go back."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()
        """Keys that must be processed: those ready, and those being processed that were added again."""
        self._processing: set[K] = set()
        self._due: dict[K, float] = {}
        self._timers: list[tuple[float, int, K]] = []
        """Heap of (when, order of entry, key). An entry whose time is no longer the key's in `_due` is void."""
        self._entries = 0
        self._settling: dict[K, tuple[float, float]] = {}
        """Since when each key that settles does so, and when it will have."""

    def add(self, key: K) -> None:
        """`key` needs a pass. Nothing happens if it is waiting for one already."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._ready.append(key)

    def add_at(self, key: K, when: float) -> None:
        """`key` needs a pass at `when`; the earliest of several times counts."""
        known = self._due.get(key)
        if known is not None and known <= when:
            return
        self._due[key] = when
        self._entries += 1
        heapq.heappush(self._timers, (when, self._entries, key))

    def add_settled(self, key: K, now: float, quiet: float, most: float) -> None:
        """`key` needs a pass when nobody has asked for one this way for `quiet` seconds, or `most` seconds after the first who did."""
        if key not in self._dirty:
            since, _ = self._settling.get(key, (now, now))
            self._settling[key] = since, min(now + quiet, since + most)

    def ripen(self, now: float) -> list[K]:
        """Make ready what was delayed until now; gives the keys that were not waiting for a pass already."""
        settled = [key for key, (_, when) in self._settling.items() if when <= now]
        ripe = [key for key in settled if key not in self._dirty]
        for key in settled:
            del self._settling[key]
            self.add(key)
        while self._timers and self._timers[0][0] <= now:
            when, _, key = heapq.heappop(self._timers)
            if self._due.get(key) == when:
                del self._due[key]
                if key not in self._dirty:
                    ripe.append(key)
                self.add(key)
        return ripe

    def take(self, now: float) -> K | None:
        """The next key, which is being processed from here on until `done`; None: nothing is due."""
        self.ripen(now)
        if not self._ready:
            return None
        key = self._ready.popleft()
        self._settling.pop(key, None)
        self._dirty.discard(key)
        self._processing.add(key)
        return key

    def done(self, key: K) -> None:
        """The pass over `key` ended, well or not."""
        if key not in self._processing:
            raise ValueError(f"done({key!r}), but nobody is processing it")
        self._processing.discard(key)
        if key in self._dirty:
            self._ready.append(key)

    def next_due(self) -> float | None:
        """When the earliest delayed key becomes ready; None: no key is delayed."""
        while self._timers and self._due.get(self._timers[0][2]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        timers = [self._timers[0][0]] if self._timers else []
        return min([*timers, *(when for _, when in self._settling.values())], default=None)

    def drop_delayed(self) -> None:
        """Forget every delayed key."""
        self._settling.clear()
        self._due.clear()
        self._timers.clear()

    def waits(self, key: K) -> bool:
        """Whether `key` is ready, or becomes it as soon as its pass ends."""
        return key in self._dirty

    def owed(self, key: K) -> bool:
        """Whether `key` was added since it was last taken, delayed ones not counted."""
        return key in self._dirty or key in self._settling

    @property
    def ready(self) -> int:
        """Number of keys that a worker could take now, delayed ones not counted."""
        return len(self._ready)

    @property
    def processing(self) -> int:
        """Number of keys that workers hold."""
        return len(self._processing)

    @property
    def pending(self) -> int:
        """Number of keys ready, held or delayed."""
        return len(self._dirty | self._processing | self._due.keys() | self._settling.keys())

    @property
    def settling(self) -> int:
        """Number of keys that a pass is owed as soon as they are left alone."""
        return len(self._settling)


class ShutDown(Exception):
    """The queue was shut down and has nothing left to hand out."""


class QueueObserver(Protocol):
    """Is told what happens in a queue, for metrics. Seconds."""

    def added(self) -> None:
        """A key needs a pass that did not need one before."""
        ...

    def retried(self) -> None:
        """A pass failed, and its key is going to be tried again."""
        ...

    def taken(self, waited: float) -> None:
        """A worker has a key that waited for so long since it needed a pass."""
        ...

    def finished(self, worked: float) -> None:
        """A pass took so long."""
        ...


class WorkQueue[K: Hashable]:
    """A `KeyQueue` that workers wait on. For one event loop; not thread-safe.

    `time` is the clock that delays count on, the running loop's unless given; the waiting itself is always the loop's timer.
    `rng` draws the jitter of the back-off from [0, 1).
    """

    def __init__(
        self,
        backoff: ExponentialBackoff,
        rng: Callable[[], float],
        *,
        time: Callable[[], float] | None = None,
        observer: QueueObserver | None = None,
    ) -> None:
        self._keys: KeyQueue[K] = KeyQueue()
        self._backoff = backoff
        self._rng = rng
        self._time = time or (lambda: asyncio.get_running_loop().time())
        self._observer = observer
        self._added: dict[K, float] = {}
        """Since when each key that waits does so."""
        self._taken: dict[K, float] = {}
        """Since when each key that is worked on is."""
        self._failures: dict[K, int] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closed = False

    def add(self, key: K) -> None:
        """`key` needs a pass as soon as a worker is free. Ignored after `shut_down`."""
        if not self._closed:
            if not self._keys.waits(key):
                self._note_added(key)
            self._keys.add(key)
            self._wake()

    def add_after(self, key: K, seconds: float) -> None:
        """`key` needs a pass in `seconds`; the earliest of several such times counts. Ignored after `shut_down`."""
        if seconds <= 0:
            self.add(key)
        elif not self._closed:
            self._keys.add_at(key, self._time() + seconds)
            self._arm()

    def add_settled(self, key: K, quiet: float, most: float) -> None:
        """`key` needs a pass once nobody has asked for one this way for `quiet` seconds, but not later than `most` seconds after the
        first who did. For keys on which a pass costs so much that it should see all of what happens at one time."""
        if quiet <= 0:
            self.add(key)
        elif not self._closed:
            self._keys.add_settled(key, self._time(), quiet, most)
            self._arm()

    def add_rate_limited(self, key: K) -> float:
        """`key` failed: it needs another pass after a delay, in seconds, that grows with each call until `forget(key)`."""
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._backoff.delay(self._failures[key], self._rng())
        if self._observer is not None:
            self._observer.retried()
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """`key` went well: its back-off starts anew."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Failures of `key` in a row."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """The next key, once there is one; the caller owes a `done`. Raises `ShutDown` when no key will come any more."""
        while True:
            for ripe in self._keys.ripen(self._time()):
                self._note_added(ripe)
            key = self._keys.take(self._time())
            if key is not None:
                self._note_taken(key)
                self._arm()
                if self._keys.ready:
                    self._wake()  # several keys may have become due at once, on one wake-up
                return key
            if self._closed:
                raise ShutDown
            self._arm()
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()  # the wake-up that this worker no longer uses belongs to another
                elif waiter in self._waiters:  # else a wake-up has passed over it already
                    self._waiters.remove(waiter)
                raise

    def done(self, key: K, *, cool_down: float = 0.0) -> None:
        """The pass over `key` ended. If it was added meanwhile, or is within `cool_down` seconds from now, it is ready again after them."""
        taken = self._taken.pop(key, None)
        if taken is not None and self._observer is not None:
            self._observer.finished(self._time() - taken)
        if cool_down > 0 and not self._closed:
            asyncio.get_running_loop().call_later(cool_down, self.done, key)
            return
        self._keys.done(key)
        if self._keys.ready:
            self._wake()

    def shut_down(self) -> None:
        """Take nothing in any more and drop what is delayed. What is ready is still handed out, then `get` raises `ShutDown`."""
        self._closed = True
        self._keys.drop_delayed()
        self._arm()
        while self._waiters:
            self._wake()

    def waits(self, key: K) -> bool:
        """Whether `key` needs a pass that has not begun, delayed ones not counted."""
        return self._keys.owed(key)

    @property
    def depth(self) -> int:
        """Number of keys that wait for a worker."""
        return self._keys.ready

    @property
    def being_worked_on(self) -> list[float]:
        """For how many seconds each pass that is under way has been."""
        now = self._time()
        return [now - since for since in self._taken.values()]

    @property
    def idle(self) -> bool:
        """Nothing is ready, settles or is being processed; keys may be delayed."""
        return not self._keys.ready and not self._keys.processing and not self._keys.settling

    def _note_added(self, key: K) -> None:
        self._added[key] = self._time()
        if self._observer is not None:
            self._observer.added()

    def _note_taken(self, key: K) -> None:
        now = self._taken[key] = self._time()
        waited = now - self._added.pop(key, now)
        if self._observer is not None:
            self._observer.taken(waited)

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _arm(self) -> None:
        """Keep one timer of the loop, set to the earliest delayed key."""
        due = self._keys.next_due()
        if self._timer is not None:
            if due == self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer_at = due
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self._time()), self._on_timer)

    def _on_timer(self) -> None:
        # The woken worker sets the timer again; with none waiting, the next `get` finds what is due by itself.
        self._timer = None
        self._wake()
