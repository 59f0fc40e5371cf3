"""Which pushes a narrow uplink carries, where outer steps and transfers are uneven, as on a busy machine."""

from __future__ import annotations

import pytest
from builders.narrow_uplink import NarrowUplink, Noise
from diloco.learner.push_times import PushTimes

QUIET = Noise()
SHORT_STALLS = Noise(stall_seconds=0.3, stall_every=3.0)
LONG_STALLS = Noise(stall_seconds=1.0, stall_every=10.0)
UNEVEN_STEPS = Noise(steps=0.1)
BUSY = Noise(stall_seconds=0.3, stall_every=5.0, steps=0.15, transfers=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [QUIET, SHORT_STALLS, LONG_STALLS, UNEVEN_STEPS, BUSY])
@pytest.mark.parametrize("phase", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_link_a_little_too_slow_carries_nearly_what_it_can_on_a_busy_machine(noise: Noise, phase: float) -> None:
    # 1/1.05, 1/1.2 and 1/2 of the pushes fit through the link; with steps that take longer more do.
    assert NarrowUplink(0.9, phase, noise).share() >= 0.99
    assert NarrowUplink(1.05, phase, noise).share() >= 0.93
    assert NarrowUplink(1.2, phase, noise).share() >= 0.8
    assert NarrowUplink(2.0, phase, noise).share() >= 0.45


@pytest.mark.parametrize("phase", [0.0, 0.3, 0.5])
def test_transfers_of_uneven_length_cost_what_they_are_longer(phase: float) -> None:
    # 1/(1.05 * 1.1), 1/(1.2 * 1.1); of two outer steps and a tenth more, every second answer misses a part of its own time
    noise = Noise(transfers=0.1)
    assert NarrowUplink(1.05, phase, noise).share() >= 0.84
    assert NarrowUplink(1.2, phase, noise).share() >= 0.72
    assert NarrowUplink(2.0, phase, noise).share() >= 0.35


class Clock:
    now = 0.0


def known(durations: list[float], lifetime: float) -> tuple[PushTimes, Clock]:
    """An answer every second, exchanges that live so long, and pushes that took so long."""
    clock = Clock()
    times = PushTimes(0, lambda: clock.now)
    for t in range(8):
        times.added(t)
        clock.now = t + lifetime
        times.clock(t + 1)
        clock.now = t + 1.0
    for seconds in durations:
        times.took(seconds)
    times.added(8)
    return times, clock


def test_a_push_that_cannot_arrive_any_more_is_left_out_and_the_next_decision_is_yes() -> None:
    times, clock = known([0.5], lifetime=0.9)
    clock.now += 0.3
    assert times.worth_sending(8)
    clock.now += 0.2
    assert not times.worth_sending(8)
    assert times.worth_sending(8), "the link may have become faster"


def test_one_slow_transfer_among_fast_ones_changes_nothing() -> None:
    times, _ = known([0.5] * 7 + [5.0], lifetime=0.9)
    assert times.worth_sending(8)


def test_a_doubtful_push_is_left_out_the_sooner_the_nearer_the_next_answer_is() -> None:
    # Begun 0.3 s after its answer, half of the pushes would arrive. All do that begin at once; the next answer is 0.7 s away.
    times, clock = known([0.3, 0.7], lifetime=0.9)
    clock.now += 0.3
    assert times.worth_sending(8), "0.5 in 0.5 s is better than 1 in 1.2 s"
    times, clock = known([0.3, 0.7], lifetime=0.9)
    clock.now += 0.55
    assert not times.worth_sending(8), "0.5 in 0.5 s, against 1 in 0.95 s, and 0.55 + 0.3 is just in time"


def test_transfers_that_were_ended_unfinished_count_as_long() -> None:
    times, clock = known([0.5], lifetime=0.9)
    for _ in range(7):
        times.given_up_after(0.8)
    clock.now += 0.2
    assert not times.worth_sending(8)
