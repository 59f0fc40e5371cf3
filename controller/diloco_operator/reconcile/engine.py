"""The reconcile of one job, top to bottom: whose it is, whether it is over, what happened to its pods, what should run, what to report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from diloco_operator.allotment import AllotmentRequest
from diloco_operator.api import names
from diloco_operator.fleet.health import is_unreachable
from diloco_operator.plan import Delete, Patch, Plan
from diloco_operator.reconcile.children.certificates import certificates_to_issue, check_certificates
from diloco_operator.reconcile.children.configuration import configuration_changes
from diloco_operator.reconcile.children.learners import LearnerPods, missing_host_lists, missing_pods, outdated_host_lists
from diloco_operator.reconcile.children.retention import claim_retention
from diloco_operator.reconcile.children.syncer import start_blocked_by, syncer_changes
from diloco_operator.reconcile.children.volume import syncer_volume
from diloco_operator.reconcile.context import ReconcileContext, build_context
from diloco_operator.reconcile.grantors.registry import grantor_deletes, grantor_patches, orphan_patches
from diloco_operator.reconcile.observe.rejected_writes import standing_rejection
from diloco_operator.reconcile.observe.state import ObservedState
from diloco_operator.reconcile.status import conditions
from diloco_operator.reconcile.status.assembly import assemble, with_conditions
from diloco_operator.reconcile.status.contributing import contributing_units
from diloco_operator.reconcile.status.ending import JobEnd, RecordedEnd, finished, job_end, recorded_end, time_to_live
from diloco_operator.reconcile.status.model import ended_status, with_model
from diloco_operator.reconcile.status.starting_again import (
    SecondStart,
    fresh_units,
    second_start,
    status_of_start,
    status_while_waiting,
)
from diloco_operator.reconcile.status.statements import Statements
from diloco_operator.reconcile.status.write import may_wait, write_status, write_units
from diloco_operator.reconcile.units.answers import granted_pods
from diloco_operator.reconcile.units.cleanup import delete_pod, force_deletes, prune_pods, prune_pods_of_finished_job
from diloco_operator.reconcile.units.hosts import judge_hosts, start_elsewhere
from diloco_operator.reconcile.units.job_request import request_on_record
from diloco_operator.reconcile.units.leaving import close_unit, leave_removed_pools, suspend_unit
from diloco_operator.reconcile.units.lifecycle import Units, observe_units
from diloco_operator.reconcile.units.reservations import bound_nodes, reservations, reserved_nodes
from diloco_operator.reconcile.units.restarts import is_retry_due, restarted, retry_given_up
from diloco_operator.reconcile.units.revocations import leave_revoked
from diloco_operator.reconcile.units.roll_out import replace_outdated
from diloco_operator.reconcile.units.scaling import Scaling, scale
from diloco_operator.reconcile.units.stragglers import blame_slow_hosts, leave_slow_hosts, mark_slow
from diloco_operator.reconcile.units.unschedulable import slices_given_up


def reconcile(observed: ObservedState, now: datetime) -> Plan:
    """The whole desired change for this job. `now` must have a time zone. Pure: same arguments, same plan."""
    plan = _decide(observed, now)
    return replace(plan, patches=(*plan.patches, *_orphans(observed, now.timestamp())))


def _decide(observed: ObservedState, now: datetime) -> Plan:
    job = observed.job
    if job.managed_by != names.MANAGER:
        return Plan()
    if job.deleting and job.spec is None:
        return Plan(reservations=bound_nodes(job, observed.pods, observed.fleet))
    if job.spec is None:
        return _leave_alone(observed, conditions.invalid_spec(job.problems), now.timestamp())
    context = build_context(observed, job.spec, now.timestamp())
    end_on_record = recorded_end(job.status)
    start = second_start(context, end_on_record) if end_on_record is not None else None
    if observed.missing_rights and not job.deleting and (end_on_record is None or start is not None):
        return _leave_alone(observed, conditions.rights_missing(observed.missing_rights), now.timestamp())
    if job.deleting:
        return _force_pods_of_deleted_job(context)
    if start is not None:
        return _start_again(context, start)
    if end_on_record is not None:
        return _clean_up(context, end_on_record)
    units = observe_units(context)
    units = units._replace(records=mark_slow(context, units.records))
    slow = blame_slow_hosts(context, units.records)
    context = replace(context, hosts=judge_hosts(context, units.records, [*units.failures, *slow]))
    units = units._replace(records=start_elsewhere(units.records, context.hosts, context.spec.learners.restart, context.now))
    units = units._replace(records=retry_given_up(context, units.records))
    end = job_end(context, units.records)
    if end is not None:
        plan = _record_end(context, units, end)
    elif job.spec.suspend:
        plan = _suspend(context, units)
    else:
        plan = _run(context, units)
    return replace(
        plan,
        ignored=context.ignored,
        restarts=restarted(context.before, units.records),
        slices_given_up=slices_given_up(context.before, units.records),
    )


def _orphans(observed: ObservedState, now: float) -> list[Patch]:
    """What grantors must be told of an earlier job of this name, whose last pods end."""
    job, config = observed.job, observed.config
    return orphan_patches(
        observed.pods,
        lambda node: bool(node) and is_unreachable(observed.fleet.node(node), config.disruption_signals, now, observed.fleet.not_ready),
        job.uid,
        lambda key: standing_rejection(observed.rejected_writes, key, job.generation, now, config) is not None,
    )


def first_request(observed: ObservedState, now: datetime) -> AllotmentRequest | None:
    """What a job has and wants by its spec, status and pods, for the allotment before the job's first reconcile. None: it keeps what it
    has and wants nothing."""
    job = observed.job
    if job.spec is None:
        return None
    if job.deleting or finished(job.status) or job.spec.suspend:
        return AllotmentRequest(job.key)
    return request_on_record(build_context(observed, job.spec, now.timestamp()))


def _run(context: ReconcileContext, units: Units) -> Plan:
    """Create what is missing, place and start units, delete what is over, and write what there is to report."""
    configuration, retention = configuration_changes(context), claim_retention(context)
    certificates = check_certificates(context)
    ready = configuration.ready and certificates.ready
    syncer, volume = syncer_changes(context, may_create=ready), syncer_volume(context)
    rejected = (*certificates.rejected, *configuration.rejected, *syncer.rejected)

    records = leave_revoked(context, leave_removed_pools(context, replace_outdated(context, units.records)))
    records = leave_slow_hosts(context, records)
    pods = LearnerPods(context)
    scaling = scale(context, records, pods, blocked=start_blocked_by(syncer, rejected, volume, ready=ready), avoid=units.avoid)
    begun = [
        *missing_pods(context, pods, scaling.records, units.adopted),
        *missing_host_lists(context, pods, units.records, units.adopted),
        *granted_pods(context, pods, scaling.records),
    ]
    learners = [*scaling.creates, *begun]
    to_issue = certificates_to_issue(context, learners)
    cleanup = prune_pods(context, scaling.records)
    outdated = [*outdated_host_lists(context, scaling.records), *grantor_deletes(context, scaling.records)]

    active = contributing_units(context, scaling.records, syncer_down=bool(syncer.down))
    statements = conditions.running(
        context,
        scaling,
        active,
        syncer_down=syncer.down,
        taken=[*configuration.taken, *certificates.taken, *syncer.taken],
        rejected=rejected,
        deleting=configuration.deleting,
        kept_claim=configuration.kept,
        volume=volume.problem,
    )
    status = assemble(context, statements, scaling, active.contributing, retry=context.spec.retry)
    wait = may_wait(context, scaling.records) and not is_retry_due(context)
    write = write_units(context, status, scaling.records, may_wait=wait)
    deadlines = (
        *units.deadlines,
        *context.hosts.deadlines,
        *(rejection.retry_at for rejection in rejected),
        *syncer.deadlines,
        *scaling.deadlines,
        *to_issue.deadlines,
        *cleanup.deadlines,
        active.recheck_at,
        context.report_missed_at if context.report is None and context.now <= context.report_missed_at else None,
        context.answer_due if context.answer_due is not None and context.now <= context.answer_due else None,
        retention.retry_at,
        write.due,
    )
    return Plan(
        patches=(*retention.patches, *grantor_patches(context, scaling.records)),
        creates=(*configuration.creates, *syncer.creates, *learners),
        certificates=tuple(to_issue.secrets),
        status=write.apply,
        deletes=(*configuration.deletes, *certificates.deletes, *syncer.deletes, *cleanup.deletes, *outdated),
        events=write.events,
        requeue_after=_requeue_after(context, deadlines),
        pod_checks=tuple(scaling.pod_checks),
        reservations=reserved_nodes(context, scaling.records),
        request=scaling.request,
    )


def _suspend(context: ReconcileContext, units: Units) -> Plan:
    """Learners end first, then the syncer, which writes its snapshot when no learner can add to it any more."""
    scaling = Scaling({name: suspend_unit(record, context.now) for name, record in units.records.items()})
    cleanup = prune_pods(context, scaling.records)
    running = [
        pod for pods in context.learners.values() for pod in pods if not (pod.ended or pod.never_runs or context.unreachable(pod.node))
    ]
    syncer = context.syncer
    stop = [delete_pod(syncer, "the job is suspended")] if syncer is not None and syncer.deletion is None and not running else []
    left = sorted(pod.name for pod in running) + ([syncer.name] if syncer is not None else [])
    active = contributing_units(context, scaling.records, syncer_down=not running)
    status = assemble(context, conditions.suspended(left), scaling, active.contributing, retry=context.spec.retry)
    write, retention = write_units(context, status, scaling.records), claim_retention(context)
    return Plan(
        patches=(*retention.patches, *grantor_patches(context, scaling.records)),
        status=write.apply,
        deletes=(
            *cleanup.deletes,
            *stop,
            *outdated_host_lists(context, scaling.records),
            *grantor_deletes(context, scaling.records),
        ),
        events=write.events,
        requeue_after=_requeue_after(
            context, (*units.deadlines, *context.hosts.deadlines, *cleanup.deadlines, retention.retry_at, write.due)
        ),
        reservations=reserved_nodes(context, scaling.records),
        request=AllotmentRequest(context.observed.job.key),
    )


def _record_end(context: ReconcileContext, units: Units, end: JobEnd) -> Plan:
    """The job is complete or failed: record it first, and clean up once it is on record."""
    records = units.records.items()
    scaling = Scaling({name: close_unit(record, complete=end.complete, result=end.result, now=context.now) for name, record in records})
    retention = claim_retention(context)
    statements = conditions.ended(with_model(context, end, retention))
    status = assemble(context, statements, scaling, frozenset(), result=end.result)
    write = write_units(context, status, scaling.records)
    return Plan(
        patches=retention.patches,
        status=write.apply,
        events=write.events,
        requeue_after=_requeue_after(context, (write.due,)),
        reservations=bound_nodes(context.observed.job, context.observed.pods, context.observed.fleet),
        request=AllotmentRequest(context.observed.job.key),
    )


def _clean_up(context: ReconcileContext, end: RecordedEnd) -> Plan:
    """The end is on record: delete the pods that do not end by themselves, and the job itself when its time has come. What happens to the
    model may still change."""
    cleanup = prune_pods_of_finished_job(context, ended_at=end.at, complete=end.complete)
    retention = claim_retention(context)
    delete, due = time_to_live(context, end, retention)
    write = write_status(context.observed, ended_status(context, retention), context.now)
    return Plan(
        patches=(*retention.patches, *grantor_patches(context, {})),
        status=write.apply,
        deletes=(
            *cleanup.deletes,
            *outdated_host_lists(context, {}),
            *grantor_deletes(context, {}),
            *([delete] if delete is not None else []),
        ),
        requeue_after=_earliest(context.now, (*cleanup.deadlines, due, retention.retry_at, write.due)),
        reservations=bound_nodes(context.observed.job, context.observed.pods, context.observed.fleet),
        request=AllotmentRequest(context.observed.job.key),
    )


def _start_again(context: ReconcileContext, start: SecondStart) -> Plan:
    """Record that a job which has ended starts again; the next reconcile starts it. The old syncer's pod, which may have
    stayed for its log, must have gone before."""
    if context.syncer is None:
        records = fresh_units(context, start)
        write = write_units(context, status_of_start(context, start, records), records)
        deletes: list[Delete] = []
        deadlines: Sequence[float | None] = (write.due,)
    else:
        write = write_status(context.observed, status_while_waiting(context, start), context.now)
        deletes = [delete_pod(context.syncer, "the job starts again")] if context.syncer.deletion is None else []
        deadlines = (write.due,)
    return Plan(
        status=write.apply,
        deletes=tuple(deletes),
        events=write.events,
        requeue_after=_requeue_after(context, deadlines),
        reservations=bound_nodes(context.observed.job, context.observed.pods, context.observed.fleet),
        request=AllotmentRequest(context.observed.job.key),
    )


def _force_pods_of_deleted_job(context: ReconcileContext) -> Plan:
    """Garbage collection ends the pods; those whose end no kubelet will confirm are deleted by force, as for any job."""
    deletes, deadlines = force_deletes(context)
    return Plan(
        patches=tuple(grantor_patches(context, {})),
        deletes=tuple(deletes),
        requeue_after=_earliest(context.now, deadlines),
        reservations=bound_nodes(context.observed.job, context.observed.pods, context.observed.fleet),
        request=AllotmentRequest(context.observed.job.key),
    )


def _leave_alone(observed: ObservedState, statements: Statements, now: float) -> Plan:
    """Whatever runs is left alone until a person has corrected what the statements say."""
    job = observed.job
    write = write_status(observed, with_conditions(job, statements, now), now)
    return Plan(
        status=write.apply,
        events=write.events,
        requeue_after=_earliest(now, (write.due, now + observed.config.resync_interval)),
        reservations=reservations(job, observed.pods, observed.fleet),
    )


def _requeue_after(context: ReconcileContext, deadlines: Sequence[float | None]) -> float | None:
    return _earliest(context.now, (*deadlines, context.now + context.observed.config.resync_interval))


def _earliest(now: float, deadlines: Iterable[float | None]) -> float | None:
    """Seconds to the next deadline, and a little more, so that a clock that ticks in milliseconds has passed it."""
    return min((max(0.0, deadline - now) + 0.001 for deadline in deadlines if deadline is not None), default=None)
