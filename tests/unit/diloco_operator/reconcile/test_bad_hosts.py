"""On which hosts attempts fail, which of them a job avoids, and when the program is to blame instead."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import Obj, a_job, template
from builders.nodes import a_gpu_node, a_tpu_node, a_tpu_slice
from builders.pods import is_bound, is_disrupted, is_unschedulable, starts, waits
from builders.stage import Stage
from diloco_operator.api.names import NODE_ZONE
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.report import UnitPhase


def a_stage(units: int, nodes: int, *, limit: int = 5, initial: str = "0s") -> Stage:
    """One-host units that train on tpu-0, tpu-1, …; the other nodes are free."""
    job = a_job().with_learners(1, units).with_restarts(limit, initial).with_pool(max=units)
    return Stage(job, *(a_tpu_node(f"tpu-{i}") for i in range(nodes))).train()


def fails(stage: Stage, unit: str, code: int = 1, *, times: int = 1, **how: Any) -> None:
    """The present attempt of the unit ends so, and all that follows happens until its next one runs, if it may; so many times."""
    for _ in range(times):
        stage.learner_exits(unit, stage.unit(unit)["attempt"], code, **how)
        goes_on(stage)


def goes_on(stage: Stage) -> None:
    for _ in range(3):
        stage.settle()
        stage.kubelets_finish_deletions()
        stage.kubelets_start()
        stage.all_contribute()
    stage.settle()


def hosts(stage: Stage) -> dict[str, tuple[int, bool]]:
    """Node -> failures, and whether it is avoided."""
    return {host["node"]: (len(host["failures"]), "avoidedUntil" in host) for host in stage.status.get("hosts", ())}


def notes(stage: Stage, reason: str) -> list[str]:
    return [event.message for plan in stage.plans for event in plan.events if event.reason == reason]


@pytest.mark.slow
def test_unit_leaves_a_host_on_which_two_attempts_failed() -> None:
    stage = a_stage(2, 4)
    fails(stage, "v5p-0")
    assert (stage.unit("v5p-0")["slice"], hosts(stage)) == ("tpu-0", {"tpu-0": (1, False)})
    fails(stage, "v5p-0", message="CUDA error")
    assert (stage.unit("v5p-0")["slice"], hosts(stage)) == ("tpu-2", {"tpu-0": (2, True)})
    [host] = stage.status["hosts"]
    assert host == {
        "node": "tpu-0",
        "uid": "uid-tpu-0",
        "failures": [
            {"unit": "v5p-0", "attempt": 1, "at": "2026-11-20T12:00:00Z", "reason": "Crashed"},
            {"unit": "v5p-0", "attempt": 2, "at": "2026-11-20T12:00:00Z", "reason": "Crashed"},
        ],
        "message": "v5p-0, attempt 2: exit 1: CUDA error",
        "avoidances": 1,
        "avoidedUntil": "2026-11-20T12:10:00Z",
    }


def test_a_unit_whose_failures_did_not_fit_into_status_stays_given_up_and_others_are_judged() -> None:
    stage = a_stage(2, 4, limit=0)
    fails(stage, "v5p-0")
    assert stage.unit("v5p-0")["state"] == "Failed"
    stage.job["status"]["units"][0]["failures"] = []
    [host] = stage.job["status"]["hosts"]
    host["avoidedUntil"] = format_timestamp(stage.now + 600)
    stage.settle()
    assert stage.states() == {"v5p-0": "Failed", "v5p-1": "Training"}


@pytest.mark.slow
def test_avoidance_is_told_once_outlives_the_operator_and_is_looked_at_when_it_ends() -> None:
    stage = a_stage(2, 4)
    fails(stage, "v5p-0", times=2)
    before = stage.status["hosts"]
    stage.restart_operator()
    stage.advance(30)
    goes_on(stage)
    assert stage.status["hosts"] == before
    [note] = notes(stage, "HostAvoided")
    assert note.startswith(
        "node tpu-0: 2 attempts failed there; no unit starts there until 2026-11-20T12:10:00Z as long as another host is"
    )
    stage.advance(560)
    stage.settle()
    assert (stage.plans[-1].requeue_after or 600) <= 10.1


@pytest.mark.slow
def test_host_returns_after_ten_minutes_and_goes_for_twenty_when_it_fails_again() -> None:
    stage = a_stage(2, 3)
    fails(stage, "v5p-0", times=2)
    stage.lose_node("tpu-2")  # where it is now; nothing else is free
    goes_on(stage)
    assert stage.unit("v5p-0")["state"] == "Pending"
    assert "1 free, but avoided because attempts failed there: tpu-0 until 2026-11-20T12:10:00Z" in stage.status["pools"][0]["message"]
    stage.advance(599)
    goes_on(stage)
    assert stage.unit("v5p-0")["state"] == "Pending"
    stage.advance(1)
    goes_on(stage)
    assert (stage.unit("v5p-0")["state"], stage.unit("v5p-0")["slice"]) == ("Training", "tpu-0")
    stage.set_node(a_tpu_node("tpu-2"))
    fails(stage, "v5p-0")
    assert stage.unit("v5p-0")["slice"] == "tpu-2"
    [host] = stage.status["hosts"]
    assert (host["avoidances"], host["avoidedUntil"]) == (2, "2026-11-20T12:30:00Z")  # 10 min after the start, for 20 min


@pytest.mark.slow
def test_host_without_failures_for_the_window_is_forgotten() -> None:
    stage = a_stage(2, 4)
    fails(stage, "v5p-0")
    stage.advance(3599)
    goes_on(stage)
    assert hosts(stage) == {"tpu-0": (1, False)}
    stage.advance(1)
    goes_on(stage)
    assert hosts(stage) == {}
    fails(stage, "v5p-0")
    assert (stage.unit("v5p-0")["slice"], hosts(stage)) == ("tpu-0", {"tpu-0": (1, False)}), "two so far apart are no pattern"


@pytest.mark.slow
def test_node_that_was_replaced_starts_clean() -> None:
    stage = a_stage(2, 4)
    fails(stage, "v5p-0", times=2)
    stage.lose_node("tpu-0")
    goes_on(stage)
    assert hosts(stage) == {"tpu-0": (2, True)}
    new = a_tpu_node("tpu-0")
    new["metadata"]["uid"] = "another machine"
    stage.set_node(new)
    goes_on(stage)
    assert hosts(stage) == {}


@pytest.mark.parametrize("writes", range(4))
def test_failure_counts_once_whatever_the_operator_wrote_before_it_died(writes: int) -> None:
    stage = a_stage(2, 4)
    stage.learner_exits("v5p-0", 1, 1)
    stage.step(crash_after=writes)
    stage.restart_operator()
    goes_on(stage)
    assert hosts(stage) == {"tpu-0": (1, False)}


def on_record(node: str, *units: str, **fields: Any) -> dict[str, Any]:
    """A host in status on which the first attempt of these units failed at the start of the test."""
    failures = [{"unit": unit, "attempt": 1, "at": "2026-11-20T12:00:00Z", "reason": "Crashed"} for unit in units]
    return {"node": node, "uid": f"uid-{node}", "failures": failures, "message": "exit 1", "avoidances": 0, **fields}


def test_host_that_was_avoided_for_long_is_forgotten_only_after_as_long_again() -> None:
    stage = a_stage(2, 4)
    # Avoided for the fifth time: 10 min x 2^4 = 9,600 s. It ends 1,000 s after the start.
    stage.job["status"]["hosts"] = [on_record("tpu-3", "v5p-9", avoidances=5, avoidedUntil="2026-11-20T12:16:40Z")]
    stage.advance(1000 + 9599)
    goes_on(stage)
    assert hosts(stage) == {"tpu-3": (1, True)}
    stage.advance(1)
    goes_on(stage)
    assert hosts(stage) == {}


def test_no_avoidance_is_longer_than_a_day() -> None:
    stage = a_stage(2, 4)
    stage.job["status"]["hosts"] = [on_record("tpu-0", "v5p-9", avoidances=20, avoidedUntil="2026-11-20T12:00:30Z")]
    stage.advance(60)
    fails(stage, "v5p-0")
    [host] = stage.status["hosts"]
    assert (host["avoidances"], host["avoidedUntil"]) == (21, "2026-11-21T12:01:00Z")


def test_what_a_clock_that_was_ahead_has_written_happened_now_and_lasts_a_day_at_most() -> None:
    stage = a_stage(2, 4)
    ahead = on_record("tpu-3", "v5p-0", avoidances=1, avoidedUntil="2027-11-20T12:00:00Z")
    ahead["failures"][0]["at"] = "2027-11-20T12:00:00Z"
    stage.job["status"]["hosts"] = [ahead]
    stage.settle()
    [host] = stage.status["hosts"]
    assert (host["failures"][0]["at"], host["avoidedUntil"]) == ("2026-11-20T12:00:00Z", "2026-11-21T12:00:00Z")


@pytest.mark.slow
@pytest.mark.parametrize(("bad", "avoided"), [(12, 12), (13, 0)])
def test_one_job_avoids_twelve_hosts_at_most(bad: int, avoided: int) -> None:
    stage = a_stage(40, 60)
    stage.job["status"]["hosts"] = [on_record(f"tpu-{i}", f"v5p-{i}", f"v5p-{i + 13}") for i in range(bad)]
    stage.settle()
    assert sum(each for _, each in hosts(stage).values()) == avoided


# --- what does not count ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("code", [64, 65, 68])
def test_refusals_do_not_count_against_the_host(code: int) -> None:
    stage = a_stage(2, 4)
    fails(stage, "v5p-0", code)
    assert hosts(stage) == {}


@pytest.mark.slow
def test_disruptions_do_not_count_against_the_host() -> None:
    stage = a_stage(2, 4)
    for attempt in (1, 2, 3):
        is_disrupted(stage.pod("v5p-0", attempt))
        fails(stage, "v5p-0", 143)
    assert (stage.unit("v5p-0")["restarts"], hosts(stage)) == (3, {})


def test_pod_that_no_scheduler_binds_does_not_count_against_the_host() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.settle()
    starts(stage.syncer, stage.now)
    is_unschedulable(stage.pod("v5p-0", 1))
    stage.settle()
    stage.advance(60)
    stage.settle()
    assert (stage.unit("v5p-0")["unschedulable"], hosts(stage)) == (1, {})


@pytest.mark.slow
def test_drained_unit_does_not_count_against_the_host() -> None:
    stage = a_stage(2, 4)
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "template": template(terminationGracePeriodSeconds=45)}])
    for _ in range(5):
        goes_on(stage)
    assert ({unit["attempt"] for unit in stage.status["units"]}, hosts(stage)) == ({2}, {})


@pytest.mark.parametrize(
    ("topology", "nodes", "counted"), [("2x2x1", [a_tpu_node("tpu-0")], {"tpu-0": (1, False)}), ("2x2x2", a_tpu_slice("np-0", 2), {})]
)
def test_silence_counts_against_the_host_of_a_unit_that_has_no_other(topology: str, nodes: list[Obj], counted: Obj) -> None:
    stage = Stage(a_job().with_pool(max=1, topology=topology), *nodes).train()
    stage.advance(100)
    stage.syncer_says("v5p-0", 1, UnitPhase.DISCONNECTED, seconds_since_heard=30.0)
    stage.settle()
    assert (len(stage.unit("v5p-0")["failures"]), hosts(stage)) == (1, counted)


def test_host_on_which_a_pod_of_a_unit_does_not_start_counts() -> None:
    stage = Stage(a_job().with_pool(max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2))
    stage.settle()
    starts(stage.syncer, stage.now)
    starts(stage.pod("v5p-0", 1, host=0), stage.now)
    is_bound(stage.pod("v5p-0", 1, host=1), stage.now)
    waits(stage.pod("v5p-0", 1, host=1), "ContainerCreating")
    stage.settle()
    stage.advance(stage_start_timeout(stage))
    stage.settle()
    assert hosts(stage) == {"np-0-1": (1, False)}


def stage_start_timeout(stage: Stage) -> float:
    """Seconds that a container may take to start: the job's timeouts or their default."""
    spec = stage.observed().job.spec
    assert spec is not None
    return spec.learners.timeouts.start


@pytest.mark.slow
def test_only_the_host_that_failed_first_counts_of_a_unit_of_several() -> None:
    job = a_job().with_restarts(5, "0s").with_gpu_pool(hosts=2, max=1)
    stage = Stage(job, *(a_gpu_node(f"gpu-{i}") for i in range(4))).train()
    for attempt in (1, 2):
        assert stage.unit("h100-0")["slice"] == "gpu-0+gpu-1"
        stage.learner_exits("h100-0", attempt, 1, host=1)
        stage.advance(2)
        stage.learner_exits("h100-0", attempt, 1, host=0, message="peer went away")
        goes_on(stage)
    assert hosts(stage) == {"gpu-1": (2, True)}
    assert "gpu-1" not in stage.unit("h100-0")["slice"].split("+")


def test_no_host_is_blamed_when_two_of_a_unit_failed_in_the_same_second() -> None:
    job = a_job().with_restarts(5, "0s").with_pool(max=1, topology="2x2x2")
    stage = Stage(job, *a_tpu_slice("np-0", 2)).train()
    for host in (0, 1):
        stage.learner_exits("v5p-0", 1, 1, host=host)
    goes_on(stage)
    assert hosts(stage) == {}
    assert len(stage.unit("v5p-0")["failures"]) == 1


@pytest.mark.slow
def test_slice_with_a_bad_host_is_avoided_as_a_whole() -> None:
    job = a_job().with_restarts(5, "0s").with_pool(max=1, topology="2x2x2")
    stage = Stage(job, *a_tpu_slice("np-0", 2), *a_tpu_slice("np-1", 2)).train()
    for attempt in (1, 2):
        stage.learner_exits("v5p-0", attempt, 1, host=1)
        goes_on(stage)
    assert hosts(stage) == {"np-0-1": (2, True)}
    assert stage.unit("v5p-0")["slice"] == "np-1"


# --- the program --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_status_says_when_the_program_is_blamed() -> None:
    stage = a_stage(4, 10)
    stage.scale(min=4, max=4)
    for _ in range(2):
        for unit in range(4):
            stage.learner_exits(f"v5p-{unit}", stage.unit(f"v5p-{unit}")["attempt"], 1)
        stage.settle()
        stage.kubelets_start()
    stage.report = None
    stage.learner_exits("v5p-0", stage.unit("v5p-0")["attempt"], 1)
    stage.settle()
    assert not any(avoided for _, avoided in hosts(stage).values())
    text = "attempts failed on 4 of the 4 hosts that the job uses or used, so the program is blamed, and no host is avoided"
    assert text in stage.condition("Degraded")["message"]


@pytest.mark.slow
@pytest.mark.parametrize(("units", "avoided"), [(4, False), (5, True)])
def test_two_suspects_of_five_hosts_are_more_than_a_third_and_two_of_six_are_not(units: int, avoided: bool) -> None:
    stage = a_stage(units, 12)
    for bad in ("v5p-0", "v5p-1"):  # the first one moves to a further host
        fails(stage, bad, times=2)
    assert hosts(stage) == {"tpu-0": (2, avoided), "tpu-1": (2, avoided)}


@pytest.mark.slow
def test_unit_that_fails_wherever_it_goes_makes_two_hosts_suspect_and_is_given_up() -> None:
    stage = a_stage(9, 14, limit=5)
    for _ in range(12):
        if stage.unit("v5p-0")["state"] == "Training":
            stage.advance(1)
            fails(stage, "v5p-0")
    assert stage.unit("v5p-0")["state"] == "Failed"
    assert sum(avoided for _, avoided in hosts(stage).values()) == 2
    assert stage.unit("v5p-0")["restarts"] == 9  # after 2 failures on each of the two, and 5 elsewhere; the sixth ends it


@pytest.mark.slow
def test_only_host_of_a_pool_is_not_avoided() -> None:
    stage = a_stage(1, 1, limit=2)
    fails(stage, "v5p-0", times=3)
    assert stage.unit("v5p-0")["reason"] == "RestartsExhausted"
    assert hosts(stage) == {"tpu-0": (3, False)}


@pytest.mark.slow
def test_program_that_fails_everywhere_marks_no_host_and_ends_its_job_by_the_budgets_of_the_units() -> None:
    """More hosts are suspects than status has room for."""
    stage = a_stage(18, 24, limit=3)
    for _ in range(6):
        for unit in [name for name, state in stage.states().items() if state == "Training"]:
            stage.advance(1)
            stage.learner_exits(unit, stage.unit(unit)["attempt"], 1)
            stage.settle()
            stage.kubelets_start()
        goes_on(stage)
    assert set(stage.states().values()) == {"Failed"}
    assert stage.condition("Failed")["reason"] == "RestartsExhausted"
    assert len(hosts(stage)) == 16
    assert not any(avoided for _, avoided in hosts(stage).values())


@pytest.mark.slow
def test_avoided_host_is_used_again_when_it_is_the_only_one_left() -> None:
    stage = a_stage(1, 2)
    fails(stage, "v5p-0", times=2)
    assert (stage.unit("v5p-0")["slice"], hosts(stage)) == ("tpu-1", {"tpu-0": (2, True)})
    stage.lose_node("tpu-1")
    goes_on(stage)
    assert (stage.unit("v5p-0")["slice"], hosts(stage)) == ("tpu-0", {"tpu-0": (2, False)})


# --- what units do ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_unit_with_budget_left_tries_again_where_it_is_while_nothing_else_is_free() -> None:
    stage = a_stage(2, 2, limit=5)
    fails(stage, "v5p-0", times=3)
    assert (stage.unit("v5p-0")["state"], stage.unit("v5p-0")["slice"]) == ("Training", "tpu-0")
    stage.set_node(a_tpu_node("tpu-9"))
    fails(stage, "v5p-0")
    assert stage.unit("v5p-0")["slice"] == "tpu-9"


@pytest.mark.slow
def test_one_free_slice_moves_one_of_two_units_and_the_other_goes_on() -> None:
    stage = a_stage(6, 7)
    for unit in ("v5p-0", "v5p-1"):
        fails(stage, unit)
    for unit in ("v5p-0", "v5p-1"):
        stage.learner_exits(unit, 2, 1)
    goes_on(stage)
    assert set(stage.states().values()) == {"Training"}
    assert [stage.unit(unit)["slice"] for unit in ("v5p-0", "v5p-1")] == ["tpu-6", "tpu-1"]


@pytest.mark.slow
def test_unit_without_budget_moves_to_another_pool_with_room() -> None:
    job = a_job().with_learners(1, 3).with_restarts(1, "0s").with_pool(max=2).with_gpu_pool(max=1)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    fails(stage, "v5p-0", times=2)
    assert stage.unit("v5p-0")["state"] == "Pending"
    assert stage.unit("v5p-0")["slice"] == ""
    stage.set_node(a_gpu_node("gpu-0"))
    goes_on(stage)
    assert stage.unit("h100-0")["state"] == "Training"


@pytest.mark.slow
def test_unit_that_was_given_up_returns_when_its_host_turns_out_to_be_bad() -> None:
    """With a limit of 0 one failure gives the first unit up; the second one shows that the host is to blame."""
    stage = a_stage(1, 3, limit=0)
    stage.edit(training={**stage.job["spec"]["training"], "quorum": 1}, learners={**stage.job["spec"]["learners"], "max": 2})
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "learners": {"min": 0, "max": 2}}])
    goes_on(stage)
    fails(stage, "v5p-0")
    assert stage.unit("v5p-0")["state"] == "Failed"
    stage.lose_node("tpu-1")
    goes_on(stage)
    assert stage.unit("v5p-1")["slice"] == "tpu-0"
    stage.set_node(a_tpu_node("tpu-1"))
    fails(stage, "v5p-1")
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Training"}
    assert "tpu-0" not in {stage.unit(unit)["slice"] for unit in ("v5p-0", "v5p-1")}
    assert stage.unit("v5p-0")["restarts"] == 1


# --- desired ------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_given_up_unit_stays_desired_and_degrades_its_job_above_the_minimum() -> None:
    stage = a_stage(3, 4)
    fails(stage, "v5p-1", 65)
    assert stage.status["learners"] == {"desired": 3, "placed": 2, "contributing": 2, "min": 1, "max": 3}
    assert stage.condition("Placed")["message"].startswith("2 of 3 units have hardware, learners.min is 1; 1 given up")
    assert stage.status["pools"][0]["message"] == "pool v5p may have 3 units: 2 placed, 1 given up, see its message"
    degraded = stage.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "LearnersLost")
    assert degraded["message"].startswith("1 of 3 learners is lost until a person acts: v5p-1: given up after attempt 1: exit 65")
    assert degraded["message"].endswith("fix the cause, then kubectl diloco retry starts it again; 2 contribute")
    [note] = notes(stage, "LearnersLost")
    assert note.startswith("Degraded=True: ")
    pool = stage.job["spec"]["pools"][0]
    stage.edit(pools=[{**pool, "template": template(terminationGracePeriodSeconds=45)}])
    for _ in range(5):
        goes_on(stage)
    assert stage.condition("Degraded")["reason"] == "EnoughLearners"


def test_learner_that_another_pool_replaces_is_not_lost() -> None:
    job = a_job().with_learners(1, 2).with_pool(max=2).with_gpu_pool(max=1)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1"), a_gpu_node("gpu-0")).train()
    fails(stage, "v5p-1", 65)
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Failed", "h100-0": "Training"}
    assert stage.status["learners"]["desired"] == 2
    assert stage.condition("Degraded")["reason"] == "EnoughLearners"


def test_job_without_free_hardware_is_not_said_to_have_lost_a_learner() -> None:
    stage = a_stage(3, 2)
    assert stage.status["learners"]["desired"] == 3
    assert stage.condition("Degraded")["reason"] == "EnoughLearners"


# --- units of several slices --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_spare_host_goes_to_the_unit_that_lacks_one_and_not_to_the_one_that_lacks_two() -> None:
    # Three of ten hosts: where more than a third are suspects, the program is blamed.
    job = a_job().with_learners(1, 5).with_restarts(20, "0s").with_gpu_pool(max=5, hosts=2)
    stage = Stage(job, *(a_gpu_node(f"gpu-{i}") for i in range(10))).train()
    two_bad, one_bad = "h100-0", "h100-1"
    assert (stage.unit(two_bad)["slice"], stage.unit(one_bad)["slice"]) == ("gpu-0+gpu-1", "gpu-2+gpu-3")
    for unit, host in ((two_bad, 0), (two_bad, 1), (one_bad, 0)):
        fails(stage, unit, host=host, times=2)
    assert {node for node, (_, avoided) in hosts(stage).items() if avoided} == {"gpu-0", "gpu-1", "gpu-2"}
    assert (stage.unit(two_bad)["slice"], stage.unit(one_bad)["slice"]) == ("gpu-0+gpu-1", "gpu-2+gpu-3")  # nothing is free
    stage.set_node(a_gpu_node("spare"))
    stage.learner_exits(two_bad, stage.unit(two_bad)["attempt"], 1, host=1)
    fails(stage, one_bad)
    assert set(stage.unit(one_bad)["slice"].split("+")) == {"gpu-3", "spare"}
    assert (stage.unit(two_bad)["slice"], stage.unit(two_bad)["state"]) == ("gpu-0+gpu-1", "Training")


@pytest.mark.slow
def test_a_unit_leaves_no_good_host_for_one_in_another_zone_and_goes_there_once_it_has_all_its_hosts() -> None:
    def a_host(name: str, zone: str) -> Obj:
        return a_gpu_node(name, labels={NODE_ZONE: zone})

    job = a_job().with_restarts(20, "0s").with_gpu_pool(hosts=2, max=1)
    stage = Stage(job, a_host("a-0", "za"), a_host("a-1", "za"), a_host("b-0", "zb")).train()
    fails(stage, "h100-0", host=0, times=2)
    assert hosts(stage) == {"a-0": (2, True)}
    assert (stage.unit("h100-0")["slice"], stage.unit("h100-0")["state"]) == ("a-0+a-1", "Training")
    stage.set_node(a_host("b-1", "zb"))
    fails(stage, "h100-0", host=0)
    assert (stage.unit("h100-0")["slice"], stage.unit("h100-0")["state"]) == ("b-0+b-1", "Training")
