"""Every name that the control plane gives to something in a cluster: API group, resources, labels, annotations, objects.

Names that a pod must know as well (environment, mount paths, ports) are in `diloco.contract`. Other modules use these constants and write
no such name themselves; tests/unit/diloco_operator/api/test_names.py checks that.

See docs/decisions/0010-crd-and-limits.md. See docs/decisions/0040-learner-pods.md.
"""

from __future__ import annotations

import hashlib
import re

from diloco import contract

from diloco_operator.kube import pods
from diloco_operator.kube.client import Resource

GROUP = "diloco.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DiLoCoJob"
type JobKey = tuple[str, str]
"""(namespace, name) of a job."""

ENV_CATALOGUE = "DILOCO_CATALOGUE"
"""The catalogue file if no --catalogue is given."""
CONFIG_API_VERSION = f"config.{GROUP}/{VERSION}"
"""API version of the operator's configuration file, whose kind is CONFIG_KIND."""
CONFIG_KIND = "OperatorConfiguration"

DILOCO_JOBS = Resource(GROUP, VERSION, KIND, "dilocojobs")
PODS = pods.PODS
NODES = Resource("", "v1", "Node", "nodes", namespaced=False)
SECRETS = Resource("", "v1", "Secret", "secrets")
CONFIG_MAPS = Resource("", "v1", "ConfigMap", "configmaps")
SERVICES = Resource("", "v1", "Service", "services")
VOLUME_CLAIMS = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
PERSISTENT_VOLUMES = Resource("", "v1", "PersistentVolume", "persistentvolumes", namespaced=False)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", namespaced=False)
SUBJECT_ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False)
SELF_SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False
)
DEPLOYMENTS = Resource("apps", "v1", "Deployment", "deployments")
QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas")
LIMIT_RANGES = Resource("", "v1", "LimitRange", "limitranges")
EVENTS = Resource("", "v1", "Event", "events")
NAMESPACES = Resource("", "v1", "Namespace", "namespaces", namespaced=False)
DRA = "resource.k8s.io"
"""Dynamic resource allocation. Kubernetes has its v1 since 1.34."""
RESOURCE_SLICES = Resource(DRA, "v1", "ResourceSlice", "resourceslices", namespaced=False)
RESOURCE_CLAIMS = Resource(DRA, "v1", "ResourceClaim", "resourceclaims")
CLAIM_TEMPLATES = Resource(DRA, "v1", "ResourceClaimTemplate", "resourceclaimtemplates")
CUSTOM_RESOURCES = Resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)

MANAGER = f"{GROUP}/operator"
"""Default of spec.managedBy; the operator does not touch a job with another value."""

# Field managers and user agents.
FIELD_MANAGER = "diloco-operator"
"""Field manager of everything the operator writes."""
UP_MANAGER = "diloco-up"
"""Field manager of `diloco up`."""
KUBECTL_PLUGIN = "kubectl-diloco"
"""Field manager and user agent of `kubectl diloco`."""
PYTHON_CLIENT = "diloco-client"
"""Field manager and user agent of `diloco_client`."""
OPERATOR_LEASE = "diloco-operator"
"""Default name of the Lease with which the operator's replicas elect a leader."""

# Labels. The operator sets LABEL_JOB on every object that it makes for a job, the others on pods.
LABEL_JOB = f"{GROUP}/job"
"""Name of the job, for selectors."""
LABEL_COMPONENT = f"{GROUP}/component"
"""COMPONENT_LEARNER, COMPONENT_SYNCER or COMPONENT_EXPORT."""
LABEL_UNIT = f"{GROUP}/unit"
"""Name of the learner unit, `<pool>-<index>`; on an Event about one unit it is an annotation."""
LABEL_POOL = f"{GROUP}/pool"
"""Name of the pool in spec.pools."""
LABEL_ATTEMPT = f"{GROUP}/attempt"
"""Number of the unit's attempt, from 1."""
LABEL_HOST = f"{GROUP}/host"
"""Index of the host within the unit, from 0."""
LABEL_GANG = f"{GROUP}/gang"
"""On learner pods of units of several hosts: the same for all pods of one attempt only."""
LABEL_RETAIN = f"{GROUP}/retain"
"""`Keep` on a volume claim that outlives its job; other claims do not have it."""

LOCAL_PREFIX = f"local.{GROUP}"
"""Prefix of labels and annotations that only simulated nodes and their pods have."""

COMPONENT_LEARNER = "learner"
COMPONENT_SYNCER = "syncer"
COMPONENT_EXPORT = "export"
"""A pod of `kubectl diloco export`. It belongs to a claim and not to a job, so it has no LABEL_JOB, and the operator leaves it alone."""

# Annotations.
ANNOTATION_SLICE = f"{GROUP}/slice"
"""On a learner pod: the slice that placement chose; of a group of many hosts only on the first `HOSTS_WITH_SLICE` pods."""
HOSTS_WITH_SLICE = 16
"""Pods of a unit that name all hosts of a group. If every pod did, the names would grow with the square of the hosts."""
ANNOTATION_NODE = f"{GROUP}/node"
"""On a learner pod: the name of the node that it is pinned to."""
ANNOTATION_GRANTOR = f"{GROUP}/grantor"
"""On a learner pod that names no node: who brings a node for it, by name (`reconcile.grantors`)."""
ANNOTATION_JOB_UID = f"{GROUP}/job-uid"
"""On a volume claim that outlives its job: the uid of that job."""
ANNOTATION_SYNCER_IMAGE = f"{GROUP}/syncer-image"
"""On a volume claim: the image of the job's syncer, which can read it."""
ANNOTATION_FOLDER = f"{LOCAL_PREFIX}/folder"
"""On a volume claim of `diloco up`: its folder on this machine, which stays when the claim goes."""
ANNOTATION_TEMPLATE_HASH = f"{GROUP}/template-hash"
"""On a pod: hash of what the user wrote for it."""
ANNOTATION_SAID = f"{GROUP}/said"
"""On an Event about one unit: its message, without the unit's name."""
ANNOTATION_RELATIVE_SPEED = f"{LOCAL_PREFIX}/relative-speed"
"""On a simulated node: its speed relative to the real machine, in (0, 1]."""
ANNOTATION_ADDRESS = f"{LOCAL_PREFIX}/address"
"""On a pod on a simulated node of a real API server: its loopback address, which its status may not have."""
ANNOTATION_SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""On a volume claim: the node that a scheduler has chosen for it."""
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
"""Annotation of the StorageClass that claims get if they name none."""

# Node labels and resources as clouds set them.
NODE_POOL = "cloud.google.com/gke-nodepool"
KEEP_PODS = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations that forbid autoscalers to move a pod in order to save a node."""
NODE_HOSTNAME = "kubernetes.io/hostname"
NODE_REGION = "topology.kubernetes.io/region"
NODE_ZONE = "topology.kubernetes.io/zone"

GPU_DRIVER = "gpu.nvidia.com"
"""NVIDIA's DRA driver for GPUs, and the DeviceClass of whole GPUs that comes with it."""
GPU_SLICES = f"spec.driver={GPU_DRIVER}"
"""Field selector of that driver's ResourceSlices."""
EXTENDED_RESOURCE_CLAIM = f"{DRA}/extended-resource-claim"
"""Annotation of a ResourceClaim that kube-scheduler made for a pod that requests its devices as an extended resource."""
ACCELERATOR_CLAIM = "diloco-accelerators"
"""Name of the claim for accelerators in a learner pod. A template with a claim of this name brings its own."""

LEARNER_CONTAINER = "learner"
"""The container of a pool's template that is the training program."""
EXPORT_CONTAINER = "export"
"""The container in the pod of `kubectl diloco export`."""
SYNCER_CONTAINER = "syncer"

# Kueue: its objects, and what it reads from pods and writes to them.
KUEUE = "kueue.x-k8s.io"
WORKLOADS = Resource(KUEUE, "v1beta2", "Workload", "workloads")
CLUSTER_QUEUES = Resource(KUEUE, "v1beta2", "ClusterQueue", "clusterqueues", namespaced=False)
KUEUE_QUEUE = f"{KUEUE}/queue-name"
"""Label: the LocalQueue that admits the pod."""
KUEUE_GROUP = f"{KUEUE}/pod-group-name"
"""Label: the pod group, and the name of its Workload."""
KUEUE_GROUP_COUNT = f"{KUEUE}/pod-group-total-count"
"""Annotation: pods of the group."""
KUEUE_ROLE = f"{KUEUE}/role-hash"
"""Annotation: the pod's pod set in the Workload."""
KUEUE_RETRIABLE = f"{KUEUE}/retriable-in-group"
"""Annotation: if one pod of a group has `false`, the group is over once all its pods have ended, and gives its quota back."""
KUEUE_PRIORITY = f"{KUEUE}/priority-class"
"""Label of a job and of its pods: the WorkloadPriorityClass."""
KUEUE_GATE = f"{KUEUE}/admission"
"""Scheduling gate that Kueue removes when it admits the group."""
KUEUE_FINALIZER = f"{KUEUE}/managed"
"""Finalizer with which Kueue keeps a pod and counts it, until a successor has taken its place or the group is over."""

OUTSIDE_ATTEMPT = 1
"""The attempt of every learner outside the cluster: the operator does not start these, so it cannot count. The syncer accepts one connected
process of an attempt at a time, whichever comes first."""
MAX_DNS_LABEL = 63
MAX_NAME = 253
_UNIT_DIGITS = 9
MAX_CLAIMED_DIGITS = 3
MAX_ATTEMPT = 100_000_000
"""Attempts of a unit. It bounds names, which contain the number; with an attempt every second it lasts for three years."""


def unit_name(pool: str, index: int) -> str:
    return f"{pool}-{index}"


def unit_index(pool: str, unit: str) -> int | None:
    """The number of a unit in its pool. None if no unit of the pool can have this name."""
    number = unit.removeprefix(f"{pool}-")
    well_formed = pool and number != unit and len(number) <= _UNIT_DIGITS and number.isascii() and number.isdecimal()
    return int(number) if well_formed and str(int(number)) == number else None


def learner_pod_name(job: str, unit: str, attempt: int, host: int) -> str:
    """A DNS label, because it is also a host name. If it would be too long, the job's part is shortened."""
    return _of_unit(job, unit, f"-a{attempt}-{host}")


def is_learner_pod_name(name: str, job: str, unit: str, attempt: int, host: int) -> bool:
    """Whether `name` is this pod's. Earlier operators put no mark before pools with a dash, and pods that run keep their names: so the name
    without the mark counts, too."""
    return name in (learner_pod_name(job, unit, attempt, host), _with_ending(job, f"-{unit}-a{attempt}-{host}", MAX_DNS_LABEL))


def _of_unit(job: str, unit: str, ending: str, limit: int = MAX_DNS_LABEL) -> str:
    """The name of an object of a unit. No two jobs of a namespace may have the same, but job `lm` with pool `v2-h100` and job `lm-v2` with
    pool `h100` would. So a hash of the job's name stands before a pool's name that has a dash."""
    clear = unit.count("-") == 1
    return _with_ending(job, f"-{unit}{ending}", limit) if clear else _with_mark(job, f"-{unit}{ending}", limit)


def _with_ending(job: str, ending: str, limit: int) -> str:
    return job + ending if len(job) + len(ending) <= limit else _with_mark(job, ending, limit)


def _with_mark(job: str, ending: str, limit: int) -> str:
    mark = _job_mark(job)
    return f"{job[: limit - len(ending) - len(mark) - 1].rstrip('-')}-{mark}{ending}"


def _job_mark(job: str) -> str:
    return hashlib.sha256(job.encode()).hexdigest()[:6]


def pod_group_name(job: str, job_uid: str, unit: str, attempt: int) -> str:
    """Kueue's pod group that begins with this attempt of a unit, at most 63 characters. It has a hash of the job's uid, because the pods of
    a deleted job of the same name may stay in their groups for a while."""
    ending = f"-{unit}-a{attempt}-{_group_mark(job_uid)}"
    return job[: MAX_DNS_LABEL - len(ending)].rstrip("-") + ending


def is_pod_group(name: str, job: str, job_uid: str, unit: str) -> bool:
    """Whether `pod_group_name` makes this name for some attempt of the unit. Pods may have any other, because everyone who may create pods
    can write labels."""
    number = name.removesuffix(f"-{_group_mark(job_uid)}").rpartition("-a")[2]
    return number.isascii() and number.isdecimal() and name == pod_group_name(job, job_uid, unit, int(number[:_UNIT_DIGITS]))


def _group_mark(job_uid: str) -> str:
    return hashlib.sha256(job_uid.encode()).hexdigest()[:6]


_LONGEST_LIST = 120 * 1024
"""The most characters of a list of hosts: Linux takes 128 KiB in one environment variable."""
_PORT_DIGITS = 6


def host_names(job: str, unit: str, attempt: int, hosts: int) -> list[str]:
    """The host names of an attempt's pods in the job's Service, by index. They are the names of the pods if a list of all fits into one
    environment variable, else short names."""
    last = learner_pod_name(job, unit, attempt, hosts - 1)
    if hosts * (len(last) + len(service_name(job)) + _PORT_DIGITS + 1) <= _LONGEST_LIST:
        return [learner_pod_name(job, unit, attempt, host) for host in range(hosts)]
    mark = hashlib.sha256(f"{unit}/{attempt}".encode()).hexdigest()[:7]
    return [f"h{mark}-{host}" for host in range(hosts)]


def host_list_name(job: str, unit: str, attempt: int, hosts: int) -> str:
    """The ConfigMap with the host names of an attempt. Its content follows from its name."""
    return _of_unit(job, unit, f"-a{attempt}-hosts-{hosts}", MAX_NAME)


def lists_hosts(name: str, hosts: int) -> bool:
    """Whether a host list of this name has this number of hosts."""
    return name.endswith(f"-hosts-{hosts}")


def claim_template_name(job: str, job_uid: str, pool: str, accelerators: int) -> str:
    """The ResourceClaimTemplate of a pool's hosts. Its content follows from its name, because no template can be changed. The name has a
    hash of the job's uid, because the template of a deleted job of the same name may stay for a while."""
    return _with_ending(job, f"-{pool}-{_group_mark(job_uid)}-x{accelerators}", MAX_NAME)


def accelerators_claimed(template: str) -> int:
    """How many accelerators a template of `claim_template_name` claims. 0 if it has no such name."""
    _, mark, count = template.rpartition("-x")
    return int(count) if mark and count.isascii() and count.isdecimal() and len(count) <= MAX_CLAIMED_DIGITS else 0


def syncer_pod_name(job: str) -> str:
    return contract.syncer_pod_name(job)


def service_name(job: str) -> str:
    """The job's headless Service, which gives every pod a name `<pod>.<job>.<namespace>.svc`."""
    return job


def external_service_name(job: str) -> str:
    """The Service of type LoadBalancer before the syncer."""
    return f"{job}-syncer-external"


def config_map_name(job: str) -> str:
    return f"{job}-job"


UNITS_PER_SECRET = 64
"""Learner units whose certificates share a Secret. More would save writes, but each kubelet reads the whole Secret, some 100 KB already."""


def authority_secret_name(job: str) -> str:
    """The Secret of the job's certificate authority. No pod mounts it."""
    return f"{job}-ca"


def syncer_secret_name(job: str) -> str:
    return f"{job}-syncer-tls"


def learner_secret_name(job: str, pool: str, unit: str) -> str:
    """The Secret with the certificates of a unit of `pool`. Job `lm` with pool `learners-h100` and job `lm-learners` with pool `h100` would
    share a name, so a hash of the job's name stands before such a pool's."""
    index = int(unit.removeprefix(f"{pool}-"))
    marked_pool = f"{_job_mark(job)}-{pool}" if "-learners-" in f"-{pool}" else pool
    return f"{job}-learners-{marked_pool}-{index // UNITS_PER_SECRET}"


def outside_secret_name(job: str) -> str:
    """The Secret with the certificates of learners outside the job's cluster."""
    return f"{job}-outside-tls"


def outside_key(learner: str) -> str:
    """The entry of `outside_secret_name` with a learner's private key and certificate."""
    return learner_secret_key(learner, OUTSIDE_ATTEMPT)


FINALIZER_PARTS = "diloco.dev/parts"
"""Keeps a job until its parts in other clusters are gone."""
LABEL_HOME = "diloco.dev/home"
"""On a part and its Secret that a job's home has made: the uid of the job."""
ANNOTATION_SECRET_VERSION = "diloco.dev/home-version"
"""On a part's Secret: of which Secret and job file of home it is a copy."""
ANNOTATION_SPEC_DIGEST = "diloco.dev/home-spec"
"""On a part that a job's home has made: a digest of the spec that home wrote last."""
PART_IDENTITY = "part.pem"
"""The entry of `part_secret_name` with which the operator of the part's cluster watches the syncer."""


_MAY_CLASH = re.compile(r"-part-|-(syncer|outside)$", re.ASCII)


def part_secret_name(job: str, part: str) -> str:
    """The Secret of the job's home with the certificates of a part. Job `lm` with part `x-part-y` and job `lm-part-x` with part `y` would
    share a name, as would part `x-syncer` of `lm` and the syncer of `lm-part-x`: a hash of the job's name stands before such a part's."""
    marked_part = f"{_job_mark(job)}-{part}" if _MAY_CLASH.search(f"-{part}") else part
    return f"{job}-part-{marked_part}-tls"


def home_secret_name(job: str) -> str:
    """The Secret in a part's cluster, with the job file of home beside the part's certificates."""
    return f"{job}-home"


def learner_secret_key(unit: str, attempt: int) -> str:
    """The entry of `learner_secret_name` with the private key and certificate of an attempt."""
    return f"{unit}-a{attempt}.pem"


_SECRET_KEY = re.compile(r"(?P<unit>[a-z0-9][-a-z0-9]*)-a(?P<attempt>[1-9][0-9]{0,8})[.]pem", re.ASCII)


def attempt_of_key(key: str) -> tuple[str, int]:
    """Return unit and attempt of an entry that `learner_secret_key` names. ("", 0) of any other."""
    match = _SECRET_KEY.fullmatch(key)
    return (match["unit"], int(match["attempt"])) if match is not None else ("", 0)


def holds_certificates(secret: str, job: str) -> bool:
    """Whether the job uses this name for a Secret with certificates."""
    own = (authority_secret_name(job), syncer_secret_name(job), outside_secret_name(job))
    return secret in own or secret.startswith((f"{job}-learners-", f"{job}-part-"))


def volume_claim_name(job: str) -> str:
    return f"{job}-syncer"


# Keys of the Secret with the authority.
AUTHORITY_CERTIFICATE = "ca.crt"
AUTHORITY_KEY = "ca.key"

# Volumes that the operator adds to a pod. A template may not name a volume with this prefix.
VOLUME_PREFIX = "diloco-"
JOB_VOLUME = f"{VOLUME_PREFIX}job"
TLS_VOLUME = f"{VOLUME_PREFIX}tls"
STATE_VOLUME = f"{VOLUME_PREFIX}state"
TMP_VOLUME = f"{VOLUME_PREFIX}tmp"
SHARED_MEMORY_VOLUME = f"{VOLUME_PREFIX}shared-memory"
# Variables of the contract. A template may set none with this prefix.
VARIABLE_PREFIX = "DILOCO_"


def pod_dns_name(pod: str, job: str, namespace: str) -> str:
    return f"{pod}.{service_name(job)}.{namespace}.svc"
