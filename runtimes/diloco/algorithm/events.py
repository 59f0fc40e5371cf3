"""The inputs and outputs of the core, as data."""

from __future__ import annotations

import enum
from collections.abc import Buffer, Mapping
from dataclasses import dataclass, field

from diloco.algorithm.codec import Coding


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a learner reports after a local step. A later report replaces an earlier one."""

    local_step: int
    """Steps of this learner so far. One that is not larger than the last is not new."""
    steps: tuple[int, ...]
    """Per fragment, local steps since the learner adopted it last."""
    tokens: tuple[int, ...]
    """Per fragment, tokens of those steps."""
    step_seconds: float
    """Duration of the last step, seconds; not finite or <= 0: unknown."""


@dataclass(frozen=True, slots=True)
class Push:
    """A learner's answer to a `Pull`."""

    fragment: int
    t: int
    """The outer step of the pull."""
    coding: Coding
    base: int
    """Version of the fragment that a delta is coded against; ignored for FLOAT32."""
    payload: Buffer = field(repr=False)
    """In `coding`; may be a view, as `Core.push` keeps no reference."""
    steps: int
    """Local steps since the learner adopted the fragment last."""
    tokens: int


class Reason(enum.StrEnum):
    """Why a contribution was refused. The values are the keys under which refusals are counted."""

    NOT_ASKED = "NotAsked"
    """The unit was not asked for this fragment at this outer step, or is not joined."""
    STALE = "StaleRound"
    """The outer step was merged without this answer, which came too late."""
    DUPLICATE = "Duplicate"
    """This unit's answer was accepted before."""
    WRONG_BASE = "WrongBase"
    """A delta against another version than the syncer's. It is never decoded."""
    WRONG_CODING = "WrongCoding"
    """A coding other than FLOAT32 and the job's."""
    BAD_SIZE = "BadSize"
    """The payload has another size than the fragment in this coding."""
    NON_FINITE = "NonFinite"
    """NaN or infinity."""
    NO_WORK = "NoWork"
    """No step or no token since the fragment was adopted: nothing to merge."""


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: Reason
    message: str
    """Human-readable: unit, fragment, outer step, and what was wrong."""


@dataclass(frozen=True, slots=True)
class Pull:
    """Ask these units for the fragment."""

    t: int
    fragment: int
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """For reports: outer step t merged the contributions of these units with these weights (tokens^2/steps). Comes before its Broadcast."""

    t: int
    fragment: int
    units: tuple[str, ...]
    """Sorted, which is the order of the sum."""
    weights: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send to every joined unit: version `t` of the fragment. A unit that does not hold version `base` gets `Core.value` in FLOAT32."""

    t: int
    fragment: int
    base: int
    coding: Coding
    payload: memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Skipped:
    """For reports: outer step t left the fragment unchanged; its next exchange is H steps later."""

    t: int
    fragment: int
    message: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Make `Core.state()` durable. Its arrays are never written to, so this may run in parallel with further steps."""

    t: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Step T is reached and every fragment's last broadcast is out. The caller takes the final snapshot now."""

    t: int


Action = Pull | Merged | Broadcast | Skipped | Snapshot | Finish
