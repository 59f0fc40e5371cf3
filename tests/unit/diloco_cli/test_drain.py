"""`kubectl diloco drain`."""

from __future__ import annotations

import asyncio

import pytest
from builders.cluster_scenes import add_pod, begin, on_a_cluster, set_status, unit
from builders.fake_cluster import FakeCluster
from builders.pods import a_learner_pod
from builders.virtual_time import run_virtual
from diloco_cli.cluster import CommandError
from diloco_cli.kubectl.drain import DrainedUnit, drain
from diloco_local.memory import MemoryApi
from diloco_operator.api.names import NODES
from diloco_operator.kube.client import ApiError, Obj

TWO_HOSTS = [a_learner_pod(host=0), a_learner_pod(host=1)]


async def drained(cluster: FakeCluster, name: str = "v5p-0", *, cordon: bool = False, wait: bool = True, seconds: float = 600.0) -> None:
    await drain(cluster.api, DrainedUnit("team", "bytes-lm", name), cluster.said.append, cordon=cordon, wait=wait, seconds=seconds)


@on_a_cluster
async def test_drain_evicts_every_host_of_the_newest_attempt_and_no_other_unit(cluster: FakeCluster) -> None:
    await begin(cluster, unit(), unit("v5p-1"), pods=[*TWO_HOSTS, a_learner_pod("v5p-1")])
    await drained(cluster, wait=False)
    assert list(await cluster.pod_phases(namespace="team")) == ["bytes-lm-v5p-1-a1-0"]
    assert sorted(cluster.said) == ["pod/bytes-lm-v5p-0-a1-0 evicted", "pod/bytes-lm-v5p-0-a1-1 evicted"]


@on_a_cluster
async def test_drain_waits_until_a_later_attempt_contributes(cluster: FakeCluster) -> None:
    await begin(cluster, unit(), pods=TWO_HOSTS)
    draining = asyncio.create_task(drained(cluster))
    await asyncio.sleep(1)
    assert not draining.done()  # it still reads Training, of the attempt that was evicted
    await set_status(cluster, unit(state="Starting", attempt=2))
    await asyncio.sleep(1)
    assert not draining.done()
    await set_status(cluster, unit(attempt=2, slice="np-2", recoverSeconds=7.5))
    await draining
    assert cluster.said[-3:] == [
        "unit v5p-0: attempt 2, Starting",
        "unit v5p-0: attempt 2, Training",
        "unit v5p-0 contributes again after 7.5 s, on np-2; failures on its restart budget: 0",
    ]


@on_a_cluster
async def test_drain_closes_the_nodes_first_if_asked(cluster: FakeCluster) -> None:
    await begin(cluster, unit(), pods=TWO_HOSTS)
    await drained(cluster, cordon=True, wait=False)
    assert cluster.said[0] == "node/tpu-0 cordoned; undo it with `kubectl uncordon tpu-0`"
    assert (await cluster.api.get(NODES, "", "tpu-0"))["spec"]["unschedulable"] is True


@on_a_cluster
async def test_drain_of_a_unit_that_does_not_run_says_what_it_does(cluster: FakeCluster) -> None:
    await begin(cluster, unit(state="BackingOff", reason="Crashed", message="exit status 1"))
    await add_pod(cluster, a_learner_pod(), phase="Failed")
    with pytest.raises(CommandError, match=r"unit v5p-0 has no running pods to drain: BackingOff \(Crashed: exit status 1\)"):
        await drained(cluster)
    assert list(await cluster.pod_phases(namespace="team")) == ["bytes-lm-v5p-0-a1-0"]


@on_a_cluster
async def test_drain_of_an_unknown_unit_names_those_that_there_are(cluster: FakeCluster) -> None:
    await begin(cluster, unit(), unit("h100-3"))
    with pytest.raises(CommandError, match='job "bytes-lm" has no unit "v5p-9"; its units are: v5p-0, h100-3'):
        await drained(cluster, "v5p-9")


@pytest.mark.parametrize(
    ("units", "status", "words"),
    [
        ([unit(state="Failed", attempt=1, reason="RestartsExhausted")], {}, r"does not come back: Failed \(RestartsExhausted\)"),
        ([], {}, "no longer desired"),
        ([unit()], {"Failed": "True"}, 'job "bytes-lm" failed'),
    ],
)
def test_drain_does_not_wait_for_what_will_not_come(units: list[Obj], status: dict[str, str], words: str) -> None:
    async def scene() -> None:
        cluster = FakeCluster(MemoryApi())
        await begin(cluster, unit(), pods=TWO_HOSTS)
        draining = asyncio.create_task(drained(cluster))
        await asyncio.sleep(1)
        await set_status(cluster, *units, **status)
        with pytest.raises(CommandError, match=words):
            await draining

    run_virtual(scene())


@on_a_cluster
async def test_drain_gives_up_after_its_time_and_says_what_it_saw_last(cluster: FakeCluster) -> None:
    await begin(cluster, unit(), pods=TWO_HOSTS)
    draining = asyncio.create_task(drained(cluster, seconds=30))
    await asyncio.sleep(1)
    await set_status(cluster, unit(state="Pending", reason="NoCapacity"))
    with pytest.raises(CommandError, match=r"after 30s; last seen: unit v5p-0: attempt 1, Pending \(NoCapacity\)"):
        await draining


@pytest.mark.parametrize(("refusals", "seconds"), [(2, 600.0), (1000, 600.0)])
def test_drain_tries_again_where_a_disruption_budget_refuses_as_long_as_it_has_time(refusals: int, seconds: float) -> None:
    class Budgeted(MemoryApi):
        left = refusals

        async def evict(self, namespace: str, name: str, *, grace_seconds: int | None = None, uid: str = "") -> None:
            if self.left:
                self.left -= 1
                raise ApiError(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")
            await super().evict(namespace, name, grace_seconds=grace_seconds, uid=uid)

    async def scene() -> None:
        cluster = FakeCluster(Budgeted())
        await begin(cluster, unit(), pods=[a_learner_pod()])
        if refusals < seconds / 5:
            await drained(cluster, wait=False, seconds=seconds)
            assert cluster.said[-1] == "pod/bytes-lm-v5p-0-a1-0 evicted"
        else:
            with pytest.raises(
                CommandError, match=r"within 10m: a PodDisruptionBudget does not allow it; .* a whole number as minAvailable"
            ):
                await drained(cluster, wait=False, seconds=seconds)
        assert len([text for text in cluster.said if "Trying again every 5s" in text]) == 1  # said once, not every 5 s

    run_virtual(scene())
