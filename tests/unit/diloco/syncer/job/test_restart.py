"""A syncer that goes and comes back: what it finds on its volume, and what the learners make of it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.exchange import WAIT_TIMEOUT, LocalLearner, LocalSyncer, Place, connection_of, job_file, same_bytes, training, until, weights
from builders.ports import held_port
from builders.scripted_learner import ScriptedLearner
from diloco.contract import Exit
from diloco.snapshots import store as snapshots
from diloco.snapshots.remote import RemoteSnapshots
from diloco.snapshots.store import Loaded, SnapshotError, SnapshotStore
from diloco.snapshots.tensor_file import TensorParts, write_tensors
from diloco.syncer.config import Timeouts
from diloco.syncer.fences import save_fences
from diloco.syncer.job.engine import RunOutcome
from diloco.syncer.job.restore import BadState
from diloco.syncer.main import main
from diloco.syncer.reporting.loss_history import LossHistory

LONG = 100_000
LINGERING = Timeouts(farewell=WAIT_TIMEOUT, linger=WAIT_TIMEOUT)
"""The syncer of a finished job is there however late a learner connects; `stop` ends it before its time."""
AT_ONCE = Timeouts(linger=0.1)
"""The syncer of a finished job waits for no learner."""


def place_for(path: Path, steps: int = LONG, every: int = 5, **changes: object) -> Place:
    return Place(path, job_file(training(steps, checkpoint={"every_steps": every, "keep": 2}, **changes)))


def stored(place: Place) -> SnapshotStore:
    return SnapshotStore(place.state / "snapshots", 2)


def newest(place: Place) -> Loaded:
    """The newest snapshot that can be read."""
    loaded = stored(place).load_newest()
    assert loaded is not None
    return loaded


def train_until(place: Place, t: int) -> None:
    """One learner takes the job to outer step `t` at least; then both leave as they should."""
    with LocalSyncer(place) as syncer:
        learner = LocalLearner(place, syncer.address, "u").start()
        until(lambda: syncer.report().snapshot_t >= t, f"a snapshot at {t}")
        learner.drain()
        learner.wait()
        assert syncer.stop() is RunOutcome.DRAINED


@pytest.mark.slow
def test_sigterm_leaves_the_current_step_and_the_next_process_goes_on_from_it(tmp_path: Path) -> None:
    place = place_for(tmp_path, every=1000)
    with LocalSyncer(place) as syncer:
        learner = LocalLearner(place, syncer.address, "u").start()
        until(lambda: syncer.report().t >= 10, "ten outer steps")
        learner.drain()
        learner.wait()
        assert syncer.stop() is RunOutcome.DRAINED
        before = syncer.syncer.engine.report()
        assert before.snapshot_t == before.t, "the newest snapshot holds all"
    with LocalSyncer(place) as syncer:
        after = syncer.report()
        assert (after.t, after.tokens, after.snapshot_t, after.seeded) == (before.t, before.tokens, before.t, True)
        assert after.incarnation != before.incarnation
        (unit,) = after.units
        assert (unit.unit, unit.steps, unit.contributions) == ("u", before.units[0].steps, before.units[0].contributions)


@pytest.mark.slow
def test_learners_go_on_with_their_sessions_by_themselves_and_the_job_completes(tmp_path: Path) -> None:
    place, port = place_for(tmp_path), held_port()
    units = [LocalLearner(place, f"127.0.0.1:{port}", f"u-{i}").start() for i in range(2)]
    with LocalSyncer(place, port=port) as syncer:
        until(lambda: syncer.report().t >= 20 and all(learner.steps for learner in units), "20 outer steps of both")
        syncer.stop()
        steps = syncer.syncer.engine.report().t + 200
    # Only now it gets an end, which a busy machine might have come to before it was stopped.
    place.job = place_for(tmp_path, steps).job
    with LocalSyncer(place, port=port) as syncer:
        for learner in units:
            learner.wait()
        assert syncer.wait() is RunOutcome.COMPLETE
        ledger = syncer.syncer.engine.work.ledger
    committed = sum(end - start for start, end in ledger.committed())
    assert (place.final().step, place.final().tokens) == (steps, 8 * committed)
    assert [learner.session and connection_of(learner.session)._generation for learner in units] == [1, 1]


def test_a_corrupt_newest_snapshot_is_passed_over_and_said_and_the_loss_history_forgets_what_is_not_trained_any_more(
    tmp_path: Path, learners: list[LocalLearner]
) -> None:
    place = place_for(tmp_path)
    train_until(place, 30)
    damaged, older = stored(place).paths()
    loaded = newest(place)
    before = LossHistory(loaded.meta["losses"]).training.points
    assert before[0].t < 30 <= before[-1].t == loaded.t
    (damaged / snapshots.TENSORS_FILE).write_bytes(b"")
    readable = newest(place)
    with LocalSyncer(place) as syncer:
        report = syncer.report()
        assert (report.t, readable.path) == (readable.t, older)
        assert "went on from the older snapshot" in report.message
        assert damaged.name in report.message
        assert tuple((point.t, point.loss) for point in report.losses) == LossHistory(readable.meta["losses"]).training.points
        assert report.losses[-1].t <= report.t < loaded.t
        learners.append(LocalLearner(place, syncer.address, "u").start())
        after = until(lambda: (r := syncer.report()).losses[-1].t > loaded.t and r, "training to go on")
    steps = [point.t for point in after.losses]
    assert steps == sorted(set(steps))


def without_a_loss_history(place: Place) -> None:
    loaded = newest(place)
    stored(place).save(loaded.t, TensorParts([loaded.tensors]), {key: value for key, value in loaded.meta.items() if key != "losses"})


def truncated(place: Place) -> None:
    """All of them: that is no fresh start."""
    for path in stored(place).paths():
        (path / snapshots.TENSORS_FILE).write_bytes(b"")


def of_another_job_with_fewer_steps(place: Place) -> None:
    place.job = place_for(place.directory, 5).job.model_copy(update={"uid": "another"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (without_a_loss_history, "was not written by this program: KeyError: 'losses'"),
        (truncated, "2 snapshots are in "),
        (of_another_job_with_fewer_steps, r"beyond training\.steps, which is 5"),
    ],
)
def test_a_syncer_that_cannot_go_on_from_its_snapshots_does_not_begin(tmp_path: Path, spoil: Callable[[Place], None], why: str) -> None:
    place = place_for(tmp_path)
    train_until(place, 10)
    spoil(place)
    with pytest.raises(BadState, match=why), LocalSyncer(place):
        pass


@pytest.mark.slow
def test_snapshots_that_are_gone_beside_a_tape_with_merges_are_not_taken_for_a_fresh_start(tmp_path: Path) -> None:
    place = place_for(tmp_path)
    train_until(place, 10)
    kept = tmp_path / "kept"
    stored(place).root.rename(kept)
    with pytest.raises(BadState, match=r"and the tape in .* has merges, which follow one: it is lost"), LocalSyncer(place):
        pass
    kept.rename(stored(place).root)
    with LocalSyncer(place) as syncer:
        assert syncer.report().t >= 10


@pytest.mark.slow
def test_a_restored_syncer_never_asks_for_a_seed_and_takes_no_learner_of_another_model(tmp_path: Path) -> None:
    place = place_for(tmp_path)
    train_until(place, 5)
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, weights(-9.0)) as fresh:
        assert not fresh.welcomed().seed_wanted
        transfer = fresh.receive()
        assert (np.frombuffer(transfer.payload, np.float32) >= 0).all()
        other = LocalLearner(place, syncer.address, "u", arrays=weights(tensors=5)).start().leaves()
        assert other.code == Exit.REFUSED_LAYOUT


def test_fences_hold_over_a_restart_although_no_snapshot_was_taken_since_and_another_job_begins_without_them(tmp_path: Path) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, unit="u") as first:
        first.join().seed()
        until(lambda: syncer.report().snapshot_t == 0, "a snapshot")
        first.cut()
        with ScriptedLearner(syncer, unit="u", attempt=2) as newer:
            newer.join()
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, unit="u") as older:
        assert [(unit.unit, unit.attempt) for unit in syncer.report().units] == [("u", 2)], "the operator's next attempt must be newer"
        refused = older.hello().hear("refused").refused
        assert "attempt 1 of unit u is fenced: attempt 2 has joined" in refused.message
    another = Place(tmp_path, job_file(place.job.training, uid="another"))
    with LocalSyncer(another) as syncer, ScriptedLearner(syncer, unit="u") as learner:
        assert "uid" in syncer.report().message
        assert all(unit.attempt == 0 for unit in syncer.report().units)
        learner.welcomed(job_uid="another")


def test_the_silence_of_a_unit_that_does_not_come_back_counts_from_the_start_of_the_syncer(tmp_path: Path) -> None:
    place = place_for(tmp_path)
    save_fences(place.state, place.job.uid, {"gone": 1})
    with LocalSyncer(place) as syncer:
        silent = until(lambda: (gone := syncer.unit("gone")).seconds_since_heard > 0 and gone, "its silence to grow")
        assert silent.seconds_since_alive == silent.seconds_since_heard


def test_the_silence_of_a_refused_process_counts_from_its_first_refusal(tmp_path: Path) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, unit="u") as first:
        first.join().seed()
        odd, silences = syncer.syncer.engine._job.unit_stats.of("odd"), []
        for _ in range(2):  # its program catches the error, and tries again
            with ScriptedLearner(syncer, weights(tensors=5), unit="odd") as learner:
                learner.hello().hear("refused")
                silences.append(syncer.call(lambda: odd.heard_at))
        assert silences[0] == silences[1]
        assert syncer.unit("odd").seconds_since_heard > 0


@pytest.mark.slow
def test_a_snapshot_that_is_due_during_a_write_holds_the_state_at_the_end_of_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learners: list[LocalLearner]
) -> None:
    """One that waited with an older state would hold a second model in memory."""
    go_on, second_write, writes = threading.Event(), threading.Event(), []

    def slowly(*arguments: Any) -> object:
        writes.append(1)
        if len(writes) == 2:
            second_write.set()
            assert go_on.wait(WAIT_TIMEOUT)
        return write_tensors(*arguments)

    monkeypatch.setattr(snapshots, "write_tensors", slowly)
    place = place_for(tmp_path, every=5)
    with LocalSyncer(place) as syncer:
        learners.append(LocalLearner(place, syncer.address, "u").start())
        assert second_write.wait(WAIT_TIMEOUT)  # of the state at the end of the first one, which a slow disk makes a later one
        begun = syncer.report().t
        t = until(lambda: (r := syncer.report()).t > begun + 17 and r.t, "three more snapshots to be due")
        assert (len(writes), syncer.report().snapshot_t) == (2, 0)
        go_on.set()
        until(lambda: syncer.report().snapshot_t >= t, "the next snapshot")
        names = [path.name for path in stored(place).paths()]
    assert min(snapshots.step_of(name) or 0 for name in names if (snapshots.generation_of(name) or 0) >= 3) >= t


def refuse_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_a_full_disk(*_: object) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(snapshots, "write_tensors", on_a_full_disk)


@pytest.mark.slow
def test_a_full_disk_does_not_stop_training_and_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learners: list[LocalLearner]
) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer:
        with monkeypatch.context() as full:
            refuse_writes(full)
            learners.append(LocalLearner(place, syncer.address, "u").start())
            report = until(lambda: (r := syncer.report()).t > 20 and r.snapshot_error and r, "training to go on")
            assert report.snapshot_t == -1
            assert "No space left on device" in report.snapshot_error
            assert "spec.syncer.storage.size" in report.snapshot_error
            until(lambda: not list((place.state / "snapshots").iterdir()), "nothing to be left of a snapshot that failed")
        report = until(lambda: (r := syncer.report()).snapshot_t > 20 and r, "a snapshot after all")
        assert report.snapshot_error == ""


@pytest.mark.slow
def test_a_job_is_not_complete_before_its_final_snapshot_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_for(tmp_path, steps=10)
    with LocalSyncer(place) as syncer:
        with monkeypatch.context() as full:
            refuse_writes(full)
            LocalLearner(place, syncer.address, "u").start().wait()
            until(lambda: syncer.report().t == 10 and syncer.report().snapshot_error, "the final snapshot to fail")
            assert (syncer.report().done, place.result) == (False, None)
        assert syncer.wait() is RunOutcome.COMPLETE
    assert stored(place).paths()[0].name.endswith("-t10")


def final_snapshots(place: Place, t: int) -> list[str]:
    return [path.name for path in stored(place).paths() if path.name.endswith(f"-t{t}")]


@pytest.mark.slow
@pytest.mark.parametrize("every", [5, 7], ids=["the last step is a periodic one", "the last step is none"])
def test_the_last_step_has_one_snapshot_and_the_result_names_it(tmp_path: Path, every: int) -> None:
    place = place_for(tmp_path, steps=10, every=every)
    with LocalSyncer(place) as syncer:
        learner = LocalLearner(place, syncer.address, "u").start().wait()
        assert syncer.wait() is RunOutcome.COMPLETE
    (name,) = final_snapshots(place, 10)
    assert (place.final().snapshot, place.final().snapshot_copied) == (f"snapshots/{name}", False)
    loaded = newest(place)
    assert loaded.meta["evaluations"].keys() == {"u"}, "the evaluations came after the first write"
    assert learner.left is None
    assert len(stored(place).paths()) == 2, "the one before is kept"


@pytest.mark.slow
def test_a_finished_job_completes_at_once_serves_who_missed_the_end_and_keeps_one_snapshot_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, port = place_for(tmp_path, steps=10), held_port()
    with LocalSyncer(place, port=port) as syncer:
        other = LocalLearner(place, syncer.address, "u").start().wait()
        assert syncer.wait() is RunOutcome.COMPLETE
    with monkeypatch.context() as patch:
        patch.setattr(SnapshotStore, "drop_old", lambda _: None)
        loaded = newest(place)
        stored(place).save(10, TensorParts([loaded.tensors]), loaded.meta)
    assert len(final_snapshots(place, 10)) == 2, "as a crash leaves them"
    first = place.final()
    (place.directory / "termination-log").unlink()
    with LocalSyncer(place, AT_ONCE, port=port) as syncer:
        assert syncer.wait() is RunOutcome.COMPLETE
    (name,) = final_snapshots(place, 10)
    assert (place.final().step, place.final().tokens, place.final().held_out_loss) == (10, first.tokens, 0.5)
    late = LocalLearner(place, f"127.0.0.1:{port}", "late", arrays=weights(-3.0)).start()
    until(lambda: late._thread.is_alive(), "the learner to try to connect")
    with LocalSyncer(place, LINGERING, port=port) as syncer:
        late.wait()
        assert syncer.stop() is RunOutcome.COMPLETE
    assert (late.left, late.steps) == (None, 0)
    assert same_bytes(late.arrays, other.arrays)
    assert final_snapshots(place, 10) == [name]
    assert newest(place).meta["evaluations"].keys() == {"u", "late"}


@pytest.mark.slow
def test_a_syncer_that_stops_again_and_again_at_one_step_keeps_the_snapshots_before_it(tmp_path: Path) -> None:
    place = place_for(tmp_path)
    train_until(place, 10)
    before = [path.name for path in stored(place).paths()]
    for _ in range(3):
        with LocalSyncer(place) as syncer:
            assert syncer.stop() is RunOutcome.DRAINED
    assert [path.name for path in stored(place).paths()] == before


@pytest.mark.slow
@pytest.mark.parametrize("heals", [True, False], ids=["it heals", "it does not"])
def test_the_copy_of_the_final_snapshot_is_tried_again_and_the_result_says_whether_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heals: bool
) -> None:
    upload, broken, tries = RemoteSnapshots.upload, True, 0

    def away(self: RemoteSnapshots, path: Path, **how: bool) -> None:
        nonlocal broken, tries
        tries += path.name.endswith("-t10")
        broken = broken and not (heals and tries == 3)
        if broken:
            raise SnapshotError(f"snapshot {path.name} could not be copied: the bucket is away")
        upload(self, path, **how)

    monkeypatch.setattr(RemoteSnapshots, "upload", away)
    place = Place(tmp_path, job_file(training(10, checkpoint={"every_steps": 5, "keep": 2, "uri": f"file://{tmp_path}/elsewhere"})))
    with LocalSyncer(place, Timeouts(reconnect_window=0.5, final_retry=0.01)) as syncer:
        LocalLearner(place, syncer.address, "u").start().wait()
        assert syncer.wait() is RunOutcome.COMPLETE
    (name,) = final_snapshots(place, 10)
    assert (place.final().snapshot, place.final().snapshot_copied) == (f"snapshots/{name}", heals)
    assert ("the bucket is away" in place.final().message) != heals
    assert [path.name for path in (tmp_path / "elsewhere").glob("*/*-t10")] == ([name] if heals else [])


@pytest.mark.slow
def test_a_complete_job_goes_on_with_more_steps_from_its_final_parameters(tmp_path: Path) -> None:
    place = place_for(tmp_path, steps=20)
    with LocalSyncer(place) as syncer:
        first = LocalLearner(place, syncer.address, "u").start().wait()
        assert syncer.wait() is RunOutcome.COMPLETE
    done = place.final()
    place.job = job_file(training(50, checkpoint={"every_steps": 5, "keep": 2}))
    place.write()
    with LocalSyncer(place) as syncer:
        report = syncer.report()
        assert (report.t, report.steps, report.tokens, report.done) == (20, 50, done.tokens, False)
        assert not report.HasField("held_out_loss")  # that of step 20 says nothing about the parameters of step 50
        second = LocalLearner(place, syncer.address, "u", attempt=2).start().wait()
        assert syncer.wait() is RunOutcome.COMPLETE
    assert (place.final().step, place.final().steps, place.final().held_out_loss) == (50, 50, 0.5)
    assert place.final().tokens > done.tokens
    assert same_bytes(second.joined_with or {}, first.arrays), "what the job had at its first end"
    assert min(second.numbers) == done.tokens // 8  # the first sample that the job has not trained
    assert stored(place).paths()[0].name.endswith("-t50")


@pytest.mark.slow
def test_a_job_that_has_passed_the_steps_to_which_it_was_lowered_is_complete_where_it_is(tmp_path: Path) -> None:
    """The job goes on while its user writes: its last step may be behind it by the time it hears of it."""
    place = place_for(tmp_path)
    train_until(place, 20)
    reached = int(stored(place).paths()[0].name.rpartition("-t")[2])
    place.job = job_file(training(reached - 10, checkpoint={"every_steps": 5, "keep": 2}))
    place.write()
    with LocalSyncer(place) as syncer:
        learner = LocalLearner(place, syncer.address, "u", attempt=2).start().wait()
        assert syncer.wait() is RunOutcome.COMPLETE
    assert (place.final().step, place.final().steps, place.final().held_out_loss) == (reached, reached - 10, 0.5)
    assert learner.steps == 0


def test_a_unit_that_finds_a_restarted_syncer_after_another_has_brought_the_job_to_its_end_hears_of_it(tmp_path: Path) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer:
        units = [LocalLearner(place, syncer.address, unit).start() for unit in ("u", "v")]
        until(lambda: syncer.report().t >= 5 and all(learner.steps for learner in units), "outer steps of both")
        for learner in units:
            learner.drain()
            learner.wait()
        syncer.stop()
        place.job = place_for(tmp_path, steps=syncer.syncer.engine.report().t + 2).job
    with LocalSyncer(place, LINGERING) as syncer:
        first = LocalLearner(place, syncer.address, "u", attempt=2).start().wait()
        second = LocalLearner(place, syncer.address, "v", attempt=2).start().wait()
        assert syncer.wait() is RunOutcome.COMPLETE, "both have come and gone"
    assert (first.left, second.left, second.steps) == (None, None, 0)
    assert same_bytes(second.arrays, first.arrays)


def test_what_is_wrong_with_the_environment_is_said_with_the_contracts_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], {}) == Exit.BAD_CONTRACT
    assert "DILOCO_JOB_FILE is not set" in capsys.readouterr().err
    environment = Place(tmp_path).of_syncer(7077)
    assert main([], environment | {"DILOCO_LISTEN_PORT": "99999"}) == Exit.BAD_CONTRACT
    assert "DILOCO_LISTEN_PORT must be a port number, not '99999'" in capsys.readouterr().err
