"""When a job is over: what is on record, when nobody is left who could train, and how long it stays then. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diloco_operator.api import conditions as c
from diloco_operator.api import names
from diloco_operator.api.conditions import TERMINAL
from diloco_operator.api.job import UnitState
from diloco_operator.kube.timestamps import parse_timestamp
from diloco_operator.plan import Delete
from diloco_operator.reconcile.children.syncer import JobEnd
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.scaling import possible_units


def finished(status: Mapping[str, Any]) -> bool:
    """Complete or Failed is on record."""
    return _ended_at(status) is not None


def _ended_at(status: Mapping[str, Any]) -> float | None:
    for condition in status.get("conditions") or ():
        if condition["type"] in TERMINAL and condition["status"] == "True":
            return parse_timestamp(condition["lastTransitionTime"])
    return None


def quorum_lost(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> JobEnd | None:
    """Failed, when fewer units than the quorum can ever contribute again; None while there is hope."""
    failed = [r for r in records.values() if r.state is UnitState.FAILED and r.template_hash == context.hashes.get(r.pool)]
    quorum = context.spec.training.quorum
    if not failed or context.finishing or context.spec.suspend or possible_units(context, records) >= quorum:
        return None
    layout = all(r.reason == c.UNIT_REFUSED_LAYOUT for r in failed)
    reason = c.REASON_LAYOUT_REFUSED if layout else c.REASON_RESTARTS_EXHAUSTED
    last = max(failed, key=lambda r: (r.since or 0.0, r.name))
    text = (
        f"{len(failed)} {'unit has' if len(failed) == 1 else 'units have'} been given up, the rest cannot reach training.quorum {quorum}; "
        f"{last.name}: {last.message}. The last snapshot is kept on volume {names.volume_claim_name(context.observed.job.name)} as long as "
        "the job exists"
    )
    return JobEnd(False, reason, text)


def time_to_live(context: ReconcileContext) -> tuple[Delete | None, float | None]:
    """The job's own deletion once ttlSecondsAfterFinished has passed, or when that will be."""
    ttl = context.spec.ttl_seconds_after_finished
    ended = _ended_at(context.observed.job.status)
    if ttl is None or ended is None:
        return None, None
    job = context.observed.job
    if context.now < ended + ttl:
        return None, ended + ttl
    why = f"ttlSecondsAfterFinished {ttl} s have passed"
    return Delete(names.DILOCO_JOBS, job.namespace, job.name, job.uid, why=why), None
