"""What the condition Placed can say: a value for each finding, and its words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diloco.wording import plural

from diloco_operator.api.consequences import Lack
from diloco_operator.api.reasons import PlacedReason
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
        if self.placed > self.desired:  # some still drain
            return f"{plural(self.placed, 'unit has', 'units have')} hardware, and the job wants {self.desired}"
        return f"{self.placed} of {plural(self.desired, 'unit has', 'units have')} hardware"

    def of_least(self) -> str:
        return f"{self.count()}, learners.min is {self.least}"

    def lost(self) -> str:
        return f"; {self.given_up} given up" if self.given_up else ""

    def lacks(self) -> str:
        """Why pools do not have more units. What several of them lack for the same cause is explained once."""
        lacks: dict[str, list[str]] = {}
        for pool in self.pools:
            if pool.lack.of_slices:
                lacks.setdefault(pool.why, []).append(pool.lacks)
        off = [pool.message for pool in self.pools if pool.lack is Lack.SWITCHED_ON]
        return "".join(f"; {text}" for text in (*(f"{', '.join(pools)}; {why}" for why, pools in lacks.items()), *off))


@dataclass(frozen=True, slots=True)
class AllPlaced:
    hardware: Hardware
    reason = PlacedReason.ALL_PLACED

    def words(self) -> str:
        return self.hardware.count()


@dataclass(frozen=True, slots=True)
class MinimumPlaced:
    hardware: Hardware
    reason = PlacedReason.MINIMUM_PLACED

    def words(self) -> str:
        return f"{self.hardware.of_least()}{self.hardware.lost()}{self.hardware.lacks()}"


@dataclass(frozen=True, slots=True)
class PodsRefused:
    hardware: Hardware
    units: Mapping[str, str]
    """Unit -> what the API server says of its pods."""
    reason = PlacedReason.PODS_REFUSED

    def words(self) -> str:
        details = "; ".join(f"{unit}: {said}" for unit, said in list(self.units.items())[:NAMED])
        return f"{self.hardware.of_least()}; {details}{self.hardware.lacks()}"


@dataclass(frozen=True, slots=True)
class NoGrantor:
    hardware: Hardware
    reason: PlacedReason
    why: str
    """And what to do."""

    def words(self) -> str:
        return f"{self.hardware.of_least()}; {self.why}"


@dataclass(frozen=True, slots=True)
class Asked:
    hardware: Hardware
    reason: PlacedReason
    """Reason for what was asked for."""

    def words(self) -> str:
        return f"{self.hardware.of_least()}{self.hardware.lost()}{self.hardware.lacks()}"


@dataclass(frozen=True, slots=True)
class TooFew:
    hardware: Hardware
    reason = PlacedReason.INSUFFICIENT_CAPACITY

    def words(self) -> str:
        hardware = self.hardware
        lacks = hardware.lacks()
        text = f"{hardware.of_least()}{hardware.lost()}{lacks}"
        if not lacks and hardware.placed + hardware.given_up >= hardware.least:  # more hardware would not help
            return f"{text}, which kubectl diloco retry starts again; Degraded says why"
        return f"{text}. Add nodes, or lower learners.min or pools[].learners.min"
