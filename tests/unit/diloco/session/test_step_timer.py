import pytest
from diloco.session.step_timer import StepTimer


class Clock:
    """A clock that the test sets, and that sleeping advances."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def a_timer(speed: float) -> tuple[StepTimer, Clock]:
    clock = Clock()
    return StepTimer(speed, clock, clock.sleep), clock


def test_a_node_of_a_quarter_speed_takes_four_times_as_long() -> None:
    step, clock = a_timer(0.25)
    for _ in range(3):
        clock.now += 0.5
        step.lap(lambda: False)
        # 0.5 s of computing at a quarter of the speed: 2 s, of which 1.5 s are slept
        assert step.step_seconds == pytest.approx(2.0)
    assert clock.now == pytest.approx(6.0)
    assert clock.slept == pytest.approx(4.5)


def test_a_real_node_is_never_slowed() -> None:
    step, clock = a_timer(1.0)
    clock.now += 0.5
    step.lap(lambda: False)
    assert (clock.slept, step.step_seconds) == (0.0, 0.5)


def test_waiting_for_work_is_not_part_of_a_step() -> None:
    step, clock = a_timer(0.5)
    clock.now += 3.0
    step.idle(2.0)
    step.lap(lambda: False)
    assert step.step_seconds == pytest.approx(2.0)


def test_draining_does_not_wait_for_the_end_of_a_stretch() -> None:
    step, clock = a_timer(0.01)
    clock.now += 1.0
    step.lap(lambda: clock.slept > 0.15)
    assert clock.slept < 1.0
