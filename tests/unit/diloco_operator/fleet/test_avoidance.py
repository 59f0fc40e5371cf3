"""The view of the fleet for a job that avoids nodes."""

from __future__ import annotations

from typing import Any

import pytest
from builders.nodes import a_gpu_node, a_tpu_node, a_tpu_slice, an_inventory
from diloco_operator.fleet import PodUse, Resources, Shape
from diloco_operator.fleet.avoidance import FleetWithout

SINGLE = Shape("tpu-v5p", "2x2x1", 4, 1)
PAIR = Shape("tpu-v5p", "2x2x2", 4, 2)


def names(fleet: FleetWithout, shape: Shape) -> list[str]:
    return [slice_.name for slice_ in fleet.free(shape, "v5p")]


@pytest.mark.parametrize(
    ("how", "single", "pair"),
    [
        ({}, ["a", "c"], ["np-1"]),
        ({"last": True}, ["a", "c", "b"], ["np-1", "np-0"]),
    ],
)
def test_slice_with_an_avoided_host_is_offered_last_or_not_at_all(how: dict[str, Any], single: list[str], pair: list[str]) -> None:
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
