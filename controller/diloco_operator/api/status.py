"""`status` of a DiLoCoJob as types: what the operator reports. The CRD and docs/api.md are generated from them (`api.crd`).

camelCase in the API, snake_case here. Durations are seconds and timestamps seconds since the epoch in the program. Everything is
immutable: a changed status is a new object (`model_copy(update=...)`).

See docs/decisions/0010-crd-and-limits.md.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Annotated, Any

from diloco.contract import MOST_HELD_OUT_POINTS, MOST_LOSS_POINTS, MOST_PARTS
from pydantic import Field, StringConstraints

from diloco_operator.api.base import ApiModel
from diloco_operator.api.goodput import AcceleratorHours, GoodputStatus
from diloco_operator.api.losses import LossPoint, losses_field
from diloco_operator.api.rules import MAX_PART_UNITS
from diloco_operator.api.spec import MAX_LEARNERS, MAX_OUTSIDE, MAX_POOLS, Retain
from diloco_operator.api.state import JobState
from diloco_operator.api.unit_figures import FiguresModel
from diloco_operator.kube.timestamps import Timestamp

MAX_UNSCHEDULABLE_NODES = 32
"""Nodes that status remembers. If there are more, the oldest are forgotten."""
SLICE_LIMIT = 131072
"""Characters of the name of a slice or group of hosts."""
TEMPLATE_HASH_LIMIT = 64
MOST_TOKENS_PER_SECOND = 1e12
"""The most tokens per second of one unit."""


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

    @property
    def why(self) -> str:
        """Reason and message, for a line of text."""
        return f"{self.reason}: {self.message}"


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


class UnitSummary(ApiModel):
    """Which unit it is, and where it is in its life: what stands before its figures."""

    name: str = Field(max_length=63, description="`<pool>-<index>`.")
    pool: str = Field(max_length=63, description="The pool that the unit's hardware belongs to.")
    slice: str = Field("", max_length=SLICE_LIMIT, description='The slice or group of hosts that it occupies; "": none.')
    state: UnitState = Field(description="Where the unit is in its life.")
    attempt: int = Field(0, ge=0, description="Number of the current attempt, from 1; 0 before the first.")
    restarts: int = Field(0, ge=0, description="Attempts that a failure or disruption ended, after which it starts again.")
    reason: str = Field("", max_length=1024, description="Why it is in this state, in CamelCase.")
    message: str = Field("", max_length=4096, description="Human-readable: the reason and what to do.")


class UnitStatus(FiguresModel, UnitSummary):
    """One learner unit."""

    since: Timestamp | None = Field(None, description="When it entered this state.")
    paused_until: Timestamp | None = Field(None, description="When the pause that its program announced must be over.")
    recover_seconds: float | None = Field(None, ge=0, description="From its last loss to contributing again, with all attempts between.")
    began_with: str | None = Field(
        None,
        max_length=1024,
        description="Which state this attempt began with, from which unit, or why from none, and how long each phase of its start took.",
    )
    failures: tuple[Timestamp, ...] = Field(
        (), max_length=1001, description="When it failed, within the restart window; disruptions are not among them."
    )
    ended_attempt: int = Field(0, ge=0, description="The newest attempt whose end is on record; its pods may be deleted.")
    failed_attempt: int | None = Field(None, ge=1, description="The newest attempt that failed; its ended pods stay, for their logs.")
    last_failure: str | None = Field(
        None,
        max_length=1024,
        description="How that attempt failed, as `Reason: message`, also once the unit trains again.",
    )
    ended_at: Timestamp | None = Field(
        None, description="Since when it does not contribute, over all attempts since; absent once the unit contributes again."
    )
    not_before: Timestamp | None = Field(None, description="The next attempt starts no sooner.")
    unschedulable: int | None = Field(None, ge=1, description="Attempts in a row that ended without a failure before all their pods ran.")
    grantor_said: str | None = Field(
        None,
        max_length=4096,
        description="What the grantor said of its nodes or quota when it was last asked in vain.",
    )
    cause: str | None = Field(
        None,
        max_length=4096,
        description="How its last attempt ended, or why it has to leave, where the message says more than that.",
    )
    template_hash: str = Field("", max_length=TEMPLATE_HASH_LIMIT, description="Hash of what the user wrote for its newest attempt.")


class ReportedUnit(ApiModel):
    """One unit that this operator does not run, as the syncer reports it."""

    name: str = Field(max_length=63, description="`<pool>-<index>`, or as in spec.learners.outside.")
    state: str = Field(
        "",
        max_length=63,
        description="As the syncer sees it: Joining, Contributing, Disconnected, Done or Refused. Absent: it has not joined.",
    )
    since: Timestamp | None = Field(None, description="When the operator first heard that this attempt is in this state.")
    attempt: int = Field(0, ge=0, description="Number of its newest attempt.")
    tokens: int = Field(0, ge=0, description="Tokens that were committed to the global parameters.")


class OutsideStatus(ReportedUnit):
    """One learner outside the cluster."""

    message: str = Field("", max_length=1024, description="Human-readable: why the syncer refused it.")


class PartStatus(ApiModel):
    """One part, as the syncer sees it."""

    name: str = Field(max_length=63, description="Name of the cluster.")
    units: tuple[ReportedUnit, ...] = Field(
        (), max_length=MAX_PART_UNITS, description="Its units that have joined, in whatever state they are now."
    )
    contributing: int = Field(0, ge=0, description="Its units that contribute.")
    tokens: int = Field(0, ge=0, description="Tokens of its units that were committed to the global parameters.")
    tokens_per_second: float = Field(
        0.0, ge=0, le=MAX_LEARNERS * MOST_TOKENS_PER_SECOND, description="Tokens/s of its units together, moving average."
    )
    weight: float = Field(0.0, ge=0, description="Share of its units in the recent merges of the job, 0 to 1.")
    merge_share: float | None = Field(
        None, ge=0, description="The mean of `status.units[].mergeShare` over its units that contribute; absent: not known."
    )
    round_trip_seconds: float | None = Field(
        None, ge=0, description="Shortest round trip between the syncer and a unit of it that contributes; absent: not measured."
    )
    received_bytes_per_second: int | None = Field(
        None,
        ge=0,
        description="Highest rate at which the syncer got bytes from all its units together, over five seconds of the last ten minutes: "
        "that of their link if it was full, else what was used of it. Absent: nothing came.",
    )
    sent_bytes_per_second: int | None = Field(None, ge=0, description="The same of what the syncer sent and its units acknowledged.")
    received_bytes: int | None = Field(None, ge=0, description="Bytes from its units since the syncer's process began; absent: none.")
    sent_bytes: int | None = Field(None, ge=0, description="Bytes to its units since the syncer's process began; absent: none.")
    last_heard: Timestamp | None = Field(None, description="When a process of it was last heard from; absent: none was.")
    namespace: str = Field("", max_length=63, description="Namespace of its DiLoCoJob in that cluster, if this operator makes it.")
    state: str = Field("", max_length=63, description="State of its DiLoCoJob, as its operator says.")
    message: str = Field("", max_length=1024, description="Human-readable: why that is in this state, or why it cannot be made.")
    accelerator_hours: AcceleratorHours | None = Field(
        None,
        description="Hours for which its units held accelerators, as status.goodput of its DiLoCoJob says. A DiLoCoJob that is made anew "
        "counts from 0; then the larger number stays here.",
    )
    productive_share: float | None = Field(None, ge=0, le=1, description="Its goodput, as status.goodput of its DiLoCoJob says.")
    silent_since: Timestamp | None = Field(
        None, description="Since when its cluster does not answer, or its operator says nothing; absent: it does."
    )


class HomeStatus(ApiModel):
    """The job that this one is a part of."""

    part: str = Field("", max_length=63, description="Name of this part.")
    namespace: str = Field("", max_length=63, description="Namespace of the job, in the syncer's cluster.")
    name: str = Field("", max_length=63, description="Name of the job there.")
    uid: str = Field("", max_length=63, description="Its uid.")
    last_heard: Timestamp | None = Field(None, description="When the syncer's last report came; absent: none has come.")


class UnschedulableNode(ApiModel):
    """A node that units gave up without a failure."""

    name: str = Field(max_length=253, description="The node's name.")
    since: Timestamp = Field(description="When a unit gave it up. Units prefer other nodes for half an hour.")


MAX_CONDITIONS = 32
"""Conditions of a job, including those that others have added."""
MAX_REMEDIES = 8
"""Remedies of one pool."""


class PoolStatus(ApiModel):
    """One pool."""

    name: str = Field(max_length=63, description="The pool's name.")
    cluster: str | None = Field(None, max_length=63, description="The cluster that it is in; absent: this one.")
    assigned: int | None = Field(
        None, ge=0, description="Units that the job has given to a pool in another cluster; absent: it is in this one."
    )
    placed: int = Field(0, ge=0, description="Units that have hardware of this pool.")
    contributing: int = Field(0, ge=0, description="Units of this pool that contribute.")
    spares: int | None = Field(None, ge=1, description="Free slices that are kept for its units; absent: none.")
    reason: str = Field("", max_length=1024, description="Why the pool has no more units, in CamelCase.")
    message: str = Field("", max_length=4096, description="Human-readable: the reason.")
    remedies: tuple[Annotated[str, StringConstraints(max_length=1024)], ...] | None = Field(
        None, max_length=MAX_REMEDIES, description="What a person can do about it, one thing each."
    )
    waiting_since: Timestamp | None = Field(None, description="Since when units of it wait for hardware; absent: none waits.")
    tokens_per_second: float | None = Field(
        None,
        ge=0,
        le=MOST_TOKENS_PER_SECOND,
        description="Tokens/s of one unit of this pool while it trains: an average over ten minutes of training, of all units and "
        "attempts. It stays while the pool has no unit.",
    )
    measured_seconds: float | None = Field(None, ge=0, description="Seconds of training in this average. From 120 on it decides.")
    value: float | None = Field(
        None,
        ge=0,
        le=MAX_POOLS,
        description="What one unit of this pool is worth to placement: its tokens/s relative to the mean over the kinds of hardware in "
        "spec.pools, or before it is measured by the accelerators' peak; absent: 1, the mean.",
    )


class HostFailure(ApiModel):
    """One attempt that failed on a host."""

    unit: str = Field(max_length=63, description="The unit.")
    attempt: int = Field(ge=0, description="Its attempt.")
    at: Timestamp = Field(description="When it failed.")
    reason: str = Field("", max_length=1024, description="How it failed, in CamelCase, as in units[].reason.")


MAX_HOSTS = 16
"""Hosts in status."""
MAX_HOST_FAILURES = 3
"""Failures that status keeps for each host."""


class HostStatus(ApiModel):
    """One host on which attempts of this job failed."""

    node: str = Field(max_length=253, description="Name of the node.")
    uid: str = Field("", max_length=63, description="uid of the node; a new node of the same name starts without failures.")
    failures: tuple[HostFailure, ...] = Field(
        (),
        max_length=MAX_HOST_FAILURES,
        description="The latest attempts that failed on it, within the restart window and at least the last one.",
    )
    message: str = Field("", max_length=1024, description="Human-readable: the last failure.")
    avoided_until: Timestamp | None = Field(
        None, description="No attempt of this job starts on it until then, unless nothing else is free. Absent: it is not avoided."
    )
    avoidances: int = Field(0, ge=0, description="How often it was avoided; each time lasts twice as long as the one before.")

    @property
    def last_failure(self) -> float:
        """When the last attempt failed on it, seconds since the epoch."""
        return max(failure.at for failure in self.failures)

    def avoided(self, now: float) -> bool:
        """Whether no attempt may start on it now."""
        return self.avoided_until is not None and now < self.avoided_until

    def written(self) -> dict[str, Any]:
        """The fields for status, also at their defaults."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Progress(ApiModel):
    """Steps, speed and loss."""

    step: int = Field(0, ge=0, description="Outer steps done.")
    steps: int = Field(0, ge=0, description="Outer steps in all.")
    tokens: int = Field(0, ge=0, description="Tokens committed to the global parameters.")
    token_budget: int | None = Field(None, ge=0, description="Tokens at which the job ends, if not by its steps before; absent: none.")
    loss: float | None = Field(None, description="Training loss, weighted over the learners, moving average.")
    cosine: float | None = Field(
        None,
        ge=-1,
        le=1,
        description="Mean cosine between the learners' contributions to a merge, moving average: 0 of independent directions, 1 of equal "
        "ones.",
    )
    held_out_loss: float | None = Field(None, description="Loss of the final parameters on held-out data, once Complete.")
    losses: Annotated[tuple[LossPoint, ...], *losses_field(MOST_LOSS_POINTS)] | None = Field(
        None,
        description="Training loss over outer steps, `step:loss` of each point, evenly spaced, the newest last. `kubectl diloco status` "
        "draws it.",
    )
    held_out_losses: Annotated[tuple[LossPoint, ...], *losses_field(MOST_HELD_OUT_POINTS)] | None = Field(
        None, description="The same of the held-out loss, at the outer steps at which learners evaluated."
    )
    tokens_per_second: float = Field(0.0, ge=0, description="Moving average over all learners.")
    estimated_completion: Timestamp | None = Field(None, description="When the last step is reached at this speed.")
    updated_at: Timestamp | None = Field(None, description="When these figures were written.")


SNAPSHOT_PATH_LIMIT = 253
"""Characters of the path of a snapshot within the syncer's volume."""


class ModelStatus(ApiModel):
    """The newest durable snapshot: at the end of the job, the model."""

    step: int = Field(0, ge=0, description="Outer step whose parameters it holds.")
    claim: str = Field("", max_length=253, description="The PersistentVolumeClaim that holds it, in the job's namespace.")
    path: str = Field(
        "",
        max_length=SNAPSHOT_PATH_LIMIT,
        description="Its folder within the claim's volume, such as snapshots/snapshot-00000011-t2400.",
    )
    uri: str = Field(
        "",
        max_length=2048,
        description="The folder of its copy below training.checkpoint.uri; absent: there is no copy of this snapshot.",
    )
    format: str = Field("", max_length=32, description="Format of the file with the parameters: safetensors.")
    retain: Retain = Field(
        Retain.DELETE,
        description="What happens to the claim when the job is deleted; it follows syncer.storage.retain within a moment.",
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
        description="The state of the job in one word, from its conditions. Absent: the operator has not seen the job.",
    )
    reason: str = Field("", max_length=1024, description="Reason of the condition that decides the state, in CamelCase.")
    retry: int | None = Field(None, ge=0, description="The highest `spec.retry` that the operator has acted on; absent: none.")
    conditions: tuple[Condition, ...] = Field(
        (),
        max_length=MAX_CONDITIONS,
        description="Accepted, Placed, Training, Degraded, Suspended, Complete, Failed: each with a reason and a message.",
    )
    ended_with: str | None = Field(
        None,
        max_length=4096,
        description="How the job ended, as the message of Complete or Failed begins; absent: it is not over.",
    )
    progress: Progress = Field(default_factory=Progress, description="Steps, speed and loss.")
    model: ModelStatus | None = Field(
        None, description="Where the newest snapshot is, and at the end the model; absent: there is none yet."
    )
    goodput: GoodputStatus | None = Field(
        None, description="Where the time of the units in this cluster went; frozen when the job ends; absent: nothing is measured yet."
    )
    learners: LearnersStatus = Field(
        default_factory=LearnersStatus, description="How many learner units are wanted, placed and contribute."
    )
    units: tuple[UnitStatus, ...] = Field(
        (), max_length=2 * MAX_LEARNERS, description="Every learner unit: where it runs, its state and why, its share of the merges."
    )
    outside: tuple[OutsideStatus, ...] | None = Field(
        None, max_length=MAX_OUTSIDE, description="The learners of spec.learners.outside; absent: there are none."
    )
    parts: tuple[PartStatus, ...] | None = Field(
        None,
        max_length=2 * MOST_PARTS,
        description="The parts of the job in other clusters; absent: there are none. After them the "
        f"{MOST_PARTS} that went last, with their tokens and accelerator-hours.",
    )
    home: HomeStatus | None = Field(None, description="The job that this one is a part of; absent: its syncer is in this cluster.")
    syncer_down_since: Timestamp | None = Field(
        None,
        description="Since when the syncer does not serve. After an hour units give their hardware back, until it serves again. Absent: it "
        "serves, or was not there yet.",
    )
    unschedulable_nodes: tuple[UnschedulableNode, ...] | None = Field(
        None,
        max_length=MAX_UNSCHEDULABLE_NODES,
        description="Nodes that units gave up lately, because no scheduler bound their pods there, another operator's learner was there "
        "first, or a pod of theirs does not end there.",
    )
    hosts: tuple[HostStatus, ...] = Field(
        (), max_length=MAX_HOSTS, description="Hosts on which attempts failed lately, and whether the job avoids them."
    )
    selector: str = Field(
        "", max_length=1024, description="Label selector of the pods of its learners, for autoscalers that read the subresource `scale`."
    )
    pool_summary: str = Field("", max_length=1024, description='Contributing and placed units of each pool, such as "v5p 4/4, h100 1/2".')
    pools: tuple[PoolStatus, ...] = Field((), max_length=2 * MAX_POOLS, description="Every pool, and why it has no more units.")

    def condition(self, type: str) -> Condition | None:
        """None if it has no condition of this type."""
        return next((condition for condition in self.conditions if condition.type == type), None)

    def unit(self, name: str) -> UnitStatus | None:
        """None if it has no unit of this name."""
        return next((unit for unit in self.units if unit.name == name), None)

    @property
    def tokens_here(self) -> int:
        """Tokens of the units of this cluster, also of those that are gone. `parts` has those of parts that are gone."""
        if self.home is not None:  # progress is that of the whole job
            return sum(unit.tokens for unit in self.units)
        of_others = sum(part.tokens for part in self.parts or ()) + sum(learner.tokens for learner in self.outside or ())
        return max(0, self.progress.tokens - of_others)

    @property
    def elsewhere(self) -> Iterator[tuple[str, ReportedUnit]]:
        """Units that this operator does not run, with the name of their cluster. "" for learners outside every cluster."""
        yield from ((part.name, unit) for part in self.parts or () for unit in part.units)
        yield from (("", learner) for learner in self.outside or ())
