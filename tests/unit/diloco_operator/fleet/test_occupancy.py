"""Which job and unit has which node, and which pods count on it."""

from __future__ import annotations

import pytest
from diloco_operator.fleet import PodUse, Resources
from diloco_operator.fleet.occupancy import Change, Occupancy

GPU = "nvidia.com/gpu"
HALF, QUARTER = Resources(1000, 0, 1, ((GPU, 4),)), Resources(500, 0, 1, ((GPU, 2),))


def pod(name: str, unit: str = "", *, job: str = "a", node: str = "n") -> PodUse:
    return PodUse("team", name, node, QUARTER, unit=(job, unit) if unit else None)


def test_change_says_which_nodes_are_reserved_or_free_now_and_whether_some_of_it_was_released() -> None:
    occupancy = Occupancy()
    assert occupancy.reserve("a", ["n", "m"]) == Change({"n": 1, "m": 1}, released=False)
    assert occupancy.reserve("a", ["m", "n"]) == Change({}, released=False)
    assert occupancy.reserve("b", ["n"]) == Change({"n": 0}, released=False)  # reserved before
    assert (set(occupancy.jobs("n")), occupancy.reservations("a")) == ({"a", "b"}, frozenset(("m", "n")))
    assert occupancy.reserve("a", ["m"]) == Change({"n": 0}, released=True)  # the other job still has it
    assert occupancy.reserve("b", []) == Change({"n": -1}, released=True)
    assert (occupancy.jobs("n"), occupancy.reservations("b")) == ((), frozenset())


def test_change_of_a_part_concerns_its_node_and_releases_the_part_that_was_there() -> None:
    occupancy = Occupancy()
    assert occupancy.reserve("a", ["n"], {("n", "u"): HALF}) == Change({"n": 1}, released=False)
    assert occupancy.reserve("a", ["n"], {("n", "u"): HALF}) == Change({}, released=False)
    assert occupancy.reserve("a", ["n"], {("n", "u"): HALF, ("n", "v"): HALF}) == Change({"n": 0}, released=False)
    assert occupancy.parts("n") == {("a", "u"): HALF, ("a", "v"): HALF}
    assert occupancy.reserve("a", ["n"], {("n", "u"): QUARTER, ("n", "v"): HALF}) == Change({"n": 0}, released=True)
    assert occupancy.reserve("a", ["n"], {("n", "v"): HALF}) == Change({"n": 0}, released=True)
    assert occupancy.parts("n") == {("a", "v"): HALF}
    assert [occupancy.has_reserved(*each) for each in (("a", "n", "v"), ("a", "n", "u"), ("a", "m", "v"), ("b", "n", "v"))] == [
        True,
        *[False] * 3,
    ]
    assert occupancy.reserve("a", []) == Change({"n": -1}, released=True)
    assert (occupancy.parts("n"), occupancy.has_reserved("a", "n", "v")) == ({}, False)


def test_node_is_taken_as_a_whole_if_some_job_has_reserved_it_without_parts() -> None:
    occupancy = Occupancy()
    assert not occupancy.is_taken("n")
    occupancy.reserve("a", ["n"], {("n", "u"): HALF})
    assert not occupancy.is_taken("n")
    occupancy.reserve("b", ["n"])
    assert occupancy.is_taken("n")
    occupancy.reserve("a", [])
    assert occupancy.is_taken("n")


@pytest.mark.parametrize(
    ("use", "covered"),
    [
        (pod("web"), False),
        (pod("whole", "u", job="whole"), True),  # it has reserved all of the node
        (pod("mine", "u"), True),
        (pod("other", "v"), False),
        (pod("others", "u", job="c"), False),
        (pod("elsewhere", "u", node="m"), False),
    ],
)
def test_reservation_covers_pods_of_its_unit_or_of_all_units_of_a_job_that_has_all_of_the_node(use: PodUse, covered: bool) -> None:
    occupancy = Occupancy()
    occupancy.reserve("a", ["n"], {("n", "u"): HALF})
    occupancy.reserve("whole", ["n"])
    occupancy.replace(None, use)
    assert occupancy.covers(use) is covered
    assert occupancy.uses(use.node) == (() if covered else (use,))
    assert occupancy.has_units_pods(use.node) is (use.unit is not None)


def test_pods_count_on_their_node_from_their_coming_to_their_end() -> None:
    occupancy = Occupancy()
    web, train, moved = pod("web"), pod("train"), pod("train", node="m")
    occupancy.replace(None, web)
    occupancy.replace(None, train)
    assert occupancy.uses("n") == (web, train)
    occupancy.replace(train, moved)
    assert (occupancy.uses("n"), occupancy.uses("m")) == ((web,), (moved,))
    occupancy.replace(web, None)
    occupancy.replace(pod("never"), None)
    assert (occupancy.uses("n"), occupancy.uses("m")) == ((), (moved,))


def test_pod_is_equal_only_to_itself() -> None:
    occupancy = Occupancy()
    one, twin = pod("web"), pod("web")
    assert one != twin
    occupancy.replace(None, one)
    occupancy.replace(None, twin)
    occupancy.replace(one, None)
    assert [use is twin for use in occupancy.uses("n")] == [True]


def test_copy_keeps_what_was() -> None:
    occupancy = Occupancy()
    web = pod("web")
    occupancy.replace(None, web)
    occupancy.reserve("a", ["n"], {("n", "u"): HALF})
    copy = occupancy.copy()
    occupancy.replace(web, None)
    occupancy.reserve("a", [])
    occupancy.reserve("b", ["n"])
    assert (copy.uses("n"), set(copy.jobs("n")), copy.reservations("a")) == ((web,), {"a"}, frozenset(("n",)))
    assert (copy.parts("n"), copy.has_reserved("a", "n", "u"), copy.reservations("b")) == ({("a", "u"): HALF}, True, frozenset())
