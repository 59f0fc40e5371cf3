"""A record by job, on one clock: the seconds in which a command ran, without the pauses between two commands. Pure.

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
    """From one local step of a unit to its next one on record, waits included."""

    start: float
    end: float
    steps: int
    """1; more after a silence."""

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Recovery(NamedTuple):
    at: float
    """When it was on record that the unit contributes again."""
    seconds: float
    """Since its loss, as in the job's status."""


@dataclass(slots=True)
class UnitHistory:
    name: str
    spans: list[Span] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    """Between the steps of one attempt, so its first step, which compiles, is not among them."""
    steps: int = 0
    """Local steps of all attempts, as far as the record knows."""
    first_steps: list[float] = field(default_factory=list)
    """When each attempt had done its first one on record."""
    recoveries: list[Recovery] = field(default_factory=list)
    tokens: int = 0
    """Committed."""
    received_bytes: int = 0
    """From the unit."""
    sent_bytes: int = 0
    """To the unit."""

    @property
    def seconds(self) -> float:
        """From its first appearance to the end of the job, or until it was given up."""
        return sum(span.seconds for span in self.spans if span.phase.use is not None)

    def share(self, phase: Phase) -> float:
        """Return the phase's share of these seconds, 0..1."""
        total = self.seconds
        return sum(span.seconds for span in self.spans if span.phase is phase) / total if total else 0.0

    def phase_at(self, at: float) -> Phase | None:
        """Return the phase; None: it was not there."""
        return next((span.phase for span in reversed(self.spans) if span.start <= at <= span.end), None)


@dataclass(frozen=True, slots=True)
class Fault:
    at: float
    unit: str
    """Or `syncer`."""
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
    """Data of all exchanges up to `at`, in bytes."""

    at: float
    received: int
    sent: int


@dataclass(slots=True)
class SampleSize:
    """How many tokens a sample has, as the units' steps say."""

    samples: int = 0
    tokens: int = 0
    """The tokens of the first step on record; 0 samples: none yet."""
    uneven: bool = False
    """Samples differ."""
    own_data: bool = False
    """A program feeds itself, and counts no samples."""

    def add(self, samples: int, tokens: int) -> None:
        """Add the totals of a session after some step."""
        if not samples:
            self.own_data = self.own_data or tokens > 0
        elif not self.samples:
            self.samples, self.tokens = samples, tokens
        elif tokens * self.samples != samples * self.tokens:
            self.uneven = True


@dataclass(slots=True)
class JobHistory:
    """All times are in seconds from its first line on record."""

    name: str
    """namespace/name."""
    state: str = ""
    """In the end."""
    outer_steps: int = 0
    """The outer steps of the whole job."""
    t: int = 0
    """Outer steps done."""
    tokens: int = 0
    samples: int = 0
    """Committed, and so are `tokens`."""
    loss: float | None = None
    """The loss of the training, in the end."""
    held_out_loss: float | None = None
    units: dict[str, UnitHistory] = field(default_factory=dict)
    merges: list[Merge] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    sample_size: SampleSize = field(default_factory=SampleSize)
    missing: int = 0
    """Entries that its syncer had forgotten before they were asked for."""
    runs: list[float] = field(default_factory=list)
    """When each further command began."""
    end: float = 0.0
    """When it was over, or the last command ended."""
    object: dict[str, Any] | None = None
    """The job as the API server had it last; None: it is not on record."""
    object_at: float = 0.0
    """When it had it, seconds since the epoch."""

    @property
    def last_run(self) -> float:
        """When the last command began."""
        return self.runs[-1] if self.runs else 0.0

    @property
    def title(self) -> str:
        """Its name, with the namespace where that is not the usual one."""
        return self.name.removeprefix("default/")

    def share(self, phase: Phase) -> float:
        """Return the phase's share of the time of all units, 0..1."""
        total = sum(unit.seconds for unit in self.units.values())
        return sum(unit.share(phase) * unit.seconds for unit in self.units.values()) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class History:
    began: float
    """Time of the first line on record, seconds since the epoch."""
    seconds: float
    """In which a command ran."""
    command: str
    """The last one."""
    ending: str
    """How the last command ended; "": it was killed, or runs yet."""
    jobs: tuple[JobHistory, ...]
