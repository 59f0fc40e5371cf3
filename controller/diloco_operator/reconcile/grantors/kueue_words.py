"""What a pod waits for by Kueue, in words: a class for each sentence, with what it names. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.grantors.workload_view import Workload


@dataclass(frozen=True, slots=True)
class WaitsForQuota:
    queue: str
    workload: Workload | None
    """None: Kueue has made none for its pod group."""

    def words(self) -> str:
        return f"waits for quota in queue {self.queue}; {_state(self.workload)}"


def _state(workload: Workload | None) -> str:
    if workload is None:
        return (
            "Kueue has not taken it up yet; if this lasts, check that Kueue's integration for pods is on and manages this namespace "
            "(managedJobsNamespaceSelector)"
        )
    if workload.admitted_at is not None:
        return "Kueue has admitted it, and lets its pods go to nodes in a moment"
    return f"Kueue says: {workload.words}" if workload.words else "Kueue has not come to it yet"


@dataclass(frozen=True, slots=True)
class HasQuota:
    since: float

    def words(self) -> str:
        return f"has its quota since {format_timestamp(self.since)} and waits for a node"
