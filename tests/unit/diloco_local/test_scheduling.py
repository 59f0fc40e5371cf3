"""Which node a pod may run on, and why not another."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from builders.nodes import a_fleet_gpu_node, a_fleet_node, a_fleet_tpu_node
from builders.pods import a_pod
from diloco_local.neighbours import Neighbours
from diloco_local.nodes import complete
from diloco_local.scheduling import Choice, choose, labels_of, occupies_node, requests, tolerates, used_resources
from diloco_operator.kube.client import Obj
from diloco_operator.kube.quantities import quantity

TPU = {"key": "google.com/tpu", "operator": "Exists"}


def ready(node: Obj, status: str = "True") -> Obj:
    node = complete(node)
    return {**node, "status": {**node["status"], "conditions": [{"type": "Ready", "status": status}]}}


def wanting(name: str = "pod", node: str = "", **resources: Any) -> Obj:
    return a_pod(
        name, "true", node=node, container={"resources": {"limits": {key.replace("_", "/"): value for key, value in resources.items()}}}
    )


def placed(pod: Obj, *nodes: Obj, others: Sequence[Obj] = ()) -> Choice:
    labels = {node["metadata"]["name"]: labels_of(node) for node in nodes}
    neighbours = Neighbours.of(filter(occupies_node, others), labels)
    return choose(pod, [ready(node) for node in nodes], used_resources(others), neighbours)


def test_pod_goes_to_the_emptiest_feasible_node_and_by_name_among_equals() -> None:
    nodes = [a_fleet_node("c"), a_fleet_node("b"), a_fleet_node("a")]
    assert placed(a_pod(), *nodes).node == "a"
    assert placed(a_pod(), *nodes, others=[a_pod("x", node="a")]).node == "b"


def test_ended_pods_hold_no_room() -> None:
    ended = a_pod("x", node="a")
    ended["status"] = {"phase": "Succeeded"}
    assert placed(a_pod(), a_fleet_node("a"), a_fleet_node("b"), others=[ended]).node == "a"


def test_node_selector_matches_labels_and_the_host_name() -> None:
    pod = {**a_pod(), "spec": {**a_pod()["spec"], "nodeSelector": {"kubernetes.io/hostname": "b"}}}
    assert placed(pod, a_fleet_node("a"), a_fleet_node("b")).node == "b"
    assert placed(pod, a_fleet_node("a")).message == "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."


def test_every_node_that_was_passed_over_gets_its_reason() -> None:
    one_gpu: Obj = {"nvidia.com_gpu": 1}
    cordoned = a_fleet_node("cordoned")
    cordoned["spec"]["unschedulable"] = True
    choice = placed(wanting(**one_gpu), a_fleet_tpu_node("tpu"), a_fleet_node("cpu-1"), a_fleet_node("cpu-2"), cordoned)
    assert choice.node is None
    assert choice.message == (
        "0/4 nodes are available: 2 Insufficient nvidia.com/gpu, "
        "1 node(s) had untolerated taint {google.com/tpu: present}, 1 node(s) were unschedulable."
    )


def test_device_that_is_taken_is_not_given_twice() -> None:
    gpu: Obj = {"nvidia.com_gpu": 8}
    pod = wanting(**gpu)
    pod["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert placed(pod, a_fleet_gpu_node("h")).node == "h"
    assert "Insufficient nvidia.com/gpu" in placed(pod, a_fleet_gpu_node("h"), others=[wanting("x", "h", **gpu)]).message


def test_cpu_counts_only_where_the_node_says_how_much_it_has() -> None:
    assert placed(wanting(cpu="64"), a_fleet_node("silent")).node == "silent"
    assert placed(wanting(cpu="64"), a_fleet_node("small", cpu=2)).message == "0/1 nodes are available: 1 Insufficient cpu."
    assert placed(wanting(cpu="1500m"), a_fleet_node("small", cpu=2)).node == "small"


def test_device_that_the_node_does_not_list_is_not_there() -> None:
    four_tpus: Obj = {"google.com_tpu": 4}
    assert placed(wanting(**four_tpus), a_fleet_node("silent")).node is None


def test_node_that_is_not_ready_gets_nothing() -> None:
    assert choose(a_pod(), [ready(a_fleet_node("a"), "Unknown")], {}).message == "0/1 nodes are available: 1 node(s) were not ready."


def test_no_nodes_at_all_has_its_own_words() -> None:
    assert choose(a_pod(), [], {}).message == "no nodes available to schedule pods"


@pytest.mark.parametrize(
    ("operator", "values", "node"),
    [("In", ["a", "b"], "one"), ("NotIn", ["a"], "two"), ("Exists", [], "one"), ("DoesNotExist", [], "two")],
)
def test_required_node_affinity(operator: str, values: list[str], node: str) -> None:
    expression = {"key": "zone", "operator": operator, "values": values}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    pod = a_pod()
    pod["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    assert placed(pod, a_fleet_node("one", labels={"zone": "a"}), a_fleet_node("two")).node == node


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "value": "other"}, False),
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"value": "v"}, False),  # without a key only Exists is valid
    ],
)
def test_tolerations_match_taints_as_kubernetes_has_it(toleration: Obj, expected: bool) -> None:
    assert tolerates([toleration], {"key": "k", "value": "v", "effect": "NoSchedule"}) is expected


def test_init_containers_count_by_their_largest_and_containers_by_their_sum() -> None:
    pod = wanting(cpu="1")
    pod["spec"]["containers"].append({"name": "b", "resources": {"requests": {"cpu": "500m"}}})
    pod["spec"]["initContainers"] = [{"name": "i", "resources": {"requests": {"cpu": "2"}}}]
    assert requests(pod)["cpu"] == 2  # max(1 + 0.5, 2)


@pytest.mark.parametrize(
    ("text", "value"), [("4", 4), ("500m", "1/2"), ("96Gi", 96 * 2**30), ("1k", 1000), ("2e3", 2000), (".5", "1/2"), (3, 3)]
)
def test_quantities(text: str, value: str) -> None:
    assert quantity(text) == Fraction(value)


@pytest.mark.parametrize("text", ["", "4 Gi", "Gi", "1KiB", "one"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity(text)


def named(*nodes: str) -> Obj:
    return {"key": "metadata.name", "operator": "In", "values": list(nodes)}


@pytest.mark.parametrize(
    ("terms", "node"),
    [
        ([{"matchFields": [named("a", "b")]}], "a"),
        ([{"matchFields": [named("b")], "matchExpressions": [{"key": "zone", "operator": "Exists"}]}], None),
        ([{"matchFields": [named("b")]}, {"matchFields": [named("c")]}], "b"),
        ([{"matchFields": [named("a", "b"), named("b", "c")]}], "b"),
        ([{"matchFields": [named("c")]}, {"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}], "a"),
        ([{"matchFields": [named("d")]}], None),
    ],
)
def test_a_pod_for_nodes_by_name_runs_on_no_other(terms: list[Obj], node: str | None) -> None:
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    choice = placed(a_pod(affinity=affinity), *map(a_fleet_node, "abc"))
    words = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
    assert (choice.node, choice.message) == (node, "" if node else words)


# --- affinity between pods --------------------------------------------------------------------------------------------
ZONE = "topology.kubernetes.io/zone"


def in_zone(name: str, zone: str) -> Obj:
    return a_fleet_node(name, labels={ZONE: zone})


def labelled(name: str, *, node: str = "", namespace: str = "default", affinity: Obj | None = None, **labels: str) -> Obj:
    """A pod with these labels."""
    return a_pod(name, node=node, metadata={"namespace": namespace, "labels": labels}, affinity=affinity or {})


def rule(kind: str, *, key: str = ZONE, **term: Any) -> Obj:
    """An affinity of one required term, `kind` podAffinity or podAntiAffinity."""
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": key, **term}]}}


def of_gang(gang: str) -> Obj:
    return {"matchLabels": {"gang": gang}}


def of_other_gangs(gang: str) -> Obj:
    return {"matchExpressions": [{"key": "gang", "operator": "Exists"}, {"key": "gang", "operator": "NotIn", "values": [gang]}]}


def test_pod_goes_to_the_domain_of_those_that_it_must_be_near_to() -> None:
    near = rule("podAffinity", labelSelector=of_gang("g"))
    others = [labelled("first", node="b1", gang="g")]
    assert (
        placed(labelled("pod", affinity=near, gang="g"), in_zone("a1", "a"), in_zone("b1", "b"), in_zone("b2", "b"), others=others).node
        == "b2"
    )


def test_first_of_a_gang_may_go_anywhere_that_has_the_label() -> None:
    near = rule("podAffinity", labelSelector=of_gang("g"))
    assert placed(labelled("pod", affinity=near, gang="g"), a_fleet_node("a"), in_zone("b1", "b")).node == "b1"
    lonely = placed(labelled("pod", affinity=near, gang="other"), in_zone("b1", "b"))
    assert lonely.message == "0/1 nodes are available: 1 node(s) didn't match pod affinity rules."


def test_pod_stays_out_of_domains_of_other_gangs_in_any_namespace() -> None:
    apart = rule("podAntiAffinity", labelSelector=of_other_gangs("g"), namespaceSelector={})
    others = [labelled("other", node="a1", namespace="team-b", gang="h")]
    nodes = [in_zone("a1", "a"), in_zone("a2", "a"), in_zone("b1", "b")]
    assert placed(labelled("pod", affinity=apart, gang="g"), *nodes, others=others).node == "b1"
    own = rule("podAntiAffinity", labelSelector=of_other_gangs("g"))
    assert placed(labelled("pod", affinity=own, gang="g"), *nodes, others=others).node == "a2"


def test_anti_affinity_of_a_pod_that_runs_keeps_others_away() -> None:
    apart = rule("podAntiAffinity", labelSelector=of_other_gangs("h"))
    others = [labelled("other", node="a1", affinity=apart, gang="h")]
    found = placed(
        labelled("pod", gang="g"),
        in_zone("a2", "a"),
        others=[*others],
    )
    assert found.node == "a2"  # a1 is not among the nodes: it is no neighbour
    found = placed(labelled("pod", gang="g"), in_zone("a1", "a"), in_zone("a2", "a"), others=others)
    assert found.message == "0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules."
    assert placed(labelled("pod"), in_zone("a1", "a"), in_zone("a2", "a"), others=others).node == "a2"
