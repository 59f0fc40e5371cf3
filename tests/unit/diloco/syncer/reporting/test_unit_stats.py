import math

import pytest
from diloco.contract import MOST_PAUSE
from diloco.syncer.reporting.unit_stats import RATE_WINDOW, Phase, Rate, UnitStats, UnitStatsTable


def test_throughput_is_that_of_the_last_seconds() -> None:
    rate = Rate()
    for second in range(40):
        # 100/s for 20 s, then 10/s
        rate.add(float(second), 100 * second if second < 20 else 2000 + 10 * (second - 20))
    assert rate.value(39.0) == pytest.approx(10.0)
    assert rate.value(39.0 + RATE_WINDOW + 1) == 0.0, "no report for a whole window"


def test_steps_longer_than_the_window_have_a_throughput() -> None:
    rate = Rate()
    for step in range(5):
        rate.add(40.0 * step, 4000 * step)
    assert rate.value(160.0) == rate.value(199.0) == pytest.approx(100.0)
    assert rate.value(160.0 + 2 * 40.0 + 1) == 0.0, "the next step is late"


def test_a_pause_is_no_slow_step() -> None:
    unit = UnitStatsTable().of("u")
    unit.joined(1, 0.0)
    for second in range(1, 10):
        unit.progressed(second, 1.0, 2.0, 100 * second, float(second))
    unit.progressed(10, 1e308, 2.0, 1000, 9.5)
    assert unit.step_seconds == 1.0, "no step takes that long: it is left out"
    unit.alive(9, "evaluates", 60.0, 10.0)
    unit.alive(9, "", 0.0, 50.0)
    unit.progressed(10, 1.0, 2.0, 1000, 51.0)
    assert unit.rate.value(51.0) == 0.0, "one step says nothing"
    unit.progressed(11, 1.0, 2.0, 1100, 52.0)
    assert unit.rate.value(52.0) == pytest.approx(100.0)


def test_a_counter_that_starts_anew_is_no_negative_throughput() -> None:
    rate = Rate()
    rate.add(0.0, 1000)
    rate.add(1.0, 10)
    rate.add(2.0, 30)
    assert rate.value(2.0) == pytest.approx(20.0)


def test_a_unit_contributes_from_its_first_reported_step() -> None:
    unit = UnitStatsTable().of("u")
    unit.joined(1, 0.0)
    assert unit.phase is Phase.JOINING
    assert unit.progressed(1, 0.1, math.nan, 8, 1.0)
    assert not unit.progressed(2, 0.1, 2.0, 16, 2.0)
    assert (unit.phase, unit.loss, unit.local_step) == (Phase.CONTRIBUTING, 2.0, 2)


def test_time_to_recover_runs_from_the_loss_to_the_first_contribution() -> None:
    unit = UnitStatsTable().of("u")
    unit.joined(1, 0.0)
    unit.contributed(1.0)
    assert unit.recover_seconds == 0.0, "it was never lost"
    unit.lost(10.0, "connection lost")
    unit.joined(2, 14.0)
    unit.lost(15.0, "connection lost")
    unit.joined(3, 20.0)
    unit.progressed(1, 0.1, math.nan, 8, 21.0)
    unit.contributed(23.0)
    assert unit.recover_seconds == 13.0
    unit.contributed(30.0)
    assert unit.recover_seconds == 13.0


def test_an_attempt_that_displaces_a_connected_one_is_a_loss() -> None:
    unit = UnitStatsTable().of("u")
    unit.joined(1, 0.0)
    unit.joined(2, 5.0)
    unit.contributed(6.5)
    assert unit.recover_seconds == 1.5


def test_a_reconnect_keeps_the_attempts_numbers_and_a_new_attempt_does_not() -> None:
    unit = UnitStatsTable().of("u")
    unit.joined(1, 0.0)
    unit.progressed(7, 0.1, 3.0, 8, 1.0)
    unit.joined(1, 2.0)
    assert (unit.local_step, unit.loss) == (7, 3.0)
    unit.joined(2, 3.0)
    assert (unit.local_step, unit.loss) == (0, None)


def test_a_loss_that_comes_each_tenth_step_counts_as_one_that_comes_each_step() -> None:
    each, tenth = UnitStats("each"), UnitStats("tenth")
    for step in range(1, 101):
        loss = 2.0 if step == 1 else 1.0
        each.progressed(step, 0.1, loss, 8 * step, float(step))
        tenth.progressed(step, 0.1, loss if step % 10 == 1 else math.nan, 8 * step, float(step))
    assert each.loss is not None
    assert tenth.loss is not None
    # Of the first step's loss 0.95^(steps since) are left, 99 and 90 of them.
    assert each.loss - 1.0 == pytest.approx(0.95**99)
    assert tenth.loss - 1.0 == pytest.approx(0.95**90)


def test_the_jobs_loss_is_that_of_the_units_which_contribute() -> None:
    table = UnitStatsTable()
    assert table.loss() is None
    for name, loss in (("a", 1.0), ("b", 3.0), ("gone", 100.0)):
        table.of(name).joined(1, 0.0)
        table.of(name).progressed(1, 0.1, loss, 8, 0.0)
    table.of("gone").lost(1.0, "")
    assert table.loss() == 2.0


def test_what_must_outlive_the_process_does() -> None:
    table = UnitStatsTable()
    table.of("a").joined(3, 0.0)
    table.of("a").refuse("WrongBase", "")
    restored = UnitStatsTable(table.to_json()).of("a")
    assert (restored.attempt, restored.refused, restored.phase) == (3, {"WrongBase": 1}, Phase.DISCONNECTED)


# --- alive and paused ---------------------------------------------------------------------------------------------------


def test_a_process_that_is_merely_alive_has_done_nothing() -> None:
    unit = UnitStatsTable().of("u")
    unit.joined(1, 0.0)
    assert unit.seconds_since_alive(4.0) == 4.0, "since it joined"
    assert not unit.alive(3, "", 0.0, 10.0)
    assert (unit.heard_at, unit.local_step, unit.seconds_since_alive(14.0)) == (0.0, 3, 4.0)
    unit.progressed(4, 0.1, math.nan, 8, 13.0)
    assert unit.seconds_since_alive(14.0) == 1.0


def test_the_stall_clock_begins_anew_at_the_end_of_a_pause() -> None:
    unit = UnitStatsTable().of("u")
    unit.joined(1, 0.0)
    assert unit.alive(0, "evaluation", 60.0, 10.0)
    assert not unit.alive(0, "evaluation", 50.0, 20.0)
    assert (unit.pause, unit.paused_until, unit.heard_at) == ("evaluation", 70.0, 0.0)
    assert unit.alive(0, "", 0.0, 40.0)
    assert (unit.pause, unit.paused_until, unit.heard_at) == ("", 40.0, 40.0)


@pytest.mark.parametrize(("left", "most"), [(math.inf, 0.0), (math.nan, 0.0), (-5.0, 0.0), (1e12, MOST_PAUSE)])
def test_what_a_stranger_says_of_its_pause_is_bounded(left: float, most: float) -> None:
    unit = UnitStatsTable().of("u")
    unit.joined(1, 0.0)
    unit.alive(0, "for ever", left, 10.0)
    assert unit.paused_until == 10.0 + most


def test_a_new_attempt_does_not_inherit_a_pause_nor_parameters() -> None:
    unit = UnitStatsTable().of("u")
    unit.joined(1, 0.0)
    unit.holds_parameters = True
    unit.alive(0, "evaluation", 60.0, 10.0)
    unit.joined(2, 20.0)
    assert (unit.pause, unit.paused_until, unit.alive_at, unit.holds_parameters) == ("", None, None, False)
