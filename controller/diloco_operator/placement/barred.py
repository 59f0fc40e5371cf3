"""Why free slices are no use to a pool, and what would help: taints, labels, avoided hosts, too little room. Pure.

See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from diloco.wording import and_more, plural

from diloco_operator.api.spec import Locality
from diloco_operator.fleet.locality import Domain
from diloco_operator.fleet.slices import Fleet, Slice, SliceCounts
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.placement.request import JobRequest, PoolRequest
from diloco_operator.placement.requirements import SliceRequirements

MAX_NAMED = 3
"""How many zones, network blocks, hosts, taints or jobs a message names one by one."""
NEVER = 1_000_000
"""More units than any job has."""
_MAX_CHECKED = 1000
"""How many free slices are checked for an explanation, which must not cost more than the placement."""


class Part(NamedTuple):
    """One cause."""

    text: str
    help: str = ""
    """What a person can do about it. "" if only more hardware helps, or it ends by itself."""


@dataclass(slots=True)
class FreeSlices:
    """The free slices of a pool's shape, by what keeps its units from them. At most `_MAX_CHECKED` are looked at."""

    pool: PoolRequest
    idle: list[Slice] = field(default_factory=list)
    """Slices that fit and are kept for no job: they are too few."""
    kept: dict[str, list[Slice]] = field(default_factory=dict)
    """Key of another job -> slices that fit, but are kept for that job."""
    avoided: list[Slice] = field(default_factory=list)
    """Slices that would fit if no host were avoided."""
    mismatched: list[Slice] = field(default_factory=list)
    """Slices without the capacity, labels or locality that the pool asks for."""
    tainted: list[Slice] = field(default_factory=list)
    too_small: list[Slice] = field(default_factory=list)

    @classmethod
    def of(cls, pool: PoolRequest, fleet: Fleet, taken: Collection[str]) -> FreeSlices:
        """Sort the free slices. `taken` has the keys of slices that units have just got."""
        free, requirements = cls(pool), pool.requirements
        # An avoided host comes back by itself, so it must not count as lacking a label or room.
        possible = requirements._replace(avoided=frozenset())
        offered = ((slice_, "") for slice_ in fleet.free(pool.shape, pool.name))
        for slice_, winner in itertools.islice(itertools.chain(offered, fleet.kept(pool.shape, pool.name)), _MAX_CHECKED):
            if slice_.key in taken:
                continue
            if requirements.fits(slice_) and winner:
                free.kept.setdefault(winner, []).append(slice_)
            elif requirements.fits(slice_):
                free.idle.append(slice_)
            elif requirements.avoided and possible.fits(slice_):
                free.avoided.append(slice_)
            elif possible.admits(slice_):
                free.too_small.append(slice_)
            elif possible.attracts(slice_):
                free.tainted.append(slice_)
            else:
                free.mismatched.append(slice_)
        return free

    def units(self, *more: Slice) -> int:
        """Return how many units the idle slices would make together with the slices `more`."""
        shape = self.pool.shape
        if shape.slots == 1:
            each = max(1, shape.chips_per_host) if shape.divides else 0
            return sum(slice_.kind.chips_per_host // each if each else 1 for slice_ in (*self.idle, *more))
        domains = Counter(self.pool.requirements.domain(slice_) for slice_ in (*self.idle, *more))
        return sum(count // shape.slots for count in domains.values())

    @property
    def takes_any(self) -> bool:
        """Whether the pool can use any slice of its shape, wherever it is and whatever its labels are."""
        requirements = self.pool.requirements
        return not (
            requirements.capacity
            or requirements.node_selector
            or requirements.affinity is not None
            or requirements.locality is not Locality.ANY
        )


def units_at_once(job: JobRequest, free_for: Callable[[str], FreeSlices], pool: PoolRequest) -> int:
    """Return how many units a job without units must get from this pool at once, if its other pools get what is free now. `NEVER` if its
    minimum does not fit whatever this pool gets."""
    others = [other for other in job.pools if other is not pool]
    # Two pools of one accelerator may count on the same free slices, so only others count.
    apart = [other for other in others if other.shape.accelerator != pool.shape.accelerator]
    available = {other.name: min(other.max, free_for(other.name).units()) for other in apart}
    least = max(1, pool.min, job.min - sum(available.values()))
    return NEVER if least > pool.max or any(available.get(other.name, 0) < other.min for other in others) else least


def free_elsewhere(job: JobRequest, free: FreeSlices, fleet: Fleet, *, in_accelerators: bool, least: int) -> list[Part]:
    """Return why free slices are no use to the pool. The pool must get `least` units at once: what would give it fewer is no remedy."""

    def many(slices: Iterable[Slice]) -> int:
        return sum(slice_.kind.chips_per_host if in_accelerators else 1 for slice_ in slices)

    def part(slices: Sequence[Slice], text: str, help: str) -> Part:
        return Part(text, help if free.units(*slices) >= least else "")

    pool = free.pool
    possible = free.pool.requirements._replace(avoided=frozenset())
    parts = []
    if free.kept:
        kept = Counter({winner: many(slices) for winner, slices in free.kept.items()})
        every = [*itertools.chain.from_iterable(free.kept.values())]
        parts.append(part(every, f"{kept.total()} free, but kept for {_jobs(kept)}", stronger_claim(job)))
    # For units of several hosts, `too_few_together` says this by domain.
    if 0 < free.units() < least and pool.shape.slots == 1:
        parts.append(Part(f"{many(free.idle)} free, but too few for its minimum, which it gets as a whole"))
    if free.avoided:
        parts.append(part(free.avoided, *_avoided(pool, free.avoided, many(free.avoided))))
    if free.mismatched:
        parts.append(part(free.mismatched, *_mismatched(pool, possible, free.mismatched, many(free.mismatched))))
    if free.tainted:
        parts.append(part(free.tainted, *_tainted(possible, free.tainted, many(free.tainted))))
    if free.too_small:
        # A host that units have in parts may lack no resource: it is too small only for a unit that takes it whole.
        shortages = (fleet.shortage(slice_, possible.needs) for slice_ in free.too_small)
        shortage, count = next(filter(None, shortages), ""), many(free.too_small)
        if pool.words.needs_added:
            text = f"{count} free, but too small for what the API server makes of the template's requests: {shortage}"
            parts.append(part(free.too_small, text, "set requests in the pool's template, or change the namespace's LimitRange"))
        else:
            parts.append(part(free.too_small, f"{count} free, but too small: {shortage}", "request less in the pool's template"))
    return parts


def scattered(pool: PoolRequest, counts: SliceCounts) -> Part:
    """Return the accelerators that are left on hosts with too few for a unit."""
    shown = and_more([f"{node}: {count}" for node, count in counts.scattered[:MAX_NAMED]], len(counts.scattered))
    free = sum(count for _, count in counts.scattered)
    text = f"{free} free, but a unit needs {pool.shape.chips_per_host} on one host ({shown})"
    return Part(text, f"a pool with acceleratorsPerHost {counts.scattered[0][1]} or less")


def too_few_together(free: FreeSlices, least: int) -> Part | None:
    """Return why free hosts do not make a unit. None if there are none, or if they make one. For `least` see `free_elsewhere`."""
    pool = free.pool
    together = Counter(free.pool.requirements.domain(slice_) for slice_ in free.idle).most_common()
    if pool.shape.slots == 1 or not together or together[0][1] >= pool.shape.slots:
        return None
    text = f"{len(free.idle)} free, but a unit needs {pool.shape.slots}"
    if pool.requirements.locality is Locality.ANY:
        return Part(text)
    shown = together[:MAX_NAMED]
    where = [f"{_domain(domain)}: {count}" for domain, count in shown]
    more = f"; {len(together) - len(shown)} more with fewer" if len(together) > len(shown) else ""
    scope = "zone" if pool.requirements.locality is Locality.ZONE else "network block"
    return Part(f"{text} in one {scope} ({', '.join(where)}{more})", _ANYWHERE if len(free.idle) // pool.shape.slots >= least else "")


_ANYWHERE = "set locality of the pool to Any, if the program stands a slower network"


def nearby(pool: PoolRequest, counts: SliceCounts) -> Part | None:
    """Return what the fleet has of the accelerator in other topologies and sizes: `3 free tpu-v5p slices are 2x2x1, a unit needs 2x2x2`.
    None if it has nothing."""
    shape, slices = pool.shape, counts.nearby
    if not slices:
        return None
    shown, rest = slices[:MAX_NAMED], slices[MAX_NAMED:]
    more = f", {sum(each.free or each.total for each in rest)} have {len(rest)} more forms" if rest else ""
    if not shape.topology:
        sizes = ", ".join(f"{plural(each.total, 'host has', 'hosts have')} {each.kind.chips_per_host}" for each in shown)
        smaller = f"a pool with acceleratorsPerHost {shown[0].kind.chips_per_host}"
        return Part(f"of {shape.accelerator} {sizes}{more}, a unit needs {shape.chips_per_host} on each host", smaller)
    same = any(each.kind.topology == shape.topology for each in shown)

    def form(topology: str, chips: int) -> str:
        return f"{topology} with {chips} chips on each host" if same else topology

    first, *others = shown
    is_form = form(first.kind.topology, first.kind.chips_per_host)
    if first.free:
        named = [f"{first.free} free {shape.accelerator} {'slice is' if first.free == 1 else 'slices are'} {is_form}"]
    else:
        named = [f"{first.total} {shape.accelerator} {'slice is' if first.total == 1 else 'slices are'} {is_form}, none of them free"]
    named += [f"{each.free} of {each.total} free {form(each.kind.topology, each.kind.chips_per_host)}" for each in others]
    text = f"{', '.join(named)}{more}, a unit needs {form(shape.topology, shape.chips_per_host)}"
    return Part(text, f"a pool with {'chipsPerHost ' + str(first.kind.chips_per_host) if same else 'topology ' + first.kind.topology}")


def stronger_claim(job: JobRequest) -> str:
    """Say how the job can get slices that other jobs have beyond their minimum."""
    return f"raise {'learners.min or ' if job.min < job.max else ''}the priority of this job"


def job_name(key: str) -> str:
    """Return namespace/name of the job with this key."""
    return "/".join(key.split("/")[:2])


def _jobs(kept: Counter[str]) -> str:
    """Return jobs, and how many slices are kept for each: `jobs a/b (3), c/d (1)`."""
    named = [f"{job_name(job)} ({count})" for job, count in kept.most_common() if count]
    return f"{'job' if len(named) == 1 else 'jobs'} {and_more(named[:MAX_NAMED], len(named))}"


def _mismatched(pool: PoolRequest, requirements: SliceRequirements, slices: Sequence[Slice], count: int) -> Part:
    """Return the wishes of the pool that at least one of the slices does not meet, each with what the first of these has instead."""
    unmet: list[tuple[str, str]] = []
    helps: list[str] = []

    def check(asked: str, part: SliceRequirements, has: Callable[[Slice], str], help: str = "") -> None:
        # Each wish by itself: if a slice lacks two labels, a person who adds only one would still wait.
        lacking = next((slice_ for slice_ in slices if not part.attracts(slice_)), None)
        if lacking is not None:
            what = has(lacking)
            unmet.append((asked, f" ({lacking.name} {what})" if what else ""))
            helps.append(help or f"leave out {asked}")

    shape = pool.shape
    if requirements.capacity:
        check(f"capacity {requirements.capacity}", SliceRequirements(shape, requirements.capacity), lambda slice_: f"is {slice_.capacity}")
    for key, value in sorted(requirements.node_selector):
        part = SliceRequirements(shape, "", frozenset(((key, value),)))
        added = key in pool.words.added_labels
        asked = f"label {key}={value}{', which the API server adds to its pods' if added else ''}"
        check(asked, part, partial(_label, key=key), f"label hosts {key}={value}, or change {_ADDS_LABELS}" if added else "")
    if requirements.affinity is not None:
        check("the node affinity of its template", SliceRequirements(shape, "", affinity=requirements.affinity), lambda _: "")
    if requirements.locality is not Locality.ANY:
        scope = "a zone" if requirements.locality is Locality.ZONE else "a network block"
        check(f"labels of {scope}", SliceRequirements(shape, "", locality=requirements.locality), lambda _: "", _ANYWHERE)
    text = f"{count} free, but not fitting: the pool asks for {', '.join(asked + has for asked, has in unmet)}"
    # A person who mends only the labels of a tainted host would still wait.
    tainted = _taints(requirements, slices)
    also = f"; also {tainted.text}" if tainted.text else ""
    return Part(text + also, ", ".join([*helps, *([tainted.help] if tainted.help else [])]))


_ADDS_LABELS = "the namespace's default node selector (scheduler.alpha.kubernetes.io/node-selector) or the webhook that adds it"


def _label(slice_: Slice, key: str) -> str:
    """Return what the slice has for this label."""
    return f"has {key}={slice_.labels[key]}" if key in slice_.labels else f"has no label {key}"


def _tainted(requirements: SliceRequirements, slices: Sequence[Slice], count: int) -> Part:
    """Say that only taints bar these slices."""
    tainted = _taints(requirements, slices)
    return Part(f"{count} free, but {tainted.text}", tainted.help)


def _taints(requirements: SliceRequirements, slices: Sequence[Slice]) -> Part:
    """Return the taints of slices that the pool does not tolerate. The text is "" if there are none."""
    where: dict[str, list[str]] = {}
    for slice_ in slices:
        for taint in requirements.untolerated(slice_):
            where.setdefault(str(taint), []).append(slice_.name)
    if not where:
        return Part("")
    named = [f"{taint} on {and_more(names[:1], len(names))}" for taint, names in itertools.islice(where.items(), MAX_NAMED)]
    more = f" and {plural(len(where) - MAX_NAMED, 'more taint')}" if len(where) > MAX_NAMED else ""
    text = f"tainted, and the pool's template does not tolerate it: {', '.join(named)}{more}"
    return Part(text, f"tolerate {', '.join(itertools.islice(where, MAX_NAMED))} in the pool's template")


def _avoided(pool: PoolRequest, slices: Sequence[Slice], count: int) -> Part:
    """Say that these slices have hosts on which attempts of the job failed."""
    nodes = sorted({host.node for slice_ in slices for host in slice_.hosts if host.node in pool.requirements.avoided})
    named = [f"{node} until {format_timestamp(pool.words.avoided[node])}" for node in nodes[:MAX_NAMED]]
    text = f"{count} free, but avoided because attempts failed there: {and_more(named, len(nodes))}"
    return Part(text, f"repair {'it' if len(nodes) == 1 else 'these nodes'}, or wait until then")


def _domain(domain: Domain) -> str:
    zone = f"zone {domain[0]}" if domain[0] else "no zone"
    return zone if len(domain) == 1 else f"block {domain[1]} of {zone}"
