"""One cause of several: the precedence is fixed, whatever the order in status."""

from __future__ import annotations

from typing import Any

import pytest
from builders.cluster_scenes import NOW, conditions, unit
from builders.jobs import Obj, a_manifest
from diloco_cli.dominant import Cause, Dominant, Upcoming, dominant, upcoming_of
from diloco_cli.status_text import headline
from diloco_cli.view_model import JobView

IN_42_SECONDS = "2026-11-20T21:01:42Z"
A_POOL: Obj = {"name": "v5p", "reason": "NoFreeSlice", "message": "none is free", "remedies": ["end another job", "more nodes"]}
SHORT: dict[str, Any] = {"pools": [A_POOL], "learners": {"placed": 2, "min": 1, "max": 4}}
BELOW: dict[str, Any] = {"pools": [A_POOL], "learners": {"placed": 0, "min": 1, "max": 4}}


def a_view(*units: Obj, spec: Obj | None = None, labels: Obj | None = None, **status: Any) -> JobView:
    job = a_manifest("lm", namespace="team", spec=spec)
    job["metadata"]["labels"] = labels or {}
    return JobView.of({**job, "status": {"state": "Training", **status, "units": list(units)}})


def said(condition: str, status: str, reason: str, message: str = "words") -> Obj:
    [found] = conditions(**{condition: status})
    return {**found, "reason": reason, "message": message}


GIVEN_UP = unit("v5p-1", "Failed", 3, reason="RestartsExhausted", message="gave up", failedAttempt=3)
CRASHES = unit("v5p-2", "BackingOff", 2, reason="Crashed", message="exit 1", failedAttempt=2, notBefore=IN_42_SECONDS)
REFUSED = unit("v5p-3", "Pending", 0, reason="PodsRefused", message="exceeded quota")
ASKED = unit("v5p-4", "Starting", 1, reason="WaitingForNodes", message="asked the autoscaler")
STARTS = unit("v5p-5", "Joining", 1, reason="TakingParameters", message="receives")
EXPORT = "Let the job complete, or export the model: kubectl diloco export lm -n team. Do not suspend the job."
HOME: Obj = {"part": "tokyo", "name": "whole", "namespace": "there"}
MADE: Obj = {"diloco.dev/home": "uid-whole"}
SYNCER = said("Training", "False", "SyncerStarting")
TAKEN = said("Training", "False", "NameTaken")


@pytest.mark.parametrize(
    ("view", "cause", "reason", "subject"),
    [
        (a_view(REFUSED, GIVEN_UP, conditions=[said("Complete", "True", "StepsReached")], **BELOW), Cause.OVER, "StepsReached", "Complete"),
        (a_view(REFUSED, conditions=[said("Accepted", "False", "SpecInvalid"), TAKEN]), Cause.REFUSED, "SpecInvalid", "Accepted"),
        (a_view(GIVEN_UP, conditions=[TAKEN], spec={"suspend": True}), Cause.SUSPENDED, "", ""),
        (a_view(REFUSED, conditions=[said("Placed", "False", "KueueMissing"), SYNCER]), Cause.BLOCKED, "KueueMissing", "Placed"),
        (a_view(REFUSED, GIVEN_UP, conditions=[SYNCER], **BELOW), Cause.SYNCER, "SyncerStarting", "Training"),
        (a_view(STARTS, CRASHES, GIVEN_UP, REFUSED, **BELOW), Cause.PODS, "PodsRefused", "v5p-3"),
        (a_view(STARTS, CRASHES, GIVEN_UP, **BELOW), Cause.GIVEN_UP, "RestartsExhausted", "v5p-1"),
        (a_view(STARTS, ASKED, CRASHES, **BELOW), Cause.CRASHES, "Crashed", "v5p-2"),
        (a_view(STARTS, ASKED, **BELOW), Cause.HARDWARE, "NoFreeSlice", "pool v5p"),
        (a_view(STARTS, conditions=[said("Degraded", "True", "RollOutStopped")], **SHORT), Cause.WARNED, "RollOutStopped", "Degraded"),
        (a_view(STARTS, ASKED, **SHORT), Cause.GRANTS, "WaitingForNodes", "v5p-4"),
        (a_view(STARTS, **SHORT), Cause.STARTING, "TakingParameters", "v5p-5"),
        (a_view(conditions=[said("Degraded", "True", "SnapshotFailed")], **SHORT), Cause.WARNED, "SnapshotFailed", "Degraded"),
        (a_view(**SHORT), Cause.GROWTH, "NoFreeSlice", "pool v5p"),
        (a_view(unit()), Cause.NOTHING, "", ""),
    ],
    ids=lambda value: value.value if isinstance(value, Cause) else "",
)
def test_the_first_cause_in_the_order_of_precedence_is_told(view: JobView, cause: Cause, reason: str, subject: str) -> None:
    found = dominant(view)
    assert (found.cause, found.reason, found.subject) == (cause, reason, subject)


def test_a_cause_has_the_words_of_the_operator_the_meaning_of_the_reason_and_a_next_step() -> None:
    assert dominant(a_view(**SHORT)) == Dominant(
        Cause.GROWTH,
        "NoFreeSlice",
        "pool v5p",
        "none is free",
        "Every slice that fits the pool is in use or not ready.",
        "end another job",
    )


@pytest.mark.parametrize(
    ("view", "step"),
    [
        (a_view(CRASHES), "kubectl diloco logs lm v5p-2 -n team"),
        (a_view({**CRASHES, "attempt": 3}), "kubectl diloco logs lm v5p-2 -p -n team"),
        (a_view(GIVEN_UP), "kubectl diloco logs lm v5p-1 -n team; once the cause is gone, kubectl diloco retry lm -n team"),
        (a_view(conditions=[SYNCER]), "kubectl diloco logs lm syncer -n team"),
        (a_view(conditions=[SYNCER], home=HOME), "in the cluster of job whole: kubectl diloco logs whole syncer -n there"),
        (
            a_view(conditions=[said("Complete", "True", "HomeComplete")], home=HOME),
            "in the cluster of job whole: kubectl diloco export whole -n there -o model.safetensors",
        ),
        (a_view(spec={"suspend": True}), "kubectl diloco resume lm -n team"),
        (a_view(spec={"suspend": True}, home=HOME), "kubectl diloco resume lm -n team"),
        (
            a_view(spec={"suspend": True}, home=HOME, labels=MADE),
            "in the cluster of job whole: kubectl diloco status whole -n there",
        ),
        (a_view(state="Suspended", home=HOME), "in the cluster of job whole: kubectl diloco status whole -n there"),
        (a_view(conditions=[said("Degraded", "True", "VolumeDeleted")]), EXPORT),
        (a_view(conditions=[said("Failed", "True", "SyncerFailed")]), "remove the cause, then kubectl diloco retry lm -n team"),
    ],
)
def test_the_next_step_is_a_command_that_can_be_typed(view: JobView, step: str) -> None:
    assert dominant(view).next_step == step


def test_a_part_that_has_not_heard_of_home_says_so_and_that_it_goes_on_by_itself() -> None:
    nothing_runs = said("Suspended", "True", "Suspended", "nothing runs, the state is kept")
    silent = said("Training", "False", "Suspended", "no report has come. It goes on by itself once a report comes")
    part = a_view(state="Suspended", reason="Suspended", conditions=[nothing_runs, silent], home=HOME)
    assert dominant(part).evidence == silent["message"]
    assert headline(part) == f"Suspended: {silent['message']}"
    on_request = a_view(state="Suspended", reason="Suspended", conditions=[nothing_runs, silent], home=HOME, spec={"suspend": True})
    assert headline(on_request) == "Suspended: nothing runs, the state is kept"


def test_of_pools_that_wait_the_one_is_told_for_which_something_can_be_done() -> None:
    asked = {"name": "v6e", "reason": "WaitingForNodes", "message": "asked", "remedies": ["wait"]}
    hopeless = {"name": "h100", "reason": "NoFreeSlice", "message": "none"}
    assert dominant(a_view(pools=[asked, hopeless, A_POOL], learners={"placed": 0, "min": 1})).subject == "pool v5p"


def test_what_comes_by_itself_is_listed_with_its_time_the_soonest_first() -> None:
    """NOW is 21:01:00."""
    ended = said("Complete", "True", "StepsReached")
    ended["lastTransitionTime"] = "2026-11-20T21:00:30Z"
    view = a_view(
        CRASHES,
        {**CRASHES, "name": "v5p-9"},
        unit("v5p-7", reason="Paused", pausedUntil="2026-11-20T21:05:00Z"),
        conditions=[ended],
        hosts=[{"node": "tpu-3", "message": "", "avoidedUntil": "2026-11-20T21:03:00Z"}],
    )
    assert upcoming_of(view, {"ttlSecondsAfterFinished": 60}) == (
        Upcoming(NOW + 30, "the job is deleted"),
        Upcoming(NOW + 42, "v5p-2, v5p-9 may start again"),
        Upcoming(NOW + 120, "units start on tpu-3 again"),
        Upcoming(NOW + 240, "v5p-7 must be over with its pause"),
    )
