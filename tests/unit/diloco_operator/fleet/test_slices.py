"""The hardware that a unit needs, and what it is called."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders.nodes import a_gpu_node, an_inventory
from diloco_operator.fleet import Holder, Shape
from diloco_operator.fleet.slices import SliceCounts, group_name

GPU = "nvidia-h100-80gb"
V5P = Shape("tpu-v5p", "4x4x4", 4, 16)


# The largest host of this GPU has 8, so 2 are a quarter of a host.
@pytest.mark.parametrize(
    ("shape", "divides", "size", "slots", "one", "text"),
    [
        (V5P, False, 1.0, 1, V5P, "tpu-v5p 4x4x4"),
        (Shape(GPU, "", 2), True, 0.25, 1, Shape(GPU, "", 2), f"{GPU}, 1 host with 2 accelerators"),
        (Shape(GPU, "", 1, alone=True), False, 1.0, 1, Shape(GPU, "", 1, alone=True), f"{GPU}, 1 host with 1 accelerator"),
        (Shape(GPU, "", 8, 2), False, 2.0, 2, Shape(GPU, "", 8), f"{GPU}, 2 hosts with 8 accelerators"),
        (Shape(GPU, "", 16), True, 1.0, 1, Shape(GPU, "", 16), f"{GPU}, 1 host with 16 accelerators"),
        (Shape("cpu", hosts=3), False, 3.0, 3, Shape("cpu"), "cpu, 3 hosts"),
        (
            *(Shape("cpu", devices=(("x/a", 2), ("x/b", 1))), False, 1.0, 1),
            *(Shape("cpu", devices=(("x/a", 2), ("x/b", 1))), "cpu, 1 host with 2 x/a, 1 x/b"),
        ),
    ],
)
def test_unit_takes_a_slice_hosts_or_a_part_of_one(shape: Shape, divides: bool, size: float, slots: int, one: Shape, text: str) -> None:
    assert (shape.divides, shape.size, shape.slots, shape.slice_shape, str(shape)) == (divides, size, slots, one, text)


def test_slice_is_told_by_its_first_host_and_its_part_and_a_group_by_the_names_of_all() -> None:
    a, b = an_inventory(a_gpu_node("a"), a_gpu_node("b")).slices(Shape(GPU, "", 8))
    assert (a.key, replace(a, part="x-0").key) == ("a", "a/x-0")
    assert (group_name([a, b]), group_name([b])) == ("a+b", "b")


def test_held_slices_are_those_of_all_holders() -> None:
    counts = SliceCounts(9, 1, 0, (Holder("a", 3), Holder("b", 2)), (), 0)
    assert counts.held == 5
    assert replace(counts, holders=()).held == 0
