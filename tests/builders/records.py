"""Records of runs, line by line, so that a test reads as what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from diloco_local.record.file import RecordWriter
from diloco_local.record.history import History, JobHistory
from diloco_local.record.lines import (
    FaultFired,
    Figures,
    JobSeen,
    Line,
    Merged,
    ObjectSeen,
    PhaseBegan,
    Recovered,
    RunBegan,
    RunEnded,
    StepTaken,
    UnitFigures,
)
from diloco_local.record.reading import history_of
from diloco_operator.api.phases import Phase

BEGAN = 1_700_000_000.0
"""When the first run begins, seconds since the epoch. The seconds of all methods count from here."""
TOKENS = 64
"""Tokens of each sample."""


class ARecord:
    """The record of one job, whose units train 8 samples a step."""

    def __init__(self, job: str = "default/lm") -> None:
        self.job = job
        self.lines: list[Line] = []
        self.began(0.0)

    def began(self, at: float, command: str = "diloco up job.yaml") -> Self:
        return self.add(RunBegan(at=BEGAN + at, command=command))

    def ended(self, at: float, ending: str = "Complete") -> Self:
        return self.add(RunEnded(at=BEGAN + at, ending=ending))

    def state(self, at: float, state: str, held_out_loss: float | None = None) -> Self:
        return self.add(JobSeen(at=BEGAN + at, job=self.job, state=state, steps=100, held_out_loss=held_out_loss))

    def object(self, at: float, obj: dict[str, Any]) -> Self:
        """The API server has the job like this."""
        return self.add(ObjectSeen(at=BEGAN + at, job=self.job, object=obj))

    def phase(self, at: float, unit: str, phase: Phase, attempt: int = 1) -> Self:
        return self.add(PhaseBegan(at=BEGAN + at, job=self.job, unit=unit, phase=phase, state="Training", attempt=attempt))

    def train(self, *units: str, at: float = 0.0) -> Self:
        """All of them train from then on."""
        for unit in units:
            self.phase(at, unit, Phase.TRAINING)
        return self

    def steps(self, unit: str, ends: Sequence[float], attempt: int = 1, first: int = 1, tokens: int = TOKENS) -> Self:
        """A local step ends at each of these seconds; `tokens`: of a sample."""
        for number, at in enumerate(ends, first):
            samples = 8 * number
            self.add(
                StepTaken(
                    at=BEGAN + at, job=self.job, unit=unit, attempt=attempt, step=number, loss=2.0, samples=samples, tokens=samples * tokens
                )
            )
        return self

    def merge(self, at: float, t: int, *units: str, loss: float | None = 2.0) -> Self:
        return self.add(Merged(at=BEGAN + at, job=self.job, t=t, fragment=t % 4, units=units, loss=loss))

    def figures(
        self, at: float, *, samples: int, tokens: int, syncer: str = "a", units: Mapping[str, tuple[int, int]] | None = None
    ) -> Self:
        """`units`: of each (bytes received, bytes sent)."""
        figures = {name: UnitFigures(received_bytes=received, sent_bytes=sent) for name, (received, sent) in (units or {}).items()}
        return self.add(Figures(at=BEGAN + at, job=self.job, syncer=syncer, t=10, tokens=tokens, samples=samples, loss=2.0, units=figures))

    def fault(self, at: float, unit: str, signal: str = "KILL", step: int = 81) -> Self:
        return self.add(FaultFired(at=BEGAN + at, job=self.job, unit=unit, signal=signal, step=step))

    def recovered(self, at: float, unit: str, seconds: float) -> Self:
        return self.add(Recovered(at=BEGAN + at, job=self.job, unit=unit, attempt=2, seconds=seconds))

    def add(self, line: Line) -> Self:
        self.lines.append(line)
        return self

    def history(self) -> History:
        return history_of(self.lines)

    def of_job(self) -> JobHistory:
        (job,) = self.history().jobs
        return job

    def write(self, directory: Path) -> Path:
        """As the file of this state directory."""
        writer = RecordWriter(directory)
        writer.write(*self.lines)
        writer.close()
        return directory


def a_killed_unit() -> ARecord:
    """Record three units that take a step a second; u-2 is killed at second 10 and contributes again 4.5 s later. Then the job is over."""
    record = ARecord().state(0, "Training").train("u-0", "u-1", "u-2")
    seconds = [float(second) for second in range(1, 21)]
    record.steps("u-0", seconds)
    record.steps("u-1", [at + 0.2 if at == 12 else at for at in seconds])  # its step in second 12 takes 1.2 s
    record.steps("u-2", seconds[:10])
    for t, at in enumerate(seconds, 1):
        lost = 10 < at <= 14
        record.merge(at + 0.1, t, *(("u-0", "u-1") if lost else ("u-0", "u-1", "u-2")), loss=4 - 0.1 * t)
    record.fault(10.0, "u-2").phase(10.05, "u-2", Phase.RECOVERY).phase(14.0, "u-2", Phase.TRAINING, attempt=2)
    record.steps("u-2", seconds[14:], attempt=2).recovered(15.2, "u-2", 4.5)
    record.figures(20.5, samples=400, tokens=400 * TOKENS, units={"u-0": (1000, 4000), "u-1": (1000, 4000), "u-2": (800, 5000)})
    return record.state(21.0, "Complete", held_out_loss=1.9).ended(22.0)
