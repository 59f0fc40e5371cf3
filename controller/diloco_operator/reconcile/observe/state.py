"""What one reconcile reads: the job, its pods and children, the fleet, the syncer's report. Plain data, projected once from raw JSON.

The operator keeps `PodView`s, `Child`ren and a parsed `Job` in its caches instead of raw objects, and assembles an `ObservedState` for
every reconcile. Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diloco_operator.api import names
from diloco_operator.api.job import InvalidJob, Spec, load
from diloco_operator.certificates.view import CertificateSecret
from diloco_operator.fleet.slice_kinds import shape_of
from diloco_operator.fleet.slices import Fleet
from diloco_operator.kube.client import Cause, Obj
from diloco_operator.kube.timestamps import parse_timestamp
from diloco_operator.placement.matching import SliceRequirements
from diloco_operator.reconcile.config import OperatorConfig
from diloco_operator.reconcile.observe.derived import Derived, derive
from diloco_operator.reconcile.observe.object_size import stored_bytes, too_large
from diloco_operator.reconcile.observe.rejected_writes import RejectedWrite, WriteKey
from diloco_operator.reconcile.observe.startup import PodStartup, project_startup
from diloco_operator.reconcile.observe.template import template_problems
from diloco_operator.reconcile.observe.template_hash import digest, job_file_digest
from diloco_operator.report import Report


# --- the job ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Job:
    """A DiLoCoJob, its spec parsed, its status raw."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: float
    deleting: bool
    managed_by: str
    spec: Spec | None
    """None: not readable, see `problems`."""
    problems: tuple[Cause, ...]
    """What is wrong with a spec that the API server accepted with the CRD of another version."""
    status: Mapping[str, Any]
    derived: Derived | None
    """None with the spec."""
    bytes_beside_status: int = 0
    """Bytes of the object without its status, as an API server stores them."""

    @property
    def key(self) -> str:
        """For `Inventory.set_reservations`; another object of the same name is another job."""
        return f"{self.namespace}/{self.name}/{self.uid}"


def parse_job(obj: Obj, previous: Job | None = None) -> Job:
    """The job as reconcile reads it. The spec is parsed anew only if uid or generation differ from `previous`."""
    meta = obj["metadata"]
    uid, generation = str(meta.get("uid", "")), int(meta.get("generation", 0))
    spec: Spec | None
    problems: tuple[Cause, ...]
    derived: Derived | None
    beside = stored_bytes({key: value for key, value in obj.items() if key != "status"})
    name, namespace = str(meta["name"]), str(meta.get("namespace", "default"))
    if previous is not None and (previous.uid, previous.generation) == (uid, generation):
        spec, problems, derived = previous.spec, previous.problems, previous.derived
    else:
        spec, problems = _parse_spec(obj, beside)
        derived = derive(spec, name=name, namespace=namespace, uid=uid) if spec is not None else None
    raw_spec = obj.get("spec")
    return Job(
        namespace=namespace,
        name=name,
        uid=uid,
        generation=generation,
        created=_time(meta.get("creationTimestamp")) or 0.0,
        deleting=bool(meta.get("deletionTimestamp")),
        managed_by=str(raw_spec.get("managedBy", names.MANAGER)) if isinstance(raw_spec, dict) else names.MANAGER,
        spec=spec,
        problems=problems,
        status=obj.get("status") or {},
        derived=derived,
        bytes_beside_status=beside,
    )


def _parse_spec(obj: Obj, beside: int) -> tuple[Spec | None, tuple[Cause, ...]]:
    try:
        spec = load({k: v for k, v in obj.items() if k != "status"}).spec
    except InvalidJob as error:
        return None, error.causes
    problems = (*_contradictions(spec), *too_large(spec, beside))
    return (None if problems else spec), problems


def _contradictions(spec: Spec) -> list[Cause]:
    """What reconcile cannot work with; the CRD's rules refuse everything else."""
    found: list[Cause] = []
    seen: set[str] = set()
    for index, pool in enumerate(spec.pools):
        where = f"spec.pools[{index}]"
        if pool.name in seen:
            found.append(Cause(f"{where}.name", f"another pool already has the name {pool.name!r}"))
        seen.add(pool.name)
        try:
            shape_of(pool)
        except ValueError as error:
            found.append(Cause(where, str(error)))
        if pool.learners.min > pool.learners.max:
            found.append(Cause(f"{where}.learners", f"min {pool.learners.min} is more than max {pool.learners.max}"))
    if spec.learners.min > spec.learners.max:
        found.append(Cause("spec.learners", f"min {spec.learners.min} is more than max {spec.learners.max}"))
    if spec.training.quorum > spec.learners.max:
        found.append(
            Cause("spec.training.quorum", f"{spec.training.quorum} learners can never contribute: learners.max is {spec.learners.max}")
        )
    return [*found, *template_problems(spec)]


# --- pods -------------------------------------------------------------------------------------------------------------
_SIGNALS = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


@dataclass(frozen=True, slots=True)
class Termination:
    """How the pod's main container ended."""

    exit_code: int
    signal: int = 0
    reason: str = ""
    """As a kubelet reports it: Completed, Error, OOMKilled, …"""
    message: str = ""
    """The termination message."""
    finished: float | None = None

    @property
    def text(self) -> str:
        """`exit 137 (SIGKILL)`."""
        signal = self.signal or (self.exit_code - 128 if self.exit_code > 128 else 0)
        known = _SIGNALS.get(signal, f"signal {signal}" if signal else "")
        return f"exit {self.exit_code}" + (f" ({known})" if known else "")


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of a job, the part of it that reconcile needs."""

    namespace: str
    name: str
    uid: str
    job: str
    owner: str
    """uid of the job that owns it."""
    component: str
    unit: str
    pool: str
    attempt: int
    host: int
    slice: str
    template_hash: str
    node: str
    """Where it runs, or must run: spec.nodeName, before that the host it is pinned to."""
    phase: str
    """Pending, Running, Succeeded, Failed, Unknown."""
    reason: str
    message: str
    """status.reason and status.message of the pod itself, such as Evicted."""
    ip: str
    created: float
    deletion: float | None
    """metadata.deletionTimestamp: when it should be gone; None: its deletion was not asked for."""
    running_since: float | None
    """When the main container started, None while it does not run."""
    waiting: str
    """Why the main container does not run yet, such as `ImagePullBackOff: …`."""
    startup: PodStartup | None
    """None once the main container has run."""
    unschedulable: str
    """The scheduler's message while it finds no place."""
    disruption: str
    """Condition DisruptionTarget: `<reason>: <message>`, "" without it."""
    termination: Termination | None
    """Of the main container: the present end, or the last one while it restarts."""
    main_ended: bool
    """The main container has run and does not run now; others of the pod, such as sidecars, may run on."""
    restarts: int
    ready: bool

    @property
    def ended(self) -> bool:
        """None of its processes runs any more, and none will."""
        return self.phase in ("Succeeded", "Failed")


def project_pod(obj: Obj) -> PodView:
    """From the raw Pod object."""
    meta = obj["metadata"]
    spec = obj.get("spec") or {}
    status = obj.get("status") or {}
    labels = meta.get("labels") or {}
    annotations = meta.get("annotations") or {}
    component = labels.get(names.LABEL_COMPONENT, "")
    main = names.SYNCER_CONTAINER if component == names.COMPONENT_SYNCER else names.LEARNER_CONTAINER
    container: dict[str, Any] = next((c for c in status.get("containerStatuses") or () if c.get("name") == main), {})
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    running = state.get("running")
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    target = conditions.get("DisruptionTarget", {})
    return PodView(
        namespace=meta.get("namespace", "default"),
        name=meta["name"],
        uid=meta.get("uid", ""),
        job=labels.get(names.LABEL_JOB, ""),
        owner=next((o.get("uid", "") for o in meta.get("ownerReferences") or () if o.get("controller")), ""),
        component=component,
        unit=labels.get(names.LABEL_UNIT, ""),
        pool=labels.get(names.LABEL_POOL, ""),
        attempt=_number(labels.get(names.LABEL_ATTEMPT)),
        host=_number(labels.get(names.LABEL_HOST)),
        slice=annotations.get(names.ANNOTATION_SLICE, ""),
        template_hash=annotations.get(names.ANNOTATION_TEMPLATE_HASH, ""),
        node=spec.get("nodeName") or annotations.get(names.ANNOTATION_NODE, ""),
        phase=status.get("phase", "Pending"),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        ip=status.get("podIP", ""),
        created=_time(meta.get("creationTimestamp")) or 0.0,
        deletion=_time(meta.get("deletionTimestamp")),
        running_since=_time(running.get("startedAt")) if running is not None else None,
        waiting=_join(waiting.get("reason", ""), waiting.get("message", "")),
        startup=project_startup(obj) if running is None and not state.get("terminated") else None,
        unschedulable=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        disruption=_join(target.get("reason", ""), target.get("message", "")) if target.get("status") == "True" else "",
        termination=_termination(state.get("terminated") or (container.get("lastState") or {}).get("terminated")),
        main_ended=bool(state.get("terminated")),
        restarts=int(container.get("restartCount", 0)),
        ready=conditions.get("Ready", {}).get("status") == "True",
    )


def _termination(raw: Mapping[str, Any] | None) -> Termination | None:
    if not raw:
        return None
    return Termination(
        exit_code=int(raw.get("exitCode", 0)),
        signal=int(raw.get("signal", 0)),
        reason=raw.get("reason", ""),
        message=raw.get("message", ""),
        finished=_time(raw.get("finishedAt")),
    )


# --- the other objects of a job ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Child:
    """A ConfigMap, Service or PersistentVolumeClaim of the job."""

    name: str
    uid: str
    owner: str
    job_file: str
    """Digest of what the job file in its data says; "" for kinds without data."""
    data: str
    """Digest of its data as it is; "" for kinds without."""
    deleting: bool


def project_child(obj: Obj) -> Child:
    meta, data = obj["metadata"], obj.get("data")
    return Child(
        name=meta["name"],
        uid=meta.get("uid", ""),
        owner=next((o.get("uid", "") for o in meta.get("ownerReferences") or () if o.get("controller")), ""),
        job_file=job_file_digest(data) if data else "",
        data=digest(data) if data else "",
        deleting=bool(meta.get("deletionTimestamp")),
    )


@dataclass(frozen=True, slots=True)
class Children:
    """Those that exist under the names that the job uses (api.names), whatever owns them; None: there is none."""

    config_map: Child | None = None
    service: Child | None = None
    volume_claim: Child | None = None
    authority: CertificateSecret | None = None
    certificates: Mapping[str, CertificateSecret] = field(default_factory=dict)
    """By name: every other Secret with the job's label."""


# --- the whole --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ObservedState:
    """Everything that a reconcile decides on, besides the time."""

    job: Job
    fleet: Fleet
    """The operator's inventory. It does not change during a reconcile; `Plan.reservations` goes into it right after."""
    config: OperatorConfig
    pods: tuple[PodView, ...] = ()
    """All with the label of this job in its namespace."""
    children: Children = field(default_factory=Children)
    rejected_writes: Mapping[WriteKey, RejectedWrite] = field(default_factory=dict)
    """Objects of the job whose last creation or change the API server rejected."""
    priority: int = 0
    """The value of the job's PriorityClass."""
    reclaims: Mapping[SliceRequirements, int] = field(default_factory=dict)
    """What units of other jobs found no slice for, and how many slices this job's Scavenged pools are to give back for it; 0: others do,
    but none may be taken away from under them."""
    report: Report | None = None
    """The last one, with `received_at` in seconds since the epoch on the operator's clock; None: the syncer has not reported yet."""


def _time(text: str | None) -> float | None:
    return parse_timestamp(text) if text else None


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def _join(reason: str, message: str) -> str:
    return f"{reason}: {message}" if reason and message else reason or message
