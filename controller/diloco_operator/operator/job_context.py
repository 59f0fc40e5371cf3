"""What an operator remembers of a job between two reconciles: one object for each job, made and dropped as a whole.

All of it is only in memory. A new operator begins without it and comes to the same decisions, some of them later. What is kept elsewhere
under the job's key, since others need it there too (expectations, the report stream, what autoscalers say, series of metrics), is dropped
with the context.

See docs/decisions/0030-controller-loop.md.
See docs/decisions/0031-writes.md.
See docs/decisions/0086-reading-the-api.md.
See docs/decisions/0206-before-units-leave.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from diloco_operator.allotment import AllotmentRequest
from diloco_operator.api import names
from diloco_operator.kube.malformed import MalformedObject
from diloco_operator.operator.caches import Caches, JobKey
from diloco_operator.operator.pod_answers import PodAnswers
from diloco_operator.operator.rejected_writes import RejectedWrites
from diloco_operator.timeouts import RECONCILE


# --- How long the write of a job's status may be postponed ------------------------------------------------------------
class StatusPostponement:
    """At most `seconds`, from the first postponement until the status is written."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def postpone(self, now: float) -> bool:
        """Postpone the status, again or for the first time. False: it must be written. `now`: seconds of a clock that does not go back."""
        self._since = now if self._since is None else self._since
        return now - self._since < self._seconds

    def reset(self) -> None:
        """Begin anew: the status is written, or there is nothing left to write."""
        self._since = None


# --- How often one job may be written to ------------------------------------------------------------------------------
# Each write of the operator wakes the job again. If something else changes each time what was written (an admission webhook, another
# controller, a server that shows another object), reconcile and write would repeat without end and without a pause.
BURST = 100
"""So many reconciles of a job may write without a pause: the start of a big job, or the loss of many hosts at once."""
PER_SECOND = 2.0
"""So many reconciles with writes a second are no burst, and pauses are no longer than their interval."""
_ENDLESS = 60
"""So many pauses in a row, which is half a minute, are worth a line in the log."""


class WriteLimit:
    """At most `burst` reconciles with writes at once, and `per_second` on. `now`: seconds of a clock that does not go back."""

    def __init__(self, burst: int = BURST, per_second: float = PER_SECOND) -> None:
        self._interval = 1 / per_second
        self._burst = burst * self._interval
        self._due = -math.inf
        """When all that was written would be done at the lasting rate."""
        self._pauses = 0
        """In a row."""

    def wrote(self, now: float) -> float:
        """Count a reconcile that wrote something. Returns for how many seconds the next must wait; 0: not at all."""
        self._due = max(self._due, now) + self._interval
        pause = max(0.0, self._due - now - self._burst)
        self._pauses = self._pauses + 1 if pause else 0
        return pause

    @property
    def endless(self) -> bool:
        """True once, when the job has been written to without end."""
        return self._pauses == _ENDLESS


# --- Since when each unit of a job has had its slices. Only in memory: what a new operator finds is old ---------------
# Not by the age of pods: a tenant who deletes the pods of a unit again and again would keep its slice from others.
class _Grant(NamedTuple):
    nodes: tuple[str, ...]
    since: float


class SlicesSince:
    """Since when the units of one job have their slices."""

    def __init__(self) -> None:
        self._grants: dict[str, _Grant] = {}

    def by_unit(self) -> Mapping[str, float]:
        """Return unit -> seconds since the epoch."""
        return {unit: grant.since for unit, grant in self._grants.items()}

    def note(self, request: AllotmentRequest, reserved: frozenset[str], now: float) -> None:
        """Note after a decision that the job has and wants this, and has reserved these nodes. A unit that ends and comes back to nodes
        that stayed reserved meanwhile has had them all the time."""
        grants = {unit: grant for unit, grant in self._grants.items() if reserved.issuperset(grant.nodes)}
        for unit in (unit for pool in request.pools for unit in pool.units):
            if unit.name not in grants or grants[unit.name].nodes != unit.nodes:
                grants[unit.name] = _Grant(unit.nodes, now)
        self._grants = grants


# ----------------------------------------------------------------------------------------------------------------------
# Pods that say they belong to a job, and that its reconcile does not believe: they are named like malformed objects.
_NAMED = 1000
"""Pods of one job that are named."""


class IgnoredPods:
    """Pods of one job that do not count. A pod is told of once, and counts as long as it is there."""

    def __init__(self, caches: Caches, key: JobKey) -> None:
        self._caches = caches
        self._key = key
        self._named: set[str] = set()

    def note(self, ignored: Mapping[str, str]) -> None:
        """Note the pods that the last plan of the job ignored, by name, for these reasons."""
        namespace, job = self._key
        now = dict(islice(ignored.items(), _NAMED))
        for name in self._named - now.keys():
            self._caches.malformed.remove(names.PODS, (namespace, name))
        for name, why in now.items():
            pod = self._caches.pod(namespace, name)
            uid = pod.uid if pod is not None else ""
            self._caches.malformed.add(MalformedObject(names.PODS, namespace, name, uid, job, why, used=True))
        self._named = set(now)


# --- what the operator knows of a job ---------------------------------------------------------------------------------
@dataclass(slots=True)
class JobContext:
    """What the operator keeps of one object on the API server: another one of the same name begins with nothing."""

    key: JobKey
    id: str
    """`Job.key`: the job's name for the inventory and the allotment, with its uid."""
    ignored: IgnoredPods
    """Pods that the last plan did not believe."""
    listening_since: float | None = None
    """Since when this operator has followed the reports of the job's syncer; None: it does not yet."""
    unsure: bool = False
    """The last plan was not carried out in full. Its reservations stay until the next reconcile: some of its pods may exist."""
    registered: bool = False
    """The allotment knows the job."""
    rejected_writes: RejectedWrites = field(default_factory=RejectedWrites)
    pod_answers: PodAnswers = field(default_factory=PodAnswers)
    slices_since: SlicesSince = field(default_factory=SlicesSince)
    postponement: StatusPostponement = field(default_factory=lambda: StatusPostponement(RECONCILE.postpone_status))
    write_limit: WriteLimit = field(default_factory=WriteLimit)


class JobContexts:
    """The contexts of all jobs that this operator runs. `released` gets a context that is dropped, and gives back what the job holds.
    `forgets` are called with the key of the job then."""

    def __init__(self, caches: Caches, released: Callable[[JobContext], None], forgets: Sequence[Callable[[JobKey], None]]) -> None:
        self._caches = caches
        self._released = released
        self._forgets = forgets
        self._by_key: dict[JobKey, JobContext] = {}
        self._by_id: dict[str, JobContext] = {}

    def of(self, key: JobKey, job_id: str) -> JobContext:
        """Return the job's context, made if there is none. That of an earlier job of the name is dropped."""
        context = self._by_key.get(key)
        if context is not None and context.id == job_id:
            return context
        self.drop(key)
        context = JobContext(key, job_id, IgnoredPods(self._caches, key))
        self._by_key[key] = self._by_id[job_id] = context
        return context

    def get(self, key: JobKey) -> JobContext | None:
        """Return that of the job of this name; None: there is none."""
        return self._by_key.get(key)

    def by_id(self, job_id: str) -> JobContext | None:
        """Return that of the job with this `Job.key`; None: there is none."""
        return self._by_id.get(job_id)

    def drop(self, key: JobKey) -> None:
        """Forget all of the job of this name: it is gone, or not this operator's any more."""
        context = self._by_key.pop(key, None)
        if context is None:
            return
        del self._by_id[context.id]
        context.ignored.note({})
        self._released(context)
        for forget in self._forgets:
            forget(key)
