"""What /metrics reports: how the operator works, under the names that Kubernetes' controllers share, and how the jobs are.

Everything lives in the registry of one `Metrics`; nothing is global. docs/metrics.md lists every metric.
"""

from __future__ import annotations

import json
import logging
from collections import Counter as Counted
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from diloco.goodput import Use
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from diloco_operator.api.goodput import key_of
from diloco_operator.api.names import JobKey
from diloco_operator.api.reasons import lack_of
from diloco_operator.api.state import JobState, state_on_record
from diloco_operator.api.status import UnitState
from diloco_operator.kube.client import Obj, Resource
from diloco_operator.kube.malformed import MalformedObjects
from diloco_operator.kube.timestamps import parse_timestamp
from diloco_operator.operator.fleet_metrics import FleetMetrics
from diloco_operator.operator.loop_metrics import LoopMetrics
from diloco_operator.operator.projections import CachedJob
from diloco_operator.plan import Plan
from diloco_operator.reconcile import Job
from diloco_operator.reconcile.observe.host_status import read_hosts
from diloco_operator.reconcile.status.job_state import under_way
from diloco_operator.report import Report

log = logging.getLogger(__name__)

CONTROLLER = "dilocojob"
"""Label value of the one controller and its queue."""

_RECONCILE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_QUEUE_BUCKETS = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_RECOVERY_BUCKETS = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)

_WAIT_BUCKETS = (1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 86400.0)

_PROGRESS = ("step", "steps", "tokens", "tokensPerSecond", "loss", "cosine")

_JOB = ("namespace", "dilocojob")
"""Not `job`: Prometheus gives that label to every series, for the scrape that it came from."""


class Metrics:
    """All metrics of one process."""

    def __init__(self, *, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry = registry or CollectorRegistry()
        ProcessCollector(registry=registry)
        name = ("name", "controller")
        self._reconciles = Counter(
            "controller_runtime_reconcile_total", "Reconciles by result", ("controller", "result"), registry=registry
        )
        self._errors = Counter("controller_runtime_reconcile_errors_total", "Reconciles that failed", ("controller",), registry=registry)
        self._panics = Counter(
            "controller_runtime_reconcile_panics_total",
            "Reconciles that ended in a defect of the operator",
            ("controller",),
            registry=registry,
        )
        self._seconds = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Seconds of a reconcile, including its writes",
            ("controller",),
            buckets=_RECONCILE_BUCKETS,
            registry=registry,
        )
        self.active_workers = Gauge("controller_runtime_active_workers", "Reconciles that run", ("controller",), registry=registry).labels(
            CONTROLLER
        )
        self.max_workers = Gauge(
            "controller_runtime_max_concurrent_reconciles", "Reconciles that may run at once", ("controller",), registry=registry
        ).labels(CONTROLLER)
        self.queue = QueueMetrics(registry, name)
        self._requests = Counter(
            "rest_client_requests_total",
            "Requests to the API server by status code, method and host",
            ("code", "method", "host"),
            registry=registry,
        )
        self._build = Gauge("diloco_operator_build_info", "1; the label says the version", ("version",), registry=registry)
        self._leading = Gauge("leader_election_master_status", "1: this replica leads", ("name",), registry=registry)
        self._malformed = Gauge(
            "diloco_operator_malformed_objects", "Objects that cannot be used, or only in part", ("resource",), registry=registry
        )
        self._malformed_found = Counter(
            "diloco_operator_malformed_objects_found", "Times that an object came that cannot be used", ("resource",), registry=registry
        )
        self.jobs = JobMetrics(registry)
        self.fleet = FleetMetrics(registry)
        self.loop = LoopMetrics(registry)
        # From the start: a series that begins with its first error has no rate, and no alert sees it.
        for result in ("success", "error", "requeue_after"):
            self._reconciles.labels(CONTROLLER, result)
        self._errors.labels(CONTROLLER)
        self._panics.labels(CONTROLLER)

    def request_done(self, method: str, code: str, host: str) -> None:
        """Count a request to the API server that ended; `code` is its status, or "<error>" when no answer came."""
        self._requests.labels(code, method, host).inc()

    def watch_malformed(self, malformed: MalformedObjects, resources: Iterable[Resource]) -> None:
        """Report from now on the objects that are left out of the caches of `resources`."""
        for resource in resources:
            self._malformed.labels(resource.plural).set_function(partial(malformed.count, resource))
            # Its series begins with 0, or the first such object would be no increase, and no alert would see it.
            self._malformed_found.labels(resource.plural)
        malformed.on_found(lambda obj: self._malformed_found.labels(obj.resource.plural).inc())

    def set_version(self, version: str) -> None:
        self._build.labels(version).set(1)

    def watch_leading(self, lease: str, leads: Callable[[], bool]) -> None:
        """Report from now on whether this replica holds the lease of this name."""
        self._leading.labels(lease).set_function(lambda: 1.0 if leads() else 0.0)

    def reconcile_done(self, seconds: float, *, failed: bool = False, defect: bool = False, later: bool = False) -> None:
        """Count a reconcile that ended. `later`: it asked for another one after a while."""
        self._seconds.labels(CONTROLLER).observe(seconds)
        if defect:
            self._panics.labels(CONTROLLER).inc()
        # A defect is an error too, as a panic is in controller-runtime: alerts on errors alone must see it.
        if failed or defect:
            self._errors.labels(CONTROLLER).inc()
        if failed or defect:
            result = "error"
        elif later:
            result = "requeue_after"
        else:
            result = "success"
        self._reconciles.labels(CONTROLLER, result).inc()


class QueueMetrics:
    """A `kube.workqueue.QueueObserver`."""

    def __init__(self, registry: CollectorRegistry, labels: tuple[str, str]) -> None:
        values = (CONTROLLER, CONTROLLER)
        self._adds = Counter("workqueue_adds_total", "Keys added", labels, registry=registry).labels(*values)
        self._retries = Counter("workqueue_retries_total", "Keys added again after a failure", labels, registry=registry).labels(*values)
        self._waited = Histogram(
            "workqueue_queue_duration_seconds", "Seconds that a key waits for a worker", labels, buckets=_QUEUE_BUCKETS, registry=registry
        ).labels(*values)
        self._worked = Histogram(
            "workqueue_work_duration_seconds", "Seconds that a worker holds a key", labels, buckets=_QUEUE_BUCKETS, registry=registry
        ).labels(*values)
        self._depth = Gauge("workqueue_depth", "Keys that wait for a worker", labels, registry=registry).labels(*values)
        self._unfinished = Gauge(
            "workqueue_unfinished_work_seconds", "Seconds so far of all running reconciles together", labels, registry=registry
        ).labels(*values)
        self._longest = Gauge(
            "workqueue_longest_running_processor_seconds", "Seconds so far of the longest running reconcile", labels, registry=registry
        ).labels(*values)

    def follow(self, depth: Callable[[], int], running: Callable[[], list[float]]) -> None:
        """Read the current values from these functions from now on."""
        self._depth.set_function(depth)
        self._unfinished.set_function(lambda: sum(running()))
        self._longest.set_function(lambda: max(running(), default=0.0))

    def added(self) -> None:
        self._adds.inc()

    def retried(self) -> None:
        self._retries.inc()

    def taken(self, waited: float) -> None:
        self._waited.observe(waited)

    def finished(self, worked: float) -> None:
        self._worked.observe(worked)


class JobMetrics(Collector):
    """The state of the jobs, from their status, and what happened to them, as this process recorded it.

    Only the leader reports jobs, or every sum over replicas would count them twice. Series end with their job.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._restarts = Counter(
            "diloco_job_restarts_total",
            "Attempts of units that ended and are followed by another, by reason",
            (*_JOB, "reason"),
            registry=registry,
        )
        self._given_up = Counter(
            "diloco_job_slices_given_up_total",
            "Times that a unit gave its slice up without a failure, by reason",
            (*_JOB, "reason"),
            registry=registry,
        )
        self._failures = Counter(
            "diloco_job_placement_failures_total",
            "Times that a pool came to have units without hardware, by reason",
            (*_JOB, "pool", "reason"),
            registry=registry,
        )
        self._recovery = Histogram(
            "diloco_job_recovery_seconds",
            "Seconds from the end of a unit's attempt until its successor contributes",
            _JOB,
            buckets=_RECOVERY_BUCKETS,
            registry=registry,
        )
        self._waits = Histogram(
            "diloco_job_capacity_wait_seconds",
            "Seconds from when a unit wanted a slice until it got one",
            (*_JOB, "pool"),
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self._jobs: Callable[[], Iterable[CachedJob]] = lambda: ()
        self._known: dict[JobKey, tuple[bytes, bytes]] = {}
        """For each job its status when it was reported last, and the parts of it that metrics show; both are JSON."""
        self._report: Callable[[JobKey], Report | None] = lambda _: None
        self._now: Callable[[], float] = lambda: 0.0
        self._since = 0.0
        registry.register(self)

    def follow(self, jobs: Callable[[], Iterable[CachedJob]], report: Callable[[JobKey], Report | None], now: Callable[[], float]) -> None:
        """Report from now on the jobs that `jobs` returns. `report`: the last report of a job's syncer. `now`: the clock of its
        `received_at`."""
        self._jobs, self._report, self._now = jobs, report, now
        self._since = now()

    def on_record(self, key: JobKey, before: Mapping[str, Any], plan: Plan) -> None:
        """Count what happened between `before` and the status of `plan`, which was written over it."""
        if plan.status is None:
            return
        after = plan.status.status
        for restart in plan.restarts:
            self._restarts.labels(*key, restart.reason or "Unknown").inc()
        for given_up in plan.slices_given_up:
            self._given_up.labels(*key, given_up.reason).inc()
        for seconds in recoveries(before, after):
            self._recovery.labels(*key).observe(seconds)
        for pool, seconds in capacity_waits(before, after, self._now()):
            self._waits.labels(*key, pool).observe(seconds)
        for pool, reason in placement_failures(before, after):
            self._failures.labels(*key, pool, reason).inc()

    def forget(self, key: JobKey) -> None:
        """End the series of a job that is gone: they would stay for the life of the process."""
        labels = dict(zip(_JOB, key, strict=True))
        for metric in (self._restarts, self._given_up, self._failures, self._recovery, self._waits):
            metric.remove_by_labels(labels)

    def describe(self) -> Iterable[Metric]:
        """Return names without values, so that registration needs no jobs."""
        return _families().values()

    def collect(self) -> Iterator[Metric]:
        families = _families()
        known: dict[JobKey, tuple[bytes, bytes]] = {}
        for job in self._jobs():
            key = (job.bare.namespace, job.bare.name)
            try:
                status, reported = self._known.get(key, (b"", b""))
                # A thread makes the page, and shares the interpreter's lock with the event loop. So it parses only statuses that changed.
                if status is not job.status:
                    reported = _reported(job.status)
                known[key] = job.status, reported
                report = self._report(key)
                heard = report.received_at if report is not None else None
                _add_job(families, job.bare, json.loads(reported), heard, self._since, self._now())
            except Exception:  # a defect that shows in one job must not take the metrics of all others away
                log.exception("the metrics of job %s/%s cannot be made: this is a defect, please report it", *key)
        self._known = known
        yield from families.values()


def recoveries(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[float]:
    """Yield the recovery time, in seconds, of each unit that came to contribute again between the two statuses. Pure."""
    lost = {unit["name"] for unit in before.get("units") or () if "endedAt" in unit}
    for unit in after.get("units") or ():
        if unit["name"] in lost and "endedAt" not in unit and unit["state"] == UnitState.TRAINING and "recoverSeconds" in unit:
            yield unit["recoverSeconds"]


def capacity_waits(before: Mapping[str, Any], after: Mapping[str, Any], now: float) -> Iterator[tuple[str, float]]:
    """Yield (pool, seconds that it waited) of each unit that got a slice between the two statuses. Pure.

    A unit waits while its pool is short of slices and it has none itself. Both are in status, so an operator that takes over knows since
    when, and a wait that is on record has ended for every operator.
    """
    units = {unit["name"]: unit for unit in before.get("units") or ()}
    short = {pool["name"]: parse_timestamp(pool["waitingSince"]) for pool in before.get("pools") or () if "waitingSince" in pool}
    for unit in after.get("units") or ():
        old = units.get(unit["name"], {})
        kept = old.get("slice") and (unit.get("slice") == old["slice"] or unit.get("attempt") == old.get("attempt"))
        if not unit.get("slice") or kept:  # status may shorten the name of a slice, so the attempt tells as well
            continue
        began = short.get(unit["pool"], now)
        if "since" in old:
            # The pool may have been short long before this unit was wanted.
            began = max(began, parse_timestamp(old["since"]))
        yield unit["pool"], max(0.0, now - began)


def placement_failures(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (pool, reason) for each pool that has units without hardware now, and had none before or for another reason. Pure."""
    reasons = {pool["name"]: pool.get("reason", "") for pool in before.get("pools") or ()}
    for pool in after.get("pools") or ():
        reason = pool.get("reason", "")
        if lack_of(reason).of_slices and reasons.get(pool["name"]) != reason:
            yield pool["name"], reason


_GAUGES = {
    "learners_desired": "Learners wanted now",
    "learners_placed": "Learners that have hardware",
    "learners_contributing": "Learners that contribute",
    "learners_min": "Learners below which the job is degraded",
    "outer_step": "Outer steps done",
    "outer_steps": "Outer steps in all",
    "snapshot_step": "Outer step of the newest durable snapshot",
    "snapshot_interval_steps": "Outer steps between two snapshots, by the job's spec",
    "tokens_per_second": "Tokens per second over all learners",
    "loss": "Training loss",
    "cosine": "Mean cosine between the learners' contributions to a merge, moving average",
    "avoided_hosts": "Hosts on which no unit starts now, because attempts failed there",
}


_PART_GAUGES = {
    "mergeShare": ("part_merge_share", "Mean share of the job's recent merges that have the contribution of a unit of the part"),
    "roundTripSeconds": ("part_round_trip_seconds", "Shortest round trip between the syncer and a unit of the part"),
    "receivedBytesPerSecond": ("part_received_bytes_per_second", "Highest rate of bytes from the part's units lately"),
    "sentBytesPerSecond": ("part_sent_bytes_per_second", "Highest rate of bytes to the part's units lately"),
}
_PART_COUNTERS = {
    "receivedBytes": ("part_received_bytes", "Bytes from the part's units since the syncer's process began"),
    "sentBytes": ("part_sent_bytes", "Bytes to the part's units since the syncer's process began"),
}
"""Field of status.parts[] -> (family, text)."""
_PART_FAMILIES = {field: name for field, (name, _) in (_PART_GAUGES | _PART_COUNTERS).items()}


def _families() -> dict[str, CounterMetricFamily | GaugeMetricFamily]:
    def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"diloco_job_{name}", text, labels=(*_JOB, *labels))

    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {name: gauge(name, text) for name, text in _GAUGES.items()}
    families["units"] = gauge("units", "Learner units by state", "state")
    families["state"] = gauge("state", "1 for the state that the job has, 0 for the others", "state")
    families["condition"] = gauge("condition", "1 for the status (True, False, Unknown) that each condition has", "condition", "status")
    families["host_failures"] = gauge("host_failures", "Attempts that failed on a host lately, as far as status keeps them", "node")
    families["report_age_seconds"] = gauge(
        "report_age_seconds", "Seconds since the job's syncer was heard by this operator, or since that began to listen"
    )
    families["unit_seconds"] = gauge("unit_seconds", "Seconds of all units by what they were used for, as far as status counts them", "use")
    families["accelerator_seconds"] = CounterMetricFamily(
        "diloco_job_accelerator_seconds",
        "Seconds for which units held accelerators, as far as status counts them",
        labels=(*_JOB, "cluster", "accelerator"),
    )
    families["interruptions"] = CounterMetricFamily(
        "diloco_job_interruptions", "Attempts that a failure or disruption ended, as far as status counts them", labels=_JOB
    )
    families["tokens"] = CounterMetricFamily("diloco_job_tokens", "Tokens trained, as committed by the syncer", labels=_JOB)
    families["refused"] = CounterMetricFamily(
        "diloco_job_refused_contributions", "Contributions that the syncer refused, by reason", labels=(*_JOB, "reason")
    )
    families |= {name: gauge(name, text, "part") for name, text in _PART_GAUGES.values()}
    families |= {name: CounterMetricFamily(f"diloco_job_{name}", text, labels=(*_JOB, "part")) for name, text in _PART_COUNTERS.values()}
    return families


def _reported(status: bytes) -> bytes:
    """Return the parts of a status that metrics show, as JSON: 1 KB for 256 units in place of 80."""
    whole: Obj = json.loads(status)
    units = whole.get("units") or ()
    states = Counted(unit["state"] for unit in units)
    conditions = [(each["type"], each["status"]) for each in whole.get("conditions") or ()]
    progress = {field: value for field, value in (whole.get("progress") or {}).items() if field in _PROGRESS}
    of_part = ("name", "acceleratorHours", *_PART_FAMILIES)
    parts = [{field: value for field, value in part.items() if field in of_part} for part in whole.get("parts") or ()]
    kept = {field: whole[field] for field in ("state", "reason", "learners", "model", "goodput", "hosts") if field in whole}
    return json.dumps(
        {
            **kept,
            "progress": progress,
            "states": states,
            "conditions": conditions,
            "refused": _refused(units),
            "parts": parts,
        },
        separators=(",", ":"),
    ).encode()


def _add_job(
    families: Mapping[str, CounterMetricFamily | GaugeMetricFamily], job: Job, status: Obj, heard: float | None, since: float, now: float
) -> None:
    """Add the series of one job.

    Args:
        status: the parts that `_reported` returns
        heard: when its syncer was heard last. None if it was not since this operator began to listen, at `since`
    """
    key = (job.namespace, job.name)
    learners, progress = status.get("learners") or {}, status["progress"]
    for field in ("desired", "placed", "contributing", "min"):
        families[f"learners_{field}"].add_metric(key, learners.get(field, 0))
    families["outer_step"].add_metric(key, progress.get("step", 0))
    families["outer_steps"].add_metric(key, progress.get("steps", 0))
    families["tokens_per_second"].add_metric(key, progress.get("tokensPerSecond", 0.0))
    families["tokens"].add_metric(key, progress.get("tokens", 0))
    hosts = read_hosts(status)
    families["avoided_hosts"].add_metric(key, sum(host.avoided(now) for host in hosts.values()))
    for host in hosts.values():
        families["host_failures"].add_metric((*key, host.node), len(host.failures))
    if status.get("model"):
        families["snapshot_step"].add_metric(key, status["model"].get("step", 0))
    if job.spec is not None and job.spec.syncer.at is None:  # a part's snapshots are at home, which exports them
        families["snapshot_interval_steps"].add_metric(key, job.spec.training.checkpoint.every_steps)
    _add_goodput(families, key, status.get("goodput"))
    _add_hours(families, key, "", status.get("goodput") or {})
    # No series while the value is not known: a loss of 0 would be the best of all.
    for field in ("loss", "cosine"):
        if field in progress:
            families[field].add_metric(key, progress[field])
    # Zeros too: a series that ends would leave its last value on a dashboard for minutes.
    for state in UnitState:
        families["units"].add_metric((*key, state.value), status["states"].get(state.value, 0))
    if (recorded := state_on_record(status)) is not None:
        for job_state in JobState:
            families["state"].add_metric((*key, job_state.value), job_state is recorded)
    for condition, value in status["conditions"]:
        families["condition"].add_metric((*key, condition, value), 1)
    for reason, count in sorted(status["refused"].items()):
        families["refused"].add_metric((*key, reason), count)
    _add_parts(families, key, status["parts"])
    # Another process heard its syncer. If both went down together, no other series would tell that the syncer stays away.
    if heard is None and under_way(status) and progress.get("step"):
        heard = since
    if heard is not None:
        families["report_age_seconds"].add_metric(key, max(0.0, now - heard))


def _add_parts(families: Mapping[str, CounterMetricFamily | GaugeMetricFamily], key: JobKey, parts: Iterable[Mapping[str, Any]]) -> None:
    for part in parts:
        _add_hours(families, key, part["name"], part)
        for field, name in _PART_FAMILIES.items():
            if field in part:
                families[name].add_metric((*key, part["name"]), part[field])


def _refused(units: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many contributions were refused, by reason."""
    counts: dict[str, int] = {}
    for unit in units:
        for reason, count in (unit.get("refused") or {}).items():
            counts[reason] = counts.get(reason, 0) + count
    return counts


def _add_goodput(families: Mapping[str, CounterMetricFamily | GaugeMetricFamily], key: JobKey, goodput: Mapping[str, Any] | None) -> None:
    if goodput is None:
        return
    families["interruptions"].add_metric(key, goodput.get("interruptions", 0))
    for use in Use:
        families["unit_seconds"].add_metric((*key, use.value), (goodput.get("unitSeconds") or {}).get(key_of(use), 0.0))


def _add_hours(
    families: Mapping[str, CounterMetricFamily | GaugeMetricFamily], key: JobKey, cluster: str, counted: Mapping[str, Any]
) -> None:
    """`cluster`: "" for this one. `counted`: what has `acceleratorHours`, if any were counted."""
    for accelerator, hours in (counted.get("acceleratorHours") or {}).items():
        families["accelerator_seconds"].add_metric((*key, cluster, accelerator), hours * 3600)
