"""One job at one moment, as the steps of reconcile need it. Everything is derived once, and nothing is decided here.

See docs/decisions/0030-controller-loop.md.
See docs/decisions/0041-what-a-syncer-says.md.
See docs/decisions/0130-what-occupies-a-node.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from diloco.contract import ENDED_BY_TOKENS

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.api import names
from diloco_operator.api.spec import Learners, Pool, Spec
from diloco_operator.api.state import JobState, state_on_record
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
from diloco_operator.fleet.slices import Shape, named_hosts
from diloco_operator.kube.timestamps import parse_timestamp
from diloco_operator.plan import Create
from diloco_operator.reconcile.observe.host_status import NO_HOSTS, JobHosts
from diloco_operator.reconcile.observe.job import Job
from diloco_operator.reconcile.observe.object_size import MAX_UNITS
from diloco_operator.reconcile.observe.part_view import PartView
from diloco_operator.reconcile.observe.pod_answers import ask_at, refusal
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.rejected_writes import WriteKey, explain, retry_at, standing_rejection, write_key
from diloco_operator.reconcile.observe.shares import HERE, Place, next_move, share_out
from diloco_operator.reconcile.observe.state import ObservedState
from diloco_operator.reconcile.observe.throughput import PoolRecord, measure_pools
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord, read_units
from diloco_operator.report import PartState, Report, UnitReport
from diloco_operator.timeouts import RECONCILE


class NodeHealth(NamedTuple):
    """Whether units may stay on a node."""

    eviction_reason: str = ""
    """Why they must leave it, or "" if they may stay."""
    recheck_at: float | None = None
    """When this may change although nothing happens. None: never."""


class Rejection(NamedTuple):
    """An object that the operator must not create now, because the API server rejected it."""

    key: WriteKey
    message: str
    retry_at: float

    @property
    def text(self) -> str:
        return f"{self.key[0]} {self.key[1]} cannot be made: {self.message}"


class Shares(NamedTuple):
    """How the units of a job are shared out between clusters."""

    numbers: Mapping[str, int]
    """Pool in another cluster, or `HERE` -> its units."""
    learners: Learners
    """How many over all clusters; the context's spec has what is left for this one."""
    recheck_at: float | None
    """When the numbers may change although nothing happens. None: never."""

    @property
    def elsewhere(self) -> int:
        """Units in other clusters."""
        return sum(self.numbers.values()) - self.numbers[HERE]


@dataclass(frozen=True, slots=True)
class ReconcileContext:
    """A job whose spec can be read. Steps do not change it: one that must run again at some time returns that time."""

    observed: ObservedState
    spec: Spec
    now: float
    pools: Mapping[str, Pool]
    shapes: Mapping[str, Shape]
    needs: Mapping[str, Resources]
    """Pool -> what the pod of each host requests."""
    hashes: Mapping[str, str]
    """Pool -> template hash with which new learner pods are marked."""
    signals: DisruptionSignals
    not_ready: NotReadyCounts
    """How much of the fleet is NotReady."""
    report: Report | None
    """The syncer's report. None if there is no recent one of the present syncer."""
    syncer: PodView | None
    learners: Mapping[str, list[PodView]]
    """Unit -> its pods, all attempts."""
    records_before: Mapping[str, UnitStatusRecord]
    """Unit -> its record in status."""
    ignored: Mapping[str, str]
    """Name of a learner pod that the operator ignores -> why."""
    admissions: Mapping[str, KnownAdmission]
    """Pool -> how the API server changes pods of its present template. Only pools for which that is known."""
    throughput: Mapping[str, PoolRecord]
    """Pool -> the throughput of its units, with what the report adds."""
    strays: Sequence[PodView]
    """Learner pods of an earlier job of this name. Garbage collection deletes them with that job."""
    shares: Shares | None = None
    """How many units each cluster gets. None if all pools are in this one."""
    defects: Mapping[str, str] = field(default_factory=dict)
    """Unit -> what happened to it that the table of transitions lacks. The reconcile began anew because of it."""
    hosts: JobHosts = NO_HOSTS
    """The hosts on which attempts failed, once `units.hosts` has judged them."""

    def attempt_pods(self, record: UnitStatusRecord) -> list[PodView]:
        """Return the pods of the unit's newest attempt."""
        return [pod for pod in self.learners.get(record.name, ()) if pod.attempt == record.attempt]

    def node_health(self, node: str) -> NodeHealth:
        """Return the health of this node."""
        if not node:  # of a pod that has no node yet
            return NodeHealth()
        view = self.observed.fleet.node(node)
        reason = eviction_reason(view, node, self.signals, self.now, self.not_ready)
        if view is None or reason:
            return NodeHealth(reason)
        moments = (not_ready_recheck(view, self.signals, self.now, self.not_ready), next_transition(view, self.signals, self.now))
        return NodeHealth("", min((moment for moment in moments if moment is not None), default=None))

    def unreachable(self, node: str) -> bool:
        """Return whether no kubelet on this node can confirm that a pod has ended."""
        return bool(node) and is_unreachable(self.observed.fleet.node(node), self.signals, self.now, self.not_ready)

    def lingers(self, pod: PodView) -> bool:
        """Return whether a process of the pod may still run, on a node whose kubelet will report its end."""
        return not (pod.ended or pod.never_runs or self.unreachable(pod.node))

    def on_slice(self, pods: Iterable[PodView], pool: str, name: str) -> bool | None:
        """Return whether these pods of a unit are on the slice of this name. None if the fleet does not know the slice.

        A pod's own word is not enough: everyone who may write pods can write any name into their annotations."""
        shape = self.shapes.get(pool)
        nodes = {host.node for host in named_hosts(self.observed.fleet, shape, name)} if shape is not None else None
        if not nodes:
            return None
        return all(pod.node in nodes for pod in pods if pod.node)

    def up_to_date(self, record: UnitStatusRecord) -> bool:
        """Return whether the unit's newest attempt was made from the present template of its pool. False if the pool has gone."""
        return self.is_known(record.pool, record.template_hash)

    def last_stray(self, unit: str, attempt: int) -> int:
        """Return the newest attempt in pods that an earlier job of this name has left for this unit's name: their names are taken. 0 if no
        such pod has an attempt near `attempt`."""
        near = (pod.attempt for pod in self.strays if pod.unit == unit and pod.attempt <= attempt + _ATTEMPTS_AHEAD)
        return max(near, default=0)

    def last_reported(self, unit: str, attempt: int) -> int:
        """Return the newest attempt that the syncer has accepted of this unit: it is newer than `attempt` where status was restored from a
        backup, and the syncer refuses all older ones. 0 if the syncer reports none near `attempt`."""
        unit_report = self._report_on(unit)
        return unit_report.attempt if unit_report is not None and unit_report.attempt <= attempt + _ATTEMPTS_AHEAD else 0

    def last_unsigned(self, unit: str, attempt: int) -> int:
        """Return the newest attempt of this unit that home signs for no more, in a part. Home knows that it was used, also if the part does
        not: it was made anew. 0 if there is none near `attempt`."""
        secret = self.observed.children.part_secret
        home = secret.home if secret is not None else None
        first = min(home.signed.get(unit, ()), default=1) if home is not None else 1
        return first - 1 if first <= attempt + _ATTEMPTS_AHEAD else 0

    def next_attempt(self, record: UnitStatusRecord) -> int:
        """Return the number of the unit's next attempt: above all that status, pods, home and the syncer know of: it refuses others."""
        # Another program may have written a status with `ended_attempt` above `attempt`.
        last = max(record.attempt, record.ended_attempt)
        known = (self.last_stray(record.name, last), self.last_reported(record.name, last), self.last_unsigned(record.name, last))
        return max(last, *known) + 1

    def is_known(self, pool: str, template_hash: str) -> bool:
        """Return whether pods of the pool with this hash are made from its present template."""
        derived = self.observed.job.derived
        assert derived is not None, "the derived values of a spec that can be read are there"
        return template_hash in derived.known_hashes.get(pool, ())

    def rejection(self, key: WriteKey) -> Rejection | None:
        """Return why an object must not be created now. None if it may be."""
        observed = self.observed
        write = standing_rejection(observed.rejected_writes, key, observed.job.generation, self.now, observed.config)
        return Rejection(key, explain(write, observed.config), retry_at(write, observed.config)) if write is not None else None

    def refused_pods(self, pool: str) -> Rejection | None:
        """Return why no unit of another job leaves for a unit of this pool. None if the API server is not known to refuse the pool's
        pods."""
        observed = self.observed
        answer, generation = observed.pod_answers.get(pool), observed.job.generation
        rejected = refusal(answer, generation)
        if rejected is None:
            return None
        again = ask_at(answer, generation, observed.config)
        if self.now >= again and pool not in observed.allotted.checks:
            return None  # the answer is old, and no new one is asked for, because no unit would leave for the pool
        return Rejection((names.PODS.kind, pool), explain(rejected, observed.config, again), again)

    def without_rejected(self, creates: Iterable[Create]) -> tuple[list[Create], list[Rejection]]:
        """Return the objects that may be created now, and why the others may not."""
        allowed, rejected = [], []
        for create in creates:
            if (rejection := self.rejection(write_key(create.resource, create.obj))) is not None:
                rejected.append(rejection)
            else:
                allowed.append(create)
        return allowed, rejected

    def unit_report(self, unit: str, attempt: int) -> UnitReport | None:
        """Return what the syncer reports about this attempt. None if nothing, or only about another attempt."""
        unit_report = self._report_on(unit)
        return unit_report if unit_report is not None and unit_report.attempt == attempt else None

    def _report_on(self, unit: str) -> UnitReport | None:
        return self.report.units.get(unit) if self.report is not None else None

    @property
    def admissions_forgotten(self) -> list[float]:
        """When `admissions` of pools without pods are forgotten."""
        lasts = self.observed.config.avoid_unschedulable
        return [known.seen + lasts for known in self.admissions.values() if known.seen < self.now]

    @property
    def spec_refused(self) -> bool:
        """Whether something is wrong with the spec. Then what runs goes on, and nothing starts."""
        return bool(self.observed.job.problems)

    @property
    def outside(self) -> dict[str, UnitReport | None]:
        """Learner outside the cluster -> what the syncer reports about it. None: it has not joined, or there is no recent report."""
        return {name: self.unit_report(name, names.OUTSIDE_ATTEMPT) for name in self.spec.learners.outside}

    @property
    def finishing(self) -> bool:
        """The last outer step is done, so no unit needs to start any more."""
        report = self.report
        if report is None or self.asks_for_more_than(report):
            return False
        return report.t >= report.ending.t if report.ending is not None else report.done or report.t >= report.steps > 0

    def asks_for_more_than(self, report: Report) -> bool:
        """Whether the spec asks for more steps or tokens than the syncer of this report knew of. Then the job goes on after it."""
        training = self.spec.training
        by_tokens = report.ending is not None and report.ending.by == ENDED_BY_TOKENS
        more_tokens = by_tokens and (training.tokens is None or training.tokens > report.token_budget)
        return training.steps > report.steps or more_tokens

    @property
    def report_missed_at(self) -> float:
        """When this operator will have waited long enough for its first report of the syncer."""
        return max(self.syncer_since, self.observed.listening_since) + self.observed.config.report_stale_after

    @property
    def report_due(self) -> float | None:
        """When the wait for a report ends. None: there is one, there is no syncer, or the report has been missing for too long."""
        awaited = self.has_syncer and self.report is None
        return self.report_missed_at if awaited and self.now <= self.report_missed_at else None

    @property
    def has_syncer(self) -> bool:
        """Whether learners have a syncer to join: its pod exists, or it is in another cluster."""
        return self.syncer is not None or self.is_part

    @property
    def is_part(self) -> bool:
        """Whether the job's syncer is in another cluster, the job's home."""
        return self.spec.syncer.at is not None

    @property
    def all_learners(self) -> Learners:
        """How many learners the job has over all clusters in which this operator runs some."""
        return self.shares.learners if self.shares is not None else self.spec.learners

    @property
    def failed_parts(self) -> dict[str, PartState]:
        """Cluster -> the state of the part there, which has failed and does not start again."""
        clusters = {pool.cluster for pool in self.observed.job.away if pool.learners.max}
        jobs = {name: view.job for name, view in self.observed.parts.items() if name in clusters}
        return {name: job.state for name, job in jobs.items() if job is not None and job.failed(self.spec.retry or 0)}

    @property
    def quorum(self) -> int:
        """Learners of this cluster without which nothing is trained here. In a part one is enough: the others are elsewhere."""
        return 1 if self.is_part else self.spec.training.quorum

    @property
    def suspended(self) -> bool:
        """Whether the job gives its hardware back: the spec says so, or a part has not heard of home for too long."""
        at = self.spec.syncer.at
        if self.spec.suspend or at is None or self.report is not None:
            return self.spec.suspend
        # A part that is suspended stays so when its operator starts anew, until a report comes.
        return self.now >= self.home_heard + at.part_timeout or state_on_record(self.observed.job.status) is JobState.SUSPENDED

    @property
    def home_heard(self) -> float:
        """When a part heard of home last, or its operator began to listen."""
        report = self.observed.report
        return max(self.observed.listening_since, report.received_at if report is not None else 0.0)

    @property
    def answer_due(self) -> float | None:
        """When the last report no longer shows that the syncer answers. None if there is no recent report. Units are judged by a report for
        longer, for `report_stale_after`: a short silence stops nothing."""
        return self.report.received_at + RECONCILE.syncer_answer if self.report is not None else None

    @property
    def report_deadlines(self) -> tuple[float | None, ...]:
        """When conditions will change if no report comes."""
        at = self.spec.syncer.at
        leaves = self.home_heard + at.part_timeout if at is not None and not self.suspended else None
        return self.report_due, self.answer_due if self.answer_due is not None and self.now <= self.answer_due else None, leaves

    @property
    def syncer_since(self) -> float:
        """Since when the syncer can have heard from learners. Now, if it does not run."""
        if self.is_part:
            return self.report.connected_at if self.report is not None else self.observed.listening_since
        if self.syncer is None or self.syncer.running_since is None:
            return self.now
        # `running_since` is a time of the node's clock. If that is ahead, the pod's creation, by the API server's clock, stands in for it.
        return self.syncer.running_since if self.syncer.running_since <= self.now else min(self.syncer.created, self.now)


def build_context(observed: ObservedState, spec: Spec, now: float, defects: Mapping[str, str] | None = None) -> ReconcileContext:
    records_before = read_units(observed.job.status)
    learners = own_learners(observed.job, observed.pods, records_before)
    syncer = next((pod for pod in observed.pods if pod.component == names.COMPONENT_SYNCER and _is_own(observed.job, pod)), None)
    report = observed.report
    derived = observed.job.derived
    assert derived is not None, "the derived values of a spec that can be read are there"
    recent = report is not None and now - report.received_at <= observed.config.report_stale_after
    serving = syncer is not None and syncer.running_since is not None and not syncer.ended
    by_this_syncer = report is not None and syncer is not None and report.pod_uid in ("", syncer.uid)
    # What a syncer reported before it went down, or before another pod took its place, says nothing about now. In another cluster only the
    # reports show that it runs.
    report = report if recent and (spec.syncer.at is not None or (serving and by_this_syncer)) else None
    shares = _shares(observed, spec, now)
    if shares is not None:
        here, least = shares.numbers[HERE], max(0, spec.learners.min - shares.elsewhere)
        spec = spec.model_copy(update={"learners": spec.learners.model_copy(update={"min": min(least, here), "max": here})})
    return ReconcileContext(
        observed=observed,
        spec=spec,
        now=now,
        shares=shares,
        pools={pool.name: pool for pool in spec.pools},
        shapes=derived.shapes,
        needs=derived.needs,
        hashes=derived.learner_hashes,
        signals=observed.config.disruption_signals,
        not_ready=observed.fleet.not_ready,
        report=report,
        syncer=syncer,
        learners=learners.by_unit,
        records_before=records_before,
        ignored=learners.ignored,
        admissions=_known_admissions(observed, learners.by_unit.values(), derived.known_hashes, now),
        strays=[pod for pod in observed.pods if _is_stray(observed.job, pod)],
        defects=defects or {},
        throughput=measure_pools(spec.pools, derived.shapes, records_before, report, observed.job.status, now),
    )


def _shares(observed: ObservedState, spec: Spec, now: float) -> Shares | None:
    away = observed.job.away
    if not away:
        return None
    before = {pool["name"]: pool for pool in observed.job.status.get("pools") or ()}
    places = [_here(spec, before), *(_elsewhere(pool, observed, before.get(pool.name, {}), spec.retry or 0) for pool in away)]
    assigned = {pool.name: before[pool.name]["assigned"] for pool in away if "assigned" in before.get(pool.name, {})}
    wanted = min(spec.learners.max, sum(place.max for place in places))
    # The number of this cluster is not on record: it is what the others leave, but units that have hardware here are more if max falls.
    recorded = {**assigned, HERE: max(places[0].placed, wanted - sum(assigned.values()))} if assigned else {}
    numbers = share_out(places, spec.learners.max, recorded, now)
    return Shares(numbers, spec.learners, next_move(places, now))


def _here(spec: Spec, before: Mapping[str, Mapping[str, Any]]) -> Place:
    entries = [before.get(pool.name, {}) for pool in spec.pools]
    waits = [parse_timestamp(entry["waitingSince"]) for entry in entries if entry.get("waitingSince")]
    return Place(
        name=HERE,
        min=sum(pool.learners.min for pool in spec.pools),
        max=sum(pool.learners.max for pool in spec.pools),
        placed=sum(entry.get("placed", 0) for entry in entries),
        waiting_since=min(waits, default=None),
        value=max((entry.get("tokensPerSecond") or 0.0 for entry in entries), default=0.0),
    )


def _elsewhere(pool: Pool, observed: ObservedState, on_record: Mapping[str, Any], retry: int) -> Place:
    view = observed.parts.get(pool.cluster, PartView())
    seen = view.pool(pool.name, on_record)
    if view.job is not None and view.job.failed(retry):
        return Place(pool.name, 0, 0, 0, None, seen.tokens_per_second)
    since = view.silent_since if view.silent_since is not None else seen.waiting_since
    return Place(pool.name, pool.learners.min, pool.learners.max, seen.placed, since, seen.tokens_per_second)


def _known_admissions(
    observed: ObservedState, learners: Iterable[Sequence[PodView]], known_hashes: Mapping[str, Collection[str]], now: float
) -> dict[str, KnownAdmission]:
    """Return pool -> how admission changes its pods, by the newest pod that exists or did lately."""
    oldest = now - observed.config.avoid_unschedulable
    admissions = {pool: known for pool, known in observed.admissions.items() if known.seen > oldest}
    newest: dict[str, PodView] = {}
    for pod in itertools.chain.from_iterable(learners):
        # Without delegated pods, which ask for more than the template does.
        if not pod.grantor and (pod.pool not in newest or pod.created >= newest[pod.pool].created):
            newest[pod.pool] = pod
    for pool, pod in newest.items():
        admissions[pool] = KnownAdmission(pod.template_hash, pod.created if pod.ended else now, pod.admitted)
    return {pool: known for pool, known in admissions.items() if known.template_hash in known_hashes.get(pool, ())}


class OwnLearners(NamedTuple):
    by_unit: Mapping[str, list[PodView]]
    """Unit -> its pods, all attempts."""
    ignored: Mapping[str, str]
    """Name of a pod -> why the operator cannot have made it, though its labels, name and owner say so."""


def own_learners(job: Job, pods: Iterable[PodView], records: Mapping[str, UnitStatusRecord]) -> OwnLearners:
    """Sort the learner pods of this job by unit. Ignore those that the operator cannot have created. Pods of another owner are left out."""
    by_unit: dict[str, list[PodView]] = {}
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
            by_unit.setdefault(pod.unit, []).append(pod)
    unknown = sorted(unit for unit in by_unit if unit not in records)
    for unit in unknown[max(0, MAX_UNITS - len(records)) :]:
        for pod in by_unit.pop(unit):
            ignored[pod.name] = f"status does not have its unit {unit}, and has room for {MAX_UNITS} units"
    return OwnLearners(by_unit, ignored)


def _resource(job: Job, pool: str) -> str:
    """Return the name of the resource that the pool's pods request for their accelerators. "" if they request none."""
    shape = job.derived.shapes.get(pool) if job.derived is not None else None
    return CATALOGUE[shape.accelerator].resource if shape is not None else ""


_ATTEMPTS_AHEAD = 1000
"""A record may be this many attempts behind its pods, if status could not be written, and behind the syncer, if status was restored from a
backup. The limit keeps attempt numbers small, because they are part of names: without it, a stranger's pod could raise them at will."""


def _is_stray(job: Job, pod: PodView) -> bool:
    return pod.component == names.COMPONENT_LEARNER and pod.owner not in ("", job.uid) and not pod.problem


def _is_own(job: Job, pod: PodView) -> bool:
    return pod.owner == job.uid and not pod.problem
