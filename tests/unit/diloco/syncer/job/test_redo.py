"""What a syncer makes of the tape that a killed one has left: whole, torn, damaged, or with something missing."""

from __future__ import annotations

import errno
import itertools
import shutil
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from builders.exchange import WAIT_TIMEOUT, LocalLearner, LocalSyncer, Place, job_file, training, until
from builders.scripted_learner import ScriptedLearner, a_round
from diloco.algorithm.state import StateError
from diloco.snapshots.store import SnapshotError, SnapshotStore
from diloco.syncer.job import snapshot_schedule
from diloco.syncer.job.redo import check_follows
from diloco.syncer.job.restore import BadState
from diloco.tape.records import Record, RecordFile, write_record
from diloco.tape.segments import FOLDER, heads, segments

pytestmark = pytest.mark.slow


@pytest.fixture
def killed(tmp_path: Path) -> Place:
    """A job whose syncer was killed after some merges, as its volume is at such a moment. No snapshot holds them."""
    job = job_file(training(100_000, checkpoint={"every_steps": 100_000, "keep": 1}))
    place, image = Place(tmp_path / "live", job), Place(tmp_path / "killed", job)
    with LocalSyncer(place) as syncer:
        learner = LocalLearner(place, syncer.address, "u").start()
        until(lambda: len(merges(place)) >= 8, "eight merges")
        shutil.copytree(place.state, image.state)
        learner.drain()
        learner.wait()
    return image


def merges(place: Place) -> list[dict[str, Any]]:
    return [head for head in heads(place.state / FOLDER) if head["type"] == "merge"]


def incarnations(place: Place) -> list[str]:
    """Return the incarnations of all segments."""
    return [head["incarnation"] for head in heads(place.state / FOLDER) if head["type"] == "segment"]


def last_segment(place: Place) -> Path:
    return segments(place.state / FOLDER)[-1].path


def records(place: Place) -> list[Record]:
    """Return the records of merges in the last segment."""
    return [record for record in RecordFile(last_segment(place), values=True) if record.head["type"] == "merge"]


def assert_goes_on_from(place: Place, expected: list[dict[str, Any]]) -> None:
    """The state of a syncer that starts is that after these merges."""
    newest = {head["fragment"]: head for head in expected}
    with LocalSyncer(place) as syncer:
        core = syncer.syncer.engine.exchanges.core
        assert core is not None
        assert core.t == max(head["t"] for head in expected)
        for p, head in newest.items():
            assert (core.version(p), f"{zlib.crc32(core.value(p)):08x}") == (head["t"], head["checksum"])


def test_the_state_is_that_after_the_last_record(killed: Place) -> None:
    before = merges(killed)
    assert_goes_on_from(killed, before)
    assert len(set(incarnations(killed))) == 1, "nothing is missing, so sessions go on"


def test_a_gap_in_the_records_is_an_error_that_names_it(killed: Place) -> None:
    first, second, *_ = records(killed)
    path = last_segment(killed)
    content = path.read_bytes()
    path.write_bytes(content[: first.offset] + content[second.offset :])
    said = rf"the record at offset {first.offset} of .*{path.name} does not follow .*: it is record {second.head['n']}, and the one before"
    with pytest.raises(BadState, match=said), LocalSyncer(killed):
        pass


@pytest.mark.parametrize(("number", "before", "unnoted"), [(5, 0, 0), (6, 5, 0), (9, 5, 9)], ids=["first", "next", "covered"])
def test_records_that_the_snapshot_covers_may_be_missing(number: int, before: int, unnoted: int) -> None:
    """It was durable before they were written, and the process was killed then."""
    check_follows(number, before, unnoted)


@pytest.mark.parametrize(("number", "before", "unnoted"), [(7, 5, 0), (10, 5, 9), (5, 5, 9), (4, 5, 9)])
def test_other_records_may_not_be_missing_nor_stand_twice(number: int, before: int, unnoted: int) -> None:
    with pytest.raises(StateError, match=f"it is record {number}, and the one before it is {before}"):
        check_follows(number, before, unnoted)


def test_no_learner_holds_more_than_a_volume_that_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a record nor the mark that one is missing can be written: a restart must not find less than learners hold."""
    job = job_file(training(100_000, checkpoint={"every_steps": 100_000, "keep": 1}))
    place, image = Place(tmp_path / "live", job), Place(tmp_path / "killed", job)
    with LocalSyncer(place) as syncer:
        learner = LocalLearner(place, syncer.address, "u").start()
        until(lambda: len(merges(place)) >= 8, "eight merges")
        with monkeypatch.context() as read_only:
            read_only.setattr("diloco.tape.writer.write_record", refuse)
            read_only.setattr("diloco.tape.writer.mark_cut", refuse)
            report = until(lambda: (r := syncer.report()).snapshot_error and r, "the record to be refused")
            until(lambda: "merges wait" in syncer.report().snapshot_error, "the mark to be refused")
            shutil.copytree(place.state, image.state)
            assert syncer.report().contributions == report.contributions, "merges wait"
        until(lambda: syncer.report().t > report.t + 8 and not syncer.report().snapshot_error, "training to go on")
        learner.drain()
        learner.wait()
    assert_goes_on_from(image, merges(image))
    assert len(merges(image)) >= report.contributions, "each merge of the only unit that it has been sent"


def test_the_snapshot_after_which_the_tape_goes_on_holds_the_merge_that_made_it_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That merge has no record, so the records that follow would follow on a state that nothing holds."""
    save, refused = SnapshotStore.save, set[str]()

    def writes(*arguments: Any) -> int:
        if "record" not in refused:
            refused.add("record")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_record(*arguments)

    def saves(self: SnapshotStore, t: int, *state: Any) -> Path:
        if "snapshot" not in refused:
            refused.add("snapshot")
            raise SnapshotError("the volume is full")
        return save(self, t, *state)

    job = job_file(training(100_000, sync_interval=1, fragments=1, overlap_steps=0, checkpoint={"every_steps": 100_000, "keep": 1}))
    place, image, rounds = Place(tmp_path / "live", job), Place(tmp_path / "killed", job), itertools.count(1)
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer) as learner:
        monkeypatch.setattr(snapshot_schedule, "LEAST_VALUES", 10 * 4 * learner.layout.size)
        learner.join().seed()
        until(lambda: syncer.report().snapshot_t == 0, "the first snapshot")
        a_round([learner], next(rounds))
        monkeypatch.setattr("diloco.tape.writer.write_record", writes)
        monkeypatch.setattr(SnapshotStore, "save", saves)
        while syncer.report().snapshot_t == 0:  # the second attempt is made for what the merges since would have written
            a_round([learner], next(rounds))
        assert refused == {"record", "snapshot"}
        for _ in range(2):
            a_round([learner], next(rounds))
        until(lambda: len(segments(place.state / FOLDER)) == 1, "what the snapshot covers to be retired")
        shutil.copytree(place.state, image.state)
    assert_goes_on_from(image, merges(image))


def refuse(*_: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def test_a_restart_says_how_many_outer_steps_it_went_back(killed: Place) -> None:
    """Its learners show it: the newest record is missing, and with it nothing says that any is."""
    before = merges(killed)[-1]["t"]
    path = last_segment(killed)
    with path.open("r+b") as file:
        file.truncate(records(killed)[0].offset)
    path.rename(path.with_name(f"{path.stem}.cut.tape"))
    with LocalSyncer(killed) as syncer, ScriptedLearner(syncer, unit="v") as learner:
        found = syncer.report().t
        assert "went back" not in syncer.report().message
        learner.welcomed(incarnation=b"of the process before", versions=[before])
        said = f"the restart went back {before - found} outer steps, from {before} to {found}"
        until(lambda: said in syncer.report().message, "the outer steps that are missing")


def test_a_torn_record_is_cut_off(killed: Place) -> None:
    *others, last = records(killed)
    path = last_segment(killed)
    with path.open("r+b") as file:
        file.truncate(last.offset + last.size - 1)
    assert_goes_on_from(killed, [record.head for record in others])
    assert path not in [segment.path for segment in segments(killed.state / FOLDER)] or path.stat().st_size == last.offset
    assert len(set(incarnations(killed))) == 1


def test_a_damaged_record_stops_the_syncer_with_file_and_offset(killed: Place) -> None:
    first, *_ = records(killed)
    path = last_segment(killed)
    content = bytearray(path.read_bytes())
    content[first.offset + first.size - 8] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadState, match=rf"{path.name} is damaged at offset {first.offset}: its bytes have changed"), LocalSyncer(killed):
        pass
    assert path.read_bytes() == bytes(content), "nothing was changed"


def test_what_the_message_says_helps(killed: Place) -> None:
    first, second, *_ = records(killed)
    path = last_segment(killed)
    content = bytearray(path.read_bytes())
    content[second.offset + second.size - 8] ^= 1
    path.write_bytes(content)
    with path.open("r+b") as file:
        file.truncate(second.offset)
    assert_goes_on_from(killed, [first.head])


def test_a_tape_with_something_missing_behind_it_is_another_state(killed: Place) -> None:
    """Learners may hold what was broadcast and not written."""
    before = merges(killed)
    path = last_segment(killed)
    path.rename(path.with_name(f"{path.stem}.cut.tape"))
    assert_goes_on_from(killed, before)
    first, *_, last = incarnations(killed)
    assert first != last


def test_a_job_that_goes_on_from_another_ones_volume_can_be_killed_before_its_first_snapshot(
    killed: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has leased to its own units what was leased to those of the other job."""
    copied = threading.Event()
    save = SnapshotStore.save

    def saves(*arguments: Any) -> Path:
        assert copied.wait(WAIT_TIMEOUT)
        return save(*arguments)

    another = killed.job.model_copy(update={"uid": "another"})
    place, image = Place(killed.directory, another), Place(tmp_path / "image", another)
    monkeypatch.setattr(SnapshotStore, "save", saves)
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, unit="v") as learner:
        learner.welcomed(job_uid="another")
        leased = learner.want(4).hear("work").work
        shutil.copytree(place.state, image.state)
        copied.set()
    with LocalSyncer(image) as syncer, ScriptedLearner(syncer, unit="v") as learner:
        learner.welcomed(job_uid="another")
        assert learner.want(4).hear("work").work.start == leased.start, "it is free again"


def test_without_a_tape_the_snapshot_counts(killed: Place) -> None:
    shutil.rmtree(killed.state / FOLDER)
    with LocalSyncer(killed) as syncer:
        assert syncer.report().t == 0
        assert syncer.report().seeded
