"""The facts of one pass in the form that its steps ask for them. Everything derived once, nothing decided here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from diloco_operator.api import names
from diloco_operator.api.job import Pool, Spec
from diloco_operator.fleet import health
from diloco_operator.fleet.health import NotReadyCounts, is_unreachable, next_transition, not_ready_recheck
from diloco_operator.fleet.slices import Shape
from diloco_operator.reconcile.children.pods import Mould, learner_mould
from diloco_operator.reconcile.observe.rejected_writes import RefusalKey, due, explain, standing
from diloco_operator.reconcile.observe.state import PodView, Snapshot
from diloco_operator.reconcile.observe.unit_status import UnitRecord, read_units
from diloco_operator.report import Report, UnitReport


@dataclass(slots=True)
class World:
    """One job whose spec is readable, at one moment."""

    snapshot: Snapshot
    spec: Spec
    now: float
    pools: dict[str, Pool]
    shapes: Mapping[str, Shape]
    hashes: Mapping[str, str]
    """Pool -> hash of what its learner pods are made from."""
    not_ready: NotReadyCounts
    """How much of the fleet is NotReady."""
    report: Report | None
    """The syncer's report if it is fresh."""
    syncer: PodView | None
    learners: dict[str, list[PodView]]
    """Unit -> its pods, all attempts."""
    before: Mapping[str, UnitRecord]
    """Unit -> what is on record of it."""
    deadlines: list[float] = field(default_factory=list)
    """Moments at which the job must be looked at again. Collected while the pass goes on."""
    _eviction_reasons: dict[str, str] = field(default_factory=dict)
    _moulds: dict[str, Mould] = field(default_factory=dict)

    def mould(self, pool: str) -> Mould:
        """What the learner pods of this pool are made in."""
        if pool not in self._moulds:
            self._moulds[pool] = learner_mould(self.snapshot.job, self.spec, self.pools[pool], self.snapshot.config)
        return self._moulds[pool]

    def eviction_reason(self, node: str) -> str:
        """Why units on this node must leave it; "" when they may stay, or when the pod has no node yet."""
        if not node:
            return ""
        if node not in self._eviction_reasons:
            view = self.snapshot.fleet.node(node)
            signals = self.snapshot.config.disruption_signals
            self._eviction_reasons[node] = health.eviction_reason(view, node, signals, self.now, self.not_ready)
            if view is not None and not self._eviction_reasons[node]:
                again = (not_ready_recheck(view, signals, self.now, self.not_ready), next_transition(view, signals, self.now))
                self.deadlines += [moment for moment in again if moment is not None]
        return self._eviction_reasons[node]

    def unreachable(self, node: str) -> bool:
        """Nobody on this node will confirm that a pod has ended."""
        signals = self.snapshot.config.disruption_signals
        return bool(node) and is_unreachable(self.snapshot.fleet.node(node), signals, self.now, self.not_ready)

    def refusal(self, key: RefusalKey) -> str:
        """Why an object must not be tried now; "" when it may be. The job is looked at again when it may."""
        snapshot = self.snapshot
        found = standing(snapshot.refusals, key, snapshot.job.generation, self.now, snapshot.config)
        if found is None:
            return ""
        self.deadlines.append(due(found, snapshot.config))
        return explain(found, snapshot.config)

    def unit_report(self, unit: str, attempt: int) -> UnitReport | None:
        """What the syncer says of this very attempt."""
        found = self.report.units.get(unit) if self.report is not None else None
        return found if found is not None and found.attempt == attempt else None

    @property
    def finishing(self) -> bool:
        """The last outer step is done; nobody needs to start any more."""
        return self.report is not None and (self.report.done or self.report.t >= self.report.steps > 0)

    @property
    def syncer_since(self) -> float:
        """Since when the syncer can have heard anybody."""
        if self.syncer is None or self.syncer.running_since is None:
            return self.now
        # By its node's clock; where that is ahead, its pod's creation by the API server's has to do.
        return self.syncer.running_since if self.syncer.running_since <= self.now else min(self.syncer.created, self.now)


def look(snapshot: Snapshot, spec: Spec, now: float) -> World:
    """Sort what the snapshot holds. Pods that another object owns are not ours."""
    learners: dict[str, list[PodView]] = {}
    syncer: PodView | None = None
    for pod in own_pods(snapshot):
        if pod.component == names.COMPONENT_SYNCER:
            syncer = pod
        elif pod.component == names.COMPONENT_LEARNER:
            learners.setdefault(pod.unit, []).append(pod)
    report = snapshot.report
    derived = snapshot.job.derived
    assert derived is not None, "a spec that can be read has been worked out"
    fresh = report is not None and now - report.received_at <= snapshot.config.report_stale_after
    serving = syncer is not None and syncer.running_since is not None and not syncer.ended
    return World(
        snapshot=snapshot,
        spec=spec,
        now=now,
        pools={pool.name: pool for pool in spec.pools},
        shapes=derived.shapes,
        hashes=derived.learner_hashes,
        not_ready=snapshot.fleet.not_ready,
        # What a syncer said before it went down says nothing about now.
        report=report if fresh and serving else None,
        syncer=syncer,
        learners=learners,
        before=read_units(snapshot.job.status),
    )


def own_pods(snapshot: Snapshot) -> Iterable[PodView]:
    return (pod for pod in snapshot.pods if pod.owner == snapshot.job.uid)
