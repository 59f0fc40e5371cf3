"""The clock where steps are uneven, programs pause, and the syncer itself is stopped."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.core import a_layout, a_seeded_core
from builders.engine_simulation import share_of_one_slow_unit
from builders.exploration import examples, full
from builders.uneven_steps import PATTERNS, Pace, Steps, UnevenSimulation, a_job_of, measure, one_other, pace, uneven
from diloco.algorithm.effects import Merged, Skipped
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

H = 24


@pytest.mark.parametrize("name", [*list(PATTERNS)[:2], *map(full, list(PATTERNS)[2:])])
def test_an_outer_step_is_a_mean_local_step_and_units_are_in_the_merges_that_they_can_answer(name: str) -> None:
    found = measure(name)
    assert found.ratio == pytest.approx(1.0, abs=0.1)
    assert found.merged >= 0.9
    assert found.within >= 0.9
    assert found.merges > 400


def again_and_again(seconds: list[float]) -> Steps:
    def durations(random: random.Random) -> Iterator[float]:
        while True:
            yield random.choice(seconds)

    return durations


def of_random_lengths(exponents: list[float], most: float) -> list[float]:
    """Steps of 50 ms to 400 s; the longest of `most` times the mean, before it is cut."""
    raw = [2.718**x for x in exponents]
    return [min(seconds, most * sum(raw) / len(raw)) for seconds in raw]


def random_steps(exponents: list[float], most: float, units: int, seed: int, *, pauses: bool) -> Pace:
    """Over 12 intervals, of equal units with such steps in random order. `pauses`: steps of twice the mean and more are declared ones."""
    seconds = of_random_lengths(exponents, most)
    mean = sum(seconds) / len(seconds)
    core = a_seeded_core(a_job_of(H), a_layout(H, 1))
    sim = uneven(core, [again_and_again(seconds)] * units, seed, announces=2 * mean if pauses else math.inf)
    return pace(sim.run(until=14 * H * mean), after=2 * H * mean)


EXPONENTS = st.lists(st.floats(-3.0, 6.0), min_size=2, max_size=25)


@settings(max_examples=examples(12))
@given(EXPONENTS, st.integers(4, 8), st.integers(0, 2**32), st.booleans())
def test_whatever_the_steps_of_equal_units_an_outer_step_is_a_mean_local_step(
    exponents: list[float], units: int, seed: int, pauses: bool
) -> None:
    """The longest of four mean steps, so longer than an exchange stays open for its answers."""
    found = random_steps(exponents, 4.0, units, seed, pauses=pauses)
    assert 0.9 <= found.ratio <= 1.1
    assert found.merged >= 0.9
    # The clock never falls behind over an interval. A unit that happens to take many short steps in a row drives it for a while.
    assert found.least >= 0.9
    assert found.within >= 0.9


@pytest.mark.full
@settings(max_examples=examples(8))
@given(EXPONENTS, st.integers(6, 8), st.integers(0, 2**32), st.booleans())
def test_with_six_units_or_more_so_it_is_with_steps_of_eight_times_the_mean(
    exponents: list[float], units: int, seed: int, pauses: bool
) -> None:
    found = random_steps(exponents, 8.0, units, seed, pauses=pauses)
    assert 0.9 <= found.ratio <= 1.1
    assert found.merged >= 0.9
    assert found.least >= 0.9
    assert found.within >= 0.9


def merges_after(sim: UnevenSimulation, at: float) -> list[int]:
    return [len(a.units) for when, a in sim.actions if isinstance(a, Merged) and when > at]


@pytest.mark.parametrize("other", [0.001, 600.0])
def test_one_step_of_a_millisecond_or_of_ten_minutes_moves_nothing_for_good(other: float) -> None:
    core = a_seeded_core(a_job_of(H), a_layout(H, 1))
    usual = again_and_again([10.0])
    sim = uneven(core, [one_other(10.0, other, 30), *[usual] * 7], seed=1).run(until=3000.0)
    over = 350.0 + other + H * 10.0
    assert set(merges_after(sim, over)) == {8}
    after = pace(sim, after=over)
    assert (after.least, after.most) == pytest.approx((1.0, 1.0), abs=0.1)
    # Meanwhile the others are in all merges.
    assert min(merges_after(sim, 2 * H * 10.0)) >= 7


def outer_steps(sim: UnevenSimulation, begin: float, end: float) -> int:
    """That the clock took between two moments."""
    before = sim.run(until=begin).core.t
    return sim.run(until=end).core.t - before


def seven_beside(other: float) -> UnevenSimulation:
    """Eight units with steps of 1 s, of which u0 takes one of `other` seconds after a hundred."""
    core = a_seeded_core(a_job_of(H), a_layout(H, 1))
    return uneven(core, [one_other(1.0, other, 100), *[again_and_again([1.0])] * 7], seed=1)


def test_a_unit_in_a_step_of_any_length_counts_as_long_as_its_process_is_alive() -> None:
    """Were it lost, the others would take 8/7 outer steps for one."""
    sim = seven_beside(400.0)
    assert outer_steps(sim, 130.0, 450.0) == pytest.approx(320 * 7 / 8, abs=3)
    sim.run(until=650.0)
    assert set(merges_after(sim, 520.0 + H)) == {8}


def test_a_unit_that_hangs_slows_the_clock_for_an_hour_and_no_longer() -> None:
    """Whose process is alive, where no operator replaces it. Steps of 10 s: 1/8 fewer outer steps until it is lost at 1,000 s + 1 h."""
    core = a_seeded_core(a_job_of(H), a_layout(H, 1))
    sim = uneven(core, [one_other(10.0, 1e6, 100), *[again_and_again([10.0])] * 7], seed=1)
    assert outer_steps(sim, 1100.0, 4500.0) == pytest.approx(340 * 7 / 8, abs=3)
    assert outer_steps(sim, 4700.0, 6700.0) == pytest.approx(200, abs=3)


def test_a_process_that_does_not_even_say_that_it_is_alive_is_lost_after_a_minute_and_counts_again_when_it_returns() -> None:
    sim = seven_beside(300.0)
    sim.at(110.0, sim.freeze("u0"))
    sim.at(400.0, sim.thaw("u0"))
    assert outer_steps(sim, 200.0, 360.0) == pytest.approx(160, abs=3)
    sim.run(until=500.0)
    assert set(merges_after(sim, 420.0 + H)) == {8}


def test_a_declared_pause_is_no_silence_even_of_a_process_that_does_not_say_that_it_is_alive() -> None:
    """Were the unit lost after a minute, the others would take 315 outer steps."""
    sim = seven_beside(400.0)
    sim.at(110.0, sim.freeze("u0"))
    sim.at(110.0, lambda: sim.core.paused("u0", 600.0, 110.0))
    assert outer_steps(sim, 130.0, 450.0) == pytest.approx(320 * 7 / 8, abs=3)


@pytest.mark.parametrize("seconds", [4.0, full(30.0), 150.0])
def test_after_a_stop_of_the_syncer_merges_are_full_again_within_one_cycle(seconds: float) -> None:
    core = a_seeded_core(a_job_of(H), a_layout(H, 1))
    sim = uneven(core, [again_and_again([1.0, 1.1, 0.9])] * 8, seed=1)
    sim.stop_syncer(200.5, seconds)
    sim.run(until=400.0 + seconds)
    back = 200.5 + seconds
    later = merges_after(sim, back + H)
    assert len(later) > 100
    assert set(later) == {8}
    assert not [a for when, a in sim.actions if isinstance(a, Skipped) and when > back]


@pytest.mark.full
def test_an_exchange_that_waits_longer_lets_a_unit_slower_than_half_an_interval_into_more_merges(tmp_path: Path) -> None:
    """Its steps take 20 of the others', so 15 outer steps: it has adopted some fragments shortly before they are pulled."""
    shares = [share_of_one_slow_unit(directory_in(tmp_path, str(grace)), 20.0, grace) for grace in (0.0, 2.0, 4.0)]
    assert shares[0] < shares[1] < shares[2]


def test_the_grace_window_never_opens_where_all_units_can_be_pulled(tmp_path: Path) -> None:
    shares = [share_of_one_slow_unit(directory_in(tmp_path, str(grace)), 1.18, grace, steps=120) for grace in (0.0, 2.0)]
    assert shares == [1.0, 1.0]


def directory_in(parent: Path, name: str) -> Path:
    directory = parent / name
    directory.mkdir()
    return directory
