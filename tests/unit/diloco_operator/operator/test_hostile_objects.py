"""Malformed and hostile objects against a running operator: they harm themselves only, and people can see which they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from builders.cluster_scenes import (
    TPU,
    a_key_on_an_unsupported_curve,
    a_secret,
    a_strangers_pod,
    malformed,
    named,
    plans,
    two_jobs_among_strangers,
    without_first_parameter,
)
from builders.fake_cluster import NS, FakeCluster
from builders.jobs import with_field
from builders.virtual_time import run_virtual, until
from diloco_operator.api import names
from diloco_operator.certificates.issuing import Issuer
from diloco_operator.kube.client import ApiError, Obj, Resource


def among_strangers(*, moved: bool = False) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Play the test with two jobs that train; afterwards job `other` and the free slices must be as before. `moved`: job `lm` took another
    slice, because a pod that is its unit's no longer still runs on the first."""

    def of(act: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        async def play(arguments: dict[str, Any]) -> None:
            async with two_jobs_among_strangers() as cluster:
                before, free = await plans(cluster, "other"), cluster.free_slices()
                await act(cluster, **arguments)
                assert (await plans(cluster, "other"), cluster.free_slices()) == (before, free[1:] if moved else free)

        def run(**arguments: Any) -> None:
            run_virtual(play(arguments))

        return without_first_parameter(run, act)

    return of


async def uid_of(cluster: FakeCluster, resource: Resource, name: str) -> str:
    namespace = NS if resource.namespaced else ""
    return str((await cluster.api.get(resource, namespace, name))["metadata"]["uid"])


def malform(cluster: FakeCluster, resource: Resource, name: str, path: str, value: Any) -> Coroutine[Any, Any, None]:
    """From now on the API server shows the object with this value at `path`."""
    namespace = NS if resource.namespaced else ""
    cluster.client.distortions[resource.plural, namespace, name] = lambda obj: with_field(obj, path, value)
    return cluster.touch(resource, namespace, name)


# --- those that ended the operator ------------------------------------------------------------------------------------
@pytest.mark.slow
@among_strangers()
async def test_an_authority_on_a_curve_that_the_library_does_not_support_is_none(cluster: FakeCluster) -> None:
    authority = Issuer(lambda: 0.0, 86400.0).authority("uid")
    data = {"ca.crt": authority.root.pem, "ca.key": a_key_on_an_unsupported_curve()}
    await cluster.api.create(names.SECRETS, a_secret("strange-ca", "strange", data))
    await cluster.settle()
    await cluster.restart()  # and again after a restart
    await cluster.settle()


@pytest.mark.slow
@among_strangers()
async def test_a_pod_whose_owner_has_any_uid_does_not_end_the_operator_when_its_node_changes(cluster: FakeCluster) -> None:
    await cluster.api.create(names.PODS, a_strangers_pod("strange", "lm", owner="a/b", node="np-a-0"))
    await cluster.settle()
    await cluster.api.patch(names.NODES, "", "np-a-0", {"metadata": {"labels": {"x": "y"}}})
    await cluster.settle()


@pytest.mark.slow
@pytest.mark.parametrize("label", [names.LABEL_UNIT, names.LABEL_POOL, names.LABEL_ATTEMPT, names.LABEL_HOST])
@among_strangers(moved=True)
async def test_a_relabelled_pod_is_named_and_its_job_goes_on_without_it(cluster: FakeCluster, label: str) -> None:
    await cluster.api.patch(names.PODS, NS, "lm-v6e-0-a1-0", {"metadata": {"labels": {label: "other"}}})
    await cluster.settle()
    uid = await uid_of(cluster, names.PODS, "lm-v6e-0-a1-0")
    assert named(cluster, "Pod default/lm-v6e-0-a1-0", uid, "can be used only in part")
    assert malformed(cluster, names.PODS) == 1
    assert [message for message in await cluster.event_messages("MalformedObject", "lm") if "lm-v6e-0-a1-0" in message]


# --- what only a broken API server sends ------------------------------------------------------------------------------
CASES: list[tuple[Resource, str, str, Any]] = [
    (names.NODES, "spare", "metadata.labels", ["a"]),
    (names.NODES, "spare", "metadata.labels", {"a": ["b"]}),
    (names.NODES, "spare", "spec.taints", [{"effect": "NoSchedule"}]),
    (names.NODES, "spare", "spec.taints", {"key": "a"}),
    (names.NODES, "spare", "status.conditions[0].lastTransitionTime", "yesterday"),
    (names.NODES, "spare", "status.capacity", [1]),
    (names.NODES, "spare", "metadata.name", 5),
    (names.PODS, "lm-v6e-0-a1-0", "metadata.labels", "none"),
    (names.PODS, "lm-v6e-0-a1-0", "metadata.ownerReferences", [5]),
    (names.PODS, "lm-v6e-0-a1-0", "metadata.creationTimestamp", 12),
    (names.PODS, "lm-v6e-0-a1-0", "status.containerStatuses", {"name": "learner"}),
    (names.PODS, "lm-v6e-0-a1-0", "status.containerStatuses[0].restartCount", 1e309),
    (names.PODS, "lm-v6e-0-a1-0", "status.message", ["no", "text"]),
    (names.SECRETS, "lm-syncer-tls", "data", ["a"]),
    (names.SECRETS, "lm-syncer-tls", "data", {"ca.crt": 7}),
    (names.CONFIG_MAPS, "lm-job", "metadata.ownerReferences", "me"),
    (names.CONFIG_MAPS, "lm-job", "data", 5),
    (names.SERVICES, "lm", "metadata", None),
    (names.VOLUME_CLAIMS, "lm-syncer", "metadata.uid", {"a": 1}),
    (names.PRIORITY_CLASSES, "important", "value", "a lot"),
    (names.PRIORITY_CLASSES, "important", "value", 10**400),
    (names.DILOCO_JOBS, "lm", "metadata.generation", "first"),
    (names.DILOCO_JOBS, "lm", "metadata.creationTimestamp", {}),
    (names.DILOCO_JOBS, "lm", "status.units[0].state", "Dancing"),
    (names.DILOCO_JOBS, "lm", "status.units[0].name", "nobody"),
    (names.DILOCO_JOBS, "lm", "status.units[0].since", 5),
    (names.DILOCO_JOBS, "lm", "status.units", "all"),
    (names.DILOCO_JOBS, "lm", "status.progress", {"tokens": float("nan")}),
    (names.DILOCO_JOBS, "lm", "status", ["a"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("resource", "name", "path", "value"), CASES, ids=lambda case: str(getattr(case, "plural", case))[:40])
@among_strangers()
async def test_a_malformed_object_is_named_and_a_later_good_version_is_taken(
    cluster: FakeCluster, resource: Resource, name: str, path: str, value: Any
) -> None:
    await cluster.api.create(names.PRIORITY_CLASSES, {"metadata": {"name": "important"}, "value": 5})
    await cluster.settle()
    await malform(cluster, resource, name, path, value)
    await cluster.settle()
    assert malformed(cluster, resource) == 1
    assert named(cluster, f"{resource.kind} ", "used")
    cluster.client.distortions.clear()
    await cluster.touch(resource, NS if resource.namespaced else "", name)
    cluster.api.compact()
    cluster.api.interrupt_watches()  # an object without a name is known to be gone only after a list
    await cluster.settle()
    await cluster.trains("lm")
    assert malformed(cluster, resource) == 0


@pytest.mark.slow
@among_strangers()
async def test_a_malformed_object_of_a_job_is_an_event_on_the_job_also_when_the_job_comes_later(cluster: FakeCluster) -> None:
    await cluster.api.create(names.PODS, a_strangers_pod("early", "late"))
    await cluster.api.create(names.PODS, a_strangers_pod("strange", "lm"))
    await cluster.settle()
    assert [message for message in await cluster.event_messages("MalformedObject", "lm") if "Pod default/strange" in message]
    assert not await cluster.event_messages("MalformedObject", "late")
    lm = await cluster.api.get(names.DILOCO_JOBS, NS, "lm")
    late = {"apiVersion": lm["apiVersion"], "kind": lm["kind"], "metadata": {"namespace": NS, "name": "late"}, "spec": lm["spec"]}
    await cluster.api.create(names.DILOCO_JOBS, with_field(late, "spec.suspend", True))
    await cluster.settle()
    assert [message for message in await cluster.event_messages("MalformedObject", "late") if "Pod default/early" in message]


@pytest.mark.slow
@among_strangers()
async def test_a_malformed_object_of_another_controllers_job_is_no_event_on_that_job(cluster: FakeCluster) -> None:
    lm = await cluster.api.get(names.DILOCO_JOBS, NS, "lm")
    meta = {"namespace": NS, "name": "theirs"}
    theirs = {"apiVersion": lm["apiVersion"], "kind": lm["kind"], "metadata": meta, "spec": lm["spec"]}
    await cluster.api.create(names.DILOCO_JOBS, with_field(theirs, "spec.managedBy", "example.com/other"))
    await cluster.api.create(names.PODS, a_strangers_pod("strange", "theirs"))
    await cluster.settle()
    assert malformed(cluster, names.PODS) == 1
    assert not await cluster.event_messages("MalformedObject", "theirs")


@pytest.mark.slow
@among_strangers()
async def test_malformed_objects_are_told_once_and_do_not_fill_the_log(cluster: FakeCluster) -> None:
    for index in range(200):
        await cluster.api.create(names.PODS, a_strangers_pod(f"strange-{index}", "lm"))
    await cluster.settle()
    assert malformed(cluster, names.PODS) == 200
    told = len([line for line in cluster.lines if "Pod default/strange" in line])
    assert told < 60
    for _ in range(3):
        cluster.api.compact()
        cluster.api.interrupt_watches()  # everything is listed again
        await cluster.settle()
    assert len([line for line in cluster.lines if "Pod default/strange" in line]) == told
    assert len(await cluster.event_messages("MalformedObject", "lm")) <= 11


@pytest.mark.slow
@among_strangers()
async def test_a_defect_of_a_handler_costs_only_the_object_that_met_it(cluster: FakeCluster) -> None:
    def fails(resource: Resource, old: object, new: Any) -> None:
        if new is not None and new.name == "strange":
            raise KeyError("a defect")

    cluster.operator.caches.on_object_change(fails)
    strange: Obj = {"metadata": {"namespace": NS, "name": "strange", "labels": {names.LABEL_JOB: "lm"}}, "data": {}}
    await cluster.api.create(names.CONFIG_MAPS, strange)
    await cluster.settle()
    assert named(cluster, "ConfigMap default/strange", "KeyError", "please report it")
    assert malformed(cluster, names.CONFIG_MAPS) == 1
    await cluster.trains("lm")


@pytest.mark.slow
@among_strangers()
async def test_an_operator_starts_beside_malformed_objects_of_every_kind(cluster: FakeCluster) -> None:
    labels = {names.LABEL_JOB: "ghost", names.LABEL_COMPONENT: names.COMPONENT_LEARNER}
    for resource, extra in (
        (names.CONFIG_MAPS, {}),
        (names.SECRETS, {}),
        (names.SERVICES, {"spec": {"clusterIP": "None"}}),
        (names.PODS, {"spec": {"containers": [{"name": "learner", "image": "i"}]}}),
    ):
        await cluster.api.create(resource, {"metadata": {"namespace": NS, "name": "strange", "labels": labels}, **extra})
        cluster.client.distortions[resource.plural, NS, "strange"] = lambda obj: with_field(obj, "metadata.ownerReferences", 7)
    cluster.client.distortions["nodes", "", "spare"] = lambda obj: "no object at all"
    await cluster.restart()
    await asyncio.sleep(5)
    assert [malformed(cluster, each) for each in (names.CONFIG_MAPS, names.SECRETS, names.SERVICES, names.PODS, names.NODES)] == [1] * 5


# --- texts of others --------------------------------------------------------------------------------------------------
LONG = "\x1b[2J\u202ebad news\n\t" * 5_000


def texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for each in value.values() for text in texts(each)]
    return [text for each in value for text in texts(each)] if isinstance(value, list) else []


async def check_texts(cluster: FakeCluster) -> None:
    """Nothing that people read is longer than the CRD allows, or does something to a terminal."""
    events = (await cluster.api.list(names.EVENTS, NS)).items
    jobs = (await cluster.api.list(names.DILOCO_JOBS, NS)).items
    for text in [*texts(events), *texts([job.get("status") for job in jobs]), *cluster.lines]:
        assert len(text) <= 4096 + 100
        assert text.isprintable()


async def patch_status(cluster: FakeCluster, resource: Resource, name: str, status: Obj) -> None:
    namespace = NS if resource.namespaced else ""
    await cluster.api.patch(resource, namespace, name, {"status": status}, subresource="status")


def waiting(message: str) -> Obj:
    state = {"waiting": {"reason": "ImagePullBackOff", "message": message}}
    container = {"name": "learner", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"phase": "Pending", "containerStatuses": [container]}


def ended(message: str) -> Obj:
    state = {"terminated": {"exitCode": 1, "reason": "Error", "message": message, "finishedAt": "2025-11-20T22:00:00Z"}}
    container = {"name": "learner", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"phase": "Failed", "reason": message, "message": message, "containerStatuses": [container]}


def disrupted(message: str) -> Obj:
    return {"phase": "Running", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": message, "message": message}]}


async def shown(cluster: FakeCluster) -> None:
    """Job lm's status or an event about it quotes the bad news, in the next moments."""
    for _ in range(20):
        job = await cluster.api.get(names.DILOCO_JOBS, NS, "lm")
        events = (await cluster.api.list(names.EVENTS, NS)).items
        if any("bad news" in text for text in texts([job["status"], events])):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("nothing said it")


@pytest.mark.slow
@pytest.mark.parametrize("status", [waiting(LONG), ended(LONG.replace("\n", " ")), disrupted(LONG)], ids=["waiting", "ended", "disrupted"])
@among_strangers()
async def test_long_texts_of_a_kubelet_are_clipped_and_status_is_written(cluster: FakeCluster, status: Obj) -> None:
    before = cluster.operator.counters.failed
    pod = "lm-v6e-0-a1-0"
    if status["phase"] == "Pending":
        await cluster.api.delete(names.PODS, NS, pod, grace_seconds=0)
        pod = "lm-v6e-0-a2-0"
        await until(lambda: pod in [each["metadata"]["name"] for each in cluster.pods((NS, "lm"))])
    await patch_status(cluster, names.PODS, pod, status)
    await shown(cluster)
    await check_texts(cluster)
    await cluster.settle(60)
    assert cluster.operator.counters.failed == before
    await cluster.trains("lm")


@pytest.mark.slow
@among_strangers()
async def test_a_nodes_long_message_is_clipped_where_pools_quote_it(cluster: FakeCluster) -> None:
    for name in ("np-c-0", "np-d-0"):
        ready = {"type": "Ready", "status": "False", "message": LONG, "lastTransitionTime": "2025-11-20T21:00:00Z"}
        await patch_status(cluster, names.NODES, name, {"conditions": [ready]})
    lm = await cluster.api.get(names.DILOCO_JOBS, NS, "lm")
    more = with_field(with_field(lm, "spec.learners.max", 4), "spec.pools[0].learners.max", 4)
    await cluster.api.update(names.DILOCO_JOBS, more)
    await cluster.settle(20)
    await shown(cluster)
    await check_texts(cluster)
    for name in ("np-c-0", "np-d-0"):
        ready = {"type": "Ready", "status": "True", "message": "", "lastTransitionTime": "2025-11-20T21:00:00Z"}
        await patch_status(cluster, names.NODES, name, {"conditions": [ready]})
    await cluster.api.update(names.DILOCO_JOBS, {**lm, "metadata": (await cluster.api.get(names.DILOCO_JOBS, NS, "lm"))["metadata"]})
    await cluster.settle(20)


@pytest.mark.slow
@among_strangers()
async def test_the_long_message_of_a_rejected_write_is_clipped(cluster: FakeCluster) -> None:
    def reject(verb: str, resource: Resource, namespace: str, name: str) -> None:
        if verb == "create" and resource == names.PODS and name.startswith("lm-"):
            raise ApiError(403, "Forbidden", f"admission webhook said: {LONG}")

    cluster.api.before = reject
    await cluster.api.delete(names.PODS, NS, "lm-v6e-0-a1-0", grace_seconds=0)
    await cluster.settle(20)
    await shown(cluster)
    await check_texts(cluster)
    cluster.api.before = lambda *_: None
    await cluster.settle(60)
    await cluster.trains("lm")


# --- pods that hold nothing -------------------------------------------------------------------------------------------
GATED: Obj = {"schedulingGates": [{"name": "example.com/never"}]}


def a_forged_pod(unit: str, attempt: int, node: str, owner: str, *, job: str = "lm") -> Obj:
    """As the operator would make it, but pinned to a node of the tenant's choice; never bound, and never gone."""
    labels = {names.LABEL_UNIT: unit, names.LABEL_POOL: "v6e", names.LABEL_ATTEMPT: str(attempt), names.LABEL_HOST: "0"}
    pod = a_strangers_pod(f"{job}-{unit}-a{attempt}-0", job, owner=owner, node=node, labels=labels, **GATED)
    return with_field(pod, "metadata.annotations", {names.ANNOTATION_NODE: node, names.ANNOTATION_SLICE: node})


@pytest.mark.slow
@pytest.mark.parametrize("job", ["lm", "nobodys"])
@pytest.mark.parametrize("owner", ["", "a-job-of-long-ago"])
@among_strangers()
async def test_pods_of_no_live_job_hold_nothing(cluster: FakeCluster, job: str, owner: str) -> None:
    for index, node in enumerate(("np-c-0", "np-d-0")):
        await cluster.api.create(names.PODS, a_strangers_pod(f"strange-{index}", job, owner=owner, node=node, **GATED))
        await cluster.api.create(names.PODS, a_forged_pod(f"v6e-{index + 1}", 1, node, owner, job=job))
    await cluster.settle()
    await cluster.restart()
    await cluster.settle()
    assert cluster.free_slices() == ["np-c-0", "np-d-0"]


@pytest.mark.slow
@among_strangers()
async def test_pods_that_are_forged_for_a_live_job_hold_no_more_than_the_job_may_have(cluster: FakeCluster) -> None:
    """Its units are deleted; what a finalizer keeps drains for ever, and holds nothing, as nothing is bound."""
    owner = await uid_of(cluster, names.DILOCO_JOBS, "lm")
    tpu = {"name": "learner", "image": "i", "resources": {"limits": {TPU: "4"}}}
    for index, node in enumerate(("np-c-0", "np-d-0")):
        forged_pod = a_forged_pod(f"v6e-{index + 1}", 1, node, owner)
        await cluster.api.create(names.PODS, with_field(forged_pod, "spec.containers", [tpu]))
    await cluster.settle()
    forged = [pod for pod in cluster.pods((NS, "lm")) if "finalizers" in pod["metadata"]]
    assert len(forged) == 2
    assert all("deletionTimestamp" in pod["metadata"] for pod in forged)
    assert (await plans(cluster, "lm"))[0][0] == ("v6e-0", "np-a-0", "Training", 1)


@pytest.mark.slow
@among_strangers()
async def test_forged_pods_that_request_no_accelerators_are_named_and_hold_nothing(cluster: FakeCluster) -> None:
    owner = await uid_of(cluster, names.DILOCO_JOBS, "lm")
    for index, node in enumerate(("np-c-0", "np-d-0")):
        await cluster.api.create(names.PODS, a_forged_pod(f"v6e-{index + 1}", 1, node, owner))
    await cluster.settle()
    assert cluster.free_slices() == ["np-c-0", "np-d-0"]
    assert (await plans(cluster, "lm"))[0] == [("v6e-0", "np-a-0", "Training", 1)]
    assert named(cluster, "Pod default/lm-v6e-1-a1-0", "requests no google.com/tpu")


@among_strangers()
async def test_an_attempt_far_beyond_the_record_is_named_and_not_adopted(cluster: FakeCluster) -> None:
    owner = await uid_of(cluster, names.DILOCO_JOBS, "lm")
    await cluster.api.create(names.PODS, a_forged_pod("v6e-0", 900_000_000, "np-c-0", owner))
    await cluster.settle()
    assert (await plans(cluster, "lm"))[0] == [("v6e-0", "np-a-0", "Training", 1)]
    assert named(cluster, "Pod default/lm-v6e-0-a900000000-0", "far beyond attempt 1")
    assert malformed(cluster, names.PODS) == 1
    assert [message for message in await cluster.event_messages("MalformedObject", "lm") if "far beyond" in message]


@pytest.mark.slow
@pytest.mark.parametrize("slice_", ["np-c-0", "np-c-0+np-d-0", "nowhere"])
@among_strangers()
async def test_a_slice_that_the_unit_is_not_on_is_not_held_whatever_its_pod_says(cluster: FakeCluster, slice_: str) -> None:
    change = {"metadata": {"annotations": {names.ANNOTATION_SLICE: slice_, names.ANNOTATION_NODE: "np-c-0"}}}
    await cluster.api.patch(names.PODS, NS, "lm-v6e-0-a1-0", change)
    await cluster.settle()
    assert (await plans(cluster, "lm"))[0] == [("v6e-0", "np-a-0", "Training", 1)]


@pytest.mark.slow
@among_strangers()
async def test_a_slice_that_is_not_of_the_pools_shape_is_not_held_whatever_status_says(cluster: FakeCluster) -> None:
    status = (await cluster.api.get(names.DILOCO_JOBS, NS, "lm"))["status"]
    status["units"] += [{**status["units"][0], "name": f"v6e-{index}", "slice": "np-c-0+np-d-0+spare+cpu-0"} for index in range(1, 9)]
    await patch_status(cluster, names.DILOCO_JOBS, "lm", {"units": status["units"]})
    await cluster.restart()
    await cluster.settle()
    assert not cluster.operator.inventory.reserved_by("spare")
    await cluster.settle(60)
