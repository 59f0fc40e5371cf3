"""Exchanges that merge nothing: what becomes of the work in them, and what the log says."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from builders.core import a_job, a_seeded_core
from builders.exchange import LocalSyncer, Place, job_file, training, until, weights
from builders.scripted_learner import ScriptedLearner
from builders.tapes import AtOnce
from diloco.data.ledger import Ledger, Summary
from diloco.protocol.diloco_pb2 import Progress
from diloco.syncer.job.exchange import SKIPS_SAID_AGAIN_AFTER, Exchanges
from diloco.syncer.job.work import JobWork
from diloco.syncer.reporting.recent import RecentEntries
from diloco.syncer.reporting.unit_stats import UnitStatsTable
from diloco.syncer.streams.learner_stream import LearnerStreams
from diloco.syncer.streams.sessions import UnitSession


def test_the_work_of_a_contribution_that_is_refused_at_the_merge_is_free_again(tmp_path: Path) -> None:
    """It was accepted before, and what it might have committed stayed leased until the end of its exchange, also beyond its session."""
    place = Place(tmp_path, job_file(training(1000, sync_interval=1, fragments=1, overlap_steps=0, compression="None")))
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, weights(1.0)) as learner:

        def ledger() -> Summary:
            return syncer.syncer.engine.work.ledger.summary()

        learner.join().seed().want(40).hear("work")
        assert syncer.call(ledger).leased == 40
        pull = learner.step(1).pulled()
        learner.push(pull, np.full(learner.fragments[0].size, 1e30, np.float32), samples_done=8)
        until(lambda: syncer.unit("u-0").refused.get("Outlier") == 1, "the refusal")
        assert (syncer.call(ledger).leased, syncer.call(ledger).free, syncer.call(ledger).committed) == (0, 40, 0)


def test_a_job_that_merges_nothing_says_so_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    core = a_seeded_core(a_job())
    exchanges = Exchanges(
        a_job(), core, LearnerStreams(), JobWork(Ledger(), 4), UnitStatsTable({}), RecentEntries(), AtOnce(), lambda event: None
    )
    core.join("u", 0.0)
    session = UnitSession("u", 1, b"s", "u/1/1", 1)
    with caplog.at_level(logging.INFO, "diloco.syncer.job.exchange"):
        for step in range(1, 2 * SKIPS_SAID_AGAIN_AFTER + 51):
            # It reports steps, and none on any fragment.
            exchanges.progress(session, Progress(local_step=step, steps=[0] * 4, tokens=[0] * 4, step_seconds=1.0), float(step))
            exchanges.advance(float(step))
    assert exchanges.t == 2 * SKIPS_SAID_AGAIN_AFTER + 50
    why = "leaves fragment 1 unchanged: no learner that reports has trained it since it was broadcast"
    assert [record.getMessage() for record in caplog.records] == [
        f"outer step 1 {why}",
        f"outer step 101 {why}; since outer step 1 so did 99 others",
        f"outer step 201 {why}; since outer step 101 so did 99 others",
    ]
