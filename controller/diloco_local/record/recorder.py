"""Writes down what happens in a run: it turns statuses, reports of syncers and faults into lines.

Syncers give times on the monotonic clock. They run on this machine, so this process has the same clock, and times are exact however late
a report comes.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from diloco_operator.api.names import JobKey
from diloco_operator.api.phases import Phase
from diloco_operator.api.state import syncer_runs
from diloco_operator.api.status import Status
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile.units.states import phase_of
from diloco_operator.report import LocalStep, Report

from diloco_local.record.elsewhere import UnitElsewhere, in_status, of_report
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
    UnitFigures,
    UnitLeft,
)


@dataclass(slots=True)
class _Syncer:
    """What is known of one process of a job's syncer."""

    incarnation: str | None = None
    """None if no report has come yet."""
    last: int = 0
    """The number of the newest entry on record."""


@dataclass(slots=True)
class _Job:
    last_state: tuple[str, int, float | None] | None = None
    """State, outer step and held-out loss in the line that was last written for the job."""
    units: dict[str, PhaseBegan] = field(default_factory=dict)
    """The line that was last written for each unit in the job's status."""
    here: set[str] = field(default_factory=set)
    """Units that were in the status at some time."""
    elsewhere: dict[str, PhaseBegan] = field(default_factory=dict)
    """The line that was last written for each unit that only the syncer knows: in another cluster, or outside every cluster."""
    trained: set[str] = field(default_factory=set)
    syncer: _Syncer = field(default_factory=_Syncer)
    recovered: dict[str, float] = field(default_factory=dict)
    figures: Figures | None = None


class Recorder:
    """Records one run. `write` takes lines. `wall` is read once, in seconds since the epoch: if that clock is set meanwhile, lines
    keep their distances."""

    def __init__(self, write: Callable[..., None], wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._write = write
        self._monotonic = monotonic
        self._offset = wall() - monotonic()
        self._jobs: dict[JobKey, _Job] = {}

    def began(self, command: str) -> None:
        self._write(RunBegan(at=self._now(), command=command))

    def ended(self, ending: str) -> None:
        self._write(RunEnded(at=self._now(), ending=ending))

    def status(self, key: JobKey, state: str, status: Status) -> None:
        """Record what has changed in the job's status."""
        job = self._jobs.setdefault(key, _Job())
        self._write(*self._changes(job, _name(key), state, status, self._now()))

    def object(self, key: JobKey, obj: Obj) -> None:
        """Record the job as the API server has it now."""
        self._write(ObjectSeen(at=self._now(), job=_name(key), object=obj))

    def fault(self, key: JobKey, unit: str, signal: str, step: int, at: float) -> None:
        """Record that a signal was sent. `at`: seconds since the epoch."""
        self._write(FaultFired(at=at, job=_name(key), unit=unit, signal=signal, step=step))

    def report(self, key: JobKey, report: Report) -> None:
        job = self._jobs.setdefault(key, _Job())
        if job.syncer.incarnation != report.incarnation:
            job.syncer = _Syncer(report.incarnation)
        units = map(of_report, report.units.values())
        # A syncer goes on to name units of pools that are gone. What has not been seen at work gets no row.
        seen = [unit for unit in units if unit.works or unit.name in job.elsewhere]
        runs = job.last_state is not None and syncer_runs(job.last_state[0])
        self._write(
            *self._happened(job.syncer, _name(key), report),
            *(_phases_elsewhere(job, _name(key), seen, self._at(report.clock)) if runs else ()),
            *self._figures(job, _name(key), report),
        )

    def _now(self) -> float:
        return self._offset + self._monotonic()

    def _at(self, clock: float) -> float:
        """A syncer's clock as seconds since the epoch. Never later than now, whatever the syncer says."""
        return min(max(0.0, self._offset + clock), self._now())

    @staticmethod
    def _changes(job: _Job, name: str, state: str, status: Status, at: float) -> Iterator[Line]:
        steps, held_out_loss = status.progress.steps, status.progress.held_out_loss
        if (state, steps, held_out_loss) != job.last_state:
            job.last_state = (state, steps, held_out_loss)
            yield JobSeen(at=at, job=name, state=state, steps=steps, held_out_loss=held_out_loss)
        for unit in status.units:
            began = PhaseBegan(
                at=at,
                job=name,
                unit=unit.name,
                phase=phase_of(unit, trained=unit.name in job.trained),
                state=unit.state,
                attempt=unit.attempt,
                slice=unit.slice,
                reason=unit.reason,
            )
            yield from _if_new(job, job.units, began)
            if unit.recover_seconds is not None and unit.recover_seconds != job.recovered.get(unit.name):
                job.recovered[unit.name] = unit.recover_seconds
                yield Recovered(at=at, job=name, unit=unit.name, attempt=unit.attempt, seconds=unit.recover_seconds)
        for left in sorted(job.units.keys() - {unit.name for unit in status.units}):
            del job.units[left]
            yield UnitLeft(at=at, job=name, unit=left)
        job.here |= job.units.keys()
        elsewhere = list(in_status(status))
        if not syncer_runs(state):
            leave = set(job.elsewhere)
        elif job.syncer.incarnation is not None:  # reports say more of them, and sooner
            leave = job.elsewhere.keys() & job.here
        else:
            yield from _phases_elsewhere(job, name, elsewhere, at)
            leave = job.elsewhere.keys() - ({unit.name for unit in elsewhere} - job.here)
        for left in sorted(leave):
            del job.elsewhere[left]
            if left not in job.units:
                yield UnitLeft(at=at, job=name, unit=left)

    def _happened(self, syncer: _Syncer, name: str, report: Report) -> Iterator[Line]:
        for entry in report.entries:
            if entry.number <= syncer.last:  # a new stream of the same process begins with all entries that it still has
                continue
            at = self._at(entry.at)
            if entry.number > syncer.last + 1:
                yield Missing(at=at, job=name, entries=entry.number - syncer.last - 1)
            syncer.last = entry.number
            what = entry.what
            if isinstance(what, LocalStep):
                yield StepTaken(
                    at=at,
                    job=name,
                    unit=what.unit,
                    attempt=what.attempt,
                    step=what.step,
                    seconds=_rounded(what.seconds),
                    loss=_rounded(what.loss),
                    samples=what.samples,
                    tokens=what.tokens,
                )
            else:
                yield Merged(at=at, job=name, t=what.t, fragment=what.fragment, units=what.units, loss=_rounded(what.loss))

    def _figures(self, job: _Job, name: str, report: Report) -> Iterator[Line]:
        at = self._at(report.clock)
        units = {
            unit.unit: UnitFigures(tokens=unit.tokens, received_bytes=unit.received_bytes, sent_bytes=unit.sent_bytes)
            for unit in report.units.values()
        }
        figures = Figures(
            at=at,
            job=name,
            syncer=report.incarnation,
            t=report.t,
            tokens=report.tokens,
            samples=report.samples,
            loss=_rounded(report.loss),
            units=units,
        )
        if job.figures is None or figures.model_copy(update={"at": job.figures.at}) != job.figures:
            job.figures = figures
            yield figures


def _if_new(job: _Job, written: dict[str, PhaseBegan], began: PhaseBegan) -> Iterator[Line]:
    """Yield the line if it says something else than the unit's last one among the `written`."""
    old = written.get(began.unit)
    if old is None or began.model_copy(update={"at": old.at}) != old:
        written[began.unit] = began
        yield began
    if began.phase is Phase.TRAINING:
        job.trained.add(began.unit)


def _phases_elsewhere(job: _Job, name: str, units: Iterable[UnitElsewhere], at: float) -> Iterator[Line]:
    for unit in units:
        if unit.name not in job.here:
            trained = unit.trained or unit.name in job.trained
            yield from _if_new(job, job.elsewhere, unit._replace(trained=trained).began(name, at))


def _rounded(value: float | None) -> float | None:
    """Round to seven digits: more are noise, and would fill a file of limited size."""
    return None if value is None else float(f"{value:.7g}")


def _name(key: JobKey) -> str:
    return "/".join(key)
