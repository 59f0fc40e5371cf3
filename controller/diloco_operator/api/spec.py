"""`spec` of a DiLoCoJob as types: what a user asks for. The CRD, its defaults and docs/api.md are generated from them (`api.crd`).

camelCase in the API, snake_case here. Durations are seconds and timestamps seconds since the epoch in the program. What CEL rules
require beyond the types is in `api.rules`.

See docs/decisions/0010-crd-and-limits.md.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any

from diloco.contract import MOST_PARTS, StartFrom, Training
from pydantic import Field, StringConstraints

from diloco_operator.accelerators import ACCELERATOR_NAMES, MAX_NAME, NAME_PATTERN, UnitShape, unit_shape
from diloco_operator.api.base import ApiModel
from diloco_operator.api.durations import Duration
from diloco_operator.api.names import LABEL_JOB, MANAGER, unit_name
from diloco_operator.api.rules import MAX_ACCELERATORS_PER_HOST, MAX_PART_UNITS, MAX_PROCESSES_PER_HOST
from diloco_operator.timeouts import RECONCILE

MAX_LEARNERS = 256
"""Units of one job. The status of twice as many fits into one object."""
MAX_POOLS = 16
MAX_POD_LABELS = 64
MAX_OUTSIDE = 64
"""Learners outside a job's cluster. Their certificates share one Secret."""
MAX_OUTSIDE_NAME = 32
MAX_PART_NAME = 32
MAX_RETRY = 1_000_000


def _without_default(schema: dict[str, Any]) -> None:
    """Keep the API server from writing an empty field into objects that do not use it."""
    schema.pop("default", None)


class Backoff(ApiModel):
    """Pause before a unit's next attempt. The first failure within the window has none; then it doubles from `initial` to `max`."""

    initial: Duration = Field(5.0, description="Pause after the second failure within the window; the first one has none.")
    max: Duration = Field(300.0, description="Longest pause; not less than initial.")


class Restart(ApiModel):
    """Restart budget of each unit. Disruptions (preemption, eviction, a lost node) do not count."""

    limit: int = Field(
        5,
        ge=0,
        le=1000,
        description="Failures within the window after which the operator gives the unit up.",
    )
    window: Duration = Field(3600.0, description="Time after which a failure is forgotten.")
    backoff: Backoff = Field(default_factory=Backoff, description="Pause between a failure and the next attempt.")


class Timeouts(ApiModel):
    """How long each step of an attempt's start may take, from pods that were created to a unit that contributes."""

    schedule: Duration = Field(
        30.0,
        description="From a scheduler's first word that it finds no place for a pod until it is bound. A unit that waits longer tries "
        "another slice, which is no failure. While no scheduler says anything of its pods, it waits for `schedule` and `start` together.",
    )
    pull: Duration = Field(
        1800.0,
        description="To pull the images of a pod: 30 GiB at 17 MiB/s by default. An image that the registry refuses ends the attempt "
        "after `start` already.",
    )
    start: Duration = Field(
        600.0,
        description="From a bound pod to a running learner, without pulling images: volumes, network, init containers. A cluster takes 6 "
        "minutes to move a volume away from a lost node.",
    )
    first_step: Duration = Field(
        1800.0,
        description="From joining the syncer to the first step of the training program, for loading data and compiling. Without a "
        "heartbeat `stallTimeout` counts.",
    )
    join: Duration = Field(600.0, description="From running pods until the syncer has seen the learner.")


class Learners(ApiModel):
    """How many learner units, and when the operator replaces one."""

    min: int = Field(
        1,
        ge=1,
        le=MAX_LEARNERS,
        description="Learners that placement guarantees. With fewer contributing the job is Degraded.",
    )
    max: int = Field(
        ge=1,
        le=MAX_LEARNERS,
        description="Most learners over all pools; one that drains counts, unless its pool was removed. `kubectl scale` sets it.",
    )
    restart: Restart = Field(default_factory=Restart, description="Restart budget of each unit.")
    timeouts: Timeouts = Field(default_factory=Timeouts, description="How long each step of an attempt's start may take.")
    outside: tuple[Annotated[str, StringConstraints(max_length=MAX_OUTSIDE_NAME)], ...] = Field(
        (),
        max_length=MAX_OUTSIDE,
        description="Names of learners outside this cluster: the operator makes a certificate for each and starts nothing. They join by "
        "what `kubectl diloco join-bundle` writes, and count for training.quorum, not for min and max.",
        json_schema_extra=_without_default,
    )
    stall_timeout: Duration = Field(
        120.0,
        description="A joined unit that takes no step for this long is replaced. Its first step (`timeouts.firstStep`) and pauses that its "
        "program announces may take longer.",
    )


class PoolLearners(ApiModel):
    """How many units of this pool."""

    min: int = Field(0, ge=0, le=MAX_LEARNERS, description="Units that must come from this pool.")
    max: int = Field(
        ge=0, le=MAX_LEARNERS, description="Most units that may come from this pool. 0 switches the pool off: its units drain."
    )


class Capacity(enum.StrEnum):
    """How the hardware is paid for, and who may take it away."""

    RESERVED = "Reserved"
    ON_DEMAND = "OnDemand"
    SPOT = "Spot"
    FLEX_START = "FlexStart"
    SCAVENGED = "Scavenged"


class Locality(enum.StrEnum):
    """How near to each other the hosts of one unit must be."""

    ZONE = "Zone"
    BLOCK = "Block"
    ANY = "Any"


class ProvisioningMode(enum.StrEnum):
    """Who brings the nodes of a pool's units."""

    EXISTING = "Existing"
    AUTOSCALER = "Autoscaler"


class Provisioning(ApiModel):
    """How units of a pool get nodes that do not exist yet."""

    mode: ProvisioningMode = Field(
        ProvisioningMode.EXISTING,
        description="Existing: units run on nodes that are there. Autoscaler: units for which no slice is free get pods that name no "
        "node, for which an autoscaler brings nodes.",
    )
    timeout: Duration = Field(
        900.0,
        description="How long a unit waits for nodes of an autoscaler. Then it is withdrawn for a while, and the next pool is asked.",
    )

    @property
    def brings_nodes(self) -> bool:
        """Whether something brings nodes that do not exist yet."""
        return self.mode is not ProvisioningMode.EXISTING


class TemplateMetadata(ApiModel):
    """Labels and annotations for the pods. Keys under diloco.dev/ belong to the operator."""

    labels: dict[str, str] = Field(default_factory=dict, description="Labels of the pods.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the pods.")


class PodTemplate(ApiModel):
    """A pod template. The operator adds environment, mounts, placement and the accelerators' resources."""

    metadata: TemplateMetadata = Field(default_factory=TemplateMetadata, description="Labels and annotations of the pods.")
    spec: dict[str, Any] = Field(
        default_factory=dict, description="A PodSpec, as `kubectl explain pod.spec` describes it; checked when the pods are made."
    )


class Pool(ApiModel):
    """One kind of hardware that a learner may run on."""

    name: str = Field(max_length=63, description="DNS label; units are called `<pool>-<index>`.")
    cluster: str = Field(
        "",
        max_length=MAX_PART_NAME,
        description="Cluster in which the units of this pool run, one that the operator was told of. It runs them there as a part of the "
        "job. Absent: this cluster. It can be neither added, changed nor removed.",
        json_schema_extra=_without_default,
    )
    accelerator: str = Field(
        max_length=MAX_NAME,
        description="Kind of hardware. Immutable. Built in are "
        f"{', '.join(ACCELERATOR_NAMES)}; the operator's catalogue file may add others. The condition Accepted says if the operator does "
        "not know it.",
        json_schema_extra={"pattern": NAME_PATTERN},
    )
    topology: str = Field(
        "",
        max_length=32,
        description="Topology of the slice that one unit occupies, such as 2x2x2. Required for TPUs, and for them only.",
        json_schema_extra=_without_default,
    )
    chips_per_host: int | None = Field(
        None,
        ge=1,
        le=8,
        description="TPU only: chips of each host. Needed where accelerator and topology leave a choice "
        "(v6e and v5e 2x4: one host of 8 or two of 4).",
    )
    hosts: int | None = Field(None, ge=1, le=512, description="Hosts of one unit. Default 1. Not for TPUs.")
    accelerators_per_host: int | None = Field(
        None,
        ge=1,
        le=MAX_ACCELERATORS_PER_HOST,
        description="Accelerators of each host. Default: all. Units of one host that ask for fewer leave the rest to others; units of "
        "several hosts, and those whose pods use the host's network or ports, take whole hosts. Not for TPUs and cpu.",
    )
    processes_per_host: int | None = Field(
        None,
        ge=1,
        le=MAX_PROCESSES_PER_HOST,
        description="Processes (ranks) of the program on each host, as `torchrun` and `diloco-launch` start them. Default 1. Each gets "
        "the same number of accelerators. Not for TPUs.",
    )
    shared_memory: str | None = Field(
        None,
        max_length=16,
        description="Size of /dev/shm in the container that trains. 0: the 64 MiB that every container has. Default: 1Gi for each "
        "accelerator of a host, and 0 for TPUs and cpu. Requests and limits of memory grow by as much. A template that mounts /dev/shm "
        "itself keeps its own.",
    )
    learners: PoolLearners = Field(description="How many units of this pool.")
    spares: int = Field(
        0,
        ge=0,
        le=MAX_LEARNERS,
        description="Slices that the job keeps free, so that a unit that loses its slice need not wait for another. It gets them after "
        "its units, as surplus; no unit of another job leaves for them.",
    )
    capacity: Capacity | None = Field(
        None,
        description="How the hardware is paid for. Absent: any. The cloud may take Spot away; FlexStart comes when there is room and ends "
        "at a known time. Scavenged uses any hardware and yields it to units of other jobs.",
    )
    locality: Locality = Field(
        Locality.ZONE,
        description="How near to each other the hosts of one unit must be. Zone: in one zone (topology.kubernetes.io/zone). Block: also in "
        "one network block, the widest that the nodes' labels name. Any: anywhere. Nearer places are preferred. Hosts of a TPU slice are "
        "always together.",
    )
    provisioning: Provisioning = Field(
        default_factory=Provisioning,
        description="Who brings nodes for units for which no slice is free. Default: no one, units take the nodes that exist.",
    )
    template: PodTemplate = Field(description='Pod template; its container named "learner" is the training program.')

    @property
    def shape(self) -> UnitShape:
        """Hosts and accelerators of one unit of this pool. Raises ValueError if the CRD's rules do not hold."""
        return unit_shape(
            self.accelerator,
            topology=self.topology,
            chips_per_host=self.chips_per_host,
            hosts=self.hosts,
            accelerators_per_host=self.accelerators_per_host,
        )


class Retain(enum.StrEnum):
    """What becomes of the syncer's volume claim when the job is deleted."""

    DELETE = "Delete"
    KEEP = "Keep"


class Storage(ApiModel):
    """The syncer's volume."""

    size: str = Field("10Gi", max_length=16, description="Size of the volume claim, a Kubernetes quantity. Immutable.")
    class_name: str = Field("", max_length=253, description='Storage class; "" is the cluster\'s default. Immutable.')
    retain: Retain = Field(
        Retain.DELETE,
        description="What becomes of the volume claim, with the model in it, when the job is deleted. It can be changed at any time.",
    )


class LoadBalancer(ApiModel):
    """A Service of type LoadBalancer before the syncer."""

    annotations: dict[str, Annotated[str, StringConstraints(max_length=1024)]] = Field(
        default_factory=dict,
        max_length=32,
        description="Annotations of the Service, by which clouds are told what to make.",
        json_schema_extra=_without_default,
    )
    class_name: str = Field(
        "", alias="class", max_length=253, description="loadBalancerClass of the Service.", json_schema_extra=_without_default
    )


class SyncerAt(ApiModel):
    """Where the syncer of a part is: in another cluster, the job's home."""

    address: str = Field(max_length=261, description="`host` or `host:port` (default 7077) at which this cluster reaches the syncer.")
    secret_name: str = Field(
        max_length=253,
        description="Secret with the part's certificates and the job file of home, as `kubectl diloco part` writes it. Its label "
        f"{LABEL_JOB} names this job.",
    )
    part_timeout: Duration = Field(
        RECONCILE.hold_without_syncer,
        description="A part that has had no report of the syncer for this long gives its hardware back, until it has one again.",
    )


class Syncer(ApiModel):
    """The one logical syncer of the job."""

    shards: int = Field(1, ge=1, le=64, description="Processes that share the syncer's work; only 1 is supported. Immutable.")
    storage: Storage = Field(default_factory=Storage, description="The syncer's volume. Size and class are immutable.")
    template: PodTemplate | None = Field(
        None, description='Pod template to start from; its container named "syncer", if there is one, is the syncer.'
    )
    external_address: str = Field(
        "",
        max_length=261,
        description="Where learners outside this cluster find the syncer: `host` or `host:port` (default 7077) of what passes TCP on to "
        "it.",
        json_schema_extra=_without_default,
    )
    load_balancer: LoadBalancer | None = Field(
        None,
        description="A Service of type LoadBalancer before the syncer, for learners outside this cluster. Absent: none.",
    )
    at: SyncerAt | None = Field(
        None,
        description="Makes this job a part of a job whose syncer is in another cluster: only learners run here, and storage has no "
        "effect. It can be neither added nor removed.",
    )


def unit_names(pool: str, units: int) -> tuple[str, ...]:
    """The names of a pool's first units."""
    return tuple(unit_name(pool, index) for index in range(units))


class PartPool(ApiModel):
    """How many units a pool of a part may have. Its hardware and template are in the part's own DiLoCoJob."""

    name: str = Field(max_length=63, description="DNS label; no other pool of the job has it. Units are called `<pool>-<index>`.")
    units: int = Field(ge=1, le=MAX_PART_UNITS, description="Units that get certificates, from index 0.")


class Part(ApiModel):
    """Learners of this job in another cluster, run by that cluster's operator."""

    name: str = Field(max_length=MAX_PART_NAME, description="Name of the cluster, a DNS label.")
    pools: tuple[PartPool, ...] = Field(min_length=1, max_length=MAX_POOLS, description="The part's pools.")

    @property
    def units(self) -> tuple[str, ...]:
        """Names of its units."""
        return tuple(name for pool in self.pools for name in unit_names(pool.name, pool.units))


class Objective(enum.StrEnum):
    """What placement makes as large as it can be."""

    THROUGHPUT = "Throughput"
    PREFERENCE = "Preference"


class PlacementPolicy(ApiModel):
    """Which pools units take slices of, and when one leaves its slice for a better one."""

    objective: Objective = Field(
        Objective.THROUGHPUT,
        description="Throughput: units take the slices on which the job trains the most tokens/s (status.pools[].value); among equal ones "
        "the pools' order decides. Preference: the pools' order alone decides. Minima and maxima of the pools hold in either case.",
    )
    horizon: Duration = Field(
        1800.0,
        description="Time in which a move must pay: a unit leaves its slice for a better one if it gains more within the horizon than it "
        "loses while it starts again, and more than a margin for noise.",
    )
    max_moving: int = Field(
        1,
        ge=0,
        le=MAX_LEARNERS,
        description="While this many units drain, start or join, for whatever reason, no further one moves to a better slice. 0: no unit "
        "moves.",
    )


class Spec(ApiModel):
    """Desired state."""

    suspend: bool = Field(False, description="Releases every learner and keeps the state. Set it to false to resume.")
    managed_by: str = Field(
        MANAGER,
        min_length=1,
        max_length=253,
        description="The controller that works on this job. The operator ignores a job with another value. Immutable.",
    )
    priority_class_name: str = Field(
        "",
        max_length=253,
        description="Priority class of the job and its pods. Pods for which an autoscaler brings nodes get it only if it never pre-empts.",
    )
    queue_name: str = Field(
        "",
        max_length=63,
        description="LocalQueue of Kueue in the job's namespace, where each unit waits for its quota as a pod group. Absent: units need "
        "no quota.",
    )
    pod_labels: dict[str, str] = Field(
        default_factory=dict,
        max_length=MAX_POD_LABELS,
        description="Labels of all pods of the job, such as a team or a cost centre. Labels of a template come before them. Pods that run "
        "keep those that they have.",
    )
    ttl_seconds_after_finished: int | None = Field(
        None, ge=0, description="Deletes the job this many seconds after Complete or Failed. Absent: never."
    )
    retry: int | None = Field(
        None,
        ge=0,
        le=MAX_RETRY,
        description="Raise it above `status.retry` (absent is 0) to start a failed job again from its last snapshot, or units that were "
        "given up. A failed job takes other changes only together with it.",
    )
    learners: Learners = Field(description="How many learner units, and when the operator replaces one.")
    pools: tuple[Pool, ...] = Field(
        min_length=1, max_length=MAX_POOLS, description="The kinds of hardware that a learner may run on, in order of preference."
    )
    parts: tuple[Part, ...] = Field(
        (),
        max_length=MOST_PARTS,
        description="Learners in other clusters, which a DiLoCoJob with syncer.at runs there: the operator makes their certificates. They "
        "count for training.quorum, not for learners.min and max.",
        json_schema_extra=_without_default,
    )
    placement: PlacementPolicy = Field(
        default_factory=PlacementPolicy,
        description="Which pools units take slices of, and when one leaves its slice for a better one. Without effect in a job with "
        "queueName.",
    )
    start_from: StartFrom | None = Field(
        None,
        description="The model with whose parameters the job begins, as for fine-tuning. It must have every parameter that the job "
        "trains, with its name and shape. Absent: the job begins with the parameters of its first learner.",
    )
    training: Training = Field(description="How long it trains, how often learners exchange, and how their work is merged.")
    syncer: Syncer = Field(default_factory=Syncer, description="The syncer's pod and volume.")
