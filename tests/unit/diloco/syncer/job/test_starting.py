"""A job that begins with a model of spec.startFrom: what its learners get, and what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.exchange import LocalLearner, LocalSyncer, Place, job_file, training, until, weights
from builders.scripted_learner import ScriptedLearner
from builders.snapshots import save_snapshot
from diloco.contract import Exit, StartFrom
from diloco.start.source import StartError
from diloco.tape.segments import FOLDER, heads
from safetensors.numpy import save_file

pytestmark = pytest.mark.slow

LONG = 100_000


def a_place(folder: Path, uri: str, steps: int = LONG, **changes: Any) -> Place:
    job = job_file(training(steps, **changes)).model_copy(update={"start_from": StartFrom(uri=uri)})
    return Place(folder / "job", job)


def a_file(folder: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> str:
    save_file(arrays, folder / "base.safetensors")
    return f"file://{folder}/base.safetensors"


def begun(learner: LocalLearner) -> dict[str, np.ndarray[Any, Any]]:
    until(lambda: learner.joined_with is not None, f"{learner.unit} has parameters")
    assert learner.joined_with is not None
    return learner.joined_with


def assert_equal(found: dict[str, np.ndarray[Any, Any]], expected: dict[str, np.ndarray[Any, Any]]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_all_learners_begin_with_the_model_and_none_with_its_own(tmp_path: Path) -> None:
    uri = a_file(tmp_path, weights(0.25))
    place = a_place(tmp_path, uri)
    with LocalSyncer(place) as syncer:
        learners = [LocalLearner(place, syncer.address, unit, arrays=weights(scale)).start() for unit, scale in (("u", -9.0), ("v", 9.0))]
        until(lambda: all(learner.steps > 2 for learner in learners), "training goes on")
        assert_equal(begun(learners[0]), weights(0.25))
        assert syncer.report().message == f"began with {uri}"
        for learner in learners:
            learner.drain()
            learner.wait()
    seeds = [head for head in heads(place.state / FOLDER) if head["type"] == "seed"]
    assert [(head["unit"], head["model"]) for head in seeds] == [("", uri)]


def test_the_newest_snapshot_of_another_job_is_taken_and_its_steps_and_tokens_are_not(tmp_path: Path) -> None:
    save_snapshot(tmp_path / "old", 70, weights(0.5), job="old", fragments=4)
    place = a_place(tmp_path, f"file://{tmp_path}/old", steps=6)
    with LocalSyncer(place) as syncer:
        learner = LocalLearner(place, syncer.address, "u", arrays=weights(-9.0)).start().wait()
        syncer.wait()
    assert_equal(begun(learner), weights(0.5))
    assert place.result is not None
    assert place.result.step == 6
    assert 0 < place.result.tokens <= 8 * len(learner.numbers), "a sample has 8 tokens"
    assert "(outer step 70 of job old)" in place.result.message


def test_a_syncer_that_comes_back_goes_on_from_its_own_state(tmp_path: Path) -> None:
    place = a_place(tmp_path, a_file(tmp_path, weights(0.25)))
    with LocalSyncer(place) as syncer:
        learner = LocalLearner(place, syncer.address, "u").start()
        until(lambda: syncer.report().t >= 4, "four outer steps")
        learner.drain()
        learner.wait()
    (tmp_path / "base.safetensors").unlink()
    with LocalSyncer(place) as syncer:
        assert syncer.report().t >= 4


def test_a_learner_of_another_model_is_refused_and_told_which_tensors_do_not_fit(tmp_path: Path) -> None:
    uri = a_file(tmp_path, weights(0.25, tensors=3))
    place = a_place(tmp_path, uri)
    with LocalSyncer(place) as syncer:
        other = LocalLearner(place, syncer.address, "u", arrays=weights(tensors=4)).start().wait()
        assert str(other.left) == str(int(Exit.REFUSED_LAYOUT))
        report = syncer.unit("u")
        assert report.message == f"the parameters of unit u are not those of spec.startFrom, {uri}: tensor w3: (6,8) here, not there"
        fitting = LocalLearner(place, syncer.address, "v", arrays=weights(tensors=3)).start()
        assert_equal(begun(fitting), weights(0.25, tensors=3))
        fitting.drain()
        fitting.wait()


def test_tensors_that_the_job_does_not_train_are_left_out_and_named(tmp_path: Path) -> None:
    uri = a_file(tmp_path, weights(0.25) | {"position_ids": np.arange(3)})
    place = a_place(tmp_path, uri)
    with LocalSyncer(place) as syncer:
        learner = LocalLearner(place, syncer.address, "u").start()
        assert_equal(begun(learner), weights(0.25))
        assert syncer.report().message == f"began with {uri}, without 1 tensor that it has beyond (position_ids)"
        learner.drain()
        learner.wait()


def test_a_model_that_is_not_there_ends_the_syncer_before_any_learner(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"spec\.startFrom\.uri file:///.*/base\.safetensors: there is no such file"):
        LocalSyncer(a_place(tmp_path, f"file://{tmp_path}/base.safetensors")).__enter__()


def test_a_model_with_nan_ends_the_syncer_and_names_the_tensor(tmp_path: Path) -> None:
    arrays = weights(0.25)
    arrays["w1"][0, 0] = np.nan
    place = a_place(tmp_path, a_file(tmp_path, arrays))
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer) as learner:
        learner.hello()
        syncer.wait()
        assert isinstance(syncer.failure, StartError)
        assert "cannot be used: the seed holds NaN or infinity in w1" in str(syncer.failure)
    assert not (place.state / "snapshots").exists()
