"""Any JSON, in any field of the objects that the operator watches, and what a tenant may write.

The operator lives, other jobs keep what they have, and what the operator leaves out is named in a log line, in a metric and, where a user
can see it, in an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from builders.cluster_scenes import a_secret, a_strangers_pod, malformed, named, plans, two_jobs_among_strangers
from builders.exploration import examples
from builders.fake_cluster import NS, FakeCluster
from builders.jobs import with_field
from builders.virtual_time import run_virtual
from diloco_local.memory.copy_json import copy_json
from diloco_operator.api import names
from diloco_operator.kube.client import ApiError, Obj, Resource
from diloco_operator.kube.timestamps import format_timestamp
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

WATCHED: list[tuple[Resource, str]] = [
    (names.PODS, "lm-v6e-0-a1-0"),
    (names.PODS, "lm-syncer"),
    (names.PODS, "strangers"),
    (names.NODES, "spare"),
    (names.NODES, "np-d-0"),
    (names.SECRETS, "lm-ca"),
    (names.SECRETS, "lm-syncer-tls"),
    (names.CONFIG_MAPS, "lm-job"),
    (names.SERVICES, "lm"),
    (names.VOLUME_CLAIMS, "lm-syncer"),
    (names.PRIORITY_CLASSES, "important"),
    (names.DILOCO_JOBS, "lm"),
]
OWN = {"lm-v6e-0-a1-0", "lm-syncer", "lm-ca", "lm-syncer-tls", "lm-job"}
"""Objects of job lm: what is wrong with them may cost lm its slice or one slice more, and other jobs nothing."""

NASTY: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        2**63,
        10**400,
        1e309,
        float("nan"),
        -0.0,
        "",
        "a/b",
        "-5",
        "1e309",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59+23:59",
        "tomorrow",
        "\x1b[2J\u202e",
        "\ud800",
        "long " * 30_000,
        [],
        {},
        [None],
        [[]],
        {"": None},
        {"name": []},
        [{"name": "learner", "state": {"waiting": {"reason": [], "message": 5}}}],
        [{"type": "Ready", "status": [], "lastTransitionTime": "x"}],
        [{"key": None}],
        {"diloco.dev/job": "lm", "diloco.dev/component": "learner", "diloco.dev/unit": "v6e-0", "diloco.dev/attempt": "9" * 50},
    ]
)
VALUES = NASTY | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
UNSHRUNK = (Phase.explicit, Phase.generate)
"""A failing example costs a run of the operator, so hypothesis shows it as it was drawn."""
ROUTES = st.lists(st.integers(0, 30), min_size=1, max_size=7)
DISTORTIONS = st.lists(
    st.tuples(st.sampled_from(range(len(WATCHED))), ROUTES, VALUES), min_size=1, max_size=3, unique_by=lambda each: each[0]
)
METADATA, SPEC = 2, 3
"""Where a route through a whole object leads first."""
OF_JOBS = st.tuples(
    st.just(len(WATCHED) - 1), st.builds(lambda first, rest: [first, *rest], st.sampled_from([METADATA, SPEC]), ROUTES), VALUES
)


def distorted(obj: Obj, route: Sequence[int], value: Any) -> Obj:
    """A copy with `value` in the place to which `route` leads, each number choosing among the keys or items there."""
    copy: Obj = copy_json(obj)
    at: Any = copy
    for index, step in enumerate(route):
        keys: list[Any] = sorted(at) if isinstance(at, dict) else list(range(len(at)))
        key = keys[step % len(keys)]
        if index == len(route) - 1 or not isinstance(at[key], dict | list) or not at[key]:
            at[key] = value
            return copy
        at = at[key]
    raise AssertionError("the last step sets the value")


def edited(obj: Obj) -> Obj:
    """A job whose generation says that its spec has changed: with the same generation the operator rightly keeps the spec that it knows."""
    return with_field(obj, "metadata.generation", obj["metadata"]["generation"] + 1000)


async def with_all_kinds(cluster: FakeCluster) -> None:
    await cluster.api.create(names.PRIORITY_CLASSES, {"metadata": {"name": "important"}, "value": 5})
    spec = {"nodeName": "spare", "containers": [{"name": "web", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}
    await cluster.api.create(names.PODS, {"metadata": {"namespace": NS, "name": "strangers", "labels": LEARNER}, "spec": spec})
    await cluster.settle()


LEARNER = {names.LABEL_COMPONENT: names.COMPONENT_LEARNER}


def namespace_of(resource: Resource) -> str:
    return NS if resource.namespaced else ""


async def touch(cluster: FakeCluster, resource: Resource, name: str) -> None:
    try:
        await cluster.touch(resource, namespace_of(resource), name)
    except ApiError as error:
        assert error.code == 404  # noqa: PT017 - the operator has replaced it


async def check_named(cluster: FakeCluster) -> None:
    """All malformed objects, and what is missing in the caches, are where people look."""
    held = list(cluster.operator.caches.malformed)
    for resource in {resource for resource, _ in WATCHED}:
        assert malformed(cluster, resource) == sum(found.resource == resource for found in held)
    for found in held:
        assert named(cluster, f"{found.resource.kind} ", found.name, found.problem)
        if found.label in ("lm", "other") and found.namespace == NS:
            assert [message for message in await cluster.event_messages("MalformedObject", found.label) if found.name in message]
    assert not [line for line in cluster.lines if "report it" in line]
    assert all(line.isprintable() for line in cluster.lines)


@settings(max_examples=examples(60), phases=UNSHRUNK)
@given(DISTORTIONS | OF_JOBS.map(lambda one: [one]))
def test_whatever_the_objects_look_like_the_operator_and_the_other_jobs_go_on(drawn: list[tuple[int, list[int], Any]]) -> None:
    async def run() -> None:
        async with two_jobs_among_strangers() as cluster:
            await with_all_kinds(cluster)
            other, free = await plans(cluster, "other"), cluster.free_slices()
            objects = [WATCHED[index] for index, _, _ in drawn]
            for (resource, name), (_, route, value) in zip(objects, drawn, strict=True):
                place = resource.plural, namespace_of(resource), name
                cluster.client.distortions[place] = partial(distorted, route=route, value=value)
                await touch(cluster, resource, name)
            await cluster.settle()
            await check_named(cluster)
            assert await plans(cluster, "other") == other
            now = set(cluster.free_slices())
            assert "np-b-0" not in now
            of_lm = any(name in OWN or resource == names.DILOCO_JOBS for resource, name in objects)
            its_own = {"np-d-0"} if ("np-d-0" in [name for _, name in objects]) else set()
            assert len(set(free) - its_own - now) <= (1 if of_lm else 0)
            await cluster.restart()  # a new one decides the same beside these objects
            await cluster.settle()
            await check_named(cluster)
            assert await plans(cluster, "other") == other
            cluster.client.distortions.clear()
            cluster.client.distortions["dilocojobs", NS, "lm"] = edited
            for resource, name in objects:
                await touch(cluster, resource, name)
            cluster.api.compact()
            cluster.api.interrupt_watches()
            await cluster.settle(40)
            assert not list(cluster.operator.caches.malformed)
            assert await plans(cluster, "other") == other
            await cluster.trains("lm")

    run_virtual(run())


# --- what a real API server accepts -----------------------------------------------------------------------------------
LABEL_VALUES = st.sampled_from(["", "0", "1", "2", "007", "v6e", "v6e-0", "v6e-1", "v6e-x", "lm", "other", "learner", "syncer", "9" * 60])
NODES = st.sampled_from(["np-a-0", "np-b-0", "np-c-0", "np-d-0", "np-c-0+np-d-0", "spare", "nowhere", "a/b", "", "x" * 2000])
OWNERS = st.sampled_from(["", "lm", "other", "a/b", "gone"])
PODS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["strange", "lm-v6e-0-a2-0", "lm-v6e-1-a1-0", "lm-v6e-7-a1-0", "other-v6e-1-a1-0", "lm-w-0-a1-0"]),
        "job": st.sampled_from(["lm", "other", "nobody"]),
        "owner": OWNERS,
        "labels": st.dictionaries(
            st.sampled_from([names.LABEL_COMPONENT, names.LABEL_UNIT, names.LABEL_POOL, names.LABEL_ATTEMPT, names.LABEL_HOST]),
            LABEL_VALUES,
        ),
        "node": NODES,
        "slice": NODES,
    }
)
PEM = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n"
SECRETS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["strange", "lm-learners-v6e-9", "nobody-ca"]),
        "job": st.sampled_from(["lm", "other", "nobody"]),
        "data": st.dictionaries(
            st.sampled_from(["ca.crt", "ca.key", "identity.pem", "v6e-0-a1.pem"]),
            st.text(max_size=50) | st.builds(PEM.format, st.text("AQIDMFk=\n", max_size=80), st.text("AQIDMFk=\n", max_size=80)),
        ),
    }
)
UNITS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["v6e-0", "v6e-1", "v6e-00", "nobody", "v6e-999999999999", "other"]),
            "pool": st.sampled_from(["v6e", "nobody", ""]),
            "slice": NODES,
            "state": st.sampled_from(["Pending", "Starting", "Training", "Draining", "Failed", "Completed", "BackingOff"]),
            "attempt": st.sampled_from([0, 1, 2, 2**40]),
            "endedAttempt": st.sampled_from([0, 1, 2**40]),
            "restarts": st.sampled_from([0, 2**40]),
            "weight": st.sampled_from([0, 0.5, 1e300]),
            "since": st.sampled_from(["1970-01-01T00:00:00Z", format_timestamp(1e12)]),
            "failures": st.lists(st.just("2025-11-20T21:00:00Z"), max_size=7),
        }
    ),
    max_size=4,
)


@settings(max_examples=examples(40), phases=UNSHRUNK)
@given(st.lists(PODS, max_size=3), st.lists(SECRETS, max_size=2), UNITS)
def test_whatever_a_tenant_may_write_costs_other_jobs_and_free_slices_nothing(
    pods: list[Obj], secrets: list[Obj], units: list[Obj]
) -> None:
    async def run() -> None:
        async with two_jobs_among_strangers() as cluster:
            uids = {job: (await cluster.api.get(names.DILOCO_JOBS, NS, job))["metadata"]["uid"] for job in ("lm", "other")}
            other, free = await plans(cluster, "other"), cluster.free_slices()
            for drawn in pods:
                if drawn["owner"] == "other" or drawn["job"] == "other":
                    continue  # who may write pods as those of a job may disturb this job
                pod = a_strangers_pod(
                    drawn["name"], drawn["job"], owner=str(uids.get(drawn["owner"], drawn["owner"])), labels=drawn["labels"]
                )
                pod["metadata"]["annotations"] = {names.ANNOTATION_NODE: drawn["node"], names.ANNOTATION_SLICE: drawn["slice"]}
                pod["spec"]["schedulingGates"] = [{"name": "example.com/never"}]
                await tried(cluster.api.create(names.PODS, pod))
            for drawn in secrets:
                await tried(cluster.api.create(names.SECRETS, a_secret(drawn["name"], drawn["job"], drawn["data"])))
            if units:
                status = {"status": {"units": units}}
                await tried(cluster.api.patch(names.DILOCO_JOBS, NS, "lm", status, subresource="status"))
            await cluster.settle(30)
            await check_named(cluster)
            assert await plans(cluster, "other") == other
            assert "np-b-0" not in cluster.free_slices()
            assert len(set(free) - set(cluster.free_slices())) <= 1  # lm may have at most one slice; it may have moved
            await cluster.restart()
            await cluster.settle()
            await check_named(cluster)
            assert await plans(cluster, "other") == other

    run_virtual(run())


async def tried(request: Any) -> None:
    """Whatever the API server does not accept does no harm."""
    try:
        await request
    except ApiError as error:
        assert error.code in (400, 409, 422)  # noqa: PT017 - either outcome is right
