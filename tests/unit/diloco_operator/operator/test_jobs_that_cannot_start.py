"""A job that cannot start until a person acts takes no slices, and says so. The operator runs."""

from __future__ import annotations

import pytest
from builders.cluster_scenes import operated
from builders.fake_cluster import NS, FakeCluster
from builders.jobs import Obj
from diloco_operator.api import names

pytestmark = pytest.mark.slow


@operated()
async def test_a_job_whose_name_is_taken_says_so_and_not_that_slices_are_missing(cluster: FakeCluster) -> None:
    """Its first units had slices and gave them back. From then on the allotment grants none, which is no lack of slices."""
    await cluster.add_slices("np-0", "np-1")
    strangers: Obj = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": names.service_name("late"), "namespace": NS}}
    await cluster.api.create(names.SERVICES, {**strangers, "spec": {"ports": [{"port": 1}]}})
    await cluster.apply("late", min=2)

    def gave_back(status: Obj) -> bool:
        return [unit["state"] for unit in status.get("units", ())] == ["Pending", "Pending"] and status["reason"] == "WriteRefused"

    status = await cluster.when("late", gave_back, what="without slices")
    placed = next(each for each in status["conditions"] if each["type"] == "Placed")
    assert (placed["reason"], placed["message"]) == (
        "CannotStart",
        "0 of 2 units have hardware, learners.min is 2; it takes none until the job can start, see Training",
    )
    assert {pool["reason"] for pool in status["pools"]} == {"CannotStart"}
    assert all(unit["message"].endswith("others may take its hardware until then") for unit in status["units"])
    await cluster.apply("other", min=2)
    await cluster.trains("other", 2)
