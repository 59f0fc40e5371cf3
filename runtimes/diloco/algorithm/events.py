"""What happens to a job, as plain values without arrays: the whole input of a `Driver`. `at` is in seconds on the driver's clock, which
never goes back.

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
    """Steps of this learner so far. One that is not larger than the last is not new."""
    steps: tuple[int, ...]
    """Per fragment, local steps since the learner adopted it last."""
    tokens: tuple[int, ...]
    """Per fragment, tokens of those steps."""
    step_seconds: float
    """Duration of the last step, seconds; not finite or <= 0: unknown."""


@dataclass(frozen=True, slots=True)
class Marks:
    """How far a session had trained when the values of a push were read. The coordinator carries them to the merge, for the ledger."""

    session: str = ""
    """Names the session in the ledger."""
    samples: int = 0
    """Samples of the session's leases, from its first."""
    tokens: int = 0
    """Tokens of those samples."""
    steps: int = 0
    """Local steps of the session."""
    seen: int = field(default=0, compare=False)
    """The last outer step that the learner knew of, as its newest report says. The portions of one answer, one for each rank, may come with
    a report between them, and are of one answer all the same."""


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
    """Make a dataclass whose objects never change, which mypy watches over. Where Python watches, making one takes three times as long, and
    an outer step of 512 units makes 3,000."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


@value
class Seeded:
    """The job has parameters: version 0 of every fragment."""

    at: float
    norms: tuple[float, ...]
    """Per fragment, the Euclidean norm of its value."""


@value
class Joined:
    """The unit has the current parameters and begins to train. One that is joined already joins anew, as another process."""

    at: float
    unit: str


@value
class Left:
    """The unit is gone, for any reason."""

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
    """The unit takes no steps until `until`, on purpose; a time in the past: it goes on."""

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
    """An answer to a pull is here, and nothing of it is decoded. `Decode` or `Refused` follows."""

    at: float
    unit: str
    offer: Offer


@value
class Usable:
    """What `Decode` asked for is decoded, and its outer gradient lies beside the parameters. `Refused` follows if the unit has left."""

    at: float
    unit: str
    offer: Offer
    norm: float
    """Euclidean, of the outer gradient."""
    countable_tokens: float = math.inf
    """At most so many of its tokens count in its weight."""


@value
class Unusable:
    """What `Decode` asked for cannot be used, or will not come."""

    at: float
    unit: str
    offer: Offer


@value
class Computed:
    """What `Close` ordered at outer step t is computed, and lies beside the parameters. `Merged` and `Broadcast` follow, or `Skipped`."""

    at: float
    t: int
    finite: bool
    """Whether the update can be taken."""


@value
class EndsAt:
    """The job ends at outer step t, or at the present one if that is later; never later than it would have before."""

    at: float
    t: int


@value
class Tick:
    """Time to decide. Comes after every other event, and again until no effect follows. One without effects counts, too: it notes since
    when the quorum is there."""

    at: float


Event = Tick | Reported | Offered | Usable | Computed | Lives | Unusable | Paused | Joined | Left | Seeded | EndsAt
