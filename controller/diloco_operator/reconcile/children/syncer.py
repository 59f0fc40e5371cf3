"""The syncer's pod: created before learners, restarted by the kubelet, replaced when its node is lost or its job file changed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.kube.timestamps import parse_timestamp
from diloco_operator.plan import WAVE_SYNCER, Create, Delete, PodCheck
from diloco_operator.reconcile.children import syncer_words
from diloco_operator.reconcile.children.pods import syncer_pod
from diloco_operator.reconcile.children.volume import Volume
from diloco_operator.reconcile.context import NodeHealth, ReconcileContext, Rejection
from diloco_operator.reconcile.observe.pod_answers import admits, ask_at, refusal
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.rejected_writes import explain
from diloco_operator.timeouts import RECONCILE


@dataclass(frozen=True, slots=True)
class SyncerChanges:
    """How the syncer's pod changes, and what learners may expect of it."""

    creates: Sequence[Create] = ()
    deletes: Sequence[Delete] = ()
    ready_for_learners: bool = False
    """Learners that start now will find the syncer: its pod exists and stays, or this plan creates it before theirs."""
    down: str | None = None
    """Why the syncer does not serve. None if its container runs."""
    down_since: float | None = None
    """Since when it does not serve. None if it does, or was not there yet."""
    overdue: bool = False
    """It has not served for so long that units keep no hardware for it."""
    taken: Sequence[str] = ()
    """`Pod <name>`, if the pod of this name does not belong to the job."""
    predecessor: str = ""
    """If a foreign pod of this name is being deleted: what the job waits for, and what to do. Else ""."""
    rejected: Sequence[Rejection] = ()
    """The pod, if the API server rejected it and a retry is not due yet."""
    deadlines: Sequence[float] = ()
    checks: Sequence[PodCheck] = ()
    """A dry run of the pod that would replace the one that serves."""
    stopped: str = ""
    """Why the pod is not replaced although its template changed. "" if it is, or need not be."""


SYNCER = ""
"""Stands for the syncer among the answers to dry runs, whose key is a pool."""


def syncer_changes(context: ReconcileContext, *, may_create: bool) -> SyncerChanges:
    """One step towards a syncer that runs and was made from the present spec. `may_create`: the objects that its pod needs exist, or are
    planned."""
    changes = _changes(context, may_create)
    since = _down_since(context, changes.down)
    if since is None:
        return changes
    due = since + RECONCILE.hold_without_syncer
    if context.now < due:
        return replace(changes, down_since=since, deadlines=[*changes.deadlines, due])
    # While it crashes again and again its container runs for moments: no unit starts before it has served.
    down = changes.down or syncer_words.NOT_HEARD_YET
    return replace(changes, down=down, down_since=since, overdue=True, ready_for_learners=False)


def _down_since(context: ReconcileContext, down: str | None) -> float | None:
    """Return since when the syncer does not serve. `down`: as in `SyncerChanges`."""
    if context.report is not None:
        return None
    known = _down_on_record(context)
    # A syncer that has run for half of that time may serve although this operator does not reach it. Before, it may still be reading a
    # large snapshot, and crash on it.
    if down is None:
        return known if context.now < context.syncer_since + RECONCILE.hold_without_syncer / 2 else None
    return known if known is not None or context.syncer is None else context.now


def _down_on_record(context: ReconcileContext) -> float | None:
    since = context.observed.job.status.get("syncerDownSince")
    return parse_timestamp(since) if since is not None else None


def _changes(context: ReconcileContext, may_create: bool) -> SyncerChanges:
    job = context.observed.job
    pod = context.syncer
    if pod is None:
        return _create_syncer(context, may_create)
    down = _why_down(pod)
    if pod.deletion is not None:
        return SyncerChanges(down=syncer_words.node_does_not_answer(pod.node) if context.unreachable(pod.node) else down)
    if pod.ended and context.now < (due := _replaced_at(context, pod)):
        return SyncerChanges(down=syncer_words.pod_failed(pod, due), deadlines=[due])
    health = context.node_health(pod.node)
    if (why := _why_replace(pod, health)) is not None:
        return _replaced(context, pod, why)
    deadlines = [health.recheck_at] if health.recheck_at is not None else []
    unchanged = SyncerChanges(ready_for_learners=True, down=down, deadlines=deadlines)
    if not may_create or context.finishing or _up_to_date(context, pod):
        return unchanged
    # Outdated. A syncer that serves goes only once a dry run has shown that the API server admits its successor.
    observed = context.observed
    answer, generation = observed.pod_answers.get(SYNCER), job.generation
    if down is not None or admits(answer, generation, context.now):
        return _replaced(context, pod, syncer_words.SPEC_CHANGED)
    rejected, due = refusal(answer, generation), ask_at(answer, generation, observed.config)
    checks = [PodCheck(SYNCER, _successor(context))] if context.now >= due else []
    stopped = explain(rejected, observed.config) if rejected is not None else ""
    return replace(unchanged, checks=checks, stopped=stopped, deadlines=[*deadlines, *([due] if not checks else [])])


def _replaced_at(context: ReconcileContext, pod: PodView) -> float:
    """Return when another pod may take the place of this one, which has ended. The pause counts from its creation, so one that ran for
    longer has none, and is as long as the syncer had been away by then."""
    backoff, since = context.spec.learners.restart.backoff, _down_on_record(context)
    away = pod.created - since if since is not None else 0.0
    return pod.created + min(max(away, backoff.initial), backoff.max)


def _replaced(context: ReconcileContext, pod: PodView, why: str) -> SyncerChanges:
    delete = Delete(names.PODS, context.observed.job.namespace, pod.name, pod.uid, why=why)
    return SyncerChanges(deletes=[delete], down=why)


def _successor(context: ReconcileContext) -> Obj:
    """The syncer's pod of the present spec, under a free name for a dry run."""
    job = context.observed.job
    assert job.derived is not None, "the derived values of a spec that can be read are there"
    pod = syncer_pod(job, context.spec, context.observed.config, job.derived.syncer_hash)
    return {**pod, "metadata": {**pod["metadata"], "name": f"{pod['metadata']['name']}-next"}}


def _create_syncer(context: ReconcileContext, may_create: bool) -> SyncerChanges:
    job = context.observed.job
    name = names.syncer_pod_name(job.name)
    if (foreign := next((pod for pod in context.observed.pods if pod.name == name), None)) is not None:
        if foreign.deletion is None:
            return SyncerChanges(down=syncer_words.POD_IS_CREATED, taken=[f"Pod {name}"])
        return SyncerChanges(down=syncer_words.POD_IS_CREATED, predecessor=syncer_words.old_one_goes(name, foreign.node))
    if not may_create:
        return SyncerChanges(down=syncer_words.POD_IS_CREATED)
    assert job.derived is not None, "the derived values of a spec that can be read are there"
    pod = syncer_pod(job, context.spec, context.observed.config, job.derived.syncer_hash)
    creates, rejected = context.without_rejected([Create(names.PODS, pod, wave=WAVE_SYNCER)])
    if rejected:
        return SyncerChanges(down=rejected[0].text, rejected=rejected)
    return SyncerChanges(creates=creates, ready_for_learners=True, down=syncer_words.POD_IS_CREATED)


def start_blocked_by(syncer: SyncerChanges, rejected: Sequence[Rejection], volume: Volume, *, ready: bool) -> str | None:
    """Why no learner pod may be created yet. None if they may be. `ready`: configuration and certificates exist, or are planned."""
    if rejected:
        return "; ".join(rejection.text for rejection in rejected)
    if not ready:
        return syncer_words.WAITS_FOR_CONFIGURATION
    if not syncer.ready_for_learners:
        return syncer_words.waits_for_syncer(syncer.down or syncer_words.POD_IS_CREATED)
    return volume.wait


def _why_replace(pod: PodView, health: NodeHealth) -> str | None:
    if pod.ended:
        return syncer_words.pod_failed(pod)
    return syncer_words.node_goes(health.eviction_reason) if health.eviction_reason else None


def _up_to_date(context: ReconcileContext, pod: PodView) -> bool:
    """Whether the pod was made from the present spec."""
    derived = context.observed.job.derived
    assert derived is not None, "the derived values of a spec that can be read are there"
    return pod.template_hash in derived.known_syncer_hashes


def _why_down(pod: PodView) -> str | None:
    if pod.running_since is not None and not pod.ended:
        return None
    if pod.restarts and pod.termination is not None:
        return syncer_words.restarts(pod.restarts, pod.termination)
    return syncer_words.pod_does_not_run(pod)
