"""What the core knows of the units."""

import math

import pytest
from diloco.algorithm.events import Metadata
from diloco.algorithm.members import LONGEST_STEP, SHORTEST_STEP, Member, Members, usable_step_seconds
from hypothesis import given
from hypothesis import strategies as st


def a_member(last_report_at: float = 100.0, seconds: float = 1.0) -> Member:
    """It has reported one step of so many seconds."""
    member = Member("u", 0, [0])
    member.report(Metadata(1, (1,), (100,), seconds), last_report_at)
    return member


def test_a_unit_is_silent_after_three_of_its_longest_steps() -> None:
    assert a_member(last_report_at=100.0, seconds=10.0).silent_at == 100.0 + 3 * 10.0


@pytest.mark.parametrize(
    ("seconds", "usable"),
    [(SHORTEST_STEP, True), (LONGEST_STEP, True), (1.0, True), (SHORTEST_STEP / 2, False), (LONGEST_STEP * 2, False), (float("nan"), False),
     (float("inf"), False), (0.0, False), (-1.0, False)],
)  # fmt: skip
def test_the_time_of_a_step_has_bounds(seconds: float, usable: bool) -> None:
    assert usable_step_seconds(seconds) == usable


@pytest.mark.parametrize(("others", "counted"), [(1, 64 + 16), (3, 64 + 16), (0, 100 * 64)])
@pytest.mark.parametrize("seconds", [math.nan, 0.0])
def test_steps_without_a_duration_count_as_far_as_the_other_units_make_them_credible(seconds: float, others: int, counted: int) -> None:
    """In one second at most 16 steps, where the others take one, and 64 more. If nothing is known of others, 64 for each report."""
    members = Members()
    for index in range(others):
        members.join(Member(f"u{index}", 0, [0]))
        members.report(members[f"u{index}"], Metadata(1, (1,), (100,), 1.0), 100.0)
    members.join(odd := Member("odd", 0, [0]))
    assert members.report(odd, Metadata(1, (1,), (100,), seconds), 100.0) == 1
    members.stepped()
    reports = [Metadata(1 + 1000 * n, (1,), (100,), seconds) for n in range(1, 101)]
    assert sum(members.report(odd, report, 100.0 + n / 100) for n, report in enumerate(reports, 1)) == counted
    assert members.report(odd, Metadata(2**63, (1,), (100,), seconds), 101.0) <= 64


def test_a_declared_pause_is_no_silence_where_the_quorum_depends_on_an_answer() -> None:
    member = a_member(last_report_at=100.0, seconds=1.0)
    member.answer.add(40.0)  # so an answer is waited for 80 s
    assert member.answer_deadline(100.0) == 103.0
    member.pauses(until=150.0, now=101.0)
    assert member.silent_at == 153.0
    assert member.answer_deadline(100.0) == 153.0
    member.pauses(until=120.0, now=120.0)  # it goes on
    assert member.silent_at == 123.0


def test_the_last_answers_may_take_as_long_as_a_pause_of_a_shared_machine_however_fast_those_before_were() -> None:
    member = a_member(last_report_at=100.0, seconds=0.01)
    assert member.last_answer_deadline(100.0) == 130.0, "as for any first answer"
    member.answer.add(0.02)
    assert member.answer_deadline(100.0) == 100.04
    assert member.last_answer_deadline(100.0) == 101.0
    member.missed = True
    assert (member.answer_deadline(100.0), member.last_answer_deadline(100.0)) == (100.0, 101.0)


def test_a_lost_unit_is_not_waited_for_at_the_end() -> None:
    assert a_member(last_report_at=100.0).last_answer_deadline(155.0) == 160.0


def test_a_unit_in_a_declared_pause_is_expected_after_it() -> None:
    member = a_member(last_report_at=100.0, seconds=10.0)
    assert member.expected_at == 110.0
    member.pauses(until=150.0, now=101.0)
    assert member.expected_at == 150.0


def test_a_unit_is_lost_a_minute_after_it_was_heard_from_or_four_of_its_longest_steps() -> None:
    assert a_member(last_report_at=100.0, seconds=1.0).lost_at == 160.0
    assert a_member(last_report_at=100.0, seconds=50.0).lost_at == 300.0
    member = a_member(last_report_at=100.0, seconds=1.0)
    member.alive_at = 130.0
    assert member.lost_at == 190.0


def test_a_process_that_is_alive_keeps_its_unit_for_an_hour_after_its_last_step_or_pause() -> None:
    member = a_member(last_report_at=100.0, seconds=1.0)
    member.alive_at = 3690.0
    assert member.lost_at == 3700.0
    member.pauses(until=3650.0, now=200.0)
    assert member.lost_at == 3690.0 + 60.0
    member.alive_at = 10**6
    assert member.lost_at == 3650.0 + 3600.0


@pytest.mark.slow
@given(st.data())
def test_whose_report_is_expected_is_known_whoever_reports_pauses_leaves_or_comes(data: st.DataObject) -> None:
    """The members keep a heap; here all are looked at anew after each event."""
    members, now, begin = Members(), 0.0, 0.0
    for unit in "abc":
        members.join(Member(unit, 0, [0, 0]))
    for step in range(data.draw(st.integers(1, 60))):
        now += data.draw(st.sampled_from([0.0, 0.5, 1.0, 7.0, 70.0]))
        unit = data.draw(st.sampled_from("abc"))
        match data.draw(st.sampled_from(["report", "report", "report", "pause", "leave", "merge", "step"])):
            case "report" if (member := members.get(unit)) is not None:
                steps = data.draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
                members.report(member, Metadata(step + 1, steps, steps, data.draw(st.sampled_from([0.5, 2.0, 30.0]))), now)
            case "pause":
                members.pauses(unit, now + data.draw(st.sampled_from([-1.0, 10.0])), now)
            case "leave":
                members.leave(unit)
                members.join(Member(unit, 0, [0, 0]))
            case "merge":
                members.merged(data.draw(st.integers(0, 1)))
            case "step":
                members.stepped()
                begin = now
        members.look(now)
        p, end = data.draw(st.integers(0, 1)), now + data.draw(st.sampled_from([0.0, 1.0, 20.0]))
        expected = any(m.counts and not m.steps[p] and m.expected_at <= end and m.overdue_at >= begin for m in members)
        assert members.expects(p, begin, end) == expected
