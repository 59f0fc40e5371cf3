"""The plans of a job that does not train: it is suspended, over, about to start again, being deleted, or left alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from diloco_operator.api.reasons import EventReason
from diloco_operator.api.state import OVER
from diloco_operator.api.status import UnitState
from diloco_operator.placement import JobRequest
from diloco_operator.plan import Delete, Event, Plan
from diloco_operator.reconcile.children.certificates import certificates_to_issue
from diloco_operator.reconcile.children.made_parts import Release, release_from_parts, wanted_parts
from diloco_operator.reconcile.children.retention import claim_retention
from diloco_operator.reconcile.children.shared import shared_objects
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.deadlines import earliest, requeue_after
from diloco_operator.reconcile.grantors.registry import grantor_patches
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.state import ObservedState
from diloco_operator.reconcile.status import conditions, ending_words
from diloco_operator.reconcile.status.assembly import assemble, with_conditions, with_ends_of_programs, with_parts
from diloco_operator.reconcile.status.contributing import contributing_units
from diloco_operator.reconcile.status.ending import JobEnd, RecordedEnd, time_to_live
from diloco_operator.reconcile.status.events import unit_events
from diloco_operator.reconcile.status.model import ended_status, with_model
from diloco_operator.reconcile.status.starting_again import SecondStart, fresh_units, status_of_start, status_while_waiting
from diloco_operator.reconcile.status.statements import Statements, merge
from diloco_operator.reconcile.status.write import write_status, write_units
from diloco_operator.reconcile.units.cleanup import delete_pod, force_deletes, prune_pods_of_finished_job
from diloco_operator.reconcile.units.job_request import desired_units, job_request, possible_units
from diloco_operator.reconcile.units.lifecycle import Units
from diloco_operator.reconcile.units.removal import remove_all, remove_outdated
from diloco_operator.reconcile.units.reservations import bound_nodes, reservations, reserved_nodes
from diloco_operator.reconcile.units.revocations import leave_revoked
from diloco_operator.reconcile.units.scaling import Scaling
from diloco_operator.reconcile.units.stopping import close_unit, ends_after_the_job, give_slice_back, suspend_unit


def suspend(context: ReconcileContext, units: Units) -> Plan:
    """Suspend the job: the learners end first. Then no learner can contribute any more, and the syncer ends and writes its snapshot."""
    scaling = Scaling({name: suspend_unit(record, context.now) for name, record in units.records.items()})
    removal = remove_outdated(context, scaling.records)
    running, syncer = _lingering(context), context.syncer
    stop = [delete_pod(syncer, "the job is suspended")] if syncer is not None and syncer.deletion is None and not running else []
    remaining = sorted(pod.name for pod in running) + ([syncer.name] if syncer is not None else [])
    active = contributing_units(context, scaling.records, syncer_down=not running)
    status = assemble(context, conditions.suspended(context, remaining), scaling, active.contributing, retry=context.spec.retry)
    write, retention = write_units(context, status, scaling.records), claim_retention(context)
    return Plan(
        parts=wanted_parts(context, suspend=True),
        patches=(*retention.patches, *removal.patches),
        status=write.action,
        deletes=(*removal.deletes, *stop),
        events=write.events,
        requeue_after=requeue_after(
            context, (*units.deadlines, *context.hosts.deadlines, *removal.deadlines, retention.retry_at, write.due)
        ),
        reservations=reserved_nodes(context, scaling.records),
        request=JobRequest(context.observed.job.key),
    )


def _lingering(context: ReconcileContext) -> list[PodView]:
    """Return the learner pods that may still contribute: the syncer ends after them."""
    return [pod for pods in context.learners.values() for pod in pods if context.lingers(pod)]


def hold(context: ReconcileContext, units: Units) -> Plan:
    """Keep a job whose spec is refused as it is, and report on it. What runs goes on, nothing starts, and units that do not run give their
    slices back, because a person may take days to correct a field. Units still leave for units of other jobs."""
    records = {name: give_slice_back(record, context.now) for name, record in leave_revoked(context, units.records).items()}
    scaling = Scaling(
        records,
        desired=desired_units(context),
        possible=possible_units(context, records),
        placed=sum(bool(record.slice) or record.state is UnitState.COMPLETED for record in records.values()),
        request=job_request(context, records).for_allotment(),
    )
    shared, issued = shared_objects(context), certificates_to_issue(context, ())
    removal = remove_outdated(context, records)
    active = contributing_units(context, records, syncer_down=shared.syncer.down is not None)
    statements = conditions.running(context, scaling, active, shared)
    down_since = shared.syncer.down_since
    status = assemble(context, statements, scaling, active.contributing, retry=context.spec.retry, syncer_down_since=down_since)
    write = write_units(context, status, records)
    changes = (*removal.deadlines, *shared.deadlines, *issued.deadlines, active.recheck_at, write.due)
    return Plan(
        patches=(*shared.retention.patches, *removal.patches),
        certificates=tuple(issued.secrets),
        status=write.action,
        deletes=tuple(removal.deletes),
        events=write.events,
        requeue_after=requeue_after(context, (*units.deadlines, *context.hosts.deadlines, *changes, *context.report_deadlines)),
        reservations=reserved_nodes(context, records),
        request=scaling.request,
    )


def record_end(context: ReconcileContext, units: Units, end: JobEnd) -> Plan:
    """Record that the job is complete or failed. `clean_up` follows only once that is on record."""
    records = units.records.items()
    scaling = Scaling({name: close_unit(record, complete=end.complete, result=end.result, now=context.now) for name, record in records})
    retention = claim_retention(context)
    statements = conditions.ended(context, end, with_model(context, end, retention), [*scaling.records.values()])
    status = assemble(context, statements, scaling, frozenset(), result=end.result) | {"endedWith": end.why}
    write = write_units(context, status, scaling.records)
    return Plan(
        patches=retention.patches,
        status=write.action,
        events=write.events,
        requeue_after=requeue_after(context, (write.due,)),
        reservations=bound_nodes(context.observed.job, context.observed.pods, context.observed.fleet),
        request=JobRequest(context.observed.job.key),
    )


def clean_up(context: ReconcileContext, end: RecordedEnd) -> Plan:
    """Delete the pods that do not end by themselves, and the job itself when its time to live is over. Status still follows what happens to
    the model and to the parts. Those of a complete job end by themselves, and those of a failed one give their hardware back."""
    job = context.observed.job
    removal = remove_all(context, prune_pods_of_finished_job(context, ended_at=end.at, complete=end.complete))
    retention = claim_retention(context)
    delete, due = time_to_live(context, end, retention)
    records = {**context.records_before, **(ends_after_the_job(context, end.at) if end.complete else {})}
    status = with_ends_of_programs(context, with_parts(context, ended_status(context, retention)), records)
    status["conditions"] = merge(status["conditions"], conditions.accepted(job.problems), job.generation, context.now)
    write = write_status(context.observed, status, context.now, of_units=lambda: unit_events(context.records_before, records))
    return Plan(
        parts=None if end.complete else wanted_parts(context, suspend=True),
        patches=(*retention.patches, *removal.patches),
        status=write.action,
        deletes=(*removal.deletes, *([delete] if delete is not None else [])),
        events=write.events,
        requeue_after=earliest(context.now, (*removal.deadlines, due, retention.retry_at, write.due, _parts_due(context, end))),
        reservations=bound_nodes(job, context.observed.pods, context.observed.fleet),
        request=JobRequest(job.key),
    )


def _parts_due(context: ReconcileContext, end: RecordedEnd) -> float | None:
    """When to look again at the parts of a complete job. None if all have ended. It asks for nothing there, so an operator that has just
    started is not told when they change."""
    views = [view for part in context.spec.parts if (view := context.observed.parts.get(part.name)) is not None]
    ended = all(view.silent_since is None and (view.job is None or view.job.state.state in OVER) for view in views)
    return None if ended or not end.complete else context.now + context.observed.config.resync_interval


def start_again(context: ReconcileContext, start: SecondStart) -> Plan:
    """Record that a job which has ended starts again. The next reconcile starts it. Before that, the old syncer's pod is deleted, which may
    have stayed for its log."""
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
        status=write.action,
        deletes=tuple(deletes),
        events=write.events,
        requeue_after=requeue_after(context, deadlines),
        reservations=bound_nodes(context.observed.job, context.observed.pods, context.observed.fleet),
        request=JobRequest(context.observed.job.key),
    )


def end_pods_of_deleted_job(context: ReconcileContext) -> Plan:
    """Delete the pods of a job that is being deleted, if garbage collection does not end them soon: by force those whose end no kubelet
    will confirm, and all others if a finalizer keeps the job, because they would hold their hardware until it goes."""
    deletes, deadlines = force_deletes(context)
    if context.observed.job.outlives_deletion:
        learners = [pod for pods in context.learners.values() for pod in pods]
        syncer = [context.syncer] if context.syncer is not None and not _lingering(context) else []
        deletes += [delete_pod(pod, "the job is deleted") for pod in (*learners, *syncer) if pod.deletion is None]
    release = release_from_parts(context.observed, context.now)
    return Plan(
        parts=release.parts,
        patches=(*grantor_patches(context, {}), *release.patches),
        deletes=tuple(deletes),
        events=parts_left(release),
        requeue_after=earliest(context.now, (*deadlines, release.due)),
        reservations=bound_nodes(context.observed.job, context.observed.pods, context.observed.fleet),
        request=JobRequest(context.observed.job.key),
    )


def end_unreadable_job(observed: ObservedState, now: float) -> Plan:
    """Let a deleted job go whose spec cannot be read."""
    release = release_from_parts(observed, now)
    return Plan(
        parts=release.parts,
        patches=release.patches,
        events=parts_left(release),
        requeue_after=earliest(now, (release.due,)),
        reservations=bound_nodes(observed.job, observed.pods, observed.fleet),
    )


def parts_left(release: Release) -> tuple[Event, ...]:
    return (Event.of(EventReason.PARTS_LEFT, ending_words.parts_left(release.given_up)),) if release.given_up else ()


def leave_alone(observed: ObservedState, statements: Statements, now: float) -> Plan:
    """Leave everything alone until a person has corrected what the statements say."""
    job = observed.job
    write = write_status(observed, with_conditions(job, statements, now), now)
    return Plan(
        status=write.action,
        events=write.events,
        requeue_after=earliest(now, (write.due, now + observed.config.resync_interval)),
        reservations=reservations(job, observed.pods, observed.fleet),
    )
