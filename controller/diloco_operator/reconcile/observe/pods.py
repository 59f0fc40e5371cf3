"""The part of a job's pod that reconcile needs, projected once from raw JSON for the caches. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from sys import intern

from diloco import contract
from diloco.error_line import error_line

from diloco_operator.api import names
from diloco_operator.api.status import SLICE_LIMIT, TEMPLATE_HASH_LIMIT
from diloco_operator.fleet.admission import AdmittedPod, admitted_pod
from diloco_operator.fleet.devices import claimed_devices, has_accelerators
from diloco_operator.fleet.resources import Resources, resources_of
from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import (
    Fields,
    clip,
    controller_uid,
    fields,
    label_number,
    moment,
    needed_string,
    objects,
    string,
    text,
    whole_number,
)
from diloco_operator.kube.pods import ENDED
from diloco_operator.reconcile.observe.pod_marks import PodGroup, PodMarks
from diloco_operator.reconcile.observe.startup import PodStartup, project_startup
from diloco_operator.timeouts import RECONCILE

_SIGNALS = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


@dataclass(frozen=True, slots=True)
class Termination:
    """How the pod's main container ended."""

    exit_code: int
    signal: int = 0
    reason: str = ""
    """As a kubelet reports it: Completed, Error, OOMKilled, …"""
    message: str = ""
    """The syncer's whole termination message. Of a learner's, one line: its last words, or the error if the message is the end of a log."""
    is_last_words: bool = False
    """`message` is the learner's last words. If the main process is a launcher, `exit_code` is from them, too."""
    finished: float | None = None

    @property
    def text(self) -> str:
        """`exit 137 (SIGKILL)`."""
        signal = self.signal or (self.exit_code - 128 if self.exit_code > 128 else 0)
        name = _SIGNALS.get(signal, f"signal {signal}" if signal else "")
        return f"exit {self.exit_code}" + (f" ({name})" if name else "")


@dataclass(frozen=True, slots=True)
class PodView:
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
    """Name of the grantor that brings a node for it, "" if it is pinned to its node."""
    node: str
    """spec.nodeName, or before it is bound the host that it is pinned to. "" if it is delegated and not bound."""
    uses: Resources | None
    """What it takes of its node, without devices that it claims. None if it has no node or has ended."""
    admitted: AdmittedPod
    """The pod as the API server has made it, with its requests."""
    takes_accelerators: bool
    """The pod itself requests or claims some. Its labels prove nothing: everyone who may create pods can write them."""
    phase: str
    """Pending, Running, Succeeded, Failed, Unknown."""
    reason: str
    message: str
    """status.reason and status.message of the pod itself, such as Evicted."""
    ip: str
    created: float
    deletion: float | None
    """metadata.deletionTimestamp, when it should be gone. None if it was not deleted."""
    running_since: float | None
    """When the main container started. None while it does not run."""
    waiting: str
    """Why the main container does not run yet, such as `ImagePullBackOff: …`."""
    startup: PodStartup | None
    """None once the main container has run."""
    unschedulable: str
    """The scheduler's message while it finds no node for the pod."""
    disruption: str
    """`<reason>: <message>` of the condition DisruptionTarget or the like of a grantor, "" without one."""
    termination: Termination | None
    """The end of the main container, or its last end while it restarts."""
    main_ended: bool
    """The main container has run and does not run now. Other containers of the pod, such as sidecars, may still run."""
    restarts: int
    ready: bool
    group: PodGroup | None = None
    problem: str = ""
    """Why the operator cannot have made this pod, "" if it can have. Such a pod is left alone: everyone who may create pods can write the
    job's labels."""

    @property
    def ended(self) -> bool:
        """None of its processes runs, and none will."""
        return self.phase in ENDED

    @property
    def stuck_from(self) -> float | None:
        """When it counts as stuck if it has not ended by then. None if it was not deleted, or has ended."""
        return self.deletion + RECONCILE.stuck_deletion if self.deletion is not None and not self.ended else None

    @property
    def never_runs(self) -> bool:
        """It was deleted before a scheduler bound it. Only a finalizer keeps it, such as its grantor's."""
        return self.deletion is not None and not self.node and not self.ended

    @property
    def held(self) -> bool:
        """Its grantor counts it, and keeps the object as long as it does."""
        return self.group is not None and self.group.held


_POD = "metadata.labels", "metadata.annotations", "status", "status.containerStatuses[]", "status.conditions[]"


def project_pod(obj: Obj, marks: PodMarks) -> PodView:
    """Project the raw Pod object. Raises `MalformedField`."""
    # Strings that many pods share are interned: they are more bytes than all the rest.
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
    attempt = label_number(string(labels, names.LABEL_ATTEMPT, in_labels))
    host = label_number(string(labels, names.LABEL_HOST, in_labels))
    admitted, grantor = admitted_pod(spec), string(annotations, names.ANNOTATION_GRANTOR, in_annotations)
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
        # Claimed devices are counted by the claim.
        uses=(resources_of(spec) if claimed_devices(spec) else admitted.requests) if node and phase not in ENDED else None,
        admitted=admitted,
        takes_accelerators=has_accelerators(admitted.requests.devices),
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
    """The condition with which Kubernetes or a grantor takes the pod away; empty if there is none."""
    candidates = (conditions.get(kind, {}) for kind in ("DisruptionTarget", *marks.evictions))
    return next((each for each in candidates if each.get("status") == "True"), {})


def _label_problem(name: str, job: str, component: str, unit: str, pool: str, attempt: int, host: int) -> str:
    """Why the operator cannot have written these labels, "" if it can have. The operator names every pod after its labels."""
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
    if component != names.COMPONENT_SYNCER:  # the caches keep ended learners long, so keep little of each
        words = contract.parse_last_words("".join(message.strip().splitlines()[-1:]))
        message = (error_line(message) if words is None else _text_of(words))[:_LAST_LINE]
    if words is not None and code == contract.Exit.CRASHED and words.status > 0:  # torchrun exits so whatever the status of its ranks
        code = words.status
    return Termination(
        exit_code=code,
        signal=whole_number(raw, "signal", "terminated"),
        reason=text(raw, "reason", "terminated"),
        message=message,
        is_last_words=words is not None,
        finished=moment(raw, "finishedAt", "terminated"),
    )


def _text_of(words: contract.LastWords) -> str:
    return words.message if words.rank is None else f"rank {words.rank}: {words.message}"


def _address(text: str) -> str:
    """The text if it is an IP address, else "": the operator must not connect to a name from a pod's status."""
    try:
        return str(ipaddress.ip_address(text)) if text else ""
    except ValueError:
        return ""


def _loopback(text: str) -> str:
    """Like `_address`, but only an address of this machine: a user who may annotate pods must not choose where the operator connects."""
    address = _address(text)
    return address if address and ipaddress.ip_address(address).is_loopback else ""


def _join(reason: str, message: str) -> str:
    return f"{reason}: {message}" if reason and message else reason or message
