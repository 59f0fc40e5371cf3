"""Plans beside what runs: the state of a cluster is copied, and the operator goes on from there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from builders.cluster_scenes import a_cluster
from builders.dra import a_dra_node, claim, offer
from builders.fake_cluster import NS, FakeCluster, wall_clock
from builders.jobs import Obj, a_manifest, gpu_pool, tpu_pool
from builders.virtual_time import run_virtual
from diloco_cli.commands.plan_text import Page, plan_text
from diloco_local.preview.changes import ChangeOptions, changes_of
from diloco_local.preview.contents import Contents, NodesNotReadable, of_cluster
from diloco_local.preview.difference import Move, difference, unfit
from diloco_local.preview.outlook import JobOutlook, Verdict
from diloco_local.preview.preview import Preview, preview
from diloco_local.preview.speeds import Basis, measured_speeds, speeds_of
from diloco_operator.api import names
from diloco_operator.api.job import load
from diloco_operator.kube.client import Forbidden, ObjList, Resource

pytestmark = pytest.mark.slow
"""The operator itself runs."""


def copied(scene: Callable[[FakeCluster], Awaitable[None]], *slices: str) -> tuple[Contents, float]:
    """What a cluster has after the scene, and when."""

    async def work() -> tuple[Contents, float]:
        async with a_cluster(slices=slices) as cluster:
            async with cluster.operating():
                await scene(cluster)
                await cluster.settle(90.0)
            return await of_cluster(cluster.api, NS), wall_clock()

    return run_virtual(work())


def a_job(name: str, *, min: int = 1, max: int = 1, **spec: object) -> Obj:
    pools = (tpu_pool("v6e", "tpu-v6e", "2x2", max=max),)
    return a_manifest(name, namespace=NS, min=min, max=max, pools=pools, spec=spec)


def planned(copy: tuple[Contents, float], *jobs: Obj, **asked: tuple[str, ...]) -> Preview:
    contents, now = copy
    return preview(contents, jobs, changes_of(ChangeOptions(**asked), contents.nodes, [*contents.jobs, *jobs]), now)


def places(jobs: tuple[JobOutlook, ...]) -> dict[str, list[str]]:
    return {job.name: sorted(unit.slice for unit in job.units) for job in jobs}


async def _one_trains(cluster: FakeCluster) -> None:
    await cluster.apply("lm", min=1, max=2)
    await cluster.trains("lm", 2)


def test_what_runs_stays_where_it_is_and_nothing_of_it_starts_again() -> None:
    copy = copied(_one_trains, "np-a", "np-b", "np-c")
    found = planned(copy)
    assert places(found.now) == places(found.planned) == {"lm": ["np-a-0", "np-b-0"]}
    assert difference(found.now, found.planned).moves == ()
    assert found.settled


def test_a_new_job_gets_the_surplus_of_one_that_runs_and_the_plan_says_whose_it_was() -> None:
    copy = copied(_one_trains, "np-a", "np-b")
    found = planned(copy, a_job("new"))
    [ends, starts] = difference(found.now, found.planned).moves
    assert (ends.job, ends.move, ends.reason) == ("lm", Move.ENDS, "NoCapacity")
    assert ends.taken_by == "default/new/v6e-0"
    assert (starts.job, starts.move, starts.after) == ("new", Move.STARTS, ends.before)
    assert unfit(found.now, found.planned, {(NS, "new")}) == ()


def test_a_plan_knows_the_gpus_that_only_dra_offers_and_those_that_others_claim() -> None:
    async def two_hosts(cluster: FakeCluster) -> None:
        await cluster.add([a_dra_node("a"), a_dra_node("b")])
        await offer(cluster, "a", "b")
        await claim(cluster, "theirs", "a", ["gpu-0"])

    job = a_manifest("new", namespace=NS, min=1, max=1, pools=(gpu_pool(max=1),))
    assert places(planned(copied(two_hosts), job).planned) == {"new": ["b"]}


def test_the_page_shows_who_gives_way_to_whom_and_leaves_the_rest_out() -> None:
    async def two(cluster: FakeCluster) -> None:
        await _one_trains(cluster)
        await cluster.apply("other", min=1, max=1)
        await cluster.trains("other", 1)

    found = planned(copied(two, "np-a", "np-b", "np-c"), a_job("new"))
    page = plan_text(found, Page({(NS, "new")}, (), ("what could not be read",), ""), ()).splitlines()
    of_operator = [line for line in page if line.startswith(("  v6e-1 waits: NoFreeSlice: pool v6e needs 1 more slice", "    - "))]
    assert len(of_operator) > 1  # why, and what would help, in the operator's words
    assert [line for line in page if line not in of_operator] == [
        "lm in namespace default: fits, 1 unit (at least 1, at most 2), speed 1.00; before 2 units, speed 2.00",
        "  UNIT    RUNS ON   BEFORE   SPEED   SHARE   WHY",
        "  v6e-0   np-a-0    np-a-0   1.00    100%    1st choice",
        "  v6e-1   -         np-b-0   -       -       ends: NoCapacity; default/new/v6e-0 gets its slice",
        "",
        "new in namespace default: fits, 1 unit (at least 1, at most 1), speed 1.00",
        "  UNIT    RUNS ON   SPEED   SHARE   WHY",
        "  v6e-0   np-b-0    1.00    100%    1st choice",
        "",
        "1 other job stays as it is",
        "",
        "Speeds are peaks of the catalogue, a unit of the job's fastest pool being 1: nothing is measured yet.",
        "",
        "Note: what could not be read",
    ]


def test_a_minimum_that_runs_is_not_taken_for_a_new_job_which_does_not_fit() -> None:
    copy = copied(_one_trains, "np-a", "np-b")
    found = planned(copy, a_job("new", min=2, max=2))
    assert {job.name: job.verdict for job in found.planned}["lm"] is Verdict.FITS
    assert [job.name for job in unfit(found.now, found.planned, {(NS, "new")})] == ["new"]


def test_a_changed_spec_of_a_job_that_runs_shows_what_becomes_of_its_units() -> None:
    copy = copied(_one_trains, "np-a", "np-b")
    found = planned(copy, a_job("lm", min=1, max=1))
    [move] = difference(found.now, found.planned).moves
    assert (move.unit, move.move) == ("v6e-1", Move.ENDS)


def test_a_job_that_loses_its_minimum_to_a_drain_counts_though_nobody_asked_about_it() -> None:
    async def full(cluster: FakeCluster) -> None:
        await cluster.apply("lm", min=2, max=2)
        await cluster.trains("lm", 2)

    found = planned(copied(full, "np-a", "np-b"), drain=("np-b-0",))
    assert found.changed is not None
    assert [job.name for job in unfit(found.planned, found.changed, ())] == ["lm"]
    [move] = difference(found.planned, found.changed).moves
    assert (move.before, move.move) == ("np-b-0", Move.ENDS)


def test_speeds_that_were_measured_are_used_and_other_hardware_is_estimated_from_them() -> None:
    """A v6e slice of 4 chips at 1,000 tokens/s: v5p has half of its peak (459 of 918), so 500."""
    pools = (tpu_pool("v6e", "tpu-v6e", "2x2", max=1), tpu_pool("v5p", "tpu-v5p", "2x2x1", max=1))

    async def measured(cluster: FakeCluster) -> None:
        await cluster.apply("lm", *pools, min=1, max=2)
        await cluster.trains("lm", 1)

    contents, now = copied(measured, "np-a")
    [job] = contents.jobs
    [unit, *_] = job["status"]["units"]
    unit["tokensPerSecond"] = 1000.0
    found = planned((contents, now), add=("v5p=1x2x2x1",))
    assert found.changed is not None
    [after] = found.changed
    speeds = {unit.pool: unit.speed for unit in after.units}
    assert speeds["v6e"].tokens_per_second == 1000.0
    assert (speeds["v5p"].basis, speeds["v5p"].tokens_per_second) == (Basis.ESTIMATED, 500.0)
    assert after.tokens_per_second == 1500.0
    assert [unit.share for unit in after.units] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]


def test_an_estimate_goes_by_hardware_of_the_same_kind_first() -> None:
    """Of a v6e slice of 1 chip 250 tokens/s are measured, and 400 of a v5p, which has twice the peak. So one of 4 chips makes 1,000."""
    small, large = tpu_pool("small", "tpu-v6e", "1x1"), tpu_pool("large", "tpu-v6e", "2x2")
    job = a_manifest("lm", pools=(small, tpu_pool("v5p", "tpu-v5p", "2x2x1"), large))
    shapes = {pool.name: pool.shape for pool in load(job).spec.pools}
    found = speeds_of(job, {shapes["small"]: 250.0, shapes["v5p"]: 400.0})["large"]
    assert (found.basis, found.tokens_per_second) == (Basis.ESTIMATED, 1000.0)


def test_a_record_of_the_pool_counts_before_what_its_units_do_at_the_moment() -> None:
    contents, _ = copied(_one_trains, "np-a", "np-b")
    [job] = contents.jobs
    [pool] = load(job).spec.pools
    for unit, speed in zip(job["status"]["units"], (100.0, 300.0), strict=True):
        unit["tokensPerSecond"] = speed
    assert measured_speeds(job) == {pool.shape: 200.0}
    job["status"]["pools"][0]["tokensPerSecond"] = 500.0
    assert measured_speeds(job) == {pool.shape: 500.0}


def test_pods_of_others_keep_their_hosts() -> None:
    async def taken(cluster: FakeCluster) -> None:
        pod = {"metadata": {"name": "notebook", "namespace": NS}, "spec": {"nodeName": "np-a-0", "containers": [_uses_chips()]}}
        await cluster.api.create(names.PODS, pod)

    found = planned(copied(taken, "np-a", "np-b"), a_job("lm"))
    assert places(found.planned) == {"lm": ["np-b-0"]}


def _uses_chips() -> Obj:
    amounts = {"google.com/tpu": "4"}
    return {"name": "main", "image": "image:1", "resources": {"requests": amounts, "limits": amounts}}


def test_a_pause_that_the_operator_keeps_is_over_in_the_plan() -> None:
    """The next move of a job that runs: a unit that backs off starts again."""

    async def scene() -> tuple[Contents, float]:
        async with a_cluster(slices=("np-a",)) as cluster:
            async with cluster.operating():
                await cluster.apply("lm", min=1, max=1)
                await cluster.trains("lm", 1)
                await cluster.crash("lm-v6e-0-a1-0")  # has no pause
                await cluster.when("lm", lambda status: (status["units"][0]["state"], status["units"][0]["attempt"]) == ("Training", 2))
                await cluster.crash("lm-v6e-0-a2-0")
                await cluster.when("lm", lambda status: status["units"][0]["state"] == "BackingOff")
            return await of_cluster(cluster.api, NS), wall_clock()

    found = planned(run_virtual(scene()))
    [now], [then] = found.now, found.planned
    assert [(unit.state, unit.not_before is not None) for unit in now.waiting] == [("BackingOff", True)]
    assert [unit.name for unit in then.units] == ["v6e-0"]


class Limited:
    """A client of a user who may list these only in a namespace, or not at all."""

    def __init__(self, api: object, *resources: Resource) -> None:
        self._api, self._resources = api, resources

    async def list(self, resource: Resource, namespace: str = "", **how: object) -> ObjList:
        if resource in self._resources and not namespace:
            raise Forbidden(403, "Forbidden", f"{resource.plural} is forbidden")
        found: ObjList = await self._api.list(resource, namespace, **how)  # type: ignore[attr-defined]
        return found


def test_resource_slices_that_a_user_may_not_read_are_told() -> None:
    async def work() -> Contents:
        async with a_cluster(slices=("np-a",)) as cluster:
            return await of_cluster(Limited(cluster.api, names.RESOURCE_SLICES), NS)  # type: ignore[arg-type]

    assert run_virtual(work()).notes == ("you may not list resource slices: GPUs that only DRA offers are no slices here",)


def test_what_a_user_may_not_read_is_left_out_and_told() -> None:
    async def work() -> Contents:
        async with a_cluster(slices=("np-a",), namespaces=("other",)) as cluster:
            await cluster.apply("mine")
            await cluster.apply("theirs", namespace="other")
            return await of_cluster(Limited(cluster.api, names.DILOCO_JOBS, names.PRIORITY_CLASSES), NS)  # type: ignore[arg-type]

    contents = run_virtual(work())
    assert [job["metadata"]["name"] for job in contents.jobs] == ["mine"]
    assert contents.notes == (
        "you may list jobs of namespace default only: those of other namespaces hold no slice here",
        "you may not list priority classes: every job has priority 0 here",
    )


def test_without_the_right_to_list_nodes_there_is_no_plan() -> None:
    async def work() -> None:
        async with a_cluster() as cluster:
            await of_cluster(Limited(cluster.api, names.NODES), NS)  # type: ignore[arg-type]

    with pytest.raises(NodesNotReadable, match="--fleet FILE"):
        run_virtual(work())


def test_nothing_is_written_to_the_cluster_that_is_read() -> None:
    writes: list[str] = []

    async def work() -> tuple[Contents, float]:
        async with a_cluster(slices=("np-a",)) as cluster:
            await cluster.apply("lm")
            before = cluster.api.writes
            contents = await of_cluster(cluster.api, NS)
            writes.append(str(cluster.api.writes - before))
            return contents, wall_clock()

    copy = run_virtual(work())
    status = [dict(job.get("status") or {}) for job in copy[0].jobs]
    planned(copy, a_job("new"))
    assert writes == ["0"]
    assert [dict(job.get("status") or {}) for job in copy[0].jobs] == status


def test_a_class_of_higher_priority_takes_what_is_surplus_of_a_lower_one() -> None:
    async def two(cluster: FakeCluster) -> None:
        await cluster.api.create(names.PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000})
        await _one_trains(cluster)

    found = planned(copied(two, "np-a", "np-b"), a_job("new", min=1, max=2, priorityClassName="high"))
    assert {name: len(slices) for name, slices in places(found.planned).items()} == {"lm": 1, "new": 1}
