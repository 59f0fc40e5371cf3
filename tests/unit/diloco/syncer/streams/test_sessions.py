from diloco.protocol.diloco_pb2 import Refused
from diloco.syncer.streams.sessions import Accepted, JoinRequest, Rejected, SessionRegistry
from hypothesis import given
from hypothesis import strategies as st

JOB = "job-uid"


def request(unit: str = "u", attempt: int = 1, session_id: bytes = b"a", job: str = JOB) -> JoinRequest:
    return JoinRequest(job, unit, attempt, session_id)


def registry(fences: dict[str, int] | None = None) -> SessionRegistry:
    return SessionRegistry(JOB, fences or {}, reconnect_window=5.0)


def accepted(outcome: Accepted | Rejected) -> Accepted:
    assert isinstance(outcome, Accepted), outcome
    return outcome


def rejected(outcome: Accepted | Rejected) -> Refused.Code:
    assert isinstance(outcome, Rejected), outcome
    return outcome.code


def test_a_newer_attempt_fences_the_older_one_for_good() -> None:
    sessions = registry()
    first = accepted(sessions.join(request(attempt=1), stream=1))
    second = accepted(sessions.join(request(attempt=2, session_id=b"b"), stream=2))
    assert (second.displaced, second.released, second.fenced, second.known) == (1, first.session.holder, True, False)
    assert rejected(sessions.join(request(attempt=1), stream=3)) == Refused.FENCED
    sessions.leave("u", 2)
    assert rejected(sessions.join(request(attempt=1), stream=4)) == Refused.FENCED
    assert sessions.fences == {"u": 2}


def test_fences_of_a_former_process_hold() -> None:
    assert rejected(registry({"u": 3}).join(request(attempt=2), stream=1)) == Refused.FENCED
    assert not accepted(registry({"u": 3}).join(request(attempt=3), stream=1)).fenced


def test_a_second_process_with_one_identity_is_refused_while_the_first_is_connected() -> None:
    sessions = registry()
    sessions.join(request(session_id=b"a"), stream=1)
    assert rejected(sessions.join(request(session_id=b"b"), stream=2)) == Refused.DUPLICATE_IDENTITY
    session = sessions.session("u")
    assert session is not None
    assert session.stream == 1


def test_a_session_that_comes_back_in_time_keeps_its_work() -> None:
    sessions = registry()
    before = accepted(sessions.join(request(), stream=1)).session
    assert sessions.stream_lost("u", 1, now=10.0)
    assert sessions.expire(14.9) == []
    again = accepted(sessions.join(request(), stream=2))
    assert (again.known, again.session.holder, again.released) == (True, before.holder, None)
    assert sessions.expire(100.0) == []


def test_a_session_that_stays_away_loses_its_work() -> None:
    sessions = registry()
    before = accepted(sessions.join(request(), stream=1)).session
    sessions.stream_lost("u", 1, now=10.0)
    assert sessions.wake_at() == 15.0
    assert [session.holder for session in sessions.expire(15.0)] == [before.holder]
    again = accepted(sessions.join(request(), stream=2))
    assert not again.known
    assert again.session.holder != before.holder


def test_a_session_may_reconnect_before_the_break_was_noticed() -> None:
    sessions = registry()
    sessions.join(request(), stream=1)
    again = accepted(sessions.join(request(), stream=2))
    assert (again.known, again.displaced, again.released) == (True, 1, None)
    assert not sessions.stream_lost("u", 1, now=1.0), "the old stream acts for no unit any more"
    assert sessions.leave("u", 1) is None


def test_another_process_may_take_over_from_one_that_is_gone() -> None:
    sessions = registry()
    before = accepted(sessions.join(request(session_id=b"a"), stream=1)).session
    sessions.stream_lost("u", 1, now=0.0)
    taken = accepted(sessions.join(request(session_id=b"b"), stream=2))
    assert (taken.known, taken.released, taken.displaced) == (False, before.holder, None)
    assert rejected(sessions.join(request(session_id=b"a"), stream=3)) == Refused.DUPLICATE_IDENTITY


def test_learners_of_another_job_and_nameless_ones_are_refused() -> None:
    assert rejected(registry().join(request(job="other"), stream=1)) == Refused.WRONG_JOB
    assert rejected(registry().join(request(unit=""), stream=1)) == Refused.PROTOCOL
    assert rejected(registry().join(request(attempt=0), stream=1)) == Refused.PROTOCOL
    assert rejected(registry().join(request(session_id=b""), stream=1)) == Refused.PROTOCOL


def test_a_session_that_starts_anew_gets_another_holder() -> None:
    sessions = registry()
    before = accepted(sessions.join(request(), stream=1)).session
    restarted = sessions.restart("u")
    assert restarted is not None
    assert (restarted[0], restarted[1].stream) == (before.holder, 1)
    assert restarted[1].holder != before.holder


EVENTS = st.lists(
    st.tuples(st.sampled_from(["join", "break", "leave", "expire"]), st.integers(1, 3), st.sampled_from([b"a", b"b"])), max_size=30
)


@given(EVENTS)
def test_after_any_events_one_stream_acts_for_a_unit_and_fences_never_fall(events: list[tuple[str, int, bytes]]) -> None:
    sessions, acting, fence, now = registry(), None, 0, 0.0
    for stream, (what, attempt, session_id) in enumerate(events):
        now += 2.0
        if what == "join":
            outcome = sessions.join(request(attempt=attempt, session_id=session_id), stream)
            if isinstance(outcome, Accepted):
                assert attempt >= fence
                assert outcome.displaced == acting
                acting = stream
        elif what == "expire":
            sessions.expire(now)
        elif acting is not None:
            if what == "break":
                assert sessions.stream_lost("u", acting, now)
            else:
                assert sessions.leave("u", acting)
            acting = None
        assert sessions.fences.get("u", 0) >= fence
        fence = sessions.fences.get("u", 0)
        session = sessions.session("u")
        assert (session.stream if session else None) == acting


def test_a_rank_belongs_to_its_leaders_session() -> None:
    sessions = registry()
    assert sessions.of_rank(request()) is None, "its leader has not joined yet"
    joined = accepted(sessions.join(request(), stream=1)).session
    assert sessions.of_rank(request()) == joined
    assert sessions.of_rank(request(attempt=2)) is None, "the leader of the newer attempt has not joined yet"
    of_another = sessions.of_rank(request(session_id=b"b"))
    assert isinstance(of_another, Rejected)
    assert of_another.code == Refused.DUPLICATE_IDENTITY
    sessions.stream_lost("u", 1, now=0.0)
    assert sessions.of_rank(request()) is None, "its leader is away"


def test_a_rank_of_a_fenced_attempt_or_another_job_is_refused() -> None:
    sessions = registry({"u": 2})
    for wrong, code in ((request(attempt=1), Refused.FENCED), (request(attempt=2, job="other"), Refused.WRONG_JOB)):
        outcome = sessions.of_rank(wrong)
        assert isinstance(outcome, Rejected)
        assert outcome.code == code


def test_a_session_remembers_its_ranks_until_it_begins_anew() -> None:
    sessions = registry()
    accepted(sessions.join(request(), stream=1)).session.ranks[1] = b"process"
    sessions.stream_lost("u", 1, now=0.0)
    assert accepted(sessions.join(request(), stream=2)).session.ranks == {1: b"process"}
    restarted = sessions.restart("u")
    assert restarted is not None
    assert restarted[1].ranks == {}
    sessions.end("u")
    assert accepted(sessions.join(request(), stream=3)).session.ranks == {}
