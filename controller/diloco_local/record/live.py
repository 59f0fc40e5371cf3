"""The last hour of a running job, kept in memory as lines of a record. Pure.

Phases, merges and figures are kept. Steps are left out: there are many, and the figures show what they did to the job.

See docs/decisions/0216-figures-and-plots.md. See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from diloco_operator.api.state import OVER, syncer_runs
from diloco_operator.api.status import Status
from diloco_operator.reconcile.units.states import phase_of

from diloco_local.record.elsewhere import of_status
from diloco_local.record.history import JobHistory
from diloco_local.record.lines import FaultFired, Figures, JobSeen, Merged, PhaseBegan, Recovered, UnitLeft
from diloco_local.record.lines import Line as RecordLine
from diloco_local.record.reading import history_of

WINDOW = 3600.0
"""Seconds of history that are kept."""
_MOST_LINES = 20_000
_FIGURES_APART = 5.0
"""Seconds between two lines of figures that are kept."""
_KEPT = (JobSeen, PhaseBegan, UnitLeft, Merged, Figures, Recovered, FaultFired)


class LiveHistory:
    """The last hour of one job. From the time before, it keeps only what each unit did when the hour began."""

    def __init__(self, job: str) -> None:
        """`job`: namespace/name."""
        self._job = job
        self._lines: deque[RecordLine] = deque()
        self._phases: dict[str, PhaseBegan] = {}
        """The phase of each unit when the oldest kept line was written."""
        self._seen: JobSeen | None = None
        self._figures_at = float("-inf")
        self._newest = float("-inf")

    def add(self, *lines: RecordLine) -> None:
        """Take the lines of this job, and ignore the lines of others."""
        for line in lines:
            if not isinstance(line, _KEPT) or line.job != self._job:
                continue
            if isinstance(line, Figures):
                if abs(line.at - self._figures_at) < _FIGURES_APART:
                    continue
                self._figures_at = line.at
            self._lines.append(line)
            self._newest = max(self._newest, line.at)
        while self._lines and (len(self._lines) > _MOST_LINES or self._lines[0].at < self._newest - WINDOW):
            self._forget(self._lines.popleft())

    def history(self, now: float) -> JobHistory:
        """The history up to `now` (seconds since the epoch), or up to the end of the job if that was earlier."""
        seen = next((line for line in reversed(self._lines) if isinstance(line, JobSeen)), self._seen)
        end = seen.at if seen is not None and seen.state in OVER else now
        start = end - WINDOW
        before: list[RecordLine] = [*self._phases.values(), *([self._seen] if self._seen is not None else [])]
        lines = [line.model_copy(update={"at": max(start, line.at)}) for line in (*before, *self._lines)]
        lines.sort(key=lambda line: line.at)
        until = (seen or JobSeen(at=end, job=self._job, state="", steps=0)).model_copy(update={"at": end})
        return history_of([*lines, until]).jobs[0]

    def _forget(self, line: RecordLine) -> None:
        if isinstance(line, PhaseBegan):
            self._phases[line.unit] = line
        elif isinstance(line, UnitLeft):
            self._phases.pop(line.unit, None)
        elif isinstance(line, JobSeen):
            self._seen = line


def before(job: str, status: Status) -> Iterator[PhaseBegan]:
    """Lines for the time before the first status of a job was seen: that status says since when each unit is in its phase."""
    for unit in status.units:
        if unit.since is not None:
            yield PhaseBegan(
                at=unit.since, job=job, unit=unit.name, phase=phase_of(unit), state=unit.state, attempt=unit.attempt, slice=unit.slice,
                reason=unit.reason,
            )  # fmt: skip
    if syncer_runs(status.state or ""):
        for _, reported in status.elsewhere:
            elsewhere = of_status(reported)
            if elsewhere is not None and reported.since is not None:
                yield elsewhere.began(job, reported.since)
