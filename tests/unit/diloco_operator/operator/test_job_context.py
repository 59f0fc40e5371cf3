"""What an operator remembers of a job is one object, which goes with the job."""

from __future__ import annotations

import pytest
from builders.cluster_scenes import a_strangers_pod, named, two_jobs_among_strangers
from builders.fake_cluster import NS, FakeCluster
from builders.held_objects import held_by
from builders.virtual_time import run_virtual, until
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.operator import Operator
from diloco_operator.operator.caches import Caches
from diloco_operator.operator.events import EventRecorder
from diloco_operator.operator.job_context import JobContext, JobContexts


async def uid_of(cluster: FakeCluster, job: str) -> str:
    found: str = (await cluster.api.get(names.DILOCO_JOBS, NS, job))["metadata"]["uid"]
    return found


def held(operator: Operator, job: str, uid: str) -> list[str]:
    """Where the operator has the job's key, or anything with its uid. The recorder keeps Events for a while, so that it can count them."""

    def of_job(value: object) -> bool:
        return value == (NS, job) or (isinstance(value, str) and uid in value)

    return held_by(operator, of_job, without=(MemoryApi, EventRecorder))


def an_ignored_pod(job: str, owner: str) -> Obj:
    """Return a pod of an attempt that no operator can have begun."""
    labels = {names.LABEL_UNIT: "v6e-0", names.LABEL_POOL: "v6e", names.LABEL_ATTEMPT: "9999", names.LABEL_HOST: "0"}
    pod = a_strangers_pod(f"{job}-v6e-0-a9999-0", job, owner=owner, labels=labels)
    del pod["metadata"]["finalizers"]
    return pod


@pytest.mark.slow
def test_after_a_job_has_gone_nothing_of_it_is_held() -> None:
    async def run() -> None:
        async with two_jobs_among_strangers() as cluster:
            uid = await uid_of(cluster, "lm")
            await cluster.api.create(names.PODS, an_ignored_pod("lm", uid))
            await until(lambda: named(cluster, "Pod default/lm-v6e-0-a9999-0", "far beyond"), within=100)
            await cluster.settle()
            assert len(held(cluster.operator, "lm", uid)) >= 30  # or the walk sees nothing
            await cluster.api.delete(names.DILOCO_JOBS, NS, "lm")
            await until(lambda: not cluster.pods((NS, "lm")), within=200)
            await cluster.settle()
            # The slots for requests know the last light flow until another one writes.
            await cluster.api.patch(names.DILOCO_JOBS, NS, "other", {"spec": {"suspend": True}})
            await cluster.settle()
            assert held(cluster.operator, "lm", uid) == []
            assert held(cluster.operator, "other", await uid_of(cluster, "other"))

    run_virtual(run())


def test_job_made_anew_under_the_name_begins_with_nothing() -> None:
    released: list[JobContext] = []
    forgotten: list[tuple[str, str]] = []
    caches = Caches(MemoryApi(), rng=lambda: 0.0)
    contexts = JobContexts(caches, released.append, [forgotten.append])
    first = contexts.of((NS, "lm"), "default/lm/1")
    first.unsure = True
    assert contexts.of((NS, "lm"), "default/lm/1") is first
    second = contexts.of((NS, "lm"), "default/lm/2")
    assert (released, forgotten, second.unsure) == ([first], [(NS, "lm")], False)
    assert (contexts.by_id("default/lm/1"), contexts.by_id("default/lm/2")) == (None, second)
    contexts.drop((NS, "lm"))
    contexts.drop((NS, "lm"))
    assert released == [first, second]
