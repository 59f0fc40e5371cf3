"""Jobs on fleets whose hardware fails, is reclaimed, becomes slow and comes back."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from diloco.contract import Training
from diloco.goodput import BADPUT, Use
from diloco.simulation.failures import YEAR
from diloco.simulation.fleet import ByPlace, Conditions, Links, simulate
from diloco.simulation.job import Outcome
from diloco.simulation.path import Path
from diloco.simulation.slices import Group, PlacedUnit, Reclaims, Slowdowns

HOUR = 3600.0


class FirstCome:
    """Units u-0, u-1 … on groups g-0, g-1 … of one accelerator each, first come, first served."""

    def __init__(self, units: int, groups: int) -> None:
        self._free = [f"g-{index}" for index in range(groups)]
        self._places: dict[str, str | None] = {f"u-{index}": None for index in range(units)}

    @property
    def leaving(self) -> tuple[str, ...]:
        return ()

    def advance(self, now: float) -> None:
        pass

    def due(self) -> float:
        return math.inf

    def trains(self, unit: str) -> None:
        pass

    def left(self, unit: str) -> None:
        pass

    def units(self) -> Mapping[str, PlacedUnit | None]:
        for unit, group in self._places.items():
            if group is None and self._free:
                self._places[unit] = self._free.pop(0)
        return {unit: PlacedUnit(1, 1.0, (group,)) if group is not None else None for unit, group in self._places.items()}

    def gone(self, group: str) -> None:
        self._free = [each for each in self._free if each != group]
        self._places = {unit: None if there == group else there for unit, there in self._places.items()}

    def back(self, group: str) -> None:
        self._free.append(group)


class BetterLater(FirstCome):
    """A unit that leaves its group for another one after ten minutes."""

    def __init__(self) -> None:
        super().__init__(units=1, groups=2)
        self._now = 0.0
        self._moves = True

    def advance(self, now: float) -> None:
        self._now = now

    def due(self) -> float:
        return 600.0 if self._now < 600.0 else math.inf

    @property
    def leaving(self) -> tuple[str, ...]:
        return ("u-0",) if self._moves and self._now >= 600.0 else ()

    def left(self, unit: str) -> None:
        self._moves = False
        self._places[unit] = None


def outcome(
    *,
    units: int,
    spares: int = 0,
    failures_per_hour: float = 0.0,
    quorum: int = 1,
    seconds: float = 2 * HOUR,
    step: float = 10.0,
    spot: bool = False,
    reclaims: Reclaims | None = None,
    slowdowns: Slowdowns | None = None,
    placer: FirstCome | None = None,
    joining: Mapping[str, float] | None = None,
) -> Outcome:
    """Simulate units of one accelerator; what failed is back after half an hour. A simulation costs by its steps, so they are long."""
    conditions = Conditions(
        failures_per_year=failures_per_hour * YEAR / HOUR,
        step_seconds=step,
        start_seconds=30.0,
        compile_seconds=20.0,
        detect_seconds=10.0,
        repair_seconds=1800.0,
        reclaims=reclaims or Reclaims(),
        slowdowns=slowdowns or Slowdowns(),
        joining=joining or {},
    )
    groups = [Group(f"g-{index}", spot) for index in range(units + spares)]
    return simulate(Training(steps=100, quorum=quorum), placer or FirstCome(units, units + spares), groups, conditions, seconds, seed=1)


def test_without_failures_only_start_and_compilation_are_badput() -> None:
    found = outcome(units=2)
    assert (found.failures, found.reclaimed) == (0, 0)
    # 50 s of 7,200 s before the first step; what is under way at the end is booked to its end.
    assert found.accounts.share(Use.START) == pytest.approx(30 / 7200, rel=0.01)
    assert found.accounts.share(Use.COMPILE) == pytest.approx(20 / 7200, rel=0.01)
    assert found.goodput == pytest.approx(1 - 50 / 7200, abs=0.001)


@pytest.mark.full
@pytest.mark.slow
def test_units_that_contribute_to_each_merge_are_never_stale_and_lost_ones_are() -> None:
    assert outcome(units=2).staleness < 0.01
    # Of each hour and a half half an hour: a unit that is away for 900 steps is 450 of them old in the mean.
    lost = outcome(units=2, seconds=12 * HOUR, step=2.0, failures_per_hour=1.0)
    assert lost.staleness > 50


def test_a_unit_that_moves_ends_its_step_and_starts_again_elsewhere() -> None:
    found = outcome(units=1, spares=1, placer=BetterLater())
    assert (found.moved, found.failures, found.reclaimed) == (1, 0, 0)
    assert found.accounts.by_use[Use.LOST_WORK] == 0, "it ends the step that it is in"
    # Start and compilation of the other place: nothing had to be noticed.
    assert found.accounts.by_use[Use.RECOVERY] == pytest.approx(50.0)


def test_a_unit_has_the_way_of_its_zone_before_that_of_its_region() -> None:
    links = Links(
        bandwidth=ByPlace(5e9, {"eu": 1e9}),
        latency=ByPlace(0.001, {"eu": 0.04, "eu-a": 0.05}),
        loss=ByPlace(0.0, {"asia": 0.01}),
    )

    def path(*places: tuple[str, ...]) -> Path:
        return links.path(PlacedUnit(8, 1.0, ("g",), processes=2, places=places))

    assert path(("eu-a", "eu")) == Path(1e9, 0.05, 0.0, 2)
    assert path(("eu-b", "eu")) == Path(1e9, 0.04, 0.0, 2)
    assert path(("us-a", "us")) == path(()) == path() == Path(5e9, 0.001, 0.0, 2)


def test_a_unit_in_several_places_has_the_worst_of_their_ways() -> None:
    links = Links(bandwidth=ByPlace(5e9, {"a": 1e9}), latency=ByPlace(0.0, {"b": 0.04}), loss=ByPlace(0.0, {"a": 0.01}))
    assert links.path(PlacedUnit(8, 1.0, ("g",), places=(("a",), ("b",)))) == Path(1e9, 0.04, 0.01, 1)


def test_a_unit_whose_hardware_comes_later_waits_until_then() -> None:
    found = outcome(units=2, joining={"g-1": 1800.0})
    # The second unit exists from its hardware on: half an hour of two hours is not its time.
    assert found.accounts.total == pytest.approx(7200.0 + 5400.0, rel=0.01)
    assert found.accounts.by_use[Use.START] == pytest.approx(60.0)


def test_a_job_does_not_end_however_few_steps_its_file_has() -> None:
    # Its file says 100. In two hours but for 50 s it takes 715 of 10 s.
    assert outcome(units=1).outer_steps > 700


@pytest.mark.slow
def test_a_spare_slice_takes_the_place_of_one_that_is_out() -> None:
    none, some = (outcome(units=4, spares=spares, failures_per_hour=1.0) for spares in (0, 8))
    assert some.failures > 0
    assert some.accounts.by_use[Use.MISSING] == 0, "there is always a spare"
    assert none.accounts.share(Use.MISSING) > 0.1, "a unit is out for half an hour in one and a half"
    assert some.goodput > none.goodput + 0.1
    # Each failure costs 60 s of its unit, and half a step.
    assert some.accounts.by_use[Use.RECOVERY] == pytest.approx(60.0 * some.failures)


@pytest.mark.slow
def test_all_time_of_all_units_has_a_use() -> None:
    reclaims, slowdowns = Reclaims(per_day=24.0, notice=5.0, away=600.0), Slowdowns(per_day=24.0)
    found = outcome(units=3, spares=1, failures_per_hour=2.0, quorum=2, spot=True, reclaims=reclaims, slowdowns=slowdowns)
    assert found.failures > 0
    assert found.reclaimed > 0
    assert found.accounts.total == pytest.approx(3 * 7200.0, rel=0.01)
    assert found.goodput + sum(found.accounts.share(use) for use in BADPUT) == pytest.approx(1.0)
    assert found.accounts.by_use[Use.WAITING] > 0, "two of three must be there"


@pytest.mark.slow
def test_with_notice_a_reclaim_ends_no_step_and_without_it_does() -> None:
    noticed, sudden = (
        outcome(units=4, spares=8, seconds=24 * HOUR, step=120.0, spot=True, reclaims=Reclaims(per_day=24.0, notice=notice))
        for notice in (240.0, 0.0)
    )
    assert noticed.accounts.by_use[Use.LOST_WORK] == 0
    # Half a step of each of some 90 units, in the mean: 60 s +- 35 / sqrt(90), but for those that just start.
    assert sudden.accounts.by_use[Use.LOST_WORK] == pytest.approx(60.0 * sudden.reclaimed, rel=0.25)
    # 50 s until a unit trains on another slice: nothing has to be noticed, as after a failure.
    assert noticed.accounts.by_use[Use.RECOVERY] == pytest.approx(50.0 * noticed.reclaimed, rel=0.05)


@pytest.mark.slow
def test_spot_capacity_is_away_as_long_as_it_is_said_to_be() -> None:
    # An hour there, half an hour away: a third of the time. 2 units x 72 h / 1.5 h = 96 times.
    reclaims = Reclaims(per_day=24.0, notice=0.0, away=1800.0)
    found = outcome(units=2, seconds=72 * HOUR, step=300.0, spot=True, reclaims=reclaims)
    assert found.accounts.share(Use.MISSING) == pytest.approx(1 / 3, abs=0.07)
    assert outcome(units=2, step=60.0, spot=False, reclaims=reclaims).reclaimed == 0, "of what is no spot nothing is taken"


@pytest.mark.slow
def test_what_is_reclaimed_together_leaves_no_unit() -> None:
    apart, together = (
        outcome(units=4, seconds=48 * HOUR, step=300.0, spot=True, reclaims=Reclaims(per_day=12.0, away=1800.0, together=at_once))
        for at_once in (False, True)
    )
    # 2 h there, half an hour away, and 80 s to start: by itself, all four are away in a 500th of the time; at once in a fifth.
    assert apart.uptime > 0.98
    assert together.uptime == pytest.approx(0.8, abs=0.1)


@pytest.mark.slow
def test_a_slow_host_trains_less_and_stops_nobody() -> None:
    # Ten minutes of every hour, in which steps take twice as long: a twelfth of the work is lost, and no time is.
    slow = outcome(units=4, seconds=12 * HOUR, step=60.0, slowdowns=Slowdowns(per_day=24.0, factor=2.0, seconds=600.0))
    even = outcome(units=4, seconds=12 * HOUR, step=60.0)
    assert slow.goodput == pytest.approx(even.goodput, abs=0.001)
    assert slow.merged / even.merged == pytest.approx(11 / 12, abs=0.03)
