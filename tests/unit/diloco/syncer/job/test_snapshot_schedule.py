"""When snapshots are due beside those of each `everySteps`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders.exchange import LocalLearner, LocalSyncer, Place, job_file, training
from diloco.snapshots.store import SnapshotError, SnapshotStore
from diloco.syncer.job import snapshot_schedule
from diloco.syncer.job.engine import RunOutcome
from diloco.tape.writer import Position, TapeWriter

MOST = 100_000
"""Bytes that the tape may hold; a record of this model has some hundred."""


@pytest.mark.slow
def test_the_tape_holds_what_snapshots_would_have_covered_that_could_not_be_written_and_another_is_tried_an_eighth_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, begin_snapshot = SnapshotStore.save, TapeWriter.begin_snapshot
    held, failed = list[int](), list[int]()

    def noted(self: TapeWriter) -> Position:
        held.append(self.bytes)
        return begin_snapshot(self)

    def fails_twice(self: SnapshotStore, t: int, *state: Any) -> Path:
        if t and len(failed) < 2:  # not that of the parameters, on which the tape follows
            failed.append(t)
            raise SnapshotError("the volume is full")
        return save(self, t, *state)

    monkeypatch.setattr(TapeWriter, "begin_snapshot", noted)
    monkeypatch.setattr(SnapshotStore, "save", fails_twice)
    monkeypatch.setattr(snapshot_schedule, "LEAST_VALUES", MOST)
    place = Place(tmp_path, job_file(training(300, checkpoint={"every_steps": 10**6})))
    with LocalSyncer(place) as syncer:
        LocalLearner(place, syncer.address, "u").start().wait()
        assert syncer.wait() is RunOutcome.COMPLETE
    _, first, second, third, *_ = held
    assert first > MOST
    assert second > first + MOST // 8
    assert third > second + MOST // 8
