from diloco.protocol.diloco_pb2 import Refused
from diloco.syncer.roster import Claim, Denied, Roster, Seated
from hypothesis import given
from hypothesis import strategies as st

JOB = "job-uid"


def claim(unit: str = "u", attempt: int = 1, session: bytes = b"a", job: str = JOB) -> Claim:
    return Claim(job, unit, attempt, session)


def roster(fences: dict[str, int] | None = None) -> Roster:
    return Roster(JOB, fences or {}, reconnect_window=5.0)


def seated(outcome: Seated | Denied) -> Seated:
    assert isinstance(outcome, Seated), outcome
    return outcome


def denied(outcome: Seated | Denied) -> Refused.Code:
    assert isinstance(outcome, Denied), outcome
    return outcome.code


def test_a_newer_attempt_fences_the_older_one_for_good() -> None:
    table = roster()
    first = seated(table.join(claim(attempt=1), stream=1))
    second = seated(table.join(claim(attempt=2, session=b"b"), stream=2))
    assert (second.displaced, second.released, second.fenced, second.known) == (1, first.seat.holder, True, False)
    assert denied(table.join(claim(attempt=1), stream=3)) == Refused.FENCED
    table.leave("u", 2)
    assert denied(table.join(claim(attempt=1), stream=4)) == Refused.FENCED
    assert table.fences == {"u": 2}


def test_fences_of_a_former_process_hold() -> None:
    assert denied(roster({"u": 3}).join(claim(attempt=2), stream=1)) == Refused.FENCED
    assert not seated(roster({"u": 3}).join(claim(attempt=3), stream=1)).fenced


def test_a_second_process_with_one_identity_is_refused_while_the_first_is_connected() -> None:
    table = roster()
    table.join(claim(session=b"a"), stream=1)
    assert denied(table.join(claim(session=b"b"), stream=2)) == Refused.DUPLICATE_IDENTITY
    seat = table.seat("u")
    assert seat is not None
    assert seat.stream == 1


def test_a_session_that_comes_back_in_time_keeps_its_work() -> None:
    table = roster()
    before = seated(table.join(claim(), stream=1)).seat
    assert table.break_off("u", 1, now=10.0)
    assert table.expire(14.9) == []
    again = seated(table.join(claim(), stream=2))
    assert (again.known, again.seat.holder, again.released) == (True, before.holder, None)
    assert table.expire(100.0) == []


def test_a_session_that_stays_away_loses_its_work() -> None:
    table = roster()
    before = seated(table.join(claim(), stream=1)).seat
    table.break_off("u", 1, now=10.0)
    assert table.wake_at() == 15.0
    assert [seat.holder for seat in table.expire(15.0)] == [before.holder]
    again = seated(table.join(claim(), stream=2))
    assert not again.known
    assert again.seat.holder != before.holder


def test_a_session_may_reconnect_before_the_break_was_noticed() -> None:
    table = roster()
    table.join(claim(), stream=1)
    again = seated(table.join(claim(), stream=2))
    assert (again.known, again.displaced, again.released) == (True, 1, None)
    assert not table.break_off("u", 1, now=1.0), "the old stream speaks for nobody any more"
    assert table.leave("u", 1) is None


def test_another_process_may_take_over_from_one_that_is_gone() -> None:
    table = roster()
    before = seated(table.join(claim(session=b"a"), stream=1)).seat
    table.break_off("u", 1, now=0.0)
    taken = seated(table.join(claim(session=b"b"), stream=2))
    assert (taken.known, taken.released, taken.displaced) == (False, before.holder, None)
    assert denied(table.join(claim(session=b"a"), stream=3)) == Refused.DUPLICATE_IDENTITY


def test_learners_of_another_job_and_nameless_ones_are_refused() -> None:
    assert denied(roster().join(claim(job="other"), stream=1)) == Refused.WRONG_JOB
    assert denied(roster().join(claim(unit=""), stream=1)) == Refused.PROTOCOL
    assert denied(roster().join(claim(attempt=0), stream=1)) == Refused.PROTOCOL
    assert denied(roster().join(claim(session=b""), stream=1)) == Refused.PROTOCOL


def test_a_session_that_starts_anew_gets_another_holder() -> None:
    table = roster()
    before = seated(table.join(claim(), stream=1)).seat
    renewed = table.renew("u")
    assert renewed is not None
    assert (renewed[0], renewed[1].stream) == (before.holder, 1)
    assert renewed[1].holder != before.holder


EVENTS = st.lists(
    st.tuples(st.sampled_from(["join", "break", "leave", "expire"]), st.integers(1, 3), st.sampled_from([b"a", b"b"])), max_size=30
)


@given(EVENTS)
def test_whatever_happens_one_stream_speaks_for_a_unit_and_fences_never_fall(events: list[tuple[str, int, bytes]]) -> None:
    table, speaking, fence, now = roster(), None, 0, 0.0
    for stream, (what, attempt, session) in enumerate(events):
        now += 2.0
        if what == "join":
            outcome = table.join(claim(attempt=attempt, session=session), stream)
            if isinstance(outcome, Seated):
                assert attempt >= fence
                assert outcome.displaced == speaking
                speaking = stream
        elif what == "expire":
            table.expire(now)
        elif speaking is not None:
            if what == "break":
                assert table.break_off("u", speaking, now)
            else:
                assert table.leave("u", speaking)
            speaking = None
        assert table.fences.get("u", 0) >= fence
        fence = table.fences.get("u", 0)
        seat = table.seat("u")
        assert (seat.stream if seat else None) == speaking
