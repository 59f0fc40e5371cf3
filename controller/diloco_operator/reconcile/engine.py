"""One pass over one job, top to bottom: whose is it, is it over, what happened to its pods, what should run, what to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from diloco_operator.api import conditions as c
from diloco_operator.api import names
from diloco_operator.api.job import UnitState
from diloco_operator.kube.client import Obj
from diloco_operator.placement import Solver, place
from diloco_operator.plan import WAVE_LEARNERS, ApplyStatus, Certify, Create, Delete, Event, Plan
from diloco_operator.reconcile.children.certificates import look_at_certificates, settle_certificates
from diloco_operator.reconcile.children.configuration import settle_children
from diloco_operator.reconcile.children.syncer import SyncerStep, Verdict, settle_syncer, verdict
from diloco_operator.reconcile.context import World, look
from diloco_operator.reconcile.observe.rejected_writes import UNIT, refusal_key
from diloco_operator.reconcile.observe.state import Job, PodView, Snapshot
from diloco_operator.reconcile.observe.unit_status import LIVE, UnitRecord
from diloco_operator.reconcile.status import conditions as say
from diloco_operator.reconcile.status.assembly import assemble, worth_writing
from diloco_operator.reconcile.status.ending import dead_end, finished, time_to_live
from diloco_operator.reconcile.status.events import condition_events, unit_events
from diloco_operator.reconcile.units.cleanup import prune_pods, remaining_pods, templates_changed
from diloco_operator.reconcile.units.lifecycle import observe
from diloco_operator.reconcile.units.preemption import give_way, reclaimable
from diloco_operator.reconcile.units.reservations import reservations, reserved_nodes
from diloco_operator.reconcile.units.restarts import restarted
from diloco_operator.reconcile.units.scaling import Growth, grow, pods_for

__all__ = ["reconcile", "reservations"]


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    creates: list[Create] = field(default_factory=list)
    certify: list[Certify] = field(default_factory=list)
    deletes: list[Delete] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)


def reconcile(snapshot: Snapshot, now: datetime, *, solver: Solver = place) -> Plan:
    """The whole desired change for this job. `now` must have a time zone. Pure: same arguments, same plan."""
    job = snapshot.job
    moment = now.timestamp()
    if job.managed_by != names.MANAGER:
        return Plan(reservations=_pod_nodes(snapshot.pods))
    if job.deleting:
        return _while_deleted(snapshot, moment)
    if job.spec is None:
        status = assemble(job, say.refused(job.problems), None, None, moment)
        return _finish(snapshot, _Draft(), status, None, moment, reserved=reservations(job, snapshot.pods, snapshot.fleet))
    world = look(snapshot, job.spec, moment)
    if finished(job.status):
        return _after_the_end(world)
    records, adopted = _observe_all(world)
    restarts = restarted(world.before, records)
    end = verdict(world.syncer) or dead_end(world, records)
    if end is not None:
        plan = _end(world, records, end)
    elif job.spec.suspend:
        plan = _suspend(world, records)
    else:
        plan = _go_on(world, dict(records), adopted, solver)
    return replace(plan, restarts=restarts) if restarts else plan


# --- the ways a pass can go -------------------------------------------------------------------------------------------
def _while_deleted(snapshot: Snapshot, now: float) -> Plan:
    """Garbage collection ends the pods; what no kubelet will confirm is forced, as for any job."""
    if snapshot.job.spec is None:
        return Plan(reservations=_pod_nodes(snapshot.pods))
    world = look(snapshot, snapshot.job.spec, now)
    deletes = prune_pods(world, {}, only_forced=True)
    return Plan(deletes=tuple(deletes), reservations=_pod_nodes(snapshot.pods), requeue_after=_wait(world.deadlines, now, None))


def _after_the_end(world: World) -> Plan:
    """Complete or Failed is on record: take the pods away, and the job itself when its time has come."""
    draft = _Draft(deletes=remaining_pods(world, "the job is over"))
    gone, due = time_to_live(world)
    if gone is not None:
        draft.deletes.append(gone)
    elif due is not None:
        draft.deadlines.append(due)
    reserved = _pod_nodes(world.snapshot.pods)
    wait = _wait([*draft.deadlines, *world.deadlines], world.now, None)
    return Plan(deletes=tuple(draft.deletes), requeue_after=wait, reservations=reserved)


def _end(world: World, records: Mapping[str, UnitRecord], end: Verdict) -> Plan:
    """The syncer has spoken its last word, or nobody is left to train: say so first, clean up once it is on record."""
    closed = {name: _close(record, end, world.now) for name, record in records.items()}
    growth = Growth(closed, placed=0, desired=0)
    status = assemble(world.snapshot.job, say.over(end), world, growth, world.now, result=end.result)
    return _finish(world.snapshot, _Draft(), status, growth, world.now, before=world.before, reserved=_pod_nodes(world.snapshot.pods))


def _close(record: UnitRecord, end: Verdict, now: float) -> UnitRecord:
    counts = next((unit for unit in end.result.units if unit.unit == record.name), None) if end.result is not None else None
    if counts is not None:
        record = record._replace(tokens=counts.tokens, steps=counts.steps)
    if record.state in (UnitState.FAILED, UnitState.COMPLETED):
        return record._replace(slice="")
    worked = end.complete and record.state in LIVE
    state = UnitState.COMPLETED if worked else UnitState.PENDING
    message = "" if worked else "the job is over"
    return record._replace(
        state=state, ended_attempt=record.attempt, slice="", not_before=None, ended_at=None, reason="", message=message, since=now
    )


def _suspend(world: World, records: Mapping[str, UnitRecord]) -> Plan:
    """Learners first, then the syncer, which writes its snapshot when nobody can add to it any more."""
    kept = {name: _released(world, record) for name, record in records.items()}
    draft = _Draft(deletes=prune_pods(world, kept))
    learners = [pod for pods in world.learners.values() for pod in pods if not pod.ended]
    waiting = [pod for pod in learners if not world.unreachable(pod.node)]
    syncer = world.syncer
    if syncer is not None and syncer.deletion is None and not waiting:
        draft.deletes.append(Delete(names.PODS, syncer.namespace, syncer.name, syncer.uid, why="the job is suspended"))
    still = sorted(pod.name for pod in waiting) + ([syncer.name] if syncer is not None else [])
    growth = Growth(kept, placed=0, desired=0)
    status = assemble(world.snapshot.job, say.suspended(still), world, growth, world.now, syncer_down=not waiting)
    reserved = reserved_nodes(world, kept)
    return _finish(world.snapshot, draft, status, growth, world.now, before=world.before, reserved=reserved, deadlines=world.deadlines)


def _released(world: World, record: UnitRecord) -> UnitRecord:
    """A suspended job's unit: running ones drain, and whoever was given up gets a new chance when the job resumes."""
    message = "the job is suspended"
    if record.running:
        if record.state is UnitState.DRAINING:
            return record
        return record._replace(state=UnitState.DRAINING, reason=c.UNIT_SUSPENDED, message=message, since=world.now)
    if record.state is UnitState.COMPLETED:
        return record
    fresh = record._replace(slice="", not_before=None, failures=(), ended_at=None, reason=c.UNIT_SUSPENDED, message=message)
    return fresh if record.state is UnitState.PENDING else fresh._replace(state=UnitState.PENDING, since=world.now)


def _go_on(world: World, records: dict[str, UnitRecord], adopted: set[str], solver: Solver) -> Plan:
    snapshot, job, spec = world.snapshot, world.snapshot.job, world.spec
    children = settle_children(job, spec, snapshot.children, in_use=world.syncer is not None)
    certificates = look_at_certificates(world)
    refused = [
        f"Secret {name} cannot be made: {why}"
        for kind, name in snapshot.refusals
        if kind == "Secret" and (why := world.refusal((kind, name)))
    ]
    made = _not_refused(world, children.creates, refused)
    ready = children.ready and certificates.ready and not refused
    syncer = settle_syncer(world, ready)
    if len(syncer_made := _not_refused(world, syncer.creates, refused)) < len(syncer.creates):
        syncer = replace(syncer, creates=syncer_made, ready_for_learners=False, down=refused[-1])
    taken = [*children.taken, *certificates.taken, *([syncer.taken] if syncer.taken else [])]
    records = give_way(world, _leave_removed_pools(world, templates_changed(world, records)))
    growth = grow(world, records, solver, may_start="; ".join(refused) or _why_not_start(ready, syncer))
    draft = _Draft(
        creates=[*made, *syncer.creates, *(_learner(job, pod) for pod in growth.creates)],
        deletes=[*children.deletes, *certificates.deletes, *syncer.deletes],
    )
    draft.creates += _complete_gangs(world, growth, adopted)
    certify = settle_certificates(world, (create.obj for create in draft.creates if create.wave == WAVE_LEARNERS))
    allowed = [each for each in certify if not world.refusal(("Secret", each.obj["metadata"]["name"]))]
    if not any(each.found_authority for each in certify) or any(each.found_authority for each in allowed):
        draft.certify += allowed  # else there is nobody to sign
    draft.deletes += prune_pods(world, growth.records)
    if growth.hungry:
        draft.deadlines.append(world.now + snapshot.config.placement_retry)
    statements = say.going_on(world, growth, syncer_down=syncer.down, taken=taken, refused=refused, going=children.going)
    status = assemble(job, statements, world, growth, world.now, syncer_down=bool(syncer.down))
    reserved = reserved_nodes(world, growth.records)
    # Appended after growth and pruning have run: they note when they want to be asked again.
    may_wait = _can_be_told_later(world, growth.records)
    plan = _finish(
        snapshot, draft, status, growth, world.now, before=world.before, reserved=reserved, deadlines=world.deadlines, may_wait=may_wait
    )
    return replace(plan, demand=growth.demand, reclaimable=reclaimable(world, growth.records))


def _can_be_told_later(world: World, records: Mapping[str, UnitRecord]) -> bool:
    """Whether the end of every attempt that `records` account for the first time is in the status of its pods, where a later pass finds
    it, also beside a successor: the same that is asked of an operator that dies before it writes the record."""
    before = world.before
    for name, record in records.items():
        known = before[name].ended_attempt if name in before else 0
        if record.ended_attempt > known:
            pods = [pod for pod in world.learners.get(name, ()) if known < pod.attempt <= record.ended_attempt]
            if len({pod.attempt for pod in pods}) < record.ended_attempt - known or not all(pod.ended for pod in pods):
                return False
    return True


def _not_refused(world: World, creates: Sequence[Create], refused: list[str]) -> list[Create]:
    """Those that may be tried now; why the others may not is added to `refused`."""
    found: list[Create] = []
    for create in creates:
        kind, name = key = refusal_key(create.resource, create.obj)
        if why := world.refusal(key):
            refused.append(f"{kind} {name} cannot be made: {why}")
        else:
            found.append(create)
    return found


def _why_not_start(children_ready: bool, syncer: SyncerStep) -> str:
    if not children_ready:
        return "waits for the job's configuration to be made"
    if not syncer.ready_for_learners:
        return f"waits for the syncer: {syncer.down or 'its pod is being made'}"
    return ""


# --- units ------------------------------------------------------------------------------------------------------------
def _observe_all(world: World) -> tuple[dict[str, UnitRecord], set[str]]:
    records = dict(world.before)
    for unit, pods in world.learners.items():
        if unit not in records:
            records[unit] = UnitRecord(unit, pods[0].pool, since=world.now)
    adopted: set[str] = set()
    for name, record in records.items():
        records[name], newer = observe(world, record, world.learners.get(name, ()))
        if newer and (refused := _refused_gang(world, records[name])):
            records[name] = refused
        elif newer:
            adopted.add(name)
    return records, adopted


def _refused_gang(world: World, record: UnitRecord) -> UnitRecord | None:
    """An attempt of which some pods were made and the others refused ends: it would hold what it cannot use. None: it is whole."""
    shape = world.shapes.get(record.pool)
    there = [pod for pod in world.learners[record.name] if pod.attempt == record.attempt]
    if record.state is not UnitState.STARTING or shape is None or len(there) >= shape.hosts:
        return None
    refused = world.refusal((UNIT, record.name))
    if not refused:
        return None
    return record._replace(
        state=UnitState.PENDING,
        ended_attempt=record.attempt,
        slice="",
        reason=c.UNIT_PODS_REFUSED,
        message=refused,
        since=world.now,
    )


def _leave_removed_pools(world: World, records: dict[str, UnitRecord]) -> dict[str, UnitRecord]:
    """Units of a pool that spec.pools no longer has drain, and leave status with their last pod."""
    found: dict[str, UnitRecord] = {}
    for name, record in records.items():
        if record.pool in world.pools:
            found[name] = record
        elif record.running:
            text = f"spec.pools has no pool {record.pool} any more"
            draining = record._replace(state=UnitState.DRAINING, reason=c.UNIT_SCALED_DOWN, message=text, since=world.now)
            found[name] = record if record.state is UnitState.DRAINING else draining
        elif world.learners.get(name):
            found[name] = record._replace(state=UnitState.PENDING, slice="", not_before=None, reason=c.UNIT_SCALED_DOWN)
    return found


def _learner(job: Job, pod: Obj) -> Create:
    """A learner pod, not before its certificate."""
    labels = pod["metadata"]["labels"]
    secret = names.learner_secret_name(job.name, labels[names.LABEL_POOL], labels[names.LABEL_UNIT])
    return Create(names.PODS, pod, wave=WAVE_LEARNERS, after=secret)


def _complete_gangs(world: World, growth: Growth, adopted: set[str]) -> list[Create]:
    """Pods of an attempt that an operator was making when it died."""
    creates: list[Create] = []
    for name in sorted(adopted):
        record = growth.records[name]
        pool = world.pools.get(record.pool)
        if record.state is not UnitState.STARTING or pool is None or record.template_hash != world.hashes[record.pool]:
            continue
        there = {pod.name for pod in world.learners[name] if pod.attempt == record.attempt}
        parts = world.snapshot.fleet.resolve(world.shapes[record.pool], record.slice)
        hosts = tuple(host for part in parts or () for host in part.hosts)
        if len(hosts) == world.shapes[record.pool].hosts and len(there) < len(hosts):
            pods = pods_for(world, record, record.attempt, hosts, record.template_hash)
            creates += [_learner(world.snapshot.job, pod) for pod in pods if pod["metadata"]["name"] not in there]
    return creates


# --- closing ----------------------------------------------------------------------------------------------------------
def _finish(
    snapshot: Snapshot,
    draft: _Draft,
    status: dict[str, Any],
    growth: Growth | None,
    now: float,
    *,
    before: Mapping[str, UnitRecord] | None = None,
    reserved: frozenset[str],
    deadlines: Sequence[float] = (),
    may_wait: bool = False,
) -> Plan:
    job = snapshot.job
    apply = None
    write, due = worth_writing(job.status, status, now, snapshot.config.progress_interval)
    events = list(draft.events)
    if write is not None:
        apply = ApplyStatus(names.DILOCO_JOBS, job.namespace, job.name, job.uid, write, may_wait)
        events += condition_events(job.status.get("conditions") or (), status["conditions"])
        if growth is not None and before is not None:
            events += unit_events(before, growth.records)
    waits = [*draft.deadlines, *deadlines, *([due] if due is not None else [])]
    return Plan(
        creates=tuple(draft.creates),
        certify=tuple(draft.certify),
        status=apply,
        deletes=tuple(draft.deletes),
        events=tuple(events),
        requeue_after=_wait(waits, now, snapshot.config.resync_interval),
        reservations=reserved,
    )


def _wait(deadlines: Sequence[float], now: float, at_most: float | None) -> float | None:
    """Seconds to the next deadline; a little after it, so that a clock that ticks in milliseconds has passed it."""
    waits = [max(0.0, deadline - now) + 0.001 for deadline in deadlines] + ([at_most] if at_most is not None else [])
    return min(waits, default=None)


def _pod_nodes(pods: Sequence[PodView]) -> frozenset[str]:
    return frozenset(pod.node for pod in pods if pod.component == names.COMPONENT_LEARNER and not pod.ended and pod.node)
