"""Why a pool does not have more units, in human-readable words: every slice that was passed over gets its reason. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from diloco_operator.api.job import Locality
from diloco_operator.api.reasons import PoolReason, UnitReason
from diloco_operator.fleet.locality import Domain
from diloco_operator.fleet.slices import Fleet, Slice, SliceCounts
from diloco_operator.fleet.use import first_and_more
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.placement.matching import SliceRequirements
from diloco_operator.placement.request import JobRequest, PoolOutcome, PoolRequest

_MAX_NAMED = 3
"""Zones, network blocks, hosts or jobs that a message names one by one."""
_MAX_CHECKED = 1000
"""Free slices that are checked to count those that do not fit; an explanation must not cost more than the placement."""


def pool_outcome(
    job: JobRequest,
    pool: PoolRequest,
    fleet: Fleet,
    requirements: SliceRequirements,
    placed: int,
    *,
    job_room: int,
    own: int,
    left: Mapping[Domain, int],
) -> PoolOutcome:
    """`own`: slices of this shape that the job itself has. `left`: of each domain of which a unit needs one, slices that are still free."""
    if pool.switched_off:
        text = f"pool {pool.name} is switched off: its learners.max is 0"
        return PoolOutcome(job.key, pool.name, placed, PoolReason.SWITCHED_OFF, text)
    if placed + pool.reserved >= pool.max:
        text = f"pool {pool.name} has all of the {_units(pool.max + pool.given_up)} that it may have"
        if pool.given_up:
            text += f"; {pool.given_up} of them given up, see the units' messages"
        return PoolOutcome(job.key, pool.name, placed, PoolReason.AT_MAXIMUM, text)
    if job_room <= 0:
        text = f"the job has the {_units(job.max)} of learners.max; pool {pool.name} has {placed}"
        return PoolOutcome(job.key, pool.name, placed, PoolReason.JOB_AT_MAXIMUM, text)
    missing = len(pool.units) - placed
    if missing <= 0:
        return PoolOutcome(job.key, pool.name, placed, "", "")
    needed = min(missing, pool.max - pool.reserved - placed, job_room)
    start = f"pool {pool.name} needs {needed} more {'slice' if needed == 1 else 'slices'} of {pool.shape}"
    counts = fleet.counts(pool.shape)
    if counts.total == 0:
        text = f"{start}; the fleet has no such nodes" + _other_devices(counts)
        return PoolOutcome(job.key, pool.name, placed, PoolReason.NO_MATCHING_NODES, text)
    parts: list[str] = []
    if own:
        parts.append(f"{own} of this job")
    if counts.reserved > own:
        parts.append(f"{counts.reserved - own} reserved by other jobs or by pods that are still ending")
    if counts.unusable_count:
        more = counts.unusable_count - len(counts.unusable)
        parts.append(f"{counts.unusable_count} unusable: " + ", ".join(counts.unusable) + (f" and {more} more" if more else ""))
    if counts.used:
        verb = "is" if counts.used == 1 else "are"
        by = first_and_more(counts.used_by, counts.used_by_count)
        parts.append(f"{counts.used} of {counts.total} slices {verb} used by other pods: {by}")
    parts += _free_elsewhere(pool, fleet, requirements)
    if pool.shape.slots > 1 and (together := _with_ungranted(fleet, requirements, left)):
        parts.append(_too_few_together(pool, together))
    return PoolOutcome(job.key, pool.name, placed, PoolReason.NO_FREE_SLICE, f"{start}; the fleet has {counts.total}" + _list(parts))


def _free_elsewhere(pool: PoolRequest, fleet: Fleet, requirements: SliceRequirements) -> list[str]:
    """Free slices that the pool cannot use, or that are kept for other jobs."""
    possible = requirements._replace(avoided=frozenset())
    avoided: list[Slice] = []
    unwanted, small, example = 0, 0, ""
    kept: Counter[str] = Counter()
    offered = ((slice_, "") for slice_ in fleet.free(pool.shape))
    for slice_, winner in itertools.islice(itertools.chain(offered, fleet.kept(pool.shape)), _MAX_CHECKED):
        if requirements.fits(slice_):
            kept[winner] += bool(winner)
        elif pool.avoided and possible.fits(slice_):
            avoided.append(slice_)
        elif not possible.admits(slice_):
            unwanted += 1
        else:
            small += 1
            example = example or fleet.shortage(slice_, requirements.needs)
    found = [f"{kept.total()} free, but kept for {_jobs(kept)}"] if kept.total() else []
    found += [_avoided(pool, avoided)] if avoided else []
    found += [f"{unwanted} free, but not fitting: {_requirements(pool, requirements)}"] if unwanted else []
    return [*found, f"{small} free, but too small: {example}"] if small else found


def _jobs(kept: Counter[str]) -> str:
    """Jobs (keys) and how many slices are kept for each."""
    found = [(f"{'/'.join(job.split('/')[:2])} ({count})") for job, count in kept.most_common() if count]
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return f"{'job' if len(found) == 1 else 'jobs'} {', '.join(found[:_MAX_NAMED])}{more}"


def _with_ungranted(fleet: Fleet, requirements: SliceRequirements, left: Mapping[Domain, int]) -> Mapping[Domain, int]:
    """`left`, and the slices that are free and kept for nobody, because they are too few for one unit; the domain with most first."""
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


def _requirements(pool: PoolRequest, requirements: SliceRequirements) -> str:
    found = [f"capacity {pool.capacity}"] if pool.capacity else []
    found += [f"label {key}={value}" for key, value in sorted(pool.node_selector.items())]
    found += ["the node affinity of its template"] if pool.affinity is not None else []
    found += ["labels of a network block"] if requirements.locality is Locality.BLOCK else []
    return "the pool asks for " + (", ".join(found) if found else "no taints that its template does not tolerate")


def _avoided(pool: PoolRequest, slices: Sequence[Slice]) -> str:
    """Slices with hosts on which attempts of the job failed."""
    nodes = sorted({host.node for slice_ in slices for host in slice_.hosts if host.node in pool.avoided})
    named = [f"{node} until {format_timestamp(pool.avoided[node])}" for node in nodes[:_MAX_NAMED]]
    more = f" and {len(nodes) - _MAX_NAMED} more" if len(nodes) > _MAX_NAMED else ""
    return f"{len(slices)} free, but avoided because attempts failed there: {', '.join(named)}{more}"


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
    hosts = "1 host has" if counts.other_devices_count == 1 else f"{counts.other_devices_count} hosts have"
    return f"; {hosts} other devices than the template requests: {', '.join(counts.other_devices)}"


def _units(count: int) -> str:
    return f"{count} unit" if count == 1 else f"{count} units"


def _list(parts: list[str]) -> str:
    return (": " + "; ".join(parts)) if parts else ""
