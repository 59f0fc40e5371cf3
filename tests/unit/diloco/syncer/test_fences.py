"""The fences on the volume: they outlive the process, never fall, and hold up no one but the attempt that they are written for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from builders.exchange import WAIT_TIMEOUT, LocalSyncer, Place, job_file, training, until
from builders.scripted_learner import ScriptedLearner
from diloco.syncer import fences
from diloco.syncer.fences import FILE, FencesError, load_fences, save_fences


def test_fences_outlive_the_process_but_not_the_job(tmp_path: Path) -> None:
    assert load_fences(tmp_path / "new", "job-1") == {}
    save_fences(tmp_path / "new", "job-1", {"u": 3})
    assert load_fences(tmp_path / "new", "job-1") == {"u": 3}
    assert load_fences(tmp_path / "new", "job-2") == {}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"job": "j", "attempts": {"u": "x"}}', '{"job": "j", "attempts": []}'])
def test_damaged_fences_are_not_taken_for_none(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(FencesError, match=FILE):
        load_fences(tmp_path, "j")


class SlowDisk:
    """Writes of fences that wait until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._free = threading.Event()
        self._write = fences.save_fences
        monkeypatch.setattr(fences, "save_fences", self._save)

    def let_go(self) -> None:
        self._free.set()

    def _save(self, directory: Path, job_uid: str, wanted: Mapping[str, int]) -> None:
        assert self._free.wait(WAIT_TIMEOUT)
        self._write(directory, job_uid, wanted)


def place_for(path: Path) -> Place:
    return Place(path, job_file(training(100_000)))


def welcomed(syncer: LocalSyncer, unit: str) -> bool:
    return syncer.unit(unit).unit == unit


def test_attempt_is_welcomed_once_its_fence_is_durable_and_nobody_else_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, unit="old") as old, ScriptedLearner(syncer, unit="new", attempt=2) as new:
        old.join()
        disk = SlowDisk(monkeypatch)
        new.hello()
        until(lambda: syncer.call(lambda: bool(syncer.syncer.engine._job.streams.joining())), "the new attempt to wait for its fence")
        old.seed().want(5).hear("work")
        until(lambda: syncer.report().seeded, "the seed")
        assert (welcomed(syncer, "old"), welcomed(syncer, "new")) == (True, False)
        assert load_fences(place.state, place.job.uid) == {"old": 1}
        disk.let_go()
        new.hear("welcome")
        assert load_fences(place.state, place.job.uid) == {"old": 1, "new": 2}


def test_connection_that_breaks_while_its_fence_is_written_is_resumed_and_still_waits_for_the_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, unit="u") as again:
        disk = SlowDisk(monkeypatch)
        waiting = syncer.syncer.engine._job.streams.joining
        with ScriptedLearner(syncer, unit="u") as first:
            first.hello()
            until(lambda: syncer.call(lambda: bool(waiting())), "the first to wait for its fence")
        until(lambda: not syncer.call(waiting), "the break to be noticed")
        again.hello()
        until(lambda: syncer.call(lambda: bool(waiting())), "the second stream to wait for the fence")
        disk.let_go()
        assert again.hear("welcome").welcome.seed_wanted


def test_model_is_not_forgotten_while_a_learner_waits_for_its_fence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, unit="new") as new:
        with ScriptedLearner(syncer, unit="seeder") as seeder:
            assert seeder.welcomed().seed_wanted
            disk = SlowDisk(monkeypatch)
            new.hello()
            until(lambda: syncer.call(lambda: bool(syncer.syncer.engine._job.streams.joining())), "the new one to wait for its fence")
        until(lambda: syncer.call(lambda: not syncer.syncer.engine._job.streams.joined()), "the seeder's end to be noticed")
        disk.let_go()
        assert new.hear("welcome").welcome.seed_wanted
        new.seed()
        until(lambda: syncer.report().seeded, "the seed")


def test_disk_that_refuses_the_fences_keeps_no_learner_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = place_for(tmp_path)
    (place.state / f".{FILE}.tmp").mkdir(parents=True)  # in the way of the temporary file
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, unit="u") as learner:
        learner.join()
    assert "the fences could not be written" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(("durable", "refused"), [(3, 2), (1, 1)], ids=["of an older attempt", "of a newer attempt"])
def test_snapshot_raises_a_durable_fence_and_never_lowers_it(tmp_path: Path, durable: int, refused: int) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, unit="u", attempt=2) as learner:
        learner.join().seed()
        until(lambda: syncer.report().snapshot_t == 0, "a snapshot with attempt 2")
    save_fences(place.state, place.job.uid, {"u": durable})  # 3: it joined after the last snapshot
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, unit="u", attempt=refused) as old:
        newest = max(durable, 2)
        message = old.hello().hear("refused").refused.message
        assert f"attempt {refused} of unit u is fenced: attempt {newest} has joined since" in message
