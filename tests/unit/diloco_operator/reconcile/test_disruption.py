"""What the platform does to a unit does not count against it, and the unit finds another place."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_gpu_node, a_tpu_node, a_tpu_slice
from builders.pods import is_deleted, is_disrupted
from builders.stage import Stage
from diloco_operator.kube.timestamps import format_timestamp

UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}


def trained(*nodes: dict[str, Any], max: int = 1) -> Stage:
    return Stage(a_job().with_learners(1, max).with_pool(max=max), *nodes).train()


def not_ready(stage: Stage, name: str, **fields: Any) -> None:
    stage.set_node(a_tpu_node(name, ready=False, ready_since=format_timestamp(stage.now), **fields))


def test_preempted_pod_does_not_count() -> None:
    stage = trained(a_tpu_node("tpu-0"))
    is_disrupted(stage.pod("v5p-0", 1))
    stage.step()
    assert stage.states() == {"v5p-0": "Draining"}
    stage.kubelets_finish_deletions()
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["attempt"], unit["restarts"], unit["failures"]) == (2, 1, [])


@pytest.mark.parametrize("reason", ["Evicted", "NodeShutdown", "Preempting"])
def test_pod_that_its_node_ended_does_not_count(reason: str) -> None:
    stage = trained(a_tpu_node("tpu-0"))
    stage.pod("v5p-0", 1)["status"] = {"phase": "Failed", "reason": reason, "message": "make room"}
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["attempt"], unit["failures"]) == ("Starting", 2, [])


def test_out_of_memory_is_a_failure_even_if_the_pod_was_a_disruption_target() -> None:
    stage = trained(a_tpu_node("tpu-0"))
    stage.learner_exits("v5p-0", 1, 137, reason="OOMKilled")
    is_disrupted(stage.pod("v5p-0", 1))
    stage.step()
    assert len(stage.unit("v5p-0")["failures"]) == 1


def test_pod_that_is_deleted_from_outside_returns_to_its_slice_and_does_not_count() -> None:
    stage = trained(a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    is_deleted(stage.pod("v5p-0", 1), stage.now)
    stage.settle()
    assert stage.unit("v5p-0")["message"] == "the pod bytes-lm-v5p-0-a1-0 was deleted, but not by the operator"
    stage.kubelets_finish_deletions()
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["slice"], unit["failures"]) == ("Starting", "tpu-0", [])


def test_vanished_pod_is_noticed_and_replaced() -> None:
    stage = trained(a_tpu_node("tpu-0"))
    del stage.pods["bytes-lm-v5p-0-a1-0"]
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["attempt"], unit["restarts"], unit["failures"]) == ("Starting", 2, 1, [])


def test_unit_of_a_lost_node_moves_to_another_slice_of_its_pool() -> None:
    stage = trained(a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.lose_node("tpu-0")
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["slice"], unit["attempt"], unit["failures"]) == ("Starting", "tpu-1", 2, [])


def test_unit_of_a_lost_node_without_another_slice_makes_room_for_a_unit_of_another_pool() -> None:
    job = a_job().with_learners(2, 2).with_pool(max=2).with_gpu_pool(max=2)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1"), a_gpu_node("gpu-0")).train()
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Training"}
    stage.lose_node("tpu-1")
    stage.settle()
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Pending", "h100-0": "Starting"}
    assert stage.unit("v5p-1")["attempt"] == 1  # kept, so that its attempt does not come twice


@pytest.mark.parametrize(("heard", "waits"), [(True, (5,)), (False, (10, 5))])
def test_not_ready_node_is_left_only_after_a_moment(heard: bool, waits: tuple[float, ...]) -> None:
    stage = trained(a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    not_ready(stage, "tpu-0", heard=heard)
    for wait in waits:
        plan = stage.step()
        assert plan.deletes == ()
        assert plan.requeue_after == pytest.approx(wait, abs=0.01)
        stage.advance(wait)
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "tpu-1"
    assert stage.unit("v5p-0")["attempt"] == 2


def test_node_that_answers_again_in_time_keeps_its_unit() -> None:
    stage = trained(a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    not_ready(stage, "tpu-0")
    stage.step()
    stage.set_node(a_tpu_node("tpu-0"))
    stage.advance(60)
    stage.settle()
    assert stage.states() == {"v5p-0": "Training"}


def test_units_stay_while_the_readiness_of_most_nodes_is_unknown() -> None:
    nodes = [f"tpu-{index}" for index in range(4)]
    stage = trained(*(a_tpu_node(name) for name in nodes), max=3)
    for name in nodes[:3]:  # as after an outage of the API server, during which no kubelet could say that it lives
        not_ready(stage, name, taints=[UNREACHABLE])
    stage.advance(60)
    stage.settle()
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Training", "v5p-2": "Training"}
    assert stage.reconcile_only().requeue_after == pytest.approx(10, abs=0.01)
    for name in nodes[:3]:
        stage.set_node(a_tpu_node(name))
    stage.settle()
    assert [stage.unit(f"v5p-{index}")["attempt"] for index in range(3)] == [1, 1, 1]


def test_unit_leaves_a_node_whose_readiness_stays_unknown_once_the_others_are_ready() -> None:
    nodes = [f"tpu-{index}" for index in range(4)]
    stage = trained(*(a_tpu_node(name) for name in nodes))
    for name in nodes[:3]:
        not_ready(stage, name, taints=[UNREACHABLE])
    stage.advance(60)
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "tpu-0"
    stage.set_node(a_tpu_node("tpu-1"))  # two of four are few enough to count as lost
    stage.settle()
    assert stage.unit("v5p-0")["slice"] in ("tpu-1", "tpu-3")


def test_units_leave_nodes_whose_readiness_stays_unknown_for_long_however_many_they_are() -> None:
    nodes = [f"tpu-{index}" for index in range(4)]
    stage = trained(*(a_tpu_node(name) for name in nodes))
    for name in nodes[:3]:
        not_ready(stage, name)
    stage.advance(stage.config.outage_tolerance - 1)
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "tpu-0"
    stage.advance(1)
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "tpu-3"


def test_units_stay_when_the_whole_fleet_becomes_not_ready_and_ready_again_node_by_node() -> None:
    """Kubelets report every 10 s, so that is how far apart they may be; and the taints are taken away a little later."""
    nodes = [f"tpu-{index}" for index in range(10)]
    stage = trained(*(a_tpu_node(name) for name in nodes), max=10)
    for name in nodes:
        not_ready(stage, name, taints=[UNREACHABLE])
        stage.advance(10)
        stage.settle()
    stage.advance(100)
    stage.settle()
    for name in nodes:
        stage.set_node(a_tpu_node(name, ready_since=format_timestamp(stage.now), taints=[UNREACHABLE]))
        stage.advance(10)
        stage.settle()
    assert set(stage.states().values()) == {"Training"}
    assert {stage.unit(f"v5p-{index}")["attempt"] for index in range(10)} == {1}


def test_a_lost_node_is_left_when_no_other_has_followed_for_a_while() -> None:
    stage = trained(*(a_tpu_node(f"tpu-{index}") for index in range(10)))
    not_ready(stage, "tpu-0")
    stage.advance(14)
    not_ready(stage, "tpu-9")
    stage.advance(14)
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "tpu-0"
    assert stage.reconcile_only().requeue_after == pytest.approx(1, abs=0.01)
    stage.advance(1)
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "tpu-1"


def test_a_lost_node_is_left_without_regard_to_nodes_that_say_themselves_that_they_are_not_ready() -> None:
    stage = trained(*(a_tpu_node(f"tpu-{index}") for index in range(10)))
    not_ready(stage, "tpu-0")
    stage.advance(14)
    not_ready(stage, "tpu-10", heard=True)  # one that is being set up
    stage.advance(1)
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "tpu-1"


def test_a_lost_node_is_left_in_the_end_however_many_come_and_go() -> None:
    stage = trained(*(a_tpu_node(f"tpu-{index}") for index in range(10)))
    not_ready(stage, "tpu-0")
    for _ in range(30):
        assert stage.unit("v5p-0")["slice"] == "tpu-0"
        not_ready(stage, "tpu-9")
        stage.advance(10)
        stage.settle()
    assert stage.unit("v5p-0")["slice"] == "tpu-1"


def test_what_a_person_marks_on_a_node_counts_in_an_outage_too() -> None:
    nodes = [f"tpu-{index}" for index in range(4)]
    stage = trained(*(a_tpu_node(name) for name in nodes))
    for name in nodes[:3]:
        not_ready(stage, name, taints=[{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}])
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "tpu-3"


def test_successor_does_not_wait_for_a_pod_on_a_dead_node() -> None:
    stage = trained(a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    not_ready(stage, "tpu-0")
    stage.advance(stage.config.unheard_tolerance)
    plan = stage.step()
    assert [c.obj["metadata"]["name"] for c in plan.creates] == ["bytes-lm-v5p-0-a2-0"]
    assert [d.name for d in plan.deletes] == ["bytes-lm-v5p-0-a1-0"]


def test_pod_on_a_dead_node_is_forced_after_its_grace_and_its_host_stays_held_until_then() -> None:
    stage = trained(a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    not_ready(stage, "tpu-0")
    stage.advance(stage.config.unheard_tolerance)
    stage.settle()
    assert stage.plans[-1].reservations.nodes == {"tpu-0", "tpu-1"}
    stage.kubelets_start()
    stage.all_contribute()
    stage.settle()
    stage.advance(30 + stage.config.dead_node_force_delete - 1)
    assert stage.reconcile_only().deletes == ()
    stage.advance(1)
    (delete,) = stage.step().deletes
    assert (delete.name, delete.grace_seconds) == ("bytes-lm-v5p-0-a1-0", 0)
    stage.settle()
    assert stage.plans[-1].reservations.nodes == {"tpu-1"}


@pytest.mark.parametrize(
    "taint",
    ["cloud.google.com/impending-node-termination", "ToBeDeletedByClusterAutoscaler", "aws-node-termination-handler/spot-itn"],
)
def test_unit_drains_from_a_node_that_is_about_to_go(taint: str) -> None:
    stage = trained(a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.set_node(a_tpu_node("tpu-0", taints=[{"key": taint, "effect": "NoSchedule"}]))
    (delete,) = stage.step().deletes
    assert delete.grace_seconds is None
    assert stage.states() == {"v5p-0": "Draining"}
    stage.advance(3)
    stage.kubelets_finish_deletions()
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["slice"], unit["restarts"], unit["failures"]) == ("Starting", "tpu-1", 1, [])


def test_maintenance_label_means_leave() -> None:
    stage = trained(a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.set_node(a_tpu_node("tpu-0", labels={"cloud.google.com/active-node-maintenance": "ONGOING"}))
    stage.step()
    assert stage.states() == {"v5p-0": "Draining"}


def test_cordoned_node_keeps_its_unit_but_gets_no_new_attempt() -> None:
    stage = trained(a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.set_node(a_tpu_node("tpu-0", cordoned=True))
    stage.settle()
    assert stage.states() == {"v5p-0": "Training"}
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "tpu-1"


def test_whole_gang_moves_when_one_of_its_hosts_is_lost() -> None:
    job = a_job().with_learners(1, 1).with_pool(max=1, topology="2x2x2")
    stage = Stage(job, *a_tpu_slice("np-0", 2), *a_tpu_slice("np-1", 2)).train()
    stage.lose_node("np-0-1")
    stage.settle()
    assert stage.unit("v5p-0")["state"] == "Draining"  # host 0 is alive and hands back its work
    stage.kubelets_finish_deletions()
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "np-1"
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a2-0", "bytes-lm-v5p-0-a2-1"]


def test_time_to_recover_counts_from_the_disruption() -> None:
    stage = trained(a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.lose_node("tpu-0")
    stage.settle()
    stage.advance(7)
    stage.kubelets_start()
    stage.all_contribute()
    stage.settle()
    assert stage.unit("v5p-0")["recoverSeconds"] == 7.0


def test_drain_ends_when_the_node_dies_meanwhile() -> None:
    stage = trained(a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    taint = [{"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}]
    stage.set_node(a_tpu_node("tpu-0", taints=taint))
    stage.step()
    not_ready(stage, "tpu-0", taints=taint)
    stage.settle()
    assert stage.unit("v5p-0")["state"] == "Draining"
    stage.advance(stage.config.unheard_tolerance)
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "tpu-1"
    assert stage.unit("v5p-0")["state"] == "Starting"


def test_a_unit_that_lost_its_node_and_finds_no_other_reports_both() -> None:
    stage = trained(a_tpu_node("tpu-0"))
    not_ready(stage, "tpu-0")
    stage.advance(stage.config.unheard_tolerance)
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["reason"]) == ("Pending", "NoCapacity")
    assert unit["message"] == "node tpu-0 is NotReady; waits for a slice; the message of pool v5p says why"
    lost = [event.message for plan in stage.plans for event in plan.events if event.reason == "UnitLost"]
    assert lost == [f"v5p-0: {unit['message']}"]
    assert stage.reconcile_only().empty


def test_without_any_hardware_no_learner_is_counted() -> None:
    stage = trained(a_tpu_node("tpu-0"))
    stage.lose_node("tpu-0")
    stage.settle()
    stage.all_contribute()
    stage.settle()
    assert stage.condition("Training")["message"].startswith("no unit has hardware, training.quorum is 1")
