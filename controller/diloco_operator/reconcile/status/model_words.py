"""Where the model of a job that is over is, and how long it stays there, in words. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from diloco_operator.api.reasons import CompleteReason, FailedReason
from diloco_operator.api.spec import Retain
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.sentences import Sentence


@dataclass(frozen=True, slots=True)
class ClaimFate:
    """What happens to the job's claim when the job is deleted."""

    retain: Retain
    """By the claim."""
    wanted: Retain
    """By the spec."""
    refused: str
    """Why the API server rejects the change of the claim; "": it does not."""
    deleted_at: float | None
    """When the job is deleted; None: a person does it."""

    def words(self) -> str:
        why = f"syncer.storage.retain: {self.wanted.value}"
        if self.wanted is not self.retain:
            why += f", which is not in effect yet{': ' + self.refused if self.refused else ''}"
        when = f" at {format_timestamp(self.deleted_at)} (ttlSecondsAfterFinished)" if self.deleted_at is not None else ""
        if self.retain is Retain.KEEP:
            return f"the claim stays when the job is deleted{when} ({why})"
        return f"the claim is deleted with the job{when} ({why})"


@dataclass(frozen=True, slots=True)
class NoSnapshot:
    """A failed job has none."""

    claim: str
    folder: str
    """That the claim is on this machine; "": it is a claim of a cluster."""
    fate: ClaimFate

    def words(self) -> str:
        return (
            f"No snapshot is known in {self.folder}" if self.folder else f"No snapshot is known in claim {self.claim}; {self.fate.words()}"
        )


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """The model of a complete job, or the last snapshot of a failed one."""

    complete: bool
    step: int
    claim: str
    folder: str
    """That the claim is on this machine; "": it is a claim of a cluster."""
    path: str
    """There; "": it is not known."""
    format: str
    copy: str
    """Where a bucket has it; "": nowhere."""
    not_copied_to: str
    """Where it should be; "": nowhere."""
    fate: ClaimFate

    def words(self) -> str:
        begin = "The model is in" if self.complete else f"The last snapshot, of outer step {self.step}, is in"
        place = f"{self.folder}/{self.path}".rstrip("/") if self.folder else f"claim {self.claim}{f', {self.path}' if self.path else ''}"
        text = f"{begin} {place} ({self.format})"
        if self.copy:
            text += f", and in {self.copy}"
        elif self.not_copied_to:
            text += f", and has not been copied to {self.not_copied_to}"
        if self.folder:
            return f"{text}, and stays there until you delete it"
        return f"{text}; {self.fate.words()}{'; the copy stays' if self.copy else ''}"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended, and where its model is."""

    reason: CompleteReason | FailedReason
    why: Sentence
    place: ModelPlace | NoSnapshot

    def words(self) -> str:
        return ended_message(self.why, self.place)


def ended_message(why: Sentence, place: ModelPlace | NoSnapshot) -> str:
    """Say of a job that is over how it ended and where its model is."""
    return f"{why.words().rstrip('.')}. {place.words()}"
