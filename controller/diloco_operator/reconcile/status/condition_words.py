"""What conditions say of a job that does not run: a value for each finding, and its words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco_operator.api.reasons import AcceptedReason, DegradedReason, SuspendedReason
from diloco_operator.kube.client import Cause
from diloco_operator.reconcile.status.unit_words import NAMED, refused_work, several


@dataclass(frozen=True, slots=True)
class SpecInvalid:
    problems: Sequence[Cause]
    reason = AcceptedReason.SPEC_INVALID

    def words(self) -> str:
        text = "; ".join(f"{cause.field}: {cause.message}" for cause in self.problems)
        return f"{text}. What runs is left alone until the spec is fixed"


@dataclass(frozen=True, slots=True)
class RightsMissing:
    missing: Sequence[str]
    """What cannot be read, and why."""
    reason = AcceptedReason.RIGHTS_MISSING

    def words(self) -> str:
        return (
            f"{'; '.join(self.missing[:NAMED])}. Give its service account the rights that docs/install.md lists; what runs is left alone "
            "until then"
        )


@dataclass(frozen=True, slots=True)
class Suspending:
    pods: Sequence[str]
    """That have not gone yet."""
    reason = SuspendedReason.SUSPENDING

    def words(self) -> str:
        return f"waits for {several(self.pods)} to hand back state and end"


@dataclass(frozen=True, slots=True)
class NothingTrained:
    """A complete job that holds nothing of what its learners trained."""

    refused: int
    merged: int
    reason = DegradedReason.NOTHING_TRAINED

    def words(self) -> str:
        too_short = "a sample counts once every fragment has merged it: give the job more steps than its syncInterval"
        why = refused_work(self.refused, self.merged) if self.refused else too_short
        return f"the job is complete, and no token that a learner trained counts: {why}"


@dataclass(frozen=True, slots=True)
class CompleteButRefused:
    refused: int
    merged: int
    reason = DegradedReason.WORK_REFUSED

    def words(self) -> str:
        return f"the job is complete, but {refused_work(self.refused, self.merged)}"
