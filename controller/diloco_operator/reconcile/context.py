"""The facts of one pass in the form that its steps ask for them. Everything derived once, nothing decided here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from diloco_operator.api import names
from diloco_operator.api.job import Pool, Spec
from diloco_operator.fleet import health
from diloco_operator.fleet.health import NotReadyCounts, is_unreachable, next_transition, not_ready_recheck
from diloco_operator.fleet.slices import Shape
from diloco_operator.reconcile.children.pods import PodTemplateBase, learner_template_base
from diloco_operator.reconcile.observe.rejected_writes import WriteKey, explain, retry_at, standing_rejection
from diloco_operator.reconcile.observe.state import ObservedState, PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord, read_units
from diloco_operator.report import Report, UnitReport


@dataclass(slots=True)
class ReconcileContext:
    """One job whose spec is readable, at one moment."""

    observed: ObservedState
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
    before: Mapping[str, UnitStatusRecord]
    """Unit -> what is on record of it."""
    deadlines: list[float] = field(default_factory=list)
    """Moments at which the job must be looked at again. Collected while the pass goes on."""
    _eviction_reasons: dict[str, str] = field(default_factory=dict)
    _template_bases: dict[str, PodTemplateBase] = field(default_factory=dict)

    def template_base(self, pool: str) -> PodTemplateBase:
        """What the learner pods of this pool are made in."""
        if pool not in self._template_bases:
            self._template_bases[pool] = learner_template_base(self.observed.job, self.spec, self.pools[pool], self.observed.config)
        return self._template_bases[pool]

    def eviction_reason(self, node: str) -> str:
        """Why units on this node must leave it; "" when they may stay, or when the pod has no node yet."""
        if not node:
            return ""
        if node not in self._eviction_reasons:
            view = self.observed.fleet.node(node)
            signals = self.observed.config.disruption_signals
            self._eviction_reasons[node] = health.eviction_reason(view, node, signals, self.now, self.not_ready)
            if view is not None and not self._eviction_reasons[node]:
                again = (not_ready_recheck(view, signals, self.now, self.not_ready), next_transition(view, signals, self.now))
                self.deadlines += [moment for moment in again if moment is not None]
        return self._eviction_reasons[node]

    def unreachable(self, node: str) -> bool:
        """Nobody on this node will confirm that a pod has ended."""
        signals = self.observed.config.disruption_signals
        return bool(node) and is_unreachable(self.observed.fleet.node(node), signals, self.now, self.not_ready)

    def rejection(self, key: WriteKey) -> str:
        """Why an object must not be tried now; "" when it may be. The job is looked at again when it may."""
        observed = self.observed
        found = standing_rejection(observed.rejected_writes, key, observed.job.generation, self.now, observed.config)
        if found is None:
            return ""
        self.deadlines.append(retry_at(found, observed.config))
        return explain(found, observed.config)

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


def build_context(observed: ObservedState, spec: Spec, now: float) -> ReconcileContext:
    """Sort what the snapshot holds. Pods that another object owns are not ours."""
    learners: dict[str, list[PodView]] = {}
    syncer: PodView | None = None
    for pod in own_pods(observed):
        if pod.component == names.COMPONENT_SYNCER:
            syncer = pod
        elif pod.component == names.COMPONENT_LEARNER:
            learners.setdefault(pod.unit, []).append(pod)
    report = observed.report
    derived = observed.job.derived
    assert derived is not None, "a spec that can be read has been worked out"
    fresh = report is not None and now - report.received_at <= observed.config.report_stale_after
    serving = syncer is not None and syncer.running_since is not None and not syncer.ended
    return ReconcileContext(
        observed=observed,
        spec=spec,
        now=now,
        pools={pool.name: pool for pool in spec.pools},
        shapes=derived.shapes,
        hashes=derived.learner_hashes,
        not_ready=observed.fleet.not_ready,
        # What a syncer said before it went down says nothing about now.
        report=report if fresh and serving else None,
        syncer=syncer,
        learners=learners,
        before=read_units(observed.job.status),
    )


def own_pods(observed: ObservedState) -> Iterable[PodView]:
    return (pod for pod in observed.pods if pod.owner == observed.job.uid)
