from __future__ import annotations

import asyncio

import pytest
from builders.exploration import examples
from builders.virtual_time import run_virtual
from diloco.protocol.backoff import ExponentialBackoff
from diloco_operator.kube.workqueue import GIVE_WAY_SECONDS, KeyQueue, ShutDown, WorkQueue
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

KEYS = st.sampled_from("abcd")


class KeyQueueMachine(RuleBasedStateMachine):
    """Against a model that knows for each key only whether and when it must be processed, and whether it is processed now."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: KeyQueue[str] = KeyQueue()
        self.now = 0.0
        self.wanted: dict[str, float] = {}  # since when it must be processed
        self.delayed: dict[str, float] = {}
        self.debouncing: dict[str, tuple[float, float]] = {}  # since when, and until when
        self.held: set[str] = set()

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.queue.add(key)
        self.wanted.setdefault(key, self.now)

    @rule(key=KEYS, delay=st.integers(0, 5))
    def add_later(self, key: str, delay: int) -> None:
        when = self.now + delay
        self.queue.add_at(key, when)
        self.delayed[key] = min(self.delayed.get(key, when), when)

    @rule(key=KEYS, quiet=st.integers(1, 3), most=st.integers(1, 6))
    def add_debounced(self, key: str, quiet: int, most: int) -> None:
        self.queue.add_debounced(key, self.now, quiet, most)
        if key not in self.wanted:
            since, _ = self.debouncing.get(key, (self.now, 0.0))
            self.debouncing[key] = since, min(self.now + quiet, since + most)

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        for key, when in list(self.delayed.items()):
            if when <= self.now:
                del self.delayed[key]
                self.wanted.setdefault(key, when)
        for key, (_, until) in list(self.debouncing.items()):
            if until <= self.now:
                del self.debouncing[key]
                self.wanted.setdefault(key, until)
        taken = self.queue.take(self.now)
        candidates = self.wanted.keys() - self.held
        if taken is None:
            assert not candidates, "a key that is owed a reconcile was not handed out"
            return
        assert taken in candidates, "a key was handed out that was not queued, or to a second worker"
        del self.wanted[taken]
        self.debouncing.pop(taken, None)  # processing covers the debounced changes
        self.held.add(taken)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        self.queue.done(key)
        self.held.discard(key)

    @invariant()
    def the_next_timer_is_the_earliest_delay(self) -> None:
        settled = [until for _, until in self.debouncing.values()]
        assert self.queue.next_due() == min([*self.delayed.values(), *settled], default=None)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.queue.processing == len(self.held)
        assert self.queue.pending == len(self.wanted.keys() | self.held | self.delayed.keys() | self.debouncing.keys())
        for key in "abcd":
            assert self.queue.is_queued(key) == (key in self.wanted or key in self.debouncing)


KeyQueueMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestKeyQueue = pytest.mark.slow(KeyQueueMachine.TestCase)


def a_queue() -> WorkQueue[str]:
    return WorkQueue(ExponentialBackoff(initial=1, ceiling=60, jitter=0), rng=lambda: 0.0)


def test_keys_come_in_the_order_in_which_they_were_added() -> None:
    queue: KeyQueue[str] = KeyQueue()
    for key in "cab":
        queue.add(key)
    assert [queue.take(0) for _ in range(3)] == ["c", "a", "b"]


def test_keys_of_different_lanes_take_turns() -> None:
    queue: KeyQueue[str] = KeyQueue(lane=lambda key: key[0])
    for key in ("a1", "a2", "a3", "b1", "b2", "c1"):
        queue.add(key)
    assert [queue.take(0) for _ in range(6)] == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_key_that_is_added_while_it_is_processed_waits_in_its_own_lane() -> None:
    queue: KeyQueue[str] = KeyQueue(lane=lambda key: key[0])
    for key in ("a1", "a2", "b1"):
        queue.add(key)
    assert queue.take(0) == "a1"
    queue.add("a1")
    queue.done("a1")
    assert [queue.take(0) for _ in range(3)] == ["b1", "a2", "a1"]


def test_a_lane_whose_work_takes_long_leaves_workers_to_others() -> None:
    """Twenty workers, and reconciles of a crowd that wait for their writes for an hour."""

    async def scenario() -> tuple[int, list[str]]:
        queue: WorkQueue[str] = WorkQueue(
            ExponentialBackoff(initial=1, ceiling=60, jitter=0), rng=lambda: 0.0, lane=lambda key: key.split("/")[0], workers=20
        )
        taken: list[str] = []

        async def work() -> None:
            while True:
                key = await queue.get()
                taken.append(key)
                await asyncio.sleep(3600 if key.startswith("crowd") else 1)
                queue.done(key)

        workers = [asyncio.create_task(work()) for _ in range(20)]
        for number in range(1000):
            queue.add(f"crowd/{number}")
        await asyncio.sleep(1)
        held = len(queue.running)
        for number in range(8):
            queue.add(f"quiet/{number}")
        await asyncio.sleep(10)
        for worker in workers:
            worker.cancel()
        return held, [key for key in taken if key.startswith("quiet")]

    held, quiet = run_virtual(scenario())
    assert held == 16, "four fifths: 16 = 4 x the 4 that are free"
    assert len(quiet) == 8, "the others are served meanwhile"


def test_a_crowd_has_one_worker_while_another_lane_comes_now_and_then() -> None:
    """Twenty workers; each key takes a second, and a quiet lane has one every three seconds for a while."""

    async def scenario() -> dict[float, int]:
        queue: WorkQueue[str] = WorkQueue(
            ExponentialBackoff(initial=1, ceiling=60, jitter=0), rng=lambda: 0.0, lane=lambda key: key.split("/")[0], workers=20
        )
        held: dict[float, int] = {}

        async def work() -> None:
            while True:
                key = await queue.get()
                await asyncio.sleep(1)
                queue.done(key)

        workers = [asyncio.create_task(work()) for _ in range(20)]
        for number in range(1000):
            queue.add(f"crowd/{number}")
        for second in range(30):
            await asyncio.sleep(0.5)
            if second in (3, 6, 9):
                queue.add(f"quiet/{second}")
            held[second] = len(queue.running)
            assert queue.crowds_others("crowd/1") == (3 < second < 16), second  # the last key ends at 10.5 s, and counts for 5 s more
            assert not queue.crowds_others("quiet/1")
            await asyncio.sleep(0.5)
        for worker in workers:
            worker.cancel()
        return held

    held = run_virtual(scenario())
    assert held[2] == 16, "alone it has four fifths"
    assert all(held[second] <= 2 for second in range(5, 14)), "one of the crowd, and one of the other lane now and then"
    assert held[29] == 16, "the other lane is gone"


def test_a_crowd_gives_way_at_each_step_while_another_lane_has_a_worker_but_never_for_long() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        queue: WorkQueue[str] = WorkQueue(
            ExponentialBackoff(initial=1, ceiling=60, jitter=0), rng=lambda: 0.0, lane=lambda key: key.split("/")[0], workers=20
        )

        async def waits(key: str) -> float:
            begun = loop.time()
            await queue.give_way(key)
            return loop.time() - begun

        for number in range(1000):
            queue.add(f"crowd/{number}")
        crowd = await queue.get()
        assert await waits(crowd) == 0, "it is alone"
        queue.add("quiet/1")
        quiet = await queue.get()
        while not quiet.startswith("quiet"):
            quiet = await queue.get()
        assert await waits(crowd) == pytest.approx(GIVE_WAY_SECONDS)
        assert await waits(quiet) == 0
        step = asyncio.create_task(waits(crowd))
        await asyncio.sleep(GIVE_WAY_SECONDS / 4)
        queue.done(quiet)
        assert await step == pytest.approx(GIVE_WAY_SECONDS / 4), "the other is done"
        assert queue.crowds_others(crowd)
        assert await waits(crowd) == 0, "the other lane is present, and does nothing"

    run_virtual(scenario())


def test_a_lane_alone_gets_a_worker_back_as_soon_as_one_of_its_keys_is_done() -> None:
    async def scenario() -> int:
        queue: WorkQueue[str] = WorkQueue(
            ExponentialBackoff(initial=1, ceiling=60, jitter=0), rng=lambda: 0.0, lane=lambda _: "one", workers=5
        )
        done: list[str] = []

        async def work() -> None:
            while True:
                key = await queue.get()
                await asyncio.sleep(1)
                queue.done(key, cool_down=100 if key == "0" else 0)
                done.append(key)

        workers = [asyncio.create_task(work()) for _ in range(5)]
        for number in range(40):
            queue.add(f"{number}")
        await asyncio.sleep(10.5)
        for worker in workers:
            worker.cancel()
        return len(done)

    # Four of five workers for a second each: 40 keys in 10 s. The key that cools down holds none.
    assert run_virtual(scenario()) == 40


def test_done_without_a_worker_is_a_defect() -> None:
    with pytest.raises(ValueError, match="no worker has this key"):
        KeyQueue[str]().done("a")


def test_a_worker_waits_for_a_delayed_key() -> None:
    async def scenario() -> float:
        queue = a_queue()
        queue.add_after("a", 5)
        queue.add_after("a", 3)
        queue.add_after("a", 9)
        assert await queue.get() == "a"
        return asyncio.get_running_loop().time()

    assert run_virtual(scenario()) == pytest.approx(3)


def test_a_debounced_key_is_handed_out_after_a_quiet_interval_or_at_the_limit() -> None:
    async def scenario(adds: int) -> float:
        queue = a_queue()
        for _ in range(adds):
            assert queue.idle == (_ == 0)
            queue.add_debounced("a", 1.0, 5.0)
            await asyncio.sleep(0.75)
        assert await queue.get() == "a"
        return asyncio.get_running_loop().time()

    assert run_virtual(scenario(3)) == pytest.approx(2.5)  # a second after the third, at 1.5
    assert run_virtual(scenario(7)) == pytest.approx(5.25)  # due at 5.0; debounced from 5.0 on


def test_a_debounced_key_that_is_also_added_at_once_is_handed_out_once() -> None:
    async def scenario() -> None:
        queue = a_queue()
        queue.add_debounced("a", 1.0, 5.0)
        queue.add("a")
        assert await queue.get() == "a"
        queue.done("a")
        assert queue.idle

    run_virtual(scenario())


def test_keys_that_are_due_together_wake_a_worker_each() -> None:
    async def scenario() -> set[str]:
        queue = a_queue()
        workers = [asyncio.create_task(queue.get()) for _ in range(3)]
        await asyncio.sleep(0)
        for key in "abc":
            queue.add_after(key, 2)
        return set(await asyncio.gather(*workers))

    assert run_virtual(scenario()) == set("abc")


def test_each_key_backs_off_alone_until_it_is_forgotten() -> None:
    async def scenario() -> None:
        queue = a_queue()
        assert [queue.add_rate_limited("a") for _ in range(3)] == [1, 2, 4]
        assert queue.add_rate_limited("b") == 1
        assert queue.failures("a") == 3
        queue.forget("a")
        assert queue.add_rate_limited("a") == 1

    run_virtual(scenario())


def test_a_cancelled_worker_hands_its_wake_up_on() -> None:
    async def scenario() -> str:
        queue = a_queue()
        first = asyncio.create_task(queue.get())
        second = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.add("a")  # wakes the first
        first.cancel()
        return await second

    assert run_virtual(scenario()) == "a"


def test_a_worker_that_was_cancelled_while_it_waited_is_not_woken() -> None:
    async def scenario() -> str:
        queue = a_queue()
        first = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        queue.add("a")
        return await queue.get()

    assert run_virtual(scenario()) == "a"


def test_a_worker_that_was_cancelled_and_skipped_at_the_same_time_ends_as_cancelled() -> None:
    async def scenario() -> tuple[str, bool]:
        queue = a_queue()
        first = asyncio.create_task(queue.get())
        second = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        first.cancel()
        queue.add("a")  # before the first hears of it
        await asyncio.wait([first])
        return await second, first.cancelled()

    assert run_virtual(scenario()) == ("a", True)


def test_shut_down_hands_out_what_is_ready_and_drops_the_rest() -> None:
    async def scenario() -> None:
        queue = a_queue()
        queue.add("a")
        queue.add_after("later", 1)
        queue.shut_down()
        queue.add("too late")
        queue.add_after("too late", 1)
        assert await queue.get() == "a"
        with pytest.raises(ShutDown):
            await queue.get()
        queue.done("a")
        assert queue.idle

    run_virtual(scenario())


def test_shut_down_wakes_every_waiting_worker() -> None:
    async def scenario() -> list[object]:
        queue = a_queue()
        workers = [asyncio.create_task(queue.get()) for _ in range(3)]
        await asyncio.sleep(0)
        queue.shut_down()
        return await asyncio.gather(*workers, return_exceptions=True)

    assert all(isinstance(end, ShutDown) for end in run_virtual(scenario()))


def test_a_key_added_while_it_is_processed_is_processed_once_more() -> None:
    async def scenario() -> None:
        queue = a_queue()
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        queue.add("a")
        assert queue.depth == 0  # no other worker may take it meanwhile
        queue.done("a")
        assert await queue.get() == "a"
        queue.done("a")
        assert queue.idle

    run_virtual(scenario())
