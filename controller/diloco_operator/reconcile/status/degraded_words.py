"""What the condition Degraded can say. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diloco.wording import plural

from diloco_operator.reconcile.status.unit_words import NAMED, refused_work
from diloco_operator.reconcile.units.roll_out import StoppedRollOut


def volume_deleted(claim: str) -> str:
    return (
        f"the volume claim {claim} was deleted: it goes when the syncer's pod ends, and with it every snapshot. Let the job "
        "complete, or copy its content"
    )


# --- enough learners contribute ---------------------------------------------------------------------------------------
def snapshot_failed(error: str, *, finishing: bool, newest: int) -> str:
    """`newest`: outer step of the newest durable snapshot, -1 if there is none."""
    what = "training continues, but a snapshot, or the state of a unit, cannot be stored"
    if finishing:
        last = f"; the newest one is of outer step {newest}" if newest >= 0 else ""
        what = f"training is done, and the job waits for its final snapshot, which cannot be stored and is tried again{last}"
    return f"{what}: {error}. Make room on the syncer's volume, or mend training.checkpoint.uri or the rights on it"


def roll_outs_stopped(pools: Sequence[StoppedRollOut], syncer: str) -> str:
    """Say why units keep the earlier template of their pool, and what to do; "" if no roll-out has stopped. `syncer`: why the syncer keeps
    its earlier template, "" if it does not."""
    of_syncer = f"the syncer keeps its earlier template, for {syncer}. Correct syncer.template, or take the change back" if syncer else ""
    return "; ".join(filter(None, (*map(_stopped, pools), of_syncer)))


def _stopped(roll_out: StoppedRollOut) -> str:
    keep = plural(roll_out.left, "unit keeps", "units keep")
    text = f"the new template of pool {roll_out.pool} has stopped {roll_out.why}: {keep} the earlier one"
    return f"{text}. Correct the template, or take the change back"


def learners_lost(lost: Mapping[str, str], missing: int, desired: int, contributing: int, program: str) -> str:
    """Count and name the lost learners.

    Args:
        lost: a unit that was given up and is not replaced -> why, and what to do
        program: why the program is to blame; "" if it is not known to be
    """
    named = "; ".join(f"{unit}: {why}" for unit, why in list(lost.items())[:NAMED])
    more = f"; {len(lost) - NAMED} more" if len(lost) > NAMED else ""
    count = f"{missing} of {plural(desired, 'learner')} {'is' if missing == 1 else 'are'} lost until a person acts"
    return f"{count}: {named}{more}; {plural(contributing, 'contributes', 'contribute')}{_blamed(program)}"


def work_refused(refused: int, merged: int) -> str:
    return f"training continues, but {refused_work(refused, merged)}. kubectl diloco units -o wide shows whose"


def enough_learners(contributing: int, least: int, *, finishing: bool, by_an_old_report: bool) -> str:
    """`by_an_old_report`: the newer reports cannot be read."""
    if finishing:
        return "the last outer step is done"
    if by_an_old_report:
        return f"{contributing} contributed by the last report that could be read, learners.min is {least}"
    return f"{plural(contributing, 'contributes', 'contribute')}, learners.min is {least}"


# --- too few learners contribute --------------------------------------------------------------------------------------
def reconnecting(contribution: str, least: int, back: int) -> str:
    """`back`: how many units are about to contribute again."""
    returning = plural(back, "reconnects by itself", "reconnect by themselves")
    return f"{contribution}, learners.min is {least}; {returning}, because the syncer went away"


def too_few_learners(contribution: str, least: int, missing: str, stopped: str, program: str) -> str:
    """`program`: why the program is to blame; "" if it is not known to be."""
    details = "; ".join(filter(None, (missing, stopped)))
    count = f"{contribution}, learners.min is {least}"
    return count + (f"; {details}" if details else "") + _blamed(program)


def _blamed(program: str) -> str:
    return f"; {program}" if program else ""
