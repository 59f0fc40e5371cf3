"""What a fault did to a job. Each figure follows from the record; where the record cannot tell, there is no figure. Pure.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from diloco.wording import plural
from diloco_operator.api.names import COMPONENT_SYNCER
from diloco_operator.api.phases import Phase

from diloco_local.record.history import Fault, JobHistory, UnitHistory

_END_ROUNDING = 1.0
"""Seconds. Kubernetes gives the end of a container in whole seconds, so a recovery may seem to begin up to a second before the kill."""
_FEWEST_STEPS = 3
"""A unit's median is known from this number of steps on."""


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest step of several units in some time, beside the usual step of its unit. While the syncer itself was lost, the record
    has no single steps: each then takes the mean time between two reports."""

    unit: str
    seconds: float
    usual: float
    """Median of the unit's steps at other times, in seconds."""

    @property
    def ratio(self) -> float:
        return self.seconds / self.usual


@dataclass(frozen=True, slots=True)
class Effect:
    fault: Fault
    back: float | None
    """Seconds from the fault until the unit trained again, or the syncer merged again. None if it did not."""
    rolled_back_to: int | None
    """The outer step that the syncer fell back to. None if it fell back to none, or if the fault hit a unit."""
    longest: Longest | None
    """The longest step of the other units meanwhile. None if none of them trained."""
    before: Longest | None
    """The longest step of the other units in an equally long time before the fault."""
    merges: Mapping[int, int]
    """Number of contributing units -> merges meanwhile that had this number."""
    units: int
    """Units that the job had at the time of the fault."""

    @property
    def times_before(self) -> float | None:
        """`longest` over `before`, each in medians of its unit. None if one of them is unknown."""
        return self.longest.ratio / self.before.ratio if self.longest and self.before else None

    def sentence(self) -> str:
        fault = self.fault
        parts = [f"{fault.unit} {participle_of(fault.signal)} at step {fault.step}, {self._return()}"]
        meanwhile = [*self._others(), *self._merges()]
        if meanwhile:
            parts.append(f"meanwhile {', and '.join(meanwhile)}")
        return "; ".join(parts)

    def as_json(self) -> dict[str, Any]:
        return {
            "unit": self.fault.unit,
            "signal": self.fault.signal,
            "step": self.fault.step,
            "backSeconds": _rounded(self.back),
            "rolledBackTo": self.rolled_back_to,
            "longestStepRatio": _rounded(self.longest.ratio if self.longest else None),
            "longestStepTimesBefore": _rounded(self.times_before),
            "longestStepRatioBefore": _rounded(self.before.ratio if self.before else None),
            "merges": {str(units): count for units, count in sorted(self.merges.items())},
            "units": self.units,
        }

    def _return(self) -> str:
        if self.fault.unit == COMPONENT_SYNCER:
            if self.back is None:
                return "and no merge came after it"
            since = f" from step {self.rolled_back_to}" if self.rolled_back_to is not None else ""
            return f"merging again{since} after {self.back:.1f} s"
        return f"back after {self.back:.1f} s" if self.back is not None else "and not back before the end"

    def _others(self) -> Iterator[str]:
        if self.longest is None:
            return
        whose = "the units'" if self.fault.unit == COMPONENT_SYNCER else "the others'"
        if self.times_before is None:
            yield f"{whose} longest step took {self.longest.ratio:.2f} times their median"
        else:
            since = "as long before" if self.back is None else f"the {self.back:.1f} s before"
            yield f"{whose} longest step took {self.times_before:.2f} times that of {since}"

    def _merges(self) -> Iterator[str]:
        if self.fault.unit != COMPONENT_SYNCER and (count := sum(self.merges.values())):
            mean = sum(units * merges for units, merges in self.merges.items()) / count
            average = " on average" if count > 1 else ""
            yield f"{plural(count, 'merge')} had {mean:.2g} of {self.units} units{average}"


_DONE = {"KILL": "killed", "TERM": "told to drain", "STOP": "stopped", "CONT": "continued"}


def participle_of(signal: str) -> str:
    """What the signal does to a unit, as a participle."""
    return _DONE.get(signal, f"sent SIG{signal}")


def effects_of(job: JobHistory) -> list[Effect]:
    return [_effect(job, fault) for fault in job.faults]


def _effect(job: JobHistory, fault: Fault) -> Effect:
    rolled_back_to: int | None = None
    if fault.unit == COMPONENT_SYNCER:
        back, rolled_back_to = _merging_again(job, fault)
    else:
        back = _training_again(job, fault)
    end = job.end if back is None else fault.at + back
    affected = _Time(fault.at, end)
    merges = [merge for merge in job.merges if fault.at < merge.at <= end]
    return Effect(
        fault=fault,
        back=back,
        rolled_back_to=rolled_back_to,
        longest=_longest(job, fault, affected, affected),
        before=_longest(job, fault, _Time(max(0.0, 2 * fault.at - end), fault.at), affected),
        merges=Counter(len(merge.units) for merge in merges),
        units=sum(unit.phase_at(fault.at) not in (None, Phase.FAILED, Phase.OVER) for unit in job.units.values()),
    )


def _training_again(job: JobHistory, fault: Fault) -> float | None:
    """Seconds from the fault until the unit trained again. None if it did not.

    After SIGKILL this is the recovery time in the job's status, which counts from the loss. For a unit that had not trained before the
    status has none: then the first merge with its contribution counts. A unit that was not lost only took a long step.
    """
    unit = job.units.get(fault.unit)
    if unit is None:
        return None
    recovery = next((each for each in unit.recoveries if each.at > fault.at), None)
    if recovery is not None:
        since = recovery.at - fault.at
        is_by_the_fault = fault.signal == "KILL" and recovery.seconds <= since + _END_ROUNDING  # else it was lost already
        return recovery.seconds if is_by_the_fault else since
    if (begun := next((at for at in unit.first_steps if at > fault.at), None)) is not None:
        merges = (merge.at - fault.at for merge in job.merges if merge.at > begun and fault.unit in merge.units)
        return next(merges, None)
    return next((gap.end - fault.at for gap in unit.gaps if gap.end > fault.at), None) if fault.signal != "KILL" else None


def _merging_again(job: JobHistory, fault: Fault) -> tuple[float | None, int | None]:
    """Seconds until the next process of the syncer merged, and the outer step that it fell back to. Each is None if there is none."""
    before = [merge for merge in job.merges if merge.at <= fault.at]
    after = [merge for merge in job.merges if merge.at > fault.at]
    if not after:
        return None, None
    reached = max((merge.t for merge in before), default=0)
    first = after[0]
    return first.at - fault.at, first.t - 1 if first.t <= reached else None


@dataclass(frozen=True, slots=True)
class _Time:
    start: float
    end: float


def _longest(job: JobHistory, fault: Fault, when: _Time, affected: _Time) -> Longest | None:
    """The longest step of the other units in `when`. The usual step of each is its median outside `affected`."""
    units = [unit for unit in job.units.values() if unit.name != fault.unit]
    unheard = fault.unit == COMPONENT_SYNCER
    last_merge = max((merge.at for merge in job.merges), default=0.0)
    candidates = []
    for unit in units:
        usual = [gap.seconds for gap in unit.gaps if gap.steps == 1 and (gap.end <= affected.start or gap.start >= affected.end)]
        # A step during which the fault came belongs to the affected time, and not to the time before.
        until = math.inf if when == affected else when.end
        within = [gap for gap in unit.gaps if gap.end > when.start and gap.start < when.end and gap.end <= until]
        meanwhile = [gap.seconds / gap.steps if unheard else gap.seconds for gap in within]
        if when == affected:
            meanwhile += _unended_step(unit, when, last_merge)
        if len(usual) >= _FEWEST_STEPS and meanwhile:
            candidates.append(Longest(unit.name, max(meanwhile), median(usual)))
    return max(candidates, key=lambda longest: longest.ratio, default=None)


def _unended_step(unit: UnitHistory, when: _Time, last_merge: float) -> Iterator[float]:
    """If the unit stands still to the end of `when` although the job trains, yield the seconds since its last step."""
    if not unit.gaps:
        return
    last, until = max(unit.gaps[-1].end, unit.first_steps[-1]), min(when.end, last_merge)
    if when.start < until and last < until and unit.phase_at(until) in (Phase.TRAINING, Phase.WAITING):
        yield until - last


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def tokens_sentence(job: JobHistory) -> str:
    """A sentence that says whether the job's tokens are what its committed samples hold. These are two independent counts: the syncer adds
    up the tokens that units report, and it keeps the set of committed sequence numbers. The steps on record say how many tokens a sample
    has."""
    size = job.sample_size
    if size.own_data or not size.samples:
        return (
            "tokens not checked: programs feed themselves, so no samples are counted"
            if size.own_data
            else "tokens not checked: no step is on record"
        )
    if size.uneven:
        return "tokens not checked: samples hold different numbers of tokens"
    if job.tokens * size.samples == job.samples * size.tokens:
        return f"tokens exact: {job.tokens:,} are {job.samples:,} samples of {size.tokens / size.samples:g}, each once"
    held = job.samples * size.tokens / size.samples
    return f"tokens NOT exact: {job.tokens:,} are counted, and {job.samples:,} samples of {size.tokens / size.samples:g} hold {held:,.0f}"
