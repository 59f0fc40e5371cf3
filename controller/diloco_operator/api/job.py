"""DiLoCoJob v1alpha1 as types. The CRD, its defaults and docs/api.md are generated from these models (`api.crd`).

camelCase in the API, snake_case here. Durations are seconds and timestamps seconds since the epoch in the program. Everything is
immutable: a changed status is a new object (`model_copy(update=...)`). What CEL rules require beyond the types is in `api.rules`.

See docs/decisions/0011-api-limits.md.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

from diloco.contract import MOST_HELD_OUT_POINTS, MOST_LOSS_POINTS, Training
from pydantic import Field, StringConstraints, ValidationError

from diloco_operator.accelerators import ACCELERATOR_NAMES, MAX_NAME, NAME_PATTERN, UnitShape, unit_shape
from diloco_operator.api.base import ApiModel
from diloco_operator.api.durations import Duration
from diloco_operator.api.goodput import GoodputStatus
from diloco_operator.api.losses import LossPoint, losses_field
from diloco_operator.api.names import API_VERSION, KIND, MANAGER
from diloco_operator.api.rules import MAX_ACCELERATORS_PER_HOST, MAX_PROCESSES_PER_HOST
from diloco_operator.api.state import JobState
from diloco_operator.kube.client import Cause, Obj
from diloco_operator.kube.timestamps import Timestamp

MAX_LEARNERS = 1024
"""Units of one job: four digits in a pod's name."""
MAX_POOLS = 16
MAX_UNSCHEDULABLE_NODES = 32
"""Nodes that status remembers; of more, the oldest are forgotten."""
SLICE_LIMIT = 131072
"""Characters of the name of a slice or group of hosts."""
TEMPLATE_HASH_LIMIT = 64
MAX_RETRY = 1_000_000
MOST_TOKENS_PER_SECOND = 1e12
"""Of one unit."""


def _without_default(schema: dict[str, Any]) -> None:
    """Keeps the API server from writing an empty field into objects that do not use it."""
    schema.pop("default", None)


class ObjectMeta(ApiModel):
    """What the operator reads of metadata."""

    name: str
    namespace: str = "default"
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None
    finalizers: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


# --- spec -------------------------------------------------------------------------------------------------------------
class Backoff(ApiModel):
    """Pause before a unit's next attempt: doubles from `initial` to `max` with every failure within the window."""

    initial: Duration = Field(5.0, description="Pause after the first failure.")
    max: Duration = Field(300.0, description="Longest pause; not less than initial.")


class Restart(ApiModel):
    """Restart budget of each unit. Disruptions (preemption, eviction, a lost node) do not count."""

    limit: int = Field(
        5,
        ge=0,
        le=1000,
        description="Failures within the window after which the operator gives the unit up. Times learners.max at most 10,000.",
    )
    window: Duration = Field(3600.0, description="Time after which a failure is forgotten.")
    backoff: Backoff = Field(default_factory=Backoff, description="Pause between a failure and the next attempt.")


class Timeouts(ApiModel):
    """How long each step of an attempt's start may take, from pods that were created to a unit that contributes."""

    schedule: Duration = Field(
        30.0,
        description="From a scheduler's first word that it finds no place for a pod until it is bound. A unit that waits longer gives its "
        "slice up and tries another; this does not count as a failure. Pods that no scheduler has looked at have the time of `start` more.",
    )
    pull: Duration = Field(
        1800.0,
        description="To pull the images of a pod. The default is enough for 30 GiB at 17 MiB/s. An image that the registry refuses, for "
        "example because its name is wrong, ends the attempt after `start` already.",
    )
    start: Duration = Field(
        600.0,
        description="From a bound pod to a running learner, without the time to pull images: volumes, network, init containers. A cluster "
        "takes 6 minutes to move a volume away from a lost node.",
    )
    first_step: Duration = Field(
        1800.0,
        description="From joining the syncer to the first step of the training program, for loading data and compiling. Its process must "
        "be heard from meanwhile, else `stallTimeout` counts.",
    )
    join: Duration = Field(600.0, description="From running pods until the syncer has seen the learner.")


class Learners(ApiModel):
    """How many learner units, and when the operator replaces one."""

    min: int = Field(
        1,
        ge=1,
        le=MAX_LEARNERS,
        description="Learners that placement guarantees. With fewer contributing the job is Degraded; outer steps go on as long as "
        "training.quorum of them contribute.",
    )
    max: int = Field(
        ge=1, le=MAX_LEARNERS, description="Elastic upper bound over all pools, without units that drain; `kubectl scale` sets it."
    )
    restart: Restart = Field(default_factory=Restart, description="Restart budget of each unit.")
    timeouts: Timeouts = Field(default_factory=Timeouts, description="How long each step of an attempt's start may take.")
    stall_timeout: Duration = Field(
        120.0,
        description="A joined unit that takes no step for so long is replaced. Its first step has `timeouts.firstStep`, and a pause that "
        "its program announces the time that it names, as long as its process is heard from.",
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
    PROVISIONING_REQUEST = "ProvisioningRequest"


class Provisioning(ApiModel):
    """How units of a pool get nodes that do not exist yet."""

    mode: ProvisioningMode = Field(
        ProvisioningMode.EXISTING,
        description="Existing: units run on nodes that are there. Autoscaler: units for which no slice is free get pods that name no node, "
        "so that an autoscaler (cluster autoscaler, Karpenter, node auto-provisioning) brings nodes for them. ProvisioningRequest: all "
        "nodes of a unit are asked for at once, by a ProvisioningRequest (autoscaling.x-k8s.io/v1), and its pods come when the nodes do.",
    )
    class_name: str = Field(
        "",
        alias="class",
        max_length=253,
        description="Provisioning class of the requests: `queued-provisioning.gke.io` (flex-start of GKE), "
        "`best-effort-atomic-scale-up.autoscaling.x-k8s.io`, or another that the cluster's autoscaler has. For ProvisioningRequest only.",
        json_schema_extra=_without_default,
    )
    parameters: dict[str, Annotated[str, Field(max_length=255)]] = Field(
        default_factory=dict,
        max_length=100,
        description="Parameters of the class, such as maxRunDurationSeconds or ValidUntilSeconds. For ProvisioningRequest only.",
        json_schema_extra=_without_default,
    )
    timeout: Duration = Field(
        900.0,
        description="How long a unit waits for its nodes. Then it is withdrawn for a while, and the next pool is asked. Not for Existing.",
    )


class TemplateMetadata(ApiModel):
    """Labels and annotations for the pods; those of diloco.dev/ are the operator's own."""

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

    name: str = Field(
        max_length=63, description="DNS label of at most 15 characters; units are called `<pool>-<index>`. Unique within the job."
    )
    accelerator: str = Field(
        max_length=MAX_NAME,
        description="Kind of hardware, a row of the accelerator catalogue. Immutable. Built in are "
        f"{', '.join(ACCELERATOR_NAMES)}; the operator's catalogue file may add others. Of a kind that it does not know it says so in the "
        "condition Accepted.",
        json_schema_extra={"pattern": NAME_PATTERN},
    )
    topology: str = Field(
        "",
        max_length=32,
        description="TPU only: topology of the slice that one unit occupies, such as 2x2x2. Required for a TPU.",
        json_schema_extra=_without_default,
    )
    chips_per_host: int | None = Field(
        None,
        ge=1,
        le=8,
        description="TPU only: chips of each host. Needed where accelerator and topology leave a choice "
        "(v6e and v5e 2x4: one host of 8 or two of 4).",
    )
    hosts: int | None = Field(
        None, ge=1, le=512, description="Hosts of one unit. Default 1. Not for TPUs, whose hosts follow from the topology."
    )
    accelerators_per_host: int | None = Field(
        None,
        ge=1,
        le=MAX_ACCELERATORS_PER_HOST,
        description="Accelerators of each host. Default: all that a host of this kind has. Units of one host that ask for fewer leave the "
        "rest to others; units of several hosts, and those whose pods use the host's network or ports, take whole ones. Not for TPUs and "
        "cpu.",
    )
    processes_per_host: int | None = Field(
        None,
        ge=1,
        le=MAX_PROCESSES_PER_HOST,
        description="Processes (ranks) that the program runs as on each host, as `torchrun` and `diloco-launch` start them. Default 1. "
        "Each gets the same number of the host's accelerators. Not for TPUs, of which one process has all chips of its host.",
    )
    shared_memory: str | None = Field(
        None,
        max_length=16,
        description="Size of /dev/shm in the container that trains, a Kubernetes quantity. 0: the 64 MiB that every container has. "
        "Default: 1Gi for each accelerator of a host, and 0 for TPUs and cpu. It is in memory: requests and limits of memory that the "
        "container sets grow by as much. A template that mounts /dev/shm itself keeps its own.",
    )
    learners: PoolLearners = Field(description="How many units of this pool.")
    spares: int = Field(
        0,
        ge=0,
        le=MAX_LEARNERS,
        description="Slices that the job keeps free beside its units, so that a unit that loses its slice need not wait for another. They "
        "are taken once every unit that the pool and learners.max allow has one, and shared with other jobs as units beyond learners.min "
        "are; no unit of another job leaves for them.",
    )
    capacity: Capacity | None = Field(
        None,
        description="How the hardware is held. Absent: any. The cloud may take Spot away; FlexStart comes when there is room and ends "
        "at a known time. Scavenged uses any hardware and yields it to "
        "units of other jobs.",
    )
    locality: Locality = Field(
        Locality.ZONE,
        description="How near to each other the hosts of one unit must be. Zone: in one zone (topology.kubernetes.io/zone). Block: also in "
        "one network block, the widest that the nodes' labels name; NVLink domains are the narrowest. Any: anywhere. Of the places with "
        "room, the nearest common network block is preferred. Hosts of a TPU slice are always together.",
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
        description="What becomes of the volume claim, with the model in it, when the job is deleted, also by ttlSecondsAfterFinished. "
        "Delete: it is deleted with the job. Keep: it stays. It can be changed at any time, also once the job is over.",
    )


class Syncer(ApiModel):
    """The one logical syncer of the job."""

    shards: int = Field(1, ge=1, le=64, description="Processes that share the syncer's work; only 1 is supported. Immutable.")
    storage: Storage = Field(default_factory=Storage, description="The syncer's volume. Size and class are immutable.")
    template: PodTemplate | None = Field(
        None, description='Pod template to start from; its container named "syncer", if there is one, is the syncer.'
    )


class Objective(enum.StrEnum):
    """What placement makes as large as it can be."""

    THROUGHPUT = "Throughput"
    PREFERENCE = "Preference"


class PlacementPolicy(ApiModel):
    """Which pools units take slices of, and when one leaves its slice for a better one."""

    objective: Objective = Field(
        Objective.THROUGHPUT,
        description="Throughput: units take the slices on which the job trains the most tokens/s, as measured (status.pools[].value), or "
        "by the accelerators' peak until it is; among equal ones the pools' order decides. Preference: the pools' order alone decides. "
        "learners of the pools hold in either case.",
    )
    horizon: Duration = Field(
        1800.0,
        description="Time in which a move must pay: a unit leaves its slice for a better one if it gains more than its job loses while it "
        "starts again, as measured, divided by the horizon; and more than a margin for noise.",
    )
    max_moving: int = Field(
        1,
        ge=0,
        le=MAX_LEARNERS,
        description="Units that may be on the way at once, from their slices to better ones. While so many units drain, start or join, for "
        "whatever reason, no further one moves. 0: none moves.",
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
        description="Priority class: it orders jobs, and pods get it; those for which an autoscaler brings nodes get only one that never "
        "pre-empts.",
    )
    queue_name: str = Field(
        "",
        max_length=63,
        description="LocalQueue of Kueue in the job's namespace. Each unit waits for its quota there, as a pod group of its own; Kueue "
        "chooses the flavor, and may take the quota back. Absent: units need no quota. It can be changed while the job is suspended.",
    )
    ttl_seconds_after_finished: int | None = Field(
        None, ge=0, description="Deletes the job this many seconds after Complete or Failed. Absent: never."
    )
    retry: int | None = Field(
        None,
        ge=0,
        le=MAX_RETRY,
        description="Raise it above `status.retry`, absent is 0, to start a failed job again from its last snapshot, or units that were "
        "given up in a job that trains. A failed job takes other changes only together with it. Lowering it has no effect.",
    )
    learners: Learners = Field(description="How many learner units, and when the operator replaces one.")
    pools: tuple[Pool, ...] = Field(
        min_length=1, max_length=MAX_POOLS, description="The kinds of hardware that a learner may run on, in order of preference."
    )
    placement: PlacementPolicy = Field(
        default_factory=PlacementPolicy,
        description="Which pools units take slices of, and when one leaves its slice for a better one. Without effect in a job with "
        "queueName.",
    )
    training: Training = Field(description="How long it trains, how often learners exchange, and how their work is merged.")
    syncer: Syncer = Field(default_factory=Syncer, description="The syncer's pod and volume.")


# --- status -----------------------------------------------------------------------------------------------------------
class ConditionStatus(enum.StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """One statement about the job."""

    type: str = Field(max_length=316, description="Accepted, Placed, Training, Degraded, Suspended, Complete or Failed.")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    reason: str = Field(max_length=1024, description="Stable name of the cause, in CamelCase.")
    message: str = Field("", max_length=32768, description="Human-readable: what it means and what to do.")
    observed_generation: int = Field(0, ge=0, description="The metadata.generation that this was decided on.")
    last_transition_time: Timestamp = Field(description="When status last changed.")


class UnitState(enum.StrEnum):
    """Life of a learner unit."""

    PENDING = "Pending"
    """Desired; has no hardware yet."""
    STARTING = "Starting"
    """Pods exist; not all of them run."""
    JOINING = "Joining"
    """Pods run; the unit does not contribute yet."""
    TRAINING = "Training"
    """Contributes, as the syncer reports."""
    DRAINING = "Draining"
    """Hands back its state before it ends."""
    BACKING_OFF = "BackingOff"
    """The attempt ended; the next one starts at notBefore."""
    FAILED = "Failed"
    """Given up: the restart budget is used up or a restart does not help."""
    COMPLETED = "Completed"
    """Ended because the job is complete."""


class UnitStatus(ApiModel):
    """One learner unit."""

    name: str = Field(max_length=63, description="`<pool>-<index>`.")
    pool: str = Field(max_length=63, description="The pool that the unit's hardware belongs to.")
    slice: str = Field("", max_length=SLICE_LIMIT, description='The slice or group of hosts that it occupies; "": none.')
    state: UnitState = Field(description="Where the unit is in its life.")
    attempt: int = Field(0, ge=0, description="Number of the current attempt, from 1; 0 before the first.")
    restarts: int = Field(0, ge=0, description="Attempts that a failure or disruption ended, after which it starts again.")
    reason: str = Field("", max_length=1024, description="Why it is in this state, in CamelCase.")
    message: str = Field("", max_length=4096, description="Human-readable: the reason and what to do.")
    tokens_per_second: float = Field(0.0, ge=0, description="Moving average, as the syncer measures it.")
    weight: float = Field(
        0.0,
        ge=0,
        description="Its share of the recent merges of the job, 0 to 1; a merge without it counts 0. Those of all units sum to 1.",
    )
    staleness: int = Field(
        0, ge=0, description="Outer steps since its last contribution, of any attempt; before the first, since it joined."
    )
    steps_per_sync: int | None = Field(
        None,
        ge=1,
        description="Local steps since it had adopted the fragment, at its last contribution that was merged; about training.syncInterval "
        "where the units are equally fast, at most about 1.5 times that; absent: none yet.",
    )
    own_data: bool | None = Field(
        None,
        description="Its program feeds itself: its tokens are counted, its samples are not. When it ends, other units do not train what it "
        "left; absent: it trains what the syncer leases to it.",
    )
    tokens: int = Field(0, ge=0, description="Tokens that were committed to the global parameters, all attempts.")
    steps: int = Field(0, ge=0, description="Local steps that were committed, all attempts.")
    refused: dict[str, int] = Field(
        default_factory=dict, description="Joins and contributions of this unit that the syncer refused, by reason, all attempts."
    )
    since: Timestamp | None = Field(None, description="When it entered this state.")
    paused_until: Timestamp | None = Field(
        None, description="When the pause that its program announced must be over, see the message; absent: it does not pause."
    )
    slow_since: Timestamp | None = Field(
        None,
        description="Since when its steps take much longer than those of the other units of its pool; absent: they do not, or fewer than "
        "three units of the pool train.",
    )
    recover_seconds: float | None = Field(
        None, ge=0, description="From its last loss to contributing again, with all attempts between; absent: never recovered."
    )
    failures: tuple[Timestamp, ...] = Field(
        (), max_length=1001, description="When it failed, within the restart window; disruptions are not among them."
    )
    ended_attempt: int = Field(0, ge=0, description="The newest attempt whose end is on record; its pods may be deleted.")
    failed_attempt: int | None = Field(
        None, ge=1, description="The newest attempt that failed; its pods that ended stay, for their logs; absent: none."
    )
    last_failure: str | None = Field(
        None,
        max_length=1024,
        description="How that attempt failed, as `Reason: message`, also once the unit trains again; absent: none did.",
    )
    ended_at: Timestamp | None = Field(
        None, description="Since when it does not contribute, over all attempts since; absent once the unit contributes again."
    )
    not_before: Timestamp | None = Field(None, description="The next attempt starts no sooner.")
    unschedulable: int | None = Field(
        None, ge=1, description="Slices in a row that it gave up without a failure, until a scheduler has bound all its pods; absent: none."
    )
    grantor_said: str | None = Field(
        None,
        max_length=4096,
        description="What the grantor had said of its nodes or quota when the last asking ended without a place. Absent: it is asked for "
        "now, it has had a place since, or it was never asked for.",
    )
    cause: str | None = Field(
        None,
        max_length=4096,
        description="How its last attempt ended, or why it has to leave, where the message says more than that; absent: it does not.",
    )
    template_hash: str = Field("", max_length=TEMPLATE_HASH_LIMIT, description="Hash of what the user wrote for its newest attempt.")


class UnschedulableNode(ApiModel):
    """A node that units gave up without a failure."""

    name: str = Field(max_length=253, description="The node's name.")
    since: Timestamp = Field(description="When a unit gave it up. Units prefer other nodes for half an hour.")


MAX_REMEDIES = 8
"""Remedies that a pool names."""


class PoolStatus(ApiModel):
    """One pool."""

    name: str = Field(max_length=63, description="The pool's name.")
    placed: int = Field(0, ge=0, description="Units that have hardware of this pool.")
    contributing: int = Field(0, ge=0, description="Units of this pool that contribute.")
    spares: int | None = Field(None, ge=1, description="Free slices that are kept for its units; absent: none.")
    reason: str = Field("", max_length=1024, description="Why the pool has no more units, in CamelCase.")
    message: str = Field("", max_length=4096, description="Human-readable: the reason.")
    remedies: tuple[Annotated[str, StringConstraints(max_length=1024)], ...] | None = Field(
        None, max_length=MAX_REMEDIES, description="What a person can do about it, one thing each; absent: nothing is known."
    )
    waiting_since: Timestamp | None = Field(None, description="Since when units of it wait for hardware; absent: none waits.")
    tokens_per_second: float | None = Field(
        None,
        ge=0,
        le=MOST_TOKENS_PER_SECOND,
        description="Tokens/s of one unit of this pool while it trains, as the syncer measures it: an average over ten minutes of "
        "training, of all units and attempts. It stays while the pool has no unit; absent: never measured.",
    )
    measured_seconds: float | None = Field(
        None, ge=0, description="Training that this average is made of, in seconds, at most 600. From 120 on it decides; absent: none."
    )
    value: float | None = Field(
        None,
        ge=0,
        le=MAX_POOLS,
        description="What one unit of this pool is worth to placement: its tokens/s relative to the mean over the kinds of hardware in "
        "spec.pools, in steps of 0.05. Of a pool that is not measured yet: by the accelerators' peak, and by what the job gets out of its "
        "other kinds; absent: 1, the mean.",
    )


class HostFailure(ApiModel):
    """One attempt that failed on a host, or was slow there."""

    unit: str = Field(max_length=63, description="The unit.")
    attempt: int = Field(ge=0, description="Its attempt.")
    at: Timestamp = Field(description="When it failed.")
    reason: str = Field(
        "", max_length=1024, description="How it failed, in CamelCase, as in units[].reason; Slow: it was much slower than its pool."
    )


MAX_HOSTS = 16
"""Hosts that status names."""
MAX_HOST_FAILURES = 3
"""Failures that status keeps of each."""


class HostStatus(ApiModel):
    """One host on which attempts of this job failed."""

    node: str = Field(max_length=253, description="Name of the node.")
    uid: str = Field("", max_length=63, description="uid of the node; a new node of the same name starts without failures.")
    failures: tuple[HostFailure, ...] = Field(
        (),
        max_length=MAX_HOST_FAILURES,
        description="The latest attempts that failed on it, within the restart window and at least the last one. Disruptions, drains and "
        "refusals are not among them.",
    )
    message: str = Field("", max_length=1024, description="Human-readable: the last failure.")
    avoided_until: Timestamp | None = Field(
        None, description="No attempt of this job starts on it until then, unless nothing else is free. Absent: it is not avoided."
    )
    avoidances: int = Field(0, ge=0, description="How often it was avoided; each time lasts twice as long as the one before.")


class Progress(ApiModel):
    """Steps, speed and loss."""

    step: int = Field(0, ge=0, description="Outer steps done.")
    steps: int = Field(0, ge=0, description="Outer steps in all.")
    tokens: int = Field(0, ge=0, description="Tokens committed to the global parameters.")
    token_budget: int | None = Field(None, ge=0, description="Tokens at which the job ends, if not by its steps before; absent: none.")
    loss: float | None = Field(None, description="Training loss, weighted over the learners, moving average.")
    held_out_loss: float | None = Field(None, description="Loss of the final parameters on held-out data, once Complete.")
    losses: Annotated[tuple[LossPoint, ...], *losses_field(MOST_LOSS_POINTS)] | None = Field(
        None,
        description="Training loss over outer steps, `step:loss` of each point, evenly spaced, the newest last; absent: none yet. "
        "`kubectl diloco status` draws it.",
    )
    held_out_losses: Annotated[tuple[LossPoint, ...], *losses_field(MOST_HELD_OUT_POINTS)] | None = Field(
        None, description="The same of the held-out loss, at the outer steps at which learners evaluated; absent: none yet."
    )
    tokens_per_second: float = Field(0.0, ge=0, description="Moving average over all learners.")
    estimated_completion: Timestamp | None = Field(None, description="When the last step is reached at this speed.")
    updated_at: Timestamp | None = Field(None, description="When these figures were written; they are written every few seconds.")


SNAPSHOT_PATH_LIMIT = 253
"""Characters of the path of a snapshot within the syncer's volume."""


class ModelStatus(ApiModel):
    """The newest durable snapshot: at the end of the job, the model."""

    step: int = Field(0, ge=0, description="Outer step whose parameters it holds.")
    claim: str = Field("", max_length=253, description="The PersistentVolumeClaim that holds it, in the job's namespace.")
    path: str = Field(
        "",
        max_length=SNAPSHOT_PATH_LIMIT,
        description="Its folder within the claim's volume, such as snapshots/snapshot-00000011-t2400; absent: the syncer did not say it.",
        json_schema_extra=_without_default,
    )
    uri: str = Field(
        "",
        max_length=2048,
        description="The folder of its copy below training.checkpoint.uri; absent: there is no copy of this snapshot.",
        json_schema_extra=_without_default,
    )
    format: str = Field("", max_length=32, description="Format of the file with the parameters: safetensors.")
    retain: Retain = Field(
        Retain.DELETE,
        description="What happens to the claim when the job is deleted, as the claim itself says it. It follows syncer.storage.retain "
        "within a moment.",
    )


class LearnersStatus(ApiModel):
    """Numbers of learner units."""

    desired: int = Field(0, ge=0, description="Units that the operator wants now.")
    placed: int = Field(0, ge=0, description="Units that have hardware.")
    contributing: int = Field(0, ge=0, description="Units that contribute, as the syncer sees it.")
    min: int = Field(0, ge=0, description="spec.learners.min.")
    max: int = Field(0, ge=0, description="spec.learners.max.")


class Status(ApiModel):
    """Observed state. Only the operator writes it."""

    observed_generation: int = Field(0, ge=0, description="The metadata.generation that this status was decided on.")
    state: JobState | None = Field(
        None,
        description="The state of the job in one word, from its conditions: NotAccepted, Queued, Starting, Training, Degraded, Suspended, "
        "Complete or Failed. Absent: the operator has not seen the job.",
    )
    reason: str = Field("", max_length=1024, description="Reason of the condition that decides the state, in CamelCase.")
    retry: int | None = Field(None, ge=0, description="The highest `spec.retry` that the operator has acted on; absent: none.")
    conditions: tuple[Condition, ...] = Field(
        (),
        max_length=32,
        description="Accepted, Placed, Training, Degraded, Suspended, Complete, Failed: each with a reason and a message.",
    )
    progress: Progress = Field(default_factory=Progress, description="Steps, speed and loss.")
    model: ModelStatus | None = Field(
        None, description="Where the newest snapshot is, and at the end the model; absent: there is none yet."
    )
    goodput: GoodputStatus | None = Field(
        None, description="Where the time of the units went; frozen when the job ends; absent: nothing is measured yet."
    )
    learners: LearnersStatus = Field(
        default_factory=LearnersStatus, description="How many learner units are wanted, placed and contribute."
    )
    units: tuple[UnitStatus, ...] = Field(
        (), max_length=2 * MAX_LEARNERS, description="Every learner unit: where it runs, its state and why, its share of the merges."
    )
    unschedulable_nodes: tuple[UnschedulableNode, ...] | None = Field(
        None,
        max_length=MAX_UNSCHEDULABLE_NODES,
        description="Nodes that units gave up lately, because no scheduler bound their pods there, or another operator's learner was "
        "there first; absent: none.",
    )
    hosts: tuple[HostStatus, ...] = Field(
        (), max_length=MAX_HOSTS, description="Hosts on which attempts failed or were slow lately, and whether the job avoids them."
    )
    pool_summary: str = Field("", max_length=1024, description='Contributing and placed units of each pool, such as "v5p 4/4, h100 1/2".')
    pools: tuple[PoolStatus, ...] = Field((), max_length=2 * MAX_POOLS, description="Every pool, and why it has no more units.")


class DiLoCoJob(ApiModel):
    """Trains one model by Decoupled DiLoCo: learner units on mixed hardware around one syncer."""

    api_version: Literal["diloco.dev/v1alpha1"] = API_VERSION  # type: ignore[assignment]
    kind: Literal["DiLoCoJob"] = KIND  # type: ignore[assignment]
    metadata: ObjectMeta
    spec: Spec = Field(description="Desired state: how many learners, on which hardware, and what they train.")
    status: Status = Field(
        default_factory=Status, description="Observed state: conditions, progress and learner units. Only the operator writes it."
    )

    def pool(self, name: str) -> Pool | None:
        """The pool of this name, if the spec has it."""
        return next((pool for pool in self.spec.pools if pool.name == name), None)

    def condition(self, type: str) -> Condition | None:
        """The condition of this type, if status has it."""
        return next((condition for condition in self.status.conditions if condition.type == type), None)


class InvalidJob(ValueError):
    """An object that is no DiLoCoJob of this version; `causes` names every field."""

    def __init__(self, name: str, causes: tuple[Cause, ...]) -> None:
        self.causes = causes
        super().__init__(f"DiLoCoJob {name} cannot be read: " + "; ".join(f"{cause.field}: {cause.message}" for cause in causes))


def load(obj: Obj) -> DiLoCoJob:
    """The typed form of an API object, absent fields with their defaults. Raises `InvalidJob`.

    Checks types only; the rules of the CRD hold for whatever an API server accepted (`kube.memory.schema.validate` checks them).
    """
    try:
        return DiLoCoJob.model_validate(obj)
    except ValidationError as error:
        metadata = obj.get("metadata")
        name = str(metadata.get("name", "")) if isinstance(metadata, dict) else ""
        raise InvalidJob(name, tuple(Cause(_path(problem["loc"]), problem["msg"]) for problem in error.errors())) from error


def dump(job: DiLoCoJob) -> Obj:
    """The API object of a job; absent optional fields are left out. `load(dump(job)) == job`."""
    return job.model_dump(mode="json", by_alias=True, exclude_none=True)


def dump_status(status: Status) -> dict[str, Any]:
    """What goes into `.status`; absent optional fields are left out."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _path(location: tuple[int | str, ...]) -> str:
    """A pydantic location in Kubernetes' notation: spec.pools[0].name."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")
