"""How an attempt ended, in words. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from diloco.contract import Exit
from diloco.wording import plural

from diloco_operator.api.durations import format_duration
from diloco_operator.api.spec import Restart
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.observe.pods import Termination
from diloco_operator.timeouts import RECONCILE

_ADVICE: Mapping[int, str] = {
    Exit.REFUSED_LAYOUT: (
        "the parameters or the samples of the training program are not those of the job; make both the same in every pool's template"
    ),
    Exit.BAD_CONTRACT: (
        "the training program found its environment or job file missing or wrong; use the diloco version that belongs to the operator"
    ),
    Exit.REFUSED_NONFINITE: "it sent NaN or infinite parameters, which were refused; check its learning rate and data",
    Exit.REFUSED_QUARANTINED: (
        "the syncer refused its contributions again and again as outliers; check its data, learning rate, token counts and accelerator"
    ),
    Exit.RANK_LOST: "another rank of its unit ended or was lost",
    Exit.REFUSED_FENCED: "the syncer knows a newer attempt or another process with this identity",
    Exit.REFUSED_UNAUTHENTICATED: (
        "it and the syncer do not accept each other's certificates, or its certificate names another job, unit or attempt; see its log"
    ),
}


# --- the program ------------------------------------------------------------------------------------------------------
def exited(end: Termination) -> str:
    """Say how a program ended, by itself or by a signal: `exit 3: …`, with its termination message."""
    advice = _ADVICE.get(end.exit_code)
    text = f"exit {end.exit_code}: {advice}" if advice is not None else end.text
    # A program that a signal killed left no last words. What stands as its message is the end of its log, which may be anything.
    killed = (end.signal or end.exit_code > 128) and not end.is_last_words
    return text if killed or not end.message else f"{text}: {end.message}"


def out_of_memory(exit_code: int) -> str:
    return f"exit {exit_code} (OOMKilled): it used more memory than its limit; raise the limit or use a smaller batch"


_STAY = "let it train until session.batches ends, or end the job for all units with session.finish"
LEFT_EARLY = f"the training program ended with status 0 before the job was done; {_STAY}"
LEFT_AND_RUNS = f"its program left the training loop before the job was done, and runs on without it; {_STAY}"


def failed_at_end(end: str) -> str:
    """Say that the job was done before its program failed. `end`: how it failed."""
    return f"the job was done when its program failed, so what it writes at its end may be missing: {end}"


STOPPED_AT_END = (
    f"its program had not ended {format_duration(RECONCILE.end_by_itself)} after the job was complete, and was told to: what it writes at "
    "its end may be missing"
)


# --- its pods ---------------------------------------------------------------------------------------------------------
def pod_failed(pod: str, reason: str, message: str) -> str:
    """Say that a pod failed, if no container of it says how."""
    detail = f"{reason}: {message}" if reason else "the kubelet gives no reason"
    return f"the pod {pod} failed ({detail})"


def pod_disrupted(pod: str, why: str) -> str:
    """Say which pod is disrupted. `why`: in the words of the component that disrupts it."""
    return f"{pod}: {why}"


def pod_evicted(pod: str, reason: str, message: str) -> str:
    return f"{pod}: {reason} {message}".rstrip()


def pod_deleted(pod: str) -> str:
    return f"the pod {pod} was deleted, but not by the operator"


POD_GONE = "a pod is gone, and the operator had not deleted it"
"""Said of an attempt that had run, if one or more of its pods are gone."""
ALL_PODS_GONE = "its pods are gone"
"""Said of an attempt that never ran."""
PODS_DELETED_BEFORE_NODES = "its pods were deleted, but not by the operator, before they had nodes"


def nodes_for_some_pods(end: str) -> str:
    """Say how a delegated unit ended before it had all its nodes."""
    return f"nodes came for some of its pods only, and these did not wait for the others: {end}"


# --- an attempt that was not created as it should be --------------------------------------------------------------------
def created_in_part(attempt: int) -> str:
    """Say that an operator died before it created any of the pods that name the group of hosts."""
    return f"attempt {attempt} was created in part, and none of its pods names its slice; it is created again"


def created_on_two_slices(attempt: int, slices: Collection[str]) -> str:
    where = " and ".join(sorted(slices))
    return f"attempt {attempt} was created on two slices, {where}; it is created again on one"


def attempt_replaced(attempt: int) -> str:
    return f"attempt {attempt} was replaced"


def attempt_forgotten(end: str, newest: int) -> str:
    """Say that status lacks an attempt that the syncer has accepted. `end`: how the attempt ended that status has."""
    return f"{end}; the syncer has accepted attempt {newest}, which status lacks: it seems to be restored from a backup"


TOOK_FREE_SLICE = "the unit took a slice that became free"
"""Said of an attempt that waited for a grantor and ended before it ran."""


# --- time-outs --------------------------------------------------------------------------------------------------------
def image_refused(pod: str, node: str, problem: str) -> str:
    do = "other hosts are tried first; if they say the same, correct it in the pool's template, or the pull secret"
    return f"{pod} on {node}: an image cannot be pulled; {do}: {problem}"


def pull_timed_out(pod: str, limit: float, wait: str) -> str:
    return f"the images of {pod} were not pulled within {format_duration(limit)} (learners.timeouts.pull): {wait}"


def start_timed_out(pod: str, limit: float, wait: str) -> str:
    return f"{pod} was not ready to run within {format_duration(limit)} (learners.timeouts.start): {wait}"


def join_timed_out(limit: float) -> str:
    return f"its pods run, but it did not join the syncer within {format_duration(limit)} (learners.timeouts.join); see its log"


def not_heard_from(stall: float) -> str:
    return f"the syncer has not heard from it for {_stall(stall)}"


def refused_and_runs(why: str) -> str:
    return f"the syncer has refused it, and its program has not ended: {why}"


def pause_too_long(pause: str) -> str:
    """Say that a program paused for longer than it had announced. `pause`: what it had said about the pause."""
    return f"its program paused for longer than it had said ({pause}); raise at_most in session.paused"


def no_first_step(limit: float) -> str:
    within = f"{format_duration(limit)} (learners.timeouts.firstStep)"
    return f"its process is alive, but did not take its first step within {within}; see its log"


def no_further_step(stall: float) -> str:
    return (
        f"its process is alive, but took no step for {_stall(stall)}: training hangs, or the program does something else for so "
        "long, which session.paused announces"
    )


def _stall(seconds: float) -> str:
    return f"{format_duration(seconds)} (learners.stallTimeout)"


# --- what follows from an end -------------------------------------------------------------------------------------------
def operator_defect(what: str) -> str:
    return f"a defect of the operator ended it: {what}"


def crashed(attempt: int, end: str, not_before: float) -> str:
    """Say that an attempt failed within the restart budget."""
    return f"attempt {attempt} ended: {end}; the next one starts at {format_timestamp(not_before)}"


def why_given_up(attempt: int, failures: int | None, budget: Restart, end: str) -> str:
    """Say why a unit was given up. The job's status uses this text too.

    Args:
        failures: how many failures in the restart window used the budget up. None if the last one was enough.
        end: how the last attempt failed, or "" if that is not known any more.
    """
    last = f"attempt {attempt}{': ' if end else ''}{end}"
    if failures is None:
        return f"given up after {last}"
    many = f"{plural(failures, 'failure')} within {format_duration(budget.window)}"
    return f"given up: {many}, learners.restart.limit is {budget.limit}; the last, {last}"


def given_up(why: str) -> str:
    return f"{why}; fix the cause, then kubectl diloco retry starts it again"
