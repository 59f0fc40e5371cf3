"""Built-in kinds: pods, binding, services, claims, leases, events."""

from __future__ import annotations

from typing import Any

import pytest
from builders.kube_objects import EVENTS, PODS, SERVICES, VOLUME_CLAIMS, names
from builders.pods import a_bare_pod
from diloco_operator.kube.client import ApiError, Client, Conflict, Invalid


async def test_limits_are_requests_as_well(client: Client, namespace: str) -> None:
    resources = {"limits": {"google.com/tpu": "4", "cpu": "2"}, "requests": {"cpu": "1"}}
    made = await client.create(PODS, a_bare_pod(namespace, "a", containers=[{"name": "main", "image": "x:1", "resources": resources}]))
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"google.com/tpu": "4", "cpu": "1"}


_MAIN = {"name": "main", "image": "image:1"}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"containers": []}, "spec.containers"),
        ({"containers": [{"image": "x"}]}, "spec.containers[0].name"),
        ({"containers": [{"name": "main"}]}, "spec.containers[0].image"),
        ({"containers": [{"name": "Main", "image": "x"}]}, "spec.containers[0].name"),
        ({"containers": [_MAIN, _MAIN]}, "spec.containers[1].name"),
        ({"containers": [{**_MAIN, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}, "spec.containers[0].volumeMounts[0].name"),
        ({"containers": [{**_MAIN, "env": [{"value": "x"}]}]}, "spec.containers[0].env[0].name"),
    ],
)
async def test_wrong_pod_is_rejected_with_its_field(client: Client, namespace: str, spec: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as error:
        await client.create(PODS, a_bare_pod(namespace, "a", **spec))
    assert field in {cause.field for cause in error.value.causes}


async def test_value_of_a_variable_must_be_a_string(client: Client, namespace: str) -> None:
    with pytest.raises(ApiError) as error:
        await client.create(PODS, a_bare_pod(namespace, "a", containers=[{**_MAIN, "env": [{"name": "A", "value": 1}]}]))
    assert error.value.code in (400, 422)  # decoding or validation, as the server has it


async def test_binding_sets_the_node_once(client: Client, namespace: str, node: str) -> None:
    await client.create(PODS, a_bare_pod(namespace, "a"))
    await client.bind(namespace, "a", node)
    bound = await client.get(PODS, namespace, "a")
    assert bound["spec"]["nodeName"] == node
    assert ("PodScheduled", "True") in [(each["type"], each["status"]) for each in bound["status"]["conditions"]]
    with pytest.raises(Conflict):
        await client.bind(namespace, "a", "node-2")
    assert (await client.get(PODS, namespace, "a"))["spec"]["nodeName"] == node


async def test_gated_pod_is_bound_only_when_its_gates_are_removed(client: Client, namespace: str, node: str) -> None:
    await client.create(PODS, a_bare_pod(namespace, "a", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]))
    with pytest.raises(ApiError):
        await client.bind(namespace, "a", node)
    patch = {"spec": {"schedulingGates": [], "nodeSelector": {"pool": "x"}}}
    await client.patch(PODS, namespace, "a", patch)
    await client.bind(namespace, "a", node)
    assert (await client.get(PODS, namespace, "a"))["spec"]["nodeSelector"] == {"pool": "x"}


async def test_headless_service_stays_headless(client: Client, namespace: str) -> None:
    headless = {"clusterIP": "None", "selector": {"a": "b"}, "publishNotReadyAddresses": True, "ports": [{"port": 80}]}
    made = await client.create(SERVICES, {"metadata": {"namespace": namespace, "name": "headless"}, "spec": headless})
    assert made["spec"]["clusterIP"] == "None"


async def test_name_of_a_service_is_a_dns_label(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid):
        await client.create(SERVICES, {"metadata": {"namespace": namespace, "name": "a.b"}, "spec": {"clusterIP": "None"}})


async def test_new_claim_is_pending(client: Client, namespace: str) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    made = await client.create(VOLUME_CLAIMS, {"metadata": {"namespace": namespace, "name": "a"}, "spec": spec})
    assert made["status"]["phase"] == "Pending"


async def test_events_are_found_by_what_they_are_about(client: Client, namespace: str) -> None:
    for name, about in (("a", "job-1"), ("b", "job-2")):
        event = {
            "metadata": {"namespace": namespace, "name": name},
            "involvedObject": {"kind": "Widget", "name": about, "namespace": namespace},
            "reason": "Placed",
            "message": "placed",
            "type": "Normal",
        }
        await client.create(EVENTS, event)
    found = await client.list(EVENTS, namespace, field_selector="involvedObject.name=job-2,reason=Placed")
    assert names(found.items) == ["b"]
