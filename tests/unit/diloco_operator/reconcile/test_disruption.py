"""What the platform does to a unit does not count against it, and the unit finds another place."""

from __future__ import annotations

from builders import timelines as t
from builders.jobs import a_job
from builders.nodes import a_gpu_node, a_tpu_node, a_tpu_slice
from builders.stage import Stage
from builders.timelines import at, created, deleted, given, has, learner_pods, states, timelines, unit
from diloco_operator.reconcile import OperatorConfig

CONFIG = OperatorConfig()
UNREACHABLE = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]
TERMINATING = [{"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}]


# --- scenes -----------------------------------------------------------------------------------------------------------
@t.scene
def trained(nodes: int = 2, max: int = 1) -> Stage:
    """Units that train on the first of the nodes."""
    return Stage(a_job().with_learners(1, max).with_pool(max=max), *(a_tpu_node(f"tpu-{index}") for index in range(nodes))).train()


@t.scene
def two_pools() -> Stage:
    """Both units train in the first pool, and the second has a free node."""
    job = a_job().with_learners(2, 2).with_pool(max=2).with_gpu_pool(max=2)
    return Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1"), a_gpu_node("gpu-0")).train()


@t.scene
def two_hosts() -> Stage:
    """A unit trains on the first of two slices of two hosts."""
    job = a_job().with_learners(1, 1).with_pool(max=1, topology="2x2x2")
    return Stage(job, *a_tpu_slice("np-0", 2), *a_tpu_slice("np-1", 2)).train()


# --- pods -------------------------------------------------------------------------------------------------------------
test_pods = timelines(
    preempted_pod_does_not_count=given(
        trained(nodes=1),
        at(0, t.is_preempted(), t.one_reconcile, states(v5p_0="Draining")),
        at(0, t.deleted_pods_end, unit(attempt=2, restarts=1, failures=0)),
    ),
    **{
        f"pod_that_its_node_ended_does_not_count[{reason}]": given(
            trained(nodes=1),
            at(0, t.is_ended_by_its_node(reason), unit(state="Starting", attempt=2, failures=0)),
        )
        for reason in ("Evicted", "NodeShutdown", "Preempting")
    },
    out_of_memory_is_a_failure_even_if_the_pod_was_a_disruption_target=given(
        trained(nodes=1),
        at(0, t.exits(137, reason="OOMKilled"), t.is_preempted(), t.one_reconcile, unit(failures=1)),
    ),
    pod_that_is_deleted_from_outside_returns_to_its_slice_and_does_not_count=given(
        trained(),
        at(0, t.is_deleted(), unit(message="the pod bytes-lm-v5p-0-a1-0 was deleted, but not by the operator")),
        at(0, t.deleted_pods_end, unit(state="Starting", slice="tpu-0", failures=0)),
    ),
    # The syncer still reports a running job five seconds later, so it was the drain that ended the program.
    **{
        f"drained_unit_whose_program_ends_with_status_0_comes_back_and_does_not_count[{how}]": given(
            trained(nodes=1),
            at(0, *drained, unit(state="Completed", reason="Disrupted", failures=0)),
            at(4, states(v5p_0="Completed")),
            at(5, unit(state="Starting", attempt=2, restarts=1, failures=0)),
            at(11, t.pods_run, t.all_contribute, unit(state="Training", recoverSeconds=11.0, restarts=1, failures=0)),
        )
        for how, drained in {
            "seen before its end": (t.is_preempted(), t.one_reconcile, states(v5p_0="Draining"), t.exits(0)),
            "not seen before its end": (t.is_preempted(), t.exits(0)),
            "deleted": (t.is_deleted(), t.one_reconcile, t.exits(0)),
        }.items()
    },
    every_host_of_a_drained_unit_ends_with_status_0=given(
        two_hosts(),
        at(0, t.is_preempted(), t.exits(0)),  # the other host has not been seen to end
        at(2, t.exits(0, host=1), unit(state="Completed", reason="Disrupted")),
        at(7, unit(state="Starting", attempt=2, restarts=1, failures=0)),
    ),
    unit_that_was_drained_at_the_end_of_the_job_is_complete=given(
        trained(nodes=1),
        at(0, t.is_preempted(), t.exits(0), t.last_step_is_done),
        at(60, unit(state="Completed", restarts=0)),
    ),
    suspended_unit_whose_program_ends_with_status_0_starts_again_at_once=given(
        trained(nodes=1),
        at(0, t.edits(suspend=True), t.reconciled, t.exits(0), unit(state="Pending", reason="Suspended", slice="")),
        at(0, t.deleted_pods_end, t.reconciled, t.edits(suspend=False), unit(state="Starting", attempt=2, restarts=0, failures=0)),
    ),
    vanished_pod_is_noticed_and_replaced=given(
        trained(nodes=1),
        at(0, t.pod_vanishes(), unit(state="Starting", attempt=2, restarts=1, failures=0)),
    ),
)


# --- nodes that are gone ------------------------------------------------------------------------------------------------
test_lost_nodes = timelines(
    unit_of_a_lost_node_moves_to_another_slice_of_its_pool=given(
        trained(),
        at(0, t.lost("tpu-0"), unit(state="Starting", slice="tpu-1", attempt=2, failures=0)),
    ),
    unit_of_a_lost_node_without_another_slice_makes_room_for_a_unit_of_another_pool=given(
        two_pools(),
        at(0, states(v5p_0="Training", v5p_1="Training")),
        at(0, t.lost("tpu-1"), states(v5p_0="Training", v5p_1="Pending", h100_0="Starting")),
        at(0, unit("v5p-1", attempt=1)),  # kept, so that its attempt does not come twice
    ),
    whole_gang_moves_when_one_of_its_hosts_is_lost=given(
        two_hosts(),
        at(0, t.lost("np-0-1"), unit(state="Draining")),  # host 0 is alive and hands back its work
        at(0, t.deleted_pods_end, unit(slice="np-1"), learner_pods("v5p-0-a2-0", "v5p-0-a2-1")),
    ),
    time_to_recover_counts_from_the_disruption=given(
        trained(),
        at(0, t.lost("tpu-0")),
        at(7, t.pods_run, t.all_contribute, unit(recoverSeconds=7.0)),
    ),
    without_any_hardware_no_learner_is_counted=given(
        trained(nodes=1),
        at(0, t.lost("tpu-0"), t.reconciled, t.all_contribute),
        at(0, t.condition("Training", message=has(start="no unit has hardware, training.quorum is 1"))),
    ),
)


# --- nodes that are not ready -------------------------------------------------------------------------------------------
THREE = ("tpu-0", "tpu-1", "tpu-2")
TEN = tuple(f"tpu-{index}" for index in range(10))
UNHEARD = CONFIG.unheard_tolerance
FORCED = UNHEARD + 30 + CONFIG.dead_node_force_delete
"""Seconds until a pod is forced: its node counts as dead, its grace is over, and a while more."""
NO_OTHER = "node tpu-0 is NotReady; waits for a slice; the message of pool v5p says why"


test_not_ready_nodes = timelines(
    node_that_says_it_is_not_ready_is_left_only_after_a_moment=given(
        trained(),
        at(0, t.not_ready("tpu-0", heard=True), t.one_reconcile, deleted(), t.next_reconcile_after(5)),
        at(5, unit(slice="tpu-1", attempt=2)),
    ),
    node_whose_readiness_is_unknown_is_left_only_after_a_moment=given(
        trained(),
        at(0, t.not_ready("tpu-0"), t.one_reconcile, deleted(), t.next_reconcile_after(10)),
        at(10, t.one_reconcile, deleted(), t.next_reconcile_after(5)),
        at(15, unit(slice="tpu-1", attempt=2)),
    ),
    node_that_answers_again_in_time_keeps_its_unit=given(
        trained(),
        at(0, t.not_ready("tpu-0"), t.one_reconcile, t.node("tpu-0"), t.one_reconcile),
        at(60, states(v5p_0="Training")),
    ),
    # As after an outage of the API server, during which no kubelet could say that it lives.
    units_stay_while_the_readiness_of_most_nodes_is_unknown=given(
        trained(nodes=4, max=3),
        at(0, t.not_ready(*THREE, taints=UNREACHABLE)),
        at(60, states(v5p_0="Training", v5p_1="Training", v5p_2="Training"), t.next_reconcile_after(10)),
        at(60, t.node(*THREE), unit("v5p-0", attempt=1), unit("v5p-1", attempt=1), unit("v5p-2", attempt=1)),
    ),
    unit_leaves_a_node_whose_readiness_stays_unknown_once_the_others_are_ready=given(
        trained(nodes=4),
        at(0, t.not_ready(*THREE, taints=UNREACHABLE)),
        at(60, unit(slice="tpu-0")),
        at(60, t.node("tpu-1"), unit(slice="tpu-1")),  # two of four are few enough to count as lost
    ),
    units_leave_nodes_whose_readiness_stays_unknown_for_long_however_many_they_are=given(
        trained(nodes=4),
        at(0, t.not_ready(*THREE)),
        at(CONFIG.outage_tolerance - 1, unit(slice="tpu-0")),
        at(CONFIG.outage_tolerance, unit(slice="tpu-3")),
    ),
    # Kubelets report every 10 s, so that is how far apart they may be; and the taints are taken away a little later.
    units_stay_when_the_whole_fleet_becomes_not_ready_and_ready_again_node_by_node=given(
        trained(nodes=10, max=10),
        *(at(10 * index, t.reconciled, t.not_ready(name, taints=UNREACHABLE)) for index, name in enumerate(TEN)),
        *(at(200 + 10 * index, t.reconciled, t.ready_again(name, taints=UNREACHABLE)) for index, name in enumerate(TEN)),
        at(300, *(unit(f"v5p-{index}", state="Training", attempt=1) for index in range(10))),
    ),
    a_lost_node_is_left_when_no_other_has_followed_for_a_while=given(
        trained(nodes=10),
        at(0, t.not_ready("tpu-0")),
        at(14, t.not_ready("tpu-9")),
        at(28, unit(slice="tpu-0"), t.next_reconcile_after(1)),
        at(29, unit(slice="tpu-1")),
    ),
    a_lost_node_is_left_without_regard_to_nodes_that_say_themselves_that_they_are_not_ready=given(
        trained(nodes=10),
        at(0, t.not_ready("tpu-0")),
        at(14, t.not_ready("tpu-10", heard=True)),  # one that is being set up
        at(15, unit(slice="tpu-1")),
    ),
    a_lost_node_is_left_in_the_end_however_many_come_and_go=given(
        trained(nodes=10),
        at(0, t.not_ready("tpu-0", "tpu-9")),
        *(at(seconds, unit(slice="tpu-0"), t.not_ready("tpu-9")) for seconds in range(10, 300, 10)),
        at(300, unit(slice="tpu-1")),
    ),
    what_a_person_marks_on_a_node_counts_in_an_outage_too=given(
        trained(nodes=4),
        at(0, t.not_ready(*THREE, taints=[{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]), unit(slice="tpu-3")),
    ),
    successor_does_not_wait_for_a_pod_on_a_dead_node=given(
        trained(),
        at(0, t.not_ready("tpu-0")),
        at(UNHEARD, t.one_reconcile, created("v5p-0-a2-0"), deleted("v5p-0-a1-0")),
    ),
    pod_on_a_dead_node_is_forced_after_its_grace_and_its_host_stays_held_until_then=given(
        trained(),
        at(0, t.not_ready("tpu-0")),
        at(UNHEARD, t.reserves("tpu-0", "tpu-1"), t.pods_run, t.all_contribute),
        at(FORCED - 1, deleted()),
        at(FORCED, t.one_reconcile, deleted("v5p-0-a1-0"), t.grace(0), t.reconciled, t.reserves("tpu-1")),
    ),
    a_unit_that_lost_its_node_and_finds_no_other_reports_both=given(
        trained(nodes=1),
        at(0, t.not_ready("tpu-0"), t.losses()),
        at(UNHEARD, unit(state="Pending", reason="NoCapacity", message=NO_OTHER), t.losses(f"v5p-0: {NO_OTHER}")),
        at(UNHEARD, t.one_plan, t.nothing_left),
    ),
)


# --- nodes that are about to go ---------------------------------------------------------------------------------------
test_leaving_nodes = timelines(
    **{
        f"unit_drains_from_a_node_that_is_about_to_go[{taint}]": given(
            trained(),
            at(0, t.node("tpu-0", taints=[{"key": taint, "effect": "NoSchedule"}]), t.one_reconcile),
            at(0, deleted("v5p-0-a1-0"), t.grace(None), states(v5p_0="Draining")),
            at(3, t.deleted_pods_end, unit(state="Starting", slice="tpu-1", restarts=1, failures=0)),
        )
        for taint in (
            "cloud.google.com/impending-node-termination",
            "ToBeDeletedByClusterAutoscaler",
            "aws-node-termination-handler/spot-itn",
        )
    },
    maintenance_label_means_leave=given(
        trained(),
        at(0, t.node("tpu-0", labels={"cloud.google.com/active-node-maintenance": "ONGOING"}), t.one_reconcile, states(v5p_0="Draining")),
    ),
    cordoned_node_keeps_its_unit_but_gets_no_new_attempt=given(
        trained(),
        at(0, t.node("tpu-0", cordoned=True), states(v5p_0="Training"), t.exits(1), unit(attempt=2, slice="tpu-1")),
    ),
    drain_ends_when_the_node_dies_meanwhile=given(
        trained(),
        at(0, t.node("tpu-0", taints=TERMINATING), t.one_reconcile, t.not_ready("tpu-0", taints=TERMINATING), unit(state="Draining")),
        at(UNHEARD, unit(slice="tpu-1", state="Starting")),
    ),
)
