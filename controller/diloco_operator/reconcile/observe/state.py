"""What one reconcile reads: the job, its pods and children, the fleet, the syncer's report. Plain data, projected once from raw JSON.

The operator keeps `PodView`s, `Child`ren and a parsed `Job` in its caches instead of raw objects, and assembles an `ObservedState` for
every reconcile. Times are seconds since the epoch.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import Any

from diloco import contract
from diloco.error_line import error_line
from diloco.wording import plural

from diloco_operator.api import names
from diloco_operator.api.job import SLICE_LIMIT, TEMPLATE_HASH_LIMIT, InvalidJob, Spec, load
from diloco_operator.api.kinds import kind_problems
from diloco_operator.certificates.view import CertificateSecret
from diloco_operator.fleet.devices import has_accelerators
from diloco_operator.fleet.resources import Resources, resources_of
from diloco_operator.fleet.slices import Fleet
from diloco_operator.kube.client import Cause, Obj, Resource
from diloco_operator.kube.fields import (
    Fields,
    MalformedField,
    clip,
    contents,
    controller_uid,
    fields,
    moment,
    needed_string,
    objects,
    string,
    strings,
    text,
    whole_number,
)
from diloco_operator.reconcile.config import OperatorConfig
from diloco_operator.reconcile.observe.derived import Derived, derive
from diloco_operator.reconcile.observe.object_size import stored_bytes, too_large
from diloco_operator.reconcile.observe.pod_answers import PodAnswer
from diloco_operator.reconcile.observe.pod_marks import PodGroup, PodMarks
from diloco_operator.reconcile.observe.rejected_writes import RejectedWrite, WriteKey
from diloco_operator.reconcile.observe.startup import PodStartup, project_startup
from diloco_operator.reconcile.observe.template import template_problems
from diloco_operator.reconcile.observe.template_hash import digest, job_file_digest
from diloco_operator.report import Report, ReportFault


# --- the job ----------------------------------------------------------------------------------------------------------
def job_key(namespace: str, name: str, uid: str) -> str:
    """Name a job for `Inventory.set_reservations`; another object of the same name is another job."""
    return f"{namespace}/{name}/{uid}"


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
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """See `job_key`."""
        return job_key(self.namespace, self.name, self.uid)


def parse_job(obj: Obj, previous: Job | None = None) -> Job:
    """The job as reconcile reads it. The spec is parsed anew only if uid or generation differ from `previous`. What is wrong with the spec
    becomes `problems`; raises `MalformedField` for wrong metadata."""
    meta = fields(obj, "metadata")
    uid, generation = string(meta, "uid", "metadata"), whole_number(meta, "generation", "metadata", most=2**63 - 1)
    spec: Spec | None
    problems: tuple[Cause, ...]
    derived: Derived | None
    beside = _bytes_beside_status(obj)
    name, namespace = needed_string(meta, "name", "metadata"), string(meta, "namespace", "metadata") or "default"
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
        created=moment(meta, "creationTimestamp", "metadata") or 0.0,
        deleting=bool(meta.get("deletionTimestamp")),
        managed_by=_managed_by(raw_spec),
        spec=spec,
        problems=problems,
        status=status if isinstance(status := obj.get("status"), dict) else {},
        derived=derived,
        bytes_beside_status=beside,
        labels=strings(meta, "labels", "metadata"),
    )


def _bytes_beside_status(obj: Obj) -> int:
    try:
        return stored_bytes({key: value for key, value in obj.items() if key != "status"})
    except RecursionError:
        raise MalformedField("spec", "is nested too deep") from None


def _managed_by(spec: object) -> str:
    found = spec.get("managedBy", names.MANAGER) if isinstance(spec, dict) else names.MANAGER
    return found if isinstance(found, str) else clip(str(found))


def _parse_spec(obj: Obj, beside: int) -> tuple[Spec | None, tuple[Cause, ...]]:
    try:
        spec = load({k: v for k, v in obj.items() if k != "status"}).spec
    except InvalidJob as error:
        return None, error.causes
    problems = (*_contradictions(spec), *too_large(spec, beside))
    return (None if problems else spec), problems


def _contradictions(spec: Spec) -> list[Cause]:
    """Return what reconcile cannot work with; the CRD's rules refuse everything else."""
    found: list[Cause] = []
    seen: set[str] = set()
    for index, pool in enumerate(spec.pools):
        where = f"spec.pools[{index}]"
        if pool.name in seen:
            found.append(Cause(f"{where}.name", f"another pool already has the name {pool.name!r}"))
        seen.add(pool.name)
        found += kind_problems(pool, where)
        if pool.learners.min > pool.learners.max:
            found.append(Cause(f"{where}.learners", f"min {pool.learners.min} is more than max {pool.learners.max}"))
    if spec.learners.min > spec.learners.max:
        found.append(Cause("spec.learners", f"min {spec.learners.min} is more than max {spec.learners.max}"))
    if spec.training.quorum > spec.learners.max:
        found.append(
            Cause(
                "spec.training.quorum",
                f"{plural(spec.training.quorum, 'learner')} can never contribute: learners.max is {spec.learners.max}",
            )
        )
    return [*found, *template_problems(spec)]


# --- pods -------------------------------------------------------------------------------------------------------------
_SIGNALS = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


ENDED = ("Succeeded", "Failed")
"""Phases of a pod that uses nothing any more."""


@dataclass(frozen=True, slots=True)
class Termination:
    """How the pod's main container ended."""

    exit_code: int
    signal: int = 0
    reason: str = ""
    """As a kubelet reports it: Completed, Error, OOMKilled, …"""
    message: str = ""
    """The termination message; of a learner one line of it: its last words, or where it is the end of its log, the error."""
    said: bool = False
    """The message is the learner's last words, and `exit_code` the status that they have where the main process is a launcher."""
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
    grantor: str
    """Who brings a node for it, by name; "": it is pinned to its node."""
    node: str
    """Where it runs, or must run: spec.nodeName, before that the host it is pinned to; "": a delegated pod that is not bound."""
    uses: Resources | None
    """What it takes of its node; None: it is not bound to one, or has ended."""
    takes_accelerators: bool
    """Its own containers request some. What its labels say proves nothing: who may create pods writes them."""
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
    """Condition DisruptionTarget, or that of a grantor: `<reason>: <message>`, "" without them."""
    termination: Termination | None
    """Of the main container: the present end, or the last one while it restarts."""
    main_ended: bool
    """The main container has run and does not run now; others of the pod, such as sidecars, may run on."""
    restarts: int
    ready: bool
    group: PodGroup | None = None
    """The pod group that it is in."""
    problem: str = ""
    """Why it cannot be a pod that the operator made, "" if it can: every writer of pods can write labels. It is left alone."""

    @property
    def ended(self) -> bool:
        """None of its processes runs any more, and none will."""
        return self.phase in ENDED

    @property
    def never_runs(self) -> bool:
        """It was deleted before a scheduler bound it. Only a finalizer keeps it, such as that of its grantor."""
        return self.deletion is not None and not self.node and not self.ended

    @property
    def held(self) -> bool:
        """Its grantor counts it, and keeps the object until it does so no longer."""
        return self.group is not None and self.group.held


_POD = "metadata.labels", "metadata.annotations", "status", "status.containerStatuses[]", "status.conditions[]"


def project_pod(obj: Obj, marks: PodMarks) -> PodView:
    """From the raw Pod object, with what grantors left on it. Raises `MalformedField`. Strings that many pods have in common are one object
    each: there are more bytes in them than in all the rest."""
    in_labels, in_annotations, in_status, in_container, in_condition = _POD
    meta, spec, status = fields(obj, "metadata"), fields(obj, "spec"), fields(obj, "status")
    labels, annotations = fields(meta, "labels", "metadata"), fields(meta, "annotations", "metadata")
    component = intern(string(labels, names.LABEL_COMPONENT, in_labels))
    main = names.SYNCER_CONTAINER if component == names.COMPONENT_SYNCER else names.LEARNER_CONTAINER
    statuses = objects(status, "containerStatuses", in_status)
    container: Fields = next((each for each in statuses if each.get("name") == main), {})
    state = fields(container, "state", in_container)
    waiting, ended = fields(state, "waiting", "state"), fields(state, "terminated", "state")
    conditions = {string(each, "type", in_condition): each for each in objects(status, "conditions", in_status)}
    scheduled, target = conditions.get("PodScheduled", {}), _disruption(conditions, marks)
    node, phase = intern(string(spec, "nodeName", "spec")), intern(string(status, "phase", in_status) or "Pending")
    name, job = needed_string(meta, "name", "metadata"), intern(string(labels, names.LABEL_JOB, in_labels))
    unit, pool = intern(string(labels, names.LABEL_UNIT, in_labels)), intern(string(labels, names.LABEL_POOL, in_labels))
    attempt = _number(string(labels, names.LABEL_ATTEMPT, in_labels))
    host = _number(string(labels, names.LABEL_HOST, in_labels))
    requests, grantor = resources_of(spec), string(annotations, names.ANNOTATION_GRANTOR, in_annotations)
    return PodView(
        namespace=intern(string(meta, "namespace", "metadata") or "default"),
        name=name,
        uid=string(meta, "uid", "metadata"),
        job=job,
        owner=intern(controller_uid(meta)),
        component=component,
        unit=unit,
        pool=pool,
        attempt=attempt,
        host=host,
        slice=intern(string(annotations, names.ANNOTATION_SLICE, in_annotations, limit=SLICE_LIMIT)),
        template_hash=intern(string(annotations, names.ANNOTATION_TEMPLATE_HASH, in_annotations, limit=TEMPLATE_HASH_LIMIT)),
        grantor=intern(grantor) if grantor in marks.grantors else "",
        node=node or intern(string(annotations, names.ANNOTATION_NODE, in_annotations)),
        uses=requests if node and phase not in ENDED else None,
        takes_accelerators=has_accelerators(requests.devices),
        phase=phase,
        reason=text(status, "reason", in_status),
        message=text(status, "message", in_status),
        ip=_address(string(status, "podIP", in_status)) or _loopback(string(annotations, names.ANNOTATION_ADDRESS, in_annotations)),
        created=moment(meta, "creationTimestamp", "metadata") or 0.0,
        deletion=moment(meta, "deletionTimestamp", "metadata"),
        running_since=moment(fields(state, "running", "state"), "startedAt", "state.running"),
        waiting=_join(text(waiting, "reason"), text(waiting, "message")),
        startup=project_startup(obj) if not state.get("running") and not ended else None,
        unschedulable=text(scheduled, "message", in_condition) if scheduled.get("status") == "False" else "",
        disruption=_join(text(target, "reason"), text(target, "message")) if target.get("status") == "True" else "",
        termination=_termination(ended or fields(fields(container, "lastState", in_container), "terminated", "lastState"), component),
        main_ended=bool(ended),
        restarts=whole_number(container, "restartCount", in_container),
        ready=conditions.get("Ready", {}).get("status") == "True",
        group=marks.group(meta, labels, annotations),
        problem=_label_problem(name, job, component, unit, pool, attempt, host),
    )


def _disruption(conditions: Mapping[str, Fields], marks: PodMarks) -> Fields:
    """The condition by which the cluster takes the pod away: Kubernetes' own, or that of a grantor."""
    found = (conditions.get(kind, {}) for kind in ("DisruptionTarget", *marks.evictions))
    return next((each for each in found if each.get("status") == "True"), {})


def _label_problem(name: str, job: str, component: str, unit: str, pool: str, attempt: int, host: int) -> str:
    """Return what of its labels the operator cannot have written: it names every pod by them."""
    if component == names.COMPONENT_SYNCER:
        return "" if name == names.syncer_pod_name(job) else f"a syncer's pod of job {clip(job)} has the name {names.syncer_pod_name(job)}"
    if component != names.COMPONENT_LEARNER:
        return ""
    if names.unit_index(pool, unit) is None:
        return f"its label {names.LABEL_UNIT} must be the pool's name, a dash and a number"
    if attempt < 1 or host < 0:
        return f"its labels {names.LABEL_ATTEMPT} and {names.LABEL_HOST} must be numbers"
    if names.is_learner_pod_name(name, job, unit, attempt, host):
        return ""
    return f"by its labels its name is {names.learner_pod_name(job, unit, attempt, host)}"


_TERMINATION_MESSAGE = 4096
"""Characters. Kubelets keep as many bytes of it."""
_LAST_LINE = 500


def _termination(raw: Fields, component: str) -> Termination | None:
    if not raw:
        return None
    message = text(raw, "message", "terminated", limit=_TERMINATION_MESSAGE, lines=True)
    code, words = whole_number(raw, "exitCode", "terminated"), None
    if component != names.COMPONENT_SYNCER:  # ended learners stay for long: what is kept of each is small
        words = contract.parse_last_words("".join(message.strip().splitlines()[-1:]))
        message = (error_line(message) if words is None else _said(words))[:_LAST_LINE]
    if words is not None and code == contract.Exit.CRASHED and words.status > 0:  # torchrun ends so, whatever its ranks' statuses are
        code = words.status
    return Termination(
        exit_code=code,
        signal=whole_number(raw, "signal", "terminated"),
        reason=text(raw, "reason", "terminated"),
        message=message,
        said=words is not None,
        finished=moment(raw, "finishedAt", "terminated"),
    )


def _said(words: contract.LastWords) -> str:
    return words.message if words.rank is None else f"rank {words.rank}: {words.message}"


def _address(text: str) -> str:
    """An IP address; "" for anything else: the operator must not connect to a name from a pod's status."""
    try:
        return str(ipaddress.ip_address(text)) if text else ""
    except ValueError:
        return ""


def _loopback(text: str) -> str:
    """The same, and "" for an address of another machine: who may annotate a pod must not send the operator there."""
    address = _address(text)
    return address if address and ipaddress.ip_address(address).is_loopback else ""


# --- the other objects of a job ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Child:
    """A ConfigMap, Service, PersistentVolumeClaim or PodTemplate of the job."""

    name: str
    uid: str
    owner: str
    job_file: str
    """Digest of what the job file in its data says; "" without one."""
    data: str
    """Digest of its data as it is; "" without a job file."""
    deleting: bool
    unit: str = ""
    attempt: int = 0
    """Of the list of the hosts of an attempt; others have neither."""
    version: str = ""
    """metadata.resourceVersion."""
    kept_for: str = ""
    """Of a volume claim that outlives its job: the uid of the job."""
    retain: str = ""
    """Its label LABEL_RETAIN."""
    syncer_image: str = ""
    """Its annotation ANNOTATION_SYNCER_IMAGE."""
    folder: str = ""
    """Its annotation ANNOTATION_FOLDER; "": it is a claim of a cluster."""
    phase: str = ""
    """Of a volume claim: Pending, Bound or Lost; "" where no API server said so."""
    storage_class: str = ""
    """Of a volume claim."""
    other_owners: str = ""
    """Its ownerReferences without the controller, as JSON; "" if there are none."""


def project_child(obj: Obj) -> Child:
    """From the raw object. Raises `MalformedField`."""
    meta = fields(obj, "metadata")
    labels, annotations = fields(meta, "labels", "metadata"), fields(meta, "annotations", "metadata")
    others = [owner for owner in objects(meta, "ownerReferences", "metadata") if not owner.get("controller")]
    data = contents(obj, "data")
    data = data if contract.JOB_FILE_KEY in data else {}
    return Child(
        name=needed_string(meta, "name", "metadata"),
        uid=string(meta, "uid", "metadata"),
        owner=controller_uid(meta),
        job_file=job_file_digest(data) if data else "",
        data=digest(data) if data else "",
        deleting=bool(meta.get("deletionTimestamp")),
        unit=string(labels, names.LABEL_UNIT, "metadata.labels"),
        attempt=_number(string(labels, names.LABEL_ATTEMPT, "metadata.labels")),
        version=string(meta, "resourceVersion", "metadata"),
        kept_for=string(annotations, names.ANNOTATION_JOB_UID, "metadata.annotations"),
        retain=string(labels, names.LABEL_RETAIN, "metadata.labels"),
        syncer_image=string(annotations, names.ANNOTATION_SYNCER_IMAGE, "metadata.annotations"),
        folder=string(annotations, names.ANNOTATION_FOLDER, "metadata.annotations"),
        other_owners=json.dumps(others) if others else "",
        phase=string(fields(obj, "status"), "phase", "status"),
        storage_class=string(fields(obj, "spec"), "storageClassName", "spec"),
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
    host_lists: Mapping[str, Child] = field(default_factory=dict)
    """By name: every ConfigMap with the labels of the job and of a unit."""
    granted: Mapping[Resource, Mapping[str, Any]] = field(default_factory=dict)
    """By resource and name: the objects by which grantors are asked for the job, and answer (`grantors.interface.Watched`)."""


# --- the whole --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ObservedState:
    """Everything that a reconcile decides on, besides the time."""

    job: Job
    fleet: Fleet
    """As this job may use it: of the free slices it offers those that the allotment has granted to the job. It does not change during a
    reconcile; `Plan.reservations` goes into the inventory right after."""
    config: OperatorConfig
    pods: tuple[PodView, ...] = ()
    """All with the label of this job in its namespace."""
    children: Children = field(default_factory=Children)
    rejected_writes: Mapping[WriteKey, RejectedWrite] = field(default_factory=dict)
    """Objects of the job whose last creation or change the API server rejected."""
    pod_answers: Mapping[str, PodAnswer] = field(default_factory=dict)
    """Pool -> what the API server said last of its pods, to a dry run or to a create."""
    checks: Collection[str] = frozenset()
    """Pools for which units of other jobs would leave, once a dry run of their pods is admitted."""
    default_class: bool = False
    """The last claim seen in the job's namespace, of a job that names no StorageClass, got the default one. False: the cluster has none, or
    no claim was seen. Not of other namespaces: who may make claims there could give one a class, and learners here would start early."""
    slices_since: Mapping[str, float] = field(default_factory=dict)
    """Unit -> when it got its slice; 0: before this operator started. Not there: it has just got it."""
    missing_rights: tuple[str, ...] = ()
    """What the operator may not read in the job's namespace, in words. What is observed may then be old or incomplete."""
    without: Mapping[Resource, str] = field(default_factory=dict)
    """Resources that a grantor of nodes needs and that cannot be read in the job's namespace, and why."""
    grantor_words: Mapping[str, str] = field(default_factory=dict)
    """Name of a pod that waits for its node -> what an autoscaler said of it last."""
    priority: int = 0
    """The value of the job's PriorityClass."""
    non_preempting: Collection[str] = frozenset()
    """Names of the PriorityClasses whose pods never pre-empt others."""
    revoked: Mapping[str, str] = field(default_factory=dict)
    """Units that must leave their slices -> the key of the job that gets these."""
    listening_since: float = 0.0
    """Since when this operator has listened to the syncer's reports, in seconds since the epoch."""
    report: Report | None = None
    """The last one, with `received_at` in seconds since the epoch on the operator's clock; None: the syncer has not reported yet."""
    report_fault: ReportFault | None = None
    """What is wrong with the syncer's reports, so that the operator leaves it alone; None: nothing is known to be wrong."""


def _number(text: str) -> int:
    """-1: none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1


def _join(reason: str, message: str) -> str:
    return f"{reason}: {message}" if reason and message else reason or message
