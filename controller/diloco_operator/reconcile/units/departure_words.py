"""Why units leave, are withdrawn, or start again, in words. Pure."""

from __future__ import annotations

from diloco.wording import plural

from diloco_operator.kube.timestamps import format_timestamp


# --- because of its job -----------------------------------------------------------------------------------------------
def pool_removed(pool: str) -> str:
    return f"spec.pools has no pool {pool} any more"


SUSPENDED = "the job is suspended"
RESUMED = "the job was suspended and is resumed; the unit starts again when its pods have ended"
"""Said while its pods have not ended."""
JOB_OVER = "the job is over"
TEMPLATE_CHANGED = "the pool's template changed; the unit is created again from the new one"


def failed_with_it(unit: str, why: str) -> str:
    """Say after which unit a roll-out has stopped. `why`: why that unit does not train."""
    return f"after {unit}, which has not contributed with it ({why})"


def would_not_come_back(why: str) -> str:
    return f"before a unit left for it: {why}"


def no_place_for_template(shape: str) -> str:
    return f"no slice of {shape} that fits it is free, or would be free once a unit has left"


def retried(retry: int | None) -> str:
    """Say that a given-up unit starts again."""
    return f"retry {retry}: the unit starts again"


# --- for other units or jobs ------------------------------------------------------------------------------------------
def leaves_slice(slice: str, job: str) -> str:
    """Say for which job a unit leaves its slice. `job` is "" if that is its own job, to which other slices are worth more."""
    goal = f"to job {job}" if job else "because others are worth more to its job"
    return f"it leaves slice {slice} {goal}"


NODES_NOT_NEEDED = "its nodes are not needed any more: the job has, or asks for, as many units as it wants"


def not_needed(why: str, until_then: str) -> str:
    """Say why the job has no room for a unit any more, and what the unit's grantor had said until then. Without the latter an unused pool
    could not say what was wrong with it."""
    return f"{why}; until then: {until_then}" if until_then else why


def held_in_vain(since: float) -> str:
    """Say that the job cannot use the unit's hardware. `since`: when the job trained last, or when the unit began to start."""
    return f"its hardware has been of no use since {format_timestamp(since)}: the job cannot train until a person acts, see Training"


# --- because of its host ----------------------------------------------------------------------------------------------
def failures_excused(excused: int, failures: int, node: str, avoided_until: float) -> str:
    return (
        f"{excused} of its {plural(failures, 'failure')} happened on node {node}, which is avoided until "
        f"{format_timestamp(avoided_until)}; it starts again on another host"
    )


def program_blamed(suspects: int, used: int) -> str:
    """Say that attempts failed on too many hosts for all of them to be bad."""
    return (
        f"attempts failed on {suspects} of the {plural(used, 'host')} that the job uses or used, so the program is blamed, "
        "and no host is avoided"
    )


def pod_does_not_end(why: str, pod: str, node: str, deletion: float) -> str:
    """Say which pod keeps a unit draining, although it should have ended. `why`: why the unit drains. `deletion`: when the pod was to
    end."""
    return (
        f"{why}; its pod {pod} was to end by {format_timestamp(deletion)}, and node {node} answers but has "
        "not ended it: a process that waits for a device or a file system cannot be killed. Look at the node; if it must be "
        "restarted, drain it first"
    )
