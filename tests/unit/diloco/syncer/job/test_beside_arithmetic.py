"""While a fragment is decoded or merged the syncer serves everyone: reports, leases, joins and the outer clock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.exchange import WAIT_TIMEOUT, LocalSyncer, Place, job_file, training, until
from builders.scripted_learner import ScriptedLearner
from builders.shardings import rows
from diloco.algorithm.core import Core
from diloco.algorithm.cut import cut
from diloco.protocol.diloco_pb2 import Pull, UnitReport
from diloco.syncer.job.exchange import INLINE_ELEMENTS

LARGE = {name: np.zeros((600, 512), np.float32) for name in ("w0", "w1")}
"""Two fragments, each too large for the event loop."""


class Held:
    """A function whose calls wait, in their thread, until `release`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.entered = threading.Event()
        self._released = threading.Event()
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        self.entered.set()
        assert self._released.wait(WAIT_TIMEOUT)
        return self._function(*arguments)

    def release(self) -> None:
        self._released.set()


def place_for(path: Path, quorum: int = 1) -> Place:
    """One fragment leaves at every outer step; two exchanges may be under way."""
    return Place(path, job_file(training(100_000, sync_interval=2, fragments=2, overlap_steps=1, quorum=quorum, compression="None")))


def held(syncer: LocalSyncer, monkeypatch: pytest.MonkeyPatch, name: str) -> Held:
    """`Shard.decode` or `Shard.compute`, held from now on."""
    core = syncer.syncer.engine.exchanges.core
    assert isinstance(core, Core)
    assert all(fragment.size > INLINE_ELEMENTS for fragment in core.fragments)
    hold = Held(getattr(core.shard, name))
    monkeypatch.setattr(core.shard, name, hold)
    return hold


def seeded(syncer: LocalSyncer, learner: ScriptedLearner) -> ScriptedLearner:
    learner.join().seed()
    until(lambda: syncer.report().seeded, "the seed")
    return learner


def unit(syncer: LocalSyncer, name: str) -> UnitReport:
    return syncer.unit(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decode", "compute"])
def test_reports_leases_joins_and_the_clock_go_on_beside_arithmetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with LocalSyncer(place_for(tmp_path)) as syncer, ScriptedLearner(syncer, LARGE, unit="first") as first:
        seeded(syncer, first)
        hold = held(syncer, monkeypatch, name)
        first.push(first.step(1).pulled())
        assert hold.entered.wait(WAIT_TIMEOUT)
        assert syncer.report().t == 1
        with ScriptedLearner(syncer, LARGE, unit="second") as second:
            second.join()
            second.want(3).hear("work")
            second.step(1)
            until(lambda: unit(syncer, "second").local_step == 1, "the report of a step")
        if name == "compute":  # the unit's own stream and the clock go on as well: tau is 1
            assert first.step(3).pulled().t == 2
        assert unit(syncer, "first").contributions == 0
        hold.release()
        until(lambda: unit(syncer, "first").contributions == 1, "the merge")


@pytest.mark.slow
def test_answer_that_was_not_asked_for_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalSyncer(place_for(tmp_path)) as syncer, ScriptedLearner(syncer, LARGE) as learner:
        seeded(syncer, learner)
        hold = held(syncer, monkeypatch, "decode")
        learner.push(Pull(fragment=0, t=99))
        until(lambda: unit(syncer, "u-0").refused.get("NotAsked") == 1, "the refusal")
        assert not hold.entered.is_set()
        learner.push(learner.step(1).pulled())
        assert hold.entered.wait(WAIT_TIMEOUT)
        hold.release()
        until(lambda: unit(syncer, "u-0").contributions == 1, "the merge of the next answer")


def test_what_follows_an_answer_on_the_stream_stays_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalSyncer(place_for(tmp_path)) as syncer, ScriptedLearner(syncer, LARGE) as learner:
        seeded(syncer, learner)
        hold = held(syncer, monkeypatch, "decode")
        learner.push(learner.step(1).pulled()).want(3)
        assert hold.entered.wait(WAIT_TIMEOUT)
        threading.Timer(0.05, hold.release).start()
        learner.leave()
        assert unit(syncer, "u-0").message == "drained"
        until(lambda: unit(syncer, "u-0").contributions == 1, "the merge of what came before Bye")


@pytest.mark.slow
def test_unit_that_is_lost_while_its_answer_is_decoded_holds_up_no_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_for(tmp_path, quorum=2)
    with (
        LocalSyncer(place) as syncer,
        ScriptedLearner(syncer, LARGE, unit="lost") as lost,
        ScriptedLearner(syncer, LARGE, unit="other") as other,
    ):
        seeded(syncer, lost)
        other.join()
        other.step(1)
        until(lambda: unit(syncer, "other").local_step == 1, "the other's first step")
        lost.step(1)
        pull = lost.pulled()
        assert other.pulled() == pull
        hold = held(syncer, monkeypatch, "decode")
        lost.push(pull)
        assert hold.entered.wait(WAIT_TIMEOUT)
        lost.cut()
        until(lambda: unit(syncer, "lost").state == UnitReport.DISCONNECTED, "the loss")
        hold.release()
        other.push(pull)
        until(lambda: unit(syncer, "other").contributions == 1, "the merge")
        assert unit(syncer, "lost").contributions == 0


@pytest.mark.slow
def test_learners_join_while_portions_of_more_ranks_than_there_are_threads_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner joins once its fence is written, which a thread does."""
    hold, ranks = Held(cut), min(32, (os.cpu_count() or 1) + 4) + 1
    with LocalSyncer(place_for(tmp_path)) as syncer, ScriptedLearner(syncer, LARGE, unit="first") as first:
        seeded(syncer, first)
        monkeypatch.setattr("diloco.syncer.streams.outgoing.cut", hold)
        with ScriptedLearner(syncer, LARGE, unit="ranks", sharding=rows(ranks)) as many:
            many.join()
            assert hold.entered.wait(WAIT_TIMEOUT)
            with ScriptedLearner(syncer, LARGE, unit="second") as second:
                second.join()
            hold.release()
            for stream in many.streams:
                stream.receive()
