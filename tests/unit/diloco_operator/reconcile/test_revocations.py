"""Units leave their slices for other jobs, and the job says what it has and wants."""

from __future__ import annotations

from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.stage import Stage
from diloco_operator.placement import JobRequest
from diloco_operator.reconcile import OperatorConfig
from diloco_operator.timeouts import RECONCILE

OTHER = "team/other/uid-2"
GRACE = OperatorConfig().learner_grace


def a_training_job(count: int = 3, **pool: str) -> Stage:
    job = a_job().with_learners(1, count).with_pool(max=count, **pool)
    return Stage(job, *(a_tpu_node(f"tpu-{index}") for index in range(count))).train()


def request(stage: Stage) -> JobRequest:
    found = stage.plans[-1].request
    assert found is not None
    return found


def test_a_revoked_unit_drains_and_leaves_its_slice_and_no_restart_is_counted() -> None:
    stage = a_training_job()
    stage.revoked = {"v5p-1": OTHER}
    stage.settle()
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Draining", "v5p-2": "Training"}
    assert stage.unit("v5p-1")["message"] == "it leaves slice tpu-1 to job team/other"
    assert [unit.name for unit in request(stage).pools[0].units] == ["v5p-0", "v5p-2"]
    stage.kubelets_finish_deletions()
    stage.inventory.set_reservations(OTHER, ["tpu-1"])
    stage.revoked = {}
    stage.settle()
    unit = stage.unit("v5p-1")
    assert (unit["state"], unit["reason"], unit["slice"], unit["restarts"]) == ("Pending", "NoCapacity", "", 0)
    assert unit["message"] == "it leaves slice tpu-1 to job team/other; waits for a slice; the message of pool v5p says why"
    assert stage.inventory.reservations(stage.observed().job.key) == {"tpu-0", "tpu-2"}


def test_a_unit_that_leaves_for_better_slices_of_its_own_job_says_so() -> None:
    stage = a_training_job()
    stage.revoked = {"v5p-1": stage.observed().job.key}
    stage.settle()
    assert stage.unit("v5p-1")["message"] == "it leaves slice tpu-1 because others are worth more to its job"


def test_a_job_runs_for_the_allotment_once_a_unit_of_it_has_started() -> None:
    stage = Stage(a_job().with_learners(1, 2).with_pool(max=2))
    stage.reconcile_only()
    assert not request(stage).runs
    assert request(a_training_job()).runs


def test_a_revoked_unit_without_processes_leaves_its_slice_at_once() -> None:
    job = a_job().with_learners(1, 2).with_restarts(5, initial="1m").with_pool(max=2)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    stage.revoked = {"v5p-0": OTHER}
    stage.reconcile_only()
    assert "tpu-0" not in [node for unit in request(stage).pools[0].units for node in unit.nodes]


def a_job_of_which_one_unit_waits_to_start_again() -> Stage:
    """Its minimum is two; v5p-0 and v5p-1 train."""
    job = a_job().with_learners(2, 3).with_restarts(5, initial="1m").with_pool(max=3)
    stage = Stage(job, *(a_tpu_node(f"tpu-{index}") for index in range(3))).train()
    stage.failed_before("v5p-2")
    stage.learner_exits("v5p-2", 1, 1)
    stage.settle()
    return stage


def test_a_revoked_unit_trains_on_until_the_minimum_trains_without_it() -> None:
    stage = a_job_of_which_one_unit_waits_to_start_again()
    stage.revoked = {"v5p-0": OTHER}
    stage.settle()
    assert stage.states()["v5p-0"] == "Training"
    stage.advance(60)
    stage.train()
    stage.settle()
    assert stage.states() == {"v5p-0": "Draining", "v5p-1": "Training", "v5p-2": "Training"}


def test_of_two_revoked_units_one_trains_on_if_both_would_break_the_minimum() -> None:
    stage = Stage(a_job().with_learners(2, 3).with_pool(max=3), *(a_tpu_node(f"tpu-{index}") for index in range(3))).train()
    stage.revoked = {"v5p-0": OTHER, "v5p-1": OTHER}
    stage.settle()
    assert stage.states() == {"v5p-0": "Draining", "v5p-1": "Training", "v5p-2": "Training"}


def test_of_a_job_with_more_than_its_minimum_those_are_offered_that_do_not_train_if_too_few_do() -> None:
    asked = request(a_job_of_which_one_unit_waits_to_start_again())
    assert {unit.name: unit.settling for unit in asked.pools[0].units} == {"v5p-0": True, "v5p-1": True, "v5p-2": False}


def test_units_that_contribute_least_are_the_first_that_may_go() -> None:
    job = a_job().with_learners(1, 2).with_restarts(5, initial="1m").with_pool(max=2)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    units = request(stage).pools[0].units
    assert min(units, key=lambda unit: unit.leaving_rank).name == "v5p-0"


def test_a_job_says_what_it_wants() -> None:
    stage = Stage(a_job().with_learners(2, 5).with_pool("a", min=1, max=3).with_pool("b", max=2, capacity="Scavenged"), a_tpu_node("tpu-0"))
    stage.settle()
    asked = request(stage)
    assert (asked.min, asked.max) == (2, 5)
    assert [(pool.min, pool.max, len(pool.units), pool.wanted, pool.scavenged) for pool in asked.pools] == [
        (1, 3, 1, 2, False),
        (0, 2, 0, 2, True),
    ]


def test_scavenged_pools_come_after_all_others_whatever_their_place() -> None:
    job = a_job().with_learners(1, 2).with_pool("cheap", min=1, max=2, capacity="Scavenged").with_pool("firm", max=2)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.settle()
    assert set(stage.states()) == {"firm-0", "firm-1"}


def test_slices_may_be_kept_for_units_of_which_nothing_is_known_that_keeps_them_from_starting() -> None:
    stage = Stage(a_job().with_learners(1, 3).with_pool(max=3), a_tpu_node("tpu-0")).train()
    assert (request(stage).pools[0].wanted, request(stage).pools[0].refused) == (2, False)


def test_a_unit_that_drains_for_a_new_template_keeps_its_slice_and_counts_towards_the_minimum() -> None:
    stage = a_training_job(1)
    pool = stage.job["spec"]["pools"][0]
    pool["template"]["spec"]["containers"][0]["image"] = "registry.example/train:2"
    stage.edit(pools=[pool])
    stage.step()  # a dry run of its pod
    stage.step()
    assert stage.states() == {"v5p-0": "Draining"}
    asked = request(stage)
    assert (asked.pools[0].draining_or_completed, asked.pools[0].counted_for_min, asked.occupied) == (1, 1, frozenset({"tpu-0"}))


def test_a_suspended_job_keeps_nothing() -> None:
    stage = a_training_job()
    stage.edit(suspend=True)
    stage.step()
    assert request(stage) == JobRequest(stage.observed().job.key)


def test_the_minimum_of_a_pool_waits_while_draining_units_of_another_fill_the_maximum_of_the_job() -> None:
    job = a_job().with_learners(1, 2).with_pool("a", max=2).with_pool("b", max=1)
    stage = Stage(job, *(a_tpu_node(f"tpu-{index}") for index in range(3))).train()
    first, second = stage.job["spec"]["pools"]
    first |= {"learners": {"min": 0, "max": 0}}
    stage.edit(pools=[first, {**second, "learners": {"min": 0, "max": 0}}])
    stage.settle()
    stage.edit(pools=[first, {**second, "learners": {"min": 1, "max": 1}}])
    stage.settle()
    assert [stage.states()[name] for name in ("a-0", "a-1")] == ["Draining", "Draining"]
    assert len(stage.live_attempts()) == 2, "learners.max is exceeded"
    stage.kubelets_finish_deletions()
    stage.settle()
    assert [unit for _, unit, _ in stage.live_attempts()] == ["b-0"]


def test_a_slice_that_a_stuck_pod_does_not_leave_is_not_counted_on() -> None:
    stage = a_training_job()
    stage.revoked = {"v5p-1": OTHER}
    stage.settle()
    assert request(stage).occupied == frozenset()
    # The kubelet never says that the pod has ended. The job is reconciled at this very moment, and not again.
    stage.advance(GRACE + RECONCILE.stuck_deletion)
    stage.settle()
    assert request(stage).occupied == frozenset({"tpu-1"})
