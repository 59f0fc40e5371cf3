"""What happens to a job, as plain values without arrays: the whole input of a `Driver`.

`at` is in seconds on the driver's clock, which never goes back.

See docs/decisions/0148-driver-and-threads.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import dataclass_transform

from diloco.algorithm.codec import Coding


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a learner reports after a local step. A later report replaces an earlier one."""

    local_step: int
    """Steps of this learner so far. If it is not larger than in the last report, there is no new step."""
    steps: tuple[int, ...]
    """For each fragment, local steps since the learner adopted it last."""
    tokens: tuple[int, ...]
    """For each fragment, tokens of those steps."""
    step_seconds: float
    """Duration of the last step in seconds; unknown if not finite or <= 0."""


@dataclass(frozen=True, slots=True)
class Marks:
    """How far a session had trained when the values of a push were read. The coordinator carries them to the merge, for the ledger."""

    session: str = ""
    """The session's name in the ledger."""
    samples: int = 0
    """Samples trained, counted from the beginning of the session's first lease."""
    tokens: int = 0
    """Tokens of those samples."""
    steps: int = 0
    """Local steps of the session."""
    seen: int = field(default=0, compare=False)
    """The last outer step that the learner knew, by its newest report. Not compared, because a report may come between the portions of one
    answer, one for each rank."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A learner's answer to a `Pull` without its payload."""

    fragment: int
    t: int
    """The outer step of the pull."""
    coding: Coding
    base: int
    """Version of the fragment that a delta is coded against; ignored for FLOAT32."""
    steps: int
    """Local steps since the learner adopted the fragment last."""
    tokens: int
    """Tokens of those steps."""
    marks: Marks = Marks()


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value[T](cls: type[T]) -> type[T]:
    """Make a dataclass whose objects never change. mypy checks this; with `frozen=True` Python would, and making an object would take three
    times as long. An outer step of 512 units makes 3,000 of them."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


@value
class Seeded:
    """The job has parameters: version 0 of every fragment."""

    at: float
    norms: tuple[float, ...]
    """The Euclidean norm of each fragment's value."""


@value
class Joined:
    """The unit has the current parameters and begins to train. If it is joined already, this is a new process of it."""

    at: float
    unit: str


@value
class Left:
    """The unit is gone."""

    at: float
    unit: str


@value
class Reported:
    """The unit has taken a local step."""

    at: float
    unit: str
    metadata: Metadata


@value
class Paused:
    """The unit has announced that it takes no steps until `until`. A time in the past ends the pause."""

    at: float
    unit: str
    until: float


@value
class Lives:
    """The unit's process says that it is alive, whatever its program does."""

    at: float
    unit: str


@value
class Offered:
    """An answer to a pull has come and is not decoded. `Decode` or `Refused` follows."""

    at: float
    unit: str
    offer: Offer


@value
class Usable:
    """The answer of a `Decode` is decoded, and the shard has its outer gradient. `Refused` follows if the unit has left."""

    at: float
    unit: str
    offer: Offer
    norm: float
    """Euclidean norm of the outer gradient."""
    countable_tokens: float = math.inf
    """The most tokens that count in the answer's weight."""


@value
class Unusable:
    """The answer of a `Decode` cannot be used, or will not come."""

    at: float
    unit: str
    offer: Offer


@value
class Computed:
    """The merge of the `Close` of outer step t is computed, and the shard has the update. `Merged` and `Broadcast` follow, or `Skipped`."""

    at: float
    t: int
    finite: bool
    """Whether the update is finite. If not, the fragment keeps its value."""


@value
class EndsAt:
    """The job ends at outer step t, or at the present one if that is later. This never makes a job longer."""

    at: float
    t: int


@value
class Tick:
    """Time to decide. Comes after every other event, and again until no effect follows. A tick without effects matters too: with it the
    coordinator notes since when the quorum is there."""

    at: float


Event = Tick | Reported | Offered | Usable | Computed | Lives | Unusable | Paused | Joined | Left | Seeded | EndsAt
