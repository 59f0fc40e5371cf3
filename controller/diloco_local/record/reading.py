"""Makes the history from the lines of a record. Pure.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from diloco_operator.api.phases import Phase
from diloco_operator.api.state import OVER

from diloco_local.record.history import Fault, Gap, History, JobHistory, Merge, Recovery, Span, Traffic, UnitHistory
from diloco_local.record.lines import (
    FaultFired,
    Figures,
    JobSeen,
    Line,
    Merged,
    Missing,
    ObjectSeen,
    PhaseBegan,
    Recovered,
    RunBegan,
    RunEnded,
    StepTaken,
    UnitLeft,
)


def history_of(lines: Iterable[Line]) -> History:
    """Read the history in one pass. The record has at least one line."""
    readers: dict[str, _JobReader] = {}
    began: float | None = None
    command = ending = ""
    end = 0.0
    for at, line in _on_one_clock(lines):
        began = line.at if began is None else began
        end = max(end, at)
        if isinstance(line, RunBegan):
            command, ending = line.command, ""
            for reader in readers.values():
                # The command before may have been killed, without a line for its end. Close what it left open: otherwise that would last
                # until the end of this command.
                reader.end_of_command(at)
                reader.command_began(at)
        elif isinstance(line, RunEnded):
            ending = line.ending
        else:
            readers.setdefault(line.job, _JobReader(line.job)).take(at, line)
    for reader in readers.values():
        reader.end_of_command(end)
    return History(began or 0.0, end, command, ending, tuple(readers[name].job for name in sorted(readers)))


def _on_one_clock(lines: Iterable[Line]) -> Iterator[tuple[float, Line]]:
    """Yield each line with its time in seconds, without the pauses between commands: a command begins where the one before ended. Reports
    of a syncer come up to a second late, so the times of consecutive lines may go back a little."""
    offset: float | None = None
    newest = 0.0
    for line in lines:
        if offset is None:
            offset = newest = line.at
        if isinstance(line, RunBegan):
            offset += line.at - newest
            newest = line.at
        newest = max(newest, line.at)
        yield max(0.0, line.at - offset), line


class _JobReader:
    """Reads the history of one job from its lines, in their order."""

    def __init__(self, name: str) -> None:
        self.job = JobHistory(name)
        self._start: float | None = None
        self._open: dict[str, tuple[float, Phase, int]] = {}
        """Unit -> since when it is in its phase, the phase, its attempt."""
        self._last_steps: dict[str, tuple[float, int, int]] = {}
        """Unit -> its newest step: time, attempt, number."""
        self._syncer = ""
        self._before: dict[str, tuple[int, int]] = {}
        """Unit -> bytes (received, sent) that earlier processes of the syncer have counted."""

    def take(self, at: float, line: Line) -> None:
        """Take one line of this job."""
        if self._start is None:
            self._start = at
        at = max(0.0, at - self._start)
        match line:
            case JobSeen():
                self._seen(at, line)
            case PhaseBegan():
                self._phase(at, line)
            case UnitLeft():
                self._close(line.unit, at)
            case StepTaken():
                self._step(at, line)
            case Merged():
                self.job.merges.append(Merge(at, line.t, line.units, line.loss))
            case Figures():
                self._figures(at, line)
            case Recovered():
                self._unit(line.unit).recoveries.append(Recovery(at, line.seconds))
            case FaultFired():
                self.job.faults.append(Fault(at, line.unit, line.signal, line.step))
            case ObjectSeen():
                self.job.object, self.job.object_at = line.object, line.at
            case Missing():
                self.job.missing += line.entries

    def end_of_command(self, at: float) -> None:
        """Note that nothing of the job runs any more."""
        at -= self._start or 0.0
        if self.job.state not in OVER:
            self.job.end = at
        for unit in list(self._open):
            self._close(unit, at)
        for history in self.job.units.values():
            history.spans = list(_with_lost_work(history))
        # Otherwise the time until the next command would count as a step.
        self._last_steps.clear()

    def command_began(self, at: float) -> None:
        """Note that another command began. It may run this job again."""
        if self.job.state not in OVER:
            self.job.runs.append(at - (self._start or 0.0))

    def _unit(self, name: str) -> UnitHistory:
        return self.job.units.setdefault(name, UnitHistory(name))

    def _seen(self, at: float, line: JobSeen) -> None:
        job = self.job
        if line.state in OVER and job.state not in OVER:
            job.end = at
        if job.state in OVER and line.state not in OVER:
            job.runs.append(at)
        job.state = line.state
        job.outer_steps = line.steps or job.outer_steps
        job.held_out_loss = line.held_out_loss

    def _phase(self, at: float, line: PhaseBegan) -> None:
        known = self._open.get(line.unit)
        if known is None or (known[1], known[2]) != (line.phase, line.attempt):
            self._close(line.unit, at)
            self._open[line.unit] = (at, line.phase, line.attempt)
        self._unit(line.unit)

    def _close(self, unit: str, at: float) -> None:
        # Times may go back a little, see `_on_one_clock`. Drop a span that would have a negative length.
        if (known := self._open.pop(unit, None)) is not None and at > known[0]:
            self._unit(unit).spans.append(Span(known[0], at, known[1], known[2]))

    def _step(self, at: float, line: StepTaken) -> None:
        unit = self._unit(line.unit)
        last = self._last_steps.get(line.unit)
        # Otherwise it is another attempt, or a count that begins anew: the time since the last step includes a start, so it is no gap.
        if last is not None and last[1] == line.attempt and last[2] < line.step:
            unit.gaps.append(Gap(last[0], at, line.step - last[2]))
            unit.steps += line.step - last[2]
        else:
            unit.first_steps.append(at)
            unit.steps += 1
        self._last_steps[line.unit] = (at, line.attempt, line.step)
        self.job.sample_size.add(line.samples, line.tokens)

    def _figures(self, at: float, line: Figures) -> None:
        job = self.job
        job.t, job.tokens, job.samples = line.t, line.tokens, line.samples
        job.loss = line.loss if line.loss is not None else job.loss
        # Each process of the syncer counts bytes from 0. Add its predecessors' bytes, else the curve would fall.
        if line.syncer != self._syncer:
            self._syncer = line.syncer
            self._before = {unit.name: (unit.received_bytes, unit.sent_bytes) for unit in job.units.values()}
        for name, figures in line.units.items():
            unit, before = self._unit(name), self._before.get(name, (0, 0))
            unit.tokens = figures.tokens
            unit.received_bytes, unit.sent_bytes = before[0] + figures.received_bytes, before[1] + figures.sent_bytes
        received = sum(unit.received_bytes for unit in job.units.values())
        job.traffic.append(Traffic(at, received, sum(unit.sent_bytes for unit in job.units.values())))


def _with_lost_work(unit: UnitHistory) -> Iterator[Span]:
    """Yield the unit's spans. Where a loss ended a training span, the time since its last complete step becomes lost work. This is done at
    the end of a command, because the line of a step may come after the line of the loss."""
    steps = sorted([*unit.first_steps, *(gap.end for gap in unit.gaps)])
    for span, after in itertools.pairwise([*unit.spans, None]):
        assert span is not None, "only the end of the pairs is"
        lost = span.phase is Phase.TRAINING and after is not None and after.phase in _AFTER_A_LOSS
        last = steps[bisect.bisect_right(steps, span.end) - 1] if lost and steps else span.start
        if lost and span.start < last < span.end:
            yield replace(span, end=last)
            yield replace(span, start=last, phase=Phase.LOST_WORK)
        else:
            yield span


_AFTER_A_LOSS = (Phase.RECOVERY, Phase.MISSING, Phase.FAILED)
