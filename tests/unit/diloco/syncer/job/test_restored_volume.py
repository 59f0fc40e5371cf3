"""A volume that was restored from a backup: the syncer takes outer steps again, and they give other values."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path
from typing import Any

from builders.exchange import LocalSyncer, Place, job_file, training
from builders.scripted_learner import ScriptedLearner, a_round


def held_by(learner: ScriptedLearner) -> dict[str, Any]:
    """What the learner says of it in its next Hello."""
    (held,), (checksums,) = learner.held, learner.checksums
    fragments = range(len(held))
    return {"versions": [held[p][0] for p in fragments], "checksums": [checksums.get(p, 0) for p in fragments]}


def test_a_session_goes_on_only_with_versions_that_this_state_has_made(tmp_path: Path) -> None:
    place, backup = Place(tmp_path, job_file(training())), tmp_path / "backup"
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer) as learner:
        incarnation = learner.welcomed().incarnation
        pull = a_round([learner.seed()], 1)
        assert learner.checksums == [{pull.fragment: zlib.crc32(learner.value(pull.fragment))}]
    shutil.copytree(place.state, backup)
    with LocalSyncer(place) as syncer:
        with ScriptedLearner(syncer) as again:
            assert again.welcomed(incarnation=incarnation, **held_by(learner)).resumed
            again.held, again.checksums = learner.held, learner.checksums
            a_round([again], 2)
            a_round([again], 3)
        held = held_by(again)
        with ScriptedLearner(syncer) as again:
            assert again.welcomed(incarnation=incarnation, **held).resumed
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer) as again:
        assert again.welcomed(incarnation=incarnation, **held).resumed, "the tape has what the snapshot lacks"
    shutil.rmtree(place.state)
    shutil.copytree(backup, place.state)
    with LocalSyncer(place) as syncer:
        with ScriptedLearner(syncer, unit="other") as other:
            other.join().adopt(2)
            for number in (1, 2):
                a_round([other], number)
            assert held_by(other)["versions"] == held["versions"]
        with ScriptedLearner(syncer) as again:
            assert not again.welcomed(incarnation=incarnation, **held).resumed, "they have other values now"
            again.adopt(2)
            assert held_by(again) == held_by(other)
