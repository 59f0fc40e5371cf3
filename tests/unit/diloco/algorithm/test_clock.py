"""The clocks that a coordinator can have, driven by reports: that of jobs, and the paper's."""

from diloco.algorithm.clock import Clock, PullClock
from diloco.algorithm.coordinator import Coordinator
from diloco.algorithm.driver import Driver, NoArrays
from diloco.algorithm.effects import Effect, Pull, Rest
from diloco.algorithm.events import Joined, Metadata, Reported, Seeded, Tick
from diloco.algorithm.guards import Guard
from diloco.contract import Grace, Training

from benchmarks.evidence.report_clock import ReportClock

H = 4


class Job:
    """Units that have reported `steps` steps each, with a coordinator of that clock. They never answer."""

    def __init__(self, *units: str, clock: Clock, quorum: int = 1, grace: float = 0.0) -> None:
        training = Training(steps=100, sync_interval=H, fragments=H, quorum=quorum, grace=Grace(max_steps=grace))
        self.coordinator = Coordinator(training, Guard([1] * H), clock=clock)
        self._driver = Driver(self.coordinator, NoArrays())
        self._driver.take(Seeded(0.0, (1.0,) * H))
        self.steps = dict.fromkeys(units, 0)
        for unit in units:
            self._driver.take(Joined(0.0, unit))

    def reports(self, unit: str, now: float) -> list[Effect]:
        """What follows from one more step of the unit, of 1 s."""
        self.steps[unit] += 1
        steps = self.steps[unit]
        self._driver.take(Reported(now, unit, Metadata(steps, (steps,) * H, (10 * steps,) * H, 1.0)))
        return self.advance(now)

    def advance(self, now: float) -> list[Effect]:
        found: list[Effect] = []
        while effects := self._driver.take(Tick(now)):
            found += effects
        return found


def pulled(effects: list[Effect]) -> list[tuple[str, ...]]:
    return [effect.units for effect in effects if isinstance(effect, Pull)]


def rests(effects: list[Effect]) -> dict[str, bool]:
    return {effect.unit: effect.rests for effect in effects if isinstance(effect, Rest)}


def test_by_reports_one_report_is_an_outer_step_of_its_own_with_a_quorum_of_one() -> None:
    job = Job("a", "b", clock=ReportClock())
    assert pulled(job.reports("a", 1.0)) == [("a",)]
    assert pulled(job.reports("b", 1.5)) == [("b",)]
    assert job.coordinator.t == 2


def test_by_mean_steps_an_outer_step_takes_the_reports_of_all_and_asks_all() -> None:
    job = Job("a", "b", clock=PullClock(H))
    assert pulled(job.reports("a", 1.0)) == [("a",)], "only one counts yet"
    assert pulled(job.reports("b", 1.5)) == []
    assert pulled(job.reports("a", 2.0)) == [("a", "b")]


def test_by_reports_those_that_report_by_the_end_of_the_grace_window_take_part() -> None:
    job = Job("a", "b", "c", clock=ReportClock(), grace=1.0)
    for unit in ("a", "b", "c"):
        job.reports(unit, 1.0)
    job.advance(3.0)  # the windows of these first reports are over
    before = job.coordinator.t
    assert pulled(job.reports("a", 4.0)) == []
    assert pulled(job.reports("b", 4.4)) == []
    ends = job.coordinator.wake_at(4.4)
    assert ends is not None
    assert 4.4 < ends <= 5.0, "a step of 1 s from the quorum at most"
    assert pulled(job.advance(ends)) == [("a", "b")]
    assert job.coordinator.t == before + 1


def test_by_reports_nobody_is_waited_for_once_all_have_reported() -> None:
    job = Job("a", "b", clock=ReportClock(), grace=1.0)
    job.reports("a", 1.0)
    job.reports("b", 1.0)
    job.advance(3.0)
    assert pulled(job.reports("a", 4.0)) == []
    assert pulled(job.reports("b", 4.1)) == [("a", "b")]


def test_by_reports_a_quorum_of_all_is_a_barrier() -> None:
    job = Job("a", "b", clock=ReportClock(), quorum=2)
    assert rests(job.reports("a", 1.0)) == {"a": True}
    effects = job.reports("b", 1.4)
    assert pulled(effects) == [("a", "b")]
    assert rests(effects) == {"a": False}


def test_by_mean_steps_a_quorum_of_all_lets_the_faster_train_on() -> None:
    job = Job("a", "b", clock=PullClock(H), quorum=2)
    assert rests(job.reports("a", 1.0)) == {}
    assert rests(job.reports("b", 1.4)) == {}
