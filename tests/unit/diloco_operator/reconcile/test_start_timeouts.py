"""The four time-outs of a start: to be scheduled, to pull images, to start, to join."""

from __future__ import annotations

import pytest
from builders import timelines as t
from builders.jobs import a_job, template
from builders.nodes import a_gpu_node, a_tpu_node
from builders.pods import NO_PLACE, starts
from builders.stage import START, Stage
from builders.timelines import at, deleted, given, has, timelines, unit
from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp
from diloco_operator.plan import UnitRestart
from diloco_operator.reconcile.units.start_waits import is_refused

HOUR = 3600.0


@t.scene
def starting(nodes: int = 2, units: int = 1, **timeouts: str) -> Stage:
    """One unit, whose pod exists, unless `units` says how many. 30 s to be scheduled, 3 minutes to pull, 2 to start, 1 to join, unless
    `timeouts` says otherwise."""
    limits = {"schedule": "30s", "pull": "3m", "start": "2m", "join": "1m", **timeouts}
    job = a_job().with_learners(units, units, timeouts=limits).with_restarts(2, initial="10s").with_pool(max=units)
    stage = Stage(job, *(a_tpu_node(f"tpu-{index}") for index in range(nodes)))
    stage.settle()
    starts(stage.syncer, stage.now)
    stage.settle()
    return stage


@t.scene
def starting_on_two_hosts() -> Stage:
    """A unit of GPU hosts, whose pods exist: 30 s to be scheduled."""
    job = a_job().with_learners(1, 1).with_gpu_pool(hosts=2, max=1)
    stage = Stage(job, *(a_gpu_node(f"gpu-{index}") for index in range(4)))
    stage.settle()
    starts(stage.syncer, stage.now)
    return stage


@t.scene
def starting_with_a_claim() -> Stage:
    """A unit whose pod, which exists, claims devices of a ResourceClaimTemplate."""
    claims = template(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}])
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1, template=claims), a_tpu_node("tpu-0"))
    stage.settle()
    stage.syncer_starts()
    stage.settle()
    return stage


# --- schedule ---------------------------------------------------------------------------------------------------------
# The pause after a slice that was given up has jitter: at most 5 s after the first, 10 s after the second, 20 s after the third.
test_schedule = timelines(
    unschedulable_pod_gives_its_slice_up_and_this_is_no_failure=given(
        starting(),
        at(0, t.unschedulable(), unit(message=f"bytes-lm-v5p-0-a1-0: {NO_PLACE}")),
        at(29, deleted()),
        at(
            30,
            unit(state="Pending", reason="Unschedulable", restarts=0, failures=0),
            unit(message=has("bytes-lm-v5p-0-a1-0 to tpu-0 within 30s (learners.timeouts.schedule)", NO_PLACE)),
            deleted("v5p-0-a1-0"),
            t.planned("slices given up", lambda plans: plans[0].slices_given_up, (UnitRestart("v5p-0", "Unschedulable"),)),
            t.events(("Warning", "UnitGaveSliceUp")),
            t.seen("nodes", lambda stage: stage.status["unschedulableNodes"], [{"name": "tpu-0", "since": format_timestamp(START + 30)}]),
        ),
        at(35, unit(state="Starting", slice="tpu-1", failures=0)),
    ),
    unit_takes_a_third_slice_instead_of_alternating_between_two=given(
        starting(nodes=4),
        at(0, unit(slice="tpu-0"), t.unschedulable()),
        at(30, unit(state="Pending")),
        at(35, unit(slice="tpu-1"), t.unschedulable()),
        at(65, unit(state="Pending")),
        at(75, unit(slice="tpu-2"), t.unschedulable()),
        at(105, unit(state="Pending")),
        at(125, unit(slice="tpu-3")),
    ),
    avoided_slice_is_used_when_there_is_no_other=given(
        starting(nodes=1),
        at(0, t.unschedulable()),
        at(30, unit(state="Pending")),
        at(35, unit(slice="tpu-0")),
    ),
    slice_that_becomes_free_during_the_pause_is_preferred_to_the_one_that_was_given_up=given(
        starting(nodes=1),
        at(0, t.unschedulable()),
        at(30, unit(state="Pending"), t.node("tpu-1")),
        at(35, unit(slice="tpu-1")),
    ),
    pause_is_short_again_after_the_pods_have_run=given(
        starting(nodes=1),
        at(0, t.unschedulable()),
        at(30, unit(unschedulable=1)),
        at(35, t.reconciled, t.bound(), unit(unschedulable=1)),
        at(35, t.runs(), unit(unschedulable=None)),
    ),
    node_is_forgotten_after_half_an_hour=given(
        starting(),
        at(0, t.unschedulable()),
        at(30, t.seen("nodes", lambda stage: len(stage.status["unschedulableNodes"]), 1)),
        at(35, t.reconciled, t.runs()),
        at(1835, t.seen("nodes", lambda stage: stage.status.get("unschedulableNodes"), None)),
    ),
    time_to_schedule_goes_on_while_the_operator_restarts=given(
        starting(),
        at(0, t.unschedulable()),
        at(20, t.operator_restarts),
        at(30, unit(reason="Unschedulable")),
    ),
    operator_that_dies_before_the_deletes_gives_up_once=given(
        starting(),
        at(0, t.unschedulable()),
        at(30, t.one_reconcile_that_dies, t.learner_pods("v5p-0-a1-0")),
        at(30, t.operator_restarts, t.one_reconcile, unit(unschedulable=1), t.learner_pods()),
    ),
    pod_that_no_scheduler_has_looked_at_keeps_its_slice_for_longer_and_then_says_what_to_check=given(
        starting(),
        at(149, deleted()),  # 30 s to be scheduled and 2 minutes to start, but for one
        at(
            150,
            unit(
                message=has(
                    "no scheduler has looked at bytes-lm-v5p-0-a1-0 within 2m30s", "check that kube-scheduler runs, and schedulerName"
                )
            ),
        ),
    ),
    pod_without_the_claim_of_its_template_says_so_and_waits_for_no_scheduler=given(
        starting_with_a_claim(),
        at(0, unit(state="Starting", message=has("waits for a ResourceClaim of the template one-gpu", "FailedResourceClaimCreation"))),
        at(1, t.claim_is_made("gpu"), unit(message="bytes-lm-v5p-0-a1-0: waits for a scheduler")),
    ),
    time_to_schedule_counts_from_the_first_word_of_a_scheduler_with_a_long_queue=given(
        starting(),
        at(100, t.unschedulable(since=0)),
        at(129, deleted()),
        at(130, unit(reason="Unschedulable")),
    ),
    time_to_schedule_counts_from_the_creation_of_a_pod_when_a_clock_is_ahead=given(
        starting(),
        at(0, t.unschedulable(since=HOUR)),
        at(30, unit(reason="Unschedulable")),
    ),
    long_words_of_a_scheduler_are_clipped=given(
        starting(),
        at(0, t.unschedulable("x" * 100_000)),
        at(30, unit(reason="Unschedulable"), t.seen("short", lambda stage: len(stage.unit("v5p-0")["message"]) < 1000, True)),
    ),
    pod_with_scheduling_gates_keeps_its_slice=given(
        starting(),
        at(0, t.unschedulable("Scheduling is blocked due to non-empty scheduling gates", reason="SchedulingGated")),
        at(HOUR, unit(state="Starting", slice="tpu-0", message=has("schedulingGates"))),
    ),
    pod_for_which_the_scheduler_preempts_others_has_time_until_they_are_gone=given(
        starting(),
        at(0, t.unschedulable(), t.nominated("tpu-0")),
        at(120, unit(state="Starting")),
        at(150, unit(reason="Unschedulable")),  # schedule and start
    ),
    gang_of_which_one_pod_is_unschedulable_leaves_whole_and_without_a_failure=given(
        starting_on_two_hosts(),
        at(0, t.runs(unit="h100-0", host=0), t.unschedulable(unit="h100-0", host=1)),
        at(30, unit("h100-0", reason="Unschedulable", failures=0), t.deleted_pods_end),
        at(35, unit("h100-0", state="Starting"), t.seen("avoids", lambda s: "gpu-1" in s.unit("h100-0")["slice"].split("+"), False)),
    ),
)


def test_other_units_of_the_job_avoid_the_node_too() -> None:
    stage = starting(nodes=4)()
    t.play(stage, at(0, t.unschedulable()), at(30, unit(reason="Unschedulable")))
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "learners": {"min": 0, "max": 3}}])
    stage.scale(max=3)
    stage.settle()
    assert "tpu-0" not in {unit["slice"] for unit in stage.status["units"]}


@pytest.mark.slow
def test_pause_between_slices_doubles_up_to_five_minutes_and_survives_the_operator() -> None:
    stage = starting(nodes=1)()
    for longest in (5, 10, 20, 40, 80, 160, 300, 300, 300):
        t.play(stage, at(0, t.reconciled, t.unschedulable()), at(30, t.reconciled, t.operator_restarts))
        pause = parse_timestamp(stage.unit("v5p-0")["notBefore"]) - stage.now
        assert longest / 2 <= pause <= longest
        stage.advance(pause)
    t.play(stage, at(0, unit(failures=0, unschedulable=9)))


# --- pull -------------------------------------------------------------------------------------------------------------
PULLS = (t.bound(), t.has_network())
REFUSED = t.waits("ImagePullBackOff", 'Back-off pulling image "trian:1": rpc error: code = NotFound desc = trian:1: not found')
NO_SUCH_HOST = t.waits("ErrImagePull", "dial tcp: lookup registry.example on 10.0.0.2:53: no such host")
NO_ANSWER = t.waits("ErrImagePull", "rpc error: code = Unknown desc = dial tcp: registry.example: i/o timeout")


test_pull = timelines(
    slow_pull_is_no_failure=given(
        starting(),
        at(0, *PULLS, unit(reason="PullingImages", message="bytes-lm-v5p-0-a1-0: pulls its images on tpu-0")),
        at(179, unit(state="Starting"), t.runs(), unit(state="Joining", failures=0)),
    ),
    image_that_every_host_is_refused_uses_up_the_restart_budget=given(
        starting(nodes=4),
        at(0, unit(slice="tpu-0"), *PULLS, REFUSED),
        at(120, unit(failures=1)),  # timeouts.start
        at(130, t.reconciled, unit(slice="tpu-1"), *PULLS, REFUSED),
        at(250, unit(failures=2)),
        at(270, t.reconciled, unit(slice="tpu-2"), *PULLS, REFUSED),
        at(390, unit(failures=3, state="Failed", reason="RestartsExhausted")),
        at(390, unit(message=has("correct it in the pool's template", "trian:1: not found"))),
    ),
    host_without_a_way_to_the_registry_costs_one_attempt_and_others_follow_on_other_hosts=given(
        starting(nodes=3),
        at(0, unit(slice="tpu-0"), *PULLS, NO_SUCH_HOST),
        at(120, unit(failures=1, lastFailure=has("ImageRefused", "tpu-0", "other hosts are tried first", "no such host"))),
        at(120, unit(slice="tpu-1"), t.runs(), unit(state="Joining", failures=1)),
        at(120, t.seen("nodes", lambda stage: [node["name"] for node in stage.status["unschedulableNodes"]], ["tpu-0"])),
    ),
    **{
        f"host_that_cannot_pull_what_another_one_runs_is_left_without_a_failure[{seconds}s]": given(
            starting(nodes=3, units=2),
            at(0, unit(slice="tpu-0"), unit("v5p-1", slice="tpu-1"), t.runs(unit="v5p-1"), *PULLS, says),
            at(seconds - 1, unit(state="Starting", reason="PullingImages")),
            at(
                seconds,
                unit(state="Pending", reason="HostCannotPull", failures=0),
                unit(message=has("tpu-0 cannot pull the images of bytes-lm-v5p-0-a1-0, and tpu-1 runs them", "registry.example")),
            ),
            at(seconds + 5, unit(state="Starting", slice="tpu-2", failures=0)),
        )
        for seconds, says in ((120, NO_SUCH_HOST), (180, NO_ANSWER))  # timeouts.start, timeouts.pull
    },
    registry_that_does_not_answer_has_the_time_of_a_pull=given(
        starting(),
        at(0, *PULLS, NO_ANSWER),
        at(179, unit(failures=0)),
        at(180, unit(lastFailure=has("PullTimeout"))),
    ),
    **{
        f"time_to_pull_does_not_depend_on_a_nodes_clock[{skew}]": given(
            starting(),
            at(0, t.bound(), t.has_network(skew)),
            at(170, unit(failures=0)),
            # At most start after the binding, and then pull: 2 + 3 minutes.
            at(300, unit(failures=1, slice="tpu-1", lastFailure=has("PullTimeout", "learners.timeouts.pull"))),
        )
        for skew in (-3 * HOUR, -5.0, 0.0, 5.0, 150.0, 3 * HOUR)
    },
)


@pytest.mark.parametrize(
    ("problem", "refused"),
    [
        ('InvalidImageName: Failed to apply default image tag "A B": couldn\'t parse image name', True),
        ("ErrImageNeverPull: Container image is not present with pull policy of Never", True),
        ("ErrImagePull: pull access denied, repository does not exist or may require authorization", True),
        ("ErrImagePull: unexpected status from HEAD request: 401 Unauthorized", True),
        ("ErrImagePull: rpc error: code = Unknown desc = read: connection reset by peer", False),
        ("ErrImagePull: toomanyrequests: you have reached your pull rate limit", False),
        ("ImagePullBackOff", False),
    ],
)
def test_kubelets_words_tell_a_refused_image_from_a_registry_in_trouble(problem: str, refused: bool) -> None:
    assert is_refused(problem) is refused


# --- start and join ---------------------------------------------------------------------------------------------------
test_start = timelines(
    pod_whose_volumes_do_not_come_fails_within_start=given(
        starting(),
        at(0, t.bound(), t.waits("ContainerCreating"), unit(reason="StartingContainers")),
        at(119, unit(failures=0)),
        at(120, unit(failures=1, lastFailure=has("StartTimeout"))),
        at(120, unit(lastFailure=has("learners.timeouts.start): waits for volumes and network on tpu-0"))),
    ),
    time_to_start_counts_from_the_binding=given(
        starting(schedule="10m"),
        at(500, t.bound()),
        at(619, unit(failures=0)),
    ),
    binding_in_the_future_counts_from_the_creation=given(
        starting(),
        at(0, t.bound(3 * HOUR)),
        at(120, unit(lastFailure=has("StartTimeout"))),
    ),
    init_container_has_the_time_to_start_after_that_to_pull=given(
        starting(),
        at(0, *PULLS, t.init_container_runs(), unit(message="bytes-lm-v5p-0-a1-0: the init container fetch runs on tpu-0")),
        at(299, unit(failures=0)),
        at(300, unit(lastFailure=has("StartTimeout"))),
    ),
    image_that_is_pulled_after_a_long_init_container_has_time=given(
        starting(),
        at(0, *PULLS, t.init_container_ends(after=200)),
        at(299, unit(reason="PullingImages", failures=0)),
        at(300, unit(lastFailure=has("PullTimeout"))),
    ),
    container_that_cannot_be_made_says_why=given(
        starting(),
        at(0, *PULLS, t.waits("CreateContainerConfigError", 'configmap "settings" not found')),
        at(120, unit(lastFailure=has("StartTimeout", 'configmap "settings" not found'))),
    ),
)


test_join = timelines(
    **{
        f"time_to_join_begins_when_the_pods_run[{skew}]": given(
            starting(),
            at(0, *PULLS),
            at(170, t.runs(skew), t.syncer_has_seen_nobody, unit(state="Joining")),  # after longer than the unit may take to join
            at(229, unit(failures=0)),
            at(230, unit(failures=1, lastFailure=has("JoinTimeout", "learners.timeouts.join"))),
        )
        for skew in (-3 * HOUR, 0.0, 3 * HOUR)
    }
)
