"""[island-bytes] Bytes on the wire of one exchange, for units of 1, 2 and 4 ranks: the most over the fewest.

Bytes are counted at the socket, in both directions and over the streams of all ranks, with TLS, framing and all control messages. The unit
of one rank is a process that knows nothing of ranks. With two ranks tensors are cut by columns, with four by rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from builders.exchange import LocalSyncer, Place, job_file, training, until
from builders.scripted_learner import ScriptedLearner, a_round
from builders.shardings import Sharding, columns, rows
from diloco_local.links import Links

from benchmarks.figure import Figure

LIMIT = 1.02
SHARDINGS: dict[int, Sharding | None] = {1: None, 2: columns(2), 4: rows(4)}


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    """Rows of each of the four tensors, which have 1024 columns."""
    exchanges: int


FULL = Size(rows=1024, exchanges=4)
SMOKE = Size(rows=64, exchanges=2)


@dataclass(frozen=True, slots=True)
class _Behind:
    """A syncer as a learner sees it through a link."""

    place: Place
    address: str


def measured(directory: Path, size: Size, compression: str, sharding: Sharding | None) -> int:
    """Bytes of one exchange, in both directions."""
    arrays = {f"w{i}": np.zeros((size.rows, 1024), np.float32) for i in range(4)}
    place = Place(directory, job_file(training(100_000, compression=compression)))
    with (
        LocalSyncer(place) as syncer,
        Links() as links,
        ScriptedLearner(_Behind(place, (link := links.add()).relay(syncer.address)), arrays, sharding=sharding) as unit,
    ):
        unit.join().seed()
        until(lambda: syncer.report().seeded, "the seed")
        a_round([unit], 1)
        before = link.up.bytes + link.down.bytes
        for number in range(2, 2 + size.exchanges):
            a_round([unit], number)
        moved = link.up.bytes + link.down.bytes - before
        unit.leave()
    return round(moved / size.exchanges)


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield one figure, for the worst compression."""
    size = SMOKE if smoke else FULL
    details: dict[str, dict[int, int]] = {}
    for compression in ("None", "BFloat16", "Int4"):
        with tempfile.TemporaryDirectory() as directory:
            details[compression] = {
                ranks: measured(Path(directory) / f"{ranks}", size, compression, sharding) for ranks, sharding in SHARDINGS.items()
            }
    ratio = max(max(of_ranks.values()) / min(of_ranks.values()) for of_ranks in details.values())
    yield Figure("island-bytes", ratio, "ratio", LIMIT, ratio <= LIMIT, 1, details)
