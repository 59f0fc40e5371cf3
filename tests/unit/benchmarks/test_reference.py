from __future__ import annotations

import gc
import threading

import pytest

from benchmarks import reference
from benchmarks.reconcile_pass import instructions_of


@pytest.mark.full
def test_each_pass_is_the_same_work_however_many_were_before() -> None:
    first = instructions_of(reference.pass_seconds)
    for _ in range(300):  # numbers below 257 are objects that Python keeps; no count may come from them to others
        reference.pass_seconds()
    assert instructions_of(reference.pass_seconds) == first


def test_what_other_threads_do_meanwhile_is_not_counted() -> None:
    ends = threading.Event()
    other = threading.Thread(target=lambda: [ends.wait(0) for _ in iter(ends.is_set, True)])
    alone = instructions_of(reference.pass_seconds)
    other.start()
    try:
        assert {instructions_of(reference.pass_seconds) for _ in range(5)} == {alone}
    finally:
        ends.set()
        other.join()


@pytest.mark.parametrize("collects", [True, False])
def test_a_pass_leaves_the_collection_of_garbage_as_it_was(collects: bool) -> None:
    was = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        reference.pass_seconds()
        assert gc.isenabled() == collects
    finally:
        (gc.enable if was else gc.disable)()


def test_a_measurement_is_divided_by_the_pass_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "pass_seconds", lambda: 0.002)
    seconds, passes = reference.in_passes(lambda: 0.006)
    assert seconds == 0.006
    assert passes == pytest.approx(3.0)


def test_the_pace_is_a_half_on_a_machine_that_takes_twice_the_usual_time_for_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "pass_seconds", lambda: 2 * reference.USUAL_SECONDS)
    assert reference.pace() == pytest.approx(0.5)


def test_the_times_of_a_usual_figure_are_those_that_the_usual_machine_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "pace", lambda: 0.5)
    slow = reference.usual_figure("f", 60.0, "ms", 50.0, times={"wall_ms": 80.0})
    assert (slow.value, slow.unit, slow.within, slow.details) == (30.0, "usual ms", True, {"wall_ms": 40.0, "pace": 0.5})
