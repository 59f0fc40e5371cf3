"""Whatever happens in whatever order: the fleet is what one made anew from the same nodes, pods and reservations would be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from builders.exploration import examples
from builders.nodes import a_gpu_node, a_node, a_tpu_node, an_inventory
from diloco_operator.fleet import Inventory, PodUse, Resources, Shape, SliceCounts, project_node
from diloco_operator.kube.client import Obj
from hypothesis import given, settings
from hypothesis import strategies as st

SHAPES = [
    Shape("tpu-v5p", "2x2x1", 4, 1),
    Shape("tpu-v5p", "2x2x2", 4, 2),
    Shape("tpu-v5p", "2x2x4", 4, 4),
    Shape("nvidia-h100-80gb", "", 8, 1),
    Shape("cpu", "", 0, 1),
]
NAMES = ["a-0", "a-1", "a-2"]
"""Few, so that most steps meet what an earlier one did."""
SELDOM = st.sampled_from([False] * 5 + [True])
DEVICES = ["google.com/tpu", "nvidia.com/gpu", ""]

fields: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "ready": SELDOM.map(lambda seldom: not seldom),
        "cordoned": SELDOM,
        "labels": st.dictionaries(st.just("zone"), st.sampled_from("xy")),
        "resources": st.sampled_from([{}, {"cpu": "8"}, {"cpu": "4", "pods": "3"}]),
    }
)


@st.composite
def nodes(draw: st.DrawFn) -> Obj:
    name, kind, how = (
        draw(st.sampled_from(NAMES)),
        draw(st.sampled_from(["pair", "pair", "pair", "single", "four", "gpu", "cpu"])),
        draw(fields),
    )
    pool = draw(st.sampled_from(["a"] * 4 + [""]))
    match kind:
        case "gpu":
            node = a_gpu_node(name, gpus=draw(st.sampled_from([0, 8])), **how)
        case "cpu":
            node = a_node(name, **how)
        case _:
            topology = {"single": "2x2x1", "pair": "2x2x2", "four": "2x2x4"}[kind]
            node = a_tpu_node(name, topology=topology, pool=pool or "x", **how)
            if not pool:
                del node["metadata"]["labels"]["cloud.google.com/gke-nodepool"]
    if draw(SELDOM):
        node["status"]["allocatable"] |= dict.fromkeys(filter(None, DEVICES[:2]), "0")  # its device plugin is down
    return node


@st.composite
def uses(draw: st.DrawFn) -> PodUse:
    device = draw(st.sampled_from(DEVICES))
    requests = Resources(draw(st.sampled_from([0, 1500])), 0, 1, ((device, draw(st.integers(1, 8))),) if device else ())
    return PodUse("team", draw(st.sampled_from(["p", "q", "r"])), draw(st.sampled_from(NAMES)), requests)


steps = st.one_of(
    st.tuples(st.just("update"), nodes()),
    st.tuples(st.just("remove"), st.sampled_from(NAMES)),
    st.tuples(st.just("use"), uses()),
    st.tuples(st.just("end"), st.sampled_from(["p", "q", "r"])),
    st.tuples(st.just("reserve"), st.tuples(st.sampled_from(["j", "k"]), st.frozensets(st.sampled_from(NAMES)))),
    st.tuples(st.just("look"), st.none()),
)


def seen(inventory: Inventory) -> list[Any]:
    """All that a reader of the fleet sees, without the order in which hosts of a broken slice came."""
    found: list[Any] = [inventory.counting.states()]
    for shape in SHAPES:
        counts = inventory.counts(shape)
        found += [list(inventory.free(shape)), counts.total, counts.held, counts.unusable_count]
        found += [counts.used, counts.used_by, counts.used_by_count]
        found += [counts_once(inventory, shape, own) for own in ((), NAMES[:2])]
    return found


def counts_once(inventory: Inventory, shape: Shape, own: Sequence[str]) -> SliceCounts:
    """On behalf of job j, which keeps what it has of `own`: each slice is in one count."""
    keeps = {node: 8 for node in own if inventory.reserved_by(node) == {"j"}}
    counts = inventory.counts(shape, "j", keeps)
    free = len(list(inventory.free(shape)))
    assert counts.of_job + counts.ending + counts.held + counts.unusable_count + counts.used + free == counts.total
    return replace(counts, unusable=())


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(st.lists(steps, min_size=4, max_size=16))
def test_a_fleet_that_changed_is_one_that_was_made_anew(happened: list[tuple[str, Any]]) -> None:
    inventory = an_inventory()
    there: dict[str, Obj] = {}
    pods: dict[str, PodUse] = {}
    reserved: dict[str, frozenset[str]] = {}
    for what, with_ in happened:
        match what:
            case "update":
                there[with_["metadata"]["name"]] = with_
                inventory.update_node(project_node(with_))
            case "remove":
                assert inventory.remove_node(with_) is (there.pop(with_, None) is not None)
            case "use":
                inventory.replace_use(pods.get(with_.name), with_)
                pods[with_.name] = with_
            case "end":
                inventory.replace_use(pods.pop(with_, None), None)
            case "reserve":
                reserved[with_[0]] = with_[1]
                inventory.set_reservations(*with_)
            case _:
                seen(inventory.copy())
    anew = an_inventory(*there.values())
    for pod in pods.values():
        anew.replace_use(None, pod)
    for job, nodes_ in reserved.items():
        anew.set_reservations(job, nodes_)
    assert seen(inventory) == seen(anew)
    assert seen(inventory.copy()) == seen(anew)
