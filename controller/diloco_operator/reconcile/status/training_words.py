"""What the condition Training can say. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco.wording import bytes_text, parameters_text, plural

from diloco_operator.api import names
from diloco_operator.api.durations import format_duration
from diloco_operator.api.reasons import TrainingReason
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.status.events import own_data_advice
from diloco_operator.reconcile.status.statements import Statement
from diloco_operator.reconcile.status.unit_words import several
from diloco_operator.timeouts import RECONCILE


# --- what stops the job -----------------------------------------------------------------------------------------------
def name_taken(kept_claim: str, taken: Sequence[str], uid: str) -> str:
    """Say what to do.

    Args:
        kept_claim: a volume claim that belongs to no job, "" if there is none
        taken: other objects that are not the job's
        uid: the job's
    """
    texts = []
    if kept_claim:
        texts.append(
            f"{names.VOLUME_CLAIMS.kind} {kept_claim} keeps the model of an earlier job of this name, or comes from a backup, and no job "
            f"writes over it. To go on from it: kubectl annotate pvc {kept_claim} --overwrite {names.ANNOTATION_JOB_UID}={uid}. To begin "
            f"anew: give this job another name. kubectl diloco export --claim {kept_claim} writes the model to a file"
        )
    if taken:
        texts.append(f"{several(taken)} exists and is not this job's: give the job another name, or delete it if nothing needs it")
    return ". ".join(texts)


def waiting_for_hardware(placed: int, desired: int, quorum: int) -> str:
    wanted = max(desired, quorum)
    count = f"{placed} of {plural(wanted, 'unit has', 'units have')}" if placed else "no unit has"
    return f"{count} hardware, training.quorum is {quorum}; see Placed"


# --- the syncer -------------------------------------------------------------------------------------------------------
def syncer_down(why: str) -> str:
    """The syncer has served before, and learners have joined it."""
    lasts = format_duration(RECONCILE.hold_without_syncer)
    return f"the syncer does not run: {why}. Learners reconnect by themselves; after {lasts} without it they give their hardware back"


def syncer_overdue(why: str, since: float) -> str:
    return f"the syncer has not served since {format_timestamp(since)}: {why}. Units give their hardware back until it serves"


def syncer_not_up(why: str) -> str:
    return f"the syncer does not serve yet: {why}"


FIRST_REPORT_DUE = "the syncer's pod runs; its first report has not come yet"


def too_small_syncer(asked: int, needed: int, parameters: int, learners: int) -> str:
    return (
        f"; the syncer asks for {bytes_text(asked)} of memory, and for {parameters_text(parameters)} parameters and "
        f"{plural(learners, 'learner')} needs about {bytes_text(needed)}: set requests of memory in spec.syncer.template"
    )


def reports_refused(fault: str) -> str:
    text = f"{fault}. The operator reads it only now and then, and does not know whether the job trains"
    return f"{text}: check the image and command of spec.syncer.template; once a report can be read, this ends by itself"


def no_report(seconds: float) -> str:
    return f"the operator has had no report from the syncer for {seconds:.0f} s; check its pod and network"


def no_answer(seconds: float) -> str:
    return f"the syncer has not answered the operator for {seconds:.0f} s, though its pod runs; check its pod, log and network"


# --- the learners -----------------------------------------------------------------------------------------------------
FINISHING = "the last outer step is done; the syncer writes the final snapshot"


def contributing(contribution: str, news: str, feeding_themselves: int) -> str:
    """`news`: what the syncer adds to its report, or "". `feeding_themselves`: how many units read their data themselves."""
    from_syncer = f"; the syncer {news}" if news else ""
    advice = f"; {own_data_advice(feeding_themselves)}" if feeding_themselves > 1 else ""
    return f"{contribution}{from_syncer}{advice}"


@dataclass(frozen=True, slots=True)
class QuorumMissing:
    """The one statement whose text depends on another condition, Degraded."""

    contribution: str
    quorum: int
    reason = TrainingReason.QUORUM_MISSING

    def statement(self, missing: str) -> Statement:
        """`missing`: names the missing units, or the condition that names them. "" if none is known."""
        more = f"; {missing}" if missing else ""
        return Statement(self.reason, f"{self.contribution}, training.quorum is {self.quorum}: outer steps wait{more}")


SEEDING = "the first learner hands over the initial parameters"
