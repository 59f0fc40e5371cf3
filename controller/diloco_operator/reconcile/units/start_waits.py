"""What the pods of an attempt wait for until they all run, and how long they may wait. Pure.

The waits follow from what scheduler and kubelet report about each pod. They count from times of the control plane, because a node's clock
may be hours off. Where a node's time is needed, it counts only within the limits of the step before it.

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
"""Characters of a scheduler's or kubelet's message that the unit's message repeats."""
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
"""Words in a kubelet's message after which a further pull on this host would fail in the same way. Only other hosts show whether the host
or the image is to blame."""
_REFUSED_REASONS = ("InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed")
_STARTS_BY_ITSELF = ("", "ContainerCreating", "PodInitializing")
"""Reasons of a waiting container that is about to start. With any other the kubelet reports an error."""


class NoPlace(NamedTuple):
    """A pod that cannot have its node, and why. This is no failure: the unit gives its slice up."""

    reason: UnitReason
    node: str
    why: str


class Timeout(NamedTuple):
    """What follows for an attempt that took too long: `end` or `no_place`. If it has not, `due` says when it will have."""

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
    """When the wait has lasted too long. None: never."""
    end: End | NoPlace
    """What follows when it has."""


def all_run(pods: Sequence[PodView]) -> bool:
    """Return whether the main container of every pod runs or has run."""
    return bool(pods) and all(_has_run(pod) for pod in pods)


def all_bound(pods: Sequence[PodView]) -> bool:
    return bool(pods) and all(pod.startup is None or pod.startup.bound_at is not None for pod in pods)


def bound_at(pod: PodView, now: float) -> float | None:
    """Return when a scheduler bound the pod, or None if it is not bound."""
    if pod.startup is not None:
        return pod.startup.bound_at
    # The pod has run. Nothing but its start is known, by the clock of its node.
    return max(pod.created, min(pod.running_since or 0.0, now))


def starting(context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView]) -> tuple[UnitReason, str]:
    """Return reason and message of an attempt whose pods do not all run: what the pod that is least far waits for."""
    since = record.since if record.since is not None else context.now
    waits = _waits(context, pods, since)
    if not waits:
        return UnitReason.SCHEDULING, wait_words.WAITS_FOR_PODS
    first = min(waits, key=lambda wait: list(StartStep).index(wait.step))
    return first.step.value, wait_words.pod_waits(first.pod.name, first.what)


def _has_run(pod: PodView) -> bool:
    return pod.running_since is not None or pod.ended or pod.main_ended


def start_timeout(context: ReconcileContext, pods: Sequence[PodView], since: float) -> Timeout:
    """Return the time-out of the pod whose time is up first."""
    waits = _waits(context, pods, since)
    # While nodes are missing, nothing else of the unit can be late.
    nodes = [wait for wait in waits if wait.step is StartStep.NODES]
    timed = [(wait.due, wait) for wait in nodes or waits if wait.due is not None]
    if not timed:
        return Timeout()
    due, wait = min(timed, key=lambda item: item[0])
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
    elif startup.nominated:  # the pods that must make room take their time to end
        what, due = wait_words.nominated(words), began + timeouts.schedule + timeouts.start
    elif words:
        due = between(began, startup.unschedulable_since, context.now, context.now) + timeouts.schedule
    else:
        # No scheduler has looked at it. One with a long queue comes late, and would come even later to a new pod for another slice. So this
        # may take longer.
        limit = timeouts.schedule + timeouts.start
        claim = wait_words.without_claim(startup.claim_templates)
        ignored = NoPlace(UnitReason.UNSCHEDULABLE, pod.node, wait_words.no_scheduler(pod.name, limit, claim))
        return _Wait(pod, StartStep.SCHEDULING, claim or wait_words.NOT_LOOKED_AT, began + limit, ignored)
    late = wait_words.not_scheduled(pod.name, pod.node, timeouts.schedule, words)
    return _Wait(pod, StartStep.SCHEDULING, what, due, NoPlace(UnitReason.UNSCHEDULABLE, pod.node, late))


def _await_grant(context: ReconcileContext, pod: PodView, wait: PodWait) -> _Wait:
    """Return the wait of a pod for its grantor, and for its node, which may not exist yet."""
    step = StartStep(wait.waits)
    if wait.began is None:
        return _Wait(pod, step, wait.what, None, NoPlace(UnitReason.NOT_PROVISIONED, "", wait.what))
    event = context.observed.grantor_events.get(pod.name, "")
    what = wait_words.wait_for_grantor(wait.what, wait.speaker, _clip(event), _clip(pod.unschedulable))
    pool = context.pools.get(pod.pool)
    if pool is None:
        return _Wait(pod, step, what, None, NoPlace(UnitReason.NOT_PROVISIONED, "", what))
    limit = pool.provisioning.timeout
    late = wait_words.no_node_came(pod.name, pool.name, limit, what)
    return _Wait(pod, step, what, wait.began + limit, NoPlace(UnitReason.NOT_PROVISIONED, "", late))


def _image_problem(context: ReconcileContext, pod: PodView, startup: PodStartup, bound: float) -> _Wait:
    """Return the wait for an image that the kubelet could not pull. It tries again by itself."""
    timeouts = context.spec.learners.timeouts
    words = _clip(startup.image_problem)
    refused = is_refused(startup.image_problem)
    grace = timeouts.pull if startup.network_at is not None and not startup.init_ran else timeouts.pull + timeouts.start
    due = _network_ready(context, startup, bound) + (timeouts.start if refused else grace)
    end: End | NoPlace
    # If another node runs the same images, the host is to blame, else the image or its registry.
    if other := _runs_on(context, pod):
        end = NoPlace(UnitReason.HOST_CANNOT_PULL, pod.node, wait_words.host_cannot_pull(pod.name, pod.node, other, words))
    elif refused:
        why = end_words.image_refused(pod.name, pod.node, words)
        end = End(EndKind.FAILURE, UnitReason.IMAGE_REFUSED, why, context.now, leave_slice=True)
    else:
        end = _pull_timeout(context, pod, words)
    return _Wait(pod, StartStep.PULLING, words, due, end)


def _runs_on(context: ReconcileContext, pod: PodView) -> str:
    """Return another node on which all containers of the same template run, or "" if none is known."""
    template = (pod.pool, pod.template_hash)
    others = (learner for pods in context.learners.values() for learner in pods if (learner.pool, learner.template_hash) == template)
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
    """Return the wait of a pod that has its volumes and its network."""
    timeouts = context.spec.learners.timeouts
    # Nothing reports when images were pulled, so the steps after a pull may take the time of the pull too.
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
    """Return when the pod had its network and the pulls began. That is a time of the node's clock, so it counts only within the time that
    the step before it has."""
    latest = min(context.now, bound + context.spec.learners.timeouts.start)
    return between(bound, startup.network_at, latest, context.now)


def _clip(words: str) -> str:
    return clip(words, _WORDS)
