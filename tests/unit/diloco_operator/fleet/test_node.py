"""What is read of a node, and of the taints that pods tolerate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders.nodes import READY_SINCE
from diloco_operator.fleet import Host, NodeView, Resources, Taint, Toleration, project_node
from diloco_operator.fleet.node import natural_sort_key
from diloco_operator.fleet.resources import UNLISTED
from diloco_operator.kube.fields import MalformedField
from diloco_operator.kube.timestamps import parse_timestamp

SINCE = parse_timestamp(READY_SINCE)
BARE = NodeView(
    name="n",
    uid="",
    labels={},
    taints=(),
    unschedulable=False,
    ready=False,
    ready_unknown=False,
    ready_since=None,
    ready_message="the node has no Ready condition",
    devices=(),
    allocatable=Resources(UNLISTED, UNLISTED, UNLISTED),
    deleting=False,
    created=None,
    announced_end=None,
    host=Host("n"),
)


def read(*ends: str, meta: dict[str, Any] | None = None, spec: Any = None, status: Any = None) -> NodeView:
    return project_node({"metadata": {"name": "n", **(meta or {})}, "spec": spec, "status": status}, ends)


def ready(status: str, **fields: str) -> dict[str, Any]:
    return {"conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": status, **fields}]}


def test_bare_node_is_not_ready_and_has_nothing() -> None:
    assert read() == BARE


def test_every_field_of_a_node_is_read() -> None:
    meta = {"uid": "u", "labels": {"a": "b"}, "deletionTimestamp": READY_SINCE, "creationTimestamp": READY_SINCE}
    taints = [{"key": "k", "value": "v", "effect": "NoExecute"}, {"key": "plain"}]
    has = {"cpu": "2", "memory": "1Ki", "pods": "3", "x/y": "4"}
    status = {**ready("True", lastTransitionTime=READY_SINCE, message="posts"), "capacity": {"x/z": "1"}, "allocatable": has}
    assert read(meta=meta, spec={"unschedulable": True, "taints": taints}, status=status) == NodeView(
        name="n",
        uid="u",
        labels={"a": "b"},
        taints=(Taint("k", "v", "NoExecute"), Taint("plain", "", "")),
        unschedulable=True,
        ready=True,
        ready_unknown=False,
        ready_since=SINCE,
        ready_message="posts",
        devices=(("x/y", 4), ("x/z", 0)),
        allocatable=Resources(2000, 1024, 3, (("x/y", 4), ("x/z", 0))),
        deleting=True,
        created=SINCE,
        announced_end=None,
        host=Host("n"),
    )


@pytest.mark.parametrize(("status", "is_ready", "unknown"), [("True", True, False), ("False", False, False), ("Unknown", False, True)])
def test_readiness_is_that_of_the_ready_condition(status: str, is_ready: bool, unknown: bool) -> None:
    assert read(status=ready(status)) == replace(BARE, ready=is_ready, ready_unknown=unknown, ready_message="")


@pytest.mark.parametrize(
    ("annotations", "end"),
    [
        ({}, None),
        ({"other": READY_SINCE}, None),
        ({"ends": READY_SINCE}, SINCE),
        ({"ends": "2026-11-20T11:00:09Z", "goes": "2026-11-20T11:00:05Z"}, SINCE + 5),
        ({"ends": "2026-11-20T11:00:05Z", "goes": "2026-11-20T11:00:09Z"}, SINCE + 5),
        ({"ends": "soon", "goes": "2026-11-20T11:00:05Z"}, SINCE + 5),
        ({"ends": "soon"}, None),
    ],
)
def test_announced_end_is_the_earliest_that_an_annotation_gives(annotations: dict[str, str], end: float | None) -> None:
    assert read("ends", "goes", meta={"annotations": annotations}) == replace(BARE, announced_end=end)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"meta": {"name": ""}}, "metadata.name"),
        ({"meta": {"labels": {"a": 1}}}, "metadata.labels"),
        ({"meta": {"uid": 1}}, "metadata.uid"),
        ({"meta": {"creationTimestamp": "soon"}}, "metadata.creationTimestamp"),
        ({"spec": {"taints": [{}]}}, "spec.taints[].key"),
        ({"status": {"conditions": {}}}, "status.conditions"),
        ({"status": {"capacity": []}}, "status.capacity"),
        ({"status": {"allocatable": 1}}, "status.allocatable"),
        ({"status": ready("True", lastTransitionTime="soon")}, "status.conditions[].lastTransitionTime"),
    ],
)
def test_malformed_field_of_a_node_is_named(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(MalformedField, match="^" + where.replace("[", r"\[").replace("]", r"\]") + " "):
        read(**fields)


# --- taints -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (Toleration("team", value="vision"), True),
        (Toleration("team", value="audio"), False),
        (Toleration("teams", value="vision"), False),
        (Toleration("team"), False),
        (Toleration("team", "Exists"), True),
        (Toleration("teams", "Exists"), False),
        (Toleration("", "Exists"), True),
        (Toleration("", value="vision"), False),
        (Toleration("team", "Exists", effect="NoSchedule"), True),
        (Toleration("team", "Exists", effect="NoExecute"), False),
    ],
)
def test_toleration_matches_key_value_and_effect_as_kubernetes_does(toleration: Toleration, tolerates: bool) -> None:
    assert toleration.tolerates(Taint("team", "vision", "NoSchedule")) is tolerates


def test_taint_is_written_as_kubectl_writes_it() -> None:
    assert str(Taint("team", "vision", "NoSchedule")) == "team=vision:NoSchedule"
    assert str(Taint("gone", "", "NoExecute")) == "gone:NoExecute"


def test_names_are_ordered_by_their_numbers() -> None:
    ordered = ["2", "10", "a", "a9", "a9b", "a9b2", "a9b10", "a10", "ab"]
    assert sorted(["a10", "ab", "a9b10", "2", "a", "a9", "10", "a9b2", "a9b"], key=natural_sort_key) == ordered
    assert natural_sort_key("a09") == natural_sort_key("a9")
