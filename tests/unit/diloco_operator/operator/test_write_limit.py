"""A job whose objects never stay as they were written is not written to without a pause."""

from __future__ import annotations

from typing import Any

import pytest
from builders.cluster_scenes import named, plans, two_jobs_among_strangers
from builders.fake_cluster import NS
from builders.virtual_time import run_virtual, until
from diloco_operator.api import names
from diloco_operator.operator.job_context import WriteLimit


def test_after_a_burst_the_rate_is_limited() -> None:
    limit = WriteLimit(burst=2, per_second=4.0)
    assert [limit.wrote(10.0) for _ in range(2)] == [0.0, 0.0]
    assert limit.wrote(10.0) == pytest.approx(0.25)
    assert limit.wrote(10.25) == pytest.approx(0.25)


def test_a_job_that_was_quiet_may_write_in_a_burst_again() -> None:
    limit = WriteLimit(burst=2, per_second=4.0)
    for _ in range(5):
        limit.wrote(10.0)
    assert [limit.wrote(12.0) for _ in range(2)] == [0.0, 0.0]
    assert limit.wrote(12.0) == pytest.approx(0.25)


def test_what_goes_on_without_end_is_told_once() -> None:
    limit = WriteLimit(burst=1, per_second=1.0)
    told = []
    for second in range(100):
        limit.wrote(second * 0.999)
        told.append(limit.just_became_endless)
    assert told.count(True) == 1


@pytest.mark.slow
def test_a_status_that_another_controller_always_changes_back_is_written_twice_a_second_and_the_operator_says_so() -> None:
    async def run() -> None:
        async with two_jobs_among_strangers() as cluster:
            other = await plans(cluster, "other")
            writes, theirs = 0, {"status": {"learners": {"desired": 9}}}
            patch, update = cluster.api.patch, cluster.api.update

            async def answered(resource: Any, body: Any, **options: Any) -> Any:
                nonlocal writes
                answer = await update(resource, body, **options)
                if resource == names.DILOCO_JOBS and body["metadata"]["name"] == "lm":
                    writes += 1
                    await patch(resource, NS, "lm", theirs, subresource="status")
                return answer

            cluster.client.update = answered  # type: ignore[attr-defined]
            await patch(names.DILOCO_JOBS, NS, "lm", theirs, subresource="status")
            await until(lambda: named(cluster, "job default/lm", "changes them back"), within=50, step=1)
            first = writes
            await cluster.settle(10)
            assert 15 < writes - first <= 22
            assert await plans(cluster, "other") == other
            del cluster.client.update
            await cluster.settle()
            assert (await cluster.api.get(names.DILOCO_JOBS, NS, "lm"))["status"]["learners"]["desired"] == 1

    run_virtual(run())
