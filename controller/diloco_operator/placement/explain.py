"""Why a pool does not have more units, in words for people: every slice that was passed over gets its reason. Pure.

See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from diloco.wording import and_more, plural

from diloco_operator.api.reasons import PoolReason, UnitReason
from diloco_operator.fleet.slices import Fleet, Holder, OddNodes, SliceCounts
from diloco_operator.placement.barred import (
    MAX_NAMED,
    FreeSlices,
    Part,
    free_elsewhere,
    job_name,
    nearby,
    scattered,
    stronger_claim,
    too_few_together,
    units_at_once,
)
from diloco_operator.placement.request import JobRequest, PoolOutcome, PoolRequest, Remedy

_MOST_HELPS = 3
_MORE_NODES = Remedy("more nodes", is_more_nodes=True)
WAITS = "waits for a slice; the message of pool {} says why"
"""The message of a unit without a slice, to be formatted with the name of its pool. The explanation stands once, in the pool's message."""


def pool_outcome(
    job: JobRequest,
    pool: PoolRequest,
    fleet: Fleet,
    placed: int,
    *,
    job_room: int,
    job_nodes: Mapping[str, int],
    free_for: Callable[[str], FreeSlices],
) -> PoolOutcome:
    """Return the outcome of a pool. A remedy is named only if it is sure to help: other jobs may come first, and a job without units gets
    its minimum as a whole.

    Args:
        placed: units of the pool that have slices.
        job_room: how many more units the job may have.
        job_nodes: first node of each slice that the job keeps or gets -> accelerators that it takes there.
        free_for: returns the free slices of a pool that no unit of the job got.
    """
    if pool.words.switched_off:
        text = f"pool {pool.name} is switched off: its learners.max is 0"
        return PoolOutcome(pool.name, placed, PoolReason.SWITCHED_OFF, text)
    if placed + pool.draining_or_completed >= pool.max:
        return PoolOutcome(pool.name, placed, PoolReason.AT_MAXIMUM, _at_maximum(pool, placed))
    if job_room <= 0:
        text = f"the job has the {plural(job.max, 'unit')} of learners.max; pool {pool.name} has {placed}"
        helps = () if placed else (Remedy("raise learners.max, or learners.min of the pool, which comes before other pools"),)
        return PoolOutcome(pool.name, placed, PoolReason.JOB_AT_MAXIMUM, text, helps=helps)
    missing = len(pool.units) + len(job.startable(pool)) - placed + (0 if job.places_chosen else pool.asked)
    if missing <= 0:
        return PoolOutcome(pool.name, placed, "")
    needed = min(missing, pool.max - pool.draining_or_completed - placed, job_room)
    summary = f"pool {pool.name} needs {plural(needed, 'more slice', 'more slices')} of {pool.shape}"
    counts = fleet.counts(pool.shape, job.job, job_nodes)
    if counts.total == 0:
        parts = [Part("the fleet has no such nodes"), *_instead(pool, counts)]
        return _short(pool, placed, PoolReason.NO_MATCHING_NODES, summary, "; ".join(part.text for part in parts), parts)
    free = free_for(pool.name)
    least = 1 if job_nodes else units_at_once(job, free_for, pool)
    parts = _taken(job, free, fleet, counts, least, starts=not job_nodes)
    parts += free_elsewhere(job, free, fleet, in_accelerators=counts.hosts > 0, least=least)
    if (together := too_few_together(free, least)) is not None:
        parts.append(together)
    if counts.scattered:
        parts.append(scattered(pool, counts))
    if (near := nearby(pool, counts)) is not None:
        parts.append(near)
    parts += map(_odd, counts.odd)
    fleet_size = f"{plural(counts.total, 'accelerator')} on {plural(counts.hosts, 'host')}" if counts.hosts else counts.total
    why = f"the fleet has {fleet_size}" + (f": {'; '.join(part.text for part in parts)}" if parts else "")
    return _short(pool, placed, PoolReason.NO_FREE_SLICE, summary, why, parts)


def _short(pool: PoolRequest, placed: int, reason: PoolReason, summary: str, why: str, parts: Sequence[Part]) -> PoolOutcome:
    """Return the outcome of a pool that would have more units if it had more slices."""
    helps = [Remedy(text) for text in dict.fromkeys(part.help for part in parts if part.help)][:_MOST_HELPS]
    return PoolOutcome(pool.name, placed, reason, summary, why, (*helps, _MORE_NODES))


def with_nodes_for_all(job: JobRequest, outcomes: Sequence[PoolOutcome]) -> list[PoolOutcome]:
    """Let each pool of a job without units name the other pools that need more nodes too: the job gets its minimum as a whole."""
    short = {outcome.pool for outcome in outcomes if _MORE_NODES in outcome.helps}
    most = {pool.name: pool.max for pool in job.pools}
    result = []
    for outcome in outcomes:
        others = [pool.name for pool in job.pools if pool.name in short and (pool.min or job.min > most[outcome.pool])]
        if (also := [name for name in others if name != outcome.pool]) and outcome.pool in short:
            text = f"more nodes, also for {'pool' if len(also) == 1 else 'pools'} {', '.join(also)}"
            helps = tuple(Remedy(text, is_more_nodes=True) if each == _MORE_NODES else each for each in outcome.helps)
            outcome = replace(outcome, helps=helps)
        result.append(outcome)
    return result


def with_cause(outcome: PoolOutcome, cause: str) -> PoolOutcome:
    if outcome.why:
        return replace(outcome, why=f"{outcome.why}; {cause}")
    return replace(outcome, summary=f"{outcome.summary}; {cause}")


def while_asked(outcome: PoolOutcome, reason: PoolReason, summary: str, asked: str) -> PoolOutcome:
    """Return the outcome of a pool whose grantor was asked for nodes. `summary` says what it needs, `asked` what was asked of whom."""
    why = f"{outcome.why}; {asked}" if outcome.why else asked
    helps = tuple(each for each in outcome.helps if not each.is_more_nodes) if outcome.why else ()
    return replace(outcome, reason=reason, summary=summary, why=why, helps=helps)


def pods_refused(outcome: PoolOutcome, units: Sequence[str]) -> PoolOutcome:
    """Say that slices are not what the pool lacks: the API server refuses pods of these units."""
    they = and_more(units[:1], len(units))
    return replace(
        outcome, reason=PoolReason.PODS_REFUSED, why=f"the API server refuses pods of {they}, see the message of the unit", helps=()
    )


def cannot_start(outcome: PoolOutcome) -> PoolOutcome:
    """Say that the pool takes no slices, whether there are some or not."""
    return replace(outcome, reason=PoolReason.CANNOT_START, why="the job cannot start until a person acts, see Training", helps=())


def with_remedy(outcome: PoolOutcome, remedy: str) -> PoolOutcome:
    return replace(outcome, helps=(*outcome.helps, Remedy(remedy)))


def _at_maximum(pool: PoolRequest, placed: int) -> str:
    """Say that a pool may have no more units, and how many run, drain, have completed or were given up."""
    out, given_up = pool.draining_or_completed, pool.words.given_up
    limit = plural(pool.max + given_up, "unit")
    if not out and not given_up:
        return f"pool {pool.name} has the {limit} of its learners.max"
    parts = [f"{placed} placed"]
    parts += [plural(out, "drains or has completed", "drain or have completed")] if out else []
    if given_up:
        parts.append(f"{given_up} given up, see {'its message' if given_up == 1 else 'their messages'}")
    return f"pool {pool.name} may have {limit}: {', '.join(parts)}"


# --- slices that are not free ----------------------------------------------------------------------------------------------
def _taken(job: JobRequest, free: FreeSlices, fleet: Fleet, counts: SliceCounts, least: int, *, starts: bool) -> list[Part]:
    """Return who or what has the slices that are not free; each slice counts once. The pool must get `least` units at once."""

    def enough(slices: int) -> bool:
        return free.takes_any and not free.kept and free.units() + slices // _slices_of_unit(free.pool, counts) >= least

    def helps(slices: int) -> bool:
        return enough(slices) and not fleet.wanted_before(free.pool.shape, starts=starts)

    parts = [Part(f"{counts.of_job} of this job")] if counts.of_job else []
    if counts.ending:
        parts.append(Part(f"{counts.ending} that pods of this job have not left yet", "wait until they have ended"))
    if counts.holders:
        parts.append(Part(f"{counts.held} held by {_holders(job, counts.holders)}", _help_of_holders(job, counts, enough, helps)))
    if counts.unusable_count:
        text = f"{counts.unusable_count} unusable: {and_more(counts.unusable, counts.unusable_count)}"
        parts.append(Part(text, "repair or uncordon the unusable nodes" if helps(counts.unusable_count) else ""))
    if counts.used:
        remedy = "end these pods, or wait until they have ended" if helps(counts.used) else ""
        parts.append(Part(f"{counts.used} used by other pods: {_users(counts)}", remedy))
    return parts


def _users(counts: SliceCounts) -> str:
    """Return `team-a/train-0 and 3 more (2 of 4 hosts of v5p-0: v5p-0-1 by team-a/train-0, v5p-0-3 by team-a/train-1)`."""
    text, hosts = and_more([counts.used_by], counts.used_by_count), counts.used_hosts
    if hosts is None:
        return text
    named = and_more([f"{node} by {pod}" for node, pod in hosts.users], hosts.used)
    return f"{text} ({hosts.used} of {hosts.hosts} hosts of {hosts.slice} {'is' if hosts.used == 1 else 'are'} used: {named})"


def _slices_of_unit(pool: PoolRequest, counts: SliceCounts) -> int:
    """Return what a unit takes, in the unit of `counts`: slices or accelerators."""
    return max(1, pool.shape.hosts * pool.shape.chips_per_host if counts.hosts else pool.shape.slots)


def _help_of_holders(job: JobRequest, counts: SliceCounts, enough: Callable[[int], bool], helps: Callable[[int], bool]) -> str:
    """Say what can be done about the holders. "" if slices come by themselves, or nothing is sure to help. `enough` tells whether a number
    of slices more is enough, `helps` also whether no other job gets them first."""
    holders = counts.holders
    if any(holder.leaving for holder in holders):
        return ""
    surplus = sum(holder.surplus or 0 for holder in holders)
    if surplus and enough(surplus):
        # Whichever jobs come first now: with a higher priority this one comes before them.
        return stronger_claim(job)
    if not helps(counts.held):
        return ""
    if len(holders) == 1:
        return f"wait until job {job_name(holders[0].job)} ends, or suspend it"
    if enough(holders[-1].slices):  # the last holder has the fewest
        return "wait until one of these jobs ends, or suspend it"
    return "wait until enough of these jobs have ended, or suspend them"


def _holders(job: JobRequest, holders: Sequence[Holder]) -> str:
    """Return `job research/llama (1 of them surplus, beyond its minimum; equal priority)`."""
    if len(holders) == 1:
        return f"job {job_name(holders[0].job)}{_claim(job, holders[0])}"
    named = [f"{holder.slices} by {job_name(holder.job)}{_claim(job, holder)}" for holder in holders[:MAX_NAMED]]
    rest = holders[MAX_NAMED:]
    if rest:
        named.append(f"{sum(holder.slices for holder in rest)} by {len(rest)} more")
    return f"{len(holders)} jobs: {', '.join(named)}"


def _claim(job: JobRequest, holder: Holder) -> str:
    """Say how many slices the holder leaves or could give, and how its priority compares with that of the waiting job."""
    if holder.surplus is None:
        return ""
    parts = [f"it leaves {holder.leaving}"] if holder.leaving else []
    if holder.surplus:
        if holder.slices == 1:
            of = ""
        elif holder.surplus == holder.slices:
            of = "all "
        else:
            of = f"{holder.surplus} of them "
        parts.append(f"{of}surplus, beyond its minimum")
        equal = holder.priority == job.priority
        parts.append("equal priority" if equal else f"its priority is {holder.priority}, this job's {job.priority}")
    elif holder.leaving < holder.slices:
        parts.append("none surplus")
    return f" ({'; '.join(parts)})"


# --- what there is instead -------------------------------------------------------------------------------------------------
def _instead(pool: PoolRequest, counts: SliceCounts) -> list[Part]:
    """Return what comes nearest to the shape in a fleet that has no slice of it."""
    parts = []
    if counts.other_devices_count:
        hosts = plural(counts.other_devices_count, "host has", "hosts have")
        devices = ", ".join(counts.other_devices)
        text = f"{hosts} other devices than the template requests: {devices}"
        parts.append(
            Part(text, "requests for exactly these devices in the template, or, for those that no unit is for, incidentalResources")
        )
    if (near := nearby(pool, counts)) is not None:
        parts.append(near)
    return [*parts, *map(_odd, counts.odd)]


def _odd(odd: OddNodes) -> Part:
    """Return `2 nodes have … with …, which is not in the catalogue (gpu-0 and 1 more)`."""
    text = f"{plural(odd.nodes, 'node has', 'nodes have')} {odd.what} ({and_more([odd.first], odd.nodes)})"
    return Part(text, odd.remedy)


def unplaced_reason(outcome: PoolOutcome) -> UnitReason:
    """Return the reason of a unit without a slice, by the outcome of its pool."""
    return UnitReason.NO_CAPACITY if not outcome.reason or outcome.lack.of_slices else UnitReason.SCALED_DOWN
