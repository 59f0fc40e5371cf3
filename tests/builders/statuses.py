"""Statuses of large jobs, with the longest values that the CRD and the operator's counters allow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diloco.contract import MOST_HELD_OUT_POINTS, MOST_LOSS_POINTS, MOST_PARTS
from diloco.goodput import Use
from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.goodput import MAX_KINDS, key_of
from diloco_operator.api.losses import format_losses
from diloco_operator.api.names import MAX_ATTEMPT
from diloco_operator.api.reasons import UnitReason
from diloco_operator.api.rules import MAX_PART_UNITS
from diloco_operator.api.spec import MAX_LEARNERS, MAX_OUTSIDE, MAX_POOLS
from diloco_operator.api.status import (
    MAX_HOST_FAILURES,
    MAX_HOSTS,
    MAX_REMEDIES,
    MAX_UNSCHEDULABLE_NODES,
    HostFailure,
    HostStatus,
    Status,
    UnitState,
)
from diloco_operator.api.unit_figures import FIGURES, KEYS
from diloco_operator.kube.fields import MOST_COUNT
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord, write_unit

MOMENT = 1763640000.123
HOURS = {f"{'a' * 61}{kind:02}": 123456789.123456 for kind in range(MAX_KINDS)}
"""Accelerator-hours of as many kinds as there may be, with the longest names."""


def _a_unit(index: int, state: UnitState, *, message: str, hosts: int, host: int, failures: int, refused: int) -> dict[str, Any]:
    parked = state is UnitState.PENDING
    idle = parked or state in (UnitState.FAILED, UnitState.COMPLETED)
    record = UnitStatusRecord(
        name=f"fifteen-letters-{index % 1000 + 1000}",
        pool="fifteen-letters",
        state=state,
        slice="" if idle else "+".join(f"{index:x}-{number:x}".ljust(host, "n") for number in range(hosts)),
        attempt=999_999,
        ended_attempt=999_999,
        failed_attempt=999_999,
        last_failure="" if parked else message[:500],
        restarts=999_999,
        reason=UnitReason.SCALED_DOWN if parked else max(UnitReason, key=len),
        message=message,
        since=MOMENT,
        failures=(MOMENT,) * failures,
        ended_at=MOMENT,
        not_before=None if idle else MOMENT,
        unschedulable=999_999,
        grantor_said=message if parked else "",
        recover_seconds=1234567.123,
        template_hash="1.263f907b9a28deec",
        figures={
            **{KEYS[name]: figure.largest for name, figure in FIGURES.items()},
            "refused": {f"{number}" * 32: 10**9 for number in range(refused)},
        },
    )
    return write_unit(record)


def _a_host(message: str) -> dict[str, Any]:
    failure = HostFailure(unit="fifteen-letters-1000", attempt=999_999, at=MOMENT, reason=max(UnitReason, key=len))
    host = HostStatus(
        node="n" * 253,
        uid="u" * 36,
        failures=(failure,) * MAX_HOST_FAILURES,
        message=message,
        avoided_until=MOMENT,
        avoidances=999,
    )
    return host.written()


def a_large_status(
    running: int, idle: int, *, message: str = "m", hosts: int = 1, host: int = 63, limit: int = 9, refused: int = 0, others: str = "m"
) -> dict[str, Any]:
    """Return a status of `running` units that back off and `idle` ones that were given up or scaled down. `hosts`: hosts of each running
    unit, with names of `host` characters. `limit`: learners.restart.limit, up to which each unit failed. `refused`: reasons of the syncer.
    `others`: the message of every condition and pool, and each remedy."""
    moment = "2026-11-22T01:58:01.343Z"
    states = [UnitState.BACKING_OFF] * running + [UnitState.FAILED, UnitState.PENDING] * (idle // 2) + [UnitState.FAILED] * (idle % 2)
    condition = {"status": "Unknown", "reason": "r" * 40, "message": others, "observedGeneration": 10**6, "lastTransitionTime": moment}
    pool: dict[str, Any] = {"name": "fifteen-letters", "placed": 1024, "contributing": 1024, "reason": "NoMatchingNodes", "message": others}
    pool |= {"waitingSince": moment, "tokensPerSecond": 123456e6, "measuredSeconds": 599.999, "value": 15.95}
    pool["remedies"] = [others] * MAX_REMEDIES
    return {
        "observedGeneration": 10**6,
        "conditions": [{"type": kind.value, **condition} for kind in ConditionType],
        "progress": {
            "step": 1,
            "steps": 10**9,
            "tokens": 10**18,
            "tokensPerSecond": 1e9,
            "loss": 1.123456,
            "updatedAt": moment,
            "losses": format_losses((10**18 + index, -1.2345e-300) for index in range(MOST_LOSS_POINTS)),
            "heldOutLosses": format_losses((10**18 + index, -1.2345e-300) for index in range(MOST_HELD_OUT_POINTS)),
        },
        "goodput": {
            "productiveShare": 0.1234,
            "interruptions": MOST_COUNT,
            "unitSeconds": {key_of(use): 1234567890.123 for use in Use},
            "acceleratorHours": HOURS,
            "measuredAt": moment,
        },
        "learners": dict.fromkeys(("desired", "placed", "contributing", "min", "max"), MAX_LEARNERS),
        "units": [
            _a_unit(i, state, message=message, hosts=hosts, host=host, failures=limit + 1, refused=refused)
            for i, state in enumerate(states)
        ],
        "unschedulableNodes": [{"name": "n" * 253, "since": moment}] * MAX_UNSCHEDULABLE_NODES,
        "hosts": [_a_host(others[:1024]) for _ in range(MAX_HOSTS)],
        "selector": "s" * 1024,
        "poolSummary": "s" * 1024,
        "pools": [pool] * MAX_POOLS,
        "parts": [_a_part(others)] * MOST_PARTS,
        "outside": [{**_a_reported_unit("o" * 32), "message": others}] * MAX_OUTSIDE,
    }


def _a_reported_unit(name: str) -> dict[str, Any]:
    return {"name": name, "state": "Disconnected", "since": "2026-11-20T12:00:00.000Z", "attempt": MAX_ATTEMPT, "tokens": MOST_COUNT}


def _a_part(message: str) -> dict[str, Any]:
    moment = "2026-11-20T12:00:00.000Z"
    units = [_a_reported_unit(f"fifteen-letters-{index}") for index in range(MAX_PART_UNITS)]
    figures = {"tokens": MOST_COUNT, "tokensPerSecond": 1234567890.1, "weight": 0.123, "lastHeard": moment, "silentSince": moment}
    figures |= {"mergeShare": 0.12, "roundTripSeconds": 12.3456}
    figures |= dict.fromkeys(("receivedBytesPerSecond", "sentBytesPerSecond", "receivedBytes", "sentBytes"), MOST_COUNT)
    made = {"namespace": "n" * 63, "state": "Suspended", "message": message, "acceleratorHours": HOURS, "productiveShare": 0.1234}
    return {"name": "p" * 32, "units": units, "contributing": 32, **made, **figures}


def a_state(conditions: Mapping[str, str]) -> dict[str, str]:
    """`state` as an operator writes it beside these conditions, type -> status; empty without conditions."""
    true = {kind for kind, status in conditions.items() if status == "True"}
    first = next((kind for kind in ("Complete", "Failed", "Suspended", "Degraded", "Training") if kind in true), "Starting")
    return {"state": first} if conditions else {}


def dump_status(status: Status) -> dict[str, Any]:
    """The typed status as it stands in `.status`; absent optional fields are left out."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
