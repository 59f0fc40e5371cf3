"""Parts that an operator makes in another cluster: what it writes there, and what it does while that cluster does not answer."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from builders.fake_cluster import wall_clock
from builders.jobs import Obj, a_job
from builders.operator_run import an_api
from builders.virtual_time import run_virtual
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.api.crd import build_crd
from diloco_operator.kube.client import Forbidden, NotFound, Unavailable
from diloco_operator.operator.part_clusters import ClusterConfig, OtherClusters, PartCluster, PartClusters
from diloco_operator.plan import WantedPart

KEY = ("team", "bytes-lm")
TOKYO = ClusterConfig("tokyo", "", {"team": "far"})
SECRET = "bytes-lm-part-tokyo-tls"


class Link:
    """The API server of the other cluster, which may be away."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self.away = False
        self.forbidden = ""
        """A namespace in which jobs cannot be listed."""
        self.muted = False
        """Its watches bring nothing, as on a connection that is half open."""
        self.defect: Exception | None = None
        """What creates raise."""
        self.writes: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._api, name)

        async def send(*arguments: Any, **options: Any) -> Any:
            if self.away:
                raise Unavailable(503, "ServiceUnavailable", "no route to tokyo")
            if name == "list" and self.forbidden and arguments[1] == self.forbidden:
                raise Forbidden(403, "Forbidden", f"cannot list dilocojobs in {self.forbidden}")
            if self.defect is not None and name == "create":
                raise self.defect
            if name in ("create", "update", "patch", "delete") and not options.get("dry_run"):
                self.writes.append(f"{name} {arguments[0].kind}")
            return await method(*arguments, **options)

        return send

    async def watch(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        async for event in self._api.watch(*arguments, **options):
            if self.away:
                raise Unavailable(503, "ServiceUnavailable", "no route to tokyo")
            if not self.muted:
                yield event


class Scene:
    """Home with a Secret for the part, and tokyo, which the operator reaches by `link`."""

    def __init__(self, home: MemoryApi, there: MemoryApi, tokyo: ClusterConfig = TOKYO) -> None:
        self.home, self.there, self.link = home, there, Link(there)
        self.changed: list[Any] = []
        self.parts = PartClusters(
            {"tokyo": PartCluster(home, self.link, tokyo, self.changed.append, now=wall_clock, rng=random.Random(1).random)},
            {"osaka": "the kubeconfig of osaka cannot be read"},
        )

    def again(self) -> Scene:
        """The same clusters with another operator, over the same link."""
        scene = Scene(self.home, self.there)
        scene.link = self.link
        scene.parts = PartClusters(
            {"tokyo": PartCluster(self.home, self.link, TOKYO, scene.changed.append, now=wall_clock, rng=random.Random(2).random)}
        )
        return scene

    def want(self, units: int = 1, *, uid: str = "u", version: str = "1", may_be_made: bool = True) -> None:
        self.want_manifest(a_manifest(units, uid), uid=uid, version=version, may_be_made=may_be_made)

    def want_manifest(self, manifest: Obj, *, uid: str = "u", version: str = "1", may_be_made: bool = True) -> None:
        self.parts.want(KEY, uid, [WantedPart("tokyo", SECRET, version, '{"name": "bytes-lm"}', manifest, may_be_made)])

    async def job(self) -> Obj | None:
        try:
            return await self.there.get(names.DILOCO_JOBS, "far", "bytes-lm")
        except NotFound:
            return None

    async def secret(self) -> Obj | None:
        try:
            return await self.there.get(names.SECRETS, "far", "bytes-lm-home")
        except NotFound:
            return None


def a_manifest(units: int, uid: str) -> Obj:
    job = (
        a_job()
        .with_learners(1, units)
        .with_pool("far", max=units)
        .with_spec(syncer={"at": {"address": "a:1", "secretName": "bytes-lm-home"}})
    )
    return {**job.build(), "metadata": {"name": "bytes-lm", "labels": {names.LABEL_HOME: uid}}}


def play(scenario: Callable[[Scene], Awaitable[None]], tokyo: ClusterConfig = TOKYO) -> None:
    async def run() -> None:
        home, there = await an_api(wall_clock), await an_api(wall_clock)
        await home.create(names.NAMESPACES, {"metadata": {"name": "team"}})
        await there.create(names.NAMESPACES, {"metadata": {"name": "far"}})
        data = {"part.pem": base64.b64encode(b"pem").decode()}
        await home.create(names.SECRETS, {"metadata": {"name": SECRET, "namespace": "team"}, "data": data})
        async with working(Scene(home, there, tokyo)) as scene:
            await scenario(scene)

    run_virtual(run())


@asynccontextmanager
async def working(scene: Scene) -> AsyncIterator[Scene]:
    [cluster] = scene.parts.running
    task = asyncio.create_task(cluster.run())
    try:
        yield scene
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_part_is_made_after_its_secret_and_written_again_only_if_it_changes() -> None:
    async def scenario(scene: Scene) -> None:
        scene.want()
        await asyncio.sleep(5)
        assert scene.link.writes == ["create Secret", "create DiLoCoJob"]
        secret, job = await scene.secret(), await scene.job()
        assert secret is not None
        assert job is not None
        assert scene.parts.views(KEY, "u", ["tokyo"])["tokyo"].namespace == job["metadata"]["namespace"]
        assert sorted(secret["data"]) == ["job.json", "part.pem"]
        assert secret["metadata"]["labels"] == {names.LABEL_JOB: "bytes-lm", names.LABEL_HOME: "u"}
        scene.want()
        await asyncio.sleep(1000)
        assert len(scene.link.writes) == 2
        scene.want(3)
        await asyncio.sleep(5)
        assert scene.link.writes[2:] == ["patch DiLoCoJob"]
        scene.want(3, version="2")
        await asyncio.sleep(5)
        assert scene.link.writes[3:] == ["update Secret"]
        assert scene.parts.views(KEY, "u", ["tokyo"])["tokyo"].problem == ""

    play(scenario)


def test_a_field_that_is_taken_out_at_home_goes_there_too() -> None:
    async def scenario(scene: Scene) -> None:
        with_labels = a_manifest(1, "u")
        with_labels["spec"] |= {"podLabels": {"team": "vision", "stage": "test"}, "priorityClassName": "research"}
        template = with_labels["spec"]["pools"][0]["template"]["spec"]
        template["nodeSelector"] = {"zone": "a"}
        scene.want_manifest(with_labels)
        await asyncio.sleep(5)
        without = a_manifest(1, "u")
        without["spec"] |= {"podLabels": {"team": "vision"}}
        scene.want_manifest(without)
        await asyncio.sleep(1000)
        job = await scene.job()
        assert job is not None
        assert (job["spec"]["podLabels"], job["spec"].get("priorityClassName", "")) == ({"team": "vision"}, "")
        assert "nodeSelector" not in job["spec"]["pools"][0]["template"]["spec"]
        assert job["spec"]["syncer"]["at"]["partTimeout"] == "1h", "the default of the API server there"
        assert scene.link.writes == ["create Secret", "create DiLoCoJob", "patch DiLoCoJob"]

    play(scenario)


def test_what_a_person_changes_there_is_changed_back() -> None:
    async def scenario(scene: Scene) -> None:
        scene.want()
        await asyncio.sleep(5)
        await scene.there.patch(names.DILOCO_JOBS, "far", "bytes-lm", {"spec": {"learners": {"max": 7}}})
        await asyncio.sleep(5)
        job = await scene.job()
        assert job is not None
        assert job["spec"]["learners"]["max"] == 1

    play(scenario)


def test_a_part_that_has_failed_is_changed_with_a_retry_and_not_before() -> None:
    """The API server there refuses other changes, and the reason of that would hide why the part has failed."""

    async def scenario(scene: Scene) -> None:
        scene.want()
        await asyncio.sleep(5)
        failed = {"type": "Failed", "status": "True", "reason": "RestartsExhausted", "lastTransitionTime": "2026-11-20T12:00:00Z"}
        status = {"state": "Failed", "reason": "RestartsExhausted", "conditions": [failed]}
        await scene.there.patch(names.DILOCO_JOBS, "far", "bytes-lm", {"status": status}, subresource="status")
        scene.want(3)
        await asyncio.sleep(1000)
        assert scene.parts.views(KEY, "u", ["tokyo"])["tokyo"].problem == ""
        with_retry = a_manifest(3, "u")
        with_retry["spec"]["retry"] = 1
        scene.want_manifest(with_retry)
        await asyncio.sleep(5)
        job = await scene.job()
        assert job is not None
        assert (job["spec"]["retry"], job["spec"]["learners"]["max"]) == (1, 3)
        assert scene.link.writes == ["create Secret", "create DiLoCoJob", "patch DiLoCoJob"]

    play(scenario)


def test_a_job_of_the_name_that_is_no_part_of_this_one_is_left_as_it_is() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.there.create(names.DILOCO_JOBS, {**a_manifest(2, "another"), "metadata": {"name": "bytes-lm", "namespace": "far"}})
        scene.want()
        await asyncio.sleep(5)
        problem = "DiLoCoJob far/bytes-lm exists in cluster tokyo and is no part of this job; rename one of them"
        assert scene.parts.views(KEY, "u", ["tokyo"])["tokyo"].problem == problem
        assert scene.changed, "status says so at once"
        scene.parts.want(KEY, "u", [])
        await asyncio.sleep(5)
        job = await scene.job()
        assert job is not None
        assert job["spec"]["learners"]["max"] == 2

    play(scenario)


def test_a_part_that_the_watch_has_not_shown_is_not_taken_for_that_of_another_job() -> None:
    async def scenario(scene: Scene) -> None:
        await asyncio.sleep(5)
        scene.link.muted = True
        scene.want()
        await asyncio.sleep(5)
        scene.want(2)
        await asyncio.sleep(5)
        assert scene.parts.views(KEY, "u", ["tokyo"])["tokyo"].problem == ""
        assert scene.link.writes == ["create Secret", "create DiLoCoJob"]

    play(scenario)


def test_a_part_that_the_watch_has_not_shown_is_deleted_all_the_same() -> None:
    async def scenario(scene: Scene) -> None:
        await asyncio.sleep(5)
        scene.link.muted = True
        scene.want()
        await asyncio.sleep(5)
        assert await scene.job() is not None
        scene.parts.want(KEY, "u", [])
        await asyncio.sleep(1)
        assert scene.parts.views(KEY, "u", [], everywhere=True)["tokyo"].left
        await asyncio.sleep(60)
        assert (await scene.job(), await scene.secret()) == (None, None)
        assert not scene.parts.views(KEY, "u", [], everywhere=True)

    play(scenario)


def test_a_cluster_whose_crd_knows_no_parts_gets_none() -> None:
    """It would store the part without syncer.at, as a job with a syncer of its own."""

    async def scenario(scene: Scene) -> None:
        crd = build_crd()
        [version] = crd["spec"]["versions"]
        del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["syncer"]["properties"]["at"]
        version["schema"]["openAPIV3Schema"]["properties"]["spec"].pop("x-kubernetes-validations")
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["syncer"].pop("x-kubernetes-validations")
        version["schema"]["openAPIV3Schema"].pop("x-kubernetes-validations")
        await scene.there.patch(names.CUSTOM_RESOURCES, "", crd["metadata"]["name"], {"spec": {"versions": [version]}})
        scene.want()
        await asyncio.sleep(5)
        assert await scene.job() is None
        problem = scene.parts.views(KEY, "u", ["tokyo"])["tokyo"].problem
        assert problem == "the CRD in cluster tokyo knows no syncer.at: upgrade the operator there"

    play(scenario)


def test_a_part_that_may_not_be_made_is_changed_where_it_is() -> None:
    async def scenario(scene: Scene) -> None:
        scene.want(may_be_made=False)
        await asyncio.sleep(5)
        assert scene.link.writes == []
        scene.want()
        await asyncio.sleep(5)
        scene.want(2, may_be_made=False)
        await asyncio.sleep(5)
        assert scene.link.writes[-1] == "patch DiLoCoJob"

    play(scenario)


def test_a_part_that_is_not_wanted_any_more_goes_and_its_secret_after_it() -> None:
    async def scenario(scene: Scene) -> None:
        scene.want()
        await asyncio.sleep(5)
        scene.parts.want(KEY, "u", [])
        await asyncio.sleep(5)
        assert scene.link.writes[2:] == ["delete DiLoCoJob", "delete Secret"]
        assert (await scene.job(), await scene.secret()) == (None, None)
        assert scene.parts.views(KEY, "u", []) == {}

    play(scenario)


def test_a_job_waits_until_the_secret_of_its_part_is_gone_too() -> None:
    async def scenario(scene: Scene) -> None:
        scene.want()
        await asyncio.sleep(5)
        await scene.there.delete(names.DILOCO_JOBS, "far", "bytes-lm")
        scene.link.away = True
        scene.parts.want(KEY, "u", [])
        await asyncio.sleep(5)
        assert scene.parts.views(KEY, "u", [], everywhere=True)["tokyo"].left
        scene.changed.clear()
        scene.link.away = False
        await asyncio.sleep(120)
        assert await scene.secret() is None
        assert scene.parts.views(KEY, "u", [], everywhere=True) == {}
        assert KEY in scene.changed, "the job learns it"

    play(scenario)


def test_a_secret_that_is_not_of_the_job_is_left_as_it_is_whatever_it_says() -> None:
    async def scenario(scene: Scene) -> None:
        scene.want()
        await asyncio.sleep(5)
        await scene.there.delete(names.DILOCO_JOBS, "far", "bytes-lm")
        await scene.there.patch(names.SECRETS, "far", "bytes-lm-home", {"metadata": {"labels": {names.LABEL_HOME: "another"}}})
        scene.want(2)
        await asyncio.sleep(5)
        assert await scene.job() is None
        problem = scene.parts.views(KEY, "u", ["tokyo"])["tokyo"].problem
        assert problem.endswith("Secret far/bytes-lm-home exists there and is not of this job; delete it, or rename the job")

    play(scenario)


def test_a_cluster_that_is_away_is_named_and_gets_its_part_once_it_is_back() -> None:
    async def scenario(scene: Scene) -> None:
        scene.link.away = True
        began = wall_clock()
        scene.want()
        await asyncio.sleep(300)
        view = scene.parts.views(KEY, "u", ["tokyo"])["tokyo"]
        assert view.silent_since is not None
        assert abs(view.silent_since - began) < 1
        scene.link.away = False
        await asyncio.sleep(120)
        assert await scene.job() is not None
        view = scene.parts.views(KEY, "u", ["tokyo"])["tokyo"]
        assert (view.silent_since, view.problem) == (None, "")

    play(scenario)


def test_a_defect_is_told_in_the_part_of_the_job_that_meets_it() -> None:
    async def scenario(scene: Scene) -> None:
        scene.link.defect = KeyError("spec")
        scene.want()
        await asyncio.sleep(300)
        problem = scene.parts.views(KEY, "u", ["tokyo"])["tokyo"].problem
        assert problem == "cluster tokyo: a defect of the operator, which its log describes; please report it"
        scene.link.defect = None
        await asyncio.sleep(120)
        assert await scene.job() is not None
        assert scene.parts.views(KEY, "u", ["tokyo"])["tokyo"].problem == ""

    play(scenario)


def test_a_cluster_that_goes_away_and_comes_back_is_told_although_nothing_changes_in_it() -> None:
    async def scenario(scene: Scene) -> None:
        scene.want()
        await asyncio.sleep(60)
        assert scene.parts.views(KEY, "u", ["tokyo"])["tokyo"].silent_since is None
        scene.changed.clear()
        scene.link.away, gone = True, wall_clock()
        await asyncio.sleep(60)
        assert scene.changed == [KEY], "status says so at once"
        since = scene.parts.views(KEY, "u", ["tokyo"])["tokyo"].silent_since
        assert since is not None
        assert 0 <= since - gone <= 15
        scene.link.away = False
        await asyncio.sleep(16)
        assert scene.parts.views(KEY, "u", ["tokyo"])["tokyo"].silent_since is None
        assert scene.changed == [KEY, KEY]

    play(scenario)


def test_a_new_operator_ends_parts_of_jobs_that_were_deleted_while_the_cluster_was_away() -> None:
    async def scenario(scene: Scene) -> None:
        scene.want()
        await asyncio.sleep(5)
        scene.link.away = True
        scene.parts.forget(KEY)  # that operator has ended
        async with working(scene.again()) as after:
            after.parts.want(KEY, "u", [])
            view = after.parts.views(KEY, "u", [], everywhere=True)["tokyo"]
            assert view.silent_since is not None, "it is not known whether the part is still there"
            scene.link.away = False
            await asyncio.sleep(120)
            assert await scene.job() is None
            assert set(after.changed) == {KEY}, "the job learns that the part is there, and that it is gone"
            assert after.parts.views(KEY, "u", [], everywhere=True) == {}

    play(scenario)


def test_a_namespace_that_must_not_be_read_holds_up_no_parts_of_others() -> None:
    async def scenario(scene: Scene) -> None:
        scene.link.forbidden = "shut"
        part = WantedPart("tokyo", SECRET, "1", "{}", a_manifest(1, "u"), may_be_made=True)
        for number in range(10):
            scene.parts.want(("shut-out", f"job-{number}"), "u", [part])
        await asyncio.sleep(5)
        scene.want()
        await asyncio.sleep(5)
        assert await scene.job() is not None
        assert "cannot list" in scene.parts.views(("shut-out", "job-0"), "u", ["tokyo"])["tokyo"].problem

    play(scenario, ClusterConfig("tokyo", "", {"shut-out": "shut", "team": "far"}))


def test_clusters_that_cannot_be_used_are_told_with_the_reason() -> None:
    async def scenario(scene: Scene) -> None:
        views = scene.parts.views(KEY, "u", ["tokyo", "osaka", "kobe"])
        assert views["osaka"].problem == "the kubeconfig of osaka cannot be read"
        assert views["kobe"].problem == "the operator knows no cluster kobe; it knows tokyo: see clusters of the chart"
        views = scene.parts.views(("other", "bytes-lm"), "u", ["tokyo"])
        assert views["tokyo"].problem.startswith("jobs of namespace other may have no parts in cluster tokyo")

    play(scenario)


def test_an_operator_without_other_clusters_says_that_it_knows_none() -> None:
    assert OtherClusters() == OtherClusters((), {})
    [view] = PartClusters().views(KEY, "u", ["tokyo"]).values()
    assert view.problem == "the operator knows no cluster tokyo; it knows none: see clusters of the chart"
