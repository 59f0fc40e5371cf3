"""The processes of a unit, as its framework knows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diloco.ranks.samples import DataRank


@dataclass(frozen=True, slots=True)
class World:
    """The processes of this unit, as the framework knows them."""

    rank: int
    ranks: int
    gather: Callable[[bytes], Sequence[bytes]]
    """What each rank has given, in the order of ranks: a collective that all call."""
    data: DataRank | None = None
    """None: every rank trains samples of its own."""
