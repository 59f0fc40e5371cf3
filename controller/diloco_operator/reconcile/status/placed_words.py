"""What the condition Placed can say. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diloco.wording import plural

from diloco_operator.api.consequences import Lack
from diloco_operator.placement import PoolOutcome
from diloco_operator.reconcile.status.unit_words import NAMED


@dataclass(frozen=True, slots=True)
class Hardware:
    """The figures that each message begins with."""

    placed: int
    desired: int
    least: int
    given_up: int
    pools: Sequence[PoolOutcome]

    def count(self) -> str:
        if self.placed > self.desired:  # units that the job no longer wants still drain
            return f"{plural(self.placed, 'unit has', 'units have')} hardware, and the job wants {self.desired}"
        return f"{self.placed} of {plural(self.desired, 'unit has', 'units have')} hardware"

    def of_least(self) -> str:
        return f"{self.count()}, learners.min is {self.least}"

    def lost(self) -> str:
        return f"; {self.given_up} given up" if self.given_up else ""

    def lacks(self) -> str:
        """Say why pools do not have more units. A cause that several pools share is explained once."""
        lacks: dict[str, list[str]] = {}
        for pool in self.pools:
            if pool.lack.of_slices:
                lacks.setdefault(pool.why, []).append(pool.summary)
        off = [pool.message for pool in self.pools if pool.lack is Lack.SWITCHED_ON]
        return "".join(f"; {text}" for text in (*(f"{', '.join(pools)}; {why}" for why, pools in lacks.items()), *off))


def not_all_placed(hardware: Hardware) -> str:
    """Also used where the job has enough to start."""
    return f"{hardware.of_least()}{hardware.lost()}{hardware.lacks()}"


def pods_refused(hardware: Hardware, units: Mapping[str, str]) -> str:
    """`units`: unit -> why the API server refuses its pods."""
    details = "; ".join(f"{unit}: {refusal}" for unit, refusal in list(units.items())[:NAMED])
    return f"{hardware.of_least()}; {details}{hardware.lacks()}"


def cannot_start(hardware: Hardware) -> str:
    return f"{hardware.of_least()}; it takes none until the job can start, see Training"


def no_grantor(hardware: Hardware, why: str) -> str:
    """`why`: what is missing, and what to do."""
    return f"{hardware.of_least()}; {why}"


def nothing_starts(hardware: Hardware) -> str:
    return f"{hardware.of_least()}{hardware.lost()}; nothing starts until the spec is fixed, and Accepted says what is wrong with it"


def too_few(hardware: Hardware) -> str:
    lacks = hardware.lacks()
    text = f"{hardware.of_least()}{hardware.lost()}{lacks}"
    if not lacks and hardware.placed + hardware.given_up >= hardware.least:  # more hardware would not help
        return f"{text}, which kubectl diloco retry starts again; Degraded says why"
    return f"{text}. Add nodes, or lower learners.min or pools[].learners.min"
