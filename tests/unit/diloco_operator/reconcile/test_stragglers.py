"""A unit that is much slower than the others of its pool for long gets its host avoided, and moves."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import a_job, gpu_pool
from builders.nodes import a_gpu_node, a_tpu_node
from builders.pods import starts
from builders.reports import a_report, a_unit_report
from builders.stage import Stage
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.stragglers import normal_steps

pytestmark = pytest.mark.slow


def a_stage(units: int = 4, nodes: int = 5, *, min: int = 1, pool_min: int = 0, **placement: Any) -> Stage:
    """One-host units that train on tpu-0, tpu-1, …; the other nodes are free."""
    job = a_job().with_learners(min, units).with_pool(min=pool_min, max=units)
    if placement:
        job.with_spec(placement=placement)
    return Stage(job, *(a_tpu_node(f"tpu-{i}") for i in range(nodes))).train()


def trains(stage: Stage, seconds: float, **slow: float) -> None:
    """For so long, with a report every 30 s. `slow`: unit, with _ for -, -> seconds of its steps; the others take 1 s."""
    for _ in range(round(seconds / 30)):
        stage.now += 30
        units = [unit for unit in stage.status["units"] if unit["state"] == "Training"]
        steps = {each["name"]: slow.get(each["name"].replace("-", "_"), 1.0) for each in units}
        reported = [a_unit_report(each["name"], each["attempt"], step_seconds=steps[each["name"]]) for each in units]
        stage.report = a_report(*reported, at=stage.now)
        stage.step()


def goes_on(stage: Stage) -> None:
    for _ in range(3):
        stage.settle()
        stage.kubelets_finish_deletions()
        stage.kubelets_start()
        stage.all_contribute()
    stage.settle()


def avoided(stage: Stage) -> list[str]:
    return [host["node"] for host in stage.status.get("hosts", ()) if "avoidedUntil" in host]


def test_a_straggler_moves_to_a_free_host_after_ten_minutes() -> None:
    stage = a_stage()
    slow_host = stage.unit("v5p-1")["slice"]
    trains(stage, 600, v5p_1=2.0)
    assert (stage.unit("v5p-1")["state"], stage.unit("v5p-1")["slowSince"]) == ("Training", "2026-11-20T12:00:30Z")
    assert avoided(stage) == []
    trains(stage, 30, v5p_1=2.0)
    assert avoided(stage) == [slow_host]
    unit = stage.unit("v5p-1")
    assert (unit["state"], unit["reason"]) == ("Draining", "Slow")
    assert unit["message"] == (
        "since 2026-11-20T12:00:30Z its steps take at least half as long again as those of the other units of pool v5p; it starts again on "
        "another host"
    )
    [note] = [event.message for plan in stage.plans for event in plan.events if event.reason == "HostAvoided"]
    assert note.startswith(
        f"node {slow_host}: 1 attempt was slow there; no unit starts there until 2026-11-20T12:20:30Z as long as another"
    )
    goes_on(stage)
    unit = stage.unit("v5p-1")
    assert (unit["state"], unit["slice"], unit["attempt"], unit["restarts"]) == ("Training", "tpu-4", 2, 0)
    assert "slowSince" not in unit


def test_a_unit_that_is_slow_now_and_then_stays() -> None:
    stage = a_stage()
    for _ in range(5):
        trains(stage, 570, v5p_1=2.0)
        trains(stage, 30)
    assert (avoided(stage), set(stage.states().values())) == ([], {"Training"})


def test_a_difference_of_a_third_is_no_straggling() -> None:
    stage = a_stage()
    trains(stage, 1200, v5p_1=1.33)
    assert (avoided(stage), set(stage.states().values())) == ([], {"Training"})


def test_two_units_do_not_say_which_of_them_is_normal() -> None:
    stage = a_stage(2, 3)
    trains(stage, 1200, v5p_1=3.0)
    assert (avoided(stage), set(stage.states().values())) == ([], {"Training"})


def test_all_units_may_become_slower_together() -> None:
    """With longer sequences, say."""
    stage = a_stage()
    trains(stage, 1200, v5p_0=4.0, v5p_1=4.0, v5p_2=4.0, v5p_3=4.0)
    assert (avoided(stage), set(stage.states().values())) == ([], {"Training"})


def test_units_of_another_template_are_not_compared() -> None:
    """It may take larger batches."""
    hashes = ["old", "old", "old", "new", "new", "new"]
    records = {f"v5p-{i}": UnitStatusRecord(f"v5p-{i}", "v5p", attempt=1, template_hash=each) for i, each in enumerate(hashes)}
    report = a_report(*(a_unit_report(f"v5p-{i}", step_seconds=1.0 if each == "old" else 4.0) for i, each in enumerate(hashes)), at=0.0)
    assert normal_steps(records, report) == {("v5p", "old"): 1.0, ("v5p", "new"): 4.0}


@pytest.mark.parametrize("fields", [{"min": 4}, {"pool_min": 4}, {"maxMoving": 0}, {"nodes": 4}])
def test_a_straggler_stays_where_no_other_host_is_free_or_it_must_not_move(fields: dict[str, Any]) -> None:
    """No minimum is broken by our own hand. Its status says why the job is slow."""
    stage = a_stage(**fields)
    trains(stage, 1200, v5p_1=2.0)
    unit = stage.unit("v5p-1")
    assert (unit["state"], unit["reason"], unit["attempt"]) == ("Training", "Slow", 1)
    trains(stage, 60)
    assert (stage.unit("v5p-1")["reason"], "slowSince" in stage.unit("v5p-1")) == ("", False)


def test_a_straggler_with_quota_of_kueue_stays() -> None:
    job = a_job().with_learners(1, 3).with_spec(queueName="team-a").with_pools(gpu_pool(hosts=1, max=3))
    stage = Stage(job, *(a_gpu_node(f"gpu-{i}") for i in range(4)))
    stage.settle()
    starts(stage.syncer, stage.now)
    stage.settle()
    queue = stage.with_quota(3)
    for i in range(3):  # one asks after the other
        queue.play()
        stage.binds(f"h100-{i}", 1, f"gpu-{i}")
        stage.settle()
    stage.kubelets_start()
    stage.all_contribute()
    queue.play()
    trains(stage, 1200, h100_1=2.0)
    unit = stage.unit("h100-1")
    assert (unit["state"], unit["reason"], unit["attempt"], avoided(stage)) == ("Training", "Slow", 1, ["gpu-1"])


def test_stragglers_move_one_after_the_other() -> None:
    stage = a_stage(7, 9)
    trains(stage, 660, v5p_1=2.0, v5p_2=3.0)
    assert sorted(stage.states().values()) == ["Draining", *["Training"] * 6]
    goes_on(stage)
    trains(stage, 660, v5p_2=3.0)
    goes_on(stage)
    assert {stage.unit(name)["attempt"] for name in ("v5p-1", "v5p-2")} == {2}


def test_another_operator_counts_on() -> None:
    stage = a_stage()
    trains(stage, 300, v5p_1=2.0)
    stage.restart_operator()
    stage.settle()
    trains(stage, 330, v5p_1=2.0)
    assert stage.states()["v5p-1"] == "Draining"
