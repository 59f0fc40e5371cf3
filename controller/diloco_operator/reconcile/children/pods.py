"""Makes pods from a template and the contract. Pure; unchanged parts of a template are shared, never copied or written to.

The user's template wins wherever it does not break the contract: its image, command, security context, resources, affinity,
volumes and environment stay; identity, mounts, restart policy, host and accelerators are the operator's. A template that
would break the contract never comes here, because `observe.template` rejects it.

See docs/decisions/0040-learner-pods.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diloco import contract

from diloco_operator.accelerators import ACCELERATOR_LABELS, CATALOGUE
from diloco_operator.api import names
from diloco_operator.api.spec import PodTemplate, Pool, Spec
from diloco_operator.fleet.capacity import CapacityType, values_of
from diloco_operator.fleet.devices import claimed_devices
from diloco_operator.kube.client import Obj
from diloco_operator.kube.quantities import quantity
from diloco_operator.reconcile.children.claims import claiming, with_claim
from diloco_operator.reconcile.children.peers import Peers
from diloco_operator.reconcile.children.places import gang_label
from diloco_operator.reconcile.children.pod_security import pod_security, restricted, restricted_main, tmp_volumes, with_access
from diloco_operator.reconcile.config import OperatorConfig
from diloco_operator.reconcile.grantors.interface import PodPlace
from diloco_operator.reconcile.grantors.registry import grantor_of
from diloco_operator.reconcile.metadata import owner_reference
from diloco_operator.reconcile.observe.job import Job
from diloco_operator.reconcile.observe.shared_memory import PATH as SHARED_MEMORY_PATH
from diloco_operator.reconcile.observe.shared_memory import counted, shared_memory, size_text

_IDENTITY = (
    contract.ENV_UNIT,
    contract.ENV_ATTEMPT,
    contract.ENV_POOL,
    contract.ENV_HOSTS,
    contract.ENV_PROCESSES_PER_HOST,
    contract.ENV_ACCELERATORS_PER_HOST,
    contract.ENV_SYNCER_ADDRESS,
    contract.ENV_LOCALITY,
    contract.ENV_HOST,
)
"""Variables that tell a pod which host of which unit it is."""
_PRIORITY = ("priorityClassName", "priority", "preemptionPolicy")
"""Fields for a pod's importance. They go together: the API server accepts the last two only as they follow from the class."""
_UNSTEADY = values_of(CapacityType.SPOT, CapacityType.FLEX_START)
"""Label -> values of nodes that may be taken away, or that run for a limited time."""


@dataclass(frozen=True, slots=True)
class SyncerAccess:
    """How learner pods find the syncer and join it, if it is in another cluster."""

    address: str
    secret: str
    """Name of the Secret with the job file of home and the certificates of all units."""
    cluster: str
    """Name of this cluster, see `contract.ENV_CLUSTER`."""


@dataclass(frozen=True, slots=True)
class PodTemplateBase:
    """The parts that all learner pods of a pool share, made once for all of them."""

    job: Job
    pool: Pool
    labels: Mapping[str, str]
    """Labels from the job's spec and the pool's template."""
    spec: Obj
    """The PodSpec without the fields that differ from pod to pod."""
    containers: Sequence[Obj]
    learner: Obj
    """The container among `containers` that trains, without its environment."""
    env: tuple[Sequence[Obj], Sequence[Obj]]
    """Its variables before and after `_IDENTITY`."""
    template_variables: frozenset[str]
    """Names of the variables that the template sets."""
    volumes: Sequence[Obj]
    """All volumes except the job file and the certificate."""
    keep_annotations: Mapping[str, str]
    """Annotations that make autoscalers leave the pods where they are."""
    preempts: bool
    """The PriorityClass lets schedulers end pods of lower priority to make room."""
    access: SyncerAccess | None
    """None if the syncer is in this cluster."""


def learner_template_base(
    job: Job,
    spec: Spec,
    pool: Pool,
    config: OperatorConfig,
    non_preempting: Collection[str] = (),
    access: SyncerAccess | None = None,
) -> PodTemplateBase:
    """The pool's template with the whole contract except the identity of the hosts. `non_preempting`: PriorityClasses that never
    pre-empt. `access`: see `PodTemplateBase`."""
    template, memory = counted(pool), shared_memory(pool)
    kind = CATALOGUE[pool.accelerator]
    container = _container(template, names.LEARNER_CONTAINER)
    allowed = with_access(container, template, kind.access, users=config.assign_users)
    learner = restricted_main(_with_contract(allowed, [_value(name, "") for name in _IDENTITY]))
    if kind.resource and not claimed_devices(template):
        learner["resources"] = _with_devices(container.get("resources") or {}, kind.resource, pool.shape.accelerators_per_host)
    if memory:
        learner["volumeMounts"] = [*learner["volumeMounts"], {"name": names.SHARED_MEMORY_VOLUME, "mountPath": SHARED_MEMORY_PATH}]
    env = learner.pop("env")
    first = next(index for index, each in enumerate(env) if each["name"] == _IDENTITY[0])
    selector = {**(template.get("nodeSelector") or {}), **kind.node_selector(pool.topology)}
    pod_spec = {
        "terminationGracePeriodSeconds": config.learner_grace,
        **_common_spec(job, spec, template, config),
        "restartPolicy": "Never",
        "nodeSelector": selector,
        "securityContext": pod_security(template, users=config.assign_users),
        "tolerations": [
            *(template.get("tolerations") or ()),
            *({"key": key, "operator": "Exists"} for key in kind.taints),
        ],
    }
    return PodTemplateBase(
        job=job,
        pool=pool,
        labels=spec.pod_labels | pool.template.metadata.labels,
        spec=pod_spec,
        containers=[learner if c is container else restricted(c) for c in template["containers"]],
        learner=learner,
        env=(env[:first], env[first + len(_IDENTITY) :]),
        template_variables=frozenset(each["name"] for each in container.get("env") or ()),
        volumes=[*tmp_volumes(learner), *_shared_memory_volumes(memory), *(template.get("volumes") or ())],
        keep_annotations=names.KEEP_PODS if grantor_of(spec, pool) is not None else {},
        preempts=pod_spec.get("priorityClassName", "") not in ("", *non_preempting),
        access=access,
    )


def learner_pods(
    template_base: PodTemplateBase, *, unit: str, attempt: int, places: Sequence[PodPlace], locality: str, template_hash: str
) -> list[Obj]:
    """One pod for every host of an attempt, in the order of the places. `locality`: where all of them are, see
    `contract.ENV_LOCALITY`."""
    job, pool = template_base.job, template_base.pool
    peers = Peers(job, pool, unit, attempt, len(places))
    access, key = template_base.access, names.learner_secret_key(unit, attempt)
    if access is None:
        own = _volumes(_job_file_volume(job), names.learner_secret_name(job.name, pool.name, unit), key)
    else:
        own = _volumes(_job_file_of_home(access), access.secret, key)
    volumes = [*own, *template_base.volumes]
    labels = {
        **template_base.labels,
        names.LABEL_JOB: job.name,
        names.LABEL_COMPONENT: names.COMPONENT_LEARNER,
        names.LABEL_UNIT: unit,
        names.LABEL_POOL: pool.name,
        names.LABEL_ATTEMPT: str(attempt),
        **({names.LABEL_GANG: gang_label(job.uid, unit, attempt)} if len(places) > 1 else {}),
    }
    annotations = {**template_base.keep_annotations, **pool.template.metadata.annotations, names.ANNOTATION_TEMPLATE_HASH: template_hash}
    address = access.address if access is not None else syncer_address(job)
    shared = (unit, str(attempt), pool.name, *peers.counts(), address, locality)
    shared_env = [*peers.environment(), *([_value(contract.ENV_CLUSTER, access.cluster)] if access is not None else [])]
    pods = []
    for index, (peer, place) in enumerate(zip(peers.host_names, places, strict=True)):
        name = names.learner_pod_name(job.name, unit, attempt, index)
        before, after = template_base.env
        identity = [_value(variable, value) for variable, value in zip(_IDENTITY, (*shared, str(index)), strict=True)]
        ranks = [each for each in (*shared_env, *peers.rank_environment(index)) if each["name"] not in template_base.template_variables]
        learner = {**template_base.learner, "env": [*before, *identity, *ranks, *after]}
        claims = place.claims and not claimed_devices(template_base.spec)
        if claims:
            learner["resources"] = claiming(learner["resources"])
        if index == 0 and (ports := peers.ports(learner.get("ports") or ())):
            learner["ports"] = ports
        spec: Obj = {
            **template_base.spec,
            "hostname": peer,
            "affinity": place.affinity,
            "containers": [learner if each is template_base.learner else each for each in template_base.containers],
            "volumes": volumes,
        }
        if claims:
            spec = with_claim(job, pool, spec)
        if place.selector:
            spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **place.selector}
        if place.never_preempts and template_base.preempts:
            spec = {key: value for key, value in spec.items() if key not in _PRIORITY}
        if place.gates:
            spec["schedulingGates"] = [*(spec.get("schedulingGates") or ()), *place.gates]
        pod_labels = {**labels, names.LABEL_HOST: str(index), **place.labels}
        pods.append(_pod(job, name, pod_labels, {**annotations, **place.annotations}, spec))
    return pods


def _with_devices(resources: Mapping[str, Any], resource: str, count: int) -> Obj:
    """Set request and limit of an extended resource to the same count: Kubernetes accepts nothing else."""
    return {
        **resources,
        "requests": {**(resources.get("requests") or {}), resource: str(count)},
        "limits": {**(resources.get("limits") or {}), resource: str(count)},
    }


def _shared_memory_volumes(size: int) -> list[Obj]:
    return [{"name": names.SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": size_text(size)}}] if size else []


# --- the syncer -------------------------------------------------------------------------------------------------------
def syncer_image(spec: Spec, config: OperatorConfig) -> str:
    """The image of the job's syncer: its template's, else the configured one."""
    template = spec.syncer.template or PodTemplate()
    return str(_container(template.spec, names.SYNCER_CONTAINER).get("image") or config.syncer_image)


def syncer_pod(job: Job, spec: Spec, config: OperatorConfig, template_hash: str) -> Obj:
    """The syncer's pod. Its restartPolicy is OnFailure: after a crash the kubelet restarts it on the same volume."""
    template = spec.syncer.template or PodTemplate()
    container = _container(template.spec, names.SYNCER_CONTAINER)
    env = [
        _value(contract.ENV_STATE_DIR, contract.MOUNT_STATE),
        _value(contract.ENV_LISTEN_PORT, str(contract.SYNCER_PORT)),
    ]
    defaults: Obj = {
        "name": names.SYNCER_CONTAINER,
        "image": config.syncer_image,
        "command": list(config.syncer_command),
        "ports": [{"name": "grpc", "containerPort": contract.SYNCER_PORT}],
        "resources": _syncer_resources(config),
    }
    syncer = restricted_main(_with_contract({**defaults, **container}, env))
    syncer["volumeMounts"] = [*syncer["volumeMounts"], {"name": names.STATE_VOLUME, "mountPath": contract.MOUNT_STATE}]
    syncer["terminationMessagePath"] = contract.TERMINATION_LOG
    others = [restricted(c) for c in template.spec.get("containers") or () if c is not container]
    name = names.syncer_pod_name(job.name)
    claim = {"name": names.STATE_VOLUME, "persistentVolumeClaim": {"claimName": names.volume_claim_name(job.name)}}
    pod_spec = {
        "terminationGracePeriodSeconds": config.syncer_grace,
        "affinity": _steady_nodes(),
        **_common_spec(job, spec, template.spec, config),
        "restartPolicy": "OnFailure",
        "hostname": name,
        "securityContext": pod_security(template.spec, own_volumes=True, users=config.assign_users),
        "containers": [syncer, *others],
        "volumes": [
            *_volumes(_job_file_volume(job), names.syncer_secret_name(job.name), contract.TLS_IDENTITY_FILE),
            *tmp_volumes(syncer),
            claim,
            *(template.spec.get("volumes") or ()),
        ],
    }
    labels = {
        **spec.pod_labels,
        **template.metadata.labels,
        names.LABEL_JOB: job.name,
        names.LABEL_COMPONENT: names.COMPONENT_SYNCER,
    }
    # Nothing is lost when the syncer moves, but every learner waits for it. A drain by a person may move it.
    annotations = {**names.KEEP_PODS, **template.metadata.annotations, names.ANNOTATION_TEMPLATE_HASH: template_hash}
    return _pod(job, name, labels, annotations, pod_spec)


def _syncer_resources(config: OperatorConfig) -> Obj:
    """Requests and limits of a syncer whose template sets none."""
    requests = {"cpu": config.syncer_cpu, "memory": config.syncer_memory}
    limits = {"cpu": config.syncer_cpu_limit, "memory": config.syncer_memory_limit}
    resources = {
        "requests": {name: amount for name, amount in requests.items() if amount},
        "limits": {name: amount for name, amount in limits.items() if amount},
    }
    return {key: amounts for key, amounts in resources.items() if amounts}


def memory_of_syncer(spec: Spec, config: OperatorConfig) -> int | None:
    """Bytes of memory that the syncer's container requests or is limited to, the smaller of the two. None if it has neither, or nothing
    that is a quantity."""
    template = spec.syncer.template or PodTemplate()
    resources = _container(template.spec, names.SYNCER_CONTAINER).get("resources") or _syncer_resources(config)
    amounts = []
    for key in ("requests", "limits"):
        if (memory := (resources.get(key) or {}).get("memory")) is not None:
            with contextlib.suppress(ValueError):  # the API server refuses the pod, and its message names the field
                amounts.append(int(quantity(memory)))
    return min(amounts, default=None)


def _steady_nodes() -> Obj:
    """Prefer nodes that are not taken away and have no accelerators, which learners need. A syncer runs elsewhere if there are none."""
    expressions: list[Obj] = [{"key": label, "operator": "DoesNotExist"} for label in ACCELERATOR_LABELS]
    expressions += [{"key": label, "operator": "NotIn", "values": list(values)} for label, values in _UNSTEADY.items()]
    return {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": {"matchExpressions": expressions}}],
        }
    }


def syncer_address(job: Job) -> str:
    return f"{names.pod_dns_name(names.syncer_pod_name(job.name), job.name, job.namespace)}:{contract.SYNCER_PORT}"


# --- shared -----------------------------------------------------------------------------------------------------------
def _container(template: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    container = next((each for each in template.get("containers") or () if each.get("name") == name), None)
    return container if container is not None else {}


def _with_contract(container: Mapping[str, Any], env: list[Obj]) -> Obj:
    """Put the contract's variables first, so that the user's can refer to them. Only the operator sets a variable of the contract."""
    contract_env = [
        _value(contract.ENV_JOB_FILE, f"{contract.MOUNT_JOB}/{contract.JOB_FILE_KEY}"),
        _value(contract.ENV_TLS_DIR, contract.MOUNT_TLS),
        {"name": contract.ENV_POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        _value(contract.ENV_TERMINATION_LOG, container.get("terminationMessagePath") or contract.TERMINATION_LOG),
        *env,
    ]
    user = container.get("env") or []
    reserved = {each["name"] for each in contract_env}
    mounts = [
        {"name": names.JOB_VOLUME, "mountPath": contract.MOUNT_JOB, "readOnly": True},
        {"name": names.TLS_VOLUME, "mountPath": contract.MOUNT_TLS, "readOnly": True},
    ]
    return {
        "terminationMessagePolicy": "FallbackToLogsOnError",  # so that status can say why a program failed
        **container,
        "env": [
            *contract_env,
            *(each for each in user if each["name"] not in reserved),
        ],
        "volumeMounts": [*mounts, *(container.get("volumeMounts") or ())],
    }


def _common_spec(job: Job, spec: Spec, template: Mapping[str, Any], config: OperatorConfig) -> Obj:
    pod_spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # With a host's own DNS a pod would not find the syncer by its name.
        **({"dnsPolicy": "ClusterFirstWithHostNet"} if template.get("hostNetwork") else {}),
        **template,
        "subdomain": names.service_name(job.name),
    }
    if template.get("initContainers"):
        pod_spec["initContainers"] = [restricted(each) for each in template["initContainers"]]
    if config.image_pull_secrets:
        secrets = [*(template.get("imagePullSecrets") or ())]
        own_names = {each.get("name") for each in secrets}
        pod_spec["imagePullSecrets"] = [*secrets, *({"name": name} for name in config.image_pull_secrets if name not in own_names)]
    if spec.priority_class_name:
        pod_spec["priorityClassName"] = spec.priority_class_name
    return pod_spec


def _job_file_volume(job: Job) -> Obj:
    return {"name": names.JOB_VOLUME, "configMap": {"name": names.config_map_name(job.name)}}


def _job_file_of_home(access: SyncerAccess) -> Obj:
    """The volume of the job file in a part: learners join the job at home, as its units."""
    items = [{"key": contract.JOB_FILE_KEY, "path": contract.JOB_FILE_KEY}]
    return {"name": names.JOB_VOLUME, "secret": {"secretName": access.secret, "items": items, "defaultMode": _READABLE}}


_READABLE = 0o444
"""Mode of the files: only this pod mounts them, and the user of a foreign image is not known."""


def _volumes(job_file: Obj, secret: str, key: str) -> list[Obj]:
    """The volumes of the job file and of the pod's certificate, which is only `key` of the Secret `secret`."""
    items = [
        {"key": contract.TLS_ROOTS_FILE, "path": contract.TLS_ROOTS_FILE},
        {"key": key, "path": contract.TLS_IDENTITY_FILE},
    ]
    return [
        job_file,
        {"name": names.TLS_VOLUME, "secret": {"secretName": secret, "items": items, "defaultMode": _READABLE}},
    ]


def _pod(job: Job, name: str, labels: Mapping[str, str], annotations: Mapping[str, str], spec: Obj) -> Obj:
    return {
        "apiVersion": names.PODS.api_version,
        "kind": names.PODS.kind,
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": labels,
            "annotations": annotations,
            # So a job that is deleted in the foreground is gone only once none of its processes runs.
            "ownerReferences": [owner_reference(job) | {"blockOwnerDeletion": True}],
        },
        "spec": spec,
    }


def _value(name: str, value: str) -> Obj:
    return {"name": name, "value": value}
