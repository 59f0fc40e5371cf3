"""What pods and units wait for, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from diloco_operator.api.durations import format_duration
from diloco_operator.fleet.slices import Shape
from diloco_operator.fleet.use import PodUse
from diloco_operator.kube.timestamps import format_timestamp


def _provisioning_limit(seconds: float, pool: str) -> str:
    return f"{format_duration(seconds)} (provisioning.timeout of pool {pool})"


# --- pods without a node ----------------------------------------------------------------------------------------------
def gated(why: str) -> str:
    return f"is held back by spec.schedulingGates: {why}"


def nominated(why: str) -> str:
    return f"a scheduler makes room for it: {why}"


NOT_LOOKED_AT = "waits for a scheduler"


def without_claim(templates: Sequence[str]) -> str:
    """Say which ResourceClaims a pod lacks, so that no scheduler looks at it. "" if it lacks none."""
    if not templates:
        return ""
    check = "check that this ResourceClaimTemplate is in the namespace (kubectl describe pod shows FailedResourceClaimCreation)"
    return f"waits for a ResourceClaim of the template {', '.join(templates)}: {check}"


def wait_for_grantor(wait: str, speaker: str, answer: str, unschedulable: str) -> str:
    """Add to a pod's wait what `speaker`, who brings nodes, has answered, or else what the scheduler says."""
    if answer:
        return f"{wait}; {speaker} says: {answer}"
    return f"{wait}; the scheduler says: {unschedulable}" if unschedulable else wait


def not_scheduled(pod: str, node: str, limit: float, why: str) -> str:
    """Say that no scheduler found a node for a pod in time."""
    within = f"{format_duration(limit)} (learners.timeouts.schedule)"
    return f"no scheduler bound {pod} to {node or 'its node'} within {within}: {why}"


def no_scheduler(pod: str, limit: float, claim: str) -> str:
    """Say that no scheduler has looked at a pod in time. `claim`: that it lacks a ResourceClaim, or ""."""
    why = claim or "check that kube-scheduler runs, and schedulerName in the pool's template"
    return f"no scheduler has looked at {pod} within {format_duration(limit)} (learners.timeouts.schedule and start); {why}"


def no_node_came(pod: str, pool: str, limit: float, wait: str) -> str:
    return f"no node came for {pod} within {_provisioning_limit(limit, pool)}: {wait}"


# --- pods that have one -----------------------------------------------------------------------------------------------
def prepares_pod(node: str, problem: str, *, seen: bool) -> str:
    """Say what the kubelet does for a pod. `problem`: in the kubelet's words, or "" if it has none. `seen`: it has reported about the
    pod."""
    detail = problem if seen else "the kubelet has not taken it up yet"
    return f"waits for volumes and network on {node}" + (f" ({detail})" if detail else "")


def init_container_runs(container: str, node: str) -> str:
    return f"the init container {container} runs on {node}"


def cannot_start(node: str, why: str) -> str:
    return f"its container cannot start on {node}: {why}"


def pulls_images(node: str) -> str:
    return f"pulls its images on {node}"


def pod_waits(pod: str, wait: str) -> str:
    """Say what one pod waits for. Its name stands for the whole attempt."""
    return f"{pod}: {wait}"


WAITS_FOR_PODS = "waits for its pods"


# --- nodes that a unit cannot have --------------------------------------------------------------------------------------
def node_taken(by: PodUse, pod: str, node: str) -> str:
    return f"{by}, a learner of another operator, was created before {pod} and is on its node {node}"


def bound_to_two_slices(slices: Sequence[str]) -> str:
    return f"its pods were bound to two slices, {' and '.join(slices)}"


def no_slice_yet(unit: str, nodes: Sequence[str]) -> str:
    return f"the pods of {unit} are on {', '.join(nodes[:3])}, where the fleet has no slice of the pool"


def no_slice(nodes: Sequence[str], shape: Shape, pool: str, limit: float) -> str:
    return f"its nodes ({', '.join(nodes[:3])}) did not become a slice of {shape} within {_provisioning_limit(limit, pool)}"


def slice_given_up(attempt: int, in_a_row: int, why: str, *, withdrawn: bool) -> str:
    """Say that a unit gave its slice up, or was withdrawn. `withdrawn`: it had no nodes yet."""
    times = f", {in_a_row} times in a row" if in_a_row > 1 else ""
    did = "was withdrawn" if withdrawn else "gave its slice up"
    return f"attempt {attempt} {did}{times}: {why}"


def pauses_after(what: str, not_before: float) -> str:
    return f"{what}; the next one starts at {format_timestamp(not_before)}"


def host_cannot_pull(pod: str, node: str, other: str, problem: str) -> str:
    return f"{node} cannot pull the images of {pod}, and {other} runs them; check the host's DNS, registry and credentials: {problem}"


def slice_is_free(why: str) -> str:
    """Say why a unit does not start until a person acts, and that its slice is free meanwhile."""
    return f"{why}; others may take its hardware until then"


# --- units without pods -------------------------------------------------------------------------------------------------
def waits_for_pod(pod: str, *, ended: bool) -> str:
    """Say for which pod a unit waits, because it may still run where the unit's own pod would. `ended`: the pod must end but may stay."""
    return f"waits until the pod {pod} has {'ended' if ended else 'gone'}"


JOB_ENDS_SOON = "the job is about to end"


def waits_after(cause: str, wait: str) -> str:
    """Say why a unit waits. How its last attempt ended comes first, because a reader needs that most."""
    return f"{cause}; {wait}" if cause else wait


def no_unit_leaves_for_it(wait: str, refused: str) -> str:
    """Say why no other unit leaves for this one. `refused`: what the API server said about a dry run of its pods."""
    return f"{wait}; no unit of another job leaves for it: {refused}"


# --- an attempt that goes on --------------------------------------------------------------------------------------------
PODS_CREATED = "its pods have been created"
PODS_FOUND = "its pods were there, and their attempt was not on record"
