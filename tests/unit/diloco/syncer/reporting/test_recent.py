"""What happened lately, as a watcher that keeps a record gets it."""

from __future__ import annotations

import math
from pathlib import Path

from builders.exchange import WAIT_TIMEOUT, LocalSyncer, Place, job_file, training
from builders.scripted_learner import ScriptedLearner
from builders.wire import watch
from diloco.protocol.diloco_pb2 import Entry, Progress, Report, WatchRequest
from diloco.syncer.reporting.recent import MOST_BYTES, RecentEntries
from diloco.syncer.streams.sessions import UnitSession


def a_session(unit: str = "u", attempt: int = 1, number: int = 1) -> UnitSession:
    return UnitSession(unit, attempt, b"s", f"{unit}/{attempt}/{number}", stream=1)


def progress(step: int, step_seconds: float = 0.5) -> Progress:
    return Progress(local_step=step, step_seconds=step_seconds, loss=2.0, samples_done=8 * step, tokens_done=512 * step)


def steps_of(entries: list[Entry]) -> list[int]:
    return [entry.step.local_step for entry in entries]


def test_a_step_is_kept_with_its_unit_and_time() -> None:
    recent = RecentEntries()
    recent.stepped(a_session("u", attempt=2), progress(7), at=3.5)
    (entry,) = recent.after(0)
    step = entry.step
    assert (entry.number, entry.at, step.unit, step.attempt, step.local_step) == (1, 3.5, "u", 2, 7)
    assert (step.step_seconds, step.loss, step.samples_done, step.tokens_done) == (0.5, 2.0, 56, 3584)


def test_a_unit_that_rests_and_says_the_same_again_has_taken_no_step() -> None:
    recent = RecentEntries()
    for step_seconds in (0.5, math.nan, math.nan):
        recent.stepped(a_session(), progress(7, step_seconds), at=1.0)
    assert steps_of(recent.after(0)) == [7]


def test_a_process_that_begins_again_takes_its_first_step_again() -> None:
    recent = RecentEntries()
    for number in (1, 2):
        recent.stepped(a_session(number=number), progress(1), at=1.0)
    assert steps_of(recent.after(0)) == [1, 1]


def test_what_has_no_room_is_forgotten_and_the_numbers_say_so() -> None:
    recent = RecentEntries(most=3)
    for step in range(1, 6):
        recent.stepped(a_session(), progress(step), at=1.0)
    assert [entry.number for entry in recent.after(0)] == [3, 4, 5]
    assert [entry.number for entry in recent.after(4)] == [5]
    assert recent.after(5) == []


def test_a_report_takes_a_bounded_number_of_bytes_and_one_entry_at_least() -> None:
    recent = RecentEntries()
    units = [f"unit-of-a-pool-with-a-long-name-{number:05}" for number in range(MOST_BYTES // 40)]
    for t in (1, 2, 3):
        recent.merged(t, 0, units, None, at=1.0)
    assert [entry.merge.t for entry in recent.after(0)] == [1]
    assert [entry.merge.t for entry in recent.after(1)] == [2]
    assert recent.last == 3


def test_a_watcher_that_wants_entries_gets_each_once_and_the_bytes_of_the_exchanges(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(1000, sync_interval=1, fragments=1, overlap_steps=0, compression="None")))
    certificates = place.certificates
    with LocalSyncer(place) as syncer, certificates.channel(syncer.address, certificates.operator()) as channel:
        seen: list[Report] = []
        with ScriptedLearner(syncer) as learner:
            learner.join().seed()
            for step in (1, 2):
                learner.push(learner.step(step).pulled())
                learner.adopt()
            size = 4 * learner.fragments[0].size
            for report in watch(channel)(WatchRequest(interval_seconds=0.1, entries=True), timeout=WAIT_TIMEOUT):
                seen.append(report)
                if seen[-1].t >= 2 and len(seen) > 1:
                    break
            plain = next(watch(channel)(WatchRequest(), timeout=WAIT_TIMEOUT))
    entries = [entry for report in seen for entry in report.entries]
    assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
    assert steps_of([entry for entry in entries if entry.HasField("step")]) == [1, 2]
    assert [(entry.merge.t, list(entry.merge.units)) for entry in entries if entry.HasField("merge")] == [(1, ["u-0"]), (2, ["u-0"])]
    assert all(entry.at <= seen[-1].clock for entry in entries)
    # One fragment of float32: the seed and two pushes came, the merged values of two outer steps went.
    (unit,) = plain.units
    assert (unit.received_bytes, unit.sent_bytes) == (3 * size, 2 * size)
    assert not plain.entries


def test_what_one_report_does_not_take_comes_with_the_next_one_at_once(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(1000)))
    certificates = place.certificates
    units = [f"unit-{number:04}" for number in range(MOST_BYTES // 20)]  # 11 bytes each: more than half of what a report takes
    with LocalSyncer(place) as syncer, certificates.channel(syncer.address, certificates.operator()) as channel:
        for t in (1, 2, 3):
            syncer.call(syncer.syncer.engine.recent.merged, t, 0, units, None, 1.0)
        reports = watch(channel)(WatchRequest(interval_seconds=600, entries=True), timeout=WAIT_TIMEOUT)
        assert [[entry.merge.t for entry in next(reports).entries] for _ in range(3)] == [[1], [2], [3]]
