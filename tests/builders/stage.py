"""A stage on which reconcile plays: a pure, tiny API server and kubelet under a hand-moved clock.

A test sets the scene (`Stage(a_job()..., nodes)`), lets time and cluster act, and checks plans and status. `crash_after` carries
out only the first writes of a plan, as if the operator had died there.
"""

from __future__ import annotations

import copy
import datetime
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from builders.jobs import JobBuilder, a_job
from builders.nodes import a_node, a_tpu_node, signals
from builders.pods import exits, is_bound, is_deleted, phase, starts
from builders.reports import a_report, a_unit_report
from builders.workloads import SimulatedQueue
from diloco_local.memory.api import merge_patch
from diloco_operator.allotment import Allotted
from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.reasons import all_reasons
from diloco_operator.certificates.issuing import Issuer
from diloco_operator.certificates.view import project_certificates
from diloco_operator.fleet import Inventory, project_node
from diloco_operator.fleet.admission import KnownAdmission
from diloco_operator.kube.client import ApiError, Resource
from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp
from diloco_operator.operator.certificate_writes import certificate_writes
from diloco_operator.operator.executor import ExecutionResult, Failure
from diloco_operator.operator.pod_answers import PodAnswers, dry_run_admissions
from diloco_operator.plan import Create, Delete, Patch, Plan
from diloco_operator.reconcile import (
    Children,
    Job,
    ObservedState,
    OperatorConfig,
    parse_job,
    project_child,
    project_pod,
    reconcile,
    reservations,
)
from diloco_operator.reconcile.grantors.registry import WATCHES
from diloco_operator.reconcile.observe.part_secret import project_part_secret
from diloco_operator.reconcile.observe.part_view import PartView
from diloco_operator.reconcile.observe.rejected_writes import RejectedWrite, WriteKey, write_key
from diloco_operator.report import Report, ReportFault, UnitPhase

START = parse_timestamp("2026-11-20T12:00:00Z")
_KNOWN = {(reason.subject, reason.value) for reason in all_reasons()}
_REPORTED = {reason.value for reason in all_reasons() if reason.severity}
_CHILDREN = {"ConfigMap": "config_map", "Service": "service", "PersistentVolumeClaim": "volume_claim"}


def unknown_reasons(plan: Plan) -> list[tuple[str, str]]:
    """(subject, reason) of what a plan writes and the table of reasons does not have."""
    status = plan.status.status if plan.status is not None else {}
    written = [(each["type"], each["reason"]) for each in status.get("conditions", ()) if each["type"] in set(ConditionType)]
    written += [("Unit", each["reason"]) for each in status.get("units", ()) if each["reason"]]
    written += [("Pool", each["reason"]) for each in status.get("pools", ()) if each["reason"]]
    events = (("Event", event.reason) for event in plan.events if event.reason not in _REPORTED)
    return [*(each for each in written if each not in _KNOWN), *events]


class Stage:
    def __init__(self, job: JobBuilder | dict[str, Any], *nodes: dict[str, Any], config: OperatorConfig | None = None) -> None:
        self.job = job.build() if isinstance(job, JobBuilder) else job
        self.config = config or OperatorConfig()
        self.now = START
        # cpu-0 is where the syncer runs.
        self.nodes = {node["metadata"]["name"]: node for node in (*nodes, a_node("cpu-0"))}
        self.inventory = Inventory(signals())
        for node in self.nodes.values():
            self.inventory.update_node(project_node(node, self.config.end_annotations))
        self.pods: dict[str, dict[str, Any]] = {}
        self.children: dict[str, dict[str, Any]] = {}
        self.external_service: dict[str, Any] | None = None
        self.host_lists: dict[str, dict[str, Any]] = {}
        self.granted: dict[str, dict[str, dict[str, Any]]] = {watched.resource.kind: {} for watched in WATCHES}
        """Kind -> by name: the objects by which grantors are asked, and answer."""
        self.secrets: dict[str, dict[str, Any]] = {}
        self.parts: dict[str, PartView] = {}
        """Cluster -> what is known of the part that the operator makes there."""
        self.part_secret: dict[str, Any] | None = None
        """The Secret that a person brought from home."""
        self.issuer = Issuer(lambda: self.now, self.config.certificate_lifetime)
        self.report: Report | None = None
        self.listening_since = 0.0
        self.rejected_writes: dict[WriteKey, RejectedWrite] = {}
        self.revoked: dict[str, str] = {}
        self.unreadable: dict[Resource, str] = {}
        self.default_class = False
        self.prepares = False
        self.non_preempting: set[str] = set()
        """PriorityClasses with preemptionPolicy Never."""
        self.job_gone = False
        self.report_fault: ReportFault | None = None
        self._unsure = False
        self.admits: Callable[[dict[str, Any]], None] = lambda pod: None
        """What admission makes of a pod."""
        self.admissions: Mapping[str, KnownAdmission] = {}
        self.refuses: Callable[[dict[str, Any]], ApiError | None] = lambda pod: None
        """Why the API server refuses the dry run of a pod; None: it does not."""
        self.answers = PodAnswers()
        self.plans: list[Plan] = []
        self._uids = itertools.count(1)
        self._parsed: Job | None = None

    # --- the operator --------------------------------------------------------------------------------------------------
    def observed(self) -> ObservedState:
        self._parsed = parse_job(self.job, self._parsed)
        return ObservedState(
            job=self._parsed,
            fleet=self.inventory,
            config=self.config,
            pods=tuple(project_pod(pod) for pod in self.pods.values()),
            children=self._children(),
            default_class=self.default_class,
            listening_since=self.listening_since,
            report=self.report,
            report_fault=self.report_fault,
            rejected_writes=self.rejected_writes,
            admissions=self.admissions,
            pod_answers=self.answers.by_pool,
            allotted=Allotted(revoked=self.revoked, prepares=self.prepares),
            unreadable=self.unreadable,
            non_preempting=self.non_preempting,
            parts=self.parts,
        )

    def _children(self) -> Children:
        found = {name: project_certificates(obj) for name, obj in self.secrets.items()}
        authority = found.pop(f"{self.job['metadata']['name']}-ca", None)
        single = {_CHILDREN[kind]: project_child(obj) for kind, obj in self.children.items()}
        return Children(
            config_map=single.get("config_map"),
            service=single.get("service"),
            external_service=project_child(self.external_service) if self.external_service is not None else None,
            volume_claim=single.get("volume_claim"),
            authority=authority,
            certificates=found,
            part_secret=project_part_secret(self.part_secret) if self.part_secret is not None else None,
            host_lists={name: project_child(obj) for name, obj in self.host_lists.items()},
            granted={
                watched.resource: {name: watched.project(obj) for name, obj in self.granted[watched.resource.kind].items()}
                for watched in WATCHES
            },
        )

    def reconcile_only(self) -> Plan:
        """One reconcile, nothing carried out."""
        self.inventory.advance(self.now)
        if self._unsure:  # as the operator does after a plan that was not carried out in full
            observed = self.observed()
            self.inventory.set_reservations(observed.job.key, *reservations(observed.job, observed.pods, self.inventory))
        self._unsure = False
        plan = reconcile(self.observed(), datetime.datetime.fromtimestamp(self.now, datetime.UTC))
        self.plans.append(plan)
        self.admissions = plan.admissions
        assert unknown_reasons(plan) == []
        return plan

    def step(self, crash_after: int | None = None) -> Plan:
        """One reconcile, carried out; with `crash_after` only its first writes."""
        plan = self.reconcile_only()
        self.inventory.set_reservations(parse_job(self.job, self._parsed).key, *plan.reservations)
        secrets = certificate_writes(self.issuer, plan.certificates)  # a pod comes after the Secret with its certificate
        changes = sorted([*secrets, *plan.creates], key=lambda write: write.wave)
        writes: list[Any] = [*plan.patches, *changes, *([plan.status] if plan.status else []), *plan.deletes]
        for write in writes if crash_after is None else writes[:crash_after]:
            if isinstance(write, Create):
                self._create(write)
            elif isinstance(write, Patch):
                self._patch(write)
            elif isinstance(write, Delete):
                self._delete(write)
            else:
                self.job["status"] = copy.deepcopy(write.status)
        if crash_after is None:
            self._answer(plan)
        return plan

    def _answer(self, plan: Plan) -> None:
        """Carry out the dry runs of a plan."""
        result = ExecutionResult()
        for check in plan.pod_checks:
            error = self.refuses(check.pod)
            result.answers.append((check, Failure("dry run", error) if error is not None else None))
            if error is None:
                self.admits(stored := copy.deepcopy(check.pod))
                result.admitted.append((check, stored))
        self.answers.note(self.job["metadata"]["generation"], plan, result, self.now)
        self.admissions = {**self.admissions, **dry_run_admissions(result, self.now)}

    def step_rejected(self, rejects: Callable[[dict[str, Any]], str], code: int = 403) -> Plan:
        """One reconcile of which the API server rejects some creates: `rejects` says why, "" accepts one. As the executor does it,
        the rest of that wave is made, and nothing after it."""
        plan = self.reconcile_only()
        self.inventory.set_reservations(parse_job(self.job, self._parsed).key, *plan.reservations)
        for wave in sorted({create.wave for create in plan.creates}):
            rejected = {}
            for create in (each for each in plan.creates if each.wave == wave):
                key = write_key(create.resource, create.obj)
                if message := rejects(create.obj):
                    before = self.rejected_writes.get(key)
                    count = before.count + 1 if before else 1
                    generation = self.job["metadata"]["generation"]
                    rejected[key] = RejectedWrite(code, message, self.now, generation, transient=code >= 500, count=count)
                else:
                    self._create(create)
            self.rejected_writes |= rejected
            if rejected:
                self._unsure = True
                return plan
        self._finish(plan)
        return plan

    def _finish(self, plan: Plan) -> None:
        if plan.status is not None:
            self.job["status"] = copy.deepcopy(plan.status.status)
        for delete in plan.deletes:
            self._delete(delete)

    def restart_operator(self) -> None:
        """Everything that was only in memory is gone."""
        self._parsed = None
        self.report = None
        self.listening_since = self.now
        self.rejected_writes = {}
        self.admissions = {}
        self.answers = PodAnswers()
        self.inventory = Inventory(signals())
        for node in self.nodes.values():
            self.inventory.update_node(project_node(node, self.config.end_annotations))
        observed = self.observed()
        self.inventory.set_reservations(observed.job.key, *reservations(observed.job, observed.pods, self.inventory))

    def settle(self, reconciles: int = 20) -> None:
        """Reconciles until a plan is empty; nothing else happens meanwhile."""
        for _ in range(reconciles):
            if self.step().empty:
                return
        raise AssertionError(f"still busy after {reconciles} reconciles: {self.plans[-1]}")

    def _create(self, create: Create) -> None:
        obj = copy.deepcopy(create.obj)
        obj["metadata"]["uid"] = f"uid-{next(self._uids)}"
        if create.resource.kind == "Secret":
            assert create.obj["metadata"]["name"] not in self.secrets, "the plan was made from what there is"
            self.secrets[create.obj["metadata"]["name"]] = obj
            return
        if "diloco.dev/unit" in obj["metadata"]["labels"] and create.resource.kind == "ConfigMap":
            self.host_lists.setdefault(obj["metadata"]["name"], obj)
            return
        if create.resource.kind == "Service" and obj["spec"].get("type") == "LoadBalancer":
            assert self.external_service is None, "the plan was made from what there is"
            self.external_service = obj
            return
        if create.resource.kind in _CHILDREN:
            self.children.setdefault(create.resource.kind, obj)
            return
        obj["metadata"]["creationTimestamp"] = datetime.datetime.fromtimestamp(self.now, datetime.UTC).isoformat()
        if create.resource.kind in self.granted:
            self.granted[create.resource.kind].setdefault(obj["metadata"]["name"], obj)
            return
        self.admits(obj)
        obj["status"] = {"phase": "Pending"}
        self.pods.setdefault(obj["metadata"]["name"], obj)

    def _patch(self, patch: Patch) -> None:
        if patch.resource.kind == "PersistentVolumeClaim":
            claim = self.children[patch.resource.kind]
            assert (claim["metadata"]["uid"], claim["metadata"].get("resourceVersion", "")) == tuple(
                patch.body["metadata"][key] for key in ("uid", "resourceVersion")
            )
            self.children[patch.resource.kind] = merge_patch(claim, patch.body)
            self.children[patch.resource.kind]["metadata"]["resourceVersion"] = str(next(self._uids))
            return
        if patch.resource.kind == "DiLoCoJob":
            meta = patch.body["metadata"]
            assert (self.job["metadata"]["uid"], self.job["metadata"].get("resourceVersion", "")) == (meta["uid"], meta["resourceVersion"])
            self.job = merge_patch(self.job, {"metadata": {"finalizers": meta["finalizers"]}})
            return
        if patch.resource.kind == "Pod":
            assert self.pods[patch.name]["metadata"]["uid"] == patch.body["metadata"]["uid"]
            self.pods[patch.name] = merge_patch(self.pods[patch.name], patch.body)
            return
        secret = self.secrets[patch.name]
        meta = patch.body["metadata"]
        assert (secret["metadata"]["uid"], secret["metadata"].get("resourceVersion", "")) == (meta["uid"], meta["resourceVersion"])
        secret["data"] = {key: value for key, value in {**secret["data"], **patch.body["data"]}.items() if value is not None}
        secret["metadata"]["resourceVersion"] = str(next(self._uids))

    def _delete(self, delete: Delete) -> None:
        if delete.resource.kind == "Secret":
            assert self.secrets.pop(delete.name)["metadata"]["uid"] == delete.uid
        elif delete.resource.kind in self.granted:
            assert self.granted[delete.resource.kind].pop(delete.name)["metadata"]["uid"] == delete.uid
        elif delete.resource.kind == "DiLoCoJob":
            self.job_gone = True
        elif delete.name in self.host_lists:
            assert self.host_lists.pop(delete.name)["metadata"]["uid"] == delete.uid
        elif self.external_service is not None and delete.uid == self.external_service["metadata"]["uid"]:
            self.external_service = None
        elif delete.resource.kind in _CHILDREN:
            assert self.children[delete.resource.kind]["metadata"]["uid"] == delete.uid
            del self.children[delete.resource.kind]
        elif (pod := self.pods.get(delete.name)) is not None and pod["metadata"]["uid"] == delete.uid:
            if (delete.grace_seconds == 0 or phase(pod) != "Running") and not pod["metadata"].get("finalizers"):
                del self.pods[delete.name]  # nothing runs that would need a signal
            elif "deletionTimestamp" not in pod["metadata"]:
                is_deleted(pod, self.now)

    @property
    def workloads(self) -> dict[str, dict[str, Any]]:
        """Workloads of Kueue."""
        return self.granted["Workload"]

    # --- the cluster -----------------------------------------------------------------------------------------------------
    def advance(self, seconds: float) -> None:
        self.now += seconds
        if self.report is not None:
            fields = {name: getattr(self.report, name) for name in Report.__slots__}
            self.report = Report(**{**fields, "received_at": self.now})

    def set_node(self, node: dict[str, Any]) -> None:
        self.nodes[node["metadata"]["name"]] = node
        self.inventory.update_node(project_node(node, self.config.end_annotations))

    def lose_node(self, name: str) -> None:
        """The Node object goes, and with it, as the garbage collector sees to it, its pods."""
        del self.nodes[name]
        self.inventory.remove_node(name)
        self.pods = {n: p for n, p in self.pods.items() if p["spec"].get("nodeName") != name}

    def with_quota(self, groups: int = 1) -> SimulatedQueue:
        """Kueue is installed, and has quota for so many groups of pods."""
        return SimulatedQueue(self, groups)

    def kubelets_start(self) -> None:
        """Every pending pod runs."""
        for pod in self.pods.values():
            if phase(pod) == "Pending" and "deletionTimestamp" not in pod["metadata"]:
                starts(pod, self.now)

    def syncer_starts(self) -> None:
        """The syncer's pod runs, if there is one."""
        for pod in self.pods.values():
            if pod["metadata"]["labels"]["diloco.dev/component"] == "syncer":
                starts(pod, self.now)

    def binds(self, unit: str, attempt: int, *nodes: str) -> None:
        """kube-scheduler binds the pods of a delegated unit, the first to the first node."""
        for host, node in enumerate(nodes):
            is_bound(self.pod(unit, attempt, host), self.now, node)

    def kubelets_finish_deletions(self, code: int = 143) -> None:
        """Every pod that was asked to go has ended, and has gone, if no finalizer keeps it."""
        for pod in self.pods.values():
            if "deletionTimestamp" in pod["metadata"] and phase(pod) == "Running":
                exits(pod, code, self.now)
        self.pods = {n: p for n, p in self.pods.items() if "deletionTimestamp" not in p["metadata"] or p["metadata"].get("finalizers")}

    def pod(self, unit: str, attempt: int, host: int = 0) -> dict[str, Any]:
        return self.pods[f"{self.job['metadata']['name']}-{unit}-a{attempt}-{host}"]

    @property
    def syncer(self) -> dict[str, Any]:
        return self.pods[f"{self.job['metadata']['name']}-syncer"]

    def learner_exits(self, unit: str, attempt: int, code: int, host: int = 0, **how: Any) -> None:
        exits(self.pod(unit, attempt, host), code, self.now, **how)

    def failed_before(self, unit: str = "v5p-0") -> None:
        """The unit has failed once, a minute ago: the next failure has the first pause."""
        self.unit(unit)["failures"] = [format_timestamp(self.now - 60)]

    def all_contribute(self, **fields: Any) -> None:
        """The syncer has seen every learner pod that runs."""
        units: dict[str, int] = {}
        for pod in self.pods.values():
            labels = pod["metadata"]["labels"]
            if labels["diloco.dev/component"] == "learner" and phase(pod) == "Running":
                units[labels["diloco.dev/unit"]] = max(units.get(labels["diloco.dev/unit"], 0), int(labels["diloco.dev/attempt"]))
        self.report = a_report(*(a_unit_report(unit, attempt) for unit, attempt in units.items()), at=self.now, **fields)

    def syncer_says(self, unit: str, attempt: int, phase: UnitPhase, **fields: Any) -> None:
        """Say this of one unit; what the syncer said of the others stands."""
        known = dict(self.report.units) if self.report is not None else {}
        known[unit] = a_unit_report(unit, attempt, phase, **fields)
        self.report = a_report(*known.values(), at=self.now)

    def train(self) -> Stage:
        """From nothing until all contribute."""
        self.settle()
        self.kubelets_start()
        self.settle()
        self.kubelets_start()
        self.all_contribute()
        self.settle()
        return self

    def edit(self, **spec: Any) -> None:
        self.job["spec"] = {**self.job["spec"], **spec}
        self.job["metadata"]["generation"] += 1

    def scale(self, *, min: int | None = None, max: int | None = None) -> None:
        learners = dict(self.job["spec"]["learners"])
        learners |= {key: value for key, value in (("min", min), ("max", max)) if value is not None}
        self.edit(learners=learners)

    # --- reading -------------------------------------------------------------------------------------------------------
    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.job.get("status", {})
        return found

    def unit(self, name: str) -> dict[str, Any]:
        return next(unit for unit in self.status["units"] if unit["name"] == name)

    def states(self) -> dict[str, str]:
        return {unit["name"]: unit["state"] for unit in self.status.get("units", ())}

    def condition(self, type: str) -> dict[str, Any]:
        return next(c for c in self.status["conditions"] if c["type"] == type)

    def true(self) -> set[str]:
        """Types of the conditions that are True."""
        return {c["type"] for c in self.status["conditions"] if c["status"] == "True"}

    def learner_pods(self) -> list[str]:
        return sorted(n for n, p in self.pods.items() if p["metadata"]["labels"]["diloco.dev/component"] == "learner")

    def live_attempts(self) -> list[tuple[str, str, int]]:
        """(node, unit, attempt) of every learner pod that has not ended."""
        return [
            (
                p["metadata"]["annotations"]["diloco.dev/node"],
                p["metadata"]["labels"]["diloco.dev/unit"],
                int(p["metadata"]["labels"]["diloco.dev/attempt"]),
            )
            for p in self.pods.values()
            if p["metadata"]["labels"]["diloco.dev/component"] == "learner" and phase(p) not in ("Succeeded", "Failed")
        ]


def one_unit_on_two_nodes() -> Stage:
    """It trains on tpu-0, and tpu-1 is free."""
    return Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
