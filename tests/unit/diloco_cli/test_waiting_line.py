"""The place of a job among those that wait for the same hardware."""

from __future__ import annotations

from builders.jobs import Obj, a_manifest, gpu_pool, tpu_pool
from diloco_cli.waiting_line import Place, places

CLASSES = [
    {"metadata": {"name": "production"}, "value": 2000},
    {"metadata": {"name": "usual"}, "value": 10, "globalDefault": True},
    {"metadata": {"name": "low"}, "value": -5},
]


def waiting(
    name: str, minute: int, *, placed: int = 0, priority: str = "", pools: tuple[Obj, ...] = (), reason: str = "NoFreeSlice"
) -> Obj:
    """A job that was created at this minute, and whose pools all wait."""
    pools = pools or (tpu_pool("v5p"),)
    job = a_manifest(name, namespace="team", min=1, max=4, pools=pools, spec={"priorityClassName": priority} if priority else None)
    job["metadata"] |= {"uid": f"uid-{name}", "creationTimestamp": f"2026-11-20T21:{minute:02}:00Z"}
    status = {"pools": [{"name": pool["name"], "reason": reason} for pool in pools], "learners": {"placed": placed, "min": 1, "max": 4}}
    return {**job, "status": status}


def test_the_oldest_of_equal_jobs_is_first() -> None:
    jobs = [waiting("third", 3), waiting("first", 1), waiting("second", 2)]
    assert [places(job, jobs, CLASSES)["v5p"] for job in jobs] == [Place(3, 3), Place(1, 3), Place(2, 3)]


def test_priority_comes_before_age_and_a_minimum_before_growth() -> None:
    grows = waiting("grows", 1, placed=1, priority="production")
    urgent, usual, low = waiting("urgent", 9, priority="production"), waiting("usual", 8), waiting("low", 2, priority="low")
    jobs = [low, grows, usual, urgent]
    assert [places(job, jobs, CLASSES)["v5p"].position for job in (urgent, usual, low, grows)] == [1, 2, 3, 4]


def test_only_jobs_that_wait_for_the_same_hardware_count() -> None:
    job = waiting("mine", 5, pools=(tpu_pool("a", topology="2x2x1"), gpu_pool("b")))
    others = [
        waiting("smaller", 1, pools=(tpu_pool("x", topology="2x2x2"),)),
        waiting("same-gpu", 1, pools=(gpu_pool("y"),)),
        waiting("content", 1, pools=(gpu_pool("z"),), reason="AtMaximum"),
    ]
    assert places(job, [job, *others], ()) == {"a": Place(1, 1), "b": Place(2, 2)}


def test_a_pool_in_another_cluster_has_no_place_among_those_of_this_one() -> None:
    far, near = tpu_pool("far", cluster="tokyo"), tpu_pool("near")
    job = waiting("mine", 5, pools=(far, near))
    job["spec"]["syncer"] = {"externalAddress": "syncer.example.com"}
    job["status"]["pools"][0]["cluster"] = "tokyo"
    other = waiting("other", 6)
    assert places(job, [job, other], ()) == {"near": Place(1, 2)}
    job["status"]["pools"].pop()
    assert places(other, [job, other], ()) == {"v5p": Place(1, 1)}


def test_a_job_that_cannot_be_read_counts_as_not_there() -> None:
    broken = waiting("broken", 1)
    broken["spec"]["pools"] = "none"
    job = waiting("mine", 5)
    assert places(job, [broken, job], ()) == {"v5p": Place(1, 1)}
