"""Why free slices are of no use to a pool, and what would help: taints, labels, hosts that are avoided, too little room. Pure.

See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from diloco.wording import plural

from diloco_operator.api.spec import Locality
from diloco_operator.fleet.locality import Domain
from diloco_operator.fleet.slices import Fleet, Slice, SliceCounts
from diloco_operator.fleet.use import first_and_more
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.placement.request import JobRequest, PoolRequest
from diloco_operator.placement.requirements import SliceRequirements

MAX_NAMED = 3
"""Zones, network blocks, hosts, taints or jobs that a message names one by one."""
_MAX_CHECKED = 1000
"""Free slices that are checked to count those that do not fit; an explanation must not cost more than the placement."""


class Part(NamedTuple):
    """One cause."""

    text: str
    help: str = ""
    """What a person can do about it; "": nothing but to have more hardware, or it ends by itself."""


def free_elsewhere(
    job: JobRequest, pool: PoolRequest, fleet: Fleet, requirements: SliceRequirements, *, in_accelerators: bool, least: int
) -> list[Part]:
    """Free slices that the pool cannot use, or that are kept for other jobs. `least`: units that a job without any must get together."""

    def many(slices: Iterable[Slice]) -> int:
        return sum(slice_.kind.chips_per_host if in_accelerators else 1 for slice_ in slices)

    # What only avoided hosts bar comes back by itself, so it must not count as lacking a label or room.
    possible = requirements._replace(avoided=frozenset())
    avoided: list[Slice] = []
    unwanted: list[Slice] = []
    tainted: list[Slice] = []
    small, example, idle = 0, "", 0
    kept: Counter[str] = Counter()
    offered = ((slice_, "") for slice_ in fleet.free(pool.shape, pool.name))
    for slice_, winner in itertools.islice(itertools.chain(offered, fleet.kept(pool.shape, pool.name)), _MAX_CHECKED):
        if requirements.fits(slice_):
            kept[winner] += many((slice_,)) if winner else 0
            idle += 0 if winner else many((slice_,))
        elif pool.avoided and possible.fits(slice_):
            avoided.append(slice_)
        elif not possible.admits(slice_):
            (tainted if possible.attracts(slice_) else unwanted).append(slice_)
        else:
            small += many((slice_,))
            example = example or fleet.shortage(slice_, requirements.needs)
    found = [Part(f"{kept.total()} free, but kept for {_jobs(kept)}", stronger_claim(job))] if kept.total() else []
    # `too_few_together` tells it of units of several hosts, by domain.
    if 0 < idle < least and pool.shape.slots == 1:
        found.append(Part(f"{idle} free, but too few for its minimum, which it gets as a whole"))
    found += [_avoided(pool, avoided, many(avoided))] if avoided else []
    found += [_unwanted(pool, possible, unwanted, many(unwanted))] if unwanted else []
    found += [_tainted(possible, tainted, many(tainted))] if tainted else []
    if small and pool.needs_added:
        text = f"{small} free, but too small for what the API server makes of the template's requests: {example}"
        found.append(Part(text, "set requests in the pool's template, or change the namespace's LimitRange"))
    elif small:
        found.append(Part(f"{small} free, but too small: {example}", "request less in the pool's template"))
    return found


def scattered(pool: PoolRequest, counts: SliceCounts) -> Part:
    """Return what is left of hosts and too little for a unit."""
    shown = ", ".join(f"{node}: {count}" for node, count in counts.scattered[:MAX_NAMED])
    more = f" and {len(counts.scattered) - MAX_NAMED} more" if len(counts.scattered) > MAX_NAMED else ""
    free = sum(count for _, count in counts.scattered)
    text = f"{free} free, but a unit needs {pool.shape.chips_per_host} on one host ({shown}{more})"
    return Part(text, f"a pool with acceleratorsPerHost {counts.scattered[0][1]} or less")


def too_few_together(pool: PoolRequest, left: Mapping[Domain, int]) -> Part:
    """Return why hosts that are free do not make a unit."""
    free = f"{sum(left.values())} free, but a unit needs {pool.shape.slots}"
    if pool.locality is Locality.ANY:
        return Part(free)
    shown = list(itertools.islice(left.items(), MAX_NAMED))
    where = [f"{_domain(domain)}: {count}" for domain, count in shown]
    more = f"; {len(left) - len(shown)} more with fewer" if len(left) > len(shown) else ""
    one = "zone" if pool.locality is Locality.ZONE else "network block"
    return Part(f"{free} in one {one} ({', '.join(where)}{more})", _ANYWHERE if sum(left.values()) >= pool.shape.slots else "")


_ANYWHERE = "set locality of the pool to Any, if the program stands a slower network"


def nearby(pool: PoolRequest, counts: SliceCounts) -> Part | None:
    """Return what there is of the accelerator in other topologies and sizes: `3 free tpu-v5p slices are 2x2x1, a unit needs 2x2x2`."""
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
    count = f"{first.free} free" if first.free else f"{first.total}"
    named = [f"{count} {shape.accelerator} {plural(first.free or first.total, 'slice is', 'slices are').partition(' ')[2]}"]
    is_form = form(first.kind.topology, first.kind.chips_per_host)
    named = [f"{named[0]} {is_form}{'' if first.free else ', none of them free'}"]
    named += [f"{each.free} of {each.total} free {form(each.kind.topology, each.kind.chips_per_host)}" for each in others]
    text = f"{', '.join(named)}{more}, a unit needs {form(shape.topology, shape.chips_per_host)}"
    return Part(text, f"a pool with {'chipsPerHost ' + str(first.kind.chips_per_host) if same else 'topology ' + first.kind.topology}")


def with_ungranted(pool: PoolRequest, fleet: Fleet, requirements: SliceRequirements, left: Mapping[Domain, int]) -> Mapping[Domain, int]:
    """Return `left`, and the slices that are free and kept for no job, because they are too few for one unit; the domain with most
    first."""
    found = Counter(left)
    for slice_, winner in itertools.islice(fleet.kept(pool.shape, pool.name), _MAX_CHECKED):
        if not winner and requirements.fits(slice_):
            found[requirements.domain(slice_)] += 1
    return dict(found.most_common())


def stronger_claim(job: JobRequest) -> str:
    """Say how the job gets slices that others have beyond their minimum."""
    return f"raise {'learners.min or ' if job.min < job.max else ''}the priority of this job"


def job_name(key: str) -> str:
    """Return namespace and name."""
    return "/".join(key.split("/")[:2])


def _jobs(kept: Counter[str]) -> str:
    """Return jobs (keys) and how many slices are kept for each."""
    found = [f"{job_name(job)} ({count})" for job, count in kept.most_common() if count]
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return f"{'job' if len(found) == 1 else 'jobs'} {', '.join(found[:MAX_NAMED])}{more}"


def _unwanted(pool: PoolRequest, requirements: SliceRequirements, slices: Sequence[Slice], count: int) -> Part:
    """Return what the pool asks for and at least one of the slices does not have; and what the first of these has."""
    found: list[tuple[str, str]] = []
    helps: list[str] = []

    def check(asked: str, part: SliceRequirements, has: Callable[[Slice], str], help: str = "") -> None:
        # Each wish by itself: of a slice that lacks two, a person who mends one would wait on.
        lacking = next((slice_ for slice_ in slices if not part.attracts(slice_)), None)
        if lacking is not None:
            what = has(lacking)
            found.append((asked, f" ({lacking.name} {what})" if what else ""))
            helps.append(help or f"leave out {asked}")

    shape = pool.shape
    if pool.capacity:
        check(f"capacity {pool.capacity}", SliceRequirements(shape, pool.capacity), lambda slice_: f"is {slice_.capacity}")
    for key, value in sorted(pool.node_selector.items()):
        part = SliceRequirements(shape, "", frozenset(((key, value),)))
        added = key in pool.added_labels
        asked = f"label {key}={value}{', which the API server adds to its pods' if added else ''}"
        check(asked, part, partial(_label, key=key), f"label hosts {key}={value}, or change {_ADDS_LABELS}" if added else "")
    if pool.affinity is not None:
        check("the node affinity of its template", SliceRequirements(shape, "", affinity=pool.affinity), lambda _: "")
    if requirements.locality is not Locality.ANY:
        one = "a zone" if requirements.locality is Locality.ZONE else "a network block"
        check(f"labels of {one}", SliceRequirements(shape, "", locality=requirements.locality), lambda _: "", _ANYWHERE)
    text = f"{count} free, but not fitting: the pool asks for {', '.join(asked + has for asked, has in found)}"
    # A person who mends the labels of a tainted host would wait on.
    tainted = _taints(requirements, slices)
    also = f"; also {tainted.text}" if tainted.text else ""
    return Part(text + also, ", ".join([*helps, *([tainted.help] if tainted.help else [])]))


_ADDS_LABELS = "the namespace's default node selector (scheduler.alpha.kubernetes.io/node-selector) or the webhook that adds it"


def _label(slice_: Slice, key: str) -> str:
    """Return what it has instead."""
    return f"has {key}={slice_.labels[key]}" if key in slice_.labels else f"has no label {key}"


def _tainted(requirements: SliceRequirements, slices: Sequence[Slice], count: int) -> Part:
    """Return slices that are barred by nothing but taints."""
    tainted = _taints(requirements, slices)
    return Part(f"{count} free, but {tainted.text}", tainted.help)


def _taints(requirements: SliceRequirements, slices: Sequence[Slice]) -> Part:
    """Return the taints of slices that the pool does not tolerate; the text is empty when there are none."""
    where: dict[str, list[str]] = {}
    for slice_ in slices:
        for taint in requirements.untolerated(slice_):
            where.setdefault(str(taint), []).append(slice_.name)
    if not where:
        return Part("")
    named = [f"{taint} on {first_and_more(names[0], len(names))}" for taint, names in itertools.islice(where.items(), MAX_NAMED)]
    more = f" and {plural(len(where) - MAX_NAMED, 'more taint')}" if len(where) > MAX_NAMED else ""
    text = f"tainted, and the pool's template does not tolerate it: {', '.join(named)}{more}"
    return Part(text, f"tolerate {', '.join(itertools.islice(where, MAX_NAMED))} in the pool's template")


def _avoided(pool: PoolRequest, slices: Sequence[Slice], count: int) -> Part:
    """Return slices with hosts on which attempts of the job failed."""
    nodes = sorted({host.node for slice_ in slices for host in slice_.hosts if host.node in pool.avoided})
    named = [f"{node} until {format_timestamp(pool.avoided[node])}" for node in nodes[:MAX_NAMED]]
    more = f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else ""
    text = f"{count} free, but avoided because attempts failed there: {', '.join(named)}{more}"
    return Part(text, f"repair {'it' if len(nodes) == 1 else 'these nodes'}, or wait until then")


def _domain(domain: Domain) -> str:
    zone = f"zone {domain[0]}" if domain[0] else "no zone"
    return zone if len(domain) == 1 else f"block {domain[1]} of {zone}"
