"""Every name that the control plane gives to something in a cluster: API group, resources, labels, annotations, objects.

Names that a pod must know as well (environment, mount paths, ports) are in `diloco.contract`. No other module writes such a name
out; tests/unit/diloco_operator/api/test_names.py finds the ones that do.

See docs/decisions/0010-crd-and-limits.md. See docs/decisions/0040-learner-pods.md.
"""

from __future__ import annotations

import hashlib

from diloco import contract

from diloco_operator.kube.client import Resource

GROUP = "diloco.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DiLoCoJob"
type JobKey = tuple[str, str]
"""(namespace, name) of a job."""

ENV_CATALOGUE = "DILOCO_CATALOGUE"
"""The catalogue file, where no --catalogue is given."""
CONFIG_API_VERSION = f"config.{GROUP}/{VERSION}"
"""API version of the operator's configuration file, with CONFIG_KIND."""
CONFIG_KIND = "OperatorConfiguration"

DILOCO_JOBS = Resource(GROUP, VERSION, KIND, "dilocojobs")
PODS = Resource("", "v1", "Pod", "pods")
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
"""Dynamic resource allocation, in this version since Kubernetes 1.34."""
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
"""Field manager of `kubectl diloco`; its user agent too."""
PYTHON_CLIENT = "diloco-client"
"""The same of `diloco_client`."""
OPERATOR_LEASE = "diloco-operator"
"""Default name of the Lease by which the operator's replicas elect a leader."""

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
"""Prefix of what only simulated nodes carry."""

COMPONENT_LEARNER = "learner"
COMPONENT_SYNCER = "syncer"
COMPONENT_EXPORT = "export"
"""A pod of `kubectl diloco export`. It belongs to a claim and not to a job, so it has no LABEL_JOB: the operator leaves it alone."""

# Annotations.
ANNOTATION_SLICE = f"{GROUP}/slice"
"""On a learner pod: the slice that placement chose; of a group of many hosts only on the first `HOSTS_WITH_SLICE` pods."""
HOSTS_WITH_SLICE = 16
"""So many pods of a unit name all hosts of a group. In each pod the list would grow with the square of the hosts."""
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
"""Annotation of the StorageClass that claims without one get."""

# Node labels and resources as clouds set them.
NODE_POOL = "cloud.google.com/gke-nodepool"
KEEP_PODS = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations of pods that autoscalers must not move to save a node."""
NODE_HOSTNAME = "kubernetes.io/hostname"
NODE_REGION = "topology.kubernetes.io/region"
NODE_ZONE = "topology.kubernetes.io/zone"

GPU_DRIVER = "gpu.nvidia.com"
"""NVIDIA's DRA driver of GPUs, and the DeviceClass of whole ones that comes with it."""
GPU_SLICES = f"spec.driver={GPU_DRIVER}"
"""Field selector of its ResourceSlices."""
EXTENDED_RESOURCE_CLAIM = f"{DRA}/extended-resource-claim"
"""Annotation of a ResourceClaim that kube-scheduler made for a pod which requests the devices as an extended resource."""
ACCELERATOR_CLAIM = "diloco-accelerators"
"""What a learner pod calls the claim for its accelerators; a template with a claim of this name brings its own."""

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
"""Annotation: the pod set of the Workload that the pod belongs to."""
KUEUE_RETRIABLE = f"{KUEUE}/retriable-in-group"
"""Annotation: with `false` on one of its pods a group is over once all of them have ended, and gives its quota back."""
KUEUE_PRIORITY = f"{KUEUE}/priority-class"
"""Label of a job and of its pods: the WorkloadPriorityClass."""
KUEUE_GATE = f"{KUEUE}/admission"
"""Scheduling gate that Kueue removes when it admits the group."""
KUEUE_FINALIZER = f"{KUEUE}/managed"
"""Finalizer of pods by which Kueue counts them, until a successor has taken their place or the group is over."""

OUTSIDE_ATTEMPT = 1
"""The attempt of learners outside the cluster. The operator starts none of these: the syncer accepts one connected process of an attempt at
a time, whichever comes first."""
MAX_DNS_LABEL = 63
MAX_NAME = 253
_UNIT_DIGITS = 9
MAX_CLAIMED_DIGITS = 3
MAX_ATTEMPT = 100_000_000
"""Attempts of a unit: their numbers are part of names. An attempt every second would take three years."""


def unit_name(pool: str, index: int) -> str:
    return f"{pool}-{index}"


def unit_index(pool: str, unit: str) -> int | None:
    """Return the number of a unit in its pool; None: no unit of this pool has this name."""
    number = unit.removeprefix(f"{pool}-")
    well_formed = pool and number != unit and len(number) <= _UNIT_DIGITS and number.isascii() and number.isdecimal()
    return int(number) if well_formed and str(int(number)) == number else None


def learner_pod_name(job: str, unit: str, attempt: int, host: int) -> str:
    """Return a DNS label, for it is a host name too. Where long names meet many attempts or hosts, the job's part is shortened."""
    return _of_unit(job, unit, f"-a{attempt}-{host}")


def is_learner_pod_name(name: str, job: str, unit: str, attempt: int, host: int) -> bool:
    """Return whether the pod has this name, or had it from an operator that marked no pools with a dash: pods that run keep their names."""
    return name in (learner_pod_name(job, unit, attempt, host), _with_ending(job, f"-{unit}-a{attempt}-{host}", MAX_DNS_LABEL))


def _of_unit(job: str, unit: str, ending: str, limit: int = MAX_DNS_LABEL) -> str:
    """Return the name of an object of a unit. No two jobs of a namespace have the same: the pool's name is what stands before the unit's
    number up to the next dash. One with a dash (`lm` and `v2-h100`) would read as that of another job (`lm-v2` and `h100`), so a hash of
    the job's name comes before it."""
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
    """Return the pod group of Kueue that begins with this attempt of a unit: at most 63 characters, and another one for another job of the
    same name, because the pods of a deleted job may be in its groups for a while."""
    ending = f"-{unit}-a{attempt}-{_group_mark(job_uid)}"
    return job[: MAX_DNS_LABEL - len(ending)].rstrip("-") + ending


def is_pod_group(name: str, job: str, job_uid: str, unit: str) -> bool:
    """Return whether `pod_group_name` makes this name for some attempt of the unit: who writes pods may write any name into their
    labels."""
    number = name.removesuffix(f"-{_group_mark(job_uid)}").rpartition("-a")[2]
    return number.isascii() and number.isdecimal() and name == pod_group_name(job, job_uid, unit, int(number[:_UNIT_DIGITS]))


def _group_mark(job_uid: str) -> str:
    return hashlib.sha256(job_uid.encode()).hexdigest()[:6]


_LONGEST_LIST = 120 * 1024
"""Characters of a list of hosts: Linux takes 128 KiB in one variable of a program."""
_PORT_DIGITS = 6


def host_names(job: str, unit: str, attempt: int, hosts: int) -> list[str]:
    """Return what the pods of an attempt call themselves: their names in the job's Service, in the order of their index. The name of the
    pod, as long as a list of all of them fits into one variable; a short name else."""
    last = learner_pod_name(job, unit, attempt, hosts - 1)
    if hosts * (len(last) + len(service_name(job)) + _PORT_DIGITS + 1) <= _LONGEST_LIST:
        return [learner_pod_name(job, unit, attempt, host) for host in range(hosts)]
    mark = hashlib.sha256(f"{unit}/{attempt}".encode()).hexdigest()[:7]
    return [f"h{mark}-{host}" for host in range(hosts)]


def host_list_name(job: str, unit: str, attempt: int, hosts: int) -> str:
    """Return the ConfigMap with the host names of an attempt. Its name says all that its content depends on."""
    return _of_unit(job, unit, f"-a{attempt}-hosts-{hosts}", MAX_NAME)


def lists_hosts(name: str, hosts: int) -> bool:
    """Return whether a ConfigMap with this name lists so many hosts."""
    return name.endswith(f"-hosts-{hosts}")


def claim_template_name(job: str, job_uid: str, pool: str, accelerators: int) -> str:
    """Return the ResourceClaimTemplate of a pool's hosts. Its name says all that its content depends on: none can be changed. Another job
    has another one, be it of the same name: what a deleted one had goes later than it."""
    return _with_ending(job, f"-{pool}-{_group_mark(job_uid)}-x{accelerators}", MAX_NAME)


def accelerators_claimed(template: str) -> int:
    """Return how many accelerators a template of `claim_template_name` claims; 0: it is none."""
    _, mark, count = template.rpartition("-x")
    return int(count) if mark and count.isascii() and count.isdecimal() and len(count) <= MAX_CLAIMED_DIGITS else 0


def syncer_pod_name(job: str) -> str:
    return contract.syncer_pod_name(job)


def service_name(job: str) -> str:
    """Return headless service of the job: gives every pod a name `<pod>.<job>.<namespace>.svc`."""
    return job


def external_service_name(job: str) -> str:
    """Return the name of the Service of type LoadBalancer before the syncer."""
    return f"{job}-syncer-external"


def config_map_name(job: str) -> str:
    return f"{job}-job"


UNITS_PER_SECRET = 64
"""Learner units whose certificates share a Secret: so many cost one write, and some 100 KB to the kubelets that read it whole."""


def authority_secret_name(job: str) -> str:
    """Return the job's certificate authority. No pod mounts it."""
    return f"{job}-ca"


def syncer_secret_name(job: str) -> str:
    return f"{job}-syncer-tls"


def learner_secret_name(job: str, pool: str, unit: str) -> str:
    """Return the Secret with the certificates of a unit of `pool`. What stands before the last `-learners-` is the job; a pool's name that
    has it (`lm` and `learners-h100`) would read as that of another job (`lm-learners` and `h100`), so a hash of the job's name comes before
    it."""
    index = int(unit.removeprefix(f"{pool}-"))
    own = f"{_job_mark(job)}-{pool}" if "-learners-" in f"-{pool}" else pool
    return f"{job}-learners-{own}-{index // UNITS_PER_SECRET}"


def outside_secret_name(job: str) -> str:
    """Return the name of the Secret with the certificates of learners outside the job's cluster."""
    return f"{job}-outside-tls"


def outside_key(learner: str) -> str:
    """Return the key of the private key and certificate of one of them in that Secret."""
    return learner_secret_key(learner, OUTSIDE_ATTEMPT)


def learner_secret_key(unit: str, attempt: int) -> str:
    """Return the key of the private key and certificate of one attempt in that Secret."""
    return f"{unit}-a{attempt}.pem"


def holds_certificates(secret: str, job: str) -> bool:
    """Return whether a Secret's name is one that the job uses."""
    return secret in (authority_secret_name(job), syncer_secret_name(job), outside_secret_name(job)) or secret.startswith(
        f"{job}-learners-"
    )


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
