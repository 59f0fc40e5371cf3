"""Checks of syncers' storage: the class of their claims, and the state of a job's claim. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from diloco_operator.api import names
from diloco_operator.api.job import load
from diloco_operator.api.state import JobState
from diloco_operator.kube.client import Obj

from diloco_cli.checks.model import Check, Facts, Finding, Unreadable, error, named, ok, warning

_CLUSTER = "cluster"
_SET_CLASS = "set storageClassName of the chart, or spec.syncer.storage.className of jobs"


def classes(facts: Facts) -> Iterator[Finding]:
    """Find the StorageClass that a syncer's claim gets, and whether the cluster has it."""
    existing = {item["metadata"]["name"]: item for item in facts.of(names.STORAGE_CLASSES)}
    defaults = [name for name, item in existing.items() if (item["metadata"].get("annotations") or {}).get(names.DEFAULT_CLASS) == "true"]
    job_class = facts.spec.syncer.storage.class_name if facts.spec is not None else ""
    configured = "" if isinstance(facts.config, Unreadable) else facts.config.storage_class_name
    chosen, by = (job_class, facts.job_name) if job_class else (configured, "the operator's configuration")
    if chosen and chosen not in existing:
        known = f"there are: {', '.join(sorted(existing))}" if existing else "there are none"
        yield error(Check.STORAGE_CLASS, by, f"names StorageClass {chosen}, which the cluster does not have; {known}", _SET_CLASS)
    elif chosen:
        yield ok(Check.STORAGE_CLASS, by, f"syncers' volumes are of class {chosen}")
    elif not defaults:
        remedy = f"kubectl annotate storageclass NAME {names.DEFAULT_CLASS}=true; or {_SET_CLASS}"
        yield error(Check.STORAGE_CLASS, _CLUSTER, "no StorageClass is the default: jobs that name none do not start", remedy)
    elif len(defaults) > 1:
        remedy = f"kubectl annotate storageclass NAME {names.DEFAULT_CLASS}- for all but one"
        yield warning(
            Check.STORAGE_CLASS, f"storageclass {named(sorted(defaults))}", "several classes are the default: the newest decides", remedy
        )
    else:
        yield ok(Check.STORAGE_CLASS, _CLUSTER, f"{defaults[0]} is the default class")


def volume(facts: Facts) -> Iterator[Finding]:
    """Find whether the claim of the job's syncer is bound."""
    assert facts.job is not None, "a check of a job"
    name = names.volume_claim_name(facts.job["metadata"]["name"])
    where = f"persistentvolumeclaim {name}"
    claim = next((candidate for candidate in facts.of(names.VOLUME_CLAIMS) if candidate["metadata"]["name"] == name), None)
    phase = str((claim.get("status") or {}).get("phase") or "Pending") if claim is not None else ""
    if claim is None and waits_for_hardware(facts.job):
        yield ok(Check.VOLUME, where, "it comes with the first slice of the job")
    elif claim is None:
        yield warning(Check.VOLUME, where, "it does not exist yet", "see what the line about the job says")
    elif phase == "Bound":
        yield ok(Check.VOLUME, where, "it is bound")
    elif phase == "Lost":
        remedy = "restore the volume, or delete the claim and start the job anew"
        yield error(Check.VOLUME, where, "its volume is lost", remedy)
    elif not claim["spec"].get("storageClassName"):
        message = "it is Pending without a StorageClass: nothing binds it, and no learner starts"
        yield error(Check.VOLUME, where, message, f"kubectl annotate storageclass NAME {names.DEFAULT_CLASS}=true; or {_SET_CLASS}")
    else:
        reason = _unscheduled(facts, facts.job["metadata"]["name"])
        yield warning(
            Check.VOLUME, where, f"it is Pending{': ' + reason if reason else ''}", f"kubectl describe pvc {name} -n {facts.namespace}"
        )


def waits_for_hardware(job: Obj) -> bool:
    """Whether the job has no slice yet. Then none of its objects has to exist."""
    return load(job).status.state is JobState.QUEUED


def _unscheduled(facts: Facts, job: str) -> str:
    """Why no node takes the syncer's pod, or "" if the scheduler does not tell."""
    pods = (candidate for candidate in facts.of(names.PODS) if candidate["metadata"]["name"] == names.syncer_pod_name(job))
    return next((unscheduled(pod) for pod in pods), "")


def unscheduled(pod: Obj) -> str:
    """Why no node takes the pod, in the scheduler's words. "" if the pod has a node, or no scheduler has looked at it."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next(
        (
            str(condition.get("message") or "")
            for condition in conditions
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        ),
        "",
    )
