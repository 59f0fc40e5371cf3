"""TensorBoard's event files, as TensorBoard reads them."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest
from builders.core import a_seeded_core
from builders.event_files import scalars, steps_of
from builders.exchange import WAIT_TIMEOUT, LocalLearner, LocalSyncer, Place, job_file, training, until
from builders.scripted_learner import ScriptedLearner
from diloco.data.ledger import Ledger
from diloco.snapshots import store as snapshots
from diloco.snapshots.store import SnapshotStore
from diloco.syncer.config import Timeouts
from diloco.syncer.job.engine import RunOutcome
from diloco.syncer.reporting import event_file, event_writer
from diloco.syncer.reporting.event_file import EventFile, event_files
from diloco.syncer.reporting.event_writer import MOST_POINTS, EventWriter
from diloco.syncer.reporting.history import MOST_UNITS, step_scalars
from diloco.syncer.reporting.unit_stats import UnitStatsTable

LONG = 100_000


class Writer(EventWriter):
    """At 1,000 s since the epoch until `at` changes; counts what it says of its error."""

    def __init__(self, root: Path, steps: int = 100, t: int = 0) -> None:
        self.at = 1000.0
        self.changes = 0
        super().__init__(root, steps=steps, t=t, changed=self._count, now=lambda: self.at)

    def _count(self) -> None:
        self.changes += 1

    async def written(self, *steps: int) -> None:
        """Scalars of these steps, one after another, as an engine offers them."""
        for t in steps:
            if self.due(t):
                self.offer(t, {"loss": float(t)})
                assert self._task is not None
                await self._task


# --- one process ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
async def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.offer(1, {"loss": 5.5, "tokens": 0})
    writer.offer(2, {"loss": 4.5, "tokens": 4096})
    await writer.close()
    assert scalars(tmp_path) == {"loss": [(1, 5.5), (2, 4.5)], "tokens": [(1, 0.0), (2, 4096.0)]}
    assert [path.name for path in event_files(tmp_path)] == ["events.out.tfevents.00000001.t1"]


async def test_values_can_be_read_while_the_file_is_still_written(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    await writer.written(1, 2)
    assert steps_of(tmp_path) == [1, 2]
    await writer.written(3)
    assert steps_of(tmp_path) == [1, 2, 3]
    await writer.close()


async def test_a_process_that_writes_nothing_leaves_no_file(tmp_path: Path) -> None:
    await Writer(tmp_path / "never").close()
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(("steps", "most"), [(100, 100), (10_000, 10_000), (1_000_001, 10_001)])
def test_a_long_job_has_a_bounded_number_of_points_and_its_last_one(tmp_path: Path, steps: int, most: int) -> None:
    writer = Writer(tmp_path, steps)
    count = 0
    for t in range(1, steps + 1):
        if writer.due(t):
            writer._last = t
            count += 1
    assert most // 2 <= count <= most
    assert writer.due(steps)


async def test_without_tensorboards_package_the_log_says_what_to_install_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_writer, "installed", lambda: False)
    writer = Writer(tmp_path)
    await writer.written(*range(1, 101))
    writer.offer(100, {"loss/held_out": 0.5})  # the last one is not asked for first
    await writer.close()
    assert event_files(tmp_path) == []
    assert (writer.error, writer.dropped) == ("", 0)
    assert "install the package tensorboard" in caplog.text


# --- restarts ---------------------------------------------------------------------------------------------------------
@pytest.mark.slow
async def test_what_a_roll_back_trains_again_stands_there_once(tmp_path: Path) -> None:
    first = Writer(tmp_path)
    await first.written(*range(1, 11))
    await first.close()
    second = Writer(tmp_path, t=5)  # from the snapshot of step 5
    await second.written(7, 8)
    await second.close()
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 7, 8]
    third = Writer(tmp_path, t=8)
    await third.written(9)
    await third.close()
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 7, 8, 9]


async def test_a_record_that_a_crash_cut_short_hides_nothing_of_the_next_process(tmp_path: Path) -> None:
    first = Writer(tmp_path)
    await first.written(1, 2, 3)
    await first.close()
    (path,) = event_files(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    second = Writer(tmp_path, t=2)
    await second.written(3, 4)
    await second.close()
    assert steps_of(tmp_path) == [1, 2, 3, 4]


def test_files_of_many_restarts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def restart(t: int) -> None:
        file = EventFile(tmp_path, t, 0.0)
        file.write(t, 0.0, {"loss": 1.0})
        file.flush()
        file.close()

    for t in range(event_file.MOST_FILES + 5):
        restart(t)
    files = event_files(tmp_path)
    assert len(files) == event_file.MOST_FILES
    assert files[-1].name == f"events.out.tfevents.{event_file.MOST_FILES + 5:08d}.t{event_file.MOST_FILES + 4}"
    monkeypatch.setattr(event_file, "MOST_BYTES", 3 * files[0].stat().st_size)
    restart(1000)
    assert len(event_files(tmp_path)) == 4


# --- disks ------------------------------------------------------------------------------------------------------------
async def test_a_full_disk_is_told_once_and_heals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path)
    await writer.written(1, 2)
    write = EventFile.write

    def on_a_full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(EventFile, "write", on_a_full_disk)
    await writer.written(3)
    assert writer.error == f"cannot write TensorBoard event files to {tmp_path}: No space left on device; training goes on without them"
    writer.at += 60
    await writer.written(4)
    assert len(event_files(tmp_path)) == 1, "a file without scalars does not stay"
    monkeypatch.setattr(EventFile, "write", write)
    await writer.written(5)  # too early for another attempt
    assert (writer.changes, writer.dropped) == (1, 3)
    writer.at += 60
    await writer.written(6)
    await writer.close()
    assert (writer.error, writer.changes, writer.dropped) == ("", 2, 3)
    assert steps_of(tmp_path) == [1, 2, 6]


async def test_a_folder_that_cannot_be_made_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    writer = Writer(tmp_path / "file" / "tensorboard")
    await writer.written(1)
    assert "Not a directory" in writer.error
    await writer.close()


async def test_a_disk_that_hangs_holds_up_no_one_and_costs_the_points_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, write = threading.Event(), EventFile.write

    def slowly(*arguments: object) -> None:
        hangs.wait(30)
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(EventFile, "write", slowly)
    writer = Writer(tmp_path, steps=LONG)
    writer.offer(1, {"loss": 1.0})
    await asyncio.sleep(0)  # the first point is with the thread
    for t in range(2, 302):
        writer.offer(t, {"loss": 1.0})
    assert writer.dropped == 300 - 256
    hangs.set()
    await writer.close()
    assert steps_of(tmp_path) == list(range(1, 258))


# --- what is written --------------------------------------------------------------------------------------------------
def test_scalars_of_a_step() -> None:
    stats, core = UnitStatsTable(), a_seeded_core()
    for index in range(MOST_UNITS + 8):
        stats.of(f"u-{index:02}").joined(1, 0.0)
        stats.of(f"u-{index:02}").progressed(1, 0.1, 2.0, 0, 0.0)
        stats.of(f"u-{index:02}").progressed(2, 0.1, 2.0, 100, 10.0)
    stats.of("away").lost(1.0, "lost")
    found = step_scalars(core, Ledger(), stats, 2.0, 10.0)
    assert (found["loss"], found["contributing_learners"], found["tokens"]) == (2.0, MOST_UNITS + 8, 0)
    assert found["tokens_per_second"] == pytest.approx(10 * (MOST_UNITS + 8))
    assert found["unit_tokens_per_second/u-00"] == pytest.approx(10)
    assert found["unit_weight/u-00"] == 0.0
    assert len([tag for tag in found if tag.startswith("unit_weight/")]) == MOST_UNITS
    assert "loss" not in step_scalars(core, Ledger(), UnitStatsTable(), None, 0.0)


# --- a syncer ---------------------------------------------------------------------------------------------------------
def place_for(path: Path, steps: int = LONG) -> Place:
    return Place(path, job_file(training(steps, checkpoint={"every_steps": 5, "keep": 2})))


@pytest.mark.slow
def test_a_syncer_leaves_the_curves_of_the_whole_job_beside_its_snapshots(tmp_path: Path) -> None:
    place = place_for(tmp_path, steps=40)
    with LocalSyncer(place) as syncer:
        LocalLearner(place, syncer.address, "u").start().wait()
        assert syncer.wait() is RunOutcome.COMPLETE
    found = scalars(place.state / "tensorboard")
    assert [step for step, _ in found["loss"]] == list(range(1, 41))
    assert place.result is not None
    assert found["loss"][-1][1] < found["loss"][0][1]
    assert found["held_out_loss"] == [(40, place.result.held_out_loss)]
    assert found["tokens"][-1][0] == 40
    assert 0 < found["tokens"][-1][1] <= place.result.tokens
    assert {value for _, value in found["contributing_learners"]} <= {0.0, 1.0}
    assert found["unit_weight/u"][-1][1] == pytest.approx(1.0)
    assert max(value for _, value in found["tokens_per_second"]) > 0


@pytest.mark.slow
def test_no_step_stands_twice_after_syncers_that_went_on_from_older_snapshots(tmp_path: Path, learners: list[LocalLearner]) -> None:
    place = place_for(tmp_path, steps=MOST_POINTS)  # every step is written
    reached = 0
    for _ in range(3):
        with LocalSyncer(place) as syncer:
            began = syncer.report().t
            learner = LocalLearner(place, syncer.address, "u").start()
            # Further than before also where a slow disk has left only much older snapshots.
            until(lambda: syncer.report().t >= max(began, reached) + 20, "twenty outer steps")  # noqa: B023
            learner.drain()
            learner.wait()
            reached = max(reached, syncer.report().t)
            assert syncer.stop() is RunOutcome.DRAINED
        newest, *_ = SnapshotStore(place.state / "snapshots", 2).paths()
        (newest / snapshots.TENSORS_FILE).write_bytes(b"")  # the next one goes back
    steps = steps_of(place.state / "tensorboard")
    assert steps == sorted(set(steps))
    assert steps[-1] >= reached - 5
    assert len(event_files(place.state / "tensorboard")) == 3


@pytest.mark.slow
def test_a_finished_job_that_is_evaluated_again_has_one_held_out_loss(tmp_path: Path) -> None:
    place = place_for(tmp_path, steps=10)
    with LocalSyncer(place) as syncer:
        LocalLearner(place, syncer.address, "u").start().wait()
        assert syncer.wait() is RunOutcome.COMPLETE
    first = scalars(place.state / "tensorboard")
    with LocalSyncer(place, Timeouts(linger=WAIT_TIMEOUT)) as syncer:  # it is there however late the learner connects
        LocalLearner(place, syncer.address, "u", attempt=2).start().wait()
        assert syncer.stop() is RunOutcome.COMPLETE
    second = scalars(place.state / "tensorboard")
    assert [len(second[tag]) for tag in ("loss", "held_out_loss")] == [10, 1]
    assert second["loss"] == first["loss"]


@pytest.mark.slow
def test_a_syncer_that_cannot_write_event_files_says_so_and_trains_on(tmp_path: Path, learners: list[LocalLearner]) -> None:
    place = place_for(tmp_path)
    place.state.mkdir()
    (place.state / "tensorboard").write_text("in the way")
    with LocalSyncer(place) as syncer:
        learners.append(LocalLearner(place, syncer.address, "u").start())
        report = until(lambda: (r := syncer.report()).snapshot_t >= 10 and r, "training to go on")
        assert "cannot write TensorBoard event files" in report.message
        assert report.snapshot_error == ""


def test_a_learner_is_needed_for_the_first_event_file(tmp_path: Path) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer) as learner:
        learner.join()
    assert not (place.state / "tensorboard").exists()
