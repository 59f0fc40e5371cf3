"""A record by job, on one clock, which counts seconds only while a command ran. Pure.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from diloco_operator.api.phases import Phase


@dataclass(frozen=True, slots=True)
class Span:
    """A unit is in one phase from `start` to `end`."""

    start: float
    end: float
    phase: Phase
    attempt: int

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Gap:
    """The time from one local step of a unit to its next one on record, waits included."""

    start: float
    end: float
    steps: int
    """1. More if the record lacks steps in between."""

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Recovery(NamedTuple):
    at: float
    """When the unit contributed again, as the record has it."""
    seconds: float
    """Time from the loss, as in the job's status."""


@dataclass(slots=True)
class UnitHistory:
    name: str
    spans: list[Span] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    """Gaps between the steps of one attempt. So an attempt's first step, which compiles, is not among them."""
    steps: int = 0
    """Local steps of all attempts, as far as the record knows."""
    first_steps: list[float] = field(default_factory=list)
    """When each attempt had done its first step on record."""
    recoveries: list[Recovery] = field(default_factory=list)
    tokens: int = 0
    """Committed tokens."""
    received_bytes: int = 0
    """Bytes from the unit to the syncer."""
    sent_bytes: int = 0
    """Bytes from the syncer to the unit."""

    @property
    def seconds(self) -> float:
        """Time from its first appearance until the job ended, or until the unit was given up."""
        return sum(span.seconds for span in self.spans if span.phase.use is not None)

    def share(self, phase: Phase) -> float:
        """The phase's share of `seconds`, 0..1."""
        total = self.seconds
        return sum(span.seconds for span in self.spans if span.phase is phase) / total if total else 0.0

    def phase_at(self, at: float) -> Phase | None:
        """The unit's phase at this time. None if the job did not have the unit then."""
        return next((span.phase for span in reversed(self.spans) if span.start <= at <= span.end), None)


@dataclass(frozen=True, slots=True)
class Fault:
    at: float
    unit: str
    """A unit, or `syncer`."""
    signal: str
    step: int
    """Outer step."""


@dataclass(frozen=True, slots=True)
class Merge:
    at: float
    t: int
    units: tuple[str, ...]
    loss: float | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that the syncer has received and sent in all exchanges up to `at`."""

    at: float
    received: int
    sent: int


@dataclass(slots=True)
class SampleSize:
    """How many tokens a sample has, according to the units' steps."""

    samples: int = 0
    tokens: int = 0
    """The totals of the first step on record. 0 samples if there is none yet."""
    uneven: bool = False
    """Samples have different numbers of tokens."""
    own_data: bool = False
    """A program brings its own data, and counts no samples."""

    def add(self, samples: int, tokens: int) -> None:
        """Take the totals of a session after one of its steps."""
        if not samples:
            self.own_data = self.own_data or tokens > 0
        elif not self.samples:
            self.samples, self.tokens = samples, tokens
        elif tokens * self.samples != samples * self.tokens:
            self.uneven = True


@dataclass(slots=True)
class JobHistory:
    """One job. All times are in seconds from its first line on record."""

    name: str
    """namespace/name."""
    state: str = ""
    """The job's last state on record."""
    outer_steps: int = 0
    """The outer steps of the whole job."""
    t: int = 0
    """Outer steps done."""
    tokens: int = 0
    """Committed tokens."""
    samples: int = 0
    """Committed samples."""
    loss: float | None = None
    """The last training loss."""
    held_out_loss: float | None = None
    units: dict[str, UnitHistory] = field(default_factory=dict)
    merges: list[Merge] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    sample_size: SampleSize = field(default_factory=SampleSize)
    missing: int = 0
    """Entries that the syncer had forgotten before it was asked for them."""
    runs: list[float] = field(default_factory=list)
    """When each further command began."""
    end: float = 0.0
    """When the job was over, or the last command ended."""
    object: dict[str, Any] | None = None
    """The job as the API server had it last. None if the record does not have it."""
    object_at: float = 0.0
    """When the API server had `object`, seconds since the epoch."""

    @property
    def last_run(self) -> float:
        """When the last command began."""
        return self.runs[-1] if self.runs else 0.0

    @property
    def title(self) -> str:
        """The job's name, with its namespace unless that is `default`."""
        return self.name.removeprefix("default/")

    def share(self, phase: Phase) -> float:
        """The phase's share of the time of all units, 0..1."""
        total = sum(unit.seconds for unit in self.units.values())
        return sum(unit.share(phase) * unit.seconds for unit in self.units.values()) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class History:
    began: float
    """Time of the first line on record, seconds since the epoch."""
    seconds: float
    """Time in which a command ran."""
    command: str
    """The last command."""
    ending: str
    """How the last command ended. "" if it was killed or still runs."""
    jobs: tuple[JobHistory, ...]
