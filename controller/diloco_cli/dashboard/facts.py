"""What the pages show: jobs now and over the time in which they were seen, and the slices of the fleet. Pure.

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
"""Seconds between two samples: 720 reach back an hour."""


class Sample(NamedTuple):
    """Figures of a job from one time on, until the next sample."""

    at: float
    """Seconds since the epoch."""
    tokens_per_second: float
    contributing: int
    desired: int
    stalest: int
    """Staleness of the stalest unit that trains, in outer steps."""


@dataclass(slots=True)
class Samples:
    """Samples of a job over the last hour."""

    kept: deque[Sample] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES))

    def add(self, sample: Sample) -> None:
        """Append a sample. It replaces the last one if that came too soon after its own predecessor."""
        if len(self.kept) > 1 and self.kept[-1].at - self.kept[-2].at < _SAMPLES_APART:
            self.kept.pop()
        self.kept.append(sample)

    def since(self, began: float) -> list[Sample]:
        """Return the samples from `began` on, and forget those before. The last of these counts from `began`: a job is as its status has it
        until the next write."""
        while len(self.kept) > 1 and self.kept[1].at <= began:
            self.kept.popleft()
        return [sample._replace(at=max(began, sample.at)) for sample in self.kept]


def sample_of(view: JobView, now: float) -> Sample:
    """`now` is in seconds since the epoch."""
    training = [unit.staleness for unit in view.status.units if unit.state is UnitState.TRAINING]
    learners, speed = view.status.learners, view.status.progress.tokens_per_second
    return Sample(now, speed, learners.contributing, learners.desired, max(training, default=0))


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What pages show of a job."""

    view: JobView
    spec: Mapping[str, Any]
    """The spec as the API server has it."""
    events: Sequence[Obj]
    """Events about the job."""
    samples: Sequence[Sample]
    history: JobHistory
    now: float
    followed: bool = True
    """False if the page shows the job at one time only."""

    @property
    def quorum(self) -> int:
        """How many contributions an outer step waits for."""
        return int((self.spec.get("training") or {}).get("quorum", 1))

    def ranks_per_host(self, pool: str) -> int:
        """How many processes a unit of this pool has on each host."""
        return next((int(spec.get("processesPerHost") or 1) for spec in self.spec.get("pools") or () if spec["name"] == pool), 1)


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """What pages about more than one job show."""

    jobs: Sequence[JobView]
    """Jobs, sorted by namespace and name."""
    slices: Mapping[SlicePlace, SliceNumbers] | None
    """None if nodes cannot be read."""
    notes: Sequence[str]
    """Sentences about what could not be read."""
    places: Mapping[JobKey, Mapping[str, Place]] = field(default_factory=dict)
    """By job and pool, among all jobs of the cluster that wait for hardware. Empty if not all can be read."""
    sees_others: bool = False
    """Whether the pods of others are known, and so which slices are free."""
    quotas: Sequence[Allowance] = ()
    unseen: Sequence[str] = ()
    """Sentences about what could not be read of the hardware's use."""
    now: float = 0.0
    """Seconds since the epoch."""


class SlicePlace(NamedTuple):
    """Slices of one kind in one zone, which are counted together."""

    kind: str
    zone: str
    """The failure domain. "" for nodes without the label of a zone."""


@dataclass(slots=True)
class SliceNumbers:
    total: int = 0
    used: int = 0
    """Slices that units of the shown jobs have."""
    others: int = 0
    """Slices that other pods use."""
    unusable: int = 0
    """Slices of the rest that take no unit now: not ready, cordoned, or with an announced disruption."""
    avoided: int = 0
    """Slices with a host that a shown job avoids. They are in one of the other counts, too."""

    @property
    def free(self) -> int:
        """Slices that would take a unit now, as far as nodes and pods tell."""
        return self.total - self.used - self.others - self.unusable


def slices_of(inventory: Inventory, jobs: Iterable[JobView], uses: Iterable[PodUse], now: float) -> dict[SlicePlace, SliceNumbers]:
    """Count the slices of the fleet by kind and failure domain. `uses` are the pods that are bound to nodes."""
    views = list(jobs)
    taken = Counter(name for view in views for unit in view.status.units for name in unit.slice.split(GROUP_SEPARATOR) if name)
    avoided = {host.node for view in views for host in view.status.hosts if host.avoided_until is not None and host.avoided_until > now}
    devices: dict[str, set[str]] = {}
    for use in uses:
        devices.setdefault(use.node, set()).update(name for name, amount in use.requests.devices if amount)
    counts: dict[SlicePlace, SliceNumbers] = {}
    for slice_ in inventory.every_slice():
        kind = slice_.kind
        size = f" ({kind.chips_per_host} on a host)" if kind.chips_per_host and not kind.topology else ""
        numbers = counts.setdefault(SlicePlace(f"{kind.accelerator} {kind.topology}".rstrip() + size, slice_.locality[0]), SliceNumbers())
        numbers.total += 1
        if slice_.name in taken:
            numbers.used += 1
        elif any(CATALOGUE[kind.accelerator].resource in devices.get(host.node, ()) for host in slice_.hosts):
            numbers.others += 1
        elif not inventory.usable(slice_):
            numbers.unusable += 1
        if any(host.node in avoided for host in slice_.hosts):
            numbers.avoided += 1
    return dict(sorted(counts.items()))
