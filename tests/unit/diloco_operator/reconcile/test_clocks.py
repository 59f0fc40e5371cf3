"""Wrong clocks: of the nodes, of an operator that led before, and of this one."""

from __future__ import annotations

from typing import Any

from builders import timelines as t
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.pods import starts
from builders.stage import START, Stage
from builders.timelines import at, given, timelines, unit
from diloco_operator.kube.timestamps import format_timestamp

HOUR = 3600.0
AHEAD = format_timestamp(START + 3 * HOUR)


@t.scene
def trained(limit: int = 2, initial: str = "10s") -> Stage:
    job = a_job().with_learners(1, 1).with_restarts(limit, initial=initial).with_pool(max=1)
    return Stage(job, a_tpu_node("tpu-0")).train()


@t.scene
def placed() -> Stage:
    """The pods exist."""
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    return stage


def written(**fields: Any) -> t.Event:
    """By an operator that led before, into the status of the unit."""
    return t.Event(lambda stage: stage.unit("v5p-0").update(fields))


def all_run(skew: float) -> t.Event:
    def act(stage: Stage) -> None:
        for pod in stage.pods.values():
            starts(pod, stage.now + skew)

    return t.Event(act)


test_clocks = timelines(
    # 10 s from its end; an end that is said to be before the unit began to train (at this same moment) counts from there.
    **{
        f"back_off_does_not_depend_on_a_nodes_clock[{skew}]": given(
            trained(), at(0, t.failed_before(), t.exits(1, skew=skew), unit(state="BackingOff", notBefore=format_timestamp(START + 10)))
        )
        for skew in (-3 * HOUR, -5.0, 0.0, 5.0, 3 * HOUR)
    },
    # learners.restart.limit is 2, so the third failure within the window (1 h) is the last
    **{
        f"restart_budget_holds_with_every_clock_of_a_node[{skew}]": given(
            trained(limit=2, initial="0s"),
            at(0, t.exits(1, skew=skew), t.reconciled, t.runs(skew)),
            at(1, t.reconciled, t.exits(1, skew=skew), t.reconciled, t.runs(skew)),
            at(2, t.reconciled, t.exits(1, skew=skew), unit(state="Failed", reason="RestartsExhausted")),
        )
        for skew in (-3 * HOUR, 3 * HOUR)
    },
    join_timeout_runs_by_the_operators_clock=given(
        placed(),
        at(0, t.all_contribute, all_run(skew=3 * HOUR)),
        at(61, unit(failures=1)),  # timeouts.join is 1m
    ),
    times_that_an_operator_with_a_fast_clock_wrote_do_not_stop_the_time_outs=given(
        placed(),
        at(0, written(since=AHEAD)),
        at(91, unit(endedAttempt=1)),  # timeouts.schedule and start: its pods were never scheduled
    ),
    back_off_that_an_operator_with_a_fast_clock_wrote_is_at_most_the_longest=given(
        trained(),
        at(
            0, t.failed_before(), t.exits(1), t.reconciled, written(notBefore=AHEAD), unit(notBefore=format_timestamp(START + 300))
        ),  # backoff.max is 5m
        at(301, unit(state="Starting")),
    ),
    failures_that_are_written_in_the_future_are_forgotten_in_time=given(
        trained(limit=1, initial="0s"),
        at(0, written(failures=[AHEAD])),
        at(0, t.seen("failures", lambda stage: stage.unit("v5p-0")["failures"], [format_timestamp(START)])),
        at(HOUR + 1, t.exits(1), unit(state="Starting")),
    ),
)
