"""Condition types and every reason that a job's status can show. Constants only: dashboards and scripts match on these strings.

A reason is stable; the message beside it is for people and may change.
"""

from __future__ import annotations

import enum


class ConditionType(enum.StrEnum):
    """`status.conditions[].type`. All of them are always present once the operator has seen the job."""

    ACCEPTED = "Accepted"
    """The operator understood the spec and works on it."""
    PLACED = "Placed"
    """At least `learners.min` units have hardware."""
    TRAINING = "Training"
    """Outer steps go on: at least `training.quorum` learners contribute."""
    DEGRADED = "Degraded"
    """Fewer than `learners.min` learners contribute; the message says who is missing and why."""
    SUSPENDED = "Suspended"
    """`spec.suspend` is set and every pod has gone."""
    COMPLETE = "Complete"
    """The syncer reached `training.steps`. Terminal."""
    FAILED = "Failed"
    """The job cannot go on by itself. Terminal."""


TERMINAL = (ConditionType.COMPLETE, ConditionType.FAILED)

# --- Accepted ---------------------------------------------------------------------------------------------------------
REASON_SPEC_VALID = "SpecValid"
"""True: nothing to complain about."""
REASON_SPEC_INVALID = "SpecInvalid"
"""False: an object that the CRD of another version let through; the message lists the fields."""

# --- Placed -----------------------------------------------------------------------------------------------------------
REASON_ALL_PLACED = "AllPlaced"
"""True: every desired unit has hardware."""
REASON_MINIMUM_PLACED = "MinimumPlaced"
"""True: at least `learners.min` units have hardware, others wait."""
REASON_INSUFFICIENT_CAPACITY = "InsufficientCapacity"
"""False: too few free slices; status.pools says which and why."""
REASON_PODS_REFUSED = "PodsRefused"
"""False: there are slices, but the API server refused to make pods for them; the message says what to do."""

# --- Training ---------------------------------------------------------------------------------------------------------
REASON_QUORUM_CONTRIBUTING = "QuorumContributing"
"""True: at least `training.quorum` learners contribute."""
REASON_QUORUM_MISSING = "QuorumMissing"
"""False: fewer contribute than the quorum; outer steps wait for them."""
REASON_SYNCER_STARTING = "SyncerStarting"
"""False: the syncer's pod is not serving yet."""
REASON_SYNCER_UNAVAILABLE = "SyncerUnavailable"
"""False: the syncer does not run for the moment; learners go on with what they have and connect again by themselves."""
REASON_STOPPED = "Stopped"
"""False: the job is complete, failed or suspended."""
REASON_SYNCER_UNREACHABLE = "SyncerUnreachable"
"""Unknown: the operator has not heard from the syncer lately; what the job does is not known."""
REASON_SEEDING = "Seeding"
"""False: the first learner is handing over the initial parameters."""

# --- Degraded ---------------------------------------------------------------------------------------------------------
REASON_LEARNERS_MISSING = "LearnersMissing"
"""True: fewer than `learners.min` contribute, several causes."""
REASON_LEARNERS_STARTING = "LearnersStarting"
"""True: the missing ones are starting or joining for the first time."""
REASON_LEARNERS_FAILED = "LearnersFailed"
"""True: the missing ones crashed or were refused."""
REASON_LEARNERS_UNPLACED = "LearnersUnplaced"
"""True: there is no hardware for the missing ones."""
REASON_ENOUGH_LEARNERS = "EnoughLearners"
"""False: at least `learners.min` contribute."""
REASON_SNAPSHOT_FAILED = "SnapshotFailed"
"""True: training goes on, but the syncer cannot write its snapshots (a full volume, for example)."""
REASON_VOLUME_DELETED = "VolumeDeleted"
"""True: somebody deleted the syncer's volume claim; it goes, with every snapshot, when the syncer's pod ends."""

# --- Suspended --------------------------------------------------------------------------------------------------------
REASON_SUSPENDED = "Suspended"
"""True: nothing runs, the state is kept."""
REASON_SUSPENDING = "Suspending"
"""False: learners and syncer are handing back their state."""
REASON_NOT_SUSPENDED = "NotSuspended"
"""False: `spec.suspend` is not set."""

# --- Complete ---------------------------------------------------------------------------------------------------------
REASON_STEPS_REACHED = "StepsReached"
"""True: the last step is done and the final snapshot is durable."""
REASON_IN_PROGRESS = "InProgress"
"""False: not there yet."""

# --- Failed -----------------------------------------------------------------------------------------------------------
REASON_RESTARTS_EXHAUSTED = "RestartsExhausted"
"""True: so many units used up `learners.restart.limit` that the rest cannot reach the quorum."""
REASON_LAYOUT_REFUSED = "LayoutRefused"
"""True: the training program's parameters do not fit the job's; a restart does not help."""
REASON_SYNCER_FAILED = "SyncerFailed"
"""True: the syncer ended with an error that a restart does not repair."""
REASON_STATE_UNUSABLE = "StateUnusable"
"""True: the syncer's volume holds state that cannot be used; nothing was overwritten."""
REASON_NAME_TAKEN = "NameTaken"
"""An object that the job needs exists already and belongs to somebody else."""
REASON_NOT_FAILED = "NotFailed"
"""False: nothing that stops the job."""

# --- status.units[].reason --------------------------------------------------------------------------------------------
UNIT_NO_CAPACITY = "NoCapacity"
"""Pending: no free slice of any pool that may still grow."""
UNIT_PODS_REFUSED = "PodsRefused"
"""Pending: the API server refused to make its pods (policy, quota, an invalid template); the message says what to do."""
UNIT_SCHEDULING = "Scheduling"
"""Starting: pods exist, not all of them run."""
UNIT_WAITING_FOR_SYNCER = "WaitingForSyncer"
"""Joining: the pods run, the syncer has not seen the learner yet."""
UNIT_TAKING_PARAMETERS = "TakingParameters"
"""Joining: connected, receiving the current parameters."""
UNIT_CRASHED = "Crashed"
"""The training program ended with an error; the message has its exit status."""
UNIT_OUT_OF_MEMORY = "OutOfMemory"
"""The kernel killed the training program for its memory."""
UNIT_POD_LOST = "PodLost"
"""A pod vanished without the operator having deleted it."""
UNIT_DISRUPTED = "Disrupted"
"""The platform took the pod away (pre-emption, eviction, maintenance); does not count against the restart budget."""
UNIT_NODE_LOST = "NodeLost"
"""A node went away or stopped answering; does not count against the restart budget."""
UNIT_JOIN_TIMEOUT = "JoinTimeout"
"""The unit did not join within `learners.joinTimeout`."""
UNIT_STALLED = "Stalled"
"""The syncer has not heard from the unit for `learners.stallTimeout`."""
UNIT_REFUSED_LAYOUT = "RefusedLayout"
"""The learner's parameters have other names or shapes than the job's."""
UNIT_REFUSED_NONFINITE = "RefusedNonFinite"
"""The learner sent NaN or infinite parameters."""
UNIT_REFUSED_IDENTITY = "RefusedIdentity"
"""A newer attempt exists, another process holds the identity, or its certificate was refused."""
UNIT_BAD_CONTRACT = "BadContract"
"""The training program found its environment or job file missing or wrong."""
UNIT_RESTARTS_EXHAUSTED = "RestartsExhausted"
"""`learners.restart.limit` failures within `learners.restart.window`."""
UNIT_SCALED_DOWN = "ScaledDown"
"""The job asks for fewer learners."""
UNIT_GAVE_WAY = "GaveWay"
"""The pool's capacity is Scavenged, and another job's unit found no slice."""
UNIT_SUSPENDED = "Suspended"
"""The job is suspended."""
UNIT_TEMPLATE_CHANGED = "TemplateChanged"
"""The pool's template changed; the unit is made again from the new one."""

# --- status.pools[].reason --------------------------------------------------------------------------------------------
POOL_FULL = "AtMaximum"
"""The pool has as many units as pools[].learners.max."""
POOL_NO_FREE_SLICE = "NoFreeSlice"
"""Every fitting slice of the pool is in use or not ready."""
POOL_NO_MATCHING_NODES = "NoMatchingNodes"
"""No node of this accelerator and shape exists."""
POOL_JOB_AT_MAXIMUM = "JobAtMaximum"
"""The job has `learners.max` units already."""

# --- conditions and events --------------------------------------------------------------------------------------------
REASON_WRITE_REFUSED = "WriteRefused"
"""The API server refused to create, change or delete an object of the job (quota, policy, rights); the message says which and why.
As the reason of Training: an object without which no unit can start."""
