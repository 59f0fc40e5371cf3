"""What the pods of an attempt wait for until they all run, and for how long they may. Pure.

Judged by what scheduler and kubelet report of each pod, and counted from times of the control plane: a node's clock may be hours off. Where
a node's time is needed, it counts only as far as the step before it allows.

See docs/decisions/0102-failures-of-nodes-and-units.md.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from diloco_operator.api.reasons import UnitReason
from diloco_operator.kube.fields import clip
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors.interface import PodWait
from diloco_operator.reconcile.grantors.registry import grantor_named
from diloco_operator.reconcile.observe.clocks import between
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.startup import PodStartup
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units import end_words, wait_words
from diloco_operator.reconcile.units.attempt_end import End, EndKind

_WORDS = 500
"""Characters that a message takes over from a scheduler or kubelet."""
_REFUSALS = (
    "not found",
    "does not exist",
    "manifest unknown",
    "name unknown",
    "denied",
    "unauthorized",
    "forbidden",
    "authorization failed",
    "invalid reference",
    "no match for platform",
    "no such host",
)
"""In the words of a kubelet: a further pull on this host would fail in the same way. Only other hosts tell whose fault it is."""
_REFUSED_REASONS = ("InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed")
_STARTS_BY_ITSELF = ("", "ContainerCreating", "PodInitializing")
"""Reasons of a waiting container that is on its way. With another one the kubelet reports an error."""


class NoPlace(NamedTuple):
    """A pod that cannot have its node. This is no failure: the unit gives its slice up."""

    reason: UnitReason
    node: str
    why: str


class Timeout(NamedTuple):
    """An attempt that took too long, or when it will have taken too long."""

    end: End | None = None
    due: float | None = None
    no_place: NoPlace | None = None


class StartStep(enum.Enum):
    """What a pod that does not run yet waits for."""

    QUOTA = UnitReason.WAITING_FOR_QUOTA
    NODES = UnitReason.WAITING_FOR_NODES
    SCHEDULING = UnitReason.SCHEDULING
    STARTING = UnitReason.STARTING_CONTAINERS
    PULLING = UnitReason.PULLING_IMAGES


class _Wait(NamedTuple):
    """What one pod waits for, and for how long it may."""

    pod: PodView
    step: StartStep
    what: str
    due: float | None
    """None: for as long as it takes."""
    end: End | NoPlace
    """What follows when the time is up."""


def all_run(pods: Sequence[PodView]) -> bool:
    """Return whether the main container of every pod runs or has run."""
    return bool(pods) and all(_has_run(pod) for pod in pods)


def all_bound(pods: Sequence[PodView]) -> bool:
    """Return whether a scheduler has bound every pod."""
    return bool(pods) and all(pod.startup is None or pod.startup.bound_at is not None for pod in pods)


def bound_at(pod: PodView, now: float) -> float | None:
    """Return when a scheduler bound the pod; None: it is not bound. Of one that runs only its start is known, by the clock of its node."""
    if pod.startup is not None:
        return pod.startup.bound_at
    return max(pod.created, min(pod.running_since or 0.0, now))


def starting(context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView]) -> tuple[UnitReason, str]:
    """Return reason and sentence of an attempt whose pods do not all run yet: what the first of them waits for."""
    since = record.since if record.since is not None else context.now
    waits = _waits(context, pods, since)
    if not waits:
        return UnitReason.SCHEDULING, wait_words.WAITS_FOR_PODS
    first = min(waits, key=lambda wait: list(StartStep).index(wait.step))
    return first.step.value, wait_words.pod_waits(first.pod.name, first.what)


def _has_run(pod: PodView) -> bool:
    return pod.running_since is not None or pod.ended or pod.main_ended


def start_timeout(context: ReconcileContext, pods: Sequence[PodView], since: float) -> Timeout:
    """Find the timeout of the pod whose time is up first. As long as nodes are missing, nothing else of the unit can be late."""
    waits = _waits(context, pods, since)
    nodes = [wait for wait in waits if wait.step is StartStep.NODES]
    timed = [(wait.due, wait) for wait in nodes or waits if wait.due is not None]
    if not timed:
        return Timeout()
    due, wait = min(timed, key=lambda each: each[0])
    if context.now < due:
        return Timeout(due=due)
    return Timeout(replace(wait.end, node=wait.pod.node)) if isinstance(wait.end, End) else Timeout(no_place=wait.end)


def _waits(context: ReconcileContext, pods: Sequence[PodView], since: float) -> list[_Wait]:
    return [_wait(context, pod, pod.startup, since) for pod in pods if not _has_run(pod) and pod.startup is not None]


def _wait(context: ReconcileContext, pod: PodView, startup: PodStartup, since: float) -> _Wait:
    if startup.bound_at is None and (grantor := grantor_named(pod.grantor)) is not None:
        wait = grantor.pod_wait(context, pod, startup, since)
        if claim := wait_words.without_claim(startup.claim_templates):
            wait = wait._replace(what=f"{wait.what}; {claim}")
        return _await_grant(context, pod, wait)
    if startup.bound_at is None:
        return _schedule(context, pod, startup, since)
    bound = between(since, startup.bound_at, context.now, context.now)
    if startup.image_problem:
        return _image_problem(context, pod, startup, bound)
    if startup.network_at is None:
        return _prepare(context, pod, startup, bound)
    return _pull_or_start(context, pod, startup, bound)


def _schedule(context: ReconcileContext, pod: PodView, startup: PodStartup, since: float) -> _Wait:
    timeouts = context.spec.learners.timeouts
    began = between(since, pod.created, context.now, context.now)
    words = _clip(pod.unschedulable)
    what = words
    due: float | None
    if startup.gated:
        what, due = wait_words.gated(words), None
    elif startup.nominated:  # its victims take their time to end
        what, due = wait_words.nominated(words), began + timeouts.schedule + timeouts.start
    elif words:
        due = between(began, startup.unschedulable_since, context.now, context.now) + timeouts.schedule
    else:  # a scheduler with a long queue comes to it late, and would come to a pod for another slice even later
        limit = timeouts.schedule + timeouts.start
        claim = wait_words.without_claim(startup.claim_templates)
        ignored = NoPlace(UnitReason.UNSCHEDULABLE, pod.node, wait_words.no_scheduler(pod.name, limit, claim))
        return _Wait(pod, StartStep.SCHEDULING, claim or wait_words.NOT_LOOKED_AT, began + limit, ignored)
    late = wait_words.not_scheduled(pod.name, pod.node, timeouts.schedule, words)
    return _Wait(pod, StartStep.SCHEDULING, what, due, NoPlace(UnitReason.UNSCHEDULABLE, pod.node, late))


def _await_grant(context: ReconcileContext, pod: PodView, wait: PodWait) -> _Wait:
    """Return what a pod waits for: what its grantor says, and its node, which may not exist yet."""
    step = StartStep(wait.waits)
    if wait.began is None:
        return _Wait(pod, step, wait.what, None, NoPlace(UnitReason.NOT_PROVISIONED, "", wait.what))
    said = context.observed.grantor_events.get(pod.name, "")
    what = wait_words.asked(wait.what, wait.speaker, _clip(said), _clip(pod.unschedulable))
    pool = context.pools.get(pod.pool)
    if pool is None:
        return _Wait(pod, step, what, None, NoPlace(UnitReason.NOT_PROVISIONED, "", what))
    limit = pool.provisioning.timeout
    late = wait_words.no_node_came(pod.name, pool.name, limit, what)
    return _Wait(pod, step, what, wait.began + limit, NoPlace(UnitReason.NOT_PROVISIONED, "", late))


def _image_problem(context: ReconcileContext, pod: PodView, startup: PodStartup, bound: float) -> _Wait:
    """Return the wait for an image; the kubelet tries again by itself. Who else runs the image tells the host from the registry."""
    timeouts = context.spec.learners.timeouts
    words = _clip(startup.image_problem)
    refused = is_refused(startup.image_problem)
    grace = timeouts.pull if startup.network_at is not None and not startup.init_ran else timeouts.pull + timeouts.start
    due = _network_ready(context, startup, bound) + (timeouts.start if refused else grace)
    end: End | NoPlace
    if other := _runs_on(context, pod):
        end = NoPlace(UnitReason.HOST_CANNOT_PULL, pod.node, wait_words.host_cannot_pull(pod.name, pod.node, other, words))
    elif refused:
        why = end_words.image_refused(pod.name, pod.node, words)
        end = End(EndKind.FAILURE, UnitReason.IMAGE_REFUSED, why, context.now, leave_slice=True)
    else:
        end = _pull_timeout(context, pod, words)
    return _Wait(pod, StartStep.PULLING, words, due, end)


def _runs_on(context: ReconcileContext, pod: PodView) -> str:
    """Return another node on which all containers of the same template run; "": none is known."""
    alike = (pod.pool, pod.template_hash)
    others = (each for pods in context.learners.values() for each in pods if (each.pool, each.template_hash) == alike)
    return min((other.node for other in others if other.ready and other.node != pod.node), default="")


def is_refused(problem: str) -> bool:
    """Return whether a kubelet's words about an image mean that a further pull on its host would fail in the same way."""
    reason, _, detail = problem.partition(": ")
    return reason in _REFUSED_REASONS or any(words in detail.lower() for words in _REFUSALS)


def _prepare(context: ReconcileContext, pod: PodView, startup: PodStartup, bound: float) -> _Wait:
    timeouts = context.spec.learners.timeouts
    what = wait_words.prepares_pod(pod.node, "" if pod.waiting in _STARTS_BY_ITSELF else _clip(pod.waiting), seen=startup.seen)
    return _Wait(pod, StartStep.STARTING, what, bound + timeouts.start, _too_slow_to_start(context, pod, what))


def _pull_or_start(context: ReconcileContext, pod: PodView, startup: PodStartup, bound: float) -> _Wait:
    """Return the wait once volumes and network are there. No time says when images were there: what comes after them has the time of
    both."""
    timeouts = context.spec.learners.timeouts
    ready = _network_ready(context, startup, bound)
    what: str
    if startup.init_runs:
        what = wait_words.init_container_runs(startup.init_runs, pod.node)
        return _Wait(pod, StartStep.STARTING, what, ready + timeouts.pull + timeouts.start, _too_slow_to_start(context, pod, what))
    if pod.waiting.partition(": ")[0] not in _STARTS_BY_ITSELF:
        what = wait_words.cannot_start(pod.node, _clip(pod.waiting))
        return _Wait(pod, StartStep.STARTING, what, ready + timeouts.start, _too_slow_to_start(context, pod, what))
    what = wait_words.pulls_images(pod.node)
    grace = timeouts.pull + (timeouts.start if startup.init_ran else 0.0)
    return _Wait(pod, StartStep.PULLING, what, ready + grace, _pull_timeout(context, pod, what))


def _pull_timeout(context: ReconcileContext, pod: PodView, wait: str) -> End:
    why = end_words.pull_timed_out(pod.name, context.spec.learners.timeouts.pull, wait)
    return End(EndKind.FAILURE, UnitReason.PULL_TIMEOUT, why, context.now, leave_slice=True)


def _too_slow_to_start(context: ReconcileContext, pod: PodView, wait: str) -> End:
    why = end_words.start_timed_out(pod.name, context.spec.learners.timeouts.start, wait)
    return End(EndKind.FAILURE, UnitReason.START_TIMEOUT, why, context.now, leave_slice=True)


def _network_ready(context: ReconcileContext, startup: PodStartup, bound: float) -> float:
    """Return when the pulls began. The time is that of the node's clock, so it counts only within the time that the step before it had."""
    latest = min(context.now, bound + context.spec.learners.timeouts.start)
    return between(bound, startup.network_at, latest, context.now)


def _clip(words: str) -> str:
    return clip(words, _WORDS)
