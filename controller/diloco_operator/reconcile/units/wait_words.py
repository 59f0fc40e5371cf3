"""What pods and units wait for, in words: a class for each sentence, with what it names. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from diloco_operator.api.durations import format_duration
from diloco_operator.fleet.slices import Shape
from diloco_operator.fleet.use import PodUse
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.sentences import Sentence


def _provisioning_limit(seconds: float, pool: str) -> str:
    return f"{format_duration(seconds)} (provisioning.timeout of pool {pool})"


# --- pods without a node ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Gated:
    why: str

    def words(self) -> str:
        return f"is held back by spec.schedulingGates: {self.why}"


@dataclass(frozen=True, slots=True)
class Nominated:
    why: str

    def words(self) -> str:
        return f"a scheduler makes room for it: {self.why}"


@dataclass(frozen=True, slots=True)
class NotLookedAt:
    def words(self) -> str:
        return "waits for a scheduler"


@dataclass(frozen=True, slots=True)
class Asked:
    """What its grantor says of a pod, and what is said meanwhile of its node, which may not exist yet."""

    wait: Sentence
    speaker: str
    said: str
    """By who brings nodes."""
    unschedulable: str

    def words(self) -> str:
        if self.said:
            return f"{self.wait.words()}; {self.speaker} says: {self.said}"
        return f"{self.wait.words()}; the scheduler says: {self.unschedulable}" if self.unschedulable else self.wait.words()


@dataclass(frozen=True, slots=True)
class NotScheduled:
    """No scheduler found a node for a pod in time."""

    pod: str
    node: str
    limit: float
    why: str

    def words(self) -> str:
        limit = f"{format_duration(self.limit)} (learners.timeouts.schedule)"
        return f"no scheduler bound {self.pod} to {self.node or 'its node'} within {limit}: {self.why}"


@dataclass(frozen=True, slots=True)
class NoScheduler:
    """None has looked at a pod in time."""

    pod: str
    limit: float

    def words(self) -> str:
        return (
            f"no scheduler has looked at {self.pod} within {format_duration(self.limit)} "
            "(learners.timeouts.schedule and start); check that kube-scheduler runs, and schedulerName in the pool's template"
        )


@dataclass(frozen=True, slots=True)
class NoNodeCame:
    pod: str
    pool: str
    limit: float
    wait: Sentence

    def words(self) -> str:
        return f"no node came for {self.pod} within {_provisioning_limit(self.limit, self.pool)}: {self.wait.words()}"


# --- pods that have one -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PreparesPod:
    node: str
    seen: bool
    """The kubelet has reported of it."""
    problem: str
    """In the kubelet's words; "": it is on its way."""

    def words(self) -> str:
        detail = self.problem if self.seen else "the kubelet has not taken it up yet"
        return f"waits for volumes and network on {self.node}" + (f" ({detail})" if detail else "")


@dataclass(frozen=True, slots=True)
class InitContainerRuns:
    container: str
    node: str

    def words(self) -> str:
        return f"the init container {self.container} runs on {self.node}"


@dataclass(frozen=True, slots=True)
class CannotStart:
    node: str
    why: str

    def words(self) -> str:
        return f"its container cannot start on {self.node}: {self.why}"


@dataclass(frozen=True, slots=True)
class PullsImages:
    node: str

    def words(self) -> str:
        return f"pulls its images on {self.node}"


@dataclass(frozen=True, slots=True)
class PodWaits:
    """One pod of an attempt, for all of it."""

    pod: str
    wait: Sentence

    def words(self) -> str:
        return f"{self.pod}: {self.wait.words()}"


@dataclass(frozen=True, slots=True)
class WaitsForPods:
    def words(self) -> str:
        return "waits for its pods"


# --- nodes that a unit cannot have --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class NodeTaken:
    by: PodUse
    pod: str
    node: str

    def words(self) -> str:
        return f"{self.by}, a learner of another operator, was created before {self.pod} and is on its node {self.node}"


@dataclass(frozen=True, slots=True)
class BoundToTwoSlices:
    slices: tuple[str, ...]

    def words(self) -> str:
        return f"its pods were bound to two slices, {' and '.join(self.slices)}"


@dataclass(frozen=True, slots=True)
class NoSlice:
    nodes: tuple[str, ...]
    shape: Shape
    pool: str
    limit: float

    def words(self) -> str:
        where, limit = ", ".join(self.nodes[:3]), _provisioning_limit(self.limit, self.pool)
        return f"its nodes ({where}) did not become a slice of {self.shape} within {limit}"


@dataclass(frozen=True, slots=True)
class SliceGivenUp:
    """What a unit did because it cannot have its nodes."""

    attempt: int
    withdrawn: bool
    """It had none yet."""
    in_a_row: int
    why: Sentence

    def words(self) -> str:
        times = f", {self.in_a_row} times in a row" if self.in_a_row > 1 else ""
        did = "was withdrawn" if self.withdrawn else "gave its slice up"
        return f"attempt {self.attempt} {did}{times}: {self.why.words()}"


@dataclass(frozen=True, slots=True)
class PausesAfter:
    what: Sentence
    not_before: float

    def words(self) -> str:
        return f"{self.what.words()}; the next one starts at {format_timestamp(self.not_before)}"


# --- units without pods -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class WaitsForPod:
    """One that may still run where its own would."""

    pod: str
    ended: bool
    """It has to end only, and need not be gone."""

    def words(self) -> str:
        return f"waits until the pod {self.pod} has {'ended' if self.ended else 'gone'}"


@dataclass(frozen=True, slots=True)
class JobEndsSoon:
    def words(self) -> str:
        return "the job is about to end"


@dataclass(frozen=True, slots=True)
class WaitsAfter:
    """A unit that waits. How its last attempt ended comes first: it is what a reader needs most."""

    cause: str
    wait: Sentence

    def words(self) -> str:
        return f"{self.cause}; {self.wait.words()}" if self.cause else self.wait.words()


@dataclass(frozen=True, slots=True)
class NoUnitLeavesForIt:
    wait: str
    refused: str
    """What the API server said of a dry run of its pods."""

    def words(self) -> str:
        return f"{self.wait}; no unit of another job leaves for it: {self.refused}"


# --- an attempt that goes on --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PodsCreated:
    def words(self) -> str:
        return "its pods have been created"


@dataclass(frozen=True, slots=True)
class PodsFound:
    def words(self) -> str:
        return "its pods were there, and their attempt was not on record"
