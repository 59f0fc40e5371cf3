"""The hosts of one unit are near to each other: in one zone, or one network block, unless its pool says otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from builders.exploration import examples
from builders.jobs import Obj
from builders.nodes import a_gpu_node, an_inventory
from builders.slice_requests import a_pool_request
from diloco_operator.api.spec import Locality
from diloco_operator.fleet import Inventory, Shape
from diloco_operator.fleet.slices import Slice
from diloco_operator.placement import JobRequest, Placement, PoolRequest, place
from hypothesis import given, settings
from hypothesis import strategies as st

ZONE = "topology.kubernetes.io/zone"
BLOCK = "cloud.google.com/gce-topology-block"
SUBBLOCK = "cloud.google.com/gce-topology-subblock"


def a_host(name: str, zone: str = "", *blocks: str, pool: str = "gpus", labels: dict[str, str] | None = None) -> Obj:
    found = {ZONE: zone} if zone else {}
    return a_gpu_node(name, pool=pool, labels={**found, **dict(zip((BLOCK, SUBBLOCK), blocks, strict=False)), **(labels or {})})


def a_pool(count: int, hosts: int, locality: Locality = Locality.ZONE, *, name: str = "u", min: int = 0, **how: Any) -> PoolRequest:
    return a_pool_request(name, Shape("nvidia-h100-80gb", "", 8, hosts), count, min=min, locality=locality, **how)


def ask(fleet: Inventory, *pools: PoolRequest, min: int = 1) -> Placement:
    return place(JobRequest("ns/job", min=min, max=1000, pools=pools), fleet)


def nodes_of(placement: Placement) -> dict[str, list[str]]:
    return {each.unit: [host.node for host in each.hosts] for each in placement.assigned}


def test_unit_is_placed_in_the_zone_that_has_room_although_a_node_pool_spans_two() -> None:
    fleet = an_inventory(a_host("a", "z1"), a_host("b", "z2"), a_host("c", "z2"))
    assert nodes_of(ask(fleet, a_pool(1, 2))) == {"u-0": ["b", "c"]}


def test_unit_waits_and_says_so_when_enough_hosts_are_free_but_not_in_one_zone() -> None:
    fleet = an_inventory(
        *(a_host(f"{zone}-{i}", zone) for zone, count in (("z1", 2), ("z2", 3), ("z3", 1), ("z4", 1)) for i in range(count))
    )
    placement = ask(fleet, a_pool(1, 4))
    assert placement.assigned == ()
    (pool,) = placement.pools
    assert pool.reason == "NoFreeSlice"
    assert pool.why == ("the fleet has 7: 7 free, but a unit needs 4 in one zone (zone z2: 3, zone z1: 2, zone z3: 1; 1 more with fewer)")
    assert pool.message.endswith(". What would help: set locality of the pool to Any, if the program stands a slower network; more nodes")


def test_another_locality_is_no_remedy_where_there_are_too_few_hosts_in_all() -> None:
    (pool,) = ask(an_inventory(a_host("a", "z1"), a_host("b", "z2")), a_pool(1, 4)).pools
    assert pool.message.endswith("(zone z1: 1, zone z2: 1). What would help: more nodes")


def test_pool_with_any_locality_takes_hosts_of_two_zones_but_prefers_one() -> None:
    fleet = an_inventory(a_host("a", "z1"), a_host("b", "z2"), a_host("c", "z2"))
    assert nodes_of(ask(fleet, a_pool(1, 2, Locality.ANY))) == {"u-0": ["b", "c"]}
    assert nodes_of(ask(fleet, a_pool(1, 3, Locality.ANY))) == {"u-0": ["a", "b", "c"]}


def test_any_locality_says_how_many_hosts_are_missing() -> None:
    (pool,) = ask(an_inventory(a_host("a", "z1")), a_pool(1, 2, Locality.ANY)).pools
    assert pool.why.endswith("the fleet has 1: 1 free, but a unit needs 2")


def test_nearest_block_with_room_is_preferred_and_a_zone_is_enough() -> None:
    fleet = an_inventory(
        a_host("a", "z", "b1", "s1"), a_host("b", "z", "b1", "s2"), a_host("c", "z", "b2", "s3"), a_host("d", "z", "b2", "s3")
    )
    assert nodes_of(ask(fleet, a_pool(1, 2))) == {"u-0": ["c", "d"]}
    assert nodes_of(ask(fleet, a_pool(2, 2))) == {"u-0": ["c", "d"], "u-1": ["a", "b"]}
    assert nodes_of(ask(fleet, a_pool(1, 3))) == {"u-0": ["a", "b", "c"]}


def test_block_is_a_must_where_the_pool_says_so() -> None:
    fleet = an_inventory(a_host("a", "z", "b1"), a_host("b", "z", "b2"), a_host("c", "z"), a_host("d", "z"))
    (pool,) = (placement := ask(fleet, a_pool(1, 2, Locality.BLOCK))).pools
    assert placement.assigned == ()
    assert pool.why.endswith(
        "the fleet has 4: 2 free, but not fitting: the pool asks for labels of a network block; 2 free, but a unit needs 2 in one network "
        "block (block b1 of zone z: 1, block b2 of zone z: 1)"
    )
    assert nodes_of(
        ask(an_inventory(a_host("a", "z", "b1"), a_host("b", "z", "b2"), a_host("c", "z", "b2")), a_pool(1, 2, Locality.BLOCK))
    ) == {"u-0": ["b", "c"]}


def test_blocks_of_the_same_name_in_two_zones_are_two_blocks() -> None:
    assert ask(an_inventory(a_host("a", "z1", "b"), a_host("b", "z2", "b")), a_pool(1, 2, Locality.BLOCK)).assigned == ()


def test_small_zone_is_filled_first_so_that_a_larger_unit_still_fits() -> None:
    fleet = an_inventory(*(a_host(f"a{i}", "big") for i in range(4)), *(a_host(f"b{i}", "small") for i in range(2)))
    placed = nodes_of(ask(fleet, a_pool(1, 2), a_pool(1, 4, name="large")))
    assert placed == {"u-0": ["b0", "b1"], "large-0": ["a0", "a1", "a2", "a3"]}


def test_hosts_without_labels_are_one_zone_of_their_own() -> None:
    assert nodes_of(ask(an_inventory(a_host("a"), a_host("b"), a_host("c", "z")), a_pool(1, 2))) == {"u-0": ["a", "b"]}
    assert ask(an_inventory(a_host("a"), a_host("c", "z")), a_pool(1, 2)).assigned == ()


# --- for every fleet ----------------------------------------------------------------------------------------------------
@st.composite
def fleets(draw: st.DrawFn) -> list[Obj]:
    """Up to twelve hosts in up to three zones and one without, some with blocks, some with the label x."""
    return [
        a_host(
            f"g-{index}",
            draw(st.sampled_from(["", "z1", "z2", "z3"])),
            *draw(st.sampled_from([(), ("b1",), ("b2",), ("b1", "s1"), ("b1", "s2")])),
            pool=draw(st.sampled_from(["np-1", "np-2"])),
            labels={"x": "1"} if draw(st.booleans()) else None,
        )
        for index in range(draw(st.integers(0, 12)))
    ]


def requests(sizes: Sequence[tuple[int, int, Locality, bool]]) -> list[PoolRequest]:
    return [
        a_pool(count, hosts, locality, name=f"p{i}", node_selector={"x": "1"} if picky else {})
        for i, (count, hosts, locality, picky) in enumerate(sizes)
    ]


def together(slices: Sequence[Slice], locality: Locality) -> bool:
    zones = {slice_.labels.get(ZONE, "") for slice_ in slices}
    blocks = {slice_.labels.get(BLOCK, "") for slice_ in slices}
    return locality is Locality.ANY or (len(zones) == 1 and (locality is Locality.ZONE or (len(blocks) == 1 and "" not in blocks)))


SIZES = st.tuples(st.integers(1, 4), st.integers(1, 4), st.sampled_from(Locality), st.booleans())


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(fleets(), st.lists(SIZES, min_size=1, max_size=3))
def test_no_unit_is_ever_split_and_none_waits_while_a_zone_has_room_for_it(
    nodes: list[Obj], sizes: list[tuple[int, int, Locality, bool]]
) -> None:
    fleet = an_inventory(*nodes)
    pools = requests(sizes)
    placement = ask(fleet, *pools)
    by_name = {pool.name: pool for pool in pools}
    taken = [host.node for each in placement.assigned for host in each.hosts]
    assert len(taken) == len(set(taken)), "a host was given twice"
    for each in placement.assigned:
        pool = by_name[each.pool]
        assert len(each.slices) == pool.shape.hosts
        assert pool.shape.hosts == 1 or together(each.slices, pool.requirements.locality), f"{each.unit} is split: {each.slice}"
    for left in placement.unplaced:
        pool = by_name[left.pool]
        free = [s for s in fleet.free(Shape("nvidia-h100-80gb", "", 8, 1)) if s.hosts[0].node not in taken]
        fit = [s for s in free if all(s.labels.get(k) == v for k, v in pool.requirements.node_selector)]
        depth = {Locality.ANY: 0, Locality.ZONE: 1, Locality.BLOCK: 2}[pool.requirements.locality]
        rooms = Counter(s.locality[:depth] for s in fit if len(s.locality) >= depth) if pool.shape.hosts > 1 else Counter({(): len(fit)})
        assert all(count < pool.shape.hosts for count in rooms.values()), f"{left.unit} waits although there is room: {rooms}"


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(fleets(), st.integers(2, 4))
def test_units_of_one_size_fill_every_zone(nodes: list[Obj], hosts: int) -> None:
    fleet = an_inventory(*nodes)
    zones = Counter(node["metadata"]["labels"].get(ZONE, "") for node in nodes)
    assert len(ask(fleet, a_pool(12, hosts)).assigned) == sum(count // hosts for count in zones.values())
