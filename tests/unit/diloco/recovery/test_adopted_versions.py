"""Which versions a unit has adopted, over sessions and incarnations of the syncer."""

from __future__ import annotations

from diloco.learner.inbox import Received, Welcomed
from diloco.learner.store import Ready
from diloco.learner.unit_plan import Adoption, UnitPlan
from diloco.recovery.adopted_versions import AdoptedVersions

NOTHING = UnitPlan(step=1)


def welcomed(generation: int, epoch: int = 0) -> Welcomed:
    return Welcomed(generation, t=8, steps=24, seed_wanted=False, asked=0, epoch=epoch)


def received(fragment: int, t: int) -> Received:
    return Received(fragment, t, Ready((), ()))


def adopts(*versions: tuple[int, int]) -> UnitPlan:
    return UnitPlan(step=1, adoptions=tuple(Adoption(fragment, version, 0) for fragment, version in versions))


def test_a_session_that_goes_on_keeps_what_was_adopted_and_another_one_begins_without() -> None:
    adopted = AdoptedVersions(2)
    adopted.boundary([welcomed(1), received(0, 7), received(1, 8)], adopts((0, 7), (1, 8)))
    adopted.boundary([welcomed(1)], NOTHING)
    assert adopted.versions == [7, 8]
    assert not adopted.boundary([welcomed(2)], NOTHING), "the incarnation is the same"
    assert adopted.versions == [-1, -1]


def test_what_came_in_the_session_before_is_adopted_without_being_known_by_its_number() -> None:
    adopted = AdoptedVersions(1)
    adopted.boundary([welcomed(1), received(0, 9)], NOTHING)
    adopted.boundary([welcomed(2)], adopts((0, 9)))
    assert adopted.versions == [-1]
    adopted.boundary([received(0, 8)], adopts((0, 8)))
    assert adopted.versions == [8]
