"""Real processes that are killed, frozen and starved: a syncer and quadratic learners, as pods would run them."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders.exchange import Place, Processes, job_file, traced, training, unit_in, until
from diloco.contract import Exit
from diloco.protocol.diloco_pb2 import Report, UnitReport

pytestmark = pytest.mark.slow

LONG = 1_000_000


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    job = Processes(Place(tmp_path, job_file(training(LONG, sync_interval=8, fragments=8, checkpoint={"every_steps": 20, "keep": 2}))))
    yield job
    job.end()


def contributing(*units: str) -> Callable[[Report], bool]:
    def all_contribute(report: Report) -> bool:
        found = [unit_in(report, unit) for unit in units]
        return all(one.state == UnitReport.CONTRIBUTING and one.contributions > 0 for one in found)

    return all_contribute


def test_a_frozen_learner_is_noticed_and_comes_back_when_it_thaws(processes: Processes) -> None:
    processes.syncer("--keepalive", "0.5", "--keepalive-timeout", "0.5")
    frozen = processes.learner("a-0")
    processes.learner("b-0")
    processes.report(contributing("a-0", "b-0"), "both contribute")
    frozen.signal(signal.SIGSTOP)
    gone = processes.report(lambda r: unit_in(r, "a-0").state == UnitReport.DISCONNECTED, "the freeze is noticed")
    processes.report(lambda r: r.t > gone.t + 20, "the other trains on")
    frozen.signal(signal.SIGCONT)
    processes.report(contributing("a-0", "b-0"), "both contribute again")
    assert frozen.process.poll() is None


def test_learners_train_on_while_the_syncer_is_frozen_and_contribute_when_it_thaws(processes: Processes, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    syncer = processes.syncer()
    learners = [processes.learner(unit, QUADRATIC_TRACE=str(trace)) for unit in ("a-0", "b-0")]
    before = processes.report(contributing("a-0", "b-0"), "both contribute")
    syncer.signal(signal.SIGSTOP)
    stepped = steps_of(trace)
    until(lambda: all(steps >= stepped[unit] + 20 for unit, steps in steps_of(trace).items()), "both to train on without the syncer")
    syncer.signal(signal.SIGCONT)

    def both_contribute_again(report: Report) -> bool:
        return report.t > before.t + 20 and all(
            unit_in(report, unit).contributions > unit_in(before, unit).contributions + 2 for unit in ("a-0", "b-0")
        )

    after = processes.report(both_contribute_again, "both contribute again")
    assert [one.process.poll() for one in (syncer, *learners)] == [None] * 3
    assert {reason for unit in after.units for reason in unit.refused} <= {"StaleRound", "NotAsked"}, "answers that the freeze made late"
    drawn = [n for line in traced(trace) for n in line["numbers"]]
    assert len(drawn) == len(set(drawn)), "no sample is trained twice"


def steps_of(trace: Path) -> dict[str, int]:
    """Local steps of each unit."""
    return {line["unit"]: line["step"] for line in traced(trace)}


@pytest.mark.full
def test_learners_end_with_the_contracts_status(processes: Processes) -> None:
    processes.syncer()
    processes.learner("a-0")
    processes.report(contributing("a-0"), "training")
    odd = processes.learner("odd-0", QUADRATIC_LAYOUT="other")
    sick = processes.learner("sick-0", QUADRATIC_NAN_AT_STEP="5")
    twin = processes.learner("a-0")
    broken = processes.learner("broken-0", QUADRATIC_CRASH_AT_STEP="3")
    assert odd.wait() == Exit.REFUSED_LAYOUT
    assert "not those of this job: tensor embedding: shape (16,4) here, (16,8) in the job" in odd.text
    assert sick.wait() == Exit.REFUSED_NONFINITE
    assert "NONFINITE" in sick.text
    assert twin.wait() == Exit.REFUSED_FENCED
    assert broken.wait() == Exit.CRASHED
    report = processes.report(lambda r: unit_in(r, "broken-0").attempt == 1 and contributing("a-0")(r), "the first trains on")
    # Besides, on a busy machine, pushes that came after their round was over.
    assert unit_in(report, "sick-0").refused["NonFinite"] == 1


def test_a_volume_without_room_is_reported_and_training_goes_on(processes: Processes) -> None:
    syncer = processes.syncer()
    # 400 tensors of 8x8 float32 and their momentum are 200 KiB; no file may grow beyond 64 KiB
    resource.prlimit(syncer.process.pid, resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    processes.learner("a-0", QUADRATIC_TENSORS="400")
    failed = processes.report(lambda r: r.t > 30 and bool(r.snapshot_error), "the failure is reported")
    assert failed.snapshot_t == -1
    assert "File too large" in failed.snapshot_error
    processes.report(lambda r: r.t > failed.t + 20, "training goes on")
    syncer.signal(signal.SIGTERM)
    assert syncer.wait() == Exit.DRAINED


def test_a_volume_with_another_jobs_cut_ends_the_syncer_with_bad_state(processes: Processes) -> None:
    syncer = processes.syncer()
    learner = processes.learner("a-0")
    processes.report(lambda r: r.snapshot_t >= 0, "a snapshot")
    for program in (learner, syncer):
        program.signal(signal.SIGTERM)
        program.wait()
    changed = processes.place.job.training.model_copy(update={"fragments": 4})
    processes.place.job = processes.place.job.model_copy(update={"training": changed})
    processes.place.write()
    again = processes.syncer()
    assert again.wait() == Exit.BAD_STATE
    assert "training.fragments cannot change" in again.text


def test_processes_that_a_learner_forks_neither_hang_nor_cost_it_its_connection(processes: Processes) -> None:
    processes.syncer()
    learner = processes.learner("a-0", program="forking_learner.py")
    # It imports torch, which takes long on a busy machine.
    until(lambda: learner.text.count("forked") >= 2, "workers of a data loader and of a pool to come and go twice", 240)
    processes.report(contributing("a-0"), "it contributes")
    assert "lost the syncer" not in learner.text
    learner.signal(signal.SIGTERM)
    assert learner.wait() == Exit.DRAINED
