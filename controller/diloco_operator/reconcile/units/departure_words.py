"""Why units leave, are withdrawn, or start again, in words: a class for each sentence, with what it names. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from diloco.wording import plural

from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.sentences import Sentence


# --- by the job ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PoolRemoved:
    pool: str

    def words(self) -> str:
        return f"spec.pools has no pool {self.pool} any more"


@dataclass(frozen=True, slots=True)
class Suspended:
    def words(self) -> str:
        return "the job is suspended"


@dataclass(frozen=True, slots=True)
class Resumed:
    """Before its pods have ended."""

    def words(self) -> str:
        return "the job was suspended and is resumed; the unit starts again when its pods have ended"


@dataclass(frozen=True, slots=True)
class JobOver:
    def words(self) -> str:
        return "the job is over"


@dataclass(frozen=True, slots=True)
class TemplateChanged:
    def words(self) -> str:
        return "the pool's template changed; the unit is created again from the new one"


@dataclass(frozen=True, slots=True)
class Retried:
    """A unit that was given up starts again."""

    retry: int | None

    def words(self) -> str:
        return f"retry {self.retry}: the unit starts again"


# --- for others ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LeavesSlice:
    slice: str
    job: str
    """That gets it; "": its own, to which others are worth more."""

    def words(self) -> str:
        goal = f"to job {self.job}" if self.job else "because others are worth more to its job"
        return f"it leaves slice {self.slice} {goal}"


@dataclass(frozen=True, slots=True)
class NodesNotNeeded:
    def words(self) -> str:
        return "its nodes are not needed any more: the job has, or asks for, as many units as it wants"


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """A unit that the job has no room for any more. Without what its grantor had said a pool that is not used could not say what was wrong
    with it."""

    why: Sentence
    until_then: str

    def words(self) -> str:
        return f"{self.why.words()}; until then: {self.until_then}" if self.until_then else self.why.words()


# --- its host -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class FailuresExcused:
    excused: int
    failures: int
    node: str
    avoided_until: float

    def words(self) -> str:
        return (
            f"{self.excused} of its {plural(self.failures, 'failure')} happened on node {self.node}, which is avoided until "
            f"{format_timestamp(self.avoided_until)}; it starts again on another host"
        )


@dataclass(frozen=True, slots=True)
class ProgramBlamed:
    """Attempts failed on too many hosts for the hosts to be bad."""

    suspects: int
    used: int

    def words(self) -> str:
        return (
            f"attempts failed on {self.suspects} of the {plural(self.used, 'host')} that the job uses or used, so the program is blamed, "
            "and no host is avoided"
        )


@dataclass(frozen=True, slots=True)
class PodDoesNotEnd:
    """A unit that drains, and one pod of which should have ended."""

    why: Sentence
    """It drains."""
    pod: str
    node: str
    deletion: float
    """When the pod was to end."""

    def words(self) -> str:
        return (
            f"{self.why.words()}; its pod {self.pod} was to end by {format_timestamp(self.deletion)}, and node {self.node} answers but has "
            "not ended it: a process that waits for a device or a file system cannot be killed. Look at the node; if it must be "
            "restarted, drain it first"
        )
