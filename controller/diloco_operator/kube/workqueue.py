"""The queue between watches and reconciles: every key is in it at most once, and never with two workers at once.

`KeyQueue` has the rules, without a clock and without waiting. `WorkQueue` lets workers wait for keys. It behaves as the queue of
Kubernetes' controllers: a key that is added while it is processed is processed once more afterwards, a delayed key keeps its earliest
time, and each key has its own back-off. Unlike Kubernetes' queue it is fair: keys of different lanes take turns.

See docs/decisions/0030-controller-loop.md. See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from diloco.protocol.backoff import ExponentialBackoff

from diloco_operator.kube.fair_queue import FairQueue
from diloco_operator.kube.worker_shares import WorkerShares


class KeyQueue[K: Hashable]:
    """Decides which key is next. Pure: `now` is an argument, in seconds of a clock that does not go back. `lane` returns a key's lane, and
    lanes take turns; by default all keys have one lane."""

    def __init__(self, lane: Callable[[K], Hashable] = lambda _: None) -> None:
        self._ready: FairQueue[K] = FairQueue(lane)
        self._dirty: set[K] = set()
        """Keys that must be processed: the ready ones, and keys that were added again while they were processed."""
        self._processing: set[K] = set()
        self._due: dict[K, float] = {}
        self._timers: list[tuple[float, int, K]] = []
        """Heap of (when, order of entry, key). An entry is void when `_due` has another time for its key."""
        self._entries = 0
        self._debouncing: dict[K, tuple[float, float]] = {}
        """For each debounced key: when the first request came, and when the key becomes ready."""

    def add(self, key: K) -> None:
        """Queue `key` for processing. Nothing happens if it is queued already."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._ready.append(key)

    def add_at(self, key: K, when: float) -> None:
        """Queue `key` for processing at `when`; the earliest of several times counts."""
        known = self._due.get(key)
        if known is not None and known <= when:
            return
        self._due[key] = when
        self._entries += 1
        heapq.heappush(self._timers, (when, self._entries, key))

    def add_debounced(self, key: K, now: float, quiet: float, most: float) -> None:
        """Queue `key` for processing once no such request came for `quiet` seconds, and at the latest `most` seconds after the first."""
        if key not in self._dirty:
            since, _ = self._debouncing.get(key, (now, now))
            self._debouncing[key] = since, min(now + quiet, since + most)

    def release_due(self, now: float) -> list[K]:
        """Make the keys ready whose delay has ended. Return the ones that were not queued already."""
        debounced = [key for key, (_, when) in self._debouncing.items() if when <= now]
        released = [key for key in debounced if key not in self._dirty]
        for key in debounced:
            del self._debouncing[key]
            self.add(key)
        while self._timers and self._timers[0][0] <= now:
            when, _, key = heapq.heappop(self._timers)
            if self._due.get(key) == when:
                del self._due[key]
                if key not in self._dirty:
                    released.append(key)
                self.add(key)
        return released

    def take(self, now: float, may: Callable[[Hashable], bool] = lambda _: True) -> K | None:
        """Return the next key of a lane that `may` allows. It counts as processed from now until `done`. None if no such key is ready."""
        self.release_due(now)
        key = self._ready.pop(may)
        if key is None:
            return None
        # The work that begins now sees the debounced changes too: another run for them would find nothing.
        self._debouncing.pop(key, None)
        self._dirty.discard(key)
        self._processing.add(key)
        return key

    def done(self, key: K) -> None:
        """Note that the work on `key` ended, in success or failure."""
        if key not in self._processing:
            raise ValueError(f"done({key!r}), but no worker has this key")
        self._processing.discard(key)
        if key in self._dirty:
            self._ready.append(key)

    def next_due(self) -> float | None:
        """Return when the earliest delayed key becomes ready. None if no key is delayed."""
        while self._timers and self._due.get(self._timers[0][2]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        timers = [self._timers[0][0]] if self._timers else []
        return min([*timers, *(when for _, when in self._debouncing.values())], default=None)

    def drop_delayed(self) -> None:
        self._debouncing.clear()
        self._due.clear()
        self._timers.clear()

    def is_dirty(self, key: K) -> bool:
        """Return whether `key` is ready, or becomes ready as soon as the work on it ends."""
        return key in self._dirty

    def is_queued(self, key: K) -> bool:
        """Return whether `key` was added since it was last taken, delayed ones not counted."""
        return key in self._dirty or key in self._debouncing

    @property
    def ready(self) -> int:
        """Number of keys that a worker could take now, delayed ones not counted."""
        return len(self._ready)

    def waiting(self, lane: Hashable) -> int:
        """Return the number of keys of one lane that a worker could take now."""
        return self._ready.waiting(lane)

    @property
    def processing(self) -> int:
        """Number of keys that workers hold."""
        return len(self._processing)

    @property
    def pending(self) -> int:
        """Number of keys ready, held or delayed."""
        return len(self._dirty | self._processing | self._due.keys() | self._debouncing.keys())

    @property
    def debouncing(self) -> int:
        return len(self._debouncing)


GIVE_WAY_SECONDS: Final = 0.02
"""Even if others are always at work, some 40 steps a second are left to the tasks that give way."""


class GivingWay:
    """Lets tasks wait while others are at work. For one event loop."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        """Return when `end` is called, and after `GIVE_WAY_SECONDS` at the latest."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        timer = loop.call_later(GIVE_WAY_SECONDS, _release, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)

    def end(self) -> None:
        """Let all who wait go on: the others are done."""
        for waiter in self._waiters:
            _release(waiter)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class ShutDown(Exception):
    """The queue was shut down and has nothing left to hand out."""


class QueueObserver(Protocol):
    """Receives what happens in a queue, for metrics. Times are in seconds."""

    def added(self) -> None:
        """Count a key that was not queued and is queued now."""
        ...

    def retried(self) -> None:
        """Count a key whose work failed, and which is queued again."""
        ...

    def taken(self, waited: float) -> None:
        """Count a key that a worker took. `waited`: its time in the queue."""
        ...

    def finished(self, worked: float) -> None:
        """Count the end of the work on a key."""
        ...


class _LoopTime:
    """The time of the event loop that asked first; other threads may ask from then on."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self) -> float:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.time()


class WorkQueue[K: Hashable]:
    """A `KeyQueue` that workers wait on. For one event loop; not thread-safe.

    `time` is the clock of the delays, by default the running loop's. The waiting itself always uses the loop's timer.
    `rng` draws the jitter of the back-off from [0, 1). `lane` returns a key's lane: lanes take turns, and none holds all `workers`, see
    `WorkerShares`. If `workers` is None, a lane may hold as many as ask.
    """

    def __init__(
        self,
        backoff: ExponentialBackoff,
        rng: Callable[[], float],
        *,
        time: Callable[[], float] | None = None,
        observer: QueueObserver | None = None,
        lane: Callable[[K], Hashable] = lambda _: None,
        workers: int | None = None,
    ) -> None:
        self._keys: KeyQueue[K] = KeyQueue(lane)
        self._lane = lane
        self._shares = WorkerShares(workers) if workers is not None else None
        self._backoff = backoff
        self._rng = rng
        self._time = time or _LoopTime()
        self._observer = observer
        self._added: dict[K, float] = {}
        """When each queued key was queued."""
        self._taken: dict[K, float] = {}
        """When each key that is processed was taken."""
        self._failures: dict[K, int] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._giving_way = GivingWay()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closed = False

    def add(self, key: K) -> None:
        """Process `key` as soon as a worker is free. Ignored after `shut_down`."""
        if not self._closed:
            if not self._keys.is_dirty(key):
                self._note_added(key)
            self._keys.add(key)
            self._wake()

    def add_after(self, key: K, seconds: float) -> None:
        """Process `key` in `seconds`; the earliest of several such times counts. Ignored after `shut_down`."""
        if seconds <= 0:
            self.add(key)
        elif not self._closed:
            self._keys.add_at(key, self._time() + seconds)
            self._arm()

    def add_debounced(self, key: K, quiet: float, most: float) -> None:
        """Process `key` once no such request came for `quiet` seconds, and at the latest `most` seconds after the first. For keys that are
        expensive to process: one run then covers all changes of a moment."""
        if quiet <= 0:
            self.add(key)
        elif not self._closed:
            self._keys.add_debounced(key, self._time(), quiet, most)
            self._arm()

    def add_rate_limited(self, key: K) -> float:
        """Process `key`, which failed, again after a delay that grows with each call until `forget(key)`. Return the delay in seconds."""
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._backoff.delay(self._failures[key], self._rng())
        if self._observer is not None:
            self._observer.retried()
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Forget the failures of `key`, which succeeded: its back-off starts anew."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Return the failures of `key` in a row."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """Return the next key, once there is one. The caller must call `done`. Raises `ShutDown` when no key will come any more."""
        while True:
            for released in self._keys.release_due(self._time()):
                self._note_added(released)
            key = self._take(self._time())
            if key is not None:
                self._note_taken(key)
                self._arm()
                if self._keys.ready:
                    self._wake()  # one wake-up may have made several keys due
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
                    self._wake()  # pass the unused wake-up on to another worker
                elif waiter in self._waiters:  # else a wake-up has skipped it already
                    self._waiters.remove(waiter)
                raise

    def _take(self, now: float) -> K | None:
        shares = self._shares
        return self._keys.take(now, lambda lane: shares.may_have_one(lane, now)) if shares is not None else self._keys.take(now)

    def done(self, key: K, *, cool_down: float = 0.0) -> None:
        """Note that the work on `key` ended. If the key was added meanwhile, or is added within `cool_down` seconds from now, it becomes
        ready after the cool-down."""
        taken = self._taken.pop(key, None)
        if taken is not None and self._shares is not None:
            lane = self._lane(key)
            now = self._time()
            self._shares.gave_back(lane, self._keys.waiting(lane), now)
            if not self._shares.others_at_work(now):
                self._giving_way.end()
        if taken is not None and self._observer is not None:
            self._observer.finished(self._time() - taken)
        if cool_down > 0 and not self._closed:
            # Until then the key counts as processed, though no worker has it: an added key becomes ready only afterwards.
            asyncio.get_running_loop().call_later(cool_down, self.done, key)
            if self._keys.ready:
                self._wake()  # its lane may have a worker again
            return
        self._keys.done(key)
        if self._keys.ready:
            self._wake()

    def shut_down(self) -> None:
        """Accept no more keys and drop delayed ones. Keys that are ready are still handed out, then `get` raises `ShutDown`."""
        self._closed = True
        self._keys.drop_delayed()
        self._arm()
        while self._waiters:
            self._wake()

    def is_queued(self, key: K) -> bool:
        """Return whether `key` was added since it was last taken, delayed ones not counted."""
        return self._keys.is_queued(key)

    def crowds_others(self, key: K) -> bool:
        """Return whether the key's lane is a crowd while another lane is present that is not."""
        return self._shares is not None and self._shares.crowds_others(self._lane(key), self._time())

    async def give_way(self, key: K) -> None:
        """Call this before each step of the work on a key, such as a request. If the key's lane is a crowd, it waits while a lane that is
        no crowd has a worker, for a short while at most: the step would delay that lane."""
        if self._shares is not None and self.crowds_others(key) and self._shares.others_at_work(self._time()):
            await self._giving_way.wait()

    @property
    def depth(self) -> int:
        """Number of keys that wait for a worker."""
        return self._keys.ready

    @property
    def running(self) -> list[float]:
        """For each key that is processed: the seconds since it was taken."""
        taken = list(self._taken.values())  # a copy: /metrics asks from another thread
        now = self._time() if taken else 0.0
        return [now - since for since in taken]

    @property
    def idle(self) -> bool:
        """Whether no key is ready, debounced or processed. Keys may be delayed."""
        return not self._keys.ready and not self._keys.processing and not self._keys.debouncing

    def _note_added(self, key: K) -> None:
        self._added[key] = self._time()
        if self._observer is not None:
            self._observer.added()

    def _note_taken(self, key: K) -> None:
        now = self._taken[key] = self._time()
        if self._shares is not None:
            lane = self._lane(key)
            self._shares.took(lane, self._keys.waiting(lane), now)
        waited = now - self._added.pop(key, now)
        if self._observer is not None:
            self._observer.taken(waited)

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            # Skip waiters that were cancelled, or the wake-up would be lost and a key would wait for the next one.
            if not waiter.done():
                waiter.set_result(None)
                return

    def _arm(self) -> None:
        """Keep one timer of the loop, for the earliest delayed key."""
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
        # The woken worker sets the timer again. If no worker waits, the next `get` finds the due keys itself.
        self._timer = None
        self._wake()
