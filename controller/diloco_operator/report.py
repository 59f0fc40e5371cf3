"""The report of a job's syncer as plain data. `telemetry` makes it from the wire; reconcile reads it. Pure.

See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from diloco_operator.accelerators import MAX_NAME, NAME_PATTERN
from diloco_operator.api.goodput import MAX_KINDS, MOST_HOURS
from diloco_operator.api.losses import LossPoint
from diloco_operator.api.rules import MAX_PART_UNITS
from diloco_operator.api.unit_figures import UnitFigures
from diloco_operator.kube.fields import MOST, clip


class UnitPhase(enum.StrEnum):
    """The newest attempt of a unit, as the syncer sees it."""

    JOINING = "Joining"
    CONTRIBUTING = "Contributing"
    DISCONNECTED = "Disconnected"
    DONE = "Done"
    REFUSED = "Refused"


class RecoveryPhase(enum.Enum):
    """How far a new process is with its first state."""

    WANTED = "Wanted"
    COPYING = "Copying"
    OVER = "Over"


@dataclass(frozen=True, slots=True)
class Recovery:
    """How a new process comes to its first state, as on the wire. Each field `…_seconds` is the time of one phase, in their order."""

    phase: RecoveryPhase
    unit: str
    """The donor, "" if there is none."""
    why: str
    """Why there is no donor, or why the last one could not give its state."""
    stored_at: int | None
    """The outer step at which the unit itself stored the state that it takes. None if it takes a donor's."""
    steps: int
    """Local steps behind the state, 0 if that is not known."""
    bytes: int
    start_seconds: float
    parameters_seconds: float
    donor_seconds: float
    wait_seconds: float
    copy_seconds: float
    first_step_seconds: float


@dataclass(frozen=True, slots=True)
class UnitReport(UnitFigures):
    """What the syncer says about a unit: its figures, and what the operator needs to decide."""

    unit: str
    attempt: int
    phase: UnitPhase
    contributions: int = 0
    seconds_since_heard: float = 0.0
    """Seconds since a step, a contribution, its join, the end of a pause, or the start of the syncer, when the report was made."""
    loss: float | None = None
    message: str = ""
    local_step: int = 0
    step_seconds: float = 0.0
    recover_seconds: float = 0.0
    resting_seconds: float = 0.0
    """Seconds since the syncer told the unit to rest until the quorum trains, 0 if it trains."""
    seconds_since_alive: float = 0.0
    """Seconds since its process was heard from in any way, when the report was made."""
    pause: str = ""
    """Why its program takes no steps for a while, in its own words; "" if it has announced no pause."""
    pause_left: float = 0.0
    """Seconds that the pause may still take, when the report was made."""
    holds_parameters: bool = False
    """The process of this attempt has taken the job's parameters, and may take its first step."""
    left: bool = False
    """The program of this attempt left its loop before the job was done."""
    received_bytes: int = 0
    """Data in chunks from the unit, since this process of the syncer began."""
    sent_bytes: int = 0
    """Data in chunks to the unit, likewise."""
    round_trip_seconds: float = 0.0
    """The shortest of its streams lately. 0 if that is not known."""
    recovery: Recovery | None = None
    """How the process of this attempt comes to its state. None if it does not say."""
    given: int = 0
    """How often the unit was named as a donor, since this process of the syncer began."""


_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
_PATH_LIMIT = 253


def snapshot_path(text: str) -> str:
    """Return a path within the syncer's volume, as a syncer writes it; "" for anything else: people and commands use it."""
    return text if len(text) <= _PATH_LIMIT and _PATH.fullmatch(text) else ""


class Ending(NamedTuple):
    """Why a job ends before its last step."""

    by: str
    """`contract.ENDED_BY_TOKENS` or `ENDED_BY_PROGRAM`."""
    t: int
    """The outer step at which it ends."""


class FaultKind(enum.StrEnum):
    """Why the operator does not read a syncer's reports."""

    TOO_LARGE = "TooLarge"
    TOO_MANY_FIELDS = "TooManyFields"
    MALFORMED = "Malformed"


class ReportFault(NamedTuple):
    """What is wrong with the reports of a syncer, which is left alone for a while."""

    kind: FaultKind
    text: str
    """For people, the same for every report with this fault."""


@dataclass(frozen=True, slots=True)
class LocalStep:
    unit: str
    attempt: int
    step: int
    """Number within this process. After a silence earlier numbers may be missing."""
    seconds: float | None
    """As the learner measured it, without waits. None if it did not say."""
    loss: float | None
    samples: int
    """Samples that were trained in this session, up to this step."""
    tokens: int
    """Tokens that were trained in this session, up to this step."""


@dataclass(frozen=True, slots=True)
class Merge:
    """An outer step has merged one fragment."""

    t: int
    fragment: int
    units: tuple[str, ...]
    """Units whose contributions were merged. Empty if the fragment stays as it was."""
    loss: float | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened to the job, as the syncer recorded it."""

    number: int
    """From 1 in each process of the syncer, without gaps."""
    at: float
    """Seconds, on the clock of that process."""
    what: LocalStep | Merge


class Link(NamedTuple):
    """The highest rates lately of all units of a cluster together."""

    received_bytes_per_second: int
    sent_bytes_per_second: int
    """0: not known."""


@dataclass(frozen=True, slots=True)
class PartState:
    """What status of a part's DiLoCoJob says."""

    state: str = ""
    message: str = ""
    """Why it is in that state."""
    productive_share: float | None = None
    """Training in all time of its units, 0 to 1. None if it does not say."""
    accelerator_hours: Mapping[str, float] = field(default_factory=dict)
    """Accelerator -> hours for which its units held one of it."""
    attempts: Mapping[str, int] = field(default_factory=dict)
    """Unit -> its newest attempt, also one that has never joined."""

    @classmethod
    def of(
        cls,
        state: str,
        message: str,
        productive_share: object,
        accelerator_hours: Mapping[str, object],
        attempts: Mapping[str, object],
    ) -> PartState:
        """Take what another cluster says, which may be anything: what is no share, no hours or no attempt is left out."""
        hours = {
            kind: amount
            for kind, value in accelerator_hours.items()
            if len(kind) <= MAX_NAME and re.fullmatch(NAME_PATTERN, kind) and (amount := _number(value, MOST_HOURS)) is not None
        }
        share = _number(productive_share, 1.0)
        newest = {
            unit: attempt
            for unit, attempt in attempts.items()
            if len(unit) <= _LONGEST_UNIT and type(attempt) is int and 0 < attempt <= MOST
        }
        return cls(
            clip(state, _LONGEST_STATE),
            clip(message),
            share,
            dict(itertools.islice(hours.items(), MAX_KINDS)),
            dict(itertools.islice(newest.items(), MAX_PART_UNITS)),
        )


def _number(value: object, most: float) -> float | None:
    """Return a number from 0 to `most`, None for everything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most else None


_LONGEST_STATE = 63
_LONGEST_UNIT = 63


class ToldPart(NamedTuple):
    state: PartState
    told_at: float
    """When its operator told the syncer, on this operator's clock, in seconds."""


@dataclass(frozen=True, slots=True)
class Report:
    """`received_at` is on the operator's clock, in seconds. A report older than a minute says nothing about now."""

    received_at: float
    t: int
    steps: int
    tokens: int = 0
    tokens_per_second: float = 0.0
    loss: float | None = None
    held_out_loss: float | None = None
    step_seconds: float = 0.0
    """Seconds of an outer step lately, with all that it waited for; 0 if that is not known yet."""
    seeded: bool = False
    parameters: int = 0
    """Number of parameters that are exchanged, 0 until a learner has joined."""
    done: bool = False
    """The last step is reached, and the final snapshot is durable."""
    snapshot_t: int = -1
    snapshot: str = ""
    """Folder of the newest durable snapshot within the syncer's volume, "" if there is none."""
    snapshot_copied: bool = False
    """That snapshot is below `training.checkpoint.uri` too."""
    snapshot_error: str = ""
    message: str = ""
    draining: bool = False
    pod_uid: str = ""
    """Uid of the syncer's pod that sent it. A job that starts again, or whose syncer was replaced, has another pod."""
    connected_at: float = 0.0
    """When the connection that it came by gave its first report, on the operator's clock. The syncer has run since then at least."""
    losses: tuple[LossPoint, ...] = ()
    """Training loss over outer steps, steps ascending, at most contract.MOST_LOSS_POINTS. Empty if the syncer sends none."""
    held_out_losses: tuple[LossPoint, ...] = ()
    """Held-out loss likewise, at most contract.MOST_HELD_OUT_POINTS."""
    token_budget: int = 0
    """0 if the syncer knows of none."""
    ending: Ending | None = None
    """None if the job ends at its last step."""
    contributions: int = 0
    """Contributions that were merged, of all units."""
    work_refused: int = 0
    """Contributions that were refused for what they are, not because they came late or their unit had left."""
    cosine: float | None = None
    """Mean cosine between two contributions to a merge, -1..1, moving average. None until two were merged."""
    units: Mapping[str, UnitReport] = field(default_factory=dict)
    links: Mapping[str, Link] = field(default_factory=dict)
    """By the name of the cluster as its units say it: a unit can give another cluster's."""
    parts: Mapping[str, ToldPart] = field(default_factory=dict)
    """What operators of parts have told this process of the syncer."""
    samples: int = 0
    """Committed samples of the whole job: distinct sequence numbers."""
    incarnation: str = ""
    """Names the process of the syncer."""
    clock: float = 0.0
    """Clock of that process when it made the report, seconds."""
    entries: tuple[Entry, ...] = ()
    """What happened since the report before, for a program that keeps a record."""
