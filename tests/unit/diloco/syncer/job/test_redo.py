"""What a syncer makes of the tape that a killed one has left: whole, torn, damaged, or with something missing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from builders.exchange import LocalLearner, LocalSyncer, Place, job_file, training, until
from diloco.syncer.job.restore import BadState
from diloco.tape.records import Record, RecordFile, checksum
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
            assert (core.version(p), checksum(memoryview(core.value(p)))) == (head["t"], head["checksum"])


def test_the_state_is_that_after_the_last_record(killed: Place) -> None:
    before = merges(killed)
    assert_goes_on_from(killed, before)
    assert len(set(incarnations(killed))) == 1, "nothing is missing, so sessions go on"


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


def test_without_a_tape_the_snapshot_counts(killed: Place) -> None:
    shutil.rmtree(killed.state / FOLDER)
    with LocalSyncer(killed) as syncer:
        assert syncer.report().t == 0
        assert syncer.report().seeded
