"""One job at one moment, in the form in which the steps of reconcile ask for it. Everything is derived once; nothing is decided here.

See docs/decisions/0030-controller-loop.md.
See docs/decisions/0041-what-a-syncer-says.md.
See docs/decisions/0130-what-occupies-a-node.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from diloco.contract import ENDED_BY_TOKENS

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.api import names
from diloco_operator.api.spec import Pool, Spec
from diloco_operator.fleet.admission import KnownAdmission
from diloco_operator.fleet.health import (
    DisruptionSignals,
    NotReadyCounts,
    eviction_reason,
    is_unreachable,
    next_transition,
    not_ready_recheck,
)
from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.slices import Shape
from diloco_operator.plan import Create
from diloco_operator.reconcile.observe.host_status import NO_HOSTS, JobHosts
from diloco_operator.reconcile.observe.job import Job
from diloco_operator.reconcile.observe.object_size import MAX_UNITS
from diloco_operator.reconcile.observe.pod_answers import ask_at, refusal
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.rejected_writes import WriteKey, explain, retry_at, standing_rejection, write_key
from diloco_operator.reconcile.observe.state import ObservedState
from diloco_operator.reconcile.observe.throughput import PoolRecord, measure_pools
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord, read_units
from diloco_operator.report import Report, UnitReport
from diloco_operator.timeouts import RECONCILE


class NodeHealth(NamedTuple):
    """Whether units may stay on a node."""

    eviction_reason: str = ""
    """Why they must leave it; "" when they may stay."""
    recheck_at: float | None = None
    """When this may change by the passing of time alone."""


class Rejection(NamedTuple):
    """An object that the operator must not try to make now, because the API server rejected it."""

    key: WriteKey
    message: str
    retry_at: float

    @property
    def text(self) -> str:
        return f"{self.key[0]} {self.key[1]} cannot be made: {self.message}"


@dataclass(frozen=True, slots=True)
class ReconcileContext:
    """A job whose spec can be read. Read-only: a step that must run again at some moment returns that deadline."""

    observed: ObservedState
    spec: Spec
    now: float
    pools: Mapping[str, Pool]
    shapes: Mapping[str, Shape]
    needs: Mapping[str, Resources]
    """Pool -> what the pod of each host requests."""
    hashes: Mapping[str, str]
    """Pool -> what its learner pods are judged by."""
    signals: DisruptionSignals
    not_ready: NotReadyCounts
    """How much of the fleet is NotReady."""
    report: Report | None
    """The syncer's report, if it is recent."""
    syncer: PodView | None
    learners: Mapping[str, list[PodView]]
    """Unit -> its pods, all attempts."""
    before: Mapping[str, UnitStatusRecord]
    """Unit -> what status has on record of it."""
    ignored: Mapping[str, str]
    """Name of a learner pod that takes part in nothing -> why."""
    admissions: Mapping[str, KnownAdmission]
    """Pool -> what the API server makes of pods of its present template, where that is known."""
    throughput: Mapping[str, PoolRecord]
    """Pool -> the throughput of its units, with what the report adds."""
    strays: Sequence[PodView]
    """Learner pods of an earlier job of this name, which go with it."""
    defects: Mapping[str, str] = field(default_factory=dict)
    """Unit -> what happened to it that its table lacks, as this decision began anew without it."""
    hosts: JobHosts = NO_HOSTS
    """The hosts on which attempts failed, once `units.hosts` has judged them."""

    def node_health(self, node: str) -> NodeHealth:
        """Return the health of the node `node`; "" is the node of a pod that has none yet."""
        if not node:
            return NodeHealth()
        view = self.observed.fleet.node(node)
        reason = eviction_reason(view, node, self.signals, self.now, self.not_ready)
        if view is None or reason:
            return NodeHealth(reason)
        moments = (not_ready_recheck(view, self.signals, self.now, self.not_ready), next_transition(view, self.signals, self.now))
        return NodeHealth("", min((moment for moment in moments if moment is not None), default=None))

    def unreachable(self, node: str) -> bool:
        """Say whether no kubelet on this node can confirm that a pod has ended."""
        return bool(node) and is_unreachable(self.observed.fleet.node(node), self.signals, self.now, self.not_ready)

    def on_slice(self, pods: Iterable[PodView], pool: str, name: str) -> bool | None:
        """Return whether these pods of a unit are on the slice of this name; None: the fleet does not know the slice. Who may write pods
        can write any name into their annotations."""
        shape = self.shapes.get(pool)
        slices = self.observed.fleet.resolve(shape, name) if shape is not None else None
        if slices is None:
            return None
        nodes = {host.node for slice_ in slices for host in slice_.hosts}
        return all(pod.node in nodes for pod in pods if pod.node)

    def up_to_date(self, record: UnitStatusRecord) -> bool:
        """Return whether the unit's newest attempt was made from the present template of its pool. False if the pool has gone."""
        return self.is_known(record.pool, record.template_hash)

    def last_stray(self, unit: str, attempt: int) -> int:
        """Return the newest attempt of a unit of this name that an earlier job of this name has left pods of; 0: there is none near
        `attempt`. Their names are taken."""
        near = (pod.attempt for pod in self.strays if pod.unit == unit and pod.attempt <= attempt + _ATTEMPTS_AHEAD)
        return max(near, default=0)

    def is_known(self, pool: str, template_hash: str) -> bool:
        """Return whether pods of the pool with this hash are made from its present template."""
        derived = self.observed.job.derived
        assert derived is not None, "the derived values of a spec that can be read are there"
        return template_hash in derived.known_hashes.get(pool, ())

    def rejection(self, key: WriteKey) -> Rejection | None:
        """Return why an object must not be tried now; None when it may be."""
        observed = self.observed
        found = standing_rejection(observed.rejected_writes, key, observed.job.generation, self.now, observed.config)
        return Rejection(key, explain(found, observed.config), retry_at(found, observed.config)) if found is not None else None

    def refused_pods(self, pool: str) -> Rejection | None:
        """Return why no unit of another job leaves for one of this pool; None while the API server is not known to refuse its pods."""
        observed = self.observed
        answer, generation = observed.pod_answers.get(pool), observed.job.generation
        rejected = refusal(answer, generation)
        if rejected is None:
            return None
        again = ask_at(answer, generation, observed.config)
        if self.now >= again and pool not in observed.allotted.checks:
            return None  # it is old, and nothing depends on it now
        return Rejection((names.PODS.kind, pool), explain(rejected, observed.config, again), again)

    def without_rejected(self, creates: Iterable[Create]) -> tuple[list[Create], list[Rejection]]:
        """Return those that may be tried now, and why the others may not."""
        allowed, rejected = [], []
        for create in creates:
            if (rejection := self.rejection(write_key(create.resource, create.obj))) is not None:
                rejected.append(rejection)
            else:
                allowed.append(create)
        return allowed, rejected

    def unit_report(self, unit: str, attempt: int) -> UnitReport | None:
        """Return what the syncer reports of this very attempt."""
        found = self.report.units.get(unit) if self.report is not None else None
        return found if found is not None and found.attempt == attempt else None

    @property
    def admissions_forgotten(self) -> list[float]:
        """When what is known of pods that are not there any more is forgotten."""
        lasts = self.observed.config.avoid_unschedulable
        return [known.seen + lasts for known in self.admissions.values() if known.seen < self.now]

    @property
    def spec_refused(self) -> bool:
        """Whether something is wrong with the spec: what runs is left alone then, and nothing starts."""
        return bool(self.observed.job.problems)

    @property
    def outside(self) -> dict[str, UnitReport | None]:
        """What the syncer reports of each learner outside the cluster, by name; None: it has not joined, or there is no recent report."""
        return {name: self.unit_report(name, names.OUTSIDE_ATTEMPT) for name in self.spec.learners.outside}

    @property
    def finishing(self) -> bool:
        """The last outer step is done; no unit needs to start any more. Not by the report of a syncer that was to take fewer steps or
        tokens."""
        report, training = self.report, self.spec.training
        if report is not None and report.ending is not None:
            more = report.ending.by == ENDED_BY_TOKENS and (training.tokens is None or training.tokens > report.token_budget)
            return report.steps >= training.steps and not more and report.t >= report.ending.t
        return report is not None and report.steps >= self.spec.training.steps and (report.done or report.t >= report.steps > 0)

    @property
    def report_missed_at(self) -> float:
        """When this operator has waited long enough for its first report of the syncer."""
        return max(self.syncer_since, self.observed.listening_since) + self.observed.config.report_stale_after

    @property
    def report_due(self) -> float | None:
        """Return until when a report is awaited; None: there is one, or no syncer, or it has been missing for too long."""
        awaited = self.syncer is not None and self.report is None
        return self.report_missed_at if awaited and self.now <= self.report_missed_at else None

    @property
    def answer_due(self) -> float | None:
        """Return until when the last report says that the syncer answers; None: there is no report that counts. Until the report is older
        than `report_stale_after`, units are judged by it all the same: nothing is stopped for a short silence."""
        return self.report.received_at + RECONCILE.syncer_answer if self.report is not None else None

    @property
    def report_deadlines(self) -> tuple[float | None, float | None]:
        """When conditions change because no report has come."""
        return self.report_due, self.answer_due if self.answer_due is not None and self.now <= self.answer_due else None

    @property
    def syncer_since(self) -> float:
        """Since when the syncer can have heard from learners."""
        if self.syncer is None or self.syncer.running_since is None:
            return self.now
        # The time is that of the node's clock. If that clock is ahead, the pod's creation by the API server's clock stands in for it.
        return self.syncer.running_since if self.syncer.running_since <= self.now else min(self.syncer.created, self.now)


def build_context(observed: ObservedState, spec: Spec, now: float, defects: Mapping[str, str] | None = None) -> ReconcileContext:
    """Sort what was observed."""
    before = read_units(observed.job.status)
    learners = own_learners(observed.job, observed.pods, before)
    syncer = next((pod for pod in observed.pods if pod.component == names.COMPONENT_SYNCER and _is_own(observed.job, pod)), None)
    report = observed.report
    derived = observed.job.derived
    assert derived is not None, "the derived values of a spec that can be read are there"
    recent = report is not None and now - report.received_at <= observed.config.report_stale_after
    serving = syncer is not None and syncer.running_since is not None and not syncer.ended
    its_own = report is not None and syncer is not None and report.pod_uid in ("", syncer.uid)
    # What a syncer reported before it went down, or before another pod took its place, says nothing about now.
    report = report if recent and serving and its_own else None
    return ReconcileContext(
        observed=observed,
        spec=spec,
        now=now,
        pools={pool.name: pool for pool in spec.pools},
        shapes=derived.shapes,
        needs=derived.needs,
        hashes=derived.learner_hashes,
        signals=observed.config.disruption_signals,
        not_ready=observed.fleet.not_ready,
        report=report,
        syncer=syncer,
        learners=learners.by_unit,
        before=before,
        ignored=learners.ignored,
        admissions=_known_admissions(observed, learners.by_unit.values(), derived.known_hashes, now),
        strays=[pod for pod in observed.pods if _is_stray(observed.job, pod)],
        defects=defects or {},
        throughput=measure_pools(spec.pools, derived.shapes, before, report, observed.job.status, now),
    )


def _known_admissions(
    observed: ObservedState, learners: Iterable[Sequence[PodView]], known_hashes: Mapping[str, Collection[str]], now: float
) -> dict[str, KnownAdmission]:
    """Return pool -> what admission makes of its pods: of the newest that is there, or was lately. Those of a grantor ask for more than the
    template does."""
    oldest = now - observed.config.avoid_unschedulable
    found = {pool: known for pool, known in observed.admissions.items() if known.seen > oldest}
    newest: dict[str, PodView] = {}
    for pod in itertools.chain.from_iterable(learners):
        if not pod.grantor and (pod.pool not in newest or pod.created >= newest[pod.pool].created):
            newest[pod.pool] = pod
    for pool, pod in newest.items():
        found[pool] = KnownAdmission(pod.template_hash, pod.created if pod.ended else now, pod.admitted)
    return {pool: known for pool, known in found.items() if known.template_hash in known_hashes.get(pool, ())}


class OwnLearners(NamedTuple):
    by_unit: Mapping[str, list[PodView]]
    """Unit -> its pods, all attempts."""
    ignored: Mapping[str, str]
    """Name of a pod -> why the operator cannot have made it, though its labels, name and owner say so."""


def own_learners(job: Job, pods: Iterable[PodView], records: Mapping[str, UnitStatusRecord]) -> OwnLearners:
    """Return the learner pods that the operator can have made for this job. Pods of another owner do not belong to it."""
    found: dict[str, list[PodView]] = {}
    ignored: dict[str, str] = {}
    for pod in pods:
        if pod.component != names.COMPONENT_LEARNER or not _is_own(job, pod):
            continue
        known = records[pod.unit].attempt if pod.unit in records else 0
        if pod.attempt > known + _ATTEMPTS_AHEAD:
            ignored[pod.name] = f"its attempt {pod.attempt} is far beyond attempt {known}, the last of {pod.unit} on record"
        elif pod.attempt > known and not pod.takes_accelerators and (resource := _resource(job, pod.pool)):
            ignored[pod.name] = (
                f"its attempt {pod.attempt} is not on record, and it requests no {resource}, as the operator's pods of the pool do"
            )
        else:
            found.setdefault(pod.unit, []).append(pod)
    unknown = sorted(unit for unit in found if unit not in records)
    for unit in unknown[max(0, MAX_UNITS - len(records)) :]:
        for pod in found.pop(unit):
            ignored[pod.name] = f"status does not have its unit {unit}, and has room for {MAX_UNITS} units"
    return OwnLearners(found, ignored)


def _resource(job: Job, pool: str) -> str:
    """Return what each pod of the pool requests for its accelerators; "" if it has none."""
    shape = job.derived.shapes.get(pool) if job.derived is not None else None
    return CATALOGUE[shape.accelerator].resource if shape is not None else ""


_ATTEMPTS_AHEAD = 1000
"""A record may be so many attempts behind its pods, while a status cannot be written. The number must stay small: it is part of names."""


def _is_stray(job: Job, pod: PodView) -> bool:
    return pod.component == names.COMPONENT_LEARNER and pod.owner not in ("", job.uid) and not pod.problem


def _is_own(job: Job, pod: PodView) -> bool:
    return pod.owner == job.uid and not pod.problem
