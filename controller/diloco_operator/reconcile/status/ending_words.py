"""How a job ended, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from diloco.contract import Result
from diloco.wording import loss_text, plural

from diloco_operator.api import names
from diloco_operator.api.names import JobKey
from diloco_operator.kube.fields import clip

NO_RESULT = "the syncer ended with status 0, but left no readable result"


def summary(result: Result) -> str:
    text = f"{result.step} of {plural(result.steps, 'step')}, {plural(result.tokens, 'token')}"
    if result.loss is not None:
        text += f", training loss {loss_text(result.loss, 5)}"
    if result.held_out_loss is not None:
        text += f", held-out loss {loss_text(result.held_out_loss, 5)}"
    if result.end_reason:
        text += f"; ended by unit {clip(result.end_reason)}"
    return f"{text}. {clip(result.message)}" if result.message else text


def nothing_merged(job: JobKey, result: Result) -> str:
    """The advice is to raise the steps, too: after a retry alone the job would be at its last step again."""
    refused = f"{plural(result.refused, 'contribution was', 'contributions were')} refused ({clip(result.refusal)})"
    why = refused if result.refused else "none came in time"
    return (
        f"{result.step} of {plural(result.steps, 'step')} are over and nothing was merged: {why}. The parameters are those that the job "
        f"began with. Correct the program and raise training.steps, then {_retry(job)}"
    )


def state_unusable(job: JobKey, cause: str) -> str:
    """`cause`: in the syncer's words, "" if it left none."""
    return (
        f"the state on volume {names.volume_claim_name(job[1])} cannot be used{_detail(cause)}. Nothing was overwritten: "
        f"repair or replace the snapshots, then {_retry(job)}"
    )


def start_unusable(job: JobKey, cause: str) -> str:
    """`cause`: in the syncer's words, "" if it left none."""
    return (
        f"the job cannot begin with the model of spec.startFrom{_detail(cause)}. Correct spec.startFrom.uri, or what is there, "
        f"then {_retry(job)}"
    )


def contract_unreadable(job: JobKey, cause: str) -> str:
    """`cause`: in the syncer's words, "" if it left none."""
    return (
        f"the syncer cannot read its environment or job file{_detail(cause)}; use the syncer "
        f"image that belongs to the operator, then {_retry(job)}"
    )


def _detail(cause: str) -> str:
    return f": {clip(cause)}" if cause else ""


def parts_left(clusters: Sequence[str]) -> str:
    return (
        f"in {' and '.join(clusters)} the job's part may be left: it did not go within 10 minutes, or the operator knows no such cluster. "
        "It gives its hardware back by itself after syncer.at.partTimeout; delete its DiLoCoJob and its Secret there"
    )


def quorum_lost(job: JobKey, given_up: int, quorum: int, unit: str, why: str) -> str:
    """`unit`: the unit that was given up last, and `why`."""
    return (
        f"{plural(given_up, 'unit has', 'units have')} been given up, the rest cannot reach training.quorum {quorum}; "
        f"{unit}: {why}. Fix the cause, then {_retry(job)}"
    )


def parts_failed(job: JobKey, quorum: int, part: str, why: str) -> str:
    return (
        f"part {part} has failed, and the units of the other clusters cannot reach training.quorum {quorum}; {part}: {clip(why)}. Fix the "
        f"cause, then {_retry(job)}"
    )


def _retry(job: JobKey) -> str:
    """What a person does to start a failed job again."""
    namespace, name = job
    return f"kubectl diloco retry {name} -n {namespace}; a change of the spec goes with a higher spec.retry in the same kubectl apply"
