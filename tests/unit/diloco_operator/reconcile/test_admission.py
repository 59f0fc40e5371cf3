"""What admission makes of pods: units go where the pods fit that the API server stores, and the reason names what it added."""

from __future__ import annotations

from typing import Any

import pytest
from builders import timelines as t
from builders.jobs import Obj, a_job
from builders.nodes import a_tpu_node
from builders.stage import Stage
from builders.timelines import at, deleted, has, unit

LABEL = {"team": "a"}


def select_team(pod: Obj) -> None:
    """As PodNodeSelector does with the namespace's default."""
    pod["spec"]["nodeSelector"] = {**(pod["spec"].get("nodeSelector") or {}), **LABEL}


def ask_for_memory(pod: Obj) -> None:
    """As a LimitRange with a default request of 64 GiB."""
    for container in pod["spec"]["containers"]:
        container["resources"]["requests"].setdefault("memory", "64Gi")


def tolerate_team(pod: Obj) -> None:
    """As PodTolerationRestriction and DefaultTolerationSeconds do."""
    pod["spec"]["tolerations"] = [
        *pod["spec"].get("tolerations", ()),
        {"key": "team", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
    ]


def a_stage(admits: Any, *nodes: Obj) -> Stage:
    job = a_job().with_learners(1, 1, timeouts={"schedule": "30s"}).with_pool(max=1)
    stage = Stage(job, *nodes)
    stage.admits = admits
    stage.settle()
    stage.syncer_starts()
    stage.settle()
    return stage


def small(name: str) -> Obj:
    return a_tpu_node(name, resources={"memory": "32Gi"})


@pytest.mark.parametrize(
    ("admits", "unfit", "fit"),
    [(select_team, a_tpu_node, {"labels": LABEL}), (ask_for_memory, small, {})],
    ids=["default node selector", "LimitRange"],
)
def test_second_attempt_is_where_the_stored_pod_fits(admits: Any, unfit: Any, fit: dict[str, Any]) -> None:
    names = [f"tpu-{index}" for index in range(5)]
    stage = a_stage(admits, *map(unfit, names[:4]), a_tpu_node(names[4], **fit))
    t.play(
        stage,
        at(0, unit(slice="tpu-0"), t.unschedulable()),
        at(29, deleted()),
        at(30, unit(state="Pending", reason="Unschedulable")),
        at(35, unit(state="Starting", slice="tpu-4", attempt=2)),
    )


@pytest.mark.parametrize(
    ("admits", "node", "reason"),
    [
        (select_team, a_tpu_node, "label team=a, which the API server adds to its pods"),
        (ask_for_memory, small, "2 free, but too small for what the API server makes of the template's requests"),
    ],
    ids=["default node selector", "LimitRange"],
)
def test_where_no_host_fits_the_message_of_the_pool_names_what_was_added(admits: Any, node: Any, reason: str) -> None:
    stage = a_stage(admits, node("tpu-0"), node("tpu-1"))
    t.play(
        stage,
        at(0, t.unschedulable()),
        at(30, unit(reason="Unschedulable")),
        at(35, unit(state="Pending", reason="NoCapacity", attempt=1)),
        at(35, t.seen("pool", lambda stage: stage.status["pools"][0]["message"], has(reason))),
        # Half an hour later it is forgotten: the namespace may have changed.
        at(1830, unit(state="Starting", attempt=2)),
    )


def test_a_taint_that_stored_pods_tolerate_bars_no_further_unit() -> None:
    tainted = a_tpu_node("tpu-1", taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}])
    stage = a_stage(tolerate_team, a_tpu_node("tpu-0"), tainted)
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "learners": {"min": 0, "max": 2}}])
    stage.scale(max=2)
    stage.settle()
    assert {each["slice"] for each in stage.status["units"]} == {"tpu-0", "tpu-1"}


def test_what_admission_makes_of_pods_is_known_to_the_next_operator_while_a_pod_is_there() -> None:
    stage = a_stage(select_team, a_tpu_node("tpu-0"), a_tpu_node("tpu-1", labels=LABEL))
    stage.restart_operator()
    t.play(stage, at(0, t.unschedulable()), at(30, unit(state="Pending")), at(35, unit(slice="tpu-1")))
