"""What a `Driver` wants done, as plain values; only `Broadcast` carries a payload.

See docs/decisions/0148-driver-and-threads.md.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from diloco.algorithm.codec import Coding
from diloco.algorithm.events import Marks, Offer, value


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
    IMPOSSIBLE = "Impossible"
    """Counters that cannot be true, see `guards.Guard.impossible`."""
    OUTLIER = "Outlier"
    """Outer gradient or tokens per step are far beyond all that the job has seen, see `guards`."""


LOST_WORK: Final = frozenset(Reason) - {Reason.STALE, Reason.NOT_ASKED, Reason.DUPLICATE}
"""Refused for what it is: not because it came too late, or its unit had left."""


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
class Close:
    """Compute what merges the accepted contributions of these units at outer step t, see `Shard.compute`; `Computed` tells when it is done.

    The same contributions and the same orders give the same bytes.
    """

    t: int
    fragment: int
    base: int
    """Version of the fragment that the order is about: the anchor of every contribution. The merge makes version t."""
    units: tuple[str, ...]
    """Sorted, which is the order of the sum."""
    weights: tuple[float, ...]
    """tokens^2/steps, by unit."""


@dataclass(frozen=True, slots=True)
class Merged:
    """For reports and the ledger: outer step t merged the contributions of these units. Comes before its Broadcast."""

    t: int
    fragment: int
    units: tuple[str, ...]
    """Sorted, which is the order of the sum."""
    weights: Mapping[str, float]
    """tokens^2/steps."""
    marks: Mapping[str, Marks] = field(default_factory=dict)
    """How far the session of each contribution had trained. A unit may have left, or joined with another session, since it contributed."""


@dataclass(frozen=True, slots=True)
class ContributionRejected:
    """The guards refuse a contribution. The unit is no member any more: it must join again, which gives it the job's parameters anew."""

    t: int
    fragment: int
    unit: str
    session: str
    """The session of the contribution, see `Marks`; the unit may have joined with another since."""
    refusal: Refusal
    withdrawn: tuple[int, ...]
    """Outer steps of open exchanges that lose the unit's contribution with this one. The shard forgets these and the one of `t`."""
    quarantined: bool
    """It was refused so often that the unit must not join again."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send to every joined unit: version `t` of the fragment. A unit that does not hold version `base` gets the whole value in FLOAT32."""

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
class Rest:
    """The unit is to rest, or to train again. A unit that joins trains."""

    unit: str
    rests: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Make the state durable. Its arrays are never written to, so this may run in parallel with further steps."""

    t: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Step T is reached and every fragment's last broadcast is out. The caller takes the final snapshot now."""

    t: int


@value
class Decode:
    """Decode the unit's answer, see `Shard.decode`; `Usable` or `Unusable` tells what came of it. Until then the exchange stays open."""

    unit: str
    offer: Offer


@value
class Refused:
    """The unit's answer counts nothing."""

    unit: str
    offer: Offer
    refusal: Refusal


Order = Pull | Close | ContributionRejected | Skipped | Rest | Snapshot | Finish
"""What the coordinator wants done."""
Effect = Decode | Refused | Order | Merged | Broadcast
"""What a driver wants done."""
