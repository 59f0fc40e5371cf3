"""The effects of a `Driver`, which its caller carries out, as plain values. Only `Broadcast` carries a payload.

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
    """Why a contribution was refused. Refusals are counted by these values."""

    NOT_ASKED = "NotAsked"
    """The unit was not asked for this fragment at this outer step, or is not joined."""
    STALE = "StaleRound"
    """The outer step was merged without this answer, which came too late."""
    DUPLICATE = "Duplicate"
    """This unit's answer was accepted before."""
    WRONG_BASE = "WrongBase"
    """A delta against another version than the syncer's. Such a delta is never decoded."""
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
    """The outer gradient's norm or the tokens per step are far above all that the job has seen, see `guards`."""


LOST_WORK: Final = frozenset(Reason) - {Reason.STALE, Reason.NOT_ASKED, Reason.DUPLICATE}
"""Reasons that lie in the contribution's content, not in when it came or whether its unit had left."""


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: Reason
    message: str
    """For people: names unit, fragment and outer step, and says what was wrong."""


@dataclass(frozen=True, slots=True)
class Pull:
    """Ask these units for the fragment."""

    t: int
    fragment: int
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """Merge the accepted contributions of these units at outer step t, see `Shard.compute`. `Computed` reports the result.

    The same contributions and the same orders give the same bytes.
    """

    t: int
    fragment: int
    base: int
    """The fragment's present version, which is the anchor of every contribution. The merge makes version t."""
    units: tuple[str, ...]
    """Sorted. The sum runs in this order."""
    weights: tuple[float, ...]
    """tokens^2/steps, in the order of `units`."""


@dataclass(frozen=True, slots=True)
class Merged:
    """For reports and the ledger: outer step t merged the contributions of these units. Comes before its Broadcast."""

    t: int
    fragment: int
    units: tuple[str, ...]
    """Sorted. The sum ran in this order."""
    weights: Mapping[str, float]
    """tokens^2/steps."""
    marks: Mapping[str, Marks] = field(default_factory=dict)
    """How far the session of each contribution had trained. Since then the unit may have left, or joined with another session."""


@dataclass(frozen=True, slots=True)
class ContributionRejected:
    """The guards refuse a contribution. The unit is no longer a member: it must join again, and gets the job's parameters anew."""

    t: int
    fragment: int
    unit: str
    session: str
    """The session of the contribution, see `Marks`. The unit may have joined with another one since."""
    refusal: Refusal
    withdrawn: tuple[int, ...]
    """Outer steps of open exchanges that lose the unit's contribution too. The shard forgets these and the contribution at `t`."""
    quarantined: bool
    """The unit was refused too often and must not join again."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send version `t` of the fragment to every joined unit. A unit that does not hold version `base` gets the whole value in FLOAT32."""

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
    """Tell the unit to rest, or to train again. A unit that has just joined trains."""

    unit: str
    rests: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Make the state durable. Its arrays are never written to, so this may run in parallel with further steps."""

    t: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Step T is reached and every fragment's last broadcast is out: take the final snapshot now."""

    t: int


@value
class Decode:
    """Decode the unit's answer, see `Shard.decode`. `Usable` or `Unusable` reports the result; until then the exchange stays open."""

    unit: str
    offer: Offer


@value
class Refused:
    """The unit's answer does not count."""

    unit: str
    offer: Offer
    refusal: Refusal


Order = Pull | Close | ContributionRejected | Skipped | Rest | Snapshot | Finish
"""What the coordinator wants done."""
Effect = Decode | Refused | Order | Merged | Broadcast
"""What the driver wants done."""
