"""Every reason that a job's status and its Events can show, in one table for code, reference and tests.

A reason is stable: dashboards and scripts match on it. The message beside it is human-readable and may change. Code does not compare
reasons; it decides by the other columns of the table (`api.consequences`).

See docs/decisions/0030-controller-loop.md.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.consequences import AttemptEnd, Concern, Follows, Lack

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
"""Values of a condition's status."""


class Severity(enum.StrEnum):
    """The type of the Event that reports a reason."""

    NORMAL = "Normal"
    WARNING = "Warning"
    SILENT = ""
    """No Event."""


# --- status.conditions[].reason ---------------------------------------------------------------------------------------
class ConditionReason(enum.StrEnum):
    """Why a condition has its status. A reason always comes with the same status."""

    status: str
    severity: Severity
    """The severity of the Event when the condition takes this status."""
    meaning: str
    concern: Concern

    def __new__(cls, value: str, status: str, severity: Severity, meaning: str, concern: Concern = Concern.NONE) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.status, member.severity, member.meaning, member.concern = status, severity, meaning, concern
        return member


class AcceptedReason(ConditionReason):
    SPEC_VALID = "SpecValid", TRUE, Severity.NORMAL, "The spec is valid."
    SPEC_INVALID = (
        "SpecInvalid",
        FALSE,
        Severity.WARNING,
        "The operator cannot use the spec; the message lists the fields. What runs is left alone, and nothing starts.",
    )
    RIGHTS_MISSING = (
        "RightsMissing",
        FALSE,
        Severity.WARNING,
        "The operator may not read something in the job's namespace, which the message names; what runs is left alone.",
    )


class PlacedReason(ConditionReason):
    ALL_PLACED = "AllPlaced", TRUE, Severity.NORMAL, "Every desired unit has hardware."
    MINIMUM_PLACED = "MinimumPlaced", TRUE, Severity.NORMAL, "At least `learners.min` units have hardware; others wait."
    INSUFFICIENT_CAPACITY = "InsufficientCapacity", FALSE, Severity.NORMAL, "Too few slices are free; `status.pools` says which and why."
    WAITING_FOR_NODES = (
        "WaitingForNodes",
        FALSE,
        Severity.NORMAL,
        "Too few slices are free, and nodes were asked for; `status.pools` says from whom and since when.",
    )
    WAITING_FOR_QUOTA = (
        "WaitingForQuota",
        FALSE,
        Severity.NORMAL,
        "Kueue has not given enough units their quota; `status.units` has its words.",
    )
    KUEUE_MISSING = (
        "KueueMissing",
        FALSE,
        Severity.WARNING,
        "The job has a `queueName`, and the operator finds no Kueue.",
        Concern.OBSTACLE,
    )
    PODS_REFUSED = (
        "PodsRefused",
        FALSE,
        Severity.NORMAL,
        "There are slices, but the API server rejects the pods for them; the message says what to do.",
    )
    SPEC_INVALID = (
        "SpecInvalid",
        FALSE,
        Severity.SILENT,
        "The spec is refused, so that no unit starts, and those that have ended have given their slices back.",
    )
    CANNOT_START = (
        "CannotStart",
        FALSE,
        Severity.WARNING,
        "The job cannot start until a person acts, so its units take no slices; `Training` says what to do.",
    )
    SUSPENDED = "Suspended", FALSE, Severity.SILENT, "The job is suspended and gives its slices back.", Concern.SUSPENSION
    JOB_COMPLETE = "JobComplete", FALSE, Severity.SILENT, "The job is complete and needs no hardware."
    JOB_FAILED = "JobFailed", FALSE, Severity.SILENT, "The job failed and has given its slices back."


class TrainingReason(ConditionReason):
    QUORUM_CONTRIBUTING = "QuorumContributing", TRUE, Severity.NORMAL, "At least `training.quorum` learners contribute."
    FINISHING = "Finishing", TRUE, Severity.SILENT, "The last outer step is done; learners end, and the syncer writes the final snapshot."
    WAITING_FOR_HARDWARE = (
        "WaitingForHardware",
        FALSE,
        Severity.WARNING,
        "Fewer units have hardware than the quorum needs; `Placed` says what is missing.",
        Concern.HARDWARE,
    )
    QUORUM_MISSING = (
        "QuorumMissing",
        FALSE,
        Severity.WARNING,
        "Fewer learners contribute than the quorum; outer steps wait for them.",
        Concern.QUORUM,
    )
    SYNCER_STARTING = "SyncerStarting", FALSE, Severity.WARNING, "The syncer's pod does not serve yet.", Concern.SYNCER
    SYNCER_UNAVAILABLE = (
        "SyncerUnavailable",
        FALSE,
        Severity.WARNING,
        "The syncer does not run at the moment; learners reconnect by themselves. After an hour they give their hardware back.",
        Concern.SYNCER,
    )
    SYNCER_UNREACHABLE = (
        "SyncerUnreachable",
        UNKNOWN,
        Severity.WARNING,
        "The operator has had no report from the syncer lately; whether the job trains is unknown.",
        Concern.SYNCER,
    )
    REPORTS_REFUSED = (
        "ReportsRefused",
        UNKNOWN,
        Severity.WARNING,
        "The syncer's reports are too large or malformed, and the operator reads them only now and then.",
        Concern.SYNCER,
    )
    SEEDING = "Seeding", FALSE, Severity.WARNING, "The first learner hands over the initial parameters."
    SUSPENDED = "Suspended", FALSE, Severity.NORMAL, "The job is suspended.", Concern.SUSPENSION
    JOB_COMPLETE = "JobComplete", FALSE, Severity.SILENT, "The job is complete; `Complete` says how it ended."
    JOB_FAILED = "JobFailed", FALSE, Severity.SILENT, "The job failed; `Failed` says why."
    NAME_TAKEN = (
        "NameTaken",
        FALSE,
        Severity.WARNING,
        "An object that the job needs exists already and does not belong to the job.",
        Concern.OBSTACLE,
    )
    VOLUME_PENDING = (
        "VolumePending",
        FALSE,
        Severity.WARNING,
        "The syncer's volume claim cannot be bound, and no learner starts before it is.",
    )
    HOME_UNKNOWN = (
        "HomeUnknown",
        FALSE,
        Severity.WARNING,
        "A part cannot join the job at home, because its Secret is missing or does not fit; the message says what to do.",
    )
    WRITE_REFUSED = (
        "WriteRefused",
        FALSE,
        Severity.WARNING,
        "The API server rejected an object without which no unit can start (quota, policy, rights).",
        Concern.OBSTACLE,
    )


class DegradedReason(ConditionReason):
    LEARNERS_MISSING = (
        "LearnersMissing",
        TRUE,
        Severity.WARNING,
        "Fewer than `learners.min` learners contribute, for several causes.",
        Concern.MISSING_UNITS,
    )
    QUEUED = "Queued", UNKNOWN, Severity.SILENT, "The job has not trained yet, and waits for hardware.", Concern.MISSING_UNITS
    LEARNERS_STARTING = (
        "LearnersStarting",
        UNKNOWN,
        Severity.SILENT,
        "The missing learners start or join, and none was lost.",
        Concern.MISSING_UNITS,
    )
    LEARNERS_RECONNECTING = (
        "LearnersReconnecting",
        TRUE,
        Severity.SILENT,
        "The missing learners were there when the syncer went away, and reconnect by themselves.",
    )
    LEARNERS_FAILED = "LearnersFailed", TRUE, Severity.WARNING, "The missing learners crashed or were refused.", Concern.MISSING_UNITS
    LEARNERS_LOST = (
        "LearnersLost",
        TRUE,
        Severity.WARNING,
        "A learner was given up, and no pool may replace it.",
        Concern.MISSING_UNITS,
    )
    LEARNERS_UNPLACED = "LearnersUnplaced", TRUE, Severity.WARNING, "There is no hardware for the missing learners.", Concern.MISSING_UNITS
    ROLL_OUT_STOPPED = (
        "RollOutStopped",
        TRUE,
        Severity.WARNING,
        (
            "A unit failed or cannot start with the pool's new template, or a dry run refused it. The other units, or the syncer, keep the "
            "earlier one until it contributes, or the template changes again."
        ),
        Concern.WARNING,
    )
    SNAPSHOT_FAILED = (
        "SnapshotFailed",
        TRUE,
        Severity.WARNING,
        "Training continues, but a snapshot or a unit's state cannot be written: a full volume, or missing rights.",
        Concern.WARNING,
    )
    VOLUME_DELETED = (
        "VolumeDeleted",
        TRUE,
        Severity.WARNING,
        "The syncer's volume claim was deleted; it goes, with every snapshot, when the syncer's pod ends.",
        Concern.WARNING,
    )
    NOTHING_TRAINED = (
        "NothingTrained",
        TRUE,
        Severity.WARNING,
        "The job is complete, and no token that a learner trained counts.",
    )
    PROGRAMS_FAILED = (
        "ProgramsFailed",
        TRUE,
        Severity.WARNING,
        "The job is complete, and programs ended with an error once it was done: what they write at their end may be missing.",
    )
    WORK_REFUSED = (
        "WorkRefused",
        TRUE,
        Severity.WARNING,
        "More than a tenth of all contributions was refused for what they were; it stays until they are less than a twentieth.",
        Concern.WARNING,
    )
    ENOUGH_LEARNERS = "EnoughLearners", FALSE, Severity.NORMAL, "At least `learners.min` learners contribute."
    SUSPENDED = "Suspended", FALSE, Severity.SILENT, "The job is suspended.", Concern.SUSPENSION
    JOB_COMPLETE = "JobComplete", FALSE, Severity.SILENT, "The job is complete."
    JOB_FAILED = "JobFailed", FALSE, Severity.SILENT, "The job failed."


class SuspendedReason(ConditionReason):
    SUSPENDED = "Suspended", TRUE, Severity.NORMAL, "Nothing runs; the state is kept."
    SUSPENDING = "Suspending", FALSE, Severity.NORMAL, "Learners and syncer hand back their state and end."
    NOT_SUSPENDED = "NotSuspended", FALSE, Severity.NORMAL, "`spec.suspend` is not set."


class CompleteReason(ConditionReason):
    STEPS_REACHED = "StepsReached", TRUE, Severity.NORMAL, "The last step is done and the final snapshot is durable."
    TOKENS_REACHED = "TokensReached", TRUE, Severity.NORMAL, "`training.tokens` are committed, and the final snapshot is durable."
    FINISHED_BY_PROGRAM = (
        "FinishedByProgram",
        TRUE,
        Severity.NORMAL,
        "A training program ended the job with `session.finish`, and the final snapshot is durable.",
    )
    HOME_COMPLETE = "HomeComplete", TRUE, Severity.NORMAL, "The job is a part, and the job at home, whose syncer it joins, is complete."
    IN_PROGRESS = (
        "InProgress",
        FALSE,
        Severity.NORMAL,
        "The job has not reached its last step, or waits for its final snapshot, as the message says.",
    )
    CONTINUING = (
        "Continuing",
        FALSE,
        Severity.NORMAL,
        "`training.steps` or `training.tokens` was raised: the job goes on from its final snapshot.",
    )
    JOB_FAILED = "JobFailed", FALSE, Severity.SILENT, "The job failed before its last step."


class FailedReason(ConditionReason):
    RESTARTS_EXHAUSTED = (
        "RestartsExhausted",
        TRUE,
        Severity.WARNING,
        "So many units used up `learners.restart.limit` that the others cannot reach the quorum.",
    )
    LAYOUT_REFUSED = (
        "LayoutRefused",
        TRUE,
        Severity.WARNING,
        "The parameters of the training program do not fit the job's; a restart does not help.",
    )
    SYNCER_FAILED = "SyncerFailed", TRUE, Severity.WARNING, "The syncer ended with an error that a restart does not repair."
    STATE_UNUSABLE = (
        "StateUnusable",
        TRUE,
        Severity.WARNING,
        "The state on the syncer's volume cannot be used; nothing was overwritten.",
    )
    START_UNUSABLE = (
        "StartUnusable",
        TRUE,
        Severity.WARNING,
        "The model of `spec.startFrom` cannot be read, or is none; nothing was trained.",
    )
    NOTHING_TRAINED = (
        "NothingTrained",
        TRUE,
        Severity.WARNING,
        "The job has taken its last step, and no contribution was merged: its parameters are those that it began with.",
    )
    RETRYING = "Retrying", FALSE, Severity.NORMAL, "`spec.retry` was raised: the job starts again from its last snapshot."
    NOT_FAILED = "NotFailed", FALSE, Severity.NORMAL, "Nothing stops the job."


CONDITION_REASONS: dict[ConditionType, type[ConditionReason]] = {
    ConditionType.ACCEPTED: AcceptedReason,
    ConditionType.PLACED: PlacedReason,
    ConditionType.TRAINING: TrainingReason,
    ConditionType.DEGRADED: DegradedReason,
    ConditionType.SUSPENDED: SuspendedReason,
    ConditionType.COMPLETE: CompleteReason,
    ConditionType.FAILED: FailedReason,
}


# --- Events -----------------------------------------------------------------------------------------------------------
class EventReason(enum.StrEnum):
    """Reasons of Events that are not about a condition. When a condition's status changes, the Event has the condition's reason."""

    severity: Severity
    meaning: str
    attempt_end: AttemptEnd

    def __new__(cls, value: str, severity: Severity, meaning: str, attempt_end: AttemptEnd = AttemptEnd.NO_END) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.severity, member.meaning, member.attempt_end = severity, meaning, attempt_end
        return member

    UNIT_STARTED = "UnitStarted", Severity.NORMAL, "An attempt of a unit starts."
    NODES_REQUESTED = "NodesRequested", Severity.NORMAL, "No slice is free for a unit, and nodes were asked for."
    UNIT_CONTRIBUTES = "UnitContributes", Severity.NORMAL, "A unit contributes, for the first time or again."
    UNIT_DRAINING = "UnitDraining", Severity.NORMAL, "A unit ends its work and leaves."
    UNIT_LOST = "UnitLost", Severity.WARNING, "A unit was lost through no fault of its own; it starts again.", AttemptEnd.OTHER_END
    UNIT_GAVE_SLICE_UP = (
        "UnitGaveSliceUp",
        Severity.WARNING,
        "No scheduler bound a unit's pods in time, no nodes came for them, or another operator's learner had its node; it tries again.",
        AttemptEnd.OTHER_END,
    )
    UNIT_CRASHED = "UnitCrashed", Severity.WARNING, "A unit failed; it starts again after a pause.", AttemptEnd.FAILURE
    UNIT_FAILED = "UnitFailed", Severity.WARNING, "A unit failed and does not start again.", AttemptEnd.FAILURE
    PARTS_LEFT = "PartsLeft", Severity.WARNING, "A job was deleted, and its part in another cluster could not be deleted within 10 minutes."
    HOST_AVOIDED = (
        "HostAvoided",
        Severity.WARNING,
        "Attempts failed on one host; no unit of the job starts there for a while.",
    )
    OPERATOR_DEFECT = (
        "OperatorDefect",
        Severity.WARNING,
        "The operator has a defect; it ended the attempt of the unit that met it, or tries again to reconcile the job or allot hardware.",
    )
    OWN_DATA = (
        "OwnData",
        Severity.WARNING,
        "Several units feed themselves, and nothing keeps them from training the same samples.",
    )
    POOL_CHANGED = (
        "PoolChanged",
        Severity.NORMAL,
        "Units of a pool begin to wait for a slice, wait for another reason, or wait no more.",
    )
    UNITS_CHANGED = "UnitsChanged", Severity.NORMAL, "More units changed at once than there are Events for."
    NAME_TAKEN = "NameTaken", Severity.WARNING, "An object that the job needs exists already and does not belong to the job."
    MALFORMED_OBJECT = (
        "MalformedObject",
        Severity.WARNING,
        "The job, or an object with its label, has a field that the operator cannot use.",
    )
    WRITE_REFUSED = (
        "WriteRefused",
        Severity.WARNING,
        "The API server rejected the creation, change or deletion of an object of the job.",
    )


# --- status.units[].reason and status.pools[].reason ------------------------------------------------------------------
class UnitReason(enum.StrEnum):
    """Why a unit is in its state."""

    meaning: str
    follows: tuple[Follows, ...]

    def __new__(cls, value: str, meaning: str, *follows: Follows) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning, member.follows = meaning, follows
        return member

    NO_CAPACITY = "NoCapacity", "Pending: no slice is free in any pool that may still grow.", Follows.POOL_SAYS_WHY, Follows.QUOTA_LEFT
    PODS_REFUSED = (
        "PodsRefused",
        "Pending: the API server rejected its pods, or a dry run of them (policy, quota, an invalid template).",
        Follows.QUOTA_LEFT,
    )
    SCHEDULING = "Scheduling", "Starting: its pods exist, and a scheduler has not bound all of them yet."
    WAITING_FOR_NODES = (
        "WaitingForNodes",
        "Starting: nodes were asked for, and its pods wait for them.",
        Follows.GRANT_AWAITED,
    )
    WAITING_FOR_QUOTA = (
        "WaitingForQuota",
        "Starting: its pods wait for quota of Kueue. Pending: there is no Kueue.",
        Follows.GRANT_AWAITED,
    )
    NOT_PROVISIONED = (
        "NotProvisioned",
        (
            "Pending: no nodes came within `pools[].provisioning.timeout`, which is no failure; it asks again after a pause, and other "
            "pools meanwhile."
        ),
        Follows.QUOTA_LEFT,
        Follows.NO_FAILURE,
    )
    UNSCHEDULABLE = (
        "Unschedulable",
        "Pending: no scheduler bound its pods within `learners.timeouts.schedule`; it gave its slice up, which is no failure.",
        Follows.QUOTA_LEFT,
        Follows.NO_FAILURE,
    )
    NODE_TAKEN = (
        "NodeTaken",
        "Pending: a learner of another operator was on one of its nodes first; it gave its slice up, which is no failure.",
        Follows.QUOTA_LEFT,
        Follows.NO_FAILURE,
    )
    HOST_REFUSED = (
        "HostRefused",
        "Pending: the kubelet of one of its hosts did not admit its pod; it gave its slice up, which is no failure.",
        Follows.QUOTA_LEFT,
        Follows.NO_FAILURE,
    )
    STARTING_CONTAINERS = "StartingContainers", "Starting: its pods wait for volumes, network or init containers."
    PULLING_IMAGES = "PullingImages", "Starting: its pods pull images."
    WAITING_FOR_SYNCER = (
        "WaitingForSyncer",
        "Joining: its program starts, or lost its connection to the syncer.",
    )
    TAKING_PARAMETERS = "TakingParameters", "Joining: it is connected and receives the current parameters."
    FIRST_STEP = "FirstStep", "Joining: it has the parameters, and its program compiles or runs the first step."
    WAITING_FOR_QUORUM = (
        "WaitingForQuorum",
        "Training: the unit is ahead of the job and rests until `training.quorum` learners train.",
    )
    CRASHED = "Crashed", "The training program ended with an error; the message has its exit status."
    LEFT_EARLY = (
        "LeftEarly",
        "The training program ended with status 0 before the job was done. Joining: it has left its training loop, and its pods still run.",
        Follows.HAS_LEFT,
    )
    FAILED_AT_END = (
        "FailedAtEnd",
        "The program ended with an error once the job's last step was done: what it writes at its end may be missing.",
        Follows.JOB_WAS_DONE,
    )
    STOPPED_AT_END = (
        "StoppedAtEnd",
        "Completed: its program ran on 30 s after the job was complete, and was told to end: what it writes at its end may be missing.",
    )
    OUT_OF_MEMORY = "OutOfMemory", "The kernel killed the training program because it used too much memory."
    OUT_OF_STORAGE = (
        "OutOfStorage",
        "The kubelet evicted its pod, which used more of an emptyDir or of ephemeral storage than its limit.",
    )
    OPERATOR_DEFECT = (
        "OperatorDefect",
        "The operator has a defect: what happened to the unit cannot happen by its table. It ends the attempt and starts another later.",
        Follows.NO_FAILURE,
    )
    POD_LOST = "PodLost", "A pod is gone, and the operator had not deleted it.", Follows.NO_FAILURE
    DISRUPTED = (
        "Disrupted",
        "The platform took the pod away (pre-emption, eviction, maintenance); no failure.",
        Follows.PLATFORM_ENDS,
        Follows.NO_FAILURE,
    )
    NODE_LOST = (
        "NodeLost",
        "A node is gone or does not answer; no failure.",
        Follows.PLATFORM_ENDS,
        Follows.NEXT_ELSEWHERE,
        Follows.NO_FAILURE,
    )
    HOST_CANNOT_PULL = (
        "HostCannotPull",
        "Pending: one of its hosts cannot pull images that another host runs; it gave its slice up, which is no failure.",
        Follows.QUOTA_LEFT,
        Follows.NO_FAILURE,
    )
    IMAGE_REFUSED = (
        "ImageRefused",
        "An image of the pool's template does not exist, or the registry refuses it; no host is known to run it.",
        Follows.NOT_THE_HOST,
        Follows.OTHER_HOSTS_FIRST,
    )
    PULL_TIMEOUT = "PullTimeout", "The images were not pulled within `learners.timeouts.pull`."
    START_TIMEOUT = "StartTimeout", "Volumes, network and init containers were not ready within `learners.timeouts.start`."
    JOIN_TIMEOUT = "JoinTimeout", "The unit did not join within `learners.timeouts.join`."
    STALLED = (
        "Stalled",
        "The unit was not heard from, or took no step, for `learners.stallTimeout`, or for longer than its first step or pause may take.",
    )
    PAUSED = "Paused", "Training or Joining: its program takes no steps for a while, as it announced; until `pausedUntil` at most."
    REFUSED_LAYOUT = (
        "RefusedLayout",
        "The learner's parameters have other names or shapes than the job's, or it takes sequence numbers for other samples.",
        Follows.WOULD_REPEAT,
        Follows.OTHER_MODEL,
    )
    REFUSED_NONFINITE = "RefusedNonFinite", "The learner sent NaN or infinite parameters."
    REFUSED_QUARANTINED = "RefusedQuarantined", "The syncer refused the learner's contributions again and again as outliers."
    RANK_LOST = "RankLost", "A rank of the unit ended or was lost without a reason of its own.", Follows.SYMPTOM
    REFUSED_IDENTITY = (
        "RefusedIdentity",
        "A newer attempt exists, another process has the identity, or its certificate was refused.",
        Follows.NOT_THE_HOST,
    )
    BAD_CONTRACT = "BadContract", "The environment or the job file of the training program is missing or wrong.", Follows.WOULD_REPEAT
    RESTARTS_EXHAUSTED = "RestartsExhausted", "More than `learners.restart.limit` failures within `learners.restart.window`."
    HOST_AVOIDED = (
        "HostAvoided",
        "BackingOff: failures on one host used up its restart budget; it starts again on another.",
    )
    SCALED_DOWN = (
        "ScaledDown",
        "The job asks for fewer learners.",
        Follows.NOT_MISSED,
        Follows.NOT_WANTED,
        Follows.SLICE_LEFT,
        Follows.QUOTA_LEFT,
    )
    GAVE_WAY = (
        "GaveWay",
        "Another job has a better right to the slice: its minimum, a higher priority, or a smaller share.",
        Follows.NOT_MISSED,
        Follows.SLICE_LEFT,
        Follows.QUOTA_LEFT,
        Follows.NO_FAILURE,
    )
    SUSPENDED = "Suspended", "The job is suspended.", Follows.RETURNS_AT_ONCE, Follows.UNTIL_RESUMED, Follows.SLICE_LEFT, Follows.QUOTA_LEFT
    RETRIED = (
        "Retried",
        "Pending: it starts again with a new restart budget, as `spec.retry` or `training.steps` was raised.",
        Follows.QUOTA_LEFT,
    )
    TEMPLATE_CHANGED = (
        "TemplateChanged",
        "The pool's template changed.",
        Follows.RETURNS_AT_ONCE,
        Follows.QUOTA_LEFT,
    )


class PoolReason(enum.StrEnum):
    """Why a pool does not have more units."""

    lack: Lack
    meaning: str

    def __new__(cls, value: str, lack: Lack, meaning: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.lack, member.meaning = lack, meaning
        return member

    SWITCHED_OFF = "SwitchedOff", Lack.SWITCHED_ON, "`pools[].learners.max` is 0."
    AT_MAXIMUM = "AtMaximum", Lack.NOTHING, "The pool has as many units as `pools[].learners.max`."
    NO_FREE_SLICE = "NoFreeSlice", Lack.SLICES, "Every slice that fits the pool is in use or not ready."
    NO_MATCHING_NODES = "NoMatchingNodes", Lack.SLICES, "No node of this accelerator and shape exists."
    PODS_REFUSED = "PodsRefused", Lack.ADMISSION, "The API server refuses pods of its units; the message of the unit says why."
    CANNOT_START = "CannotStart", Lack.NOTHING, "The job cannot start until a person acts, so its units take no slices; see `Training`."
    JOB_AT_MAXIMUM = "JobAtMaximum", Lack.ROOM_IN_JOB, "The job already has `learners.max` units."
    WAITING_FOR_NODES = "WaitingForNodes", Lack.GRANT, "No slice is free, and nodes were asked for."
    WAITING_FOR_QUOTA = "WaitingForQuota", Lack.GRANT, "Kueue has not given quota to units of the pool yet."


_CONCERNS: Mapping[str, Concern] = {
    reason.value: reason.concern for reasons in CONDITION_REASONS.values() for reason in reasons if reason.concern is not Concern.NONE
}
_ATTEMPT_ENDS: Mapping[str, AttemptEnd] = {reason.value: reason.attempt_end for reason in EventReason}
_FOLLOWS: Mapping[str, tuple[Follows, ...]] = {reason.value: reason.follows for reason in UnitReason}
_LACKS: Mapping[str, Lack] = {"": Lack.NOTHING} | {reason.value: reason.lack for reason in PoolReason}


def concern_of(reason: str) -> Concern:
    """What a condition with this reason is about. Concern.NONE if the reason is of another release."""
    return _CONCERNS.get(reason, Concern.NONE)


def attempt_end_of(reason: str) -> AttemptEnd:
    """What an Event with this reason says about an attempt's end. AttemptEnd.NO_END if the reason is of another release."""
    return _ATTEMPT_ENDS.get(reason, AttemptEnd.NO_END)


def follows(reason: str, what: Follows) -> bool:
    """Whether this follows from the reason of a unit. Nothing follows from a reason of another release."""
    return what in _FOLLOWS.get(reason, ())


def lack_of(reason: str) -> Lack:
    """What a pool with this reason lacks. Lack.NOTHING if the reason is of another release."""
    return _LACKS.get(reason, Lack.NOTHING)


# --- the table --------------------------------------------------------------------------------------------------------
class ReasonRow(NamedTuple):
    subject: str
    """A condition type, "Event", "Unit" or "Pool"."""
    value: str
    status: str
    """The status of the condition, "" for other subjects."""
    severity: Severity | None
    """None for units and pools, whose reasons have no Event of their own."""
    meaning: str


def all_reasons() -> Iterator[ReasonRow]:
    for condition, reasons in CONDITION_REASONS.items():
        for reason in reasons:
            yield ReasonRow(condition.value, reason.value, reason.status, reason.severity, reason.meaning)
    for event in EventReason:
        yield ReasonRow("Event", event.value, "", event.severity, event.meaning)
    for unit in UnitReason:
        yield ReasonRow("Unit", unit.value, "", None, unit.meaning)
    for pool in PoolReason:
        yield ReasonRow("Pool", pool.value, "", None, pool.meaning)
