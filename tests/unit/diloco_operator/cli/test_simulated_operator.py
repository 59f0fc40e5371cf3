"""Where the operator's own code puts the units of a job whose hardware comes and goes."""

from __future__ import annotations

from typing import Any

from builders.jobs import a_manifest, gpu_pool, tpu_pool
from builders.nodes import a_gpu_node, a_tpu_node, a_tpu_slice
from diloco_operator.cli.simulations.placement import SimulatedOperator
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
    assert places(operator) == {"v5p-0": ("a",), "v5p-1": ("b",)}, "no unit leaves a slice for a better one"


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
