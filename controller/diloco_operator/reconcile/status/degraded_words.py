"""What the condition Degraded can say: a value for each finding, and its words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diloco.wording import plural

from diloco_operator.api.reasons import DegradedReason
from diloco_operator.reconcile.sentences import Sentence
from diloco_operator.reconcile.status.unit_words import NAMED, Contribution, MissingUnits, refused_work
from diloco_operator.reconcile.units.roll_out import StoppedRollOut


@dataclass(frozen=True, slots=True)
class VolumeDeleted:
    claim: str
    reason = DegradedReason.VOLUME_DELETED

    def words(self) -> str:
        return (
            f"the volume claim {self.claim} was deleted: it goes when the syncer's pod ends, and with it every snapshot. Let the job "
            "complete, or copy its content"
        )


# --- enough learners contribute ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    error: str
    reason = DegradedReason.SNAPSHOT_FAILED

    def words(self) -> str:
        return f"training continues, but the syncer cannot write snapshots: {self.error}. Make room on its volume"


@dataclass(frozen=True, slots=True)
class RollOutsStopped:
    pools: Sequence[StoppedRollOut]
    reason = DegradedReason.ROLL_OUT_STOPPED

    def words(self) -> str:
        """Why units keep the earlier template of their pool, and what to do; "": no roll-out has stopped."""
        return "; ".join(_stopped(each) for each in self.pools)


def _stopped(roll_out: StoppedRollOut) -> str:
    pool, failed, left = roll_out
    keep = plural(left, "unit keeps", "units keep")
    text = f"the new template of pool {pool} has stopped after {failed.name}, which has not contributed with it"
    cause = failed.last_failure or failed.message
    return f"{text} ({cause}): {keep} the earlier one. Correct the template, or take the change back"


@dataclass(frozen=True, slots=True)
class LearnersLost:
    lost: Mapping[str, str]
    """Unit that was given up, and that nothing replaces -> why, and what to do."""
    missing: int
    desired: int
    contributing: int
    program: Sentence | None
    """Why the program is to blame; None: it is not known to be."""
    reason = DegradedReason.LEARNERS_LOST

    def words(self) -> str:
        named = "; ".join(f"{unit}: {why}" for unit, why in list(self.lost.items())[:NAMED])
        more = f"; {len(self.lost) - NAMED} more" if len(self.lost) > NAMED else ""
        count = f"{self.missing} of {plural(self.desired, 'learner')} {'is' if self.missing == 1 else 'are'} lost until a person acts"
        return f"{count}: {named}{more}; {plural(self.contributing, 'contributes', 'contribute')}{_blamed(self.program)}"


@dataclass(frozen=True, slots=True)
class WorkRefused:
    refused: int
    merged: int
    reason = DegradedReason.WORK_REFUSED

    def words(self) -> str:
        return f"training continues, but {refused_work(self.refused, self.merged)}. kubectl diloco units -o wide shows whose"


@dataclass(frozen=True, slots=True)
class EnoughLearners:
    contributing: int
    least: int
    finishing: bool
    by_an_old_report: bool
    """The reports that came since cannot be read."""
    reason = DegradedReason.ENOUGH_LEARNERS

    def words(self) -> str:
        if self.finishing:
            return "the last outer step is done"
        if self.by_an_old_report:
            return f"{self.contributing} contributed by the last report that could be read, learners.min is {self.least}"
        return f"{plural(self.contributing, 'contributes', 'contribute')}, learners.min is {self.least}"


# --- too few do -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Reconnecting:
    contribution: Contribution
    least: int
    back: int
    """Units that are about to contribute again."""
    reason = DegradedReason.LEARNERS_RECONNECTING

    def words(self) -> str:
        back = plural(self.back, "reconnects by itself", "reconnect by themselves")
        return f"{self.contribution.words()}, learners.min is {self.least}; {back}, because the syncer went away"


@dataclass(frozen=True, slots=True)
class TooFewLearners:
    reason: DegradedReason
    """Why, if all that are missing share a cause."""
    contribution: Contribution
    least: int
    missing: MissingUnits
    stopped: RollOutsStopped
    program: Sentence | None
    """Why the program is to blame; None: it is not known to be."""

    def words(self) -> str:
        details = "; ".join(filter(None, (self.missing.words(), self.stopped.words())))
        count = f"{self.contribution.words()}, learners.min is {self.least}"
        return count + (f"; {details}" if details else "") + _blamed(self.program)


def _blamed(program: Sentence | None) -> str:
    return f"; {program.words()}" if program is not None else ""
