"""Why a pool does not have more units, in human-readable words: every slice that was passed over gets its reason. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from diloco.wording import plural

from diloco_operator.api.job import Locality
from diloco_operator.api.reasons import PoolReason, UnitReason
from diloco_operator.fleet.locality import Domain
from diloco_operator.fleet.slices import Fleet, Holder, Slice, SliceCounts
from diloco_operator.fleet.use import first_and_more
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.placement.matching import SliceRequirements
from diloco_operator.placement.request import JobRequest, PoolOutcome, PoolRequest

_MAX_NAMED = 3
"""Zones, network blocks, hosts, taints or jobs that a message names one by one."""
_MAX_CHECKED = 1000
"""Free slices that are checked to count those that do not fit; an explanation must not cost more than the placement."""
WAITS = "waits for a slice; the message of pool {} says why"
"""Message of a unit without a slice, for the name of its pool: the explanation stands once, in the pool's message."""


def pool_outcome(
    job: JobRequest,
    pool: PoolRequest,
    fleet: Fleet,
    requirements: SliceRequirements,
    placed: int,
    *,
    job_room: int,
    own: Mapping[str, int],
    left: Mapping[Domain, int],
) -> PoolOutcome:
    """`own`: first nodes of all slices that the job keeps or gets, with the accelerators that it takes there. `left`: of each domain of
    which a unit needs one, slices that are still free."""
    if pool.switched_off:
        text = f"pool {pool.name} is switched off: its learners.max is 0"
        return PoolOutcome(job.key, pool.name, placed, PoolReason.SWITCHED_OFF, text)
    if placed + pool.reserved >= pool.max:
        return PoolOutcome(job.key, pool.name, placed, PoolReason.AT_MAXIMUM, _at_maximum(pool, placed))
    if job_room <= 0:
        text = f"the job has the {plural(job.max, 'unit')} of learners.max; pool {pool.name} has {placed}"
        return PoolOutcome(job.key, pool.name, placed, PoolReason.JOB_AT_MAXIMUM, text)
    missing = len(pool.units) - placed
    if missing <= 0:
        return PoolOutcome(job.key, pool.name, placed, "", "")
    needed = min(missing, pool.max - pool.reserved - placed, job_room)
    lacks = f"pool {pool.name} needs {plural(needed, 'more slice', 'more slices')} of {pool.shape}"
    counts = fleet.counts(pool.shape, job.key, own)
    if counts.total == 0:
        why = "the fleet has no such nodes" + _other_devices(counts)
        return PoolOutcome(job.key, pool.name, placed, PoolReason.NO_MATCHING_NODES, f"{lacks}; {why}", lacks, why)
    parts = _taken(job, counts)
    parts += _free_elsewhere(pool, fleet, requirements, in_accelerators=counts.hosts > 0)
    if pool.shape.slots > 1 and (together := _with_ungranted(fleet, requirements, left)):
        parts.append(_too_few_together(pool, together))
    if counts.scattered:
        parts.append(_scattered(pool, counts))
    there = f"{plural(counts.total, 'accelerator')} on {plural(counts.hosts, 'host')}" if counts.hosts else counts.total
    why = f"the fleet has {there}" + _list(parts)
    return PoolOutcome(job.key, pool.name, placed, PoolReason.NO_FREE_SLICE, f"{lacks}; {why}", lacks, why)


def _at_maximum(pool: PoolRequest, placed: int) -> str:
    """Of a pool that may have no more units, because of those that run, end, have ended or were given up."""
    limit = plural(pool.max + pool.given_up, "unit")
    if not pool.reserved and not pool.given_up:
        return f"pool {pool.name} has the {limit} of its learners.max"
    parts = [f"{placed} placed"]
    parts += [plural(pool.reserved, "drains or has completed", "drain or have completed")] if pool.reserved else []
    if pool.given_up:
        parts.append(f"{pool.given_up} given up, see {'its message' if pool.given_up == 1 else 'their messages'}")
    return f"pool {pool.name} may have {limit}: {', '.join(parts)}"


# --- slices that are not free ----------------------------------------------------------------------------------------------
def _taken(job: JobRequest, counts: SliceCounts) -> list[str]:
    """Who or what has the slices that are not free; each slice counts once."""
    parts = [f"{counts.own} of this job"] if counts.own else []
    if counts.ending:
        parts.append(f"{counts.ending} that pods of this job have not left yet")
    if counts.holders:
        parts.append(f"{counts.held} held by {_holders(job, counts.holders)}")
    if counts.unusable_count:
        more = counts.unusable_count - len(counts.unusable)
        parts.append(f"{counts.unusable_count} unusable: " + ", ".join(counts.unusable) + (f" and {more} more" if more else ""))
    if counts.used:
        parts.append(f"{counts.used} used by other pods: {first_and_more(counts.used_by, counts.used_by_count)}")
    return parts


def _holders(job: JobRequest, holders: Sequence[Holder]) -> str:
    """`job research/llama (1 of them surplus, beyond its minimum; equal priority)`."""
    if len(holders) == 1:
        return f"job {_job(holders[0].job)}{_claim(job, holders[0])}"
    named = [f"{holder.slices} by {_job(holder.job)}{_claim(job, holder)}" for holder in holders[:_MAX_NAMED]]
    rest = holders[_MAX_NAMED:]
    if rest:
        named.append(f"{sum(holder.slices for holder in rest)} by {len(rest)} more")
    return f"{len(holders)} jobs: {', '.join(named)}"


def _claim(job: JobRequest, holder: Holder) -> str:
    """What of its slices the holder could give, and how its priority stands to that of the job that waits."""
    if holder.surplus is None:
        return ""
    parts = [f"it leaves {holder.leaving}"] if holder.leaving else []
    if holder.surplus:
        of = "" if holder.slices == 1 else "all " if holder.surplus == holder.slices else f"{holder.surplus} of them "
        parts.append(f"{of}surplus, beyond its minimum")
        equal = holder.priority == job.priority
        parts.append("equal priority" if equal else f"its priority is {holder.priority}, this job's {job.priority}")
    elif holder.leaving < holder.slices:
        parts.append("none surplus")
    return f" ({'; '.join(parts)})"


def _job(key: str) -> str:
    """Namespace and name."""
    return "/".join(key.split("/")[:2])


# --- slices that are free --------------------------------------------------------------------------------------------------
def _free_elsewhere(pool: PoolRequest, fleet: Fleet, requirements: SliceRequirements, *, in_accelerators: bool) -> list[str]:
    """Free slices that the pool cannot use, or that are kept for other jobs."""

    def many(slices: Iterable[Slice]) -> int:
        return sum(slice_.kind.chips_per_host if in_accelerators else 1 for slice_ in slices)

    possible = requirements._replace(avoided=frozenset())
    avoided: list[Slice] = []
    unwanted: list[Slice] = []
    tainted: list[Slice] = []
    small, example = 0, ""
    kept: Counter[str] = Counter()
    offered = ((slice_, "") for slice_ in fleet.free(pool.shape))
    for slice_, winner in itertools.islice(itertools.chain(offered, fleet.kept(pool.shape)), _MAX_CHECKED):
        if requirements.fits(slice_):
            kept[winner] += many((slice_,)) if winner else 0
        elif pool.avoided and possible.fits(slice_):
            avoided.append(slice_)
        elif not possible.admits(slice_):
            (tainted if possible.attracts(slice_) else unwanted).append(slice_)
        else:
            small += many((slice_,))
            example = example or fleet.shortage(slice_, requirements.needs)
    found = [f"{kept.total()} free, but kept for {_jobs(kept)}"] if kept.total() else []
    found += [_avoided(pool, avoided, many(avoided))] if avoided else []
    found += [f"{many(unwanted)} free, but not fitting: {_unmet(pool, possible, unwanted)}"] if unwanted else []
    found += [_tainted(possible, tainted, many(tainted))] if tainted else []
    return [*found, f"{small} free, but too small: {example}"] if small else found


def _scattered(pool: PoolRequest, counts: SliceCounts) -> str:
    """What is left of hosts and too little for a unit."""
    shown = ", ".join(f"{node}: {count}" for node, count in counts.scattered[:_MAX_NAMED])
    more = f" and {len(counts.scattered) - _MAX_NAMED} more" if len(counts.scattered) > _MAX_NAMED else ""
    free = sum(count for _, count in counts.scattered)
    return f"{free} free, but a unit needs {pool.shape.chips_per_host} on one host ({shown}{more})"


def _jobs(kept: Counter[str]) -> str:
    """Jobs (keys) and how many slices are kept for each."""
    found = [f"{_job(job)} ({count})" for job, count in kept.most_common() if count]
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return f"{'job' if len(found) == 1 else 'jobs'} {', '.join(found[:_MAX_NAMED])}{more}"


def _with_ungranted(fleet: Fleet, requirements: SliceRequirements, left: Mapping[Domain, int]) -> Mapping[Domain, int]:
    """`left`, and the slices that are free and kept for no job, because they are too few for one unit; the domain with most first."""
    found = Counter(left)
    for slice_, winner in itertools.islice(fleet.kept(requirements.shape), _MAX_CHECKED):
        if not winner and requirements.fits(slice_):
            found[requirements.domain(slice_)] += 1
    return dict(found.most_common())


def unplaced_reason(outcome: PoolOutcome) -> UnitReason:
    """The reason of a unit without a slice, from that of its pool."""
    if outcome.reason in (PoolReason.SWITCHED_OFF, PoolReason.AT_MAXIMUM, PoolReason.JOB_AT_MAXIMUM):
        return UnitReason.SCALED_DOWN
    return UnitReason.NO_CAPACITY


def _unmet(pool: PoolRequest, requirements: SliceRequirements, slices: Sequence[Slice]) -> str:
    """What the pool asks for and at least one of the slices does not have."""
    asked = [(f"capacity {pool.capacity}", SliceRequirements(pool.shape, pool.capacity))] if pool.capacity else []
    labels = sorted(pool.node_selector.items())
    asked += [(f"label {key}={value}", SliceRequirements(pool.shape, "", frozenset(((key, value),)))) for key, value in labels]
    if pool.affinity is not None:
        asked.append(("the node affinity of its template", SliceRequirements(pool.shape, "", affinity=pool.affinity)))
    if requirements.locality is not Locality.ANY:
        one = "a zone" if requirements.locality is Locality.ZONE else "a network block"
        asked.append((f"labels of {one}", SliceRequirements(pool.shape, "", locality=requirements.locality)))
    return "the pool asks for " + ", ".join(text for text, part in asked if not all(part.attracts(slice_) for slice_ in slices))


def _tainted(requirements: SliceRequirements, slices: Sequence[Slice], count: int) -> str:
    """Slices that are barred by nothing but taints."""
    where: dict[str, list[str]] = {}
    for slice_ in slices:
        for taint in requirements.untolerated(slice_):
            where.setdefault(str(taint), []).append(slice_.name)
    named = [f"{taint} on {first_and_more(names[0], len(names))}" for taint, names in itertools.islice(where.items(), _MAX_NAMED)]
    more = f" and {plural(len(where) - _MAX_NAMED, 'more taint')}" if len(where) > _MAX_NAMED else ""
    return f"{count} free, but tainted, and the pool's template does not tolerate it: {', '.join(named)}{more}"


def _avoided(pool: PoolRequest, slices: Sequence[Slice], count: int) -> str:
    """Slices with hosts on which attempts of the job failed."""
    nodes = sorted({host.node for slice_ in slices for host in slice_.hosts if host.node in pool.avoided})
    named = [f"{node} until {format_timestamp(pool.avoided[node])}" for node in nodes[:_MAX_NAMED]]
    more = f" and {len(nodes) - _MAX_NAMED} more" if len(nodes) > _MAX_NAMED else ""
    return f"{count} free, but avoided because attempts failed there: {', '.join(named)}{more}"


def _too_few_together(pool: PoolRequest, left: Mapping[Domain, int]) -> str:
    """Why hosts that are free do not make a unit."""
    free = f"{sum(left.values())} free, but a unit needs {pool.shape.slots}"
    if pool.locality is Locality.ANY:
        return free
    shown = list(itertools.islice(left.items(), _MAX_NAMED))
    where = [f"{_domain(domain)}: {count}" for domain, count in shown]
    more = f"; {len(left) - len(shown)} more with fewer" if len(left) > len(shown) else ""
    one = "zone" if pool.locality is Locality.ZONE else "network block"
    return f"{free} in one {one} ({', '.join(where)}{more}), or set locality of the pool to Any"


def _domain(domain: Domain) -> str:
    zone = f"zone {domain[0]}" if domain[0] else "no zone"
    return zone if len(domain) == 1 else f"block {domain[1]} of {zone}"


def _other_devices(counts: SliceCounts) -> str:
    """Hosts that only their devices keep from a pool without accelerators."""
    if not counts.other_devices_count:
        return ""
    hosts = plural(counts.other_devices_count, "host has", "hosts have")
    return f"; {hosts} other devices than the template requests: {', '.join(counts.other_devices)}"


def _list(parts: list[str]) -> str:
    return (": " + "; ".join(parts)) if parts else ""
