"""What the pages show: jobs as they are and as they were seen, and the slices of the fleet. Pure.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from diloco_local.record.history import JobHistory
from diloco_operator.accelerators import CATALOGUE
from diloco_operator.api.names import JobKey
from diloco_operator.api.status import UnitState
from diloco_operator.fleet import Inventory, PodUse
from diloco_operator.fleet.slices import GROUP_SEPARATOR
from diloco_operator.kube.client import Obj

from diloco_cli.dashboard.quotas import Allowance
from diloco_cli.view_model import JobView
from diloco_cli.waiting_line import Place

_MOST_SAMPLES = 720
_SAMPLES_APART = 5.0
"""Seconds: the samples reach back an hour."""


class Sample(NamedTuple):
    """Figures of a job at one time."""

    at: float
    """Seconds since the epoch."""
    tokens_per_second: float
    contributing: int
    desired: int
    stalest: int
    """Outer steps, of the unit that trains whose last contribution is the oldest."""


@dataclass(slots=True)
class Samples:
    """The figures of a job over the last hour in which they were seen."""

    kept: deque[Sample] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES))

    def add(self, sample: Sample) -> None:
        """Take the newest one. The one before gives way if it came soon after its own predecessor."""
        if len(self.kept) > 1 and self.kept[-1].at - self.kept[-2].at < _SAMPLES_APART:
            self.kept.pop()
        self.kept.append(sample)


def sample_of(view: JobView, now: float) -> Sample:
    """Return the figures of a job as its status has them."""
    training = [unit.staleness for unit in view.status.units if unit.state is UnitState.TRAINING]
    learners, speed = view.status.learners, view.status.progress.tokens_per_second
    return Sample(now, speed, learners.contributing, learners.desired, max(training, default=0))


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One job."""

    view: JobView
    spec: Mapping[str, Any]
    """As the API server has it."""
    events: Sequence[Obj]
    """About it."""
    samples: Sequence[Sample]
    history: JobHistory
    now: float
    followed: bool = True
    """Whether the page follows the job; otherwise it shows one look at it."""

    @property
    def quorum(self) -> int:
        """Return how many contributions an outer step waits for."""
        return int((self.spec.get("training") or {}).get("quorum", 1))

    def ranks_per_host(self, pool: str) -> int:
        """Return how many processes units of a pool run as on each host."""
        return next((int(each.get("processesPerHost") or 1) for each in self.spec.get("pools") or () if each["name"] == pool), 1)


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """What all pages about more than one job show."""

    jobs: Sequence[JobView]
    """By namespace and name."""
    slices: Mapping[SlicePlace, SliceNumbers] | None
    """None: nodes cannot be read."""
    notes: Sequence[str]
    """What could not be read."""
    places: Mapping[JobKey, Mapping[str, Place]] = field(default_factory=dict)
    """By job and pool, among all jobs of the cluster that wait for hardware; {}: not all of them can be read."""
    sees_others: bool = False
    """Whether the pods of others are known, and so which slices are free."""
    quotas: Sequence[Allowance] = ()
    unseen: Sequence[str] = ()
    """What could not be read of the hardware's use."""


class SlicePlace(NamedTuple):
    """Slices that are counted together."""

    kind: str
    zone: str
    """The failure domain; "": nodes without the label of a zone."""


@dataclass(slots=True)
class SliceNumbers:
    total: int = 0
    used: int = 0
    """Those that units of the shown jobs have."""
    others: int = 0
    """Those that pods beside these units use."""
    unusable: int = 0
    """Those of the rest that take no unit now: not ready, cordoned, or a disruption is announced."""
    avoided: int = 0
    """Those with a host that a shown job avoids."""

    @property
    def free(self) -> int:
        """Return how many take a unit now, as far as the nodes and their pods say."""
        return self.total - self.used - self.others - self.unusable


def slices_of(inventory: Inventory, jobs: Iterable[JobView], uses: Iterable[PodUse], now: float) -> dict[SlicePlace, SliceNumbers]:
    """Count the slices of the fleet by kind and failure domain. `uses`: the pods that are bound to nodes."""
    views = list(jobs)
    taken = Counter(name for view in views for unit in view.status.units for name in unit.slice.split(GROUP_SEPARATOR) if name)
    avoided = {host.node for view in views for host in view.status.hosts if host.avoided_until is not None and host.avoided_until > now}
    devices: dict[str, set[str]] = {}
    for use in uses:
        devices.setdefault(use.node, set()).update(name for name, amount in use.requests.devices if amount)
    found: dict[SlicePlace, SliceNumbers] = {}
    for each in inventory.every_slice():
        kind = each.kind
        size = f" ({kind.chips_per_host} on a host)" if kind.chips_per_host and not kind.topology else ""
        numbers = found.setdefault(SlicePlace(f"{kind.accelerator} {kind.topology}".rstrip() + size, each.locality[0]), SliceNumbers())
        numbers.total += 1
        if each.name in taken:
            numbers.used += 1
        elif any(CATALOGUE[kind.accelerator].resource in devices.get(host.node, ()) for host in each.hosts):
            numbers.others += 1
        elif not inventory.usable(each):
            numbers.unusable += 1
        numbers.avoided += any(host.node in avoided for host in each.hosts)
    return dict(sorted(found.items()))
