import threading
import time

import pytest
from diloco.learner.inbox import Finished, Inbox, InboxEvent, Leased, PullWanted, Received, RestWanted, Welcomed
from diloco.learner.store import Ready

TAU = 2
VALUE = Ready((), ())


@pytest.fixture
def inbox() -> Inbox:
    return Inbox(TAU)


def received(fragment: int, t: int) -> Received:
    return Received(fragment, t, VALUE)


def pull(fragment: int, t: int) -> PullWanted:
    return PullWanted(1, fragment, t)


def welcomed(generation: int, t: int = 0, *, asked: int = 0, seed_wanted: bool = False) -> Welcomed:
    return Welcomed(generation, t, 100, seed_wanted, asked)


def left(inbox: Inbox, *events: InboxEvent) -> list[InboxEvent]:
    for event in events:
        inbox.put(event)
    return inbox.drain()


def test_events_come_out_in_order_and_once(inbox: Inbox) -> None:
    assert left(inbox, Leased(0, 4), received(0, 1), pull(0, 2), Finished(3))[:2] == [Leased(0, 4), received(0, 1)]
    assert inbox.drain() == []


def test_of_rests_the_newest_counts_and_none_from_before_a_welcome(inbox: Inbox) -> None:
    assert left(inbox, RestWanted(2), Leased(0, 4), RestWanted(0)) == [Leased(0, 4), RestWanted(0)]
    for generation in (1, 1, 2):  # the first, one that resumes, one that does not
        assert left(inbox, RestWanted(2), welcomed(generation)) == [welcomed(generation)]


def test_waiting_ends_with_the_next_event_and_not_before_the_time_without_one(inbox: Inbox) -> None:
    began = time.monotonic()
    inbox.wait(0.05)
    assert time.monotonic() - began >= 0.05
    threading.Timer(0.05, inbox.put, [Finished(3)]).start()
    began = time.monotonic()
    inbox.wait(60)
    assert time.monotonic() - began < 30
    # An event that is there already is not waited for.
    inbox.wait(60)
    assert time.monotonic() - began < 30


# --- a program that pauses ----------------------------------------------------------------------------------------------


def test_the_newest_value_of_a_fragment_replaces_older_ones(inbox: Inbox) -> None:
    assert left(inbox, received(0, 1), received(1, 2), received(0, 3)) == [received(1, 2), received(0, 3)]


def test_a_value_that_came_later_is_the_newer_one_although_the_syncer_has_gone_back(inbox: Inbox) -> None:
    assert left(inbox, received(0, 9), welcomed(1, 2), received(0, 2)) == [welcomed(1, 2), received(0, 2)]


def test_a_pull_stays_behind_the_value_that_its_answer_is_coded_against(inbox: Inbox) -> None:
    assert left(inbox, received(0, 1), received(0, 3), pull(0, 5)) == [received(0, 3), pull(0, 5)]


def test_a_pull_whose_exchange_is_over_is_dropped(inbox: Inbox) -> None:
    assert left(inbox, pull(0, 3), received(0, 3)) == [received(0, 3)], "its fragment was merged"
    assert left(inbox, pull(0, 3), received(1, 3 + TAU)) == [pull(0, 3), received(1, 3 + TAU)]
    assert left(inbox, pull(0, 3), received(1, 3 + TAU + 1)) == [received(1, 3 + TAU + 1)], "the clock is past its overlap"
    assert left(inbox, pull(0, 3), pull(0, 5)) == [pull(0, 5)]
    assert left(inbox, pull(0, 3), pull(1, 4), pull(2, 3 + TAU + 1)) == [pull(1, 4), pull(2, 3 + TAU + 1)]
    assert left(inbox, pull(0, 3), Finished(4)) == [Finished(4)]


def test_what_waits_for_a_paused_program_does_not_grow(inbox: Inbox) -> None:
    fragments = 4
    for t in range(1, 1000):
        inbox.put(received(t % fragments, t))
        inbox.put(pull((t + 1) % fragments, t + 1))
        inbox.put(welcomed(1 + t // 100, t))
    events = inbox.drain()
    assert sum(isinstance(event, Received) for event in events) == fragments
    assert len(events) <= fragments + 1 + TAU + 1


# --- sessions -----------------------------------------------------------------------------------------------------------


def test_a_new_session_drops_leases_and_pulls_of_the_one_before(inbox: Inbox) -> None:
    events = left(inbox, welcomed(1), Leased(0, 4), pull(0, 1), welcomed(2, asked=8), Leased(4, 6))
    assert events == [welcomed(2, asked=8), Leased(4, 6)]


def test_a_new_session_drops_leases_although_its_predecessor_was_seen(inbox: Inbox) -> None:
    left(inbox, welcomed(1))
    assert left(inbox, Leased(0, 4), welcomed(2)) == [welcomed(2)]


def test_a_session_that_resumes_keeps_its_leases_and_its_pulls_are_dropped(inbox: Inbox) -> None:
    left(inbox, welcomed(1))
    assert left(inbox, Leased(0, 4), pull(0, 1), welcomed(1, 2)) == [Leased(0, 4), welcomed(1, 2)]


def test_a_session_that_resumes_before_it_was_seen_is_one_event_before_its_leases(inbox: Inbox) -> None:
    """In another place the reader would forget the leases that came between: to it, the session is new."""
    events = left(inbox, welcomed(1, asked=8), Leased(0, 4), welcomed(1, 5, seed_wanted=True), Leased(4, 6))
    assert events == [welcomed(1, 5, seed_wanted=True), Leased(0, 4), Leased(4, 6)]


def test_the_end_is_said_once(inbox: Inbox) -> None:
    assert left(inbox, Finished(9), received(0, 9), Finished(9)) == [received(0, 9), Finished(9)]
