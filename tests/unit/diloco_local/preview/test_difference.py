"""What changes between two outlooks."""

from __future__ import annotations

from collections.abc import Mapping

from builders.jobs import a_manifest, gpu_pool
from diloco_local.preview.difference import Move, difference
from diloco_local.preview.outlook import JobOutlook, outlook


def on(places: Mapping[str, str]) -> tuple[JobOutlook, ...]:
    """`places`: job -> the host on which its unit h100-0 has an accelerator. "" if it has none."""
    pool = gpu_pool(acceleratorsPerHost=1, max=1)
    units = {job: [{"name": "h100-0", "pool": "h100", "slice": host, "state": "Training", "attempt": 1}] for job, host in places.items()}
    jobs = [{**a_manifest(job, namespace="ns", min=1, max=1, pools=(pool,)), "status": {"units": units[job]}} for job in places]
    return tuple(outlook(job, {}, {}) for job in jobs)


def test_a_unit_that_shared_a_host_does_not_get_the_slice_of_one_that_ends_there() -> None:
    [ends] = difference(on({"x": "h-0", "y": "h-0"}), on({"x": "", "y": "h-0"})).moves
    assert (ends.job, ends.move, ends.taken_by) == ("x", Move.ENDS, "")


def test_a_unit_that_comes_to_the_host_gets_the_slice_of_one_that_ends_there() -> None:
    before, after = on({"x": "h-0", "y": "h-0", "z": ""}), on({"x": "", "y": "h-0", "z": "h-0"})
    assert [(move.job, move.taken_by) for move in difference(before, after).moves] == [("x", "ns/z/h100-0"), ("z", "")]
