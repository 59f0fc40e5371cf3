"""Each unit's record after what its pods and the syncer's report show: the ends of attempts are recorded, and the state follows.

`scaling` decides afterwards whether a unit may run, and where. Nothing here creates or deletes.

See docs/decisions/0138-job-state.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from diloco_operator.api.consequences import Follows
from diloco_operator.api.last_failure import LastFailure, read_last_failure
from diloco_operator.api.reasons import UnitReason, follows
from diloco_operator.api.status import UnitState
from diloco_operator.fleet.slices import GROUP_SEPARATOR
from diloco_operator.reconcile.context import NodeHealth, ReconcileContext, Rejection
from diloco_operator.reconcile.observe.clocks import CLOCK_TOLERANCE
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.rejected_writes import UNIT
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units import departure_words, end_words, wait_words
from diloco_operator.reconcile.units.advance import advance
from diloco_operator.reconcile.units.attempt_end import End, EndKind, cause_due, failed, gang_end
from diloco_operator.reconcile.units.delegation import read_binding
from diloco_operator.reconcile.units.hosts import BlamedFailure, blame, has_place_elsewhere
from diloco_operator.reconcile.units.restarts import after_end
from diloco_operator.reconcile.units.start_waits import NoPlace, Timeout, all_bound, bound_at
from diloco_operator.reconcile.units.states import GAVE_SLICE_UP, State, state_of
from diloco_operator.reconcile.units.timeouts import timed_out
from diloco_operator.reconcile.units.transitions import UnitEvent, new_unit, transition
from diloco_operator.reconcile.units.unschedulable import give_slice_up, node_taken, nodes_to_avoid
from diloco_operator.timeouts import RECONCILE

_DRAINED_GRACE = 5.0
"""Seconds after which a unit that was asked to leave, and ended with status 0, comes back if the syncer still reports a running job. A few
reports arrive in that time, and a needless attempt at the end of a job costs little."""

_REPORT_LATE = 5.0
"""How much later a report may arrive than what a kubelet says about the same moment, in seconds. The syncer sends one every 2 s; the
operator reads large ones every 2 s."""


class Units(NamedTuple):
    """All units after everything that happened to their pods."""

    records: dict[str, UnitStatusRecord]
    adopted: set[str]
    """Units whose pods are newer than their record: an operator died before it wrote status."""
    deadlines: list[float]
    avoid: dict[str, float]
    """Node that units should avoid, because no scheduler bound a pod there lately -> since when."""
    failures: list[BlamedFailure]
    """New failures whose host is known."""


class UnitObservation(NamedTuple):
    record: UnitStatusRecord
    adopted: bool = False
    deadlines: Sequence[float] = ()
    avoid_node: str = ""
    """The node that the unit gave up: no scheduler bound a pod there, or the node may be why the attempt failed. "" if it gave up none."""
    failures: Sequence[BlamedFailure] = ()


def observe_units(context: ReconcileContext) -> Units:
    """Observe every unit on record, and every unit that has pods."""
    units = Units(dict(context.records_before), set(), [], nodes_to_avoid(context), [])
    for name, pods in context.learners.items():
        # An operator died before it wrote status: without a record no rule would end these pods, and they would keep their nodes.
        units.records.setdefault(name, new_unit(name, pods[0].pool, context.now))
    for name, record in units.records.items():
        if name in context.defects:
            units.records[name] = _end_broken(context, record, context.defects[name])
            continue
        observation = observe_unit(context, record, context.learners.get(name, ()))
        if observation.adopted and (rejection := _rejected_gang(context, observation.record)) is not None:
            observation = _end_rejected(context, observation.record, rejection)._replace(failures=observation.failures)
        units.records[name] = observation.record
        units.deadlines.extend(observation.deadlines)
        units.failures.extend(observation.failures)
        if observation.adopted:
            units.adopted.add(name)
        if observation.avoid_node:
            units.avoid[observation.avoid_node] = context.now
        for pod in context.learners.get(name, ()):
            if pod.stuck_from is None or not pod.node:
                continue
            if context.now < pod.stuck_from:
                units.deadlines.append(pod.stuck_from)
            else:  # a stuck pod still holds its node, so nothing should start beside it
                units.avoid.setdefault(pod.node, pod.stuck_from)
    return units


def _rejected_gang(context: ReconcileContext, record: UnitStatusRecord) -> Rejection | None:
    """Return why the API server rejects the missing pods of a starting attempt. None if none is missing, or they may be created."""
    shape = context.shapes.get(record.pool)
    if record.state is not UnitState.STARTING or shape is None or len(context.attempt_pods(record)) >= shape.hosts:
        return None
    return context.rejection((UNIT, record.name))


def _end_rejected(context: ReconcileContext, record: UnitStatusRecord, rejection: Rejection) -> UnitObservation:
    """End an attempt whose missing pods are rejected: it would occupy nodes that it cannot use."""
    ended = transition(record, UnitEvent.REFUSED, context.now, UnitReason.PODS_REFUSED, rejection.message)
    return UnitObservation(ended, deadlines=(rejection.retry_at,))


def _end_broken(context: ReconcileContext, record: UnitStatusRecord, defect: str) -> UnitStatusRecord:
    """End the attempt of a unit to which something happened that the table of transitions lacks. It may happen again, so the longest pause
    follows."""
    newest = max((pod.attempt for pod in context.learners.get(record.name, ())), default=record.attempt)
    not_before = context.now + context.spec.learners.restart.backoff.max
    return transition(
        record._replace(attempt=max(record.attempt, newest)),
        UnitEvent.BROKE,
        context.now,
        UnitReason.OPERATOR_DEFECT,
        wait_words.pauses_after(end_words.operator_defect(defect), not_before),
        restarts=record.restarts + 1,
        not_before=not_before,
    )


def observe_unit(context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView]) -> UnitObservation:
    """Return the unit's record after everything that happened to its pods. Idempotent: an end that is on record (`ended_attempt`) is not
    counted again."""
    record = _on_our_clock(context, record)
    newest = max((pod.attempt for pod in pods), default=0)
    adopted = newest > record.attempt
    older: list[BlamedFailure] = []
    if adopted:
        record = _adopt(context, record, pods, newest, older)
    observation = _observe_newest(context, record, adopted=adopted)
    return observation._replace(failures=(*older, *observation.failures))


def _observe_newest(context: ReconcileContext, record: UnitStatusRecord, *, adopted: bool) -> UnitObservation:
    record = _excuse_failure_after_last_step(context, record)
    if not record.running:
        return _check_completed(context, record)
    current = context.attempt_pods(record)
    slices = _slices(current)
    delegated = any(pod.grantor for pod in current)
    if adopted and not slices and not delegated:
        return UnitObservation(_without_slice(context, record), adopted)
    if len(slices) == 1 and record.slice and slices != {record.slice}:
        # Pinned pods name the right slice. But a stranger may have written them: the name counts only if the pods are on that slice, or if
        # the fleet does not know it and they are not on the recorded one either.
        name = next(iter(slices))
        on_named = context.on_slice(current, record.pool, name)
        if on_named or (on_named is None and not context.on_slice(current, record.pool, record.slice)):
            record = record._replace(slice=name)
    if record.state is UnitState.DRAINING:
        return _drained(context, record, current, adopted=adopted)
    if len(slices) > 1:
        return UnitObservation(_on_two_slices(context, record, slices), adopted)
    if state_of(record) is not State.WAITING_FOR_GRANTOR:
        return _observe_attempt(context, record, current, adopted=adopted)
    binding = read_binding(context, record, current)
    if binding.problem is not None:
        return UnitObservation(give_slice_up(context, record, binding.problem), adopted)
    if binding.slice:
        record = transition(record, UnitEvent.GRANTED, context.now, record.reason, record.message, slice=binding.slice)
    observation = _observe_attempt(context, record, current, adopted=adopted)
    if binding.recheck_at is None:
        return observation
    return observation._replace(deadlines=[*observation.deadlines, binding.recheck_at])


def _excuse_failure_after_last_step(context: ReconcileContext, record: UnitStatusRecord) -> UnitStatusRecord:
    """Change the reason of the last failure to FAILED_AT_END if the report that the last step is done came just after it. A kubelet reports
    an end at once, the syncer only with its next report."""
    is_recent = context.report is not None and record.failures and context.report.received_at - record.failures[-1] <= _REPORT_LATE
    if not is_recent or not context.finishing or not record.failed_last:
        return record
    failure = read_last_failure(record.last_failure)
    return record._replace(last_failure=LastFailure(UnitReason.FAILED_AT_END, failure.message).written())


def _adopt(
    context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView], newest: int, failures: list[BlamedFailure]
) -> UnitStatusRecord:
    """Return the record of an attempt whose pods an operator created that died before it wrote status. Failures of earlier attempts are
    added to `failures`."""
    record = _account_older(context, record, pods, newest, failures)
    adopted = [pod for pod in pods if pod.attempt == newest]
    first = adopted[0]
    slice_ = next((pod.slice for pod in adopted if pod.slice), "")
    return _with_found_pods(record, newest, slice_, first.created)._replace(template_hash=first.template_hash)


def _with_found_pods(record: UnitStatusRecord, attempt: int, slice_: str, since: float) -> UnitStatusRecord:
    """Return the record once pods of an attempt were found that it did not have."""
    return transition(
        record,
        UnitEvent.FOUND,
        since,
        UnitReason.SCHEDULING,
        wait_words.PODS_FOUND,
        shown=UnitState.STARTING,
        since=since,
        attempt=attempt,
        slice=slice_,
    )


def _slices(pods: Sequence[PodView]) -> set[str]:
    """Return the slices on which these pods are; more than one if they do not belong together."""
    slices = {pod.slice for pod in pods if pod.slice}
    # In a group of many hosts only the first pods name the group. Each of the others must be on its own host in it.
    group = next(iter(slices)) if len(slices) == 1 else ""
    if GROUP_SEPARATOR in group:
        nodes = group.split(GROUP_SEPARATOR)
        elsewhere = (pod.node for pod in pods if not pod.slice and pod.node and nodes[pod.host : pod.host + 1] != [pod.node])
        slices.update(itertools.islice(elsewhere, 1))  # one is enough to show that they do not belong together
    return slices


def _without_slice(context: ReconcileContext, record: UnitStatusRecord) -> UnitStatusRecord:
    """End an attempt without a pod that names its group of hosts: the operator died before it created those, so nothing says where the rest
    belongs."""
    never = End(EndKind.NEVER_RAN, UnitReason.SCHEDULING, end_words.created_in_part(record.attempt), context.now)
    return after_end(record, never, context.spec.learners.restart, context.now)


def _on_two_slices(context: ReconcileContext, record: UnitStatusRecord, slices: set[str]) -> UnitStatusRecord:
    """End an attempt that two plans created: the operator did not know how much of the first plan had been carried out."""
    never = End(EndKind.NEVER_RAN, UnitReason.SCHEDULING, end_words.created_on_two_slices(record.attempt, slices), context.now)
    return after_end(record, never, context.spec.learners.restart, context.now)


def _observe_attempt(context: ReconcileContext, record: UnitStatusRecord, current: Sequence[PodView], *, adopted: bool) -> UnitObservation:
    """Return how the running attempt goes on, or how it ended."""
    health = {pod.node: _node_health(context, record, pod) for pod in current}
    deadlines = [node_health.recheck_at for node_health in health.values() if node_health.recheck_at is not None]
    end = gang_end(
        current,
        _hosts(context, record, current),
        lambda node: health[node].eviction_reason,
        context.now,
        ever_ran=record.state is not UnitState.STARTING,
        adopted=adopted,
    )
    if end is not None and failed(end):
        end = _excuse_forgotten_attempt(context, record, end)
    if end is not None and context.finishing and failed(end):
        end = replace(end, reason=UnitReason.FAILED_AT_END)
    timeout = Timeout()
    if end is None:
        taken = node_taken(context, record, current)
        timeout = Timeout(no_place=taken) if taken is not None else timed_out(context, record, current)
        if timeout.due is not None:
            deadlines.append(timeout.due)
        end = timeout.end
    if timeout.no_place is not None:
        return UnitObservation(give_slice_up(context, record, timeout.no_place), adopted, deadlines, timeout.no_place.node)
    if end is None:
        return UnitObservation(advance(context, record, current), adopted, deadlines)
    due = cause_due(end, current, context.now)
    # The node may still say why. An end that is recorded before that counts as a failure and costs a restart.
    if due is not None:
        return UnitObservation(record, adopted, [*deadlines, due])
    if state_of(record) is State.WAITING_FOR_GRANTOR and (why := _never_whole(end, current)) is not None:
        # This way the unit pauses before it asks again. Without a pause it would ask without end.
        return UnitObservation(give_slice_up(context, record, NoPlace(UnitReason.NOT_PROVISIONED, "", why)), adopted, deadlines)
    if end.no_place:
        no_place = NoPlace(UnitReason.HOST_REFUSED, end.node, end.why)
        return UnitObservation(give_slice_up(context, record, no_place), adopted, deadlines, end.node)
    end = _when(context, record, end)
    if end.kind is EndKind.DISRUPTION and any(map(context.lingers, current)):
        draining = transition(record, UnitEvent.ASKED_TO_LEAVE, context.now, end.reason, end.why)
        return UnitObservation(draining, adopted, deadlines)
    failures = blame(record, record.attempt, end, current)
    checked = _check_completed(context, after_end(record, end, context.spec.learners.restart, context.now))
    left = end.node if follows(end.reason, Follows.OTHER_HOSTS_FIRST) else ""
    return checked._replace(adopted=adopted, deadlines=[*deadlines, *checked.deadlines], avoid_node=left, failures=failures)


def _excuse_forgotten_attempt(context: ReconcileContext, record: UnitStatusRecord, end: End) -> End:
    """Return the end of an attempt that failed. It is no failure of the program if the syncer has accepted a newer attempt, and refuses
    this one: status was restored from a backup, and the next attempt has a number that the syncer accepts."""
    newest = context.last_reported(record.name, record.attempt)
    if newest <= record.attempt:
        return end
    return replace(end, kind=EndKind.DISRUPTION, why=end_words.attempt_forgotten(end.why, newest))


def _never_whole(end: End, current: Sequence[PodView]) -> str | None:
    """Return why a delegated unit ended before it had all its nodes. None if it had them, or its end counts as any other."""
    if end.kind is EndKind.NEVER_RAN:
        return end_words.PODS_DELETED_BEFORE_NODES
    if end.kind is EndKind.FAILURE and not all_bound(current):
        return end_words.nodes_for_some_pods(end.why)
    return None


def _node_health(context: ReconcileContext, record: UnitStatusRecord, pod: PodView) -> NodeHealth:
    """Return the health of the pod's node. The scheduler may know a new node before the operator does: the pod of a delegated unit gets
    some time before its node counts as lost."""
    bound = bound_at(pod, context.now)
    if state_of(record) is State.WAITING_FOR_GRANTOR and bound is not None and context.observed.fleet.node(pod.node) is None:
        due = bound + RECONCILE.node_seen
        if context.now < due:
            return NodeHealth("", due)
    return context.node_health(pod.node)


def _account_older(
    context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView], newest: int, failures: list[BlamedFailure]
) -> UnitStatusRecord:
    """Record the ends of all attempts before `newest` that are not on record yet: the next attempt exists, so they have ended."""
    for attempt in sorted({pod.attempt for pod in pods if pod.attempt < newest} | {record.attempt}):
        # Accounted already: counted twice, one failure would use up two restarts.
        if attempt <= record.ended_attempt or attempt < record.attempt:
            continue
        waited = attempt == record.attempt and state_of(record) is State.WAITING_FOR_GRANTOR
        if attempt > record.attempt:
            record = _with_found_pods(record, attempt, record.slice, record.since if record.since is not None else context.now)
        gang = [pod for pod in pods if pod.attempt == attempt]
        end = gang_end(gang, len(gang), lambda node: context.node_health(node).eviction_reason, context.now, ever_ran=False, adopted=True)
        if end is None and waited:
            end = End(EndKind.NEVER_RAN, UnitReason.SCHEDULING, end_words.TOOK_FREE_SLICE, context.now)
        elif record.state is UnitState.DRAINING or end is None:
            # It drained, or its pods are gone or going, and with them the cause: a failure cannot be proven.
            end = _end_of_drain(record, context.now)
        end = _when(context, record, end)
        failures += blame(record, attempt, end, gang)
        record = after_end(record, end, context.spec.learners.restart, context.now)
    return record._replace(ended_attempt=newest - 1, attempt=newest - 1)


def _when(context: ReconcileContext, record: UnitStatusRecord, end: End) -> End:
    """Return the end with a time between the attempt's start and now. It comes from a node's clock, which may be hours off. If that is
    behind, the failure would be forgotten at once; if it is ahead, the next attempt would start only then."""
    began = min(record.since, context.now) if record.since is not None else context.now
    return replace(end, at=min(max(end.at, began), context.now))


def _on_our_clock(context: ReconcileContext, record: UnitStatusRecord) -> UnitStatusRecord:
    """Replace times in the future, which an operator wrote whose clock was ahead: no time-out would pass before they come."""
    latest = context.now + CLOCK_TOLERANCE
    paused = state_of(record) in GAVE_SLICE_UP
    # `not_before` may lie in the future, but no further than the longest pause of this state.
    longest = context.observed.config.unschedulable_retry_max if paused else context.spec.learners.restart.backoff.max
    if record.since is not None and record.since > latest:
        record = record._replace(since=context.now)
    if record.not_before is not None and record.not_before > latest + longest:
        record = record._replace(not_before=context.now + longest)
    if any(failure > latest for failure in record.failures):
        record = record._replace(failures=tuple(min(failure, context.now) for failure in record.failures))
    return record


def _hosts(context: ReconcileContext, record: UnitStatusRecord, current: Sequence[PodView]) -> int:
    """Return how many pods the attempt should have."""
    # An attempt from another template may have another shape. Nothing but its own pods shows how many it has.
    shape = context.shapes.get(record.pool)
    if shape is None or not context.up_to_date(record):
        return max(1, len(current))
    return shape.hosts


def _drained(context: ReconcileContext, record: UnitStatusRecord, current: Sequence[PodView], *, adopted: bool) -> UnitObservation:
    """Record the end of a unit that drains once its pods have ended, or how long it waits for one that does not."""
    if any(map(context.lingers, current)):
        due = [(pod.stuck_from, pod) for pod in current if pod.stuck_from is not None]
        deadlines = [moment for moment, _ in due if context.now < moment]
        late = [pod for moment, pod in due if moment <= context.now]
        why = _why_it_drains(context, record)
        if not late:
            draining = transition(record, UnitEvent.STILL_DRAINS, context.now, record.reason, why, cause="")
            return UnitObservation(draining, adopted, deadlines)
        # The other pods that still end keep their hosts too.
        if _moves(context, record, [pod.node for _, pod in due]):
            # Safe although a pod still runs: the syncer refuses what the old attempt sends, and the pod keeps its host until it has ended.
            end = replace(_asked_to_leave(record, _stuck(why, late), context.now), leave_slice=True)
            return UnitObservation(after_end(record, end, context.spec.learners.restart, context.now), adopted)
        draining = transition(record, UnitEvent.STILL_DRAINS, context.now, record.reason, _stuck(why, late), cause=why)
        return UnitObservation(draining, adopted, deadlines)
    end = _asked_to_leave(record, _why_it_drains(context, record), context.now)
    if current and all(pod.termination is not None and pod.termination.exit_code == 0 for pod in current):
        # It may have reached the end of the job before it was asked to go.
        end = replace(end, kind=EndKind.COMPLETE, at=context.now)
    return UnitObservation(after_end(record, end, context.spec.learners.restart, context.now), adopted)


def _moves(context: ReconcileContext, record: UnitStatusRecord, nodes: Collection[str]) -> bool:
    """Return whether a unit starts elsewhere although some of its pods do not end: the job wants it, and a slice without these nodes is
    free."""
    wanted = not context.suspended and not follows(record.reason, Follows.NOT_WANTED)
    return wanted and has_place_elsewhere(context, record.pool, nodes)


def _why_it_drains(context: ReconcileContext, record: UnitStatusRecord) -> str:
    """Return why the unit drains, without what `_stuck` has added to the message since."""
    if follows(record.reason, Follows.UNTIL_RESUMED) and not context.suspended:
        return departure_words.RESUMED
    return record.cause or record.message


def _stuck(why: str, pods: Sequence[PodView]) -> str:
    """Return a message that names the first pod that does not end. The operator does not delete it by force: its node answers, so a process
    of it may still run."""
    first = min(pods, key=lambda pod: pod.name)
    assert first.deletion is not None, "chosen for it"
    return departure_words.pod_does_not_end(why, first.name, first.node, first.deletion)


def _end_of_drain(record: UnitStatusRecord, now: float) -> End:
    if record.state is not UnitState.DRAINING:
        return End(EndKind.DISRUPTION, UnitReason.POD_LOST, end_words.attempt_replaced(record.attempt), now)
    return _asked_to_leave(record, record.message, now)


def _asked_to_leave(record: UnitStatusRecord, why: str, now: float) -> End:
    """Return the end of a unit that had to leave for the reason in its record. A drain by the operator ends `now`. A disruption counts from
    when the unit began to drain."""
    # A slice that was left is free for all jobs, in their order. If the unit just came back to it, it might have to leave it again at once.
    elsewhere = follows(record.reason, Follows.NEXT_ELSEWHERE) or follows(record.reason, Follows.SLICE_LEFT)
    if not follows(record.reason, Follows.PLATFORM_ENDS):
        return End(EndKind.DRAINED, record.reason, why, now, leave_slice=elsewhere)
    began = record.since if record.since is not None else now
    return End(EndKind.DISRUPTION, record.reason, why, began, leave_slice=elsewhere)


def _check_completed(context: ReconcileContext, record: UnitStatusRecord) -> UnitObservation:
    """Judge a unit whose program ended with status 0. If the syncer still reports a running job well after that, the program left early,
    which is a failure; or it left because it was asked to, and the unit has drained."""
    if record.state is not UnitState.COMPLETED or record.since is None or context.report is None or context.finishing:
        return UnitObservation(record)
    seen = context.unit_report(record.name, record.attempt)
    has_left = record.ended_by_itself and seen is not None and seen.left  # the program itself has told the syncer
    grace = context.observed.config.early_end_grace
    deadline = record.since + (min(grace, _DRAINED_GRACE) if record.reason else grace)
    if context.report.received_at < deadline and not has_left:
        # Not in the past: a deadline in the past would start one reconcile after the other until the next report comes.
        return UnitObservation(record, deadlines=(max(deadline, context.now + 1.0),))
    if record.reason:
        left = _asked_to_leave(record, record.message, context.now)
        return UnitObservation(after_end(record, left, context.spec.learners.restart, context.now))
    end = End(EndKind.FAILURE, UnitReason.LEFT_EARLY, end_words.LEFT_EARLY, record.since)
    return UnitObservation(after_end(record, end, context.spec.learners.restart, context.now))
