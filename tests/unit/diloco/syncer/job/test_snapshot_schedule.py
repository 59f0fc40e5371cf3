"""When snapshots are due beside those of each `everySteps`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders.exchange import LocalLearner, LocalSyncer, Place, job_file, training
from diloco.snapshots.store import SnapshotError, SnapshotStore
from diloco.syncer.job import snapshot_schedule
from diloco.syncer.main import RunOutcome

MOST = 100_000
"""Bytes that the tape may hold; a record of this model has some thousand."""


@pytest.mark.slow
def test_a_snapshot_that_could_not_be_written_is_tried_again_soon_as_the_tape_still_holds_what_it_would_have_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the volume would hold twice as much before the next one, and three times before the one after that."""
    save, held = SnapshotStore.save, list[int]()

    def fails_twice(self: SnapshotStore, t: int, *state: Any) -> Path:
        if t:  # not that of the parameters, on which the tape follows
            held.append(sum(path.stat().st_size for path in place.state.glob("tape/*")))
            if len(held) <= 2:
                raise SnapshotError("the volume is full")
        return save(self, t, *state)

    monkeypatch.setattr(SnapshotStore, "save", fails_twice)
    monkeypatch.setattr(snapshot_schedule, "LEAST_VALUES", MOST)
    place = Place(tmp_path, job_file(training(200, checkpoint={"every_steps": 10**6})))
    with LocalSyncer(place) as syncer:
        LocalLearner(place, syncer.address, "u").start().wait()
        assert syncer.wait() is RunOutcome.COMPLETE
    first, second, third, *_ = held
    # Each a bit more than an eighth later: what was written while the one before was tried.
    assert MOST / 2 < first < 1.5 * MOST
    assert MOST / 16 < second - first < MOST / 2
    assert MOST / 16 < third - second < MOST / 2
