"""Wrong clocks: of the nodes, of an operator that led before, and of this one."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.pods import exits, starts
from builders.stage import START, Stage
from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp

HOUR = 3600.0


def trained(limit: int = 2, initial: str = "10s") -> Stage:
    job = a_job().with_learners(1, 1).with_restarts(limit, initial=initial).with_pool(max=1)
    return Stage(job, a_tpu_node("tpu-0")).train()


def crash(stage: Stage, attempt: int, skew: float) -> None:
    """The learner fails now, by a node's clock that is `skew` ahead."""
    exits(stage.pod("v5p-0", attempt), 1, stage.now + skew)
    stage.settle()


@pytest.mark.parametrize("skew", [-3 * HOUR, -5.0, 0.0, 5.0, 3 * HOUR])
def test_back_off_does_not_depend_on_a_nodes_clock(skew: float) -> None:
    stage = trained()
    crash(stage, 1, skew)
    waits = parse_timestamp(stage.unit("v5p-0")["notBefore"]) - stage.now
    # 10 s from its end; an end that is said to be before the unit began to train (at this same moment) counts from there.
    assert waits == 10.0


@pytest.mark.parametrize("skew", [-3 * HOUR, 3 * HOUR])
def test_restart_budget_holds_with_every_clock_of_a_node(skew: float) -> None:
    stage = trained(limit=2, initial="0s")
    for attempt in (1, 2, 3):
        crash(stage, attempt, skew)
        for pod in stage.pods.values():
            if pod["status"]["phase"] == "Pending":
                starts(pod, stage.now + skew)
        stage.advance(1)
        stage.settle()
    # learners.restart.limit is 2, so the third failure within the window (1 h) is the last
    assert (stage.unit("v5p-0")["state"], stage.unit("v5p-0")["reason"]) == ("Failed", "RestartsExhausted")


def test_join_timeout_runs_by_the_operators_clock() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    stage.all_contribute()
    for pod in stage.pods.values():
        starts(pod, stage.now + 3 * HOUR)
    stage.settle()
    stage.advance(61)  # timeouts.join is 1m
    stage.settle()
    assert len(stage.unit("v5p-0")["failures"]) == 1


def written_ahead(stage: Stage) -> dict[str, Any]:
    """As an operator whose clock was three hours ahead would have left the unit."""
    unit = stage.unit("v5p-0")
    unit |= {"since": format_timestamp(stage.now + 3 * HOUR)}
    return unit


def test_times_that_an_operator_with_a_fast_clock_wrote_do_not_stop_the_time_outs() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    written_ahead(stage)
    stage.settle()
    stage.advance(91)  # timeouts.schedule and start
    stage.settle()
    assert stage.unit("v5p-0")["endedAttempt"] == 1  # its pods were never scheduled


def test_back_off_that_an_operator_with_a_fast_clock_wrote_is_at_most_the_longest() -> None:
    stage = trained()
    crash(stage, 1, 0.0)
    stage.unit("v5p-0")["notBefore"] = format_timestamp(stage.now + 3 * HOUR)
    stage.settle()
    assert parse_timestamp(stage.unit("v5p-0")["notBefore"]) - stage.now == 300  # backoff.max is 5m
    stage.advance(301)
    stage.settle()
    assert stage.unit("v5p-0")["state"] == "Starting"


def test_failures_that_are_written_in_the_future_are_forgotten_in_time() -> None:
    stage = trained(limit=1, initial="0s")
    stage.unit("v5p-0")["failures"] = [format_timestamp(stage.now + 3 * HOUR)]
    stage.settle()
    assert stage.unit("v5p-0")["failures"] == [format_timestamp(START)]
    stage.advance(HOUR + 1)
    crash(stage, 1, 0.0)
    assert stage.unit("v5p-0")["state"] == "Starting"
