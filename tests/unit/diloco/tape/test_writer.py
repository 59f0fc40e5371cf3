"""The tape as a process writes it: in order, durable before it counts, bounded, and lost with a word when it cannot be written."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from builders.full_volume import with_free_bytes
from builders.virtual_time import until
from diloco.tape import writer as tape_writer
from diloco.tape.records import RecordFile, write_record
from diloco.tape.segments import heads, retire, segments
from diloco.tape.writer import TapeWriter

VALUES = np.arange(4, dtype=np.float32)


class Writing:
    """A tape in a folder, and which merges are durable."""

    def __init__(self, folder: Path, *, based: bool = True, segment: int = 1, most_history: int = 1 << 20) -> None:
        self.folder = folder
        self.durable: list[int] = []
        self.changes = 0
        self.tape = TapeWriter(
            folder, {"job": "j"}, segment=segment, next_number=1, based=based, changed=self._changed, most_history=most_history
        )

    def _changed(self) -> None:
        self.changes += 1

    def merge(self, t: int) -> None:
        self.tape.commit(t, {"t": t}, memoryview(VALUES), memoryview(VALUES), lambda checksum: self.durable.append(t))

    async def snapshot(self, *, durable: bool = True) -> None:
        position = self.tape.begin_snapshot()
        await self.tape.idle()
        await self.tape.snapshot_ended(position, durable=durable)

    def written(self) -> list[tuple[str, int]]:
        """(type, t or 0) of all records, without those that begin segments."""
        return [(head["type"], head.get("t", 0)) for head in heads(self.folder) if head["type"] != "segment"]


def values_of(folder: Path) -> list[int]:
    """Outer steps of the merges whose values are there."""
    found = [record for segment in segments(folder) for record in RecordFile(segment.path, values=True)]
    return [record.head["t"] for record in found if record.values is not None]


def cut_segments(folder: Path) -> list[int]:
    return [segment.number for segment in segments(folder) if segment.cut]


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    """A disk that is full while `full["disk"]` is true, and on which nothing can be renamed while `full["rename"]` is."""
    state = {"disk": False, "rename": False}
    rename = Path.replace

    def writes(*arguments: Any) -> int:
        if state["disk"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_record(*arguments)

    def renames(path: Path, target: Path) -> Path:
        if state["rename"]:
            raise OSError(errno.EROFS, "Read-only file system")
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", renames)
    monkeypatch.setattr(tape_writer, "write_record", writes)
    return state


async def test_too_little_room_loses_the_tape_before_a_record_is_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record has 16 bytes of values and about 512 of a head."""
    writing = Writing(tmp_path / "tape")
    writing.merge(1)
    await writing.tape.idle()
    with_free_bytes(monkeypatch, 16 + 511)
    writing.merge(2)
    await until(lambda: writing.durable == [1, 2])  # training goes on
    assert "it needs 528 bytes, and 527 bytes are free; a restart goes back to before it" in writing.tape.error
    assert "(spec.syncer.storage.size)" in writing.tape.error
    (segment,) = segments(tmp_path / "tape")
    reader = RecordFile(segment.path, values=True)
    assert [record.head.get("t") for record in reader] == [None, 1]
    assert (segment.cut, reader.torn) == (True, None)
    with_free_bytes(monkeypatch, 16 + 512)
    await writing.snapshot()
    writing.merge(3)
    await writing.tape.idle()
    assert (writing.tape.error, writing.durable, values_of(tmp_path / "tape")[-1]) == ("", [1, 2, 3], 3)


async def test_records_stand_in_the_order_of_what_happened(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "tape")
    writing.tape.note("join", unit="u")
    writing.merge(1)
    writing.tape.note("lease", holder="u/1/1")
    await writing.tape.idle()
    assert writing.written() == [("join", 0), ("merge", 1), ("lease", 0)]
    assert [head["n"] for head in heads(tmp_path / "tape")] == [1, 2, 3, 4]
    assert writing.durable == [1]


async def test_a_merge_is_not_durable_before_it_is_written(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "tape")
    writing.merge(1)
    assert writing.durable == []
    await writing.tape.idle()
    assert (writing.durable, values_of(tmp_path / "tape")) == ([1], [1])


async def test_merges_wait_for_the_snapshot_on_which_they_follow(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "tape", based=False)
    position = writing.tape.begin_snapshot()
    writing.merge(1)
    writing.tape.note("lease", holder="u/1/1")
    await writing.tape.idle()
    assert (writing.durable, writing.written()) == ([], [("lease", 0)])
    await writing.tape.snapshot_ended(position, durable=True)
    await writing.tape.idle()
    assert (writing.durable, writing.written()) == ([1], [("lease", 0), ("merge", 1)])


async def test_without_their_snapshot_merges_go_on_and_it_is_said(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "tape", based=False)
    position = writing.tape.begin_snapshot()
    writing.merge(1)
    await writing.tape.snapshot_ended(position, durable=False)
    await until(lambda: writing.durable == [1])
    assert "could not be written" in writing.tape.error
    writing.merge(2)
    assert writing.durable == [1, 2]


async def test_a_snapshot_gives_the_values_of_what_it_covers_back_and_keeps_what_they_say(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "tape")
    writing.tape.note("join", unit="u")
    writing.merge(1)
    await writing.tape.idle()
    writing.tape.applied(1)
    await writing.snapshot()
    writing.merge(2)
    await writing.tape.idle()
    assert values_of(tmp_path / "tape") == [2]
    assert writing.written() == [("join", 0), ("merge", 1), ("merge", 2)]
    assert writing.tape.bytes < 2000


async def test_what_a_snapshot_would_have_covered_that_could_not_be_written_still_counts(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "tape")
    writing.merge(1)
    await writing.tape.idle()
    before = writing.tape.bytes
    position = writing.tape.begin_snapshot()
    of_segment = writing.tape.bytes
    assert of_segment < before
    await writing.tape.snapshot_ended(position, durable=False)
    assert writing.tape.bytes == before + of_segment


async def test_the_values_of_a_merge_that_the_snapshot_does_not_hold_stay(tmp_path: Path) -> None:
    """It was on its way when the snapshot was taken."""
    writing = Writing(tmp_path / "tape")
    writing.merge(1)
    await writing.snapshot()
    assert values_of(tmp_path / "tape") == [1]
    writing.tape.applied(1)
    await writing.snapshot()
    assert values_of(tmp_path / "tape") == []


async def test_two_snapshots_that_end_at_the_same_time_keep_what_was_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As the last two of a job can."""
    writing = Writing(tmp_path / "tape")
    positions = []
    for t in (1, 2):
        writing.merge(t)
        await writing.tape.idle()
        writing.tape.applied(t)
        positions.append(writing.tape.begin_snapshot())
    await writing.tape.idle()
    together = threading.Barrier(2)

    def retire_when_both_have_looked(*arguments: Any) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.2)  # in vain, if one thread retires after the other
        retire(*arguments)

    monkeypatch.setattr(tape_writer, "retire", retire_when_both_have_looked)
    await asyncio.gather(*(writing.tape.snapshot_ended(position, durable=True) for position in positions))
    assert writing.written() == [("merge", 1), ("merge", 2)]
    assert values_of(tmp_path / "tape") == []
    assert not caplog.records


async def test_history_is_bounded(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "tape", most_history=1000)
    for t in range(100):
        writing.merge(t)
        await writing.tape.idle()
        writing.tape.applied(t)
        await writing.snapshot()
    assert sum(path.stat().st_size for path in (tmp_path / "tape").iterdir()) < 4000
    kept = [t for _, t in writing.written()]
    assert kept == list(range(kept[0], 100))
    assert kept[0] > 0


async def test_a_full_disk_loses_the_tape_until_the_next_snapshot(tmp_path: Path, full: dict[str, bool]) -> None:
    writing = Writing(tmp_path / "tape")
    writing.merge(1)
    await writing.tape.idle()
    full["disk"] = True
    writing.merge(2)
    writing.tape.note("leave", holder="u/1/1")
    await until(lambda: writing.durable == [1, 2])  # training goes on
    assert writing.tape._lost
    assert "No space left on device; a restart goes back to before it" in writing.tape.error
    assert "spec.syncer.storage.size" in writing.tape.error
    assert [segment.cut for segment in segments(tmp_path / "tape")] == [True], "the next process knows that something is missing"
    before = writing.tape.bytes
    writing.merge(3)
    assert writing.tape.bytes == before + VALUES.nbytes, "a snapshot that could not be written either is tried again for it"
    assert writing.durable == [1, 2, 3]
    full["disk"] = False
    await writing.snapshot()
    writing.merge(4)
    await writing.tape.idle()
    assert (writing.tape._lost, writing.tape.error, writing.durable) == (False, "", [1, 2, 3, 4])
    assert values_of(tmp_path / "tape") == [4]
    assert writing.changes == 2


async def test_a_record_that_cannot_be_written_for_whatever_reason_holds_up_no_merge(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "tape")
    writing.tape.note("join", unit=object())
    writing.merge(1)
    await until(lambda: writing.durable == [1])
    assert "TypeError: Object of type object is not JSON serializable" in writing.tape.error
    await writing.snapshot()
    writing.merge(2)
    await writing.tape.idle()
    assert (writing.tape.error, writing.durable, values_of(tmp_path / "tape")) == ("", [1, 2], [2])


async def test_a_disk_that_does_not_answer_loses_the_tape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape_writer, "MOST_WAITING", 10)
    writing = Writing(tmp_path / "tape")
    for _ in range(20):  # nothing is written between two of these
        writing.tape.note("lease", holder="u/1/1")
    assert "does not answer" in writing.tape.error
    writing.merge(1)
    assert writing.durable == []
    await until(lambda: writing.durable == [1])
    await writing.tape.close()


async def test_nothing_goes_on_without_a_record_before_the_volume_says_so(tmp_path: Path, full: dict[str, bool]) -> None:
    """The volume has become read-only, so the segment cannot be marked either. A restart would take it for whole."""
    writing, said = Writing(tmp_path / "tape"), list[str]()
    writing.merge(1)
    await writing.tape.idle()
    full["disk"] = full["rename"] = True
    writing.merge(2)
    writing.tape.after_notes(lambda: said.append("lease"))
    await until(lambda: "cannot be marked there either" in writing.tape.error)
    assert "Read-only file system" in writing.tape.error
    writing.merge(3)
    writing.tape.after_notes(lambda: said.append("second lease"))
    await writing.tape.idle()
    assert (writing.durable, said, [segment.cut for segment in segments(tmp_path / "tape")]) == ([1], [], [False])
    assert writing.tape.waits_for_mark
    full["rename"] = False
    await until(lambda: writing.durable == [1, 2, 3])
    assert (said, [segment.cut for segment in segments(tmp_path / "tape")]) == (["lease", "second lease"], [True])
    assert writing.tape.wants_snapshot
    assert "merges wait" not in writing.tape.error


async def test_no_snapshot_is_begun_before_the_merges_without_a_record_have_taken_their_place(
    tmp_path: Path, full: dict[str, bool]
) -> None:
    """What follows on the snapshot would lack them: one that was written before the loss, one that was lost, and one after it."""
    writing = Writing(tmp_path / "tape")
    writing.merge(1)
    await until(lambda: writing.durable == [1])
    full["disk"] = True
    writing.merge(2)
    await until(lambda: writing.durable == [1, 2])
    writing.merge(3)
    for t in writing.durable:
        assert writing.tape.snapshot_waits
        writing.tape.applied(t)
    assert (writing.durable, writing.tape.snapshot_waits) == ([1, 2, 3], False)


async def test_the_last_snapshot_of_a_process_covers_what_the_volume_could_not_say(tmp_path: Path, full: dict[str, bool]) -> None:
    writing = Writing(tmp_path / "tape")
    writing.merge(1)
    await writing.tape.idle()
    full["disk"] = full["rename"] = True
    writing.merge(2)
    await until(lambda: writing.tape.waits_for_mark)
    full["disk"] = False
    position = writing.tape.begin_snapshot()
    assert position.segment > segments(tmp_path / "tape")[-1].number, "a restart takes nothing of the tape for whole"
    await writing.tape.snapshot_ended(position, durable=True)
    await writing.tape.close()
    assert writing.durable == [1]


async def test_the_segment_that_lacks_a_record_is_marked_though_the_next_has_begun(tmp_path: Path, full: dict[str, bool]) -> None:
    writing = Writing(tmp_path / "tape")
    await writing.tape.idle()
    full["disk"] = True
    writing.merge(1)
    writing.tape.begin_snapshot()
    await until(lambda: writing.durable == [1])
    assert next(segment.cut for segment in segments(tmp_path / "tape"))
    await writing.tape.close()


async def test_a_segment_that_the_failed_write_began_is_marked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot that was begun with it may be durable: a restart would go on with that segment."""

    def writes(file: BinaryIO, head: Mapping[str, Any], gradient: memoryview | None) -> int:
        if head["type"] == "merge":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_record(file, head, gradient)

    monkeypatch.setattr(tape_writer, "write_record", writes)
    writing = Writing(tmp_path / "tape")
    await writing.tape.idle()
    writing.tape.note("lease", holder="u/1/1")
    position = writing.tape.begin_snapshot()
    writing.merge(1)
    await until(lambda: writing.durable == [1])
    assert position.segment == 2
    assert cut_segments(tmp_path / "tape") == [1, 2]


async def test_a_second_loss_while_the_snapshot_after_the_first_is_written_lasts_until_the_next(
    tmp_path: Path, full: dict[str, bool]
) -> None:
    """The segment of the snapshot between them lacks merges, so a restart must not take it for whole."""
    writing = Writing(tmp_path / "tape")
    full["disk"] = True
    writing.merge(1)
    await until(lambda: writing.durable == [1])
    writing.tape.applied(1)
    full["disk"] = False
    position = writing.tape.begin_snapshot()
    await writing.tape.idle()
    writing.merge(2)  # waits for the snapshot
    full["disk"] = True
    writing.tape.note("lease", holder="u/1/1")
    await until(lambda: writing.durable == [1, 2])
    assert cut_segments(tmp_path / "tape") == [1, 2]
    full["disk"] = False
    await writing.tape.snapshot_ended(position, durable=True)
    assert "No space left on device" in writing.tape.error
    assert writing.tape.wants_snapshot
    writing.tape.applied(2)
    await writing.snapshot()
    writing.merge(3)
    await writing.tape.idle()
    assert (writing.tape.error, writing.durable, values_of(tmp_path / "tape")) == ("", [1, 2, 3], [3])
    assert cut_segments(tmp_path / "tape") == []


async def test_merges_do_not_follow_on_a_snapshot_that_was_begun_before_the_second_loss(tmp_path: Path, full: dict[str, bool]) -> None:
    writing = Writing(tmp_path / "tape", based=False)
    first = writing.tape.begin_snapshot()
    full["disk"] = True
    writing.tape.note("lease", holder="u/1/1")
    await until(lambda: bool(writing.tape.error) and not writing.tape.snapshot_waits)
    full["disk"] = False
    second = writing.tape.begin_snapshot()
    writing.merge(1)
    await writing.tape.snapshot_ended(first, durable=True)
    await writing.tape.idle()
    assert writing.durable == []
    await writing.tape.snapshot_ended(second, durable=True)
    await writing.tape.idle()
    assert writing.durable == [1]


async def test_a_snapshot_that_could_not_be_written_either_is_not_tried_at_once(tmp_path: Path, full: dict[str, bool]) -> None:
    """The disk is full: each try would fail as the one before."""
    writing = Writing(tmp_path / "tape")
    full["disk"] = True
    writing.merge(1)
    await until(lambda: writing.durable == [1])
    assert writing.tape.wants_snapshot
    writing.tape.applied(1)
    await writing.snapshot(durable=False)
    await until(lambda: not writing.tape.snapshot_waits)
    assert not writing.tape.wants_snapshot


async def test_what_waits_for_notes_comes_after_them(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "tape")
    written: list[list[tuple[str, int]]] = []
    writing.tape.note("lease", holder="u/1/1")
    writing.tape.after_notes(lambda: written.append(writing.written()))
    assert written == []
    await writing.tape.idle()
    writing.tape.after_notes(lambda: written.append([]))
    assert written == [[("lease", 0)], []]


async def test_notes_are_written_with_the_merge_after_them(tmp_path: Path) -> None:
    """To write costs a thread's turn, so notes alone wait for a while."""
    writing = Writing(tmp_path / "tape")
    await writing.tape.idle()
    writing.tape.note("adopt", unit="a")
    await asyncio.sleep(0)
    assert writing.written() == []
    writing.merge(1)
    await until(lambda: writing.durable == [1])
    assert writing.written() == [("adopt", 0), ("merge", 1)]


async def test_notes_are_written_soon_although_no_merge_comes(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "tape")
    await writing.tape.idle()
    writing.tape.note("adopt", unit="a")
    await until(lambda: writing.written() == [("adopt", 0)])


async def test_half_a_line_that_a_crash_left_in_the_history_harms_no_other(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "tape")
    writing.merge(1)
    await writing.tape.idle()
    writing.tape.applied(1)
    (tmp_path / "tape" / "history.jsonl").write_text('{"n": 1, "type"')
    await writing.snapshot()
    assert writing.written() == [("merge", 1)]


async def test_closing_waits_for_what_is_written(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "tape")
    writing.merge(1)
    await asyncio.wait_for(writing.tape.close(), 180)
    assert writing.written() == [("merge", 1)]
