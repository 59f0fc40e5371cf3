"""What the condition Training can say: a value for each finding, and its words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco.wording import plural

from diloco_operator.api import names
from diloco_operator.api.reasons import TrainingReason
from diloco_operator.reconcile.sentences import Sentence
from diloco_operator.reconcile.status.events import own_data_advice
from diloco_operator.reconcile.status.unit_words import Contribution, several


# --- what stops the job -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class WriteRefused:
    objects: Sequence[str]
    """What the API server says of each."""
    reason = TrainingReason.WRITE_REFUSED

    def words(self) -> str:
        return "; ".join(self.objects)


@dataclass(frozen=True, slots=True)
class NameTaken:
    kept_claim: str
    """The volume claim of an earlier job; "": there is none."""
    taken: Sequence[str]
    """Other objects that are not the job's."""
    reason = TrainingReason.NAME_TAKEN

    def words(self) -> str:
        found = []
        if claim := self.kept_claim:
            found.append(
                f"{names.VOLUME_CLAIMS.kind} {claim} keeps the model of an earlier job of this name, and no job writes over it: give this "
                f"job another name, or delete the claim and the model with it: kubectl delete pvc {claim}. Before that, kubectl diloco "
                f"export --claim {claim} writes the model to a file"
            )
        if self.taken:
            found.append(f"{several(self.taken)} exists and is not this job's: delete it, or give the job another name")
        return ". ".join(found)


@dataclass(frozen=True, slots=True)
class VolumePending:
    problem: Sentence
    reason = TrainingReason.VOLUME_PENDING

    def words(self) -> str:
        return self.problem.words()


@dataclass(frozen=True, slots=True)
class WaitingForHardware:
    placed: int
    desired: int
    quorum: int
    reason = TrainingReason.WAITING_FOR_HARDWARE

    def words(self) -> str:
        wanted = max(self.desired, self.quorum)
        count = f"{self.placed} of {plural(wanted, 'unit has', 'units have')}" if self.placed else "no unit has"
        return f"{count} hardware, training.quorum is {self.quorum}; see Placed"


# --- the syncer -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SyncerDown:
    """It has served before, and learners have joined it."""

    why: Sentence
    reason = TrainingReason.SYNCER_UNAVAILABLE

    def words(self) -> str:
        return f"the syncer does not run: {self.why.words()}. Learners train on and reconnect by themselves"


@dataclass(frozen=True, slots=True)
class SyncerNotUp:
    why: Sentence
    reason = TrainingReason.SYNCER_STARTING

    def words(self) -> str:
        return f"the syncer does not serve yet: {self.why.words()}"


@dataclass(frozen=True, slots=True)
class FirstReportDue:
    reason = TrainingReason.SYNCER_STARTING

    def words(self) -> str:
        return "the syncer's pod runs; its first report has not come yet"


@dataclass(frozen=True, slots=True)
class ReportsRefused:
    fault: str
    reason = TrainingReason.REPORTS_REFUSED

    def words(self) -> str:
        text = f"{self.fault}. The operator reads it only now and then, and does not know whether the job trains"
        return f"{text}: check the image and command of spec.syncer.template; once a report can be read, this ends by itself"


@dataclass(frozen=True, slots=True)
class NoReport:
    seconds: float
    reason = TrainingReason.SYNCER_UNREACHABLE

    def words(self) -> str:
        return f"the operator has had no report from the syncer for {self.seconds:.0f} s; check its pod and network"


@dataclass(frozen=True, slots=True)
class NoAnswer:
    seconds: float
    reason = TrainingReason.SYNCER_UNREACHABLE

    def words(self) -> str:
        return f"the syncer has not answered the operator for {self.seconds:.0f} s, though its pod runs; check its pod, log and network"


# --- the learners -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AsOnRecord:
    """What an operator that has just started finds of a job that trains."""

    reason: TrainingReason
    message: str

    def words(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Finishing:
    reason = TrainingReason.FINISHING

    def words(self) -> str:
        return "the last outer step is done; the syncer writes the final snapshot"


@dataclass(frozen=True, slots=True)
class Contributing:
    contribution: Contribution
    news: str
    """The syncer's; "": none."""
    feeding_themselves: int
    """Units that do so."""
    reason = TrainingReason.QUORUM_CONTRIBUTING

    def words(self) -> str:
        news = f"; the syncer {self.news}" if self.news else ""
        advice = f"; {own_data_advice(self.feeding_themselves)}" if self.feeding_themselves > 1 else ""
        return f"{self.contribution.words()}{news}{advice}"


@dataclass(frozen=True, slots=True)
class QuorumMissing:
    contribution: Contribution
    quorum: int
    missing: str
    """Which units are missing, or where that stands; "": none is known."""
    reason = TrainingReason.QUORUM_MISSING

    def words(self) -> str:
        more = f"; {self.missing}" if self.missing else ""
        return f"{self.contribution.words()}, training.quorum is {self.quorum}: outer steps wait{more}"


@dataclass(frozen=True, slots=True)
class Seeding:
    reason = TrainingReason.SEEDING

    def words(self) -> str:
        return "the first learner hands over the initial parameters"
