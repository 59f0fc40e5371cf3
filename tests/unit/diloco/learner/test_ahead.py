"""What is staged for pulls that have not come is sent for one pull, against one version, or let go."""

from __future__ import annotations

from builders.staged import StagedFor
from diloco.learner.ahead import StagedAhead
from diloco.protocol.diloco_pb2 import Chunk


def header(fragment: int, t: int, base: int = 4) -> Chunk:
    return Chunk(kind=Chunk.PUSH, fragment=fragment, t=t, base=base)


def test_an_answer_is_taken_once_and_released_by_who_takes_it() -> None:
    ahead, staged = StagedAhead(), StagedFor()
    ahead.keep(header(1, 9), staged)
    assert ahead.take(0, 9, version=4) is None
    assert ahead.take(1, 9, version=4) == (header(1, 9), staged)
    assert ahead.take(1, 9, version=4) is None
    assert not staged.released


def test_an_answer_to_another_pull_is_released() -> None:
    ahead, staged = StagedAhead(), StagedFor()
    ahead.keep(header(1, 9), staged)
    assert ahead.take(1, 33, version=4) is None
    assert staged.released
    assert len(ahead) == 0


def test_an_answer_from_before_a_version_that_came_is_released() -> None:
    """Staged when the version had come already, and was not adopted yet: `received` was too early for it."""
    ahead, staged = StagedAhead(), StagedFor()
    ahead.received(1)
    ahead.keep(header(1, 9, base=4), staged)
    assert ahead.take(1, 9, version=8) is None
    assert staged.released


def test_a_new_version_releases_the_answer_of_its_fragment_only() -> None:
    ahead, staged = StagedAhead(), [StagedFor(), StagedFor()]
    for fragment in (0, 1):
        ahead.keep(header(fragment, 9), staged[fragment])
    ahead.received(1)
    assert [one.released for one in staged] == [False, True]
    assert ahead.take(0, 9, version=4) is not None


def test_a_newer_answer_replaces_the_older_one_and_what_is_not_kept_is_released() -> None:
    ahead, staged = StagedAhead(), [StagedFor() for _ in range(4)]
    for fragment in (0, 1, 2):
        ahead.keep(header(fragment, 9), staged[fragment])
    ahead.keep_only([1, 2])
    ahead.keep(header(1, 9), staged[3])
    assert [one.released for one in staged] == [True, True, False, False]
    ahead.clear()
    assert all(one.released for one in staged)
