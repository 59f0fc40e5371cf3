"""What an operator remembers of a job between two reconciles: one object for each job, made and dropped as a whole.

All of it is only in memory. A new operator begins without it and comes to the same decisions, some of them later. Other modules keep more
under the job's key (expectations, the report stream, what autoscalers say, series of metrics); they drop it with the context.

See docs/decisions/0030-controller-loop.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from diloco_operator.api.names import JobKey
from diloco_operator.fleet.admission import KnownAdmission
from diloco_operator.operator.caches import Caches
from diloco_operator.operator.ignored_pods import IgnoredPods
from diloco_operator.operator.pod_answers import PodAnswers
from diloco_operator.operator.rejected_writes import RejectedWrites
from diloco_operator.operator.slices_since import SlicesSince
from diloco_operator.operator.status_postponement import StatusPostponement
from diloco_operator.operator.write_limit import WriteLimit
from diloco_operator.timeouts import RECONCILE


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
