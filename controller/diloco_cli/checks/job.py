"""Checks of one job: its status, nodes for its pools, and whether learners reach its syncer. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diloco.wording import plural
from diloco_operator.api import names
from diloco_operator.api.job import load
from diloco_operator.api.reasons import lack_of
from diloco_operator.api.spec import Pool
from diloco_operator.api.state import JobState
from diloco_operator.api.status import ConditionStatus
from diloco_operator.fleet import shape_of

from diloco_cli.checks.model import Check, Facts, Finding, error, ok, read, warning
from diloco_cli.checks.nodes import inventory_of
from diloco_cli.checks.storage import unscheduled, waits_for_hardware
from diloco_cli.idle_accelerators import idle_accelerators

_WELL = {JobState.TRAINING, JobState.COMPLETE, JobState.SUSPENDED}
_BAD = {JobState.FAILED, JobState.NOT_ACCEPTED}
_NOTHING: Mapping[str, Any] = {}


def conditions(facts: Facts) -> Iterator[Finding]:
    """Quote the job's status."""
    assert facts.job is not None, "a check of a job"
    name, status = facts.job["metadata"]["name"], load(facts.job).status
    if status.state is None:
        yield error(Check.JOB, facts.job_name, "no operator has seen it: it has no status", "see the line about the operator")
        return
    condition = next(
        (
            candidate
            for candidate in status.conditions
            if candidate.reason == status.reason and candidate.status is not ConditionStatus.UNKNOWN
        ),
        None,
    )
    message = f"{status.state}: {status.reason}{': ' + condition.message if condition is not None and condition.message else ''}"
    if status.state in _WELL:
        yield ok(Check.JOB, facts.job_name, message)
    else:
        make = error if status.state in _BAD else warning
        yield make(Check.JOB, facts.job_name, message, f"kubectl diloco explain {name} -n {facts.namespace}")


def pools(facts: Facts) -> Iterator[Finding]:
    """Find whether the cluster has nodes for each pool, what keeps units from them, and which accelerators its template leaves idle."""
    assert facts.job is not None, "a check of a job"
    job = load(facts.job)
    inventory = inventory_of(facts.of(names.NODES), read(facts.config).disruption_signals, facts.now, facts.gpu_slices)
    pool_status = {pool.name: pool for pool in job.status.pools}
    for pool in job.spec.pools:
        where = f"pool {pool.name}"
        try:
            shape = shape_of(pool)
        except ValueError as problem:
            yield error(Check.POOLS, where, str(problem), "name a kind of the catalogue, or add it to the operator's catalogue file")
            continue
        if (idle := idle_accelerators(pool)) is not None:
            yield warning(Check.POOLS, where, idle.message, idle.remedy)
        slice_shape = shape.slice_shape
        counts = inventory.counts(slice_shape)
        status = pool_status.get(pool.name)
        if status is not None and lack_of(status.reason).of_slices:
            yield warning(
                Check.POOLS, where, f"{status.reason}: {status.message}", "; ".join(status.remedies or ()) or "wait for other jobs"
            )
        elif pool.cluster:
            yield ok(Check.POOLS, where, f"its nodes are in cluster {pool.cluster}: doctor there looks at them")
        elif not counts.total and not pool.provisioning.brings_nodes and pool.learners.max:
            devices = f", but {counts.other_devices_count} with {', '.join(counts.other_devices)}" if counts.other_devices else ""
            odd = "; ".join(f"{oddity.nodes} with {oddity.what}" for oddity in counts.odd)
            message = f"no node is one of {slice_shape}{devices}{f' ({odd})' if odd else ''}"
            yield error(Check.POOLS, where, message, _remedy(pool, bool(counts.other_devices)))
        elif counts.unusable_count:
            unusable = f"{counts.unusable_count} of {plural(counts.total, 'slice')} of {slice_shape} cannot be used"
            message = f"{unusable}: {'; '.join(counts.unusable)}"
            yield warning(Check.POOLS, where, message, "repair or uncordon these nodes")
        else:
            yield ok(Check.POOLS, where, f"the cluster has {plural(counts.total, 'slice')} of {slice_shape}")


def _remedy(pool: Pool, other_devices: bool) -> str:
    if other_devices:
        return "request exactly these devices in the template, or add those that no unit is for to incidentalResources of the chart"
    return f"add nodes of {pool.accelerator}, see the lines about nodes and drivers; or say who brings them (provisioning.mode)"


def syncer(facts: Facts) -> Iterator[Finding]:
    """Find whether the syncer runs and learners reach it."""
    assert facts.job is not None, "a check of a job"
    if facts.is_part:
        yield _reached(facts, "syncer at home", "check the way to its cluster: extraEgress in the chart's values, and firewalls")
        return
    name = names.syncer_pod_name(facts.job["metadata"]["name"])
    where = f"pod {name}"
    pod = next((candidate for candidate in facts.of(names.PODS) if candidate["metadata"]["name"] == name), None)
    if pod is None and waits_for_hardware(facts.job):
        yield ok(Check.SYNCER, where, "it comes with the first slice of the job")
        return
    if pod is None:
        yield warning(Check.SYNCER, where, "it does not exist now", "see what the line about the job says")
        return
    status: Mapping[str, Any] = pod.get("status") or _NOTHING
    if status.get("phase") != "Running":
        why = unscheduled(pod) or _waiting(status)
        yield warning(
            Check.SYNCER,
            where,
            f"it is {status.get('phase') or 'Pending'}{': ' + why if why else ''}",
            f"kubectl describe pod {name} -n {facts.namespace}",
        )
        return
    yield _reached(facts, where, "check the namespace's NetworkPolicies, the cluster's DNS, and a service mesh")


def _reached(facts: Facts, where: str, remedy: str) -> Finding:
    reach = read(facts.reach) if facts.reach is not None else None
    if reach is None:
        message = "whether learners reach it was not checked: no pod of a learner runs"
        return warning(Check.SYNCER, where, message, "look again once one does")
    if reach.error:
        return error(Check.SYNCER, where, f"pod {reach.pod} does not reach it at {reach.address}: {reach.error}", remedy)
    return ok(Check.SYNCER, where, f"pod {reach.pod} reaches it at {reach.address}")


def _waiting(status: Mapping[str, Any]) -> str:
    """Why the container does not run, or "" if the status does not tell."""
    states = [(container.get("state") or {}).get("waiting") or {} for container in status.get("containerStatuses") or ()]
    return next(
        (
            f"{container.get('reason')}{': ' + str(container['message']) if container.get('message') else ''}"
            for container in states
            if container
        ),
        "",
    )
