"""Built-in kinds: pods, binding, secrets, config maps, services, claims, leases, events."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from builders.kube_objects import CONFIG_MAPS, EVENTS, LEASES, PODS, SECRETS, SERVICES, VOLUME_CLAIMS, config_map, names
from builders.pods import a_bare_pod
from diloco_operator.kube.client import ApiError, Client, Conflict, Invalid, NotFound, PatchType


async def test_new_pod_is_pending_with_defaults(client: Client, namespace: str) -> None:
    made = await client.create(
        PODS, a_bare_pod(namespace, "a", containers=[{"name": "main", "image": "image:1", "ports": [{"containerPort": 80}]}])
    )
    assert made["status"]["phase"] == "Pending"
    spec, container = made["spec"], made["spec"]["containers"][0]
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"], spec["dnsPolicy"]) == ("Always", 30, "ClusterFirst")
    assert (container["imagePullPolicy"], container["terminationMessagePath"]) == ("IfNotPresent", "/dev/termination-log")
    assert container["ports"] == [{"containerPort": 80, "protocol": "TCP"}]


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
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy"),
        ({"hostname": "Not.A.Label"}, "spec.hostname"),
        ({"nodeSelector": {"a": "no spaces"}}, "spec.nodeSelector"),
        ({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]}, "spec.volumes[1].name"),
        ({"containers": [{**_MAIN, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}, "spec.containers[0].volumeMounts[0].name"),
        ({"containers": [{**_MAIN, "ports": [{"containerPort": 0}]}]}, "spec.containers[0].ports[0].containerPort"),
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


@pytest.mark.parametrize(
    "change",
    [
        {"nodeName": "node-1"},
        {"restartPolicy": "Never"},
        {"nodeSelector": {"a": "b"}},
        {"containers": [{"name": "main", "image": "image:1", "command": ["other"]}]},
        {"hostname": "other"},
    ],
)
async def test_spec_of_a_pod_does_not_change(client: Client, namespace: str, change: dict[str, Any]) -> None:
    made = await client.create(PODS, a_bare_pod(namespace, "a"))
    with pytest.raises(Invalid):
        await client.patch(PODS, namespace, "a", {"spec": change}, type=PatchType.MERGE)
    assert await client.get(PODS, namespace, "a") == made


async def test_image_tolerations_and_labels_of_a_pod_may_change(client: Client, namespace: str) -> None:
    made = await client.create(PODS, a_bare_pod(namespace, "a"))
    made["spec"]["containers"][0]["image"] = "image:2"
    made["spec"]["tolerations"] = [*made["spec"].get("tolerations", []), {"key": "spot", "operator": "Exists"}]
    made["metadata"]["labels"] = {"a": "b"}
    changed = await client.update(PODS, made)
    assert changed["spec"]["containers"][0]["image"] == "image:2"
    assert changed["spec"]["tolerations"][-1]["key"] == "spot"
    assert changed["metadata"]["labels"] == {"a": "b"}


async def test_binding_sets_the_node_once(client: Client, namespace: str, node: str) -> None:
    await client.create(PODS, a_bare_pod(namespace, "a"))
    await client.bind(namespace, "a", node)
    bound = await client.get(PODS, namespace, "a")
    assert bound["spec"]["nodeName"] == node
    assert ("PodScheduled", "True") in [(each["type"], each["status"]) for each in bound["status"]["conditions"]]
    with pytest.raises(Conflict):
        await client.bind(namespace, "a", "node-2")
    assert (await client.get(PODS, namespace, "a"))["spec"]["nodeName"] == node


async def test_pod_that_does_not_exist_cannot_be_bound(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound):
        await client.bind(namespace, "a", "node-1")


async def test_gated_pod_is_bound_only_when_its_gates_are_removed(client: Client, namespace: str, node: str) -> None:
    await client.create(PODS, a_bare_pod(namespace, "a", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]))
    with pytest.raises(ApiError):
        await client.bind(namespace, "a", node)
    patch = {"spec": {"schedulingGates": [], "nodeSelector": {"pool": "x"}}}
    await client.patch(PODS, namespace, "a", patch, type=PatchType.MERGE)
    await client.bind(namespace, "a", node)
    assert (await client.get(PODS, namespace, "a"))["spec"]["nodeSelector"] == {"pool": "x"}


async def test_text_of_a_secret_becomes_data(client: Client, namespace: str) -> None:
    sent = {"metadata": {"namespace": namespace, "name": "a"}, "stringData": {"token": "geheim-ü"}, "data": {"other": "eA=="}}
    made = await client.create(SECRETS, sent)
    assert "stringData" not in made
    assert base64.b64decode(made["data"]["token"]).decode() == "geheim-ü"
    assert (made["data"]["other"], made["type"]) == ("eA==", "Opaque")


async def test_data_of_a_secret_must_be_base64(client: Client, namespace: str) -> None:
    with pytest.raises(ApiError) as error:
        await client.create(SECRETS, {"metadata": {"namespace": namespace, "name": "a"}, "data": {"token": "not base64!"}})
    assert error.value.code in (400, 422)


async def test_immutable_config_map_does_not_change(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, {**config_map(namespace, "a", x="1"), "immutable": True})
    with pytest.raises(Invalid):
        await client.patch(CONFIG_MAPS, namespace, "a", {"data": {"x": "2"}}, type=PatchType.MERGE)


async def test_key_of_a_config_map_must_be_a_file_name(client: Client, namespace: str) -> None:
    data: dict[str, Any] = {"a/b": "x"}
    with pytest.raises(Invalid):
        await client.create(CONFIG_MAPS, config_map(namespace, "a", **data))


async def test_headless_service_stays_headless_and_others_get_an_address(client: Client, namespace: str) -> None:
    ports = [{"port": 80}]
    headless = {"clusterIP": "None", "selector": {"a": "b"}, "publishNotReadyAddresses": True, "ports": ports}
    made = await client.create(SERVICES, {"metadata": {"namespace": namespace, "name": "headless"}, "spec": headless})
    assert made["spec"]["clusterIP"] == "None"
    assert made["spec"]["ports"][0]["protocol"] == "TCP"
    other = await client.create(SERVICES, {"metadata": {"namespace": namespace, "name": "other"}, "spec": {"ports": ports}})
    assert other["spec"]["clusterIP"] not in ("", "None")
    with pytest.raises(Invalid):
        await client.patch(SERVICES, namespace, "other", {"spec": {"clusterIP": "None"}}, type=PatchType.MERGE)


async def test_name_of_a_service_is_a_dns_label(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid):
        await client.create(SERVICES, {"metadata": {"namespace": namespace, "name": "a.b"}, "spec": {"clusterIP": "None"}})


async def test_claim_is_pending_and_its_spec_fixed(client: Client, namespace: str) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    made = await client.create(VOLUME_CLAIMS, {"metadata": {"namespace": namespace, "name": "a"}, "spec": spec})
    assert made["status"]["phase"] == "Pending"
    with pytest.raises(Invalid):
        await client.patch(VOLUME_CLAIMS, namespace, "a", {"spec": {"accessModes": ["ReadOnlyMany"]}}, type=PatchType.MERGE)


async def test_lease_is_taken_by_one_of_two(client: Client, namespace: str) -> None:
    lease = await client.create(LEASES, {"metadata": {"namespace": namespace, "name": "a"}, "spec": {"leaseDurationSeconds": 15}})
    await client.update(LEASES, {**lease, "spec": {"holderIdentity": "one"}})
    with pytest.raises(Conflict):
        await client.update(LEASES, {**lease, "spec": {"holderIdentity": "two"}})
    assert (await client.get(LEASES, namespace, "a"))["spec"] == {"holderIdentity": "one"}


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
