"""One job over two clusters, each with an API server, an operator and nodes of its own. Between them there is one address of the syncer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from builders.control_plane import ControlPlane
from builders.kube_jobs import KubeCluster, install_chart, kube_cluster, operator
from builders.load_balancer import a_plain_process, check_tokens, load_balancer, syncer_of
from builders.local import WAIT_SECONDS, is_true
from builders.local_jobs import a_fleet, a_quadratic_job
from diloco_local.links import Link

type Obj = dict[str, Any]

pytestmark = [pytest.mark.timeout(1500), pytest.mark.xdist_group("many-learners")]

STEP_MS: dict[str, object] = {"QUADRATIC_STEP_MS": "50"}


class Clusters(NamedTuple):
    home: KubeCluster
    tokyo: KubeCluster
    link: Link
    """What tokyo reaches the syncer by."""
    folder: Path
    """Where `kubectl diloco part` has written the part."""


@contextlib.asynccontextmanager
async def two_clusters(home_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Clusters]:
    """The job `quad` trains at home with one unit, and its part in tokyo, which was applied from the written files, with two."""
    for each in ("home", "tokyo"):
        (tmp_path / each).mkdir()
    with contextlib.ExitStack() as stack:
        address, link = stack.enter_context(load_balancer(syncer_of(home_plane, "quad")))
        plane = stack.enter_context(ControlPlane(tmp_path / "plane-tokyo"))
        install_chart(plane, progressInterval="500ms")
        plane.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=180s")
        job = a_quadratic_job(units={"v5p": 1}, steps=1_000_000, environment=STEP_MS)
        job["spec"]["syncer"] = {"externalAddress": address}
        job["spec"]["learners"]["outside"] = ["finisher"]
        async with (
            kube_cluster(home_plane, tmp_path / "home", a_fleet(tpus=1, gpus=0)) as home,
            kube_cluster(plane, tmp_path / "tokyo", a_fleet(tpus=2, gpus=0)) as tokyo,
        ):
            stack.enter_context(operator(home_plane, tmp_path / "home"))
            stack.enter_context(operator(plane, tmp_path / "tokyo"))
            await home.apply(job)
            await home.job("quad", is_true("Training"))
            folder = tmp_path / "quad-tokyo"
            said = await home.kubectl("diloco", "part", "quad", "--cluster", "tokyo", "--pool", "v5p=2x2x2x1,name=far", "-o", str(folder))
            assert f"in the cluster tokyo: kubectl apply --server-side -f {folder}" in said
            await tokyo.kubectl("apply", "--server-side", "-f", str(folder))
            await home.job("quad", parts_contribute(2))
            yield Clusters(home, tokyo, link, folder)


def parts_contribute(units: int) -> Callable[[Obj | None], bool]:
    def holds(job: Obj | None) -> bool:
        return [part.get("contributing", 0) for part in (job or {}).get("status", {}).get("parts", ())] == [units]

    return holds


def tokyo_is(state: str) -> Callable[[Obj | None], bool]:
    """Home knows so by the syncer alone: it has no client of tokyo's API server."""

    def holds(job: Obj | None) -> bool:
        return [part.get("state") for part in (job or {}).get("status", {}).get("parts", ())] == [state]

    return holds


def trains_as(unit: str, attempt: int) -> Callable[[Obj | None], bool]:
    def holds(job: Obj | None) -> bool:
        units = (job or {}).get("status", {}).get("units", ())
        return any((each["name"], each["attempt"], each["state"]) == (unit, attempt, "Training") for each in units)

    return holds


def is_attempt(unit: str, attempt: int, *states: str) -> Callable[[Obj | None], bool]:
    def holds(job: Obj | None) -> bool:
        units = (job or {}).get("status", {}).get("units", ())
        return any((each["name"], each["attempt"]) == (unit, attempt) and each["state"] in states for each in units)

    return holds


def step_of(job: Obj) -> int:
    return int(job["status"]["progress"]["step"])


def has_done(step: int) -> Callable[[Obj | None], bool]:
    return lambda job: job is not None and step_of(job) >= step


async def finish(clusters: Clusters, plane: ControlPlane, tmp_path: Path) -> tuple[Obj, Obj]:
    """A learner outside joins and ends the job. Return the job as home and as tokyo have it at the end."""
    bundle = tmp_path / "finisher"
    await clusters.home.kubectl("diloco", "join-bundle", "quad", "finisher", "--output", str(bundle))
    with a_plain_process(bundle, QUADRATIC_FINISH_AT_STEP="3") as process:
        at_home = await clusters.home.job("quad", is_true("Complete"))
        in_tokyo = await clusters.tokyo.job("quad", is_true("Complete"))
        assert await asyncio.to_thread(process.wait, WAIT_SECONDS) == 0
    return at_home, in_tokyo


async def test_units_of_two_clusters_train_one_job_and_each_operator_restarts_its_own(jobs_plane: ControlPlane, tmp_path: Path) -> None:
    """No unit is in two places: home has pods of its own pool alone. The link goes while a unit of tokyo fails: it starts again there, home
    trains on, and the unit joins once the link is back. At the end every token is of one of the units."""
    async with two_clusters(jobs_plane, tmp_path) as clusters:
        home, tokyo = clusters.home, clusters.tokyo
        learners = "-l=diloco.dev/component=learner"
        assert (await home.kubectl("get", "pods", learners, "-o", "name")).split() == ["pod/quad-v5p-0-a1-0"]
        assert (await tokyo.kubectl("get", "pods", "-o", "name")).split() == ["pod/quad-far-0-a1-0", "pod/quad-far-1-a1-0"]

        await tokyo.kubectl("delete", "pod", "quad-far-0-a1-0", "--wait=false")
        await tokyo.job("quad", trains_as("far-0", 2))
        await home.job("quad", parts_contribute(2))

        clusters.link.cut()
        cut_at = step_of(await home.job("quad", parts_contribute(0)))
        await tokyo.kubectl("delete", "pod", "quad-far-1-a1-0", "--wait=false")
        await tokyo.job("quad", is_attempt("far-1", 2, "Joining"))
        await home.job("quad", has_done(cut_at + 20))
        clusters.link.heal()
        await tokyo.job("quad", trains_as("far-1", 2))
        await home.job("quad", parts_contribute(2))
        await home.job("quad", tokyo_is("Training"))

        at_home, in_tokyo = await finish(clusters, jobs_plane, tmp_path)
        check_tokens(jobs_plane, at_home, ["v5p-0", "far-0", "far-1"], "finisher")
        [complete] = [each for each in in_tokyo["status"]["conditions"] if each["type"] == "Complete"]
        assert complete["reason"] == "HomeComplete"
        assert in_tokyo["status"]["home"]["uid"] == at_home["metadata"]["uid"]


async def test_a_part_that_was_lost_with_its_status_goes_on_from_the_attempts_that_the_syncer_knows(
    jobs_plane: ControlPlane, tmp_path: Path
) -> None:
    """Its DiLoCoJob is deleted and applied again, as after a restore: attempt 1 would be fenced, and the next ones are newer."""
    async with two_clusters(jobs_plane, tmp_path) as clusters:
        home, tokyo = clusters.home, clusters.tokyo
        await tokyo.kubectl("delete", "dlj", "quad", "--cascade=foreground")
        await tokyo.kubectl("apply", "--server-side", "-f", str(clusters.folder))
        for unit in ("far-0", "far-1"):
            found = await tokyo.job("quad", trains_as(unit, 2))
            assert next(each for each in found["status"]["units"] if each["name"] == unit)["failures"] == []
        await home.job("quad", parts_contribute(2))
        await finish(clusters, jobs_plane, tmp_path)
