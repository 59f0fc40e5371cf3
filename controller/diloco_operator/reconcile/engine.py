"""The reconcile of one job, from top to bottom: is it ours, is it over, what happened to its pods, what should run, what to report.

See docs/decisions/0030-controller-loop.md.
See docs/decisions/0206-before-units-leave.md.
See docs/decisions/0271-judge-ask-plan.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from diloco_operator.api import names
from diloco_operator.api.reasons import EventReason
from diloco_operator.fleet.health import is_unreachable
from diloco_operator.placement import JobRequest
from diloco_operator.plan import Event, Patch, Plan
from diloco_operator.reconcile import stopped
from diloco_operator.reconcile.children.certificates import CertificatesToIssue, certificates_to_issue
from diloco_operator.reconcile.children.claims import claim_templates
from diloco_operator.reconcile.children.learners import LearnerPods, missing_host_lists, missing_pods
from diloco_operator.reconcile.children.made_parts import finalizer_refused, wanted_parts, with_finalizer
from diloco_operator.reconcile.children.shared import SharedObjects, are_needed, shared_objects
from diloco_operator.reconcile.context import ReconcileContext, build_context
from diloco_operator.reconcile.deadlines import requeue_after
from diloco_operator.reconcile.grantors.registry import orphan_patches
from diloco_operator.reconcile.observe.rejected_writes import standing_rejection
from diloco_operator.reconcile.observe.state import ObservedState
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.status import conditions
from diloco_operator.reconcile.status.assembly import assemble
from diloco_operator.reconcile.status.contributing import contributing_units
from diloco_operator.reconcile.status.ending import finished, job_end, recorded_end
from diloco_operator.reconcile.status.starting_again import second_start
from diloco_operator.reconcile.status.write import may_wait, write_units
from diloco_operator.reconcile.units.hosts import judge_hosts, start_elsewhere
from diloco_operator.reconcile.units.job_request import StartLimits, job_request
from diloco_operator.reconcile.units.lifecycle import Units, observe_units
from diloco_operator.reconcile.units.removal import remove_outdated
from diloco_operator.reconcile.units.reservations import reservations, reserved_nodes
from diloco_operator.reconcile.units.restarts import is_retry_due, restarted, retry_given_up
from diloco_operator.reconcile.units.revocations import leave_revoked
from diloco_operator.reconcile.units.roll_out import replace_outdated
from diloco_operator.reconcile.units.scaling import scale
from diloco_operator.reconcile.units.stopping import give_slice_back, leave_in_vain, leave_removed_pools
from diloco_operator.reconcile.units.transitions import ImpossibleTransitionError
from diloco_operator.reconcile.units.unschedulable import slices_given_up


@dataclass(frozen=True, slots=True)
class Judged:
    """The first half of a reconcile: what happened to the job's units is known, and what the job has and wants."""

    request: JobRequest | None
    """What the job has and wants. None: it keeps what it has, and wants nothing."""
    plan: Callable[[ObservedState], Plan]
    """The second half. Its argument differs from the judged state in what the job gets: `allotted`, and what the fleet offers the job."""


def judge(observed: ObservedState, now: datetime) -> Judged:
    """Judge what happened to the job, and what it has and wants. Pure: equal arguments give equal requests and plans.

    Args:
        now: the present time, with a time zone.
    """
    known: dict[str, str] = {}
    judged = _without_defects(known, lambda: _judge(observed, now, known))

    def plan(observed: ObservedState) -> Plan:
        defects = dict(known)

        def decide() -> Plan:
            # If the second half finds a further defect, the job is judged anew without that unit.
            current = judged if defects == known else _judge(observed, now, defects)
            return current.plan(observed)

        decided = _without_defects(defects, decide)
        defect_events = (Event.about(unit, EventReason.OPERATOR_DEFECT, why) for unit, why in defects.items())
        return replace(
            decided,
            patches=(*decided.patches, *_orphans(observed, now.timestamp())),
            events=(*decided.events, *defect_events),
        )

    return Judged(judged.request, plan)


def reconcile(observed: ObservedState, now: datetime) -> Plan:
    """Return the plan for this job with what it is allotted already."""
    return judge(observed, now).plan(observed)


def first_request(observed: ObservedState, now: datetime) -> JobRequest | None:
    """Return what a job has and wants before its first reconcile, by its spec and status alone. None: it keeps what it has. An operator
    that starts needs this for thousands of jobs at once, and it takes less than half the time of `judge`."""
    job = observed.job
    if job.spec is None:
        return None
    if job.deleting or finished(job.status):
        return JobRequest(job.key)
    context = build_context(observed, job.spec, now.timestamp())
    if context.suspended:
        return JobRequest(job.key)
    known = {name: record for name, record in context.records_before.items() if record.pool in context.pools}
    # It counts as a job that may start: other jobs must not get what it waits for until its first reconcile.
    return job_request(context, known, StartLimits(may_start=True)).for_allotment()


def _without_defects[T](defects: dict[str, str], decide: Callable[[], T]) -> T:
    """Decide. If something happened to a unit that the table of transitions lacks, add the unit to `defects` and decide again without it:
    the other units go on, and the job can still end or be suspended."""
    while True:
        try:
            return decide()
        except ImpossibleTransitionError as error:
            if error.unit in defects:
                raise
            defects[error.unit] = error.why


def _judge(observed: ObservedState, now: datetime, defects: Mapping[str, str]) -> Judged:
    job = observed.job
    # 1. Is the job ours, and can its spec be read?
    if job.managed_by != names.MANAGER:
        return _settled(None, Plan)
    if job.deleting and job.spec is None:
        return _settled(None, lambda: stopped.end_unreadable_job(observed, now.timestamp()))
    if job.spec is None:
        return _settled(None, lambda: stopped.leave_alone(observed, conditions.accepted(job.problems), now.timestamp()))
    context, nothing = build_context(observed, job.spec, now.timestamp(), defects), JobRequest(job.key)
    # A part may exist only if the job waits for its end. The write changes the job, so nothing else follows from this version of it.
    if (patch := with_finalizer(context)) is not None:
        return _settled(None, lambda: Plan(patches=(patch,), reservations=reservations(job, observed.pods, observed.fleet)))

    # 2. Is it over, and may the operator read what it needs?
    end_on_record = recorded_end(job.status)
    start = second_start(context, end_on_record) if end_on_record is not None and not context.spec_refused else None
    if observed.missing_rights and not job.deleting and (end_on_record is None or start is not None):
        return _settled(None, lambda: stopped.leave_alone(observed, conditions.rights_missing(observed.missing_rights), now.timestamp()))
    if job.deleting:
        return _settled(nothing, lambda: stopped.end_pods_of_deleted_job(context))
    if start is not None:
        return _settled(nothing, lambda: stopped.start_again(context, start))
    if end_on_record is not None:
        return _settled(nothing, lambda: stopped.clean_up(context, end_on_record))

    # Nothing has begun, so there is nothing to look after.
    if context.spec_refused and not (context.records_before or context.learners or context.syncer):
        return _settled(None, lambda: stopped.leave_alone(observed, conditions.accepted(job.problems), now.timestamp()))

    # 3. What happened to its units, and does that end the job?
    context, units = _judge_units(context)
    end = job_end(context, units.records)

    # 4. What should run?
    if end is not None:
        judged = _settled(nothing, lambda: stopped.record_end(context, units, end))
    elif context.suspended:
        judged = _settled(nothing, lambda: stopped.suspend(context, units))
    elif context.spec_refused:
        judged = _hold(context, units)
    else:
        judged = _run(context, units)
    return Judged(
        judged.request,
        lambda observed: replace(
            judged.plan(observed),
            admissions=context.admissions,
            ignored=context.ignored,
            restarts=restarted(context.records_before, units.records),
            slices_given_up=slices_given_up(context.records_before, units.records),
        ),
    )


def _settled(request: JobRequest | None, plan: Callable[[], Plan]) -> Judged:
    """Return a job whose plan does not depend on the allotment."""
    return Judged(request, lambda _: plan())


def _orphans(observed: ObservedState, now: float) -> list[Patch]:
    """Return what grantors must be told about an earlier job of this name whose pods are still ending."""
    job, config = observed.job, observed.config
    return orphan_patches(
        observed.pods,
        lambda node: bool(node) and is_unreachable(observed.fleet.node(node), config.disruption_signals, now, observed.fleet.not_ready),
        job.uid,
        lambda key: standing_rejection(observed.rejected_writes, key, job.generation, now, config) is not None,
    )


def _judge_units(context: ReconcileContext) -> tuple[ReconcileContext, Units]:
    """Find out what happened to the units since the last reconcile. Return them, and the context with the hosts to avoid."""
    # 1. What became of each attempt?
    units = observe_units(context)
    # 2. Which hosts are to blame for failures?
    context = replace(context, hosts=judge_hosts(context, units.records, units.failures))
    # 3. Given-up units start again if a host was to blame, or a user retries the job.
    records = start_elsewhere(units.records, context.hosts, context.spec.learners.restart, context.now)
    return context, units._replace(records=retry_given_up(context, records))


def _hold(context: ReconcileContext, units: Units) -> Judged:
    held = {name: give_slice_back(record, context.now) for name, record in units.records.items()}
    return Judged(job_request(context, held).for_allotment(), lambda observed: stopped.hold(replace(context, observed=observed), units))


def _run(context: ReconcileContext, units: Units) -> Judged:
    """Judge a job that should train. Each step builds on the decisions of those before it."""
    # 1. The objects that all units share. Until they exist, no unit starts.
    shared = shared_objects(context)

    # 2. Units that must leave whatever the job gets: they were made from an earlier template, their pool has gone, or the shared objects
    #    cannot come. A unit leaves for the first cause that holds.
    records = replace_outdated(context, units.records)
    records = leave_removed_pools(context, records)
    in_vain: Sequence[float] = ()
    if shared.frees_hardware and shared.syncer.down is not None:
        records, in_vain = leave_in_vain(context, records)

    # 3. What the other units have and want.
    limits = StartLimits(shared.blocks_units, shared.may_come, shared.frees_hardware, units.avoid)
    request = job_request(context, records, limits)
    units = units._replace(deadlines=[*units.deadlines, *in_vain])

    def plan(observed: ObservedState) -> Plan:
        answered = replace(context, observed=observed)
        # 4. Units leave slices that other jobs get.
        staying = leave_revoked(answered, records)
        # If the answer changed what the job gets or keeps, ask anew: newly granted slices may replace those with bad hosts.
        same = observed.allotted == context.observed.allotted and staying == records
        return _carry_out(answered, units, staying, request if same else job_request(answered, staying, limits), shared, limits)

    return Judged(request.for_allotment(), plan)


def _carry_out(
    context: ReconcileContext,
    units: Units,
    records: Mapping[str, UnitStatusRecord],
    request: JobRequest,
    shared: SharedObjects,
    limits: StartLimits,
) -> Plan:
    """Plan what follows from what the job is allotted."""
    # 1. Place units and start them. Ask for nodes for units without a slice.
    pods = LearnerPods(context)
    scaling = scale(context, records, request, pods, limits)

    # 2. Complete attempts that an operator had created only in part before it died.
    learners = [
        *scaling.creates,
        *missing_pods(context, pods, scaling.records, units.adopted),
        *missing_host_lists(context, pods, units.records, units.adopted),
    ]
    # Where no device plugin offers accelerators, pods claim them by these templates.
    templates = context.without_rejected(claim_templates(context, learners))[0]

    # 3. Create the shared objects once a unit needs them.
    needed = scaling.asks_later or are_needed(context, scaling.records, learners)
    to_issue = certificates_to_issue(context, learners) if needed else CertificatesToIssue()

    # 4. Remove what is over.
    removal = remove_outdated(context, scaling.records)

    # 5. Write status.
    active = contributing_units(context, scaling.records, syncer_down=shared.syncer.down is not None)
    statements = conditions.running(context, scaling, active, shared)
    down_since = shared.syncer.down_since
    status = assemble(context, statements, scaling, active.contributing, retry=context.spec.retry, syncer_down_since=down_since)
    wait = may_wait(context, scaling.records) and not is_retry_due(context)
    write = write_units(context, status, scaling.records, observed=units.records, may_wait=wait)

    # 6. Reconcile again at the earliest of these times.
    deadlines: Sequence[float | None] = (
        *shared.deadlines,
        *units.deadlines,
        *context.hosts.deadlines,
        *context.admissions_forgotten,
        *scaling.deadlines,
        *to_issue.deadlines,
        *removal.deadlines,
        active.recheck_at,
        *context.report_deadlines,
        context.shares.recheck_at if context.shares is not None else None,
        refused.retry_at if (refused := finalizer_refused(context)) is not None else None,
        write.due,
    )
    return Plan(
        parts=wanted_parts(context, suspend=False),
        patches=(*shared.retention.patches, *removal.patches),
        creates=(*(shared.creates if needed else ()), *templates, *learners),
        certificates=tuple(to_issue.secrets),
        status=write.action,
        deletes=(*shared.deletes, *removal.deletes),
        events=write.events,
        requeue_after=requeue_after(context, deadlines),
        pod_checks=(*scaling.pod_checks, *shared.syncer.checks),
        reservations=reserved_nodes(context, scaling.records),
        request=scaling.request,
    )
