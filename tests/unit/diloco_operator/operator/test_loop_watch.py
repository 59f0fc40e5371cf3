"""What holds the event loop, as the watch measures and names it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from diloco_operator.kube.rest import ServerClock
from diloco_operator.operator.logs import about_job
from diloco_operator.operator.loop_metrics import LoopMetrics
from diloco_operator.operator.loop_watch import Hold, LoopWatch, Place
from prometheus_client import CollectorRegistry

WAIT_SECONDS = 180.0
"""A limit for defects, not an expectation."""
DECIDE = Place("reconcile.engine.reconcile", "reconcile.engine.reconcile:7", "ns/lm")
WRITE = Place("executor.execute", "executor.execute:3", "")


class Turns:
    """A watch whose turns are told by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.turns: list[float] = []
        self.holds: list[Hold] = []
        self.watch = LoopWatch(on_turn=self.turns.append, on_hold=self.holds.append, clock=lambda: self.now)

    def turn(self, *parts: tuple[float, Place | None]) -> None:
        """One that lasts for the sum of the parts, with a look at the end of each that has a place."""
        self.watch.begun()
        for seconds, place in parts:
            self.now += seconds
            if place is not None:
                self.look(place)
        self.watch.ended()

    def look(self, place: Place) -> None:
        self.watch.look(lambda: place)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "diloco_operator.operator.loop_watch"]


def test_a_long_turn_is_named_by_where_most_looks_found_it(caplog: pytest.LogCaptureFixture) -> None:
    it = Turns()
    it.turn((0.125, DECIDE), (0.125, WRITE), (0.125, DECIDE), (0.125, None))
    assert it.holds == [Hold(0.5, DECIDE, found=2, looks=3)]
    assert lines(caplog) == ["the event loop stood still for 0.50 s, in reconcile.engine.reconcile:7 (2 of 3 looks)"]
    assert caplog.records[-1].job == "ns/lm"  # type: ignore[attr-defined]


def test_looks_at_one_turn_do_not_count_for_the_next() -> None:
    it = Turns()
    it.turn((0.25, DECIDE))
    it.turn((0.25, WRITE))
    it.turn((0.25, None))
    assert [hold.place.function for hold in it.holds] == [DECIDE.function, WRITE.function, "unknown"]


def test_a_look_that_comes_when_the_turn_has_ended_counts_for_nothing() -> None:
    it = Turns()

    def late() -> Place:
        it.watch.ended()
        it.watch.begun()
        it.now += 0.25
        return DECIDE

    it.watch.begun()
    it.now += 0.25
    it.watch.look(late)
    it.watch.ended()
    assert [hold.looks for hold in it.holds] == [0, 0]


def test_short_turns_and_waiting_are_no_holds() -> None:
    it = Turns()
    it.turn((0.05, None))
    it.now += 3600  # it waits
    it.look(DECIDE)
    assert it.watch.turn() == 0
    it.turn((0.0625, WRITE))
    assert it.turns == pytest.approx([0.05, 0.0625])
    assert it.holds == []


def test_how_long_it_lasted_is_still_known_when_its_end_is_told() -> None:
    """The fence asks at this moment."""
    seen: list[float] = []
    now = 0.0
    watch = LoopWatch(on_hold=lambda _: seen.append(watch.turn()), clock=lambda: now)
    watch.begun()
    now = 16.0
    assert watch.ended()
    assert (seen, watch.turn()) == ([16.0], 0.0)


def test_a_turn_that_may_never_end_is_told_while_it_lasts_and_once(caplog: pytest.LogCaptureFixture) -> None:
    it = Turns()
    it.watch.begun()
    for _ in range(40):  # 10 s in parts of 0.25 s, each with a look: the thread gets its turn seldom
        it.now += 0.25
        it.look(DECIDE)
    assert [line.partition(",")[0] for line in lines(caplog)] == ["the event loop stood still for 5.00 s"]
    assert "and still does" in lines(caplog)[0]


def test_holds_in_a_row_get_one_line_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    it = Turns()
    for _ in range(25):  # one after the other: at 0.5 s, 1 s, … 12.5 s
        it.turn((0.5, DECIDE))
    assert len(lines(caplog)) == 2  # at 0.5 s and 10.5 s
    assert lines(caplog)[1].endswith("; 19 other times were not logged")  # 1 s to 10 s, two in each second


def test_metrics_have_every_hold_the_longest_one_and_the_seconds_of_each_function() -> None:
    registry = CollectorRegistry()
    metrics = LoopMetrics(registry)
    for seconds in (0.005, 0.02, 0.5, 0.3):  # the first is too short to count
        metrics.turn_ended(seconds)
    metrics.held(Hold(0.5, DECIDE, 1, 1))
    metrics.held(Hold(0.3, DECIDE, 1, 1))
    assert registry.get_sample_value("diloco_operator_event_loop_hold_seconds_count") == 3
    assert registry.get_sample_value("diloco_operator_event_loop_hold_seconds_bucket", {"le": "0.25"}) == 1
    assert registry.get_sample_value("diloco_operator_event_loop_longest_hold_seconds") == 0.5
    labels = {"function": DECIDE.function}
    assert registry.get_sample_value("diloco_operator_event_loop_held_seconds_total", labels) == pytest.approx(0.8)


def test_metrics_of_many_functions_are_bounded() -> None:
    registry = CollectorRegistry()
    metrics = LoopMetrics(registry)
    for index in range(150):
        metrics.held(Hold(1.0, Place(f"f{index}", "", ""), 1, 1))
    assert registry.get_sample_value("diloco_operator_event_loop_held_seconds_total", {"function": "others"}) == 50  # beyond 100


class Looked:
    """A real loop under a watch, whose thread looks at it."""

    def __init__(self) -> None:
        self.holds: list[Hold] = []
        self._stands = False
        self._found = threading.Event()
        self.watch = LoopWatch(on_hold=self.holds.append)
        look = self.watch.look

        def noted(place: Callable[[], Place]) -> None:
            look(place)
            if self._stands and self.watch._looks.total() >= 3:
                self._found.set()

        self.watch.look = noted  # type: ignore[method-assign]

    def stand_still(self) -> float:
        """Keep the loop until three looks have found it: the first may see it on its way here."""
        self._stands = True
        assert self._found.wait(WAIT_SECONDS)
        return 0.0

    @property
    def hold(self) -> Hold:
        """The one that most looks have found. A busy machine holds the loop in other turns too."""
        return max(self.holds, key=lambda hold: hold.found)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        async def main() -> None:
            with self.watch.looking():
                await work

        with asyncio.Runner(loop_factory=self.watch.new_loop) as runner:
            runner.run(main())


def test_what_holds_a_real_loop_is_named_with_its_job() -> None:
    it = Looked()

    async def work() -> None:
        with about_job("ns", "lm"):
            ServerClock(it.stand_still).now()  # a function of the program, which here calls what stands still
        await asyncio.sleep(0)

    it.run(work())
    hold = it.hold
    assert hold.place.function == "diloco_operator.kube.rest.server_clock.ServerClock.now"
    assert hold.place.frames.startswith("diloco_operator.kube.rest.server_clock.ServerClock.now:")
    assert "asyncio" not in hold.place.frames
    assert hold.place.job == "ns/lm"


def test_what_holds_a_real_loop_in_a_callback_of_no_task_is_named_without_a_job() -> None:
    it = Looked()

    async def work() -> None:
        asyncio.get_running_loop().call_soon(it.stand_still)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    it.run(work())
    assert it.hold.place.function == "threading.Condition.wait"  # none of this program's own
    assert it.hold.place.job == ""
