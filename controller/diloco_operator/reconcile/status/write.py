"""The one status write of a reconcile, and the Events that follow it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from diloco_operator.api import names
from diloco_operator.api.conditions import ConditionType, on_record
from diloco_operator.api.consequences import Concern
from diloco_operator.api.reasons import TrainingReason
from diloco_operator.api.status import MAX_CONDITIONS
from diloco_operator.api.unit_figures import KEYS
from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp
from diloco_operator.plan import Event, ReplaceStatus
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.host_status import read_hosts
from diloco_operator.reconcile.observe.object_size import status_budget, stored_bytes
from diloco_operator.reconcile.observe.state import ObservedState
from diloco_operator.reconcile.observe.throughput import POOL_FIGURES
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.status.bounds import TEXT_LIMIT, bounded, clip_bytes
from diloco_operator.reconcile.status.ending import recorded_end
from diloco_operator.reconcile.status.events import condition_events, host_events, own_data_events, pool_events, unit_events
from diloco_operator.reconcile.status.goodput import account

_CAUSES = frozenset({ConditionType.ACCEPTED, ConditionType.PLACED})
"""Conditions that explain what units do; their Events come before the units' Events."""
_CONSEQUENCES = frozenset(ConditionType) - _CAUSES


@dataclass(frozen=True, slots=True)
class StatusWrite:
    action: ReplaceStatus | None = None
    """None if there is nothing to write yet."""
    events: tuple[Event, ...] = ()
    due: float | None = None
    """When figures that changed will be written. None if none wait."""


def write_status(
    observed: ObservedState,
    status: dict[str, Any],
    now: float,
    *,
    may_wait: bool = False,
    of_units: Callable[[], Iterable[Event]] = tuple,
) -> StatusWrite:
    """Write the status, if it is worth a write, with Events for the conditions that changed. The Events of the units stand after the
    conditions that let them start and before the conditions that follow from them, so that all read as a story."""
    job = observed.job
    others = _of_others(job.status)
    status = bounded(status, status_budget(job.bytes_beside_status + (stored_bytes(others) if others else 0)))
    write, due = worth_writing(job.status, status, now, observed.config.progress_interval)
    if write is None:
        return StatusWrite(due=due)
    before, after = job.status.get("conditions") or (), status["conditions"]
    events = (*condition_events(before, after, _CAUSES), *of_units(), *condition_events(before, after, _CONSEQUENCES))
    write = {**write, "conditions": [*write["conditions"], *others]}
    return StatusWrite(ReplaceStatus(names.DILOCO_JOBS, job.namespace, job.name, job.uid, write, may_wait), events, due)


def write_units(
    context: ReconcileContext,
    status: dict[str, Any],
    records: Mapping[str, UnitStatusRecord],
    *,
    observed: Mapping[str, UnitStatusRecord] | None = None,
    may_wait: bool = False,
) -> StatusWrite:
    """Like `write_status`, with the Events of the units and with `status.goodput`. `observed` is as for `unit_events`."""

    def of_units() -> list[Event]:
        before = context.observed.job.status
        return [
            *pool_events(before.get("pools") or (), status.get("pools") or ()),
            *unit_events(context.records_before, records, observed),
            *own_data_events(before.get("units") or (), status.get("units") or ()),
            *host_events(read_hosts(before), context.hosts),
        ]

    goodput = context.observed.job.status.get("goodput")
    write = write_status(
        context.observed,
        status | ({"goodput": goodput} if goodput is not None else {}),
        context.now,
        may_wait=may_wait,
        of_units=of_units,
    )
    if write.action is None:
        return write
    over = recorded_end(context.observed.job.status) is not None
    shapes = {name: pool.shape for name, pool in context.pools.items()}
    training = on_record(context.observed.job.status, ConditionType.TRAINING)
    served = training is None or training["reason"] not in _SYNCER_SILENT
    now = account(
        goodput, context.records_before, records, context.observed.report, context.now, shapes=shapes, counts=not over, served=served
    )
    return replace(write, action=replace(write.action, status={**write.action.status, "goodput": now}))


_SYNCER_SILENT = frozenset(reason.value for reason in TrainingReason if reason.concern is Concern.SYNCER)


def may_wait(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> bool:
    """Whether a later status can record the same. It can if a later reconcile still finds all pods of each attempt whose end `records` has
    for the first time, and these pods say how it ended. An operator that dies before the write relies on the same."""
    for name, record in records.items():
        known = context.records_before[name].ended_attempt if name in context.records_before else 0
        if record.ended_attempt > known:
            pods = [pod for pod in context.learners.get(name, ()) if known < pod.attempt <= record.ended_attempt]
            if len({pod.attempt for pod in pods}) < record.ended_attempt - known or not all(pod.ended for pod in pods):
                return False
    return True


def worth_writing(old: Mapping[str, Any], new: dict[str, Any], now: float, interval: float) -> tuple[dict[str, Any] | None, float | None]:
    """Return (status to write or None, when to write or None). If only figures changed, they wait until `interval` seconds have passed
    since the last write."""
    last = (old.get("progress") or {}).get("updatedAt")
    if last is not None and "progress" in new:
        new["progress"]["updatedAt"] = last
    old = _ours(old)
    if old == new:
        return None, None
    due = parse_timestamp(last) + interval if last else now
    if now < due and _essence(old) == _essence(new):
        return None, due
    if "progress" in new:
        new["progress"]["updatedAt"] = format_timestamp(now)
    return new, None


PART_FIGURES = (
    "tokens",
    "tokensPerSecond",
    "weight",
    "mergeShare",
    "roundTripSeconds",
    "receivedBytesPerSecond",
    "sentBytesPerSecond",
    "receivedBytes",
    "sentBytes",
    "lastHeard",
)
"""Fields of a part that change with every outer step."""
_USE_OF_PART = ("acceleratorHours", "productiveShare")
"""Fields that a part counts itself."""
_OUR_CONDITIONS = frozenset(ConditionType)
_UNIT_FIGURES = frozenset(KEYS.values())


def _ours(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status without conditions that others have added."""
    conditions = status.get("conditions") or ()
    ours = [condition for condition in conditions if condition["type"] in _OUR_CONDITIONS]
    return status if len(ours) == len(conditions) else {**status, "conditions": ours}


def _of_others(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conditions that others have added. The operator writes them back, as many as the CRD has room for beside its own; their messages
    may be as long as its own."""
    foreign = [condition for condition in status.get("conditions") or () if condition["type"] not in _OUR_CONDITIONS]
    return [
        {**condition, "message": clip_bytes(condition.get("message") or "", TEXT_LIMIT)}
        for condition in foreign[: MAX_CONDITIONS - len(ConditionType)]
    ]


def _essence(status: Mapping[str, Any]) -> dict[str, Any]:
    """The status without the figures that change with every outer step or every snapshot."""
    units = [{k: v for k, v in unit.items() if k not in _UNIT_FIGURES} for unit in status.get("units") or ()]
    pools = [{k: v for k, v in pool.items() if k not in POOL_FIGURES} for pool in status.get("pools") or ()]
    outside = _without_tokens(status.get("outside"))
    parts = [
        {
            **{k: v for k, v in each.items() if k not in (*PART_FIGURES, *_USE_OF_PART)},
            "units": _without_tokens(each.get("units")),
        }
        for each in status.get("parts") or ()
    ]
    home = {k: v for k, v in (status.get("home") or {}).items() if k != "lastHeard"}
    rest = {key: value for key, value in status.items() if key not in ("progress", "model", "outside", "parts", "home")}
    retain = (status.get("model") or {}).get("retain")
    return {**rest, "units": units, "pools": pools, "outside": outside, "parts": parts, "home": home, "retain": retain}


def _without_tokens(units: Iterable[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    return [{key: value for key, value in unit.items() if key != "tokens"} for unit in units or ()]
