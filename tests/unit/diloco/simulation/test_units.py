"""One unit on virtual time, without a job around it."""

from dataclasses import replace

import pytest
from builders.exploration import examples
from diloco.algorithm.effects import Pull
from diloco.algorithm.events import Metadata
from diloco.goodput import Use
from diloco.simulation.failures import ReturnDelay
from diloco.simulation.timeline import Timeline
from diloco.simulation.unit import Hardware, SimulatedUnit
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng

SOUND = Hardware(
    slices=4,
    chips_per_slice=256,
    chip_seconds_between_failures=float("inf"),
    step_seconds=2.0,
    down_seconds=12.0,
    up_seconds=8.0,
    returns=ReturnDelay.with_mean(100.0),
)


class Heard:
    """What a syncer hears of a unit, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.steps: list[int] = []
        self.durations: list[float] = []
        self.answers: list[tuple[int, int]] = []
        self.bases: list[int] = []

    def connected(self, unit: SimulatedUnit) -> None:
        unit.received([0, 0])

    def joined(self, unit: SimulatedUnit) -> None:
        self.said.append("joined")

    def left(self, unit: SimulatedUnit) -> None:
        self.said.append("left")

    def paused(self, unit: SimulatedUnit, until: float) -> None:
        self.said.append("paused")

    def adopted(self, unit: SimulatedUnit, fragment: int, version: int) -> None:
        pass

    def stepped(self, unit: SimulatedUnit, metadata: Metadata) -> None:
        self.steps.append(metadata.local_step)
        self.durations.append(metadata.step_seconds)

    def answered(self, unit: SimulatedUnit, pull: Pull, base: int, steps: int, tokens: int) -> None:
        self.answers.append((steps, tokens))
        self.bases.append(base)


class Alone:
    """A unit that has joined at second 0, and what its syncer hears."""

    def __init__(self, hardware: Hardware, seed: int = 1) -> None:
        self.timeline, self.heard = Timeline(), Heard()
        self.unit = SimulatedUnit("u", hardware, 2, self.timeline, self.heard, default_rng(seed), tokens=10)
        self.unit.begin(0.0)

    def run(self, seconds: float) -> None:
        while self.timeline.next_at <= seconds:
            self.timeline.step()


def test_a_unit_whose_chips_never_fail_only_trains() -> None:
    alone = Alone(SOUND)
    alone.run(100.0)
    assert alone.heard.steps == list(range(1, 51)), "a step of 2 s each"
    assert alone.unit.accounts.goodput == 1.0
    assert alone.unit.tokens == 50 * 4 * 10


def test_an_answer_holds_what_was_trained_since_the_fragment_was_adopted() -> None:
    alone = Alone(SOUND)
    alone.run(2.0)
    alone.unit.pulled(Pull(1, 0, ("u",)))
    alone.run(4.0)
    assert alone.heard.answers == [(2, 80)]
    alone.unit.merged(0, version=1)
    alone.run(6.0)  # adopted at the end of this step
    alone.unit.pulled(Pull(25, 0, ("u",)))
    alone.unit.pulled(Pull(25, 1, ("u",)))
    alone.run(8.0)
    assert alone.heard.answers[1:] == [(1, 40), (4, 160)]
    assert alone.heard.bases == [0, 1, 0]


def test_a_unit_that_copies_its_parameters_after_each_step_answers_during_the_next() -> None:
    alone = Alone(replace(SOUND, answers_at_once=True))
    alone.run(3.0)
    alone.unit.pulled(Pull(1, 0, ("u",)))
    assert alone.heard.answers == [(1, 40)]


def test_steps_vary_by_what_the_hardware_says() -> None:
    alone = Alone(replace(SOUND, step_variation=0.1))
    alone.run(4000.0)
    # 2,000 steps of 2 s and a deviation of 0.2 s: their number has the standard error 0.1 * sqrt(2000) = 4.5; five of them.
    assert len(alone.heard.steps) == pytest.approx(2000, abs=23)
    assert len({round(seconds, 6) for seconds in alone.heard.durations}) > 1900


def test_a_first_start_is_start_and_compilation_and_a_later_one_recovery() -> None:
    frail = replace(SOUND, slices=1, start_seconds=5.0, compile_seconds=3.0, chip_seconds_between_failures=2560.0)
    alone = Alone(frail)
    alone.run(500.0)
    accounts = alone.unit.accounts.by_use
    assert (accounts[Use.START], accounts[Use.COMPILE]) == (5.0, 3.0)
    assert accounts[Use.RECOVERY] + accounts[Use.MISSING] >= 12.0 * alone.heard.said.count("left")


def test_a_failure_costs_the_step_and_a_start_and_the_slice_is_missing_until_it_returns() -> None:
    # Two failures a step in the mean, and slices that take longer to come back than this runs.
    frail = replace(SOUND, chip_seconds_between_failures=1024.0, returns=ReturnDelay(1.0, 1.0, 1e9))
    alone = Alone(frail, seed=1)
    alone.run(2.0)
    lost = 4 - alone.unit.present
    assert 1 <= lost <= 3
    assert alone.heard.said == ["joined", "left"]
    assert alone.heard.steps == []
    assert alone.unit.accounts.by_use[Use.LOST_WORK] == 4 * 2.0
    assert alone.unit.accounts.by_use[Use.RECOVERY] == alone.unit.present * 12.0
    assert alone.unit.accounts.by_use[Use.MISSING] == lost * 12.0


def test_a_unit_that_is_not_elastic_has_all_slices_again_after_its_restart() -> None:
    alone = Alone(replace(SOUND, chip_seconds_between_failures=10_240.0, elastic=False))
    alone.run(5_000.0)
    assert "left" in alone.heard.said
    assert "paused" not in alone.heard.said, "it is never made larger"
    assert alone.unit.accounts.by_use[Use.RECONFIGURATION] == 0
    assert alone.heard.said.count("joined") >= alone.heard.said.count("left")


def test_a_unit_that_rests_takes_no_step_and_goes_on_the_moment_it_may() -> None:
    alone = Alone(SOUND)
    alone.run(2.0)
    alone.unit.rest(True)
    alone.run(21.0)
    assert alone.heard.steps[-1] == 2, "the step under way was done"
    assert len(alone.heard.steps) > 2, "it repeats its report, so that the syncer knows that it lives"
    alone.timeline.move_to(21.0)
    alone.unit.rest(False)
    alone.run(25.0)
    assert alone.heard.steps[-1] == 4, "two steps of 2 s from second 21 on"
    assert alone.unit.accounts.by_use[Use.WAITING] == 4 * (21.0 - 4.0)


def test_a_unit_that_rests_answers_and_adopts() -> None:
    alone = Alone(SOUND)
    alone.run(2.0)
    alone.unit.rest(True)
    alone.run(10.0)
    alone.unit.pulled(Pull(1, 0, ("u",)))
    alone.unit.merged(0, version=1)
    alone.unit.pulled(Pull(2, 0, ("u",)))
    assert alone.heard.answers == [(2, 80), (0, 0)]
    assert alone.heard.bases == [0, 1]


@settings(max_examples=examples(25))
@given(
    slices=st.integers(1, 12),
    between=st.floats(2e3, 1e7),
    back=st.floats(1.0, 2000.0),
    elastic=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_slice_second_has_one_use(slices: int, between: float, back: float, elastic: bool, seed: int) -> None:
    hardware = replace(SOUND, slices=slices, chip_seconds_between_failures=between, returns=ReturnDelay(1.0, 1.0, back), elastic=elastic)
    alone = Alone(hardware, seed)
    alone.run(600.0)
    # All is booked when it begins, up to the end of what is under way: the next event.
    assert alone.unit.accounts.total == pytest.approx(slices * alone.timeline.next_at)
    assert 0 <= alone.unit.present <= slices
