"""What a reconcile decides and what a job is allotted, in one line each, for the log at level debug. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from diloco.wording import and_more

from diloco_operator.allotment import Allotted
from diloco_operator.plan import Plan
from diloco_operator.reconcile import ObservedState


def observed_line(observed: ObservedState) -> str:
    """Say what a reconcile has seen."""
    job, report = observed.job, observed.report
    phases = Counter(pod.phase for pod in observed.pods)
    pods = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items())) or "none"
    last_report = f"step {report.t}" if report is not None else "none"
    revoked = f"; revoked: {', '.join(sorted(observed.allotted.revoked))}" if observed.allotted.revoked else ""
    return f"generation {job.generation}; pods: {pods}; report of the syncer: {last_report}{revoked}"


def decided_line(plan: Plan) -> str:
    return "; ".join(_done(plan)) or "nothing"


def _done(plan: Plan) -> Iterator[str]:
    creates = [f"{create.resource.kind} {create.obj['metadata']['name']}" for create in plan.creates]
    if creates:
        yield f"create {and_more(creates[:1], len(creates))}"
    if plan.certificates:
        yield f"issue {sum(len(wanted.leaves) for wanted in plan.certificates)} certificates"
    for patch in plan.patches[:_SHOWN]:
        yield f"patch {patch.resource.kind} {patch.name}"
    for delete in plan.deletes[:_SHOWN]:
        yield f"delete {delete.resource.kind} {delete.name} ({delete.why})"
    if unnamed := len(plan.patches[_SHOWN:]) + len(plan.deletes[_SHOWN:]):
        yield f"{unnamed} more"
    if plan.pod_checks:
        yield f"ask whether pods of {', '.join(check.pool for check in plan.pod_checks)} are admitted"
    if plan.status is not None:
        yield f"write status {plan.status.status.get('state', '')}"
    if plan.request is not None and (wanted := {pool.name: pool.wanted for pool in plan.request.pools if pool.wanted}):
        yield f"want slices: {', '.join(f'{count} of {pool}' for pool, count in wanted.items())}"
    if plan.requeue_after is not None:
        yield f"look again in {plan.requeue_after:.1f} s"


_SHOWN = 4
"""Writes of one kind that are named; a job may have hundreds."""


def allotted_line(result: Allotted) -> str:
    parts = [f"{len(slices)} free for pool {pool}" for pool, slices in result.granted.items() if slices]
    parts += [f"{unit} leaves for {winner}" for unit, winner in sorted(result.revoked.items())]
    if result.checks:
        parts.append(f"asks about pods of {', '.join(sorted(result.checks))}")
    if result.prepares:
        parts.append("is to make what its units share")
    if result.kept_for_minimum:
        parts.append(f"{len(result.kept_for_minimum)} free stay for its minimum")
    return "; ".join(parts) or "nothing"
