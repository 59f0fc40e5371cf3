"""How an attempt ended, in words: a class for each sentence, with what it names. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from diloco.contract import Exit
from diloco.wording import plural

from diloco_operator.api.durations import format_duration
from diloco_operator.api.spec import Restart
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.observe.pods import Termination
from diloco_operator.reconcile.sentences import Sentence

_ADVICE: Mapping[int, str] = {
    Exit.REFUSED_LAYOUT: "the parameters of the training program do not fit the job's; make the model the same in every pool's template",
    Exit.BAD_CONTRACT: (
        "the training program found its environment or job file missing or wrong; use the diloco version that belongs to the operator"
    ),
    Exit.REFUSED_NONFINITE: "it sent NaN or infinite parameters, which were refused; check its learning rate and data",
    Exit.REFUSED_QUARANTINED: (
        "the syncer refused its contributions again and again as outliers; check its data, learning rate, token counts and accelerator"
    ),
    Exit.RANK_LOST: "another rank of its unit ended or was lost",
    Exit.REFUSED_FENCED: "the syncer knows a newer attempt or another process with this identity",
    Exit.REFUSED_UNAUTHENTICATED: (
        "it and the syncer do not accept each other's certificates, or its certificate names another job, unit or attempt; see its log"
    ),
}


# --- the program ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Exited:
    """The program ended by itself, or a signal ended it."""

    end: Termination

    def words(self) -> str:
        """`exit 3: …`, with what the program left as its termination message. One that a signal killed left none, unless another process of
        its pod did: its log ends anywhere."""
        end = self.end
        advice = _ADVICE.get(end.exit_code)
        text = f"exit {end.exit_code}: {advice}" if advice is not None else end.text
        killed = (end.signal or end.exit_code > 128) and not end.is_last_words
        return text if killed or not end.message else f"{text}: {end.message}"


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    exit_code: int

    def words(self) -> str:
        return f"exit {self.exit_code} (OOMKilled): it used more memory than its limit; raise the limit or use a smaller batch"


@dataclass(frozen=True, slots=True)
class LeftEarly:
    def words(self) -> str:
        return (
            "the training program ended with status 0 before the job was done; let it train until session.batches ends, or end the job for "
            "all units with session.finish"
        )


# --- its pods ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PodFailed:
    """A pod failed, and no container of it says how."""

    pod: str
    reason: str
    message: str

    def words(self) -> str:
        detail = f"{self.reason}: {self.message}" if self.reason else "the kubelet gives no reason"
        return f"the pod {self.pod} failed ({detail})"


@dataclass(frozen=True, slots=True)
class PodDisrupted:
    pod: str
    why: str
    """In the words of who disrupts it."""

    def words(self) -> str:
        return f"{self.pod}: {self.why}"


@dataclass(frozen=True, slots=True)
class PodEvicted:
    pod: str
    reason: str
    message: str

    def words(self) -> str:
        return f"{self.pod}: {self.reason} {self.message}".rstrip()


@dataclass(frozen=True, slots=True)
class PodDeleted:
    pod: str

    def words(self) -> str:
        return f"the pod {self.pod} was deleted, but not by the operator"


@dataclass(frozen=True, slots=True)
class PodGone:
    """One or more pods of an attempt that had run."""

    def words(self) -> str:
        return "a pod is gone, and the operator had not deleted it"


@dataclass(frozen=True, slots=True)
class AllPodsGone:
    """They never ran."""

    def words(self) -> str:
        return "its pods are gone"


@dataclass(frozen=True, slots=True)
class PodsDeletedBeforeNodes:
    def words(self) -> str:
        return "its pods were deleted, but not by the operator, before they had nodes"


@dataclass(frozen=True, slots=True)
class NodesForSomePods:
    """A delegated unit ended that never had all its nodes."""

    end: Sentence

    def words(self) -> str:
        return f"nodes came for some of its pods only, and these did not wait for the others: {self.end.words()}"


# --- an attempt that was not created as it should be --------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CreatedInPart:
    """An operator died before it had created any of the pods that name the group of hosts."""

    attempt: int

    def words(self) -> str:
        return f"attempt {self.attempt} was created in part, and none of its pods names its slice; it is created again"


@dataclass(frozen=True, slots=True)
class CreatedOnTwoSlices:
    attempt: int
    slices: Collection[str]

    def words(self) -> str:
        where = " and ".join(sorted(self.slices))
        return f"attempt {self.attempt} was created on two slices, {where}; it is created again on one"


@dataclass(frozen=True, slots=True)
class AttemptReplaced:
    attempt: int

    def words(self) -> str:
        return f"attempt {self.attempt} was replaced"


@dataclass(frozen=True, slots=True)
class TookFreeSlice:
    """An attempt that waited for a grantor is over before it ran."""

    def words(self) -> str:
        return "the unit took a slice that became free"


# --- time-outs --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ImageRefused:
    pod: str
    node: str
    problem: str

    def words(self) -> str:
        return (
            f"{self.pod} on {self.node}: an image cannot be pulled; correct it in the pool's template, or the pull secret: {self.problem}"
        )


@dataclass(frozen=True, slots=True)
class PullTimedOut:
    pod: str
    limit: float
    wait: Sentence

    def words(self) -> str:
        limit = format_duration(self.limit)
        return f"the images of {self.pod} were not pulled within {limit} (learners.timeouts.pull): {self.wait.words()}"


@dataclass(frozen=True, slots=True)
class StartTimedOut:
    pod: str
    limit: float
    wait: Sentence

    def words(self) -> str:
        limit = format_duration(self.limit)
        return f"{self.pod} was not ready to run within {limit} (learners.timeouts.start): {self.wait.words()}"


@dataclass(frozen=True, slots=True)
class JoinTimedOut:
    limit: float

    def words(self) -> str:
        limit = format_duration(self.limit)
        return f"its pods run, but it did not join the syncer within {limit} (learners.timeouts.join); see its log"


@dataclass(frozen=True, slots=True)
class NotHeardFrom:
    stall: float

    def words(self) -> str:
        return f"the syncer has not heard from it for {_stall(self.stall)}"


@dataclass(frozen=True, slots=True)
class PauseTooLong:
    pause: str
    """What the program had said of it."""

    def words(self) -> str:
        return f"its program paused for longer than it had said ({self.pause}); raise at_most in session.paused"


@dataclass(frozen=True, slots=True)
class NoFirstStep:
    limit: float

    def words(self) -> str:
        limit = f"{format_duration(self.limit)} (learners.timeouts.firstStep)"
        return f"its process is alive, but did not take its first step within {limit}; see its log"


@dataclass(frozen=True, slots=True)
class NoFurtherStep:
    stall: float

    def words(self) -> str:
        return (
            f"its process is alive, but took no step for {_stall(self.stall)}: training hangs, or the program does something else for so "
            "long, which session.paused announces"
        )


def _stall(seconds: float) -> str:
    return f"{format_duration(seconds)} (learners.stallTimeout)"


# --- what follows from an end -------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Crashed:
    """A failure within the restart budget."""

    attempt: int
    end: Sentence
    not_before: float

    def words(self) -> str:
        return f"attempt {self.attempt} ended: {self.end.words()}; the next one starts at {format_timestamp(self.not_before)}"


@dataclass(frozen=True, slots=True)
class WhyGivenUp:
    """Why a unit was given up, by its record: for its job, too."""

    attempt: int
    failures: int | None
    """Those in the restart window that used the budget up; None: the last one was enough."""
    budget: Restart
    end: Sentence
    """How its last attempt failed; nothing: that is not known any more."""

    def words(self) -> str:
        cause = self.end.words()
        last = f"attempt {self.attempt}{': ' if cause else ''}{cause}"
        if self.failures is None:
            return f"given up after {last}"
        many = f"{plural(self.failures, 'failure')} within {format_duration(self.budget.window)}"
        return f"given up: {many}, learners.restart.limit is {self.budget.limit}; the last, {last}"


@dataclass(frozen=True, slots=True)
class GivenUp:
    why: WhyGivenUp

    def words(self) -> str:
        return f"{self.why.words()}; fix the cause, then kubectl diloco retry starts it again"
