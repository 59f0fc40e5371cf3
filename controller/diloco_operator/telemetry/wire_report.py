"""Turns a report on the wire into plain, bounded data: the image of a syncer may hold any program.

See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from diloco.contract import ENDED_BY_PROGRAM, ENDED_BY_TOKENS, MOST_HELD_OUT_POINTS, MOST_LOSS_POINTS, MOST_PARTS, MOST_PAUSE
from diloco.protocol import diloco_pb2
from diloco.wording import one_line

from diloco_operator.api.losses import LossPoint
from diloco_operator.api.spec import MAX_LEARNERS
from diloco_operator.api.status import MOST_TOKENS_PER_SECOND
from diloco_operator.api.unit_figures import DEFAULTS, FIGURES, KEYS
from diloco_operator.kube.fields import MOST_COUNT, clip
from diloco_operator.report import (
    Ending,
    Entry,
    FaultKind,
    Link,
    LocalStep,
    Merge,
    PartState,
    Recovery,
    RecoveryPhase,
    Report,
    ReportFault,
    ToldPart,
    UnitPhase,
    UnitReport,
    snapshot_path,
)

_MOST_REASONS = 32
"""Reasons for a refusal that a unit can have, with room for reasons of newer syncers."""
_REASON_LIMIT = 64
_NAME_LIMIT = 63
_PAUSE_LIMIT = 200
_TOLD_MESSAGE = 512
"""Characters of a part's message. One has four bytes at most."""
_MOST_ROUND_TRIP = 60.0
"""Seconds. A stream whose ping takes longer has ended."""

_PHASES = {
    diloco_pb2.UnitReport.JOINING: UnitPhase.JOINING,
    diloco_pb2.UnitReport.CONTRIBUTING: UnitPhase.CONTRIBUTING,
    diloco_pb2.UnitReport.DISCONNECTED: UnitPhase.DISCONNECTED,
    diloco_pb2.UnitReport.DONE: UnitPhase.DONE,
    diloco_pb2.UnitReport.REFUSED: UnitPhase.REFUSED,
}


class UnreadableReport(ValueError):
    """The report is larger than the job's may be, or contains something that this operator does not know, for example because the syncer is
    newer."""

    def __init__(self, fault: ReportFault) -> None:
        super().__init__(fault.text)
        self.fault = fault


def report_of(wire: diloco_pb2.Report, received_at: float, pod_uid: str = "", most_units: int = MAX_LEARNERS) -> Report:
    """Read a report of the syncer in the pod `pod_uid`. Raises `UnreadableReport`."""
    _check_count(len(wire.units), most_units, "units")
    _check_count(max(len(wire.losses), len(wire.held_out_losses)), _MOST_POINTS_READ, "points of a loss history")
    _check_count(len(wire.entries), _MOST_ENTRIES, "entries at once")
    _check_count(len(wire.links), MOST_PARTS, "links of clusters")
    _check_count(len(wire.parts), MOST_PARTS, "parts")
    return Report(
        received_at=received_at,
        pod_uid=pod_uid,
        t=_count(wire.t),
        steps=_count(wire.steps),
        tokens=_count(wire.tokens),
        tokens_per_second=_figure(wire.tokens_per_second),
        loss=_loss(wire.loss) if wire.HasField("loss") else None,
        held_out_loss=_loss(wire.held_out_loss) if wire.HasField("held_out_loss") else None,
        step_seconds=_figure(wire.step_seconds),
        seeded=wire.seeded,
        parameters=_count(wire.parameters),
        done=wire.done,
        snapshot_t=min(wire.snapshot_t, MOST_COUNT),
        snapshot=snapshot_path(wire.snapshot),
        snapshot_copied=wire.snapshot_copied,
        snapshot_error=clip(wire.snapshot_error),
        message=clip(wire.message),
        draining=wire.draining,
        token_budget=_count(wire.token_budget),
        ending=_ending(wire.ending) if wire.HasField("ending") else None,
        contributions=_count(wire.contributions),
        work_refused=_count(wire.work_refused),
        cosine=min(1.0, max(-1.0, wire.cosine)) if wire.HasField("cosine") and math.isfinite(wire.cosine) else None,
        losses=_curve(wire.losses, MOST_LOSS_POINTS),
        held_out_losses=_curve(wire.held_out_losses, MOST_HELD_OUT_POINTS),
        units={unit.unit: _unit_of(unit) for unit in wire.units},
        links={
            link.cluster: Link(_count(link.received_bytes_per_second), _count(link.sent_bytes_per_second))
            for link in wire.links
            if len(link.cluster) <= _NAME_LIMIT
        },
        parts={
            each.part: ToldPart(_part_state(each.state), received_at - _figure(each.seconds_since_told))
            for each in wire.parts
            if len(each.part) <= _NAME_LIMIT
        },
        samples=_count(wire.samples),
        incarnation=wire.incarnation[:_INCARNATION_BYTES].hex(),
        clock=_figure(wire.clock),
        entries=_entries(wire.entries, most_units),
    )


def part_state_on_wire(state: PartState) -> diloco_pb2.PartState:
    """Write the state as a syncer takes it: in 8 KiB at most."""
    wire = diloco_pb2.PartState(
        state=state.state,
        message=clip(state.message, _TOLD_MESSAGE),
        accelerator_hours=dict(state.accelerator_hours),
        attempts=dict(state.attempts),
    )
    if state.productive_share is not None:
        wire.productive_share = state.productive_share
    return wire


def _part_state(wire: diloco_pb2.PartState) -> PartState:
    share = wire.productive_share if wire.HasField("productive_share") else None
    return PartState.of(wire.state, wire.message, share, wire.accelerator_hours, wire.attempts)


def _ending(wire: diloco_pb2.Ending) -> Ending:
    return Ending(ENDED_BY_TOKENS if wire.cause == diloco_pb2.Ending.TOKENS else ENDED_BY_PROGRAM, _count(wire.t))


def _count(value: int) -> int:
    return min(max(value, 0), MOST_COUNT)


def _figure(value: float) -> float:
    """Return a speed, a share or a duration, 0 for a number that cannot be one. None is larger than the largest speed."""
    return value if 0 <= value <= MOST_TOKENS_PER_SECOND else 0.0


def _loss(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _curve(wire: Iterable[diloco_pb2.LossPoint], most: int) -> tuple[LossPoint, ...]:
    """Return the points that a curve can have, in ascending order. Of more than `most` it keeps every n-th and the last."""
    points: list[LossPoint] = []
    for point in wire:
        if 0 <= point.t <= MOST_COUNT and math.isfinite(point.loss) and (not points or point.t > points[-1].step):
            points.append(LossPoint(point.t, point.loss))
    if len(points) > most:  # n is rounded up, so that there are not more
        points = [*points[: -1 : -(-(len(points) - 1) // (most - 1))], points[-1]]
    return tuple(points)


_MOST_POINTS_READ = 4096
_MOST_ENTRIES = 4096
_INCARNATION_BYTES = 16


def _entries(wire: Iterable[diloco_pb2.Entry], most_units: int) -> tuple[Entry, ...]:
    entries = ((entry, _what_happened(entry, most_units)) for entry in wire)
    return tuple(Entry(_count(entry.number), _figure(entry.at), what) for entry, what in entries if what is not None)


def _what_happened(wire: diloco_pb2.Entry, most_units: int) -> LocalStep | Merge | None:
    """Read an entry. None if a newer syncer says something that this operator does not know."""
    match wire.WhichOneof("what"):
        case "step":
            step = wire.step
            return LocalStep(
                unit=clip(step.unit, _NAME_LIMIT),
                attempt=_count(step.attempt),
                step=_count(step.local_step),
                seconds=step.step_seconds if 0 <= step.step_seconds < math.inf else None,
                loss=_loss(step.loss),
                samples=_count(step.samples_done),
                tokens=_count(step.tokens_done),
            )
        case "merge":
            merge = wire.merge
            _check_count(len(merge.units), most_units, "units in a merge")
            units = tuple(clip(unit, _NAME_LIMIT) for unit in merge.units)
            return Merge(_count(merge.t), _count(merge.fragment), units, _loss(merge.loss) if merge.HasField("loss") else None)
        case _:
            return None


def _check_count(count: int, most: int, what: str) -> None:
    if count > most:
        raise UnreadableReport(ReportFault(FaultKind.TOO_MANY_FIELDS, f"the syncer reports more than {most} {what}"))


def _unit_of(wire: diloco_pb2.UnitReport) -> UnitReport:
    phase = _PHASES.get(wire.state)
    if phase is None:
        text = (
            f"the syncer reports state {wire.state} of unit {clip(wire.unit, 64)}, which this operator does not know; update the operator"
        )
        raise UnreadableReport(ReportFault(FaultKind.MALFORMED, text))
    _check_count(len(wire.refused), _MOST_REASONS, "reasons for refusals of a unit")
    return UnitReport(
        unit=wire.unit,
        attempt=wire.attempt,
        phase=phase,
        **{name: read(getattr(wire, name)) for name, read in _READERS},
        contributions=_count(wire.contributions),
        seconds_since_heard=_figure(wire.seconds_since_heard),
        loss=_loss(wire.loss) if wire.HasField("loss") else None,
        message=clip(wire.message),
        local_step=_count(wire.local_step),
        step_seconds=_figure(wire.step_seconds),
        recover_seconds=_figure(wire.recover_seconds),
        resting_seconds=_figure(wire.resting_seconds),
        seconds_since_alive=_figure(wire.seconds_since_alive),
        pause=one_line(wire.pause, _PAUSE_LIMIT),
        pause_left=min(_figure(wire.pause_left), MOST_PAUSE),
        holds_parameters=wire.holds_parameters,
        left=wire.left,
        received_bytes=_count(wire.received_bytes),
        sent_bytes=_count(wire.sent_bytes),
        round_trip_seconds=min(_figure(wire.round_trip_seconds), _MOST_ROUND_TRIP),
        recovery=_recovery(wire.recovery) if wire.HasField("recovery") else None,
        given=_count(wire.given),
    )


def _reasons(value: Mapping[str, int]) -> dict[str, int]:
    return {clip(reason, _REASON_LIMIT): _count(value[reason]) for reason in sorted(value)}


def _reader_of(name: str) -> Callable[[Any], Any]:
    """Return the function that bounds this figure of a unit. A figure that may be absent is sent as 0, which becomes None."""
    match getattr(diloco_pb2.UnitReport(), name):
        # Before int, which a bool is to Python.
        case bool():
            return bool
        case int():
            return _count if KEYS[name] in DEFAULTS else lambda value: _count(value) or None
        case float():
            return _figure if KEYS[name] in DEFAULTS else lambda value: _figure(value) or None
        case _:
            return _reasons


_READERS = [(name, _reader_of(name)) for name in FIGURES]


def _recovery(wire: diloco_pb2.Recovery) -> Recovery | None:
    phase = _RECOVERY_PHASES.get(wire.phase)
    if phase is None:
        return None
    return Recovery(
        phase=phase,
        unit=one_line(wire.unit, _PAUSE_LIMIT),
        why=one_line(wire.why, _PAUSE_LIMIT),
        stored_at=_count(wire.t) if wire.stored else None,
        steps=_count(wire.steps),
        bytes=_count(wire.bytes),
        start_seconds=_figure(wire.start_seconds),
        parameters_seconds=_figure(wire.parameters_seconds),
        donor_seconds=_figure(wire.donor_seconds),
        wait_seconds=_figure(wire.wait_seconds),
        copy_seconds=_figure(wire.copy_seconds),
        first_step_seconds=_figure(wire.first_step_seconds),
    )


_RECOVERY_PHASES = {
    diloco_pb2.Recovery.WANTED: RecoveryPhase.WANTED,
    diloco_pb2.Recovery.COPYING: RecoveryPhase.COPYING,
    diloco_pb2.Recovery.OVER: RecoveryPhase.OVER,
}
