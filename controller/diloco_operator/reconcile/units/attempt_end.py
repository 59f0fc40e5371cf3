"""How an attempt ended, and why, by its pods and their nodes. Pure.

The operator reads the exit statuses of the contract, what kubelet and cluster report about the pod, and the state of its node. The order of
the rules matters: what the program itself reported comes before what happened around it.

See docs/decisions/0040-learner-pods.md.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from diloco.contract import Exit

from diloco_operator.api.consequences import Follows
from diloco_operator.api.reasons import UnitReason, follows
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.units import end_words

_ENDED_BY_NODE = frozenset({"Preempting", "NodeLost", "NodeShutdown", "Shutdown", "Terminated"})
"""status.reason of pods that the node or the cluster ended."""
_EVICTED = "Evicted"
"""status.reason of pods that a kubelet evicted. If the node lacked a resource, the kubelet sets the condition DisruptionTarget too. Without
that condition the pod has used more of a volume, or of ephemeral storage, than its own limit."""
_NOT_A_REFUSAL = _ENDED_BY_NODE | {_EVICTED, "DeadlineExceeded"}
CAUSE_WAIT = 5.0
"""Seconds. If ranks only say that another rank was lost, the operator waits this long for that rank's pod to say why. Within that time all
ranks of a unit end, and their kubelets report."""


class EndKind(enum.IntEnum):
    """How an attempt ended, in ascending weight: the heaviest end within a gang is the end of the attempt."""

    COMPLETE = 0
    """The program ended with status 0. If something had asked the unit to leave, the reason says what."""
    DRAINED = 1
    """The operator asked the unit to leave."""
    NEVER_RAN = 2
    """Its pods are gone, and none of them ever ran."""
    FAILURE = 3
    """The program failed, which counts against the restart budget."""
    DISRUPTION = 4
    """The platform ended it, which does not count."""
    PERMANENT = 5
    """A failure that would happen again in every attempt."""


@dataclass(frozen=True, slots=True)
class End:
    kind: EndKind
    reason: str
    """A `UnitReason`, or "" if the end needs none."""
    why: str
    at: float
    leave_slice: bool = False
    """The next attempt should start elsewhere."""
    no_place: bool = False
    """A host did not take its pod: the unit gives its slice up."""
    node: str = ""
    """The node on which it began, or "" if that is unknown."""

    @property
    def is_symptom(self) -> bool:
        """Whether the cause is the end of another rank."""
        return follows(self.reason, Follows.SYMPTOM)


_REFUSALS = {
    Exit.REFUSED_LAYOUT: (EndKind.PERMANENT, UnitReason.REFUSED_LAYOUT),
    Exit.BAD_CONTRACT: (EndKind.PERMANENT, UnitReason.BAD_CONTRACT),
    Exit.REFUSED_NONFINITE: (EndKind.FAILURE, UnitReason.REFUSED_NONFINITE),
    Exit.REFUSED_QUARANTINED: (EndKind.FAILURE, UnitReason.REFUSED_QUARANTINED),
    Exit.RANK_LOST: (EndKind.FAILURE, UnitReason.RANK_LOST),
    Exit.REFUSED_FENCED: (EndKind.FAILURE, UnitReason.REFUSED_IDENTITY),
    Exit.REFUSED_UNAUTHENTICATED: (EndKind.FAILURE, UnitReason.REFUSED_IDENTITY),
}
"""Exit statuses of the contract with which a program says why it cannot go on."""


def classify(pod: PodView, eviction_reason: str, now: float) -> End | None:
    """Return how this pod ended, of an attempt that should run. None while it goes on. `eviction_reason`: why units must leave its node."""
    # A sidecar that still runs does not keep a unit alive: nothing would restart the program.
    if pod.ended or pod.main_ended:
        return _classify_ended(pod, eviction_reason, now)
    return _disruption(pod, eviction_reason, now)


def _classify_ended(pod: PodView, eviction_reason: str, now: float) -> End:
    end = pod.termination
    at = end.finished if end is not None and end.finished is not None else now
    disruption = _disruption(pod, eviction_reason, at)
    if end is not None:
        if end.exit_code == Exit.COMPLETE:
            return replace(disruption, kind=EndKind.COMPLETE) if disruption is not None else End(EndKind.COMPLETE, "", "", at)
        if end.exit_code in _REFUSALS:
            kind, reason = _REFUSALS[Exit(end.exit_code)]
            return End(kind, reason, end_words.exited(end), at)
        if end.reason == "OOMKilled":
            return End(EndKind.FAILURE, UnitReason.OUT_OF_MEMORY, end_words.out_of_memory(end.exit_code), at)
    if pod.reason == _EVICTED and not (pod.disruption or eviction_reason):
        return End(EndKind.FAILURE, UnitReason.OUT_OF_STORAGE, end_words.pod_evicted(pod.name, pod.reason, pod.message), at)
    if disruption is not None:
        return disruption
    if end is None:
        if pod.phase == "Succeeded":
            return End(EndKind.COMPLETE, "", "", at)
        return End(EndKind.FAILURE, UnitReason.CRASHED, end_words.pod_failed(pod.name, pod.reason, pod.message), at)
    return End(EndKind.FAILURE, UnitReason.CRASHED, end_words.exited(end), at)


def _disruption(pod: PodView, eviction_reason: str, at: float) -> End | None:
    """Return what asks, or had asked, the pod to leave. None if nothing does. `at`: when it ended, or now."""
    if pod.disruption:
        return End(EndKind.DISRUPTION, UnitReason.DISRUPTED, end_words.pod_disrupted(pod.name, pod.disruption), at)
    if eviction_reason:
        return End(EndKind.DISRUPTION, UnitReason.NODE_LOST, eviction_reason, at, leave_slice=True)
    if pod.ended and pod.reason in _ENDED_BY_NODE:
        return End(EndKind.DISRUPTION, UnitReason.DISRUPTED, end_words.pod_evicted(pod.name, pod.reason, pod.message), at)
    if _is_refused_by_host(pod):
        why = end_words.pod_evicted(pod.name, pod.reason, pod.message)
        return End(EndKind.DISRUPTION, UnitReason.HOST_REFUSED, why, at, leave_slice=True, no_place=True)
    if pod.deletion is not None:
        return End(EndKind.DISRUPTION, UnitReason.DISRUPTED, end_words.pod_deleted(pod.name), at)
    return None


def _is_refused_by_host(pod: PodView) -> bool:
    """Return whether the kubelet did not admit the pod, so that no container of it ever began."""
    # The kubelet has many reasons for this, device plugins add others: UnexpectedAdmissionError, NodeAffinity, OutOfcpu, … So every reason
    # counts that is not known to be something else.
    began = pod.termination is not None or pod.running_since is not None or pod.main_ended
    return pod.phase == "Failed" and bool(pod.reason) and not began and pod.reason not in _NOT_A_REFUSAL


def gang_end(
    pods: Sequence[PodView], hosts: int, eviction_reason: Callable[[str], str], now: float, *, ever_ran: bool, adopted: bool
) -> End | None:
    """Return the end of an attempt, all or nothing over its hosts. None while it goes on.

    Args:
        hosts: how many pods it should have.
        eviction_reason: says of a node why units must leave it, or "".
        ever_ran: by the record it has run.
        adopted: its pods are newer than the record, so that missing ones may not have been created yet.
    """
    ends = [(pod, classify(pod, eviction_reason(pod.node), now)) for pod in pods]
    over = [replace(end, node=pod.node) for pod, end in ends if end is not None]
    if len(pods) < hosts and not adopted:
        if ever_ran:
            over.append(End(EndKind.DISRUPTION, UnitReason.POD_LOST, end_words.POD_GONE, now))
        elif not over:
            return End(EndKind.NEVER_RAN, UnitReason.POD_LOST, end_words.ALL_PODS_GONE, now)
    if not over:
        return None
    heaviest = max(end.kind for end in over)
    if heaviest is EndKind.COMPLETE and len(over) < len(pods):
        return None  # the other hosts will end too
    # The first of several failures is the cause: when one host fails, the others of the gang fail without it, and may say so.
    worst = [end for end in over if end.kind is heaviest]
    if heaviest is EndKind.COMPLETE:  # the hosts of a drained unit end one after the other: the unit ends with the last
        return replace(next((end for end in worst if end.reason), worst[0]), at=max(end.at for end in worst))
    first = min(worst, key=lambda end: (end.is_symptom, end.at))
    if first.is_symptom:
        # All that ended name another rank. If one host has not ended, it is the one that they lost.
        silent = {pod.node for pod, end in ends if end is None}
        return replace(first, node=silent.pop() if len(silent) == 1 else "")
    # A kubelet reports whole seconds: if several hosts failed in the same second, any of them may be the cause.
    at_once = {end.node for end in worst if end.at == first.at and not end.is_symptom}
    return first if len(at_once) == 1 else replace(first, node="")


def failed(end: End) -> bool:
    """Return whether the attempt ended in a failure: neither as it was asked to, nor by the platform, nor with status 0."""
    return end.kind in (EndKind.FAILURE, EndKind.PERMANENT)


def failure_at_end(pods: Sequence[PodView], now: float) -> End | None:
    """Return how a unit's program failed after its job was done. None if it did not fail."""
    # A pod that is being deleted did not fail by itself: the operator ended it.
    ends = [classify(pod, "", now) for pod in pods if pod.deletion is None]
    return min((end for end in ends if end is not None and failed(end)), key=lambda end: (end.is_symptom, end.at), default=None)


def cause_due(end: End, pods: Sequence[PodView], now: float) -> float | None:
    """Return until when to wait for the cause of this end of a gang. None if it is known, or no pod is left that could tell it."""
    if end.kind is not EndKind.FAILURE or not end.is_symptom or all(pod.ended or pod.main_ended for pod in pods):
        return None
    # `end.at` comes from a node's clock. If that is obviously wrong, do not wait at all.
    return end.at + CAUSE_WAIT if now - CAUSE_WAIT < end.at <= now + 1.0 else None
