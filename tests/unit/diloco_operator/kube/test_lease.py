"""The rules of the election, without a clock and without an API server."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from diloco_operator.kube.lease import Election, ElectionAction, Lease, read_lease, write_lease
from diloco_operator.timeouts import LeaseTimeouts

TERMS = LeaseTimeouts()
WALL = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
STAMP = "2026-11-20T21:00:00.000000Z"


def held_by(holder: str, *, renewed: str = "r1", transitions: int = 3) -> Lease:
    return Lease(holder, 15.0, acquired="a", renewed=renewed, transitions=transitions)


def an_election(identity: str = "me") -> Election:
    return Election(identity, TERMS)


def test_without_a_lease_one_is_made() -> None:
    election = an_election()
    election.saw(None, 0)
    assert election.next_action(0) is ElectionAction.CREATE
    assert election.claim(WALL) == Lease("me", 15.0, acquired=STAMP, renewed=STAMP, transitions=0)


def test_a_released_lease_is_taken_at_once() -> None:
    election = an_election()
    election.saw(held_by(""), 0)
    assert election.next_action(0) is ElectionAction.UPDATE
    assert election.claim(WALL).transitions == 4


def test_another_holders_lease_expires_by_the_time_it_was_seen_unchanged() -> None:
    election = an_election()
    election.saw(held_by("other"), 100)
    assert election.next_action(114.9) is ElectionAction.WAIT
    assert election.next_action(115) is ElectionAction.UPDATE  # 15 s after it was seen


def test_every_seen_renewal_starts_the_time_anew_whatever_the_clock_of_the_holder_says() -> None:
    election = an_election()
    election.saw(held_by("other", renewed="2090-01-01T00:00:00.000000Z"), 100)
    election.saw(held_by("other", renewed="1990-01-01T00:00:00.000000Z"), 102)
    election.saw(held_by("other", renewed="1990-01-01T00:00:00.000000Z"), 104)
    assert election.next_action(116.9) is ElectionAction.WAIT
    assert election.next_action(117) is ElectionAction.UPDATE  # 102 + 15


def test_the_lease_lasts_as_long_as_its_holder_says() -> None:
    election = an_election()
    election.saw(Lease("other", 60.0, "a", "r", 0), 0)
    assert election.next_action(59) is ElectionAction.WAIT


def test_a_takeover_counts_as_a_transition_and_a_renewal_does_not() -> None:
    election = an_election()
    election.saw(held_by("other"), 0)
    taken = election.claim(WALL)
    assert (taken.holder, taken.acquired, taken.transitions) == ("me", STAMP, 4)
    election.won(taken, sent=20, now=20.1)
    renewed = election.claim(datetime(2026, 11, 20, 21, 0, 2, tzinfo=UTC))
    assert (renewed.acquired, renewed.renewed, renewed.transitions) == (STAMP, "2026-11-20T21:00:02.000000Z", 4)


def test_leading_lasts_from_before_the_renewal_was_sent() -> None:
    election = an_election()
    assert election.leads_until is None
    election.saw(None, 0)
    election.won(election.claim(WALL), sent=7, now=9)
    assert election.leads_until == 17  # 7 + the renew deadline of 10 s, not 9 + 10


def test_a_leader_that_sees_another_holder_leads_no_more() -> None:
    election = an_election()
    election.saw(None, 0)
    election.won(election.claim(WALL), sent=0, now=0)
    election.saw(held_by("other"), 1)
    assert election.leads_until is None


def test_a_standby_checks_again_when_the_lease_would_expire() -> None:
    election = an_election()
    election.saw(held_by("other"), 100)
    assert election.recheck_in(100) == 2  # the retry period
    assert election.recheck_in(114.5) == 0.5  # it expires at 115


def test_a_released_lease_has_no_holder_and_keeps_the_count() -> None:
    election = an_election()
    election.saw(held_by("me"), 0)
    assert election.released(WALL) == Lease("", 1.0, STAMP, STAMP, 3)


def test_a_lease_is_read_as_it_is_written() -> None:
    assert read_lease({"spec": write_lease(held_by("me"))}) == held_by("me")
    assert read_lease({}) == Lease("", 0.0, "", "", 0)


@pytest.mark.parametrize(
    ("duration", "deadline", "retry", "message"),
    [
        (10, 10, 2, r"renew deadline \(10 s\) must be shorter than lease duration \(10 s\)"),
        (15, 2, 2, r"retry period \(2 s\) must be shorter than renew deadline \(2 s\)"),
        (15, 10, 0, r"zero \(0 s\) must be shorter than retry period \(0 s\)"),
        (15.5, 10, 2, "the lease duration must be whole seconds"),
    ],
)
def test_timeouts_that_would_let_two_replicas_lead_are_an_error(duration: float, deadline: float, retry: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LeaseTimeouts(duration, deadline, retry)


def test_a_replica_without_a_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="identity"):
        Election("", TERMS)
