"""What an operator remembers of a job between two reconciles: one object for each job, made and dropped as a whole.

All of it is only in memory. A new operator begins without it and comes to the same decisions, some of them later. Other modules keep more
under the job's key (expectations, the report stream, what autoscalers say, series of metrics); they drop it with the context.

See docs/decisions/0030-controller-loop.md. See docs/decisions/0031-writes.md. See docs/decisions/0086-reading-the-api.md.
See docs/decisions/0206-before-units-leave.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from diloco_operator.api import names
from diloco_operator.api.names import JobKey
from diloco_operator.fleet.admission import KnownAdmission
from diloco_operator.kube.malformed import MalformedObject
from diloco_operator.operator.caches import Caches
from diloco_operator.operator.pod_answers import PodAnswers
from diloco_operator.operator.rejected_writes import RejectedWrites
from diloco_operator.placement import JobRequest
from diloco_operator.timeouts import RECONCILE

_NAMED = 1000
"""The most pods of one job that are named."""


class IgnoredPods:
    """Pods that carry a job's label but that the operator cannot have made, so that its plans ignore them. Users are told about them as
    about malformed objects: each is reported once, and counts as malformed as long as a plan ignores it."""

    def __init__(self, caches: Caches, key: JobKey) -> None:
        self._caches = caches
        self._key = key
        self._named: set[str] = set()

    def note(self, ignored: Mapping[str, str]) -> None:
        """Note the pods that the last plan of the job ignored: the reason, by the pod's name."""
        namespace, job = self._key
        now = dict(islice(ignored.items(), _NAMED))
        for name in self._named - now.keys():
            self._caches.malformed.remove(names.PODS, (namespace, name))
        for name, why in now.items():
            pod = self._caches.pod(namespace, name)
            uid = pod.uid if pod is not None else ""
            self._caches.malformed.add(MalformedObject(names.PODS, namespace, name, uid, job, why, used=True))
        self._named = set(now)


class _Grant(NamedTuple):
    nodes: tuple[str, ...]
    since: float


class SlicesSince:
    """Since when the units of one job have their slices. For a new operator all of them are old.

    The age of pods does not count: a tenant who deletes the pods of a unit again and again would keep its slice from others."""

    def __init__(self) -> None:
        self._grants: dict[str, _Grant] = {}

    def by_unit(self) -> Mapping[str, float]:
        """Since when each unit has had its slices, in seconds since the epoch."""
        return {unit: grant.since for unit, grant in self._grants.items()}

    def note(self, request: JobRequest, reserved: frozenset[str], now: float) -> None:
        """Note what the job has and wants after a decision, and the nodes that it has reserved. A unit that ends and comes back to nodes
        that stayed reserved meanwhile has had them all the time."""
        grants = {unit: grant for unit, grant in self._grants.items() if reserved.issuperset(grant.nodes)}
        for unit in (unit for pool in request.pools for unit in pool.units):
            if unit.name not in grants or grants[unit.name].nodes != unit.nodes:
                grants[unit.name] = _Grant(unit.nodes, now)
        self._grants = grants


class StatusPostponement:
    """Lets a status wait for at most `seconds` after its first postponement."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def postpone(self, now: float) -> bool:
        """Postpone the status, again or for the first time. False if it must be written. `now`: seconds of a clock that never goes back."""
        self._since = now if self._since is None else self._since
        return now - self._since < self._seconds

    def reset(self) -> None:
        """Begin anew: the status is written, or there is nothing left to write."""
        self._since = None


WRITE_BURST = 100
"""Reconciles of a job that may write without a pause, as at the start of a big job, or when many hosts are lost at once."""
WRITES_PER_SECOND = 2.0
"""Reconciles with writes, in a second, that are no burst. Pauses are no longer than their interval."""
_ENDLESS_PAUSES = 60
"""Pauses in a row, half a minute of them, that are worth a line in the log."""


class WriteLimit:
    """How often one job may be written to: `burst` reconciles with writes at once, and `per_second` after that.

    Each write of the operator wakes the job again. If something else changes each time what was written (an admission webhook, another
    controller, a server that shows another object), reconcile and write would repeat without end and without a pause.
    """

    def __init__(self, burst: int = WRITE_BURST, per_second: float = WRITES_PER_SECOND) -> None:
        self._interval = 1 / per_second
        self._burst = burst * self._interval
        self._due = -math.inf
        """When all reconciles so far would be done at the lasting rate."""
        self._pauses = 0
        """Pauses in a row."""

    def wrote(self, now: float) -> float:
        """Count a reconcile that wrote something. Return how many seconds the next one must wait. `now`: seconds of a clock that does not
        go back."""
        self._due = max(self._due, now) + self._interval
        pause = max(0.0, self._due - now - self._burst)
        self._pauses = self._pauses + 1 if pause else 0
        return pause

    @property
    def just_became_endless(self) -> bool:
        """True once, when the job has been written to without end."""
        return self._pauses == _ENDLESS_PAUSES


@dataclass(slots=True)
class JobContext:
    """What the operator remembers of one job. Another job of the same name begins with nothing."""

    key: JobKey
    id: str
    """`Job.key`: the job's name for the inventory and the allotment, with its uid."""
    ignored: IgnoredPods
    """Pods that the last plan ignored."""
    listening_since: float | None = None
    """Since when this operator has followed the reports of the job's syncer. None if it does not yet."""
    unsure: bool = False
    """The last plan was not carried out in full. Its reservations stay until the next reconcile: some of its pods may exist."""
    rejected_writes: RejectedWrites = field(default_factory=RejectedWrites)
    pod_answers: PodAnswers = field(default_factory=PodAnswers)
    admissions: Mapping[str, KnownAdmission] = field(default_factory=dict)
    """What plans and dry runs have shown of the job's pods, see `Plan.admissions`."""
    slices_since: SlicesSince = field(default_factory=SlicesSince)
    postponement: StatusPostponement = field(default_factory=lambda: StatusPostponement(RECONCILE.postpone_status))
    write_limit: WriteLimit = field(default_factory=WriteLimit)


class JobContexts:
    """The contexts of all jobs that this operator runs. When a context is dropped, `released` is called with it and gives back what the job
    holds, and each of `forgets` is called with the job's key."""

    def __init__(self, caches: Caches, released: Callable[[JobContext], None], forgets: Sequence[Callable[[JobKey], None]]) -> None:
        self._caches = caches
        self._released = released
        self._forgets = forgets
        self._by_key: dict[JobKey, JobContext] = {}
        self._by_id: dict[str, JobContext] = {}

    def of(self, key: JobKey, job_id: str) -> JobContext:
        """Return the job's context, and make it if there is none. The context of an earlier job of the name is dropped."""
        context = self._by_key.get(key)
        if context is not None and context.id == job_id:
            return context
        self.drop(key)
        context = JobContext(key, job_id, IgnoredPods(self._caches, key))
        self._by_key[key] = self._by_id[job_id] = context
        return context

    def get(self, key: JobKey) -> JobContext | None:
        return self._by_key.get(key)

    def by_id(self, job_id: str) -> JobContext | None:
        """Return the context of the job with this `Job.key`, or None."""
        return self._by_id.get(job_id)

    def drop(self, key: JobKey) -> None:
        """Forget the job of this name: it is gone, or this operator does not run it any more."""
        context = self._by_key.pop(key, None)
        if context is None:
            return
        del self._by_id[context.id]
        context.ignored.note({})
        self._released(context)
        for forget in self._forgets:
            forget(key)
