"""What is leased to a session, what of it is committed at a merge, and what becomes of the rest when the session ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from diloco.algorithm.codec import Coding
from diloco.algorithm.events import Marks, Offer
from diloco.data.ledger import Ledger, UnitWork
from diloco.protocol.diloco_pb2 import Chunk
from diloco.syncer.job import work as work_module
from diloco.syncer.job.work import JobWork
from diloco.syncer.streams.sessions import UnitSession


def a_session(unit: str = "u", number: int = 1) -> UnitSession:
    return UnitSession(unit, 1, b"s", f"{unit}/1/{number}", 1)


def a_push(p: int, t: int, step: int, **changes: int) -> Chunk:
    """After `step` steps of 2 samples and 30 tokens each, 2 steps after the adoption of the fragment."""
    values = {"samples_done": 2 * step, "tokens_done": 30 * step, "steps_done": step, "steps": 2, "tokens": 60} | changes
    return Chunk(kind=Chunk.PUSH, fragment=p, t=t, **values)  # type: ignore[arg-type]


def accepted(session: UnitSession, push: Chunk) -> Offer:
    marks = Marks(session.holder, push.samples_done, push.tokens_done, push.steps_done)
    return Offer(push.fragment, push.t, Coding.FLOAT32, 0, push.steps, push.tokens, marks)


def at_work(samples: int = 40, fragments: int = 2) -> tuple[JobWork, UnitSession]:
    """One session that has leased the first `samples` numbers."""
    work, session = JobWork(Ledger(), fragments), a_session()
    work.begin(session)
    assert sum(end - start for _, start, end in work.lease(session, samples)) == samples
    return work, session


def test_an_accepted_push_commits_nothing_and_the_last_fragments_merge_commits_the_minimum() -> None:
    work, session = at_work()
    work.offered(accepted(session, a_push(0, 1, 4)))
    work.offered(accepted(session, a_push(1, 2, 6)))
    assert work.ledger.tokens == 0
    work.closed(0, 1, ["u/1/1", "u/1/2"])
    assert work.ledger.tokens == 0
    work.closed(1, 2, ["u/1/1", "u/1/2"])
    assert (work.ledger.committed(), work.ledger.unit("u")) == (((0, 8),), UnitWork(8, 120, 4))


def test_a_session_that_ends_keeps_what_its_open_contributions_may_commit_and_frees_the_rest() -> None:
    work, session = at_work(samples=40, fragments=1)
    work.offered(accepted(session, a_push(0, 1, 5)))
    assert work.end(session.holder) == 30
    heir = a_session("v")
    work.begin(heir)
    assert [(start, end) for _, start, end in work.lease(heir, 60)] == [(10, 40), (40, 70)]
    work.closed(0, 1, ["u/1/1", "u/1/2"])
    assert (work.ledger.committed(), work.ledger.summary().leased) == (((0, 10),), 60)
    assert list(work.ledger._sessions) == [heir.holder]


def test_what_a_dropped_exchange_would_have_committed_is_free_again() -> None:
    work, session = at_work(samples=40, fragments=1)
    work.offered(accepted(session, a_push(0, 1, 5)))
    work.end(session.holder)
    work.closed(0, 1, ["another/1/3"])
    summary = work.ledger.summary()
    assert (summary.free, summary.committed, summary.leased) == (40, 0, 0)
    assert not work._sessions


@pytest.mark.parametrize("over", [True, False], ids=["its contribution was waiting", "it was open, and does not go on"])
def test_leases_of_what_a_process_before_has_left_behind_are_made_again_by_the_process_after(over: bool) -> None:
    notes: list[tuple[str, Mapping[str, Any]]] = []

    def process() -> JobWork:
        """After the processes before it."""
        work = JobWork(Ledger(), 1)
        for kind, what in notes:
            work.redo(kind, what)
        work.note = lambda kind, **what: notes.append((kind, what))
        return work

    first, session = process(), a_session()
    first.begin(session)
    list(first.lease(session, 40))
    first.offered(accepted(session, a_push(0, 1, 5)))
    if over:
        first.end(session.holder)
    second, heir = process(), a_session("v", 2)
    second.settle(all_sessions=not over)
    second.begin(heir)
    assert [(start, end) for _, start, end in second.lease(heir, 40)] == [(0, 40)]
    third = process()
    assert (third.to_json(), third.ledger.to_json()) == (second.to_json(), second.ledger.to_json())


def test_the_next_session_of_a_unit_does_not_inherit_the_marks_of_the_one_before() -> None:
    work, session = at_work(samples=10)
    work.offered(accepted(session, a_push(0, 1, 5)))
    work.closed(0, 1, ["u/1/1", "u/1/2"])
    work.end(session.holder)
    again = a_session(number=2)
    work.begin(again)
    list(work.lease(again, 10))
    work.offered(accepted(again, a_push(1, 2, 5)))
    work.closed(1, 2, ["u/1/1", "u/1/2"])
    assert work.ledger.tokens == 0, "no session has merged both fragments"


def test_a_unit_that_feeds_itself_commits_tokens_after_its_end_too() -> None:
    work, session = JobWork(Ledger(), 1), a_session()
    work.begin(session)
    work.offered(accepted(session, a_push(0, 1, 5, samples_done=0)))
    assert work.end(session.holder) == 0
    work.closed(0, 1, ["u/1/1", "u/1/2"])
    assert work.ledger.unit("u") == UnitWork(0, 150, 5)
    assert not work._sessions


def test_leases_are_sent_again_until_they_are_committed() -> None:
    work, session = at_work(samples=10, fragments=1)
    list(work.lease(session, 6))
    assert [(start, end) for _, start, end in work.unreceived(session, 0)] == [(0, 10), (10, 16)]
    work.offered(accepted(session, a_push(0, 1, 5)))
    assert len(work.unreceived(session, 0)) == 2
    work.closed(0, 1, ["u/1/1", "u/1/2"])
    assert [(start, end) for _, start, end in work.unreceived(session, 0)] == [(10, 16)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"samples_done": 41}, "41 samples done, but only 40 were leased to it"),
        ({"tokens": 151}, "151 tokens in 2 steps since it adopted the fragment, but only 150 in 5 since it joined"),
        ({"steps": 6}, "60 tokens in 6 steps since it adopted the fragment, but only 150 in 5 since it joined"),
        ({"tokens_done": 2**64 - 1, "samples_done": 6}, "are not totals of one session"),
        ({"tokens_done": 100}, "are not totals of one session"),
    ],
)
def test_counters_that_cannot_be_true_are_a_contradiction(changes: dict[str, int], says: str) -> None:
    work, session = at_work()
    work.offered(accepted(session, a_push(0, 1, 4)))
    why = work.contradiction(session, a_push(1, 2, 5, **changes))
    assert why.startswith("fragment 1 of outer step 2 from unit u cannot be true: ")
    assert says in why
    assert work.contradiction(session, a_push(1, 2, 5)) == ""


def test_a_session_cannot_collect_leases_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "MOST_LEASES", 3)
    work, session = JobWork(Ledger(), 1), a_session()
    work.begin(session)
    for _ in range(3):
        assert work.too_many(session) == ""
        list(work.lease(session, 2))
    assert work.too_many(session) == "unit u asks for more work and holds 3 leases that are not committed"
    work.offered(accepted(session, a_push(0, 1, 1)))
    work.closed(0, 1, ["u/1/1", "u/1/2"])
    assert work.too_many(session) == ""
