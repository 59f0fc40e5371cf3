"""Checks of what a namespace does to the pods of jobs: quotas, Pod Security, and service meshes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diloco.wording import plural
from diloco_operator.accelerators import CATALOGUE, CPU
from diloco_operator.api import names
from diloco_operator.api.spec import Pool, Spec
from diloco_operator.kube.client import Obj
from diloco_operator.kube.quantities import quantity

from diloco_cli.checks.model import Check, Facts, Finding, error, ok, read, warning
from diloco_cli.checks.nodes import hosts_by_kind

ENFORCE = "pod-security.kubernetes.io/enforce"
_PROFILES = ("privileged", "baseline", "restricted")
"""From the loosest to the strictest: https://kubernetes.io/docs/concepts/security/pod-security-standards/."""
_INJECTS = (
    ("Istio", "istio-injection", "enabled", "sidecar.istio.io/inject"),
    ("Istio", "istio.io/rev", "", "sidecar.istio.io/inject"),
    ("Linkerd", "linkerd.io/inject", "enabled", "linkerd.io/inject"),
    ("Kuma", "kuma.io/sidecar-injection", "enabled", "kuma.io/sidecar-injection"),
)
"""Mesh, label or annotation of a namespace, its value ("" for any), and the label or annotation with which a pod stays out."""


# --- quotas -----------------------------------------------------------------------------------------------------------
def quota(facts: Facts) -> Iterator[Finding]:
    """Find quotas that refuse pods, because these lack a request or limit or because no room is left."""
    findings: list[Finding] = []
    quotas = [obj for obj in facts.of(names.QUOTAS) if not _scoped(obj)]
    for obj in quotas:
        where = f"resourcequota {obj['metadata']['name']}"
        hard: Mapping[str, Any] = (obj.get("spec") or {}).get("hard") or {}
        used: Mapping[str, Any] = (obj.get("status") or {}).get("used") or {}
        for who, field, counted in _silent_pods(facts, hard):
            message = f"it counts {counted}, and {who} sets none: the API server refuses its pods"
            findings.append(error(Check.QUOTA, where, message, f"set {field}, or a LimitRange with defaults in the namespace"))
        for resource, limit in sorted(hard.items()):
            needed, what = _need(facts.spec, resource)
            left = quantity(str(limit)) - quantity(str(used.get(resource, 0)))
            if left < needed:
                message = f"{resource}: {used.get(resource, 0)} of {limit} are used, and {what} takes {needed}"
                findings.append(warning(Check.QUOTA, where, message, f"raise the quota, or wait until others have released {resource}"))
    yield from findings or [
        ok(Check.QUOTA, f"namespace {facts.namespace}", f"{plural(len(quotas), 'quota')}, and none refuses a job's pods")
    ]


def _scoped(quota: Obj) -> bool:
    """Whether the quota counts only some pods. It is not checked, since it is not known which ones."""
    spec = quota.get("spec") or {}
    return bool(spec.get("scopes") or spec.get("scopeSelector"))


def _silent_pods(facts: Facts, hard: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield whose pods lack a request or limit, the field that sets it, and the resource that the quota counts."""
    for resource, kind, name in _counted(hard):
        if _default(facts, kind, name):
            continue
        spec = facts.spec
        template = spec.syncer.template.spec if spec is not None and spec.syncer.template is not None else {}
        set_in_template = _set(template, names.SYNCER_CONTAINER, kind, name)
        if not facts.is_part and not set_in_template and not _of_configuration(facts, kind, name):
            yield "the syncer", f"config.syncer{name.capitalize()}{'Limit' if kind == 'limits' else ''} of the chart", resource
        for pool in spec.pools if spec is not None else ():
            if not _set(pool.template.spec, names.LEARNER_CONTAINER, kind, name):
                yield f"pool {pool.name}", f"resources.{kind}.{name} in its template", resource


def _counted(hard: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield resources that every pod must set: as the quota names them, `requests` or `limits`, and the name there."""
    for resource in sorted(hard):
        kind, _, name = resource.rpartition(".")
        if name in ("cpu", "memory") and kind in ("", "requests", "limits"):
            yield resource, kind or "requests", name


def _default(facts: Facts, kind: str, name: str) -> bool:
    """Whether a LimitRange sets it for containers that do not."""
    limits = (limit for limit_range in facts.of(names.LIMIT_RANGES) for limit in (limit_range.get("spec") or {}).get("limits") or ())
    # `default` is the default limit, and without a `defaultRequest` also the default request.
    parts = ("default",) if kind == "limits" else ("default", "defaultRequest")
    return any(limit.get("type") == "Container" and any(name in (limit.get(part) or {}) for part in parts) for limit in limits)


def _set(template: Mapping[str, Any], container: str, kind: str, name: str) -> bool:
    spec = next((part for part in template.get("containers") or () if part.get("name") == container), None)
    resources: Mapping[str, Any] = (spec or {}).get("resources") or {}
    # A limit without a request counts as the request, too.
    kinds = ("requests", "limits") if kind == "requests" else ("limits",)
    return any(name in (resources.get(part) or {}) for part in kinds)


def _of_configuration(facts: Facts, kind: str, name: str) -> bool:
    config = read(facts.config)
    limits = {"cpu": config.syncer_cpu_limit, "memory": config.syncer_memory_limit}
    requests = {"cpu": config.syncer_cpu, "memory": config.syncer_memory}
    return bool(limits[name] or (requests[name] if kind == "requests" else ""))


def _need(spec: Spec | None, resource: str) -> tuple[int, str]:
    """How much of a resource the next object of a job takes, and that object. 0 and "" if not known."""
    if resource in ("pods", "count/pods", "persistentvolumeclaims", "secrets", "services", "configmaps"):
        return 1, "a job"
    name = resource.removeprefix("requests.")
    for pool in spec.pools if spec is not None else ():
        try:
            shape = pool.shape
        except ValueError:
            continue
        if shape.resource == name:
            return shape.accelerators, f"a unit of pool {pool.name}"
    return 0, ""


# --- Pod Security -----------------------------------------------------------------------------------------------------
def pod_security(facts: Facts) -> Iterator[Finding]:
    """Find whether the namespace admits programs on the accelerators of the job or, without a job, of the cluster."""
    enforced = str((_namespace(facts).get("labels") or {}).get(ENFORCE) or "privileged")
    where = f"namespace {facts.namespace}"
    level = _PROFILES.index(enforced) if enforced in _PROFILES else 0
    spec = facts.spec
    wanted = [pool.accelerator for pool in spec.pools if not _chooses_user(pool)] if spec is not None else list(hosts_by_kind(facts))
    kinds = {name: CATALOGUE[name].access.profile for name in wanted if name in CATALOGUE}
    refused = sorted((name, profile) for name, profile in kinds.items() if _PROFILES.index(profile) < level)
    for name, profile in refused:
        message = f"it enforces {enforced}, and programs on {name} need {profile}: pods are refused"
        remedy = f"kubectl label namespace {facts.namespace} {ENFORCE}={profile} --overwrite, or say runAsNonRoot: true in the templates"
        if spec is not None:
            yield error(Check.POD_SECURITY, where, message, remedy)
        else:
            yield warning(Check.POD_SECURITY, where, message, remedy)
    if not refused:
        who = ", ".join(sorted(kinds)) or CPU
        yield ok(Check.POD_SECURITY, where, f"it enforces {enforced}, which admits programs on {who}")


def _chooses_user(pool: Pool) -> bool:
    """Whether the template itself decides as which user its program runs."""
    parts = [pool.template.spec, *(pool.template.spec.get("containers") or ())]
    contexts = [part.get("securityContext") or {} for part in parts]
    return any(context.get("runAsNonRoot") or "runAsUser" in context or context.get("privileged") for context in contexts)


# --- service meshes ---------------------------------------------------------------------------------------------------
def service_mesh(facts: Facts) -> Iterator[Finding]:
    """Find whether a service mesh puts proxies into the pods of jobs."""
    meta = _namespace(facts)
    marks = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    injection = next((candidate for candidate in _INJECTS if candidate[1] in marks and candidate[2] in ("", marks[candidate[1]])), None)
    where = f"namespace {facts.namespace}"
    if injection is None:
        yield ok(Check.SERVICE_MESH, where, "no mesh puts proxies into its pods")
        return
    mesh, _, _, out = injection
    if facts.spec is not None and all(_stays_out(metadata, out) for metadata in _template_marks(facts.spec)):
        yield ok(Check.SERVICE_MESH, where, f"{mesh} puts proxies into its pods, and the job's templates stay out ({out})")
        return
    message = f"{mesh} puts a proxy into each of its pods. These encrypt their traffic themselves; a proxy that is no native sidecar keeps "
    message += "a pod running after its program has ended"
    yield warning(Check.SERVICE_MESH, where, message, f'set {out}: "{_OUT[out]}" in metadata of the templates')


_OUT = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled", "kuma.io/sidecar-injection": "disabled"}


def _template_marks(spec: Spec) -> Sequence[Mapping[str, str]]:
    templates = [pool.template for pool in spec.pools]
    if spec.syncer.template is not None:
        templates.append(spec.syncer.template)
    pod_marks = [{**template.metadata.annotations, **template.metadata.labels} for template in templates]
    # A syncer without a template has no mark that keeps it out, so the mesh takes it. A part has no syncer here.
    return pod_marks if spec.syncer.template is not None or spec.syncer.at is not None else [*pod_marks, {}]


def _stays_out(marks: Mapping[str, str], out: str) -> bool:
    return marks.get(out) == _OUT[out]


def _namespace(facts: Facts) -> Mapping[str, Any]:
    """Metadata of the namespace, empty if it does not exist."""
    obj = next((candidate for candidate in facts.of(names.NAMESPACES) if candidate["metadata"]["name"] == facts.namespace), None)
    return obj["metadata"] if obj is not None else {}
