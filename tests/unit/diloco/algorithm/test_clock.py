"""The clocks that a coordinator can have, driven by reports."""

from diloco.algorithm.clock import Clock, PullClock, ReportClock
from diloco.algorithm.coordinator import Coordinator
from diloco.algorithm.events import Metadata, Order, Pull, Rest
from diloco.algorithm.guards import Guard
from diloco.contract import Grace, Training

H = 4


class Job:
    """Units that have reported `steps` steps each, with a coordinator of that clock. They never answer."""

    def __init__(self, *units: str, clock: Clock, quorum: int = 1, grace: float = 0.0) -> None:
        training = Training(steps=100, sync_interval=H, fragments=H, quorum=quorum, grace=Grace(max_steps=grace))
        guard = Guard([1] * H)
        guard.begin([1.0] * H)
        self.coordinator = Coordinator(training, guard, clock=clock)
        self.coordinator.begin()
        self.steps = dict.fromkeys(units, 0)
        for unit in units:
            self.coordinator.join(unit, 0.0)

    def reports(self, unit: str, now: float) -> list[Order]:
        """What follows from one more step of the unit, of 1 s."""
        self.steps[unit] += 1
        steps = self.steps[unit]
        self.coordinator.progress(unit, Metadata(steps, (steps,) * H, (10 * steps,) * H, 1.0), now)
        return self.advance(now)

    def advance(self, now: float) -> list[Order]:
        found: list[Order] = []
        while orders := self.coordinator.advance(now):
            found += orders
        return found


def pulled(orders: list[Order]) -> list[tuple[str, ...]]:
    return [order.units for order in orders if isinstance(order, Pull)]


def rests(orders: list[Order]) -> dict[str, bool]:
    return {order.unit: order.rests for order in orders if isinstance(order, Rest)}


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
    orders = job.reports("b", 1.4)
    assert pulled(orders) == [("a", "b")]
    assert rests(orders) == {"a": False}


def test_by_mean_steps_a_quorum_of_all_lets_the_faster_train_on() -> None:
    job = Job("a", "b", clock=PullClock(H), quorum=2)
    assert rests(job.reports("a", 1.0)) == {}
    assert rests(job.reports("b", 1.4)) == {}
