"""The processes of a unit, as its framework knows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diloco.ranks.samples import DataRank


@dataclass(frozen=True, slots=True)
class World:
    rank: int
    ranks: int
    gather: Callable[[bytes], Sequence[bytes]]
    """A collective that all ranks call. Returns what each has passed, in the order of ranks."""
    data: DataRank | None = None
    """Which part of the unit's batch this rank trains. None if every rank trains samples of its own."""
