"""Views of the fleet for a job that avoids nodes, or to which nodes are too new."""

from __future__ import annotations

from typing import Any

import pytest
from builders.nodes import READY_SINCE, a_gpu_node, a_tpu_node, a_tpu_slice, an_inventory
from diloco_operator.fleet import PodUse, Resources, Shape
from diloco_operator.fleet.avoidance import FleetWithout, NewNodes
from diloco_operator.kube.timestamps import parse_timestamp

SINGLE = Shape("tpu-v5p", "2x2x1", 4, 1)
PAIR = Shape("tpu-v5p", "2x2x2", 4, 2)
CREATED = parse_timestamp(READY_SINCE)


def names(fleet: FleetWithout, shape: Shape) -> list[str]:
    return [slice_.name for slice_ in fleet.free(shape, "v5p")]


@pytest.mark.parametrize(("now", "new"), [(59, True), (60, False), (-59, True), (-60, False)])
def test_node_is_new_until_its_age_and_one_from_the_far_future_was_created_by_another_clock(now: float, new: bool) -> None:
    fleet = an_inventory(a_tpu_node("a", created=READY_SINCE))
    assert ("a" in NewNodes(fleet, CREATED + now, 60.0)) is new


def test_node_without_a_known_age_is_new() -> None:
    fleet = an_inventory(a_tpu_node("a"))
    assert "a" in NewNodes(fleet, CREATED, 60.0)
    assert "gone" in NewNodes(fleet, CREATED, 60.0)


@pytest.mark.parametrize(
    ("how", "single", "pair"),
    [
        ({}, ["a", "c"], ["np-1"]),
        ({"last": True}, ["a", "c", "b"], ["np-1", "np-0"]),
        ({"shapes": {SINGLE}}, ["a", "c"], ["np-0", "np-1"]),
        ({"shapes": {PAIR}, "last": True}, ["a", "b", "c"], ["np-1", "np-0"]),
    ],
)
def test_slice_with_an_avoided_host_is_offered_last_or_not_at_all_and_other_shapes_as_they_are(
    how: dict[str, Any], single: list[str], pair: list[str]
) -> None:
    fleet = an_inventory(*(a_tpu_node(name) for name in "abc"), *a_tpu_slice("np-0", 2), *a_tpu_slice("np-1", 2))
    avoiding = FleetWithout(fleet, {"b", "np-0-1"}, **how)
    assert (names(avoiding, SINGLE), names(avoiding, PAIR)) == (single, pair)


def test_view_answers_all_else_as_the_fleet_does() -> None:
    fleet = an_inventory(a_tpu_node("a"), a_gpu_node("g", resources={"cpu": "8"}))
    fleet.replace_use(None, PodUse("team", "web-0", "g", Resources(6000, 0, 1)))
    view = FleetWithout(fleet, {"a", "g"})
    (slice_,) = view.slices(SINGLE)
    (host,) = view.resolve(Shape("nvidia-h100-80gb", "", 8), "g") or ()
    assert (slice_.name, view.usable(slice_), list(view.kept(SINGLE, ""))) == ("a", True, [])
    assert view.shortage(host, Resources(4000, 0, 1)) == "needs 4 CPU, node g has 2 CPU left: team/web-0 uses the rest"
    assert view.counts(SINGLE, "job", {"a": 4}) == fleet.counts(SINGLE, "job", {"a": 4})
    assert view.counts(SINGLE, "job", {"a": 4}).own == 1
    assert (view.uses("g"), view.node("a")) == (fleet.uses("g"), fleet.node("a"))
    assert (view.not_ready.nodes, list(view.signs)) == (2, list(fleet.signs))
