"""A syncer that is killed at any moment: nothing that a learner holds is lost, and nothing is trained twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any, Self

import pytest
from builders.child_processes import die_with_parent
from builders.exchange import WAIT_TIMEOUT, LocalLearner, LocalSyncer, Place, connection_of, job_file, training, until
from builders.exploration import full
from builders.ports import held_port
from diloco.syncer.job.engine import RunOutcome
from diloco.tape.segments import FOLDER, heads

PROGRAM = Path(__file__).parents[4] / "programs" / "dying_syncer.py"
TOKENS_OF_A_SAMPLE = 8


class SyncerProcess:
    """A syncer that is a process of its own."""

    def __init__(self, place: Place, port: int, *die: str) -> None:
        environment = {**os.environ, **place.of_syncer(port)}
        self._process = subprocess.Popen([sys.executable, str(PROGRAM), *die], env=environment, preexec_fn=die_with_parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        return self._process.wait(WAIT_TIMEOUT)


def place_for(path: Path, steps: int, every: int, compression: str) -> Place:
    return Place(path, job_file(training(steps, checkpoint={"every_steps": every, "keep": 2}, compression=compression, quorum=2)))


def merges(place: Place) -> list[dict[str, Any]]:
    return [head for head in heads(place.state / FOLDER) if head["type"] == "merge"]


def assert_nothing_is_lost(place: Place, units: list[LocalLearner]) -> None:
    """What every learner holds is in the tape with the same bytes, and each merge follows on the one before."""
    versions: dict[int, int] = {}
    made: dict[tuple[int, int], str] = {}
    for merge in merges(place):
        p, t = merge["fragment"], merge["t"]
        assert merge["base"] == versions.get(p, 0), f"outer step {t} of fragment {p} does not follow on the merge before it"
        versions[p], made[p, t] = t, merge["checksum"]
    for unit in units:
        held = connection_of(unit.session)._bases if unit.session is not None else {}  # it may not have joined yet
        for p, base in held.items():
            if base.version:
                assert made[p, base.version] == f"{zlib.crc32(base.value):08x}", f"unit {unit.unit} holds other values of fragment {p}"


def train_on(place: Place, port: int, units: list[LocalLearner]) -> None:
    """To the end of the job."""
    known = {unit for merge in merges(place) for unit in merge["given"]}
    with LocalSyncer(place, port=port) as syncer:
        assert_nothing_is_lost(place, units)
        for unit in units:
            unit.wait()
        assert syncer.wait() is RunOutcome.COMPLETE
        ledger = syncer.syncer.engine.work.ledger
    assert_nothing_is_lost(place, units)
    assert place.result is not None
    assert place.result.step == place.job.training.steps
    committed = [number for start, end in ledger.committed() for number in range(start, end)]
    assert place.result.tokens == TOKENS_OF_A_SAMPLE * len(committed)
    first, *others = ([array.tobytes() for array in unit.arrays.values()] for unit in units)
    assert all(other == first for other in others), "units hold other parameters than each other"
    for unit in units:
        assert unit.session is not None
        assert connection_of(unit.session)._generation == 1 or unit.unit not in known, "its session goes on"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "compression"),
    [
        full("before the record", "None"),
        ("within the record", "None"),
        full("after the record", "None"),
        full("after the broadcast", "None"),
        full("before the record", "Int4"),
        full("within the record", "Int4"),
        full("after the record", "Int4"),
        ("after the broadcast", "Int4"),
    ],
)
def test_a_syncer_that_is_killed_at_a_merge_loses_no_merge_that_a_learner_holds(tmp_path: Path, moment: str, compression: str) -> None:
    place, port = place_for(tmp_path, 80, 7, compression), held_port()
    units = [LocalLearner(place, f"127.0.0.1:{port}", f"u-{i}").start() for i in range(2)]
    with SyncerProcess(place, port, moment, "5") as dying:
        assert dying.wait() == -signal.SIGKILL
    train_on(place, port, units)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_a_syncer_that_is_killed_again_and_again_loses_no_merge(tmp_path: Path, seed: int) -> None:
    """At random moments, also while it starts, with a snapshot every other outer step or none at all."""
    choice = random.Random(seed)
    place, port = place_for(tmp_path, 300, choice.choice([2, 9, 10_000]), "BFloat16"), held_port()
    units = [LocalLearner(place, f"127.0.0.1:{port}", f"u-{i}").start() for i in range(2)]
    for _ in range(3):
        with SyncerProcess(place, port):
            began = len(merges(place))
            until(lambda began=began: len(merges(place)) > began + 2, "merges of this process")  # type: ignore[misc]
            time.sleep(choice.uniform(0.0, 0.3))  # the moment of the kill is what is random
    train_on(place, port, units)
