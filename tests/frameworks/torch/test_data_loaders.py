"""Units that train on torch's own DataLoader, whose workers fetch ahead of the steps."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from builders.exchange import Place, Processes, Program, job_file, training, unit_in, until
from diloco.contract import Exit
from diloco.data.sampling import sample_indices
from diloco.protocol.diloco_pb2 import Report
from programs.loader_learner import BATCH, BATCHES_PER_UPDATE, SAMPLES, SEED, TOKENS_PER_SAMPLE

pytestmark = pytest.mark.slow

IMPORTING = 200.0
"""A program that imports torch may need so long on a busy machine, seconds."""
PER_UPDATE = BATCH * BATCHES_PER_UPDATE


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    job = Processes(Place(tmp_path, job_file(training(1_000_000, sync_interval=8, fragments=8))))
    yield job
    job.end()


def trained(program: Program) -> list[int]:
    """The indices of all updates, in order."""
    return [index for line in program.text.splitlines() if line.startswith("[") and line.endswith("]") for index in json.loads(line)]


def indices(start: int, count: int) -> list[int]:
    """The samples of the sequence numbers from `start`."""
    return [int(index) for index in sample_indices(np.arange(start, start + count), SAMPLES, SEED)]


def committed(report: Report) -> int:
    """Samples of the unit's work that the model holds."""
    unit = unit_in(report, "a-0")
    assert unit.tokens == unit.steps * PER_UPDATE * TOKENS_PER_SAMPLE
    return unit.tokens // TOKENS_PER_SAMPLE


def test_what_workers_fetched_ahead_and_no_step_settled_is_trained_by_the_next_attempt(processes: Processes) -> None:
    processes.syncer("--reconnect-window", "0.5")
    first = processes.learner("a-0", program="loader_learner.py")
    until(lambda: len(trained(first)) > 3 * SAMPLES, "three epochs", IMPORTING)
    processes.report(lambda report: committed(report) > SAMPLES, "more than one epoch in the model")
    first.signal(signal.SIGTERM)
    assert first.wait() == Exit.DRAINED
    assert trained(first) == indices(0, len(trained(first))), "each sample once an epoch, in the order of the sequence numbers"

    second = processes.learner("a-0", attempt=2, program="loader_learner.py")
    until(lambda: len(trained(second)) > SAMPLES, "an epoch of the second attempt", IMPORTING)
    again = trained(second)
    # It begins after what the model holds of the first attempt: with whole updates, and never beyond what a step of it settled.
    starts = [start for start in range(0, len(trained(first)) + 1, PER_UPDATE) if indices(start, len(again)) == again]
    assert starts
    assert max(starts) >= SAMPLES
    processes.report(lambda report: committed(report) > max(starts) + SAMPLES, "the second attempt's work in the model")
