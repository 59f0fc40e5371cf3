"""A learner whose uplink is too slow for its pushes. The job has a pull at every outer step, so a link on which a push takes x outer steps
carries at most 1/x of the pushes."""

import pytest
from builders.core import a_job
from builders.exploration import full
from builders.slow_links import SlowLinks

pytestmark = pytest.mark.slow

TAU = 2
STEPS = 160
WARM_UP = 40


def run(push_seconds: float, phase: float = 0.5, *, holds: bool = False, acknowledges: bool = False) -> SlowLinks:
    job = a_job(sync_interval=24, fragments=24, overlap_steps=TAU)
    phases = {"fast-0": 0.0, "fast-1": 0.33, "fast-2": 0.66, "slow": phase}
    speeds = {"fast-0": 0.05, "fast-1": 0.05, "fast-2": 0.05, "slow": push_seconds}
    return SlowLinks(job, speeds, phases, holds=holds, acknowledges=acknowledges).run(steps=STEPS)


@pytest.mark.parametrize("phase", [full(0.0), 0.4, full(0.9)])
@pytest.mark.parametrize(("push_seconds", "share"), [full(0.9, 1.0), (1.05, 0.9), full(1.2, 0.75), (2.0, 0.45)])
def test_a_link_a_little_too_slow_carries_nearly_what_it_can(push_seconds: float, share: float, phase: float) -> None:
    links = run(push_seconds, phase)
    assert links.share("slow", after=WARM_UP) >= share
    assert links.learners["slow"].most_queued <= TAU + 1
    assert not links.refused, "a push that comes too late is not even sent"


def test_a_transfer_longer_than_the_overlap_is_not_begun_too_late_again_and_again() -> None:
    """1/2.1 of the pushes fit through the link. If each began as soon as the one before has ended, none would arrive in time."""
    assert run(2.1).share("slow", after=WARM_UP) >= 0.3


def test_a_link_on_which_no_push_arrives_in_time_keeps_no_more_than_the_overlap() -> None:
    links = run(30.0)
    assert links.share("slow", after=WARM_UP) == 0.0
    assert links.learners["slow"].most_queued <= TAU + 1
    assert links.learners["slow"].outbox.pushes <= TAU + 1


@pytest.mark.parametrize(("push_seconds", "share"), [full(1.05, 0.9), (1.2, 0.75), full(2.0, 0.45)])
def test_a_transport_that_holds_what_it_is_given_changes_nothing_where_the_syncer_acknowledges(push_seconds: float, share: float) -> None:
    links = run(push_seconds, 0.4, holds=True, acknowledges=True)
    assert links.share("slow", after=WARM_UP) >= share
    assert links.learners["slow"].most_queued <= TAU + 1


def test_without_acknowledgements_a_transport_that_holds_what_it_is_given_loses_the_link() -> None:
    links = run(1.2, 0.4, holds=True)
    assert links.share("slow", after=WARM_UP) <= 0.1
    assert links.refused
