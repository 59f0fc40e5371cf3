"""Where the operator's own code puts the units of a job whose hardware comes and goes."""

from __future__ import annotations

import math
from typing import Any

from builders.jobs import a_manifest, gpu_pool, tpu_pool
from builders.nodes import a_gpu_node, a_tpu_node, a_tpu_slice
from diloco_cli.diloco.simulations.placement import SimulatedOperator
from diloco_operator.api.names import ANNOTATION_RELATIVE_SPEED
from diloco_operator.kube.client import Obj


def an_operator(*nodes: Obj, most: int, pools: list[dict[str, Any]], min: int = 1) -> SimulatedOperator:
    return SimulatedOperator(a_manifest("lm", min=min, max=most, pools=pools, spec={"syncer": {}}), nodes, most)


def places(operator: SimulatedOperator) -> dict[str, tuple[str, ...] | None]:
    return {unit: place.groups if place is not None else None for unit, place in operator.units().items()}


def test_a_unit_that_lost_its_slice_takes_a_free_one_of_its_pool() -> None:
    operator = an_operator(a_tpu_node("a"), a_tpu_node("b"), a_tpu_node("c"), most=2, pools=[tpu_pool(topology="2x2x1")])
    assert places(operator) == {"v5p-0": ("a",), "v5p-1": ("b",)}
    assert operator.spares == {"tpu-v5p 2x2x1": 1}
    operator.gone("a")
    assert places(operator) == {"v5p-0": ("c",), "v5p-1": ("b",)}


def test_the_job_goes_to_another_kind_when_none_of_the_first_is_free() -> None:
    pools = [tpu_pool(topology="2x2x1"), gpu_pool()]
    operator = an_operator(a_tpu_node("a"), a_tpu_node("b"), a_gpu_node("g"), most=2, pools=pools)
    # A host of eight GPUs is worth most while nothing is measured.
    assert places(operator) == {"v5p-0": ("a",), "h100-0": ("g",)}
    operator.gone("g")
    assert places(operator) == {"v5p-0": ("a",), "v5p-1": ("b",)}
    operator.back("g")
    assert places(operator) == {"v5p-0": ("a",), "v5p-1": ("b",)}, "they have just begun"
    assert operator.leaving == ()


def test_a_unit_waits_where_its_pool_must_have_it_and_returns_to_what_comes_back() -> None:
    operator = an_operator(a_tpu_node("a"), a_gpu_node("g"), most=2, min=2, pools=[tpu_pool(topology="2x2x1", min=1), gpu_pool()])
    operator.gone("a")
    assert places(operator)["v5p-0"] is None
    operator.back("a")
    assert places(operator) == {"v5p-0": ("a",), "h100-0": ("g",)}


def test_hosts_of_a_slice_come_and_go_together_and_labels_say_what_is_spot() -> None:
    spot = a_tpu_slice("spot", 2, topology="2x2x2", labels={"cloud.google.com/gke-spot": "true"})
    operator = an_operator(*spot, *a_tpu_slice("own", 2, topology="2x2x2"), most=2, pools=[tpu_pool()])
    assert sorted((group.name, group.spot) for group in operator.groups) == [("own-0", False), ("spot-0", True)]
    operator.gone("spot-0")
    assert [place for place in places(operator).values() if place] == [("own-0",)]


def slower(node: Obj) -> Obj:
    node["metadata"].setdefault("annotations", {})[ANNOTATION_RELATIVE_SPEED] = "0.5"
    return node


def of_two_kinds(*, most: int = 2, **placement: Any) -> SimulatedOperator:
    """A job with a unit on a slow kind and one on a fast one, which train for ten minutes until the fast one is gone; then both train on
    the slow kind for a minute, and the fast one is there again."""
    pools = [tpu_pool(topology="2x2x1"), gpu_pool()]
    job = a_manifest("lm", min=1, max=most, pools=pools, spec={"syncer": {}, **({"placement": placement} if placement else {})})
    operator = SimulatedOperator(job, [slower(a_tpu_node("a")), slower(a_tpu_node("b")), a_gpu_node("g")], most)
    assert places(operator) == {"v5p-0": ("a",), "h100-0": ("g",)}
    for unit in ("v5p-0", "h100-0"):
        operator.trains(unit)
    operator.advance(600.0)
    operator.gone("g")
    assert places(operator) == {"v5p-0": ("a",), "v5p-1": ("b",)}
    operator.trains("v5p-1")
    operator.advance(660.0)
    operator.back("g")
    return operator


def test_a_unit_moves_to_the_better_kind_once_that_is_free_again() -> None:
    operator = of_two_kinds()
    (mover,) = operator.leaving
    place = places(operator)[mover]
    assert place in (("a",), ("b",)), "it is there until it has ended its step"
    operator.advance(665.0)
    operator.left(mover)
    assert operator.leaving == ()
    assert places(operator) == {"h100-0": ("g",), "v5p-1" if mover == "v5p-0" else "v5p-0": ("b",) if mover == "v5p-0" else ("a",)}
    operator.trains("h100-0")
    assert operator.leaving == (), "nothing is better than this"


def test_no_unit_moves_where_the_job_says_so() -> None:
    assert of_two_kinds(maxMoving=0).leaving == ()


def test_the_operator_wants_to_be_asked_again_when_a_unit_may_leave_and_when_a_throughput_decides() -> None:
    operator = an_operator(a_tpu_node("a"), a_gpu_node("g"), most=2, pools=[tpu_pool(topology="2x2x1"), gpu_pool()])
    assert operator.due() == 60.0, "a unit stays a minute at least"
    operator.trains("v5p-0")
    operator.advance(60.0)
    assert operator.due() == 120.0
    operator.advance(120.0)
    assert operator.due() == 600.0
    operator.advance(600.0)
    assert operator.due() == math.inf


def test_groups_are_found_by_the_names_of_their_nodes() -> None:
    operator = an_operator(*a_tpu_slice("own", 2, topology="2x2x2"), a_tpu_node("other"), most=1, pools=[tpu_pool()])
    assert operator.groups_named("own-1*") == ["own-0"]
    assert operator.groups_named("other") == [], "the job cannot use it"
